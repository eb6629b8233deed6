//! The plan over the devices that are there, what each is told to hold, and the moment when all hold it.

use super::super::{Action, Entry, send};
use super::guests::{Guest, REMIND};
use super::report::drawn;
use super::{HeadError, HeadSession, Phase};
use crate::pipeline::plan::{Device, Key, Plan, PlanError, short};
use crate::pipeline::wire::{About, Assign, Member, Message, Ready};
use std::time::Duration;

impl HeadSession {
    /// Plan over the devices that are there, and tell each what it holds.
    pub(super) fn assign(&mut self) -> Result<(), PlanError> {
        let devices: Vec<Device> = self.guests.iter().filter_map(Guest::device).collect();
        let plan = Plan::of(self.config.me, &devices, &self.config.demand, self.config.room)?;
        self.epoch += 1;
        (self.phase, self.programs) = (Phase::Loading, None);
        self.guests.iter_mut().for_each(|guest| (guest.ready, guest.onward, guest.pace) = (None, None, None));
        self.first_sequence = self.next_sequence;
        self.returns.clear();
        // They are of stages that are no more: rebuilding copies all of it again.
        self.copies.clear();
        self.answers.iter_mut().for_each(|answer| answer.restart(None));
        let epoch = self.epoch;
        let own = Member {
            key: self.config.me.key,
            hello: self.config.hello.clone(),
            about: About { memory: self.config.me.memory, addresses: Vec::new(), signature: self.config.signature },
        };
        let members = self.guests.iter().filter_map(Guest::member);
        let roster: Vec<Member> = std::iter::once(own).chain(members).collect();
        let facts = &self.config.facts;
        for (stage, planned) in plan.stages.iter().enumerate().skip(1) {
            let to = plan.devices[planned.device].key;
            let assign = Assign {
                epoch,
                first_sequence: self.first_sequence,
                repo: facts.repo.clone(),
                revision: facts.revision.clone(),
                index: facts.index,
                spec: facts.spec.clone(),
                numerics: facts.numerics.clone(),
                plan: plan.clone(),
                stage: stage as u32,
                layers: planned.layers.clone(),
            };
            self.out.push_back(send(to, Message::Roster(roster.clone())));
            self.out.push_back(send(to, Message::Assign(Box::new(assign))));
        }
        self.out.push_back(Action::Record(Entry::Plan { epoch, plan: plan.clone() }));
        self.out.push_back(Action::Prepare { epoch, plan: plan.clone() });
        self.plan = Some(plan);
        Ok(())
    }

    /// The head's own stage of this plan was made, with the digests of all stages' programs; or not.
    pub fn prepared(&mut self, epoch: u32, result: Result<Vec<[u8; 32]>, String>) {
        if epoch != self.epoch || self.phase == Phase::Ended {
            return;
        }
        match result {
            Ok(programs) => {
                self.programs = Some(programs);
                self.start();
            }
            Err(error) => self.end(Some(HeadError::Own(error))),
        }
    }

    pub(super) fn ready(&mut self, from: Key, ready: Ready) {
        let stage = self.plan.as_ref().and_then(|plan| plan.stage_of(&from));
        if ready.epoch != self.epoch || self.phase != Phase::Loading {
            return;
        }
        if stage != Some(ready.stage as usize) {
            return self.lose(from, format!("it says that it is stage {}", ready.stage));
        }
        if let Some(guest) = self.guests.iter_mut().find(|guest| guest.key == from) {
            guest.ready = Some(ready);
        }
        self.start();
    }

    /// Begin the laps once every stage has its layers.
    pub(super) fn start(&mut self) {
        let (Some(plan), Some(programs), Phase::Loading) = (&self.plan, &self.programs, self.phase) else { return };
        let mut others = (1..plan.stages.len()).map(|stage| (stage, plan.key(stage).unwrap_or_default()));
        let ready = |key: &Key| self.guests.iter().find(|g| g.key == *key).and_then(|guest| guest.ready);
        let wrong =
            others.clone().find(|(stage, key)| ready(key).is_some_and(|r| Some(&r.program) != programs.get(*stage)));
        if let Some((_, key)) = wrong {
            return self.lose(key, "its program is not the one that the head has lowered for it".into());
        }
        if !others.all(|(_, key)| ready(&key).is_some()) {
            return;
        }
        let stages = plan.stages.len() as u32;
        self.phase = Phase::Running;
        self.out.push_back(Action::Say(format!("{stages} stages are ready")));
        for (index, answer) in self.answers.iter_mut().enumerate().filter(|(_, a)| a.ending.is_none()) {
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            answer.restart(Some(sequence));
            let entry = Entry::Sequence { epoch: self.epoch, answer: index, sequence };
            self.out.push_back(Action::Record(entry));
            for stage in (1..stages).filter(|stage| drawn(self.config.audit, index as u32, *stage)) {
                answer.awaited.push(stage);
                let to = self.plan.as_ref().and_then(|plan| plan.key(stage as usize)).unwrap_or_default();
                self.out.push_back(send(to, Message::Audit { sequence }));
            }
        }
        if self.answers.iter().all(|answer| answer.ending.is_some()) {
            self.end(None);
        }
    }

    /// Say now and then which stages still read their layers. Each of them is alive, or it would be lost.
    pub(super) fn loading(&mut self, now: Duration) {
        if now < self.remind {
            return;
        }
        self.remind = now + REMIND;
        let Some(plan) = &self.plan else { return };
        let ready = |key: &Key| self.guests.iter().any(|guest| guest.key == *key && guest.ready.is_some());
        let stages = (1..plan.stages.len()).filter_map(|stage| Some((stage, plan.key(stage)?)));
        let waits: Vec<String> = stages
            .filter(|(_, key)| !ready(key))
            .map(|(stage, key)| format!("stage {stage} ({})", short(&key)))
            .collect();
        if !waits.is_empty() {
            self.out.push_back(Action::Say(format!("{} still read their layers", waits.join(", "))));
        }
    }
}
