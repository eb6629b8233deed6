//! `Golden`: what the reference framework computed for a checkpoint, read from either of two schemas.
//!
//! *Whole logits*: `golden.json` with `prompt_ids`, `greedy_ids` and `noise.suggested_atol`, and beside it a file of
//! the same name ending in `.safetensors` with `token_ids` and `logits` [positions, vocab]. *Several prompts*: one
//! `golden.json` whose `prompts` each hold `input_ids`, the best five ids and logits of every position, the last
//! position's logits, the sum of every position's logits, and `greedy_ids`. Formats: docs/json.md.

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Logits may differ from the golden ones by this much where the golden file gives no tolerance.
pub const DEFAULT_ATOL: f64 = 1e-4;

/// What the reference framework computed for a checkpoint.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Largest absolute difference of a logit that is still agreement.
    pub atol: f64,
    /// SHA-256 of the files it was made from, by name.
    pub sha256: BTreeMap<String, String>,
    /// Texts and their ids with and without the tokens that the tokenizer adds.
    pub texts: Vec<TextCase>,
    /// The runs.
    pub cases: Vec<Case>,
}

/// A text and its ids.
#[derive(Clone, Debug)]
pub struct TextCase {
    /// Text.
    pub text: String,
    /// Ids, with the tokens that the tokenizer adds when `special`.
    pub ids: Vec<u32>,
    /// The tokenizer adds its tokens.
    pub special: bool,
    /// The text of the ids.
    pub decoded: Option<String>,
}

/// One run: ids taken in order from an empty state, and what is known of the logits.
#[derive(Clone, Debug)]
pub struct Case {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Greedy continuation.
    pub greedy: Vec<u32>,
    /// What is known of each position's logits, from the first id on.
    pub known: Vec<Known>,
}

/// What is known of one position's logits.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// All of them, by id; empty when they are not known.
    pub all: Vec<f32>,
    /// Some: (id, logit), the largest first.
    pub best: Vec<(u32, f64)>,
    /// Their sum.
    pub sum: Option<f64>,
}

impl Case {
    /// The ids that a run of this case takes: prompt and greedy ids, but not the last of them where nothing is known of
    /// the logits after it.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        let mut ids = [&self.prompt[..], &self.greedy[..]].concat();
        ids.truncate(self.known.len().max(ids.len().saturating_sub(1)));
        ids
    }
}

/// Why a golden file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// Not JSON of either schema.
    #[error("not a golden file: {0}")]
    Json(String),
    /// The logits file is absent or no safetensors file.
    #[error("its logits cannot be read: {0}")]
    Logits(String),
    /// The two files or two parts of one disagree.
    #[error("it contradicts itself: {0}")]
    Contradiction(String),
}

#[derive(Deserialize)]
struct Noise {
    suggested_atol: Option<f64>,
}

#[derive(Deserialize)]
struct TokenizerCase {
    text: String,
    ids: Vec<u32>,
    ids_no_special: Vec<u32>,
    decoded: Option<String>,
}

#[derive(Deserialize)]
struct Whole {
    #[serde(default)]
    sha256: BTreeMap<String, String>,
    noise: Option<Noise>,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    #[serde(default)]
    last_prompt_logits: Vec<f32>,
    #[serde(default)]
    tokenizer_cases: Vec<TokenizerCase>,
}

#[derive(Deserialize)]
struct Several {
    #[serde(default)]
    sha256: BTreeMap<String, String>,
    noise: Option<Noise>,
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    text: Option<String>,
    input_ids: Vec<u32>,
    top5_ids: Vec<Vec<u32>>,
    top5_logits: Vec<Vec<f64>>,
    last_logits: Vec<f32>,
    logits_sum_f64: Vec<f64>,
    greedy_ids: Vec<u32>,
}

impl Golden {
    /// Read a golden file. `logits` gives the bytes of the safetensors file beside it, asked for by the whole-logits
    /// schema only.
    ///
    /// # Errors
    /// See [`GoldenError`].
    pub fn parse(json: &[u8], logits: impl FnOnce() -> Result<Vec<u8>, String>) -> Result<Self, GoldenError> {
        let value: serde_json::Value = serde_json::from_slice(json).map_err(|e| GoldenError::Json(e.to_string()))?;
        let read = |e: serde_json::Error| GoldenError::Json(e.to_string());
        if value.get("prompts").is_some() {
            return several(serde_json::from_value(value).map_err(read)?);
        }
        if value.get("prompt_ids").is_some() {
            let whole: Whole = serde_json::from_value(value).map_err(read)?;
            return whole_logits(whole, &logits().map_err(GoldenError::Logits)?);
        }
        Err(GoldenError::Json("it has neither 'prompt_ids' nor 'prompts'".into()))
    }
}

fn atol(noise: Option<Noise>) -> Result<f64, GoldenError> {
    let atol = noise.and_then(|n| n.suggested_atol).unwrap_or(DEFAULT_ATOL);
    if atol.is_finite() && atol > 0.0 { Ok(atol) } else { Err(contradiction(format!("suggested_atol is {atol}"))) }
}

fn contradiction(what: impl Into<String>) -> GoldenError {
    GoldenError::Contradiction(what.into())
}

