//! Losses: who is blamed, and how the run goes on without it.

use super::super::{Action, Entry, send};
use super::guests::Guest;
use super::{HeadError, HeadSession, Phase};
use crate::pipeline::plan::{Key, Plan, short};
use crate::pipeline::wire::{Fault, Message};
use std::time::Duration;

impl HeadSession {
    pub(super) fn fault(&mut self, from: Key, fault: &Fault) {
        let blamed = match (fault.code.as_str(), &self.plan) {
            // Whoever receives a bent hop is not the one that bent it.
            ("corrupt" | "model-mismatch" | "order" | "address" | "shape", Some(plan)) => plan
                .stage_of(&from)
                .and_then(|stage| plan.key(stage.checked_sub(1)?))
                .filter(|key| *key != self.config.me.key),
            ("link", Some(plan)) => plan.stage_of(&from).and_then(|stage| plan.key(stage + 1)),
            _ => None,
        };
        self.lose(blamed.unwrap_or(from), format!("{}: {}", fault.code, fault.text));
    }

    /// A device is lost: without it the ring is planned again, every sequence is rebuilt, and its rows are held to those
    /// that were recorded.
    pub(super) fn lose(&mut self, key: Key, why: String) {
        let known = self.guests.iter().any(|guest| guest.key == key);
        if !known || self.phase == Phase::Ended {
            return;
        }
        self.guests.retain(|guest| guest.key != key);
        let text = self.named(&key, &why);
        let fault = Fault { epoch: 0, sequence: None, code: "lost".into(), text: text.clone() };
        self.out.extend([send(key, Message::Error(fault)), Action::Close { peer: key }]);
        self.remember(key, &text);
        self.without(key, why);
    }

    /// A device, what it was doing, and what became of it.
    fn named(&self, key: &Key, why: &str) -> String {
        let phase = match self.phase {
            Phase::Gathering => "joining",
            Phase::Loading => "loading",
            Phase::Running | Phase::Ended => "computing",
            Phase::Auditing => "replaying",
        };
        let stage = self.plan.as_ref().and_then(|plan| plan.stage_of(key));
        let who = stage.map_or_else(|| format!("device {}", short(key)), |s| format!("stage {s} ({})", short(key)));
        format!("{who}, {phase}: {why}")
    }

    /// What a device held is gone: go on without it, or with it as one that holds nothing yet.
    pub(super) fn without(&mut self, key: Key, why: String) {
        let text = self.named(&key, &why);
        let stage = self.plan.as_ref().and_then(|plan| plan.stage_of(&key));
        self.out.push_back(Action::Say(text.clone()));
        self.out.push_back(Action::Record(Entry::Lost { key, why: why.clone() }));
        if self.phase == Phase::Auditing {
            self.lost.extend(stage.map(|_| text));
            return self.audit_failed(key, &why);
        }
        if stage.is_none() || self.phase == Phase::Gathering {
            return;
        }
        self.lost.push(text.clone());
        // What this ring still had to tell is not waited for.
        self.closing.clear();
        if self.phase == Phase::Running && self.written() {
            return self.end(None);
        }
        self.out.push_back(Action::Free(None));
        let (given, wanted) = (self.present(), self.config.stages);
        // Nothing is written yet: the ring that was asked for is waited for, not a smaller one made do with.
        if self.next_sequence == 0 && given < wanted {
            return self.end(Some(HeadError::Short { lost: text, given, wanted }));
        }
        if let Err(source) = self.assign() {
            self.end(Some(HeadError::NoSpare { lost: text, source }));
        }
    }

    /// Lose the stage that holds a lap for too long.
    pub(super) fn overdue(&mut self, now: Duration) {
        let Some(plan) = &self.plan else { return };
        let overdue = self.answers.iter().find_map(|answer| {
            let (sequence, flight) = (answer.sequence?, *answer.flights.front()?);
            // The first stage that has not said what it made of the lap holds it.
            let silent = |stage: &u32| {
                let traces = self.traces.get(&(sequence, *stage)).map_or(&[][..], Vec::as_slice);
                traces.iter().all(|trace| trace.lap != flight.lap)
            };
            let stage = (1..plan.stages.len() as u32).find(silent).unwrap_or(plan.stages.len() as u32 - 1);
            let key = plan.key(stage as usize)?;
            let waited = now.saturating_sub(flight.sent);
            self.holds_up(plan, stage as usize, flight.sent, now).then(|| {
                (
                    key,
                    format!(
                        "stalled: it holds lap {} of sequence {sequence} for {:.1} s",
                        flight.lap,
                        waited.as_secs_f64()
                    ),
                )
            })
        });
        if let Some((key, why)) = overdue {
            self.lose(key, why);
        }
    }

    /// Whether a stage has had rows that were sent then for longer than it may.
    ///
    /// One that says that it is busy may take as long as a device of its figures takes. One that says that it is idle, laps
    /// and all, may take what is asked for and no more: its rows should have come once nobody before it moved any longer.
    fn holds_up(&self, plan: &Plan, stage: usize, sent: Duration, now: Duration) -> bool {
        let guest = |stage: usize| plan.key(stage).and_then(|key| self.guests.iter().find(|guest| guest.key == key));
        let pace = |stage: usize| guest(stage).and_then(|guest| guest.pace);
        let waited = now.saturating_sub(sent);
        match pace(stage) {
            Some(own) if own.busy => {
                let slower = guest(stage)
                    .and_then(Guest::device)
                    .map_or(1.0, |device| self.config.me.capacity / device.capacity.max(1e-3));
                waited > self.config.lap.mul_f64(slower.clamp(1.0, 1e4))
            }
            Some(own) => {
                let before = (1..stage).filter_map(pace).map(|pace| pace.moved);
                let since = before.fold(own.moved.max(sent), Duration::max);
                waited > self.config.lap || now.saturating_sub(since) > self.config.idle
            }
            None => waited > self.config.lap,
        }
    }
}
