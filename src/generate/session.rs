//! `generate`: one sequence from its prompt to its last token.

use super::sampler::{Sampler, Sampling};
use super::stop::{Passed, StopStrings};
use super::stream::{Decode, TextStream};
use serde::Serialize;
use std::time::{Duration, Instant};
use wordline_engine::{EngineModel, Row, StepError};

/// What to write.
#[derive(Clone, Debug)]
pub struct Request {
    /// Ids of the prompt; not empty.
    pub prompt: Vec<u32>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Where the draws start.
    pub seed: u64,
    /// Tokens to write at most.
    pub max_tokens: usize,
    /// Ids that end the text.
    pub eos: Vec<u32>,
    /// Strings that end the text; they are no part of it.
    pub stop: Vec<String>,
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model wrote an ending id, the last of the ids.
    Eos,
    /// A stop string followed.
    Stop,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller asked for an end.
    Interrupted,
}

/// What was written, and how fast.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Ids written, an ending id included.
    pub ids: Vec<u32>,
    /// Their text, without special tokens and what follows a stop string; empty without a decoder.
    pub text: String,
    /// Why the text ended.
    pub finish: Finish,
    /// Time that the prompt took.
    pub prompt_time: Duration,
    /// Steps of one token after it.
    pub steps: usize,
    /// Time that these took, picking included.
    pub step_time: Duration,
    /// Bytes of matrices that one of these steps streamed; of a prompt's step where there were none.
    pub bytes_per_step: u64,
}

impl Generated {
    /// Tokens a second: of the steps after the prompt, or of the whole where there were none.
    #[must_use]
    pub fn tokens_per_s(&self) -> f64 {
        if self.steps == 0 {
            return self.ids.len() as f64 / (self.prompt_time + self.step_time).as_secs_f64().max(f64::MIN_POSITIVE);
        }
        self.steps as f64 / self.step_time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Why nothing, or no more, could be written.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError<E: std::error::Error + 'static> {
    /// A sequence begins with a token.
    #[error("the prompt holds no token")]
    EmptyPrompt,
    /// The program has no LM head.
    #[error("the program gives no logits: it has no LM head")]
    NoLogits,
    /// The engine refused or failed a step.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The text could not be shown.
    #[error(transparent)]
    Show(E),
}

/// Write a text. `show` gets it piece by piece as soon as each is certain; `stopping` is asked between tokens.
///
/// # Errors
/// See [`GenerateError`].
pub fn generate<E: std::error::Error + 'static>(
    engine: &mut EngineModel,
    decoder: Option<&dyn Decode>,
    request: &Request,
    mut show: impl FnMut(&str) -> Result<(), E>,
    mut stopping: impl FnMut() -> bool,
) -> Result<Generated, GenerateError<E>> {
    let Some(positions) = request.prompt.len().checked_sub(1) else { return Err(GenerateError::EmptyPrompt) };
    let (start, first_bytes) = (Instant::now(), engine.counters().weight_bytes);
    let (ctx, step_rows) = (engine.capacity().ctx, engine.capacity().step_rows.max(1));
    let seq = engine.open();
    let mut sampler = Sampler::new(request.sampling, request.seed);
    let mut stream = decoder.map(|decoder| TextStream::new(decoder, &request.prompt));
    let mut stops = StopStrings::new(request.stop.clone());
    let (mut ids, mut text) = (request.prompt.clone(), String::new());
    // Whole chunks one by one, so that a long prompt can be ended too; the last chunk gives the logits.
    let (chunks, rest) = request.prompt.split_at(positions / step_rows * step_rows);
    let mut ended = false;
    for chunk in chunks.chunks(step_rows) {
        ended = ended || stopping();
        if !ended {
            let rows: Vec<Row> = chunk.iter().map(|&token| Row { seq, token, logits: false }).collect();
            engine.step(&rows)?;
        }
    }
    let mut pick = None;
    if !ended {
        pick = sampler.pick(last(engine.prefill(seq, rest)?).ok_or(GenerateError::NoLogits)?, &ids);
    }
    let (prompt_time, prompt_bytes) = (start.elapsed(), engine.counters().weight_bytes);
    let mut steps = 0;
    let finish = loop {
        if ended {
            break Finish::Interrupted;
        }
        if ids.len() - request.prompt.len() == request.max_tokens {
            break Finish::Length;
        }
        let id = pick.ok_or(GenerateError::NoLogits)?;
        ids.push(id);
        if request.eos.contains(&id) {
            break Finish::Eos;
        }
        let piece = stream.as_mut().map(|stream| stream.push(id)).unwrap_or_default();
        match stops.push(&piece) {
            Passed::Text(piece) => {
                text.push_str(&piece);
                show(&piece).map_err(GenerateError::Show)?;
            }
            Passed::Stopped { text: piece, .. } => {
                text.push_str(&piece);
                show(&piece).map_err(GenerateError::Show)?;
                break Finish::Stop;
            }
        }
        if ids.len() - request.prompt.len() == request.max_tokens {
            break Finish::Length;
        }
        if ids.len() > ctx {
            break Finish::Context;
        }
        if stopping() {
            break Finish::Interrupted;
        }
        let logits = engine.step(&[Row { seq, token: id, logits: true }])?;
        pick = sampler.pick(last(logits).ok_or(GenerateError::NoLogits)?, &ids);
        steps += 1;
    };
    if finish != Finish::Stop {
        let rest = stream.as_mut().map(TextStream::finish).unwrap_or_default();
        let rest = match stops.push(&rest) {
            Passed::Text(shown) => shown + &stops.finish(),
            Passed::Stopped { text, .. } => text,
        };
        text.push_str(&rest);
        show(&rest).map_err(GenerateError::Show)?;
    }
    let step_time = start.elapsed() - prompt_time;
    let bytes = engine.counters().weight_bytes;
    engine.release(seq);
    let prompt_steps = (positions / step_rows + 1) as u64;
    let bytes_per_step =
        if steps > 0 { (bytes - prompt_bytes) / steps as u64 } else { (prompt_bytes - first_bytes) / prompt_steps };
    ids.drain(..request.prompt.len());
    Ok(Generated { ids, text, finish, prompt_time, steps, step_time, bytes_per_step })
}

/// The logits of a step's last row.
fn last(logits: wordline_engine::Logits<'_>) -> Option<&[f32]> {
    logits.row(logits.len().checked_sub(1)?)
}
