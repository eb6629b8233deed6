//! Guests: who may take part, and what each says of itself before there is a plan.

use super::super::{Action, proof, send};
use super::{Admission, HeadError, HeadSession, Phase};
use crate::pipeline::plan::{Device, Key, short};
use crate::pipeline::wire::{About, Fault, Hello, Join, Member, Message, Onward, Purpose, Ready, VERSION, claim};
use std::time::Duration;

/// How often the head says whom it waits for.
pub(super) const REMIND: Duration = Duration::from_secs(15);
/// Devices whose refusals and departures are remembered.
const REMEMBERED: usize = 32;

/// A device that has joined.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) key: Key,
    pub(super) hello: Option<Hello>,
    pub(super) about: Option<About>,
    pub(super) heard: Duration,
    pub(super) ready: Option<Ready>,
    /// How it reaches the stage behind it.
    pub(super) onward: Option<Onward>,
    /// It holds a stage of the plan, and has come again as a process that knows nothing of that.
    pub(super) anew: bool,
    /// Laps that it has done, as it told last, and since when it has told of the same number without being busy.
    pub(super) pace: Option<Pace>,
}

/// What a device's heartbeats say of its work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    laps: u64,
    /// When it was last heard to be busy, or to have got on.
    pub(super) moved: Duration,
    pub(super) busy: bool,
}

impl Pace {
    /// After one more beat.
    pub(super) fn of(before: Option<Self>, laps: u64, busy: bool, now: Duration) -> Self {
        let moved = before.filter(|before| before.laps == laps && !busy).map_or(now, |before| before.moved);
        Self { laps, moved, busy }
    }
}

impl Guest {
    pub(super) fn member(&self) -> Option<Member> {
        Some(Member { key: self.key, hello: self.hello.clone()?, about: self.about.clone()? })
    }

    pub(super) fn device(&self) -> Option<Device> {
        let (hello, about) = (self.hello.as_ref()?, self.about.as_ref()?);
        Some(Device { key: self.key, capacity: hello.capacity, memory: about.memory })
    }
}

impl HeadSession {
    pub(super) fn join(&mut self, from: Key, join: &Join, now: Duration) {
        if join.version != VERSION {
            let text = format!("it speaks version {} of the wire, this head {VERSION}", join.version);
            return self.refuse(from, "version", text);
        }
        if join.purpose != Purpose::Member {
            return self.refuse(from, "join", "hops come on the link of a member".into());
        }
        let Admission { secret, roster } = &self.config.admission;
        let proved = secret.as_ref().is_some_and(|secret| proof(secret, &self.config.me.key, &from) == join.proof);
        if !proved && !roster.contains(&from) {
            let text = "its key is not on the roster and its ticket is not this head's".to_owned();
            return self.refuse(from, "ticket", text);
        }
        let known = self.guests.iter().any(|guest| guest.key == from);
        let holds = self.plan.as_ref().is_some_and(|plan| plan.stage_of(&from).is_some());
        let anew = known && holds && self.phase != Phase::Gathering;
        self.guests.retain(|guest| guest.key != from);
        // Whoever comes again may have another clock.
        self.clocks.remove(&from);
        let (hello, about, ready, onward, pace) = (None, None, None, None, None);
        self.guests.push(Guest { key: from, hello, about, heard: now, ready, onward, anew, pace });
    }

    /// A guest has said all of itself.
    pub(super) fn arrived(&mut self, from: Key) {
        let Some(member) = self.guests.iter().find(|g| g.key == from).and_then(Guest::member) else {
            return self.refuse(from, "join", "it said what it lends before what it is".into());
        };
        let Member { hello, about, .. } = &member;
        let signed = claim(&self.config.me.key, &from, hello, about.memory);
        if !(self.config.verify)(&from, &signed, &about.signature) {
            return self.refuse(from, "signature", "it has not signed its figures".into());
        }
        self.absent.remove(&from);
        self.out.push_back(Action::Say(format!(
            "device {} joins: {:.1} GEMMs/s on {}, lends {} MiB",
            short(&from),
            hello.capacity,
            hello.backend,
            about.memory >> 20
        )));
        if self.phase == Phase::Gathering && self.present() >= self.config.stages {
            self.gathered();
        }
        let guest = self.guests.iter_mut().find(|guest| guest.key == from);
        if guest.is_some_and(|guest| std::mem::take(&mut guest.anew)) {
            self.without(from, "its process was started anew and holds nothing".into());
        }
    }

    /// All are there, or none are waited for: plan.
    pub fn gathered(&mut self) {
        if self.present() >= self.config.stages
            && let Err(error) = self.assign()
        {
            self.end(Some(error.into()));
        }
    }

    pub(super) fn refuse(&mut self, from: Key, code: &str, text: String) {
        let text = format!("device {} is refused: {text}", short(&from));
        let fault = Fault { epoch: 0, sequence: None, code: code.into(), text: text.clone() };
        self.guests.retain(|guest| guest.key != from);
        self.remember(from, &text);
        self.out.extend([Action::Say(text), send(from, Message::Error(fault)), Action::Close { peer: from }]);
    }

    /// Keep why a device is not there, for whoever asks who is missing.
    pub(super) fn remember(&mut self, key: Key, text: &str) {
        if self.absent.len() < REMEMBERED || self.absent.contains_key(&key) {
            self.absent.insert(key, text.to_owned());
        }
    }

    /// Wait for those that are missing: say so now and then, and give up in the end.
    pub(super) fn gather(&mut self, now: Duration) {
        let wanted = self.config.stages;
        if let Some(after) = self.config.gather.filter(|after| now > *after) {
            let here: Vec<Key> = self.guests.iter().filter_map(Guest::member).map(|member| member.key).collect();
            let never = self.config.admission.roster.iter().filter(|key| !here.contains(key));
            let never = never.filter(|key| !self.absent.contains_key(*key));
            let never = never.map(|key| format!("device {} of the roster has not reached this head", short(key)));
            let missing = self.absent.values().cloned().chain(never).collect();
            return self.end(Some(HeadError::Gather { here, wanted, after, missing }));
        }
        if now >= self.remind {
            self.remind = now + REMIND;
            let here = self.present();
            let missing = wanted.saturating_sub(here);
            let text = format!(
                "{here} of {wanted} stages are here; {missing} more waited for, {:.0} s so far",
                now.as_secs_f64()
            );
            self.out.push_back(Action::Say(text));
        }
    }

    pub(super) fn present(&self) -> usize {
        self.guests.iter().filter(|guest| guest.member().is_some()).count()
    }
}

pub(super) fn hex8(digest: &[u8; 32]) -> String {
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
