//! Hops: what may come, what is made of it, and where it goes on to.

use super::fault::InjectionKind;
use super::{Flow, StageSession};
use crate::pipeline::plan::{Key, short};
use crate::pipeline::session::{Action, send};
use crate::pipeline::wire::{Form, Hop, Message, Next, Trace, row_digest};
use crate::pipeline::worker::{Input, Job, Worker};
use std::time::Duration;

impl StageSession {
    /// Compute all that waits, in as few steps as may be.
    pub fn work(&mut self, worker: &mut Worker, clock: &dyn Fn() -> Duration) {
        let Some(held) = &mut self.held else { return };
        if self.stalled || held.queue.is_empty() {
            return;
        }
        let replays = self.replays.map(|(stage, _)| stage);
        let (stage, injection) = (replays.unwrap_or(held.assign.stage), self.injection.filter(|_| replays.is_none()));
        let hit = |hop: &Hop, kind: InjectionKind| {
            injection.is_some_and(|i| i.kind == kind && i.token == hop.lap && i.stage.is_none_or(|s| s == stage))
        };
        let batch: Vec<(Hop, Duration)> = held.queue.drain(..).collect();
        for kind in [InjectionKind::Kill, InjectionKind::Stall, InjectionKind::Slow] {
            if batch.iter().any(|(hop, _)| hit(hop, kind)) {
                self.injection = None;
                self.stalled = kind == InjectionKind::Stall;
                let name = format!("{kind:?}").to_lowercase();
                self.out.push_back(Action::Say(format!("stage {stage}: the fault that was asked for: {name}")));
                self.out.push_back(Action::Inject(kind));
                if kind != InjectionKind::Slow {
                    return;
                }
            }
        }
        let jobs: Vec<Job> = batch.iter().map(|(hop, _)| job(hop)).collect();
        let start = clock();
        let results = worker.run(&jobs);
        let compute = clock().saturating_sub(start);
        let width = worker.width().max(1);
        for ((hop, came), result) in batch.into_iter().zip(results) {
            let hidden = match result {
                Ok(hidden) => hidden,
                Err(error) => {
                    self.fail("step", Some(hop.sequence), format!("stage {stage}: {error}"));
                    continue;
                }
            };
            let spoil = hit(&hop, InjectionKind::Corrupt);
            if spoil {
                self.injection = None;
            }
            self.laps += 1;
            let digests = |values: &[f32]| values.chunks_exact(width).map(row_digest).collect::<Vec<_>>();
            let rows = digests(&hop.hidden).into_iter().zip(digests(&hidden)).collect();
            let position = position(&hop);
            let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
            let (compute_us, queue_us) = (us(compute), us(start.saturating_sub(came)));
            let (sequence, lap) = (hop.sequence, hop.lap);
            let moment = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let flow = self.held.as_ref().and_then(|held| held.flows.get(&sequence));
            let heard = flow.and_then(|flow| flow.heard).map(|(index, at)| (index, moment(at)));
            if replays.is_none() {
                let (to, onward) = self.onward(hop, hidden, width);
                self.out.push_back(Action::Send { to, message: Message::Hop(onward), spoil });
            }
            let came_us = moment(came);
            let trace = Trace { sequence, lap, stage, position, compute_us, queue_us, came_us, heard, rows };
            self.out.push_back(send(self.head, Message::Trace(trace)));
        }
    }

    /// The hop as it goes on.
    fn onward(&self, hop: Hop, mut hidden: Vec<f32>, width: usize) -> (Key, Hop) {
        let next = self.held.as_ref().and_then(|held| held.next.map(|key| (key, held.assign.stage + 1)));
        if let Some((key, stage)) = next {
            return (key, Hop { next: Next::Stage(stage), hidden, ..hop });
        }
        if let Form::Cached { keep, .. } = hop.form {
            let from = hidden.len().saturating_sub(keep as usize * width);
            hidden.drain(..from);
        }
        (self.head, Hop { next: Next::Return, hidden, ..hop })
    }

