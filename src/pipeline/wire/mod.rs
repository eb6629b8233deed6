//! The wire: every message between devices, as pure functions to bytes and back (docs/wire.md).
//!
//! A message is led by an i32 sentinel; all fields are little-endian. -5 and -20 to -25 are those of the pipeline that this
//! one continues; what that one lacks has sentinels of its own, from -26 down. Whoever reads -2, -3, -4, -6, -7 or -8 here has been
//! sent a message of another program, and it is refused as unknown.
//!
//! **Invariants**: no input or output, no clock, nothing random. `decode(encode(m)) == m`, by bits. A decoder refuses by
//! name and never panics, whatever it is given, and takes no more memory than a message's own length asks for.

mod assign;
mod bytes;
mod device;
mod error;
mod fragment;
mod hash;
mod hop;
mod join;
#[cfg(test)]
mod tests;
mod told;

pub use assign::{Assign, check_repo, check_revision};
pub use device::{About, Hello, Member, claim};
pub use error::WireError;
pub use fragment::{FRAGMENT_BYTES, FRAGMENT_HEADER, MAX_UNFINISHED, Reassembly, fragments};
pub use hash::{act_hash, model_hash, row_digest};
pub use hop::{ACT_HEADER, Form, Hop, Next, ROWS_HEADER};
pub use join::{Join, Purpose};
pub use told::{Fault, Onward, Ready, Trace};

use bytes::{Reader, Writer};
use device::{encode_roster, take_roster};
use told::encode_beat;

/// Fragment of a longer message.
pub const FRAGMENT: i32 = -5;
/// Hello.
pub const HELLO: i32 = -20;
/// Assignment.
pub const ASSIGN: i32 = -21;
/// Ready.
pub const READY: i32 = -22;
/// Activation hop.
pub const ACT: i32 = -23;
/// Token emitted.
pub const TOKEN: i32 = -24;
/// Run finished.
pub const FINISHED: i32 = -25;
/// Join.
pub const JOIN: i32 = -26;
/// About a device: memory, addresses, signature.
pub const ABOUT: i32 = -27;
/// Roster.
pub const ROSTER: i32 = -28;
/// Cached rows.
pub const ROWS: i32 = -29;
/// Trace of a hop.
pub const TRACE: i32 = -30;
/// Error by name.
pub const ERROR: i32 = -31;
/// Cancel a sequence.
pub const CANCEL: i32 = -32;
/// Audit a sequence.
pub const AUDIT: i32 = -33;
/// Heartbeat.
pub const BEAT: i32 = -34;
/// Replay another stage's hops.
pub const REPLAY: i32 = -35;

/// Version of the wire, in every join: another one is refused.
pub const VERSION: u16 = 2;
/// Longest message, in bytes.
pub const MAX_MESSAGE: usize = 64 << 20;

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// -20.
    Hello(Hello),
    /// -21.
    Assign(Box<Assign>),
    /// -22.
    Ready(Ready),
    /// -23, -29.
    Hop(Hop),
    /// -24.
    Token {
        /// Sequence.
        sequence: u32,
        /// Index of the token among those written.
        index: u32,
        /// Token.
        token: u32,
    },
    /// -25: a sequence has ended, or all of the run.
    Finished {
        /// Sequence; none: all.
        sequence: Option<u32>,
    },
    /// -26.
    Join(Join),
    /// -27.
    About(About),
    /// -28.
    Roster(Vec<Member>),
    /// -30.
    Trace(Trace),
    /// -31.
    Error(Fault),
    /// -32.
    Cancel {
        /// Sequence.
        sequence: u32,
    },
    /// -33: send the head copies of this sequence's hops as they come in.
    Audit {
        /// Sequence.
        sequence: u32,
    },
    /// Take the layers of another stage of the plan, once the answers are written, and say what it makes of the hops that
    /// follow: copies of what came to it.
    Replay {
        /// The assignment's number.
        epoch: u32,
        /// The stage.
        stage: u32,
    },
    /// -34.
    Beat {
        /// The assignment's number.
        epoch: u32,
        /// Laps finished.
        laps: u64,
        /// Milliseconds since the work at hand began; 0 when idle.
        busy_ms: u32,
        /// How the next stage is reached; none where that is the head, or nobody yet.
        onward: Option<Onward>,
    },
}

