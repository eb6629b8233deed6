//! The link: messages between devices that know each other by public key.

mod identity;
mod keeper;
mod quic;
mod ticket;

pub use identity::{Identity, IdentityError};
pub use quic::{LinkError, Quic, QuicConfig};
pub use ticket::{Ticket, TicketError};

use super::plan::Key;
use std::time::{Duration, Instant};

/// What a link tells.
#[derive(Debug)]
pub enum LinkEvent {
    /// A peer is there, with a stream that stays for as long as the link does.
    Linked {
        /// Who.
        peer: Key,
        /// The peer opened it.
        incoming: bool,
    },
    /// A whole message came.
    Message {
        /// From whom.
        peer: Key,
        /// Its bytes.
        bytes: Vec<u8>,
        /// When they had come, however long they waited to be taken.
        at: Instant,
    },
    /// A peer is gone, or was never reached.
    Lost {
        /// Who.
        peer: Key,
        /// Why.
        why: String,
    },
}

/// How well a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Time to the peer and back.
    pub rtt: Duration,
    /// Through a relay.
    pub relayed: bool,
}

/// Messages to and from peers.
pub trait Link {
    /// Open a link to a peer; `Linked` or `Lost` says how it went.
    fn dial(&self, peer: Key, addresses: &[String]);
    /// Send a message; it goes out behind those before it. To a peer that is not linked it is dropped.
    fn send(&self, peer: &Key, bytes: Vec<u8>);
    /// End a link once what was sent is out.
    fn close(&self, peer: &Key);
    /// Have what was sent go out now, before this thread turns to something else.
    fn flush(&self);
    /// Be awake at the socket from `early` before this moment to `late` behind it, at the next wait.
    fn expect(&mut self, due: Instant, early: Duration, late: Duration);
    /// What happens next, waited for at most this long.
    fn next(&mut self, wait: Duration) -> Option<LinkEvent>;
    /// How well a peer is reached.
    fn reach(&self, peer: &Key) -> Option<Reach>;
}
