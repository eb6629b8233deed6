//! `GenerationConfig`: what a checkpoint's `generation_config.json` asks of whoever writes text with it.

use super::sampler::{Draw, Sampling, SamplingError};
use serde_json::{Map, Value};

/// Sampling settings and ending tokens that a checkpoint ships.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Draw rather than take the largest logit; `None` when the file does not say.
    pub do_sample: Option<bool>,
    /// See [`Draw::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// See [`Draw::temperature`].
    pub temperature: Option<f32>,
    /// See [`Draw::top_k`].
    pub top_k: Option<usize>,
    /// See [`Draw::top_p`].
    pub top_p: Option<f32>,
    /// See [`Draw::min_p`].
    pub min_p: Option<f32>,
    /// Ids that end a text.
    pub eos: Vec<u32>,
    /// Tokens to write when the caller does not say.
    pub max_new_tokens: Option<usize>,
    /// Settings that would change the text and are not applied, with their values, as `key = value`.
    pub unapplied: Vec<String>,
}

/// Why a `generation_config.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GenerationConfigError {
    /// Not JSON, or not an object.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// A key holds something else than it should.
    #[error("key '{key}' is {given}; it must be {wanted}")]
    Value {
        /// Key.
        key: &'static str,
        /// What it holds.
        given: String,
        /// What it should hold.
        wanted: &'static str,
    },
}

/// Keys that say nothing about the text: bookkeeping, or facts that the model's own config settles.
const INERT: &[&str] = &[
    "_from_model_config",
    "bos_token_id",
    "decoder_start_token_id",
    "max_length",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "return_dict_in_generate",
    "transformers_version",
    "use_cache",
    "cache_implementation",
    "remove_invalid_values",
    "trust_remote_code",
    "chat_format",
];

/// Keys whose listed value asks for nothing.
fn neutral(key: &str, value: &Value) -> bool {
    let number = value.as_f64();
    match key {
        "num_beams"
        | "num_beam_groups"
        | "num_return_sequences"
        | "length_penalty"
        | "typical_p"
        | "encoder_repetition_penalty" => number == Some(1.0),
        "no_repeat_ngram_size"
        | "encoder_no_repeat_ngram_size"
        | "min_length"
        | "min_new_tokens"
        | "penalty_alpha"
        | "epsilon_cutoff"
        | "eta_cutoff"
        | "diversity_penalty" => number == Some(0.0),
        "early_stopping" | "renormalize_logits" => value == &Value::Bool(false),
        _ => false,
    }
}

impl GenerationConfig {
    /// Read the file's text.
    ///
    /// # Errors
    /// It is no JSON object, or a known key holds a value of the wrong type or range.
    pub fn parse(text: &str) -> Result<Self, GenerationConfigError> {
        let value: Value = serde_json::from_str(text).map_err(|e| GenerationConfigError::Json(e.to_string()))?;
        let Value::Object(map) = value else {
            return Err(GenerationConfigError::Json("it holds another value".into()));
        };
        let mut config = Self {
            do_sample: take(&map, "do_sample", "true or false", Value::as_bool)?,
            repetition_penalty: take(&map, "repetition_penalty", "a number", single)?,
            temperature: take(&map, "temperature", "a number", single)?,
            top_k: take(&map, "top_k", "a whole number", whole)?,
            top_p: take(&map, "top_p", "a number", single)?,
            min_p: take(&map, "min_p", "a number", single)?,
            eos: take(&map, "eos_token_id", "a token id or a list of them", token_ids)?.unwrap_or_default(),
            max_new_tokens: take(&map, "max_new_tokens", "a whole number", whole)?,
            unapplied: Vec::new(),
        };
        const APPLIED: &[&str] = &[
            "do_sample",
            "repetition_penalty",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "eos_token_id",
            "max_new_tokens",
        ];
        config.unapplied = map
            .iter()
            .filter(|(key, value)| {
                !value.is_null()
                    && !APPLIED.contains(&key.as_str())
                    && !INERT.contains(&key.as_str())
                    && !neutral(key, value)
            })
            .map(|(key, value)| format!("{key} = {value}"))
            .collect();
        Ok(config)
    }

