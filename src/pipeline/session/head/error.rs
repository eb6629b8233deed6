//! `HeadError`: why a run failed.

use crate::pipeline::plan::{Key, PlanError, short};
use crate::pipeline::worker::WorkError;
use std::time::Duration;

/// Why the run failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HeadError {
    /// Not all stages came.
    #[error(
        "joining: {} of {wanted} stages came within {:.0} s{}; {}",
        here.len(), after.as_secs_f64(), named("; here: ", here), absent(missing, &here.len(), wanted)
    )]
    Gather {
        /// Stages that came and are still there.
        here: Vec<Key>,
        /// Stages wanted.
        wanted: usize,
        /// How long was waited.
        after: Duration,
        /// Who was refused or left, and why; who is on the roster and never came.
        missing: Vec<String>,
    },
    /// There is no plan.
    #[error("planning: {0}")]
    Plan(#[from] PlanError),
    /// A stage was lost and nobody can take its layers.
    #[error("{lost}; nobody can take its layers: {source}")]
    NoSpare {
        /// Who was lost and why.
        lost: String,
        /// Why there is no plan without it.
        source: PlanError,
    },
    /// A stage was lost before the first lap, and too few are left.
    #[error("{lost}; {given} of {wanted} stages are left")]
    Short {
        /// Who was lost and why.
        lost: String,
        /// Stages left.
        given: usize,
        /// Stages wanted.
        wanted: usize,
    },
    /// The head's own stage could not be made.
    #[error("stage 0 (the head), loading: {0}")]
    Own(String),
    /// The head's own stage failed.
    #[error("stage 0 (the head), computing: {0}")]
    Work(#[from] WorkError),
    /// A rebuilt state is not the state that was.
    #[error("{0}")]
    Rebuilt(String),
    /// The flight record cannot be written.
    #[error("the record: {0}")]
    Record(String),
    /// The program gives no logits.
    #[error("stage 0 (the head), reading out: no logits")]
    NoLogits,
}

fn named(before: &str, keys: &[Key]) -> String {
    if keys.is_empty() {
        String::new()
    } else {
        format!("{before}{}", keys.iter().map(short).collect::<Vec<_>>().join(", "))
    }
}

fn absent(missing: &[String], here: &usize, wanted: &usize) -> String {
    match missing {
        [] => format!("the {} missing have not reached this head", wanted.saturating_sub(*here)),
        known => format!("missing: {}", known.join("; ")),
    }
}
