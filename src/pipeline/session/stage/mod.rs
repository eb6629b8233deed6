//! `StageSession`: a stage from its join to the end of the run.
//!
//! [`assigned`] is what it holds for its head, [`hops`] are what it computes, and a [`fault`] goes wrong where it is told to.

mod assigned;
mod fault;
mod hops;

pub(crate) use fault::SLOW;
pub use fault::{Injection, InjectionKind};

use super::{Action, Verify, proof, send};
use crate::pipeline::plan::{Key, short};
use crate::pipeline::wire::{
    About, Assign, Fault, Hello, Hop, Join, Member, Message, Purpose, Ready, VERSION, WireError, claim,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Names under which a head refuses a device for what it is.
const REFUSALS: [&str; 5] = ["version", "join", "ticket", "probe", "signature"];

/// Why a stage's work ended before the run did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The head sent an error.
    #[error("the head {}: {code}: {text}", short(head))]
    Head {
        /// The head's key.
        head: Key,
        /// The error's name.
        code: String,
        /// What it says.
        text: String,
    },
    /// The head is gone.
    #[error("the head {} is lost: {why}", short(head))]
    Lost {
        /// The head's key.
        head: Key,
        /// Why.
        why: String,
    },
}

impl StageError {
    /// Whether the head does not let this device take part, in this run or a later one.
    #[must_use]
    pub fn kept_out(&self) -> bool {
        matches!(self, Self::Head { code, .. } if REFUSALS.contains(&code.as_str()))
    }
}

/// What a device says of itself when it joins.
#[derive(Clone, Debug, PartialEq)]
pub struct Introduction {
    /// What it is.
    pub hello: Hello,
    /// Bytes that it lends.
    pub memory: u64,
    /// Where other stages reach it.
    pub addresses: Vec<String>,
}

/// A stage from its join to the end of the run.
#[derive(Debug)]
pub struct StageSession {
    me: Key,
    head: Key,
    hello: Hello,
    about: About,
    verify: Verify,
    heard: Vec<Member>,
    /// Who linked for the hops of an assignment that has not come yet, and its number.
    early: Vec<(Key, u32)>,
    held: Option<Held>,
    /// The stage whose hops are replayed for the head, and whether its layers are here.
    replays: Option<(u32, bool)>,
    injection: Option<Injection>,
    stalled: bool,
    laps: u64,
    ended: Option<Result<(), StageError>>,
    out: VecDeque<Action>,
}

/// An assignment, and what has come of it.
#[derive(Debug)]
struct Held {
    assign: Box<Assign>,
    model: u32,
    /// Values of a hidden row, as the spec says.
    width: usize,
    previous: Key,
    /// The next stage's key; none behind the last one, whose rows return.
    next: Option<Key>,
    ready: Option<Ready>,
    linked: bool,
    announced: bool,
    flows: BTreeMap<u32, Flow>,
    finished: BTreeSet<u32>,
    audited: BTreeSet<u32>,
    queue: VecDeque<(Hop, Duration)>,
}

/// What a sequence's next hop must be, and what was heard of it.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    lap: u32,
    position: u32,
    /// The token of it that the head told last, and when.
    heard: Option<(u32, Duration)>,
}

impl StageSession {
    /// A stage that begins to join a head: it says what it is. `sign` signs its claim.
    #[must_use]
    pub fn new(
        me: Key,
        head: Key,
        secret: Option<&[u8; 32]>,
        introduction: Introduction,
        sign: impl FnOnce(&[u8]) -> [u8; 64],
        verify: Verify,
    ) -> Self {
        let Introduction { hello, memory, addresses } = introduction;
        let signature = sign(&claim(&head, &me, &hello, memory));
        let about = About { memory, addresses, signature };
        let proof = secret.map_or([0; 32], |secret| proof(secret, &head, &me));
        let join = Join { version: VERSION, purpose: Purpose::Member, proof };
        let messages = [Message::Join(join), Message::Hello(hello.clone()), Message::About(about.clone())];
        let out = messages.into_iter().map(|message| send(head, message)).collect();
        let (heard, early, held, replays, injection) = (Vec::new(), Vec::new(), None, None, None);
        let (stalled, laps, ended) = (false, 0, None);
        Self { me, head, hello, about, verify, heard, early, held, replays, injection, stalled, laps, ended, out }
    }

