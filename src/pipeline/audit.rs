//! The audit: hops of one stage, copied to the head as they came in, replayed on an engine of that stage elsewhere, on the head
//! or on another device, and compared row by row with what the stage says that it made of them.
//!
//! Hop hashes say that a payload arrived as it was sent. Nobody repeats what a stage computes, so a stage with an altered weight
//! sends wrong rows with right hashes. A replay of its own inputs finds it, and needs that stage's tensors alone.

use super::session::Audited;
use super::wire::{Trace, row_digest};
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
    /// A row is not what the replay gives: this stage computed it wrongly, or whoever replayed it did.
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

/// Replay what was copied of one sequence on a worker of the same stage: what it makes of every hop.
///
/// # Errors
/// The worker refuses or fails the rows.
pub fn replay(audited: &Audited, worker: &mut Worker) -> Result<Vec<Trace>, WorkError> {
    let width = worker.width().max(1);
    let (sequence, stage) = (audited.sequence, audited.stage);
    let mut traces = Vec::with_capacity(audited.hops.len());
    worker.free(Some(sequence));
    for (lap, (position, hidden)) in (0..).zip(&audited.hops) {
        let (position, anew) = (*position, *position == 0);
        let job = Job { sequence, position, anew, input: Input::Hidden(hidden.clone()) };
        let went = worker.run(&[job]).pop().unwrap_or(Ok(Vec::new()))?;
        let rows = hidden.chunks_exact(width).zip(went.chunks_exact(width));
        let rows = rows.map(|(came, went)| (row_digest(came), row_digest(went))).collect();
        traces.push(Trace { sequence, lap, stage, position, compute_us: 0, queue_us: 0, rows });
    }
    worker.free(Some(sequence));
    Ok(traces)
}

/// Hold what a stage, and the stage before it, have told to what a replay of its inputs gives.
///
/// `replayed` has a trace for each hop that was copied; rows that it lacks count as untold.
#[must_use]
pub fn judge(audited: &Audited, replayed: &[Trace], width: usize) -> Finding {
    let told = |traces: &[Trace], position: u32| {
        let row = |trace: &Trace| trace.rows.get(position.checked_sub(trace.position)? as usize).copied();
        traces.iter().rev().find_map(|trace| Some((row(trace)?, trace.lap)))
    };
    let mut rows = 0;
    for (first, hidden) in &audited.hops {
        for (position, came) in (*first..).zip(hidden.chunks_exact(width.max(1))) {
            if told(&audited.sent, position).is_some_and(|((_, sent), _)| sent != row_digest(came)) {
                return Finding::Disputed { position };
            }
            match (told(&audited.traces, position), told(replayed, position)) {
                (Some(((_, said), lap)), Some(((_, went), _))) if said != went => {
                    return Finding::Wrong { position, lap };
                }
                (Some(_), Some(_)) => rows += 1,
                _ => return Finding::Untold { position },
            }
        }
    }
    Finding::Right { rows }
}
