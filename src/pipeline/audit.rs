//! The audit: hops of one stage, copied to the head as they came in, replayed on the head's own engine of that stage and
//! compared row by row with what the stage says that it made of them.
//!
//! Hop hashes say that a payload arrived as it was sent. Nobody repeats what a stage computes, so a stage with an altered weight
//! sends wrong rows with right hashes. A replay of its own inputs finds it, and needs that stage's tensors alone.

use super::session::Audited;
use super::wire::row_digest;
use super::worker::{Input, Job, WorkError, Worker};

/// What an audit of one sequence on one stage found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "found")]
pub enum Finding {
    /// Every row is what the replay gives.
    Right {
        /// Rows compared.
        rows: usize,
    },
    /// A row is not what the replay gives: this stage computed it wrongly.
    Wrong {
        /// Position of the first such row.
        position: u32,
        /// Lap in which it went out.
        lap: u32,
    },
    /// The stage copied another row than the stage before says it sent: one of the two does not tell the truth.
    Disputed {
        /// Position of the first such row.
        position: u32,
    },
    /// The stage has not told what it made of a row.
    Untold {
        /// Position of the first such row.
        position: u32,
    },
}

/// Replay what was copied of one sequence on a worker of the same stage.
///
/// # Errors
/// The worker refuses or fails the rows.
pub fn replay(audited: &Audited, worker: &mut Worker) -> Result<Finding, WorkError> {
    let width = worker.width().max(1);
    let told = |traces: &[super::wire::Trace], position: u32| {
        let row = |trace: &super::wire::Trace| trace.rows.get(position.checked_sub(trace.position)? as usize).copied();
        traces.iter().rev().find_map(|trace| Some((row(trace)?, trace.lap)))
    };
    let mut rows = 0;
    worker.free(Some(audited.sequence));
    for (first, hidden) in &audited.hops {
        let job = Job {
            sequence: audited.sequence,
            position: *first,
            anew: *first == 0,
            input: Input::Hidden(hidden.clone()),
        };
        let replayed = worker.run(&[job]).pop().unwrap_or(Ok(Vec::new()))?;
        for ((position, came), went) in (*first..).zip(hidden.chunks_exact(width)).zip(replayed.chunks_exact(width)) {
            if told(&audited.sent, position).is_some_and(|((_, sent), _)| sent != row_digest(came)) {
                return Ok(Finding::Disputed { position });
            }
            match told(&audited.traces, position) {
                None => return Ok(Finding::Untold { position }),
                Some(((_, said), lap)) if said != row_digest(went) => return Ok(Finding::Wrong { position, lap }),
                Some(_) => rows += 1,
            }
        }
    }
    worker.free(Some(audited.sequence));
    Ok(Finding::Right { rows })
}
