//! The session: who says what when, as state machines without input or output.
//!
//! A session takes messages, losses and the time, and gives actions; whoever drives it owns links, clock and engine. So the
//! same machines run over sockets and, in tests, over an in-memory link that drops, bends and delays as it is told.
//!
//! ```text
//! join, hello, about ->  roster, assignment ->  load -> ready  ->  laps: hop, hop, RETURN, token  ->  finished
//!                             ^                                        |
//!                             +---- a stage is lost: plan again, rebuild every sequence, compare ----+
//! ```

mod answer;
mod head;
mod stage;
#[cfg(test)]
mod tests;

pub use answer::{Ask, Ending, Outcome};
pub use head::{Admission, Audited, Facts, HeadConfig, HeadError, HeadSession, Lap, Share, StageReport};
pub(crate) use stage::SLOW;
pub use stage::{Injection, InjectionKind, Introduction, StageError, StageSession};

use super::plan::{Key, Plan};
use super::wire::{Assign, Member, Message, Trace};
use sha2::{Digest, Sha256};

/// Checks a device's signature over its claim.
pub type Verify = fn(key: &Key, claim: &[u8], signature: &[u8; 64]) -> bool;

/// What whoever drives a session is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a message. `spoil`: with one bit of it turned over, for a fault that was asked for.
    Send {
        /// To whom.
        to: Key,
        /// What.
        message: Message,
        /// Turn one bit over.
        spoil: bool,
    },
    /// Open a link for hops to the next stage, and say so when it is there.
    Dial {
        /// The stage's key.
        to: Key,
        /// Where it is.
        addresses: Vec<String>,
        /// The assignment's number.
        epoch: u32,
    },
    /// Validate an assignment, read the stage's tensors, make its engine, and say how it went. A worker of before goes.
    Load {
        /// The assignment.
        assign: Box<Assign>,
        /// What the devices have signed, this device's own figures as it knows them.
        heard: Vec<Member>,
    },
    /// Make the head's own stage of this plan, and say how it went. A worker of before goes.
    Prepare {
        /// Its number.
        epoch: u32,
        /// The plan.
        plan: Plan,
    },
    /// Free what the worker keeps of a sequence; of all for none.
    Free(Option<u32>),
    /// End a link.
    Close {
        /// Whose.
        peer: Key,
    },
    /// Something for people.
    Say(String),
    /// Something for the flight recorder.
    Record(Entry),
    /// A token of an answer is certain.
    Token {
        /// Index of the answer.
        answer: usize,
        /// The token.
        token: u32,
    },
    /// The head tells a token that it has written.
    Told {
        /// The sequence; a new one after a stage was lost.
        sequence: u32,
        /// Its place in the answer.
        index: u32,
        /// The token.
        token: u32,
    },
    /// A fault that was asked for: end the process, or stop without a word.
    Inject(InjectionKind),
    /// The work is over.
    Done,
}

/// What the flight recorder keeps.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A plan begins to work.
    Plan {
        /// The assignment's number.
        epoch: u32,
        /// The plan.
        plan: Plan,
    },
    /// An answer goes under this sequence number from now on.
    Sequence {
        /// The assignment's number.
        epoch: u32,
        /// Answer.
        answer: usize,
        /// Sequence.
        sequence: u32,
    },
    /// A stage, the head included, has computed a hop.
    Hop {
        /// Answer.
        answer: usize,
        /// What it made of it.
        trace: Trace,
    },
    /// A token was picked.
    Token {
        /// Answer.
        answer: usize,
        /// Index among those written.
        index: u32,
        /// Token.
        token: u32,
    },
    /// A stage was lost.
    Lost {
        /// Its key.
        key: Key,
        /// Why.
        why: String,
    },
}

/// The proof that a peer has a ticket's secret.
#[must_use]
pub fn proof(secret: &[u8; 32], head: &Key, peer: &Key) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(b"wordline join");
    hasher.update(secret);
    hasher.update(head);
    hasher.update(peer);
    hasher.finalize().into()
}

fn send(to: Key, message: Message) -> Action {
    Action::Send { to, message, spoil: false }
}
