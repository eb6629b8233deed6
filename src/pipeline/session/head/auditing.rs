//! The audit by other devices: once the answers are written, copies of one stage's hops go to a device that is not that stage,
//! which replays them and says what it makes of them.

use super::report::Audited;
use super::{HeadSession, Phase};
use crate::pipeline::plan::{Key, short};
use crate::pipeline::session::{Action, send};
use crate::pipeline::wire::{Form, Hop, Message, Next, Ready, Trace};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What other devices replay.
#[derive(Debug, Default)]
pub(super) struct Auditing {
    tasks: VecDeque<Task>,
    /// What each (sequence, stage) is by whom.
    replayed: BTreeMap<(u32, u32), (Key, Vec<Trace>)>,
    /// When the device at work was last heard to get on.
    since: Duration,
}

/// One stage's hops, and who replays them. The first one of the queue is at work.
#[derive(Debug)]
struct Task {
    stage: u32,
    by: Key,
    /// Hops that were sent and have yet to be told of.
    awaited: usize,
}

impl HeadSession {
    /// What another device made of a stage's hops, and which; none where the head itself is to replay them.
    #[must_use]
    pub fn replayed(&self, sequence: u32, stage: u32) -> Option<(Key, &[Trace])> {
        self.auditing.replayed.get(&(sequence, stage)).map(|(key, traces)| (*key, traces.as_slice()))
    }

    /// Begin, where devices other than the head are to replay; whether there is anything to wait for.
    pub(super) fn begin_audit(&mut self, now: Duration) -> bool {
        if !self.config.audit_by_others || self.phase == Phase::Auditing {
            return false;
        }
        let mut stages: Vec<u32> = self.copies.keys().map(|(_, stage)| *stage).collect();
        stages.sort_unstable();
        stages.dedup();
        let tasks = stages.into_iter().filter_map(|stage| Some(Task { stage, by: self.auditor(stage)?, awaited: 0 }));
        self.auditing.tasks = tasks.collect();
        if self.auditing.tasks.is_empty() {
            return false;
        }
        self.phase = Phase::Auditing;
        self.ask(now);
        true
    }

    /// The device that replays a stage: the first one behind it in the ring, the head left out, that lends enough for its
    /// layers.
    fn auditor(&self, stage: u32) -> Option<Key> {
        let plan = self.plan.as_ref()?;
        let layers = &plan.stages.get(stage as usize)?.layers;
        let needs: u64 = self.config.demand.layers.get(layers.start as usize..layers.end as usize)?.iter().sum();
        let holds =
            |key: &Key| self.guests.iter().any(|g| g.key == *key && g.device().is_some_and(|d| d.memory >= needs));
        let count = plan.stages.len();
        let mut others = (1..count).filter_map(|step| plan.key((stage as usize + step) % count));
        others.find(holds)
    }

    /// Have the first task's device take the stage's layers.
    fn ask(&mut self, now: Duration) {
        self.auditing.since = now;
        match self.auditing.tasks.front() {
            Some(Task { stage, by, .. }) => {
                let (stage, by, epoch) = (*stage, *by, self.epoch);
                self.out.push_back(Action::Say(format!("device {} replays what stage {stage} was given", short(&by))));
                self.out.push_back(send(by, Message::Replay { epoch, stage }));
            }
            None => self.end(None),
        }
    }

    /// The device has the layers: it gets the hops.
    pub(super) fn replay_ready(&mut self, from: Key, ready: &Ready) {
        let programs = self.programs.as_ref();
        let Some(task) = self.auditing.tasks.front_mut().filter(|t| t.by == from && t.stage == ready.stage) else {
            return;
        };
        let stage = task.stage;
        if programs.and_then(|programs| programs.get(stage as usize)) != Some(&ready.program) {
            return self.audit_failed(from, "its program of that stage is another one");
        }
        let audited: Vec<Audited> = self.audited().into_iter().filter(|a| a.stage == stage).collect();
        let mut count = 0;
        for Audited { sequence, hops, .. } in audited {
            for (lap, (position, hidden)) in (0..).zip(hops) {
                let form = if position == 0 { Form::Anew } else { Form::Cached { position, keep: 0 } };
                let hop = Hop { sequence, lap, next: Next::Copy, model: self.model, form, hidden };
                self.out.push_back(send(from, Message::Hop(hop)));
                count += 1;
            }
        }
        if let Some(task) = self.auditing.tasks.front_mut() {
            task.awaited = count;
        }
    }

    /// What the device made of a hop.
    pub(super) fn replay_told(&mut self, from: Key, trace: Trace, now: Duration) {
        let Some(task) = self.auditing.tasks.front_mut().filter(|t| t.by == from && t.stage == trace.stage) else {
            return;
        };
        self.auditing.since = now;
        task.awaited = task.awaited.saturating_sub(1);
        let done = task.awaited == 0;
        let entry = self.auditing.replayed.entry((trace.sequence, trace.stage));
        entry.or_insert_with(|| (from, Vec::new())).1.push(trace);
        if done {
            self.auditing.tasks.pop_front();
            self.ask(now);
        }
    }

    /// A device does not replay: what it had to, the head does itself when all is over.
    pub(super) fn audit_failed(&mut self, from: Key, why: &str) {
        let since = self.auditing.since;
        if self.auditing.tasks.front().is_none_or(|task| task.by != from) {
            self.auditing.tasks.retain(|task| task.by != from);
            return;
        }
        if let Some(Task { stage, .. }) = self.auditing.tasks.pop_front() {
            let text = format!("device {} does not replay stage {stage}: {why}; the head does it itself", short(&from));
            self.out.push_back(Action::Say(text));
            self.auditing.replayed.retain(|(_, of), _| *of != stage);
        }
        self.auditing.tasks.retain(|task| task.by != from);
        self.ask(since);
    }

    /// Whoever replays and gets on no longer is not waited for. Loading is bounded by its heartbeat alone.
    pub(super) fn audit_overdue(&mut self, now: Duration) {
        let waits = self.auditing.tasks.front().filter(|task| task.awaited > 0).map(|task| task.by);
        let late = now.saturating_sub(self.auditing.since) > self.config.lap;
        if let Some(by) = waits.filter(|_| late) {
            self.auditing.since = now;
            self.audit_failed(by, "it has stalled");
        }
    }
}