    pub(super) fn hop(&mut self, from: Key, hop: Hop, now: Duration) {
        let Some(held) = &mut self.held else { return };
        if let Some((stage, here)) = self.replays {
            let rows = hop.hidden.len().checked_div(held.width).unwrap_or(0);
            let whole = rows > 0 && rows * held.width == hop.hidden.len();
            let fits = whole && rows <= held.assign.plan.room.step_rows as usize && hop.model == held.model;
            return match (from == self.head && here && hop.next == Next::Copy, fits) {
                (true, true) => held.queue.push_back((hop, now)),
                (true, false) => self.fail("shape", Some(hop.sequence), format!("no rows to replay stage {stage} on")),
                (false, _) => {
                    self.out.push_back(Action::Say(format!("a hop while stage {stage} is replayed; dropped")))
                }
            };
        }
        let stage = held.assign.stage;
        let (sequence, lap) = (hop.sequence, hop.lap);
        if from != held.previous {
            let text =
                format!("a hop from {}, which is not the stage before stage {stage}; it is not run", short(&from));
            return self.out.push_back(Action::Say(text));
        }
        // What was meant for an assignment of before is late, whatever it says.
        if sequence < held.assign.first_sequence || held.finished.contains(&sequence) {
            return self.out.push_back(Action::Say(format!("sequence {sequence}, lap {lap}: late; dropped")));
        }
        if hop.model != held.model {
            let text = format!(
                "stage {stage} holds a slice of model {:08x} ({} {}), the hop is of model {:08x}",
                held.model, held.assign.repo, held.assign.revision, hop.model
            );
            return self.fail("model-mismatch", Some(sequence), text);
        }
        if hop.next != Next::Stage(stage) {
            let text = format!("a hop addressed {} came to stage {stage}", hop.next.code());
            return self.fail("address", Some(sequence), text);
        }
        if held.ready.is_none() {
            return self.fail("order", Some(sequence), format!("a hop came to stage {stage} before it was ready"));
        }
        let known = held.flows.get(&sequence).copied();
        // Twice as many as the plan says: news of a sequence's end comes on another link than the next one's first hop.
        if known.is_none() && held.flows.len() >= 2 * held.assign.plan.room.sequences as usize {
            let text = format!("stage {stage} holds {} sequences, twice what the plan says", held.flows.len());
            return self.fail("sequences", Some(sequence), text);
        }
        let flow = known.unwrap_or_default();
        if lap < flow.lap {
            return self.out.push_back(Action::Say(format!("sequence {sequence}, lap {lap}: a duplicate; dropped")));
        }
        let expected = if matches!(hop.form, Form::Anew) { 0 } else { flow.position };
        if lap > flow.lap || position(&hop) != expected {
            let text = format!(
                "stage {stage}, sequence {sequence}: lap {lap} at position {} came, lap {} at position {expected} is next",
                position(&hop),
                flow.lap
            );
            return self.fail("order", Some(sequence), text);
        }
        let width = held.width;
        if width == 0 || hop.hidden.is_empty() || !hop.hidden.len().is_multiple_of(width) {
            let text = format!("stage {stage}: {} values are no rows of {width}", hop.hidden.len());
            return self.fail("shape", Some(sequence), text);
        }
        let rows = (hop.hidden.len() / width) as u32;
        if rows > held.assign.plan.room.step_rows {
            let text = format!("stage {stage}: {rows} rows, the plan says at most {}", held.assign.plan.room.step_rows);
            return self.fail("shape", Some(sequence), text);
        }
        held.flows.insert(sequence, Flow { lap: lap + 1, position: expected + rows, ..flow });
        if held.audited.contains(&sequence) {
            let copy = Hop { next: Next::Copy, ..hop.clone() };
            self.out.push_back(send(self.head, Message::Hop(copy)));
        }
        held.queue.push_back((hop, now));
    }
}

fn position(hop: &Hop) -> u32 {
    match hop.form {
        Form::Anew => 0,
        Form::Cached { position, .. } => position,
    }
}

fn job(hop: &Hop) -> Job {
    let anew = hop.form == Form::Anew;
    Job { sequence: hop.sequence, position: position(hop), anew, input: Input::Hidden(hop.hidden.clone()) }
}