fn whole_logits(whole: Whole, bytes: &[u8]) -> Result<Golden, GoldenError> {
    let bad = |e: safetensors::SafeTensorError| GoldenError::Logits(e.to_string());
    let file = SafeTensors::deserialize(bytes).map_err(bad)?;
    let (ids, logits) = (file.tensor("token_ids").map_err(bad)?, file.tensor("logits").map_err(bad)?);
    let &[positions, vocab] = logits.shape() else {
        return Err(GoldenError::Logits(format!("'logits' has shape {:?}, not [positions, vocab]", logits.shape())));
    };
    if logits.dtype() != Dtype::F32 || ids.dtype() != Dtype::I64 || vocab == 0 {
        return Err(GoldenError::Logits("'logits' must be F32 and 'token_ids' I64".into()));
    }
    let ids: Vec<i64> = ids.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
    let expected: Vec<i64> = whole.prompt_ids.iter().chain(&whole.greedy_ids).map(|id| i64::from(*id)).collect();
    if ids != expected || positions != ids.len() {
        return Err(contradiction("token_ids are not prompt_ids and greedy_ids, or logits have another length"));
    }
    if whole.prompt_ids.is_empty() {
        return Err(contradiction("the prompt is empty"));
    }
    let values: Vec<f32> = logits.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let known: Vec<Known> =
        values.chunks_exact(vocab).map(|row| Known { all: row.to_vec(), ..Known::default() }).collect();
    let last = &known[whole.prompt_ids.len() - 1].all;
    if !whole.last_prompt_logits.is_empty() && last != &whole.last_prompt_logits {
        return Err(contradiction("last_prompt_logits differ from the logits file"));
    }
    let mut texts: Vec<TextCase> = Vec::new();
    for case in whole.tokenizer_cases {
        let (text, decoded) = (case.text, case.decoded);
        texts.push(TextCase { text: text.clone(), ids: case.ids, special: true, decoded: None });
        texts.push(TextCase { text, ids: case.ids_no_special, special: false, decoded });
    }
    Ok(Golden {
        atol: atol(whole.noise)?,
        sha256: whole.sha256,
        texts,
        cases: vec![Case { prompt: whole.prompt_ids, greedy: whole.greedy_ids, known }],
    })
}

fn several(file: Several) -> Result<Golden, GoldenError> {
    let mut golden = Golden { atol: atol(file.noise)?, sha256: file.sha256, texts: Vec::new(), cases: Vec::new() };
    for (number, prompt) in file.prompts.into_iter().enumerate() {
        let n = prompt.input_ids.len();
        let rows = [prompt.top5_ids.len(), prompt.top5_logits.len(), prompt.logits_sum_f64.len()];
        if n == 0 || rows != [n; 3] {
            return Err(contradiction(format!("prompt {number} has {n} ids, and {rows:?} positions in its lists")));
        }
        let mut known = Vec::with_capacity(n);
        for ((ids, logits), sum) in prompt.top5_ids.iter().zip(&prompt.top5_logits).zip(&prompt.logits_sum_f64) {
            if ids.len() != logits.len() {
                return Err(contradiction(format!("prompt {number}: a position has more best ids than logits")));
            }
            let best = ids.iter().copied().zip(logits.iter().copied()).collect();
            known.push(Known { all: Vec::new(), best, sum: Some(*sum) });
        }
        known[n - 1].all = prompt.last_logits;
        if let Some(text) = prompt.text {
            golden.texts.push(TextCase { text, ids: prompt.input_ids.clone(), special: true, decoded: None });
        }
        golden.cases.push(Case { prompt: prompt.input_ids, greedy: prompt.greedy_ids, known });
    }
    if golden.cases.is_empty() {
        return Err(contradiction("it holds no prompt"));
    }
    Ok(golden)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several(prompt: &str) -> Result<Golden, GoldenError> {
        Golden::parse(format!("{{\"prompts\": [{prompt}]}}").as_bytes(), || Err("not asked for".into()))
    }

    #[test]
    fn several_prompts() {
        let golden = several(
            r#"{"text": "a b", "input_ids": [5, 6], "top5_ids": [[1], [2]], "top5_logits": [[0.5], [1.5]],
                "last_logits": [0.0, 0.25, 1.5], "logits_sum_f64": [0.5, 1.75], "greedy_ids": [2, 0, 1]}"#,
        )
        .unwrap();
        assert_eq!(golden.atol, DEFAULT_ATOL);
        let case = &golden.cases[0];
        assert_eq!(case.ids(), [5, 6, 2, 0], "nothing is known of the logits after the last greedy id");
        assert_eq!((case.known[0].best[0], case.known[1].all.len(), case.known[1].sum), ((1, 0.5), 3, Some(1.75)));
        assert_eq!(golden.texts[0].ids, [5, 6]);
    }

    #[test]
    fn a_golden_file_that_lies_is_refused() {
        let none = || Err("no such file".to_owned());
        for (text, part) in [
            ("{", "not a golden file"),
            ("{}", "neither 'prompt_ids' nor 'prompts'"),
            (r#"{"prompt_ids": [1], "greedy_ids": []}"#, "no such file"),
            (r#"{"prompt_ids": ["x"], "greedy_ids": []}"#, "not a golden file"),
            (r#"{"prompts": []}"#, "holds no prompt"),
        ] {
            let error = Golden::parse(text.as_bytes(), none).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let lacks = several(
            r#"{"input_ids": [5, 6], "top5_ids": [[1]], "top5_logits": [[0.5]], "last_logits": [],
                "logits_sum_f64": [0.5], "greedy_ids": []}"#,
        );
        assert!(lacks.unwrap_err().to_string().contains("prompt 0 has 2 ids"));
    }
}
