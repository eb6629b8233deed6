//! How well an engine models a text: perplexity, and its distance from the reference, window by window.
//!
//! The text's ids are cut into consecutive windows, the last one shorter; each runs alone from an empty state; every id
//! of a window but its first is scored, by the logits of the position before it.

use super::distance::{Mean, kl, log_softmax};
use super::follow::follow;
use crate::generate::sampler::argmax;
use serde::Serialize;
use wordline_engine::{EngineModel, StepError};

/// How well engines model a text.
#[derive(Clone, Debug, Serialize)]
pub struct Accuracy {
    /// Ids of the text.
    pub tokens: usize,
    /// Ids scored.
    pub scored: usize,
    /// Ids in a window.
    pub window: usize,
    /// The reference engine.
    pub reference: Perplexity,
    /// The int8 engine.
    pub int8: Against,
    /// The reference with linear layers and head in plain 8-bit blocks; none when it was not asked for.
    pub baseline: Option<Against>,
}

/// How well an engine models a text.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Perplexity {
    /// exp(mean of -ln p over the ids scored).
    pub ppl: f64,
}

/// How well an engine models a text, and how far it is from the reference.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Against {
    /// exp(mean of -ln p over the ids scored).
    pub ppl: f64,
    /// Mean KL(reference || engine) over the positions scored, nats a token.
    pub kl: f64,
    /// Share of these positions with the same largest logit.
    pub top1: f64,
}

/// Why an accuracy could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum AccuracyError {
    /// No id can be scored.
    #[error("nothing to score: the text has {0} ids, and the first of a window is not scored")]
    Short(usize),
    /// The window cannot be.
    #[error("a window of {0} ids scores nothing; it must be at least 2")]
    Window(usize),
    /// The engine refused or failed a step.
    #[error("the {engine} engine, window {window}: {source}")]
    Step {
        /// Which engine.
        engine: &'static str,
        /// Number of the window.
        window: usize,
        /// Why.
        #[source]
        source: StepError,
    },
}

/// The engines that are measured together, so that the reference runs once.
#[derive(Debug)]
pub struct Engines<'a> {
    /// Reference.
    pub reference: &'a mut EngineModel,
    /// Int8.
    pub int8: &'a mut EngineModel,
    /// Baseline.
    pub baseline: Option<&'a mut EngineModel>,
}

/// -ln p of an id; infinite when the model has no such id.
fn surprise(log_p: &[f64], id: u32) -> f64 {
    log_p.get(id as usize).map_or(f64::INFINITY, |l| -l)
}

/// What is summed up for an engine beside the reference.
#[derive(Default)]
struct Sums {
    nll: Mean,
    kl: Mean,
    same: usize,
}

impl Sums {
    fn against(&self) -> Against {
        Against { ppl: libm::exp(self.nll.get()), kl: self.kl.get(), top1: self.same as f64 / self.kl.count() as f64 }
    }

    /// Score one window's ids by an engine's logits, given the reference's log-probabilities of each position.
    fn take(&mut self, engine: &mut EngineModel, ids: &[u32], truth: &[Vec<f32>]) -> Result<(), StepError> {
        let Some((_, next)) = ids.split_first() else { return Ok(()) };
        follow(engine, &ids[..next.len()], |position, logits| {
            let (log_p, log_q) = (log_softmax(&truth[position]), log_softmax(logits));
            self.nll.add(surprise(&log_q, next[position]));
            self.kl.add(kl(&log_p, &log_q).max(0.0));
            self.same += usize::from(argmax(&truth[position]) == argmax(logits));
        })
    }
}

/// Measure engines on a text's ids. `progress` is told how many ids are done after each window.
///
/// # Errors
/// See [`AccuracyError`].
pub fn accuracy(
    engines: Engines<'_>,
    ids: &[u32],
    window: usize,
    mut progress: impl FnMut(usize),
) -> Result<Accuracy, AccuracyError> {
    let Engines { reference, int8, mut baseline } = engines;
    if window < 2 {
        return Err(AccuracyError::Window(window));
    }
    if ids.len() < 2 {
        return Err(AccuracyError::Short(ids.len()));
    }
    let mut reference_nll = Mean::default();
    let (mut int8_sums, mut baseline_sums) = (Sums::default(), Sums::default());
    for (number, ids) in ids.chunks(window).enumerate() {
        let step = |engine| move |source| AccuracyError::Step { engine, window: number, source };
        // The logits after the last id score nothing.
        let scored = ids.len() - 1;
        let mut truth: Vec<Vec<f32>> = Vec::with_capacity(scored);
        follow(reference, &ids[..scored], |position, logits| {
            reference_nll.add(surprise(&log_softmax(logits), ids[position + 1]));
            truth.push(logits.to_vec());
        })
        .map_err(step("reference"))?;
        int8_sums.take(int8, ids, &truth).map_err(step("int8"))?;
        if let Some(baseline) = baseline.as_deref_mut() {
            baseline_sums.take(baseline, ids, &truth).map_err(step("baseline"))?;
        }
        progress(number * window + ids.len());
    }
    Ok(Accuracy {
        tokens: ids.len(),
        scored: reference_nll.count(),
        window,
        reference: Perplexity { ppl: libm::exp(reference_nll.get()) },
        int8: int8_sums.against(),
        baseline: baseline.map(|_| baseline_sums.against()),
    })
}