impl Message {
    /// The message as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Message::Hello(hello) => hello.encode(),
            Message::Assign(assign) => assign.encode(),
            Message::Ready(ready) => ready.encode(),
            Message::Hop(hop) => hop.encode(),
            Message::Token { sequence, index, token } => {
                let mut out = Writer::new(TOKEN);
                out.u32(*sequence).u32(*index).u32(*token);
                out.0
            }
            Message::Finished { sequence } => {
                let mut out = Writer::new(FINISHED);
                out.i32(or_all(*sequence));
                out.0
            }
            Message::Join(join) => join.encode(),
            Message::About(about) => about.encode(),
            Message::Roster(members) => encode_roster(members),
            Message::Trace(trace) => trace.encode(),
            Message::Error(fault) => fault.encode(),
            Message::Cancel { sequence } => {
                let mut out = Writer::new(CANCEL);
                out.u32(*sequence);
                out.0
            }
            Message::Audit { sequence } => {
                let mut out = Writer::new(AUDIT);
                out.u32(*sequence);
                out.0
            }
            Message::Replay { epoch, stage } => {
                let mut out = Writer::new(REPLAY);
                out.u32(*epoch).u32(*stage);
                out.0
            }
            Message::Beat { epoch, laps, busy_ms, onward } => encode_beat(*epoch, *laps, *busy_ms, *onward),
        }
    }

    /// A whole message from its bytes.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let (first, rest) = bytes.split_first_chunk::<4>().ok_or(WireError::NoSentinel { given: bytes.len() })?;
        let sentinel = i32::from_le_bytes(*first);
        let name = name(sentinel).ok_or(WireError::Unknown { given: sentinel })?;
        let mut r = Reader::new(name, rest);
        r.within("length", bytes.len(), MAX_MESSAGE)?;
        let message = match sentinel {
            FRAGMENT => return Err(WireError::Nested),
            ASSIGN => return Assign::decode(r).map(|assign| Message::Assign(Box::new(assign))),
            ACT | ROWS => return Hop::decode(sentinel, r).map(Message::Hop),
            HELLO => Message::Hello(Hello::take(&mut r)?),
            READY => Message::Ready(Ready::take(&mut r)?),
            TOKEN => Message::Token { sequence: r.u32("seq")?, index: r.u32("tokenIdx")?, token: r.u32("token")? },
            FINISHED => Message::Finished { sequence: all_or(&mut r, name)? },
            JOIN => Message::Join(Join::take(&mut r)?),
            ABOUT => Message::About(About::take(&mut r)?),
            ROSTER => Message::Roster(take_roster(&mut r)?),
            TRACE => Message::Trace(Trace::take(&mut r)?),
            ERROR => Message::Error(Fault::take(&mut r)?),
            CANCEL => Message::Cancel { sequence: r.u32("seq")? },
            AUDIT => Message::Audit { sequence: r.u32("seq")? },
            BEAT => Message::Beat {
                epoch: r.u32("epoch")?,
                laps: r.u64("laps")?,
                busy_ms: r.u32("busy")?,
                onward: Onward::take(&mut r)?,
            },
            REPLAY => Message::Replay { epoch: r.u32("epoch")?, stage: r.u32("stage")? },
            given => return Err(WireError::Unknown { given }),
        };
        r.end()?;
        Ok(message)
    }
}

/// What a sentinel's message is called; none for a sentinel that is not of this wire.
#[must_use]
pub fn name(sentinel: i32) -> Option<&'static str> {
    Some(match sentinel {
        FRAGMENT => "fragment",
        HELLO => "hello",
        ASSIGN => "assignment",
        READY => "ready",
        ACT => "activation",
        TOKEN => "token",
        FINISHED => "finished",
        JOIN => "join",
        ABOUT => "about",
        ROSTER => "roster",
        ROWS => "cached rows",
        TRACE => "trace",
        ERROR => "error",
        CANCEL => "cancel",
        AUDIT => "audit",
        BEAT => "beat",
        REPLAY => "replay",
        _ => return None,
    })
}

/// A sequence as a message has it; all of them is -1.
fn or_all(sequence: Option<u32>) -> i32 {
    sequence.map_or(-1, |sequence| i32::try_from(sequence).unwrap_or(i32::MAX))
}

fn all_or(r: &mut Reader<'_>, message: &'static str) -> Result<Option<u32>, WireError> {
    match r.i32("seq")? {
        -1 => Ok(None),
        given => u32::try_from(given).map(Some).map_err(|_| WireError::Negative { message, field: "seq", given }),
    }
}
