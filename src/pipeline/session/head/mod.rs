//! `HeadSession`: the head from its first guest to the last token.
//!
//! [`guests`] come, the plan is made and [`assign`]ed, [`laps`] go round, stages have [`told`] what they made of them and when by
//! their [`clock`]s, a [`loss`] starts over from the plan, [`auditing`] has other devices replay, and [`report`] says what it was.

mod assign;
mod auditing;
mod clock;
mod error;
mod guests;
mod laps;
mod loss;
mod report;
mod told;

pub use error::HeadError;
pub use report::{Audited, Lap, Share, StageReport};

use super::answer::{Answer, Ask};
use super::{Action, Verify, send};
use crate::pipeline::plan::{Demand, Device, Key, Plan, Room, short};
use crate::pipeline::wire::{Fault, Hello, Message, Trace, WireError, model_hash};
use crate::pipeline::worker::Worker;
use auditing::Auditing;
use clock::Clock;
use guests::{Guest, Pace, REMIND, hex8};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Who may take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Whoever has this secret.
    pub secret: Option<[u8; 32]>,
    /// Whoever has one of these keys.
    pub roster: Vec<Key>,
}

/// What an assignment says of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Repository, `owner/name`.
    pub repo: String,
    /// Revision.
    pub revision: String,
    /// Digest of the tensor index.
    pub index: [u8; 32],
    /// Spec, as JSON.
    pub spec: String,
    /// Numerics, as JSON.
    pub numerics: String,
    /// Values of a hidden row.
    pub hidden: usize,
}

/// What a head is made with.
#[derive(Clone, Debug)]
pub struct HeadConfig {
    /// The head's own figures.
    pub me: Device,
    /// What it says of itself to the roster.
    pub hello: Hello,
    /// Its signature over its claim.
    pub signature: [u8; 64],
    /// The kernel probe that every device must print.
    pub probe: [u8; 32],
    /// Checks signatures.
    pub verify: Verify,
    /// Who may take part.
    pub admission: Admission,
    /// Stages to wait for, the head not counted.
    pub stages: usize,
    /// The model.
    pub facts: Facts,
    /// What it needs.
    pub demand: Demand,
    /// Room on every stage.
    pub room: Room,
    /// Laps that embed the last tokens again, as many as a step takes, in place of laps of new rows alone.
    pub stateless: bool,
    /// Share of (sequence, stage) pairs whose hops are copied to the head and replayed.
    pub audit: f64,
    /// They are replayed by devices other than the head, as far as there are such; else by whoever has the session.
    pub audit_by_others: bool,
    /// After this long without a sign of life a stage is lost.
    pub silence: Duration,
    /// After this long a lap is lost, and the stage that holds it.
    pub lap: Duration,
    /// The same, where the stage says that it has nothing to do.
    pub idle: Duration,
    /// After this long without all stages the head gives up; none: it waits.
    pub gather: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gathering,
    Loading,
    Running,
    Auditing,
    Ended,
}

/// A hop's position and its hidden state.
type Copied = (u32, Vec<f32>);

/// The head from its first guest to the last token.
#[derive(Debug)]
pub struct HeadSession {
    config: HeadConfig,
    model: u32,
    phase: Phase,
    guests: Vec<Guest>,
    /// Devices that were refused or have left, and why.
    absent: BTreeMap<Key, String>,
    /// When to say next whom the head waits for.
    remind: Duration,
    plan: Option<Plan>,
    epoch: u32,
    /// Digests of the stages' programs, once the head's own stage is there.
    programs: Option<Vec<[u8; 32]>>,
    next_sequence: u32,
    /// The first sequence of the ring that is at work.
    first_sequence: u32,
    answers: Vec<Answer>,
    /// Rows that came back, by answer: to be read out.
    returns: VecDeque<(usize, Vec<f32>)>,
    laps: BTreeMap<(u32, u32), Lap>,
    /// Copies of hops for the audit, by sequence and stage.
    copies: BTreeMap<(u32, u32), Vec<Copied>>,
    traces: BTreeMap<(u32, u32), Vec<Trace>>,
    clocks: BTreeMap<Key, Clock>,
    auditing: Auditing,
    /// Sequences whose answers are written while stages may still be telling of their last lap: answer and lap.
    closing: BTreeMap<u32, (usize, u32)>,
    /// When the telling is waited for no longer.
    patience: Option<Duration>,
    lost: Vec<String>,
    error: Option<HeadError>,
    out: VecDeque<Action>,
}

