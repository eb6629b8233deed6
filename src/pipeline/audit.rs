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
        let (compute_us, queue_us, came_us, heard) = (0, 0, 0, None);
        traces.push(Trace { sequence, lap, stage, position, compute_us, queue_us, came_us, heard, rows });
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of two values that begin with these, as hops of one row each, and the traces of who made `went` of what `came`.
    fn traces(stage: u32, came: &[f32], went: &[f32]) -> Vec<Trace> {
        let digest = |value: f32| row_digest(&[value, 0.5]);
        let trace = |(lap, (came, went)): (u32, (&f32, &f32))| Trace {
            sequence: 3,
            lap,
            stage,
            position: lap,
            compute_us: 0,
            queue_us: 0,
            came_us: 0,
            heard: None,
            rows: vec![(digest(*came), digest(*went))],
        };
        (0..).zip(came.iter().zip(went)).map(trace).collect()
    }

    fn audited(copied: &[f32], sent: &[f32], went: &[f32]) -> Audited {
        let hops = (0..).zip(copied.iter().map(|value| vec![*value, 0.5])).collect();
        let sent = traces(1, sent, sent);
        Audited { stage: 2, sequence: 3, hops, traces: traces(2, copied, went), sent }
    }

    #[test]
    fn the_first_row_that_differs_is_named_and_what_it_differs_in() {
        let (rows, out) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
        let replayed = |went: &[f32]| traces(2, &rows[..went.len()], went);
        let found = |audited: Audited, went: &[f32]| judge(&audited, &replayed(went), 2);
        assert_eq!(found(audited(&rows, &rows, &out), &out), Finding::Right { rows: 3 });
        assert_eq!(found(audited(&rows, &rows, &[4.0, 9.0, 9.0]), &out), Finding::Wrong { position: 1, lap: 1 });
        // The stage before says that it sent another row: whoever lies, it is not the replay that shows it.
        assert_eq!(found(audited(&rows, &[1.0, 2.0, 7.0], &out), &out), Finding::Disputed { position: 2 });
        // It says nothing of its last row, and a replay that has not come so far shows nothing.
        assert_eq!(found(audited(&rows, &rows, &out[..2]), &out), Finding::Untold { position: 2 });
        assert_eq!(found(audited(&rows, &rows, &out), &out[..1]), Finding::Untold { position: 1 });
        // Of a lap that was sent again after a loss the last account counts.
        let mut again = audited(&rows, &rows, &[9.0, 9.0, 9.0]);
        again.traces.extend(traces(2, &rows, &out));
        assert_eq!(judge(&again, &replayed(&out), 2), Finding::Right { rows: 3 });
    }
}
