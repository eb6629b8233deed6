//! Holding a model to golden values: the reference engine to the logits, the int8 engine to the reference.

use super::distance::{Mean, kl, log_softmax};
use super::follow::follow;
use super::golden::{Case, Golden};
use crate::generate::sampler::argmax;
use serde::Serialize;
use wordline_engine::{EngineModel, StepError};

/// What a verification found.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// The reference engine against the golden values.
    pub reference: Agreement,
    /// The int8 engine against the reference engine; none when it was not asked for.
    pub int8: Option<Distance>,
}

/// The reference engine against golden values.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    /// Largest absolute difference of any golden logit; infinite when a logit is not finite or absent.
    pub max_abs: f64,
    /// Largest difference that is agreement.
    pub atol: f64,
    /// `max_abs <= atol`.
    pub ok: bool,
    /// The largest logits continue every prompt as the golden file does.
    pub greedy_equal: bool,
    /// Golden logits compared.
    pub compared: usize,
    /// Positions with golden logits.
    pub positions: usize,
    /// Where `max_abs` is.
    pub worst: Option<Worst>,
    /// The first greedy id that differs.
    pub greedy_difference: Option<GreedyDifference>,
}

/// Place of the largest difference.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Worst {
    /// Number of the prompt.
    pub case: usize,
    /// Position.
    pub position: usize,
    /// Id whose logit differs; none when it is the mean over all ids.
    pub id: Option<u32>,
}

/// A greedy id that differs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GreedyDifference {
    /// Number of the prompt.
    pub case: usize,
    /// Index in the continuation.
    pub index: usize,
    /// Golden id.
    pub golden: u32,
    /// Id of the largest logit.
    pub found: Option<u32>,
}

/// One engine's distributions against another's, over every position.
#[derive(Clone, Debug, Serialize)]
pub struct Distance {
    /// Mean KL(reference || engine), nats a token.
    pub kl: f64,
    /// Share of positions with the same largest logit.
    pub top1: f64,
    /// Positions.
    pub positions: usize,
}

/// Why a verification could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The golden file is not for this model.
    #[error("the golden values are not this model's: {0}")]
    Foreign(String),
    /// The engine refused or failed a step.
    #[error("the {engine} engine: {source}")]
    Step {
        /// Which engine.
        engine: &'static str,
        /// Why.
        #[source]
        source: StepError,
    },
}

/// Hold `reference`, and `int8` where given, to `golden`.
///
/// # Errors
/// See [`VerifyError`].
pub fn verify(
    golden: &Golden,
    reference: &mut EngineModel,
    mut int8: Option<&mut EngineModel>,
) -> Result<Verification, VerifyError> {
    let mut report = Agreement {
        max_abs: 0.0,
        atol: golden.atol,
        ok: false,
        greedy_equal: true,
        compared: 0,
        positions: 0,
        worst: None,
        greedy_difference: None,
    };
    let (mut divergence, mut same) = (Mean::default(), 0);
    for (number, case) in golden.cases.iter().enumerate() {
        let ids = case.ids();
        let mut rows = Vec::with_capacity(ids.len());
        let step = |engine| move |source| VerifyError::Step { engine, source };
        follow(reference, &ids, |_, logits| rows.push(logits.to_vec())).map_err(step("reference"))?;
        report.compare(number, case, &rows)?;
        if let Some(int8) = int8.as_deref_mut() {
            follow(int8, &ids, |position, logits| {
                divergence.add(kl(&log_softmax(&rows[position]), &log_softmax(logits)).max(0.0));
                same += usize::from(argmax(&rows[position]) == argmax(logits));
            })
            .map_err(step("int8"))?;
        }
    }
    // Not `<`: a NaN is no agreement.
    report.ok = report.max_abs <= report.atol;
    let positions = divergence.count();
    let distance = Distance { kl: divergence.get(), top1: same as f64 / positions as f64, positions };
    Ok(Verification { reference: report, int8: int8.map(|_| distance) })
}

impl Agreement {
    fn compare(&mut self, number: usize, case: &Case, rows: &[Vec<f32>]) -> Result<(), VerifyError> {
        for (position, known) in case.known.iter().enumerate() {
            let Some(row) = rows.get(position) else {
                return Err(VerifyError::Foreign(format!("prompt {number} knows more positions than it has ids")));
            };
            if !known.all.is_empty() && known.all.len() != row.len() {
                let (held, vocab) = (known.all.len(), row.len());
                return Err(VerifyError::Foreign(format!("{held} logits a position, the model has {vocab}")));
            }
            self.positions += 1;
            for ((id, golden), found) in (0_u32..).zip(&known.all).zip(row) {
                self.take(f64::from(*golden), f64::from(*found), Worst { case: number, position, id: Some(id) });
            }
            for (id, golden) in &known.best {
                let found = row.get(*id as usize).map_or(f64::NAN, |l| f64::from(*l));
                self.take(*golden, found, Worst { case: number, position, id: Some(*id) });
            }
            if let Some(golden) = known.sum {
                let (sum, vocab) = (row.iter().map(|l| f64::from(*l)).sum::<f64>(), row.len() as f64);
                self.take(golden / vocab, sum / vocab, Worst { case: number, position, id: None });
            }
        }
        for (index, golden) in case.greedy.iter().enumerate() {
            let found = rows.get(case.prompt.len() - 1 + index).and_then(|row| argmax(row));
            if found != Some(*golden) {
                self.greedy_equal = false;
                self.greedy_difference.get_or_insert(GreedyDifference { case: number, index, golden: *golden, found });
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, golden: f64, found: f64, place: Worst) {
        self.compared += 1;
        let difference = (golden - found).abs();
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        if difference > self.max_abs || self.worst.is_none() {
            self.max_abs = difference;
            self.worst = Some(place);
        }
    }
}