impl HeadSession {
    /// A head that waits for its stages, to write these answers.
    #[must_use]
    pub fn new(config: HeadConfig, asks: Vec<Ask>) -> Self {
        let Facts { repo, revision, index, .. } = &config.facts;
        let model = model_hash(repo, revision, index);
        Self {
            model,
            config,
            phase: Phase::Gathering,
            guests: Vec::new(),
            absent: BTreeMap::new(),
            remind: REMIND,
            plan: None,
            epoch: 0,
            programs: None,
            next_sequence: 0,
            first_sequence: 0,
            answers: asks.into_iter().map(Answer::new).collect(),
            returns: VecDeque::new(),
            laps: BTreeMap::new(),
            copies: BTreeMap::new(),
            traces: BTreeMap::new(),
            clocks: BTreeMap::new(),
            auditing: Auditing::default(),
            closing: BTreeMap::new(),
            patience: None,
            lost: Vec::new(),
            error: None,
            out: VecDeque::new(),
        }
    }

    /// What is to be done now.
    pub fn actions(&mut self) -> impl Iterator<Item = Action> + use<> {
        std::mem::take(&mut self.out).into_iter()
    }

    /// How the run ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<Result<(), HeadError>> {
        (self.phase == Phase::Ended).then(|| self.error.clone().map_or(Ok(()), Err))
    }

    /// Take a message.
    pub fn message(&mut self, from: Key, message: Message, now: Duration) {
        if self.phase == Phase::Ended {
            return;
        }
        if let Message::Join(join) = &message {
            return self.join(from, join, now);
        }
        let Some(guest) = self.guests.iter_mut().find(|guest| guest.key == from) else {
            // Who was refused or lost may go on for a while; it is not answered again.
            return self.out.push_back(Action::Close { peer: from });
        };
        guest.heard = now;
        match message {
            Message::Hello(hello) if hello.probe != self.config.probe => {
                let text = format!(
                    "its kernel probe {} is not the pinned {}: its units would give other bits",
                    hex8(&hello.probe),
                    hex8(&self.config.probe)
                );
                self.refuse(from, "probe", text);
            }
            Message::Hello(hello) => guest.hello = Some(hello),
            Message::About(about) => {
                guest.about = Some(about);
                self.arrived(from);
            }
            Message::Ready(ready) if self.phase == Phase::Auditing => self.replay_ready(from, &ready),
            Message::Trace(trace) if self.phase == Phase::Auditing => self.replay_told(from, trace, now),
            Message::Error(fault) if self.phase == Phase::Auditing => self.audit_failed(from, &fault.text),
            Message::Ready(ready) => self.ready(from, ready),
            Message::Hop(hop) => self.hop(from, hop, now),
            Message::Trace(trace) => self.trace(from, trace, now),
            Message::Audit { sequence } => {
                let stage = self.plan.as_ref().and_then(|plan| plan.stage_of(&from));
                let answer = self.answers.iter_mut().find(|a| a.sequence == Some(sequence));
                if let (Some(stage), Some(answer)) = (stage, answer) {
                    answer.awaited.retain(|s| *s as usize != stage);
                }
            }
            Message::Error(fault) if fault.epoch == self.epoch || fault.epoch == 0 => self.fault(from, &fault),
            // Of another ring, it may speak of a stage that is no more.
            Message::Beat { epoch, laps, busy_ms, onward } if epoch == self.epoch => {
                guest.pace = Some(Pace::of(guest.pace, laps, busy_ms > 0, now));
                guest.onward = onward.or(guest.onward);
            }
            Message::Beat { .. } | Message::Error(_) => {}
            _ => self.out.push_back(Action::Say(format!("{} sent what only a head sends", short(&from)))),
        }
    }

    /// Bytes came that are no message.
    pub fn bad(&mut self, from: Key, error: &WireError) {
        let code = if matches!(error, WireError::Corrupt { .. }) { "corrupted hop" } else { "no message" };
        self.lose(from, format!("{code}: {error}"));
    }

    /// A link is lost.
    pub fn lost(&mut self, peer: Key, why: &str) {
        self.lose(peer, format!("the link is lost: {why}"));
    }

    /// Look at the time: who is silent, what is overdue.
    pub fn tick(&mut self, now: Duration) {
        if self.phase == Phase::Ended {
            return;
        }
        let silent = self.guests.iter().find(|guest| now.saturating_sub(guest.heard) > self.config.silence);
        if let Some((key, since)) = silent.map(|guest| (guest.key, now.saturating_sub(guest.heard))) {
            return self.lose(key, format!("no sign of life for {:.1} s", since.as_secs_f64()));
        }
        if self.phase == Phase::Gathering {
            return self.gather(now);
        }
        if self.phase == Phase::Loading {
            return self.loading(now);
        }
        if self.phase == Phase::Auditing {
            return self.audit_overdue(now);
        }
        if self.phase != Phase::Running {
            return;
        }
        if self.written() {
            return self.settle(now);
        }
        self.overdue(now);
    }

    /// There is something to compute.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.phase == Phase::Running && (!self.returns.is_empty() || !self.chosen().is_empty())
    }

    /// Read out what came back, then send every answer's next rows on their lap.
    pub fn work(&mut self, worker: &mut Worker, clock: &dyn Fn() -> Duration) {
        if self.phase != Phase::Running {
            return;
        }
        if let Err(error) = self.read_out(worker).and_then(|()| self.feed(worker, clock)) {
            return self.end(Some(error));
        }
        // What was picked goes out behind this, before the rows that were computed meanwhile.
        let now = clock();
        self.answers.iter_mut().for_each(|answer| answer.told.resize(answer.written().len(), now));
        if self.written() {
            self.patience = Some(clock() + self.config.silence);
            self.settle(clock());
        }
    }

    /// End an answer before its time.
    pub fn cancel(&mut self, answer: usize) {
        if let Some(answer) = self.answers.get_mut(answer).filter(|a| a.ending.is_none()) {
            answer.ending = Some(super::Ending::Interrupted);
            if let Some(sequence) = answer.sequence.take() {
                self.tell_stages(&Message::Cancel { sequence });
                self.out.push_back(Action::Free(Some(sequence)));
            }
        }
        if self.answers.iter().all(|answer| answer.ending.is_some()) {
            self.end(None);
        }
    }

    /// End every answer before its time, and the run.
    pub fn stop(&mut self) {
        (0..self.answers.len()).for_each(|answer| self.cancel(answer));
        self.end(None);
    }

    /// End the run for a reason that lies outside of it.
    pub fn fail(&mut self, error: HeadError) {
        self.end(Some(error));
    }

    /// Say something to every device of the plan.
    pub(super) fn tell_stages(&mut self, message: &Message) {
        let Some(plan) = &self.plan else { return };
        let stages = (1..plan.stages.len()).filter_map(|stage| plan.key(stage));
        self.out.extend(stages.map(|to| send(to, message.clone())));
    }

    pub(super) fn end(&mut self, error: Option<HeadError>) {
        if self.phase == Phase::Ended {
            return;
        }
        self.phase = Phase::Ended;
        for guest in self.guests.iter() {
            let message = match &error {
                None => Message::Finished { sequence: None },
                Some(error) => {
                    let text = error.to_string();
                    Message::Error(Fault { epoch: self.epoch, sequence: None, code: "ended".into(), text })
                }
            };
            self.out.push_back(send(guest.key, message));
        }
        self.error = error;
        self.out.extend([Action::Free(None), Action::Done]);
    }
}