    /// Have a fault happen.
    pub fn inject(&mut self, injection: Option<Injection>) {
        self.injection = injection;
    }

    /// What is to be done now.
    pub fn actions(&mut self) -> impl Iterator<Item = Action> + use<> {
        std::mem::take(&mut self.out).into_iter()
    }

    /// How the run ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<&Result<(), StageError>> {
        self.ended.as_ref()
    }

    /// The assignment's number, and laps done.
    #[must_use]
    pub fn pulse(&self) -> (u32, u64) {
        (self.held.as_ref().map_or(0, |held| held.assign.epoch), self.laps)
    }

    /// Hops wait to be computed.
    #[must_use]
    pub fn pending(&self) -> bool {
        !self.stalled && self.held.as_ref().is_some_and(|held| !held.queue.is_empty())
    }

    /// Take a message.
    pub fn message(&mut self, from: Key, message: Message, now: Duration) {
        if self.ended.is_some() {
            return;
        }
        match message {
            Message::Hop(hop) => self.hop(from, hop, now),
            Message::Join(join) => self.join(from, join),
            _ if from != self.head => {
                let text = format!("{} sent what only a head sends; it is not heard", short(&from));
                self.out.push_back(Action::Say(text));
                self.out.push_back(Action::Close { peer: from });
            }
            Message::Roster(members) => self.roster(members),
            Message::Assign(assign) => self.assign(assign),
            Message::Replay { epoch, stage } => self.replay(epoch, stage),
            Message::Finished { sequence } => self.finished(sequence),
            Message::Cancel { sequence } => self.finished(Some(sequence)),
            Message::Audit { sequence } => {
                if let Some(held) = &mut self.held {
                    held.audited.insert(sequence);
                    self.out.push_back(send(self.head, Message::Audit { sequence }));
                }
            }
            Message::Error(fault) => {
                let head = self.head;
                self.ended = Some(Err(StageError::Head { head, code: fault.code, text: fault.text }));
                self.out.push_back(Action::Done);
            }
            Message::Token { sequence, index, token } => {
                if let Some(flow) = self.held.as_mut().and_then(|held| held.flows.get_mut(&sequence)) {
                    flow.heard = Some((index, now));
                }
                self.out.push_back(Action::Told { sequence, index, token });
            }
            Message::Beat { .. } => {}
            _ => self.out.push_back(Action::Say("the head sent what a head does not send; it is not heard".into())),
        }
    }

    /// Bytes came that are no message.
    pub fn bad(&mut self, from: Key, error: &WireError) {
        let code = if matches!(error, WireError::Corrupt { .. }) { "corrupt" } else { "message" };
        let stage = self.held.as_ref().map_or(0, |held| held.assign.stage);
        self.fail(code, None, format!("stage {stage} refuses what {} sent: {error}", short(&from)));
    }

    /// A link is lost.
    pub fn lost(&mut self, peer: Key, why: &str) {
        if self.ended.is_some() {
            return;
        }
        if peer == self.head {
            self.ended = Some(Err(StageError::Lost { head: peer, why: why.into() }));
            self.out.push_back(Action::Free(None));
            self.out.push_back(Action::Done);
            return;
        }
        let Some(held) = &self.held else { return };
        let stage = held.assign.stage;
        if held.next == Some(peer) {
            self.fail("link", None, format!("stage {stage} has lost stage {} ({}): {why}", stage + 1, short(&peer)));
        } else if held.previous == peer && !held.flows.is_empty() {
            // With nothing under way it has heard of the run's end before this stage did.
            self.out.push_back(Action::Say(format!("stage {} ({}) is gone: {why}", stage - 1, short(&peer))));
        }
    }

    pub(super) fn fail(&mut self, code: &str, sequence: Option<u32>, text: String) {
        let epoch = self.held.as_ref().map_or(0, |held| held.assign.epoch);
        self.out.push_back(Action::Say(format!("{code}: {text}")));
        let fault = Fault { epoch, sequence, code: code.into(), text };
        self.out.push_back(send(self.head, Message::Error(fault)));
    }
}