    /// What the checkpoint asks for unless `do_sample` is true: the largest logit after the repetition penalty, which
    /// the reference framework applies to greedy text too. Of one candidate, a draw picks the largest.
    ///
    /// # Errors
    /// The penalty is out of its range.
    pub fn greedy(&self) -> Result<Sampling, SamplingError> {
        match self.repetition_penalty {
            None | Some(1.0) => Ok(Sampling::Greedy),
            Some(repetition_penalty) => {
                let largest = Draw { repetition_penalty, temperature: 1.0, top_k: 1, top_p: 1.0, min_p: 0.0 };
                largest.checked().map(Sampling::Draw)
            }
        }
    }

    /// The checkpoint's settings of a draw, with the reference framework's values where it gives none.
    #[must_use]
    pub fn draw(&self) -> Draw {
        let usual = Draw::default();
        Draw {
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
        }
    }
}

/// The ids of an `eos_token_id`: one id or a list of them.
#[must_use]
pub fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Value::Array(list) => list.iter().map(id).collect(),
        one => id(one).map(|id| vec![id]),
    }
}

fn take<T>(
    map: &Map<String, Value>,
    key: &'static str,
    wanted: &'static str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, GenerationConfigError> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(GenerationConfigError::Value { key, given: value.to_string(), wanted }),
        },
    }
}

fn single(value: &Value) -> Option<f32> {
    value.as_f64().map(|v| v as f32)
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|v| usize::try_from(v).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_samples() {
        let config = GenerationConfig::parse(
            r#"{"do_sample": true, "temperature": 0.8, "top_k": 50, "top_p": 0.95, "eos_token_id": [0, 7],
                "pad_token_id": 0, "transformers_version": "5.17.0", "num_beams": 1, "typical_p": 1.0}"#,
        )
        .unwrap();
        let draw = Draw { repetition_penalty: 1.0, temperature: 0.8, top_k: 50, top_p: 0.95, min_p: 0.0 };
        assert_eq!(config.do_sample, Some(true));
        assert_eq!(config.draw(), draw);
        assert_eq!(config.eos, [0, 7]);
        assert!(config.unapplied.is_empty(), "{:?}", config.unapplied);
    }

    #[test]
    fn without_do_sample_the_largest_logit_is_taken() {
        let config = GenerationConfig::parse(r#"{"temperature": 0.8, "eos_token_id": 2}"#).unwrap();
        assert_eq!(config.greedy(), Ok(Sampling::Greedy));
        assert_eq!(config.eos, [2]);
    }

    #[test]
    fn what_is_not_applied_is_named() {
        let config = GenerationConfig::parse(r#"{"num_beams": 4, "bad_words_ids": [[3]], "new_knob": null}"#).unwrap();
        assert_eq!(config.unapplied, ["num_beams = 4", "bad_words_ids = [[3]]"]);
    }

    #[test]
    fn lies_are_refused_by_key() {
        for (text, part) in [
            ("[]", "JSON object"),
            ("{", "JSON object"),
            (r#"{"temperature": "hot"}"#, "'temperature' is \"hot\""),
            (r#"{"top_k": -1}"#, "'top_k' is -1"),
            (r#"{"eos_token_id": [1, "x"]}"#, "'eos_token_id'"),
            (r#"{"eos_token_id": 4294967296}"#, "'eos_token_id'"),
        ] {
            let error = GenerationConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_repetition_penalty_holds_for_greedy_text_too() {
        let config = GenerationConfig::parse(r#"{"repetition_penalty": 2.0}"#).unwrap();
        let mut sampler = crate::generate::sampler::Sampler::new(config.greedy().unwrap(), 0);
        // Token 1 leads until it has been seen: then 4 / 2 falls behind 3, and -1 * 2 would as well.
        assert_eq!(sampler.pick(&[3.0, 4.0, -1.0], &[]), Some(1));
        assert_eq!(sampler.pick(&[3.0, 4.0, -1.0], &[1]), Some(0));
        assert_eq!(sampler.pick(&[-3.0, -1.0, -1.5], &[1]), Some(2));
        assert!(GenerationConfig::parse(r#"{"repetition_penalty": 0.0}"#).unwrap().greedy().is_err());
    }
}
