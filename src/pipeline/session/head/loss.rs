//! Losses: who is blamed, and how the run goes on without it.

use super::super::{Action, Entry, send};
use super::{HeadError, HeadSession, Phase};
use crate::pipeline::plan::{Key, short};
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
        let stage = self.plan.as_ref().and_then(|plan| plan.stage_of(&key));
        let phase = match self.phase {
            Phase::Gathering => "joining",
            Phase::Loading => "loading",
            Phase::Running | Phase::Ended => "computing",
            Phase::Auditing => "replaying",
        };
        let who = stage.map_or_else(|| format!("device {}", short(&key)), |s| format!("stage {s} ({})", short(&key)));
        let text = format!("{who}, {phase}: {why}");
        let fault = Fault { epoch: 0, sequence: None, code: "lost".into(), text: text.clone() };
        self.out.extend([send(key, Message::Error(fault)), Action::Close { peer: key }, Action::Say(text.clone())]);
        self.out.push_back(Action::Record(Entry::Lost { key, why }));
        self.remember(key, &text);
        if self.phase == Phase::Auditing {
            return self.audit_failed(key, "it is lost");
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
        let overdue = self.answers.iter().find_map(|answer| {
            let flight = answer.flights.front().filter(|f| now.saturating_sub(f.sent) > self.config.lap)?;
            Some((answer.sequence?, *flight))
        });
        let Some(((sequence, flight), plan)) = overdue.zip(self.plan.as_ref()) else { return };
        // The first stage that has not said what it made of the lap holds it.
        let silent = |stage: &u32| {
            let traces = self.traces.get(&(sequence, *stage)).map_or(&[][..], Vec::as_slice);
            traces.iter().all(|trace| trace.lap != flight.lap)
        };
        let stage = (1..plan.stages.len() as u32).find(silent).unwrap_or(plan.stages.len() as u32 - 1);
        let key = plan.key(stage as usize).unwrap_or_default();
        let waited = now.saturating_sub(flight.sent).as_secs_f64();
        let why = format!("stalled: it holds lap {} of sequence {sequence} for {waited:.1} s", flight.lap);
        self.lose(key, why);
    }
}
