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
mod fragment;
mod hash;
mod hop;
#[cfg(test)]
mod tests;

pub use assign::{Assign, check_repo, check_revision};
pub use fragment::{FRAGMENT_BYTES, FRAGMENT_HEADER, MAX_UNFINISHED, Reassembly, fragments};
pub use hash::{act_hash, model_hash, row_digest};
pub use hop::{ACT_HEADER, Form, Hop, Next, ROWS_HEADER};

use super::plan::{Key, MAX_DEVICES, PlanError};
use bytes::{Reader, Writer};
use std::ops::Range;

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
pub const VERSION: u16 = 1;
/// Longest message, in bytes.
pub const MAX_MESSAGE: usize = 64 << 20;

const BACKEND_CAP: usize = 64;
const ADDRESS_CAP: usize = 64;
const ADDRESSES: usize = 32;
const CODE_CAP: usize = 64;
const TEXT_CAP: usize = 4096;
/// Rows of a trace.
const TRACE_ROWS: usize = 1 << 20;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WireError {
    /// No room for a sentinel.
    #[error("{given} bytes are no message: it is led by a sentinel of 4 bytes")]
    NoSentinel {
        /// Bytes.
        given: usize,
    },
    /// A sentinel that is not of this wire.
    #[error("a message with the sentinel {given}, which is none of this pipeline's: another program is speaking")]
    Unknown {
        /// The sentinel.
        given: i32,
    },
    /// A fragment where a whole message has to stand.
    #[error("a fragment inside a message")]
    Nested,
    /// The message ends too early.
    #[error("{message}: ends inside '{field}'")]
    Truncated {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
    },
    /// The message goes on after its end.
    #[error("{message}: {given} bytes follow its end")]
    Trailing {
        /// Message.
        message: &'static str,
        /// Bytes.
        given: usize,
    },
    /// A figure over its limit.
    #[error("{message}: '{field}' is {given}, at most {limit} is taken")]
    Limit {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// Figure.
        given: u64,
        /// Limit.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{message}: '{field}' is not UTF-8")]
    Text {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
    },
    /// Values that are no whole number.
    #[error("{message}: '{field}' has {given} bytes, which are no whole values of 4")]
    Ragged {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// Bytes.
        given: usize,
    },
    /// A number that counts is negative.
    #[error("{message}: '{field}' is {given}")]
    Negative {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// Value.
        given: i32,
    },
    /// A value that the field does not have.
    #[error("{message}: '{field}' is {given}")]
    Value {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// Value.
        given: u64,
    },
    /// An address that names nobody.
    #[error("{message}: 'nextIndex' is {given}, neither a stage behind the head, nor RETURN (-1), nor a copy (-2)")]
    Address {
        /// Message.
        message: &'static str,
        /// The address.
        given: i32,
    },
    /// The payload did not arrive intact.
    #[error(
        "{message} of sequence {sequence}, lap {lap}: corrupted on the way, its hash says {said:08x} and its bytes {computed:08x}"
    )]
    Corrupt {
        /// Message.
        message: &'static str,
        /// Sequence.
        sequence: u32,
        /// Lap.
        lap: u32,
        /// Hash as sent.
        said: u32,
        /// Hash of the bytes.
        computed: u32,
    },
    /// A fragment that cannot be.
    #[error("fragment {index} of {total} of message {id}: {what}")]
    Fragment {
        /// Message's number.
        id: u32,
        /// Index.
        index: u64,
        /// Fragments of the message.
        total: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A repository id that is not `owner/name`.
    #[error("repository '{given}' is not owner/name of letters, digits, '-', '_' and '.'")]
    Repo {
        /// As given.
        given: String,
    },
    /// A revision that could lead elsewhere.
    #[error("revision '{given}' is not a plain name of letters, digits, '-', '_' and '.'")]
    Revision {
        /// As given.
        given: String,
    },
    /// The plan is none.
    #[error("the plan: {0}")]
    Plan(#[from] PlanError),
    /// The range that the device is told is not the plan's.
    #[error("stage {stage} is told layers {given:?}, the plan says {planned:?}")]
    OwnRange {
        /// Stage.
        stage: u32,
        /// As told.
        given: Range<u32>,
        /// The plan's; none when there is no such stage.
        planned: Option<Range<u32>>,
    },
}

/// What a device says of itself (-20).
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// Products of matrices a second, measured.
    pub capacity: f64,
    /// The kernel probe's hash.
    pub probe: [u8; 32],
    /// What computes, by name.
    pub backend: String,
}

/// The rest of what a device says of itself (-27).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Bytes that it lends.
    pub memory: u64,
    /// Where other stages reach it.
    pub addresses: Vec<String>,
    /// Its signature over [`claim`].
    pub signature: [u8; 64],
}

/// One device of the roster: what it said to the head, with its own signature.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its key.
    pub key: Key,
    /// Its hello.
    pub hello: Hello,
    /// The rest.
    pub about: About,
}

/// What a device signs: its figures, for this head.
#[must_use]
pub fn claim(head: &Key, key: &Key, hello: &Hello, memory: u64) -> Vec<u8> {
    let mut out = Writer(b"wordline device".to_vec());
    out.bytes(head).bytes(key).f64(hello.capacity).bytes(&hello.probe).text(&hello.backend, BACKEND_CAP).u64(memory);
    out.0
}

/// What a peer wants when it opens a link (-26).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// Version of the wire.
    pub version: u16,
    /// What for.
    pub purpose: Purpose,
    /// Proof that the peer has the ticket's secret; zeros where none is needed.
    pub proof: [u8; 32],
}

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To take part.
    Member,
    /// To send hops of this assignment.
    Hops {
        /// The assignment's number.
        epoch: u32,
    },
}

/// A stage has loaded its layers (-22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The assignment's number.
    pub epoch: u32,
    /// Stage.
    pub stage: u32,
    /// SHA-256 of the stage's program file.
    pub program: [u8; 32],
    /// SHA-256 over the digests of its tensors.
    pub image: [u8; 32],
    /// Bytes read for them.
    pub bytes: u64,
    /// Reads made for them.
    pub requests: u32,
}

/// What a stage made of a hop (-30).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Sequence.
    pub sequence: u32,
    /// Lap.
    pub lap: u32,
    /// Stage.
    pub stage: u32,
    /// First position.
    pub position: u32,
    /// Microseconds of computing.
    pub compute_us: u32,
    /// Microseconds between arrival and computing.
    pub queue_us: u32,
    /// Each row's digest as it came and as it went.
    pub rows: Vec<(u64, u64)>,
}

/// An error by name (-31).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The assignment's number.
    pub epoch: u32,
    /// Sequence that it is about; none: all.
    pub sequence: Option<u32>,
    /// Name, for programs.
    pub code: String,
    /// What happened, for people.
    pub text: String,
}

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
    },
}

impl Message {
    /// The message as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Message::Hello(hello) => {
                let mut out = Writer::new(HELLO);
                put_hello(&mut out, hello);
                out.0
            }
            Message::Assign(assign) => assign.encode(),
            Message::Ready(ready) => {
                let mut out = Writer::new(READY);
                out.u32(ready.epoch).u32(ready.stage).bytes(&ready.program).bytes(&ready.image);
                out.u64(ready.bytes).u32(ready.requests);
                out.0
            }
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
            Message::Join(join) => {
                let mut out = Writer::new(JOIN);
                let (purpose, epoch) = match join.purpose {
                    Purpose::Member => (0, 0),
                    Purpose::Hops { epoch } => (1, epoch),
                };
                out.u16(join.version).u8(purpose).u32(epoch).bytes(&join.proof);
                out.0
            }
            Message::About(about) => {
                let mut out = Writer::new(ABOUT);
                put_about(&mut out, about);
                out.0
            }
            Message::Roster(members) => {
                let mut out = Writer::new(ROSTER);
                out.u16(members.len() as u16);
                for member in members {
                    out.bytes(&member.key);
                    put_hello(&mut out, &member.hello);
                    put_about(&mut out, &member.about);
                }
                out.0
            }
            Message::Trace(trace) => {
                let mut out = Writer::new(TRACE);
                out.u32(trace.sequence).u32(trace.lap).u32(trace.stage).u32(trace.position);
                out.u32(trace.compute_us).u32(trace.queue_us).u32(trace.rows.len() as u32);
                trace.rows.iter().for_each(|(came, went)| {
                    out.u64(*came).u64(*went);
                });
                out.0
            }
            Message::Error(fault) => {
                let mut out = Writer::new(ERROR);
                out.u32(fault.epoch).i32(or_all(fault.sequence));
                out.text(&fault.code, CODE_CAP).text(&fault.text, TEXT_CAP);
                out.0
            }
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
            Message::Beat { epoch, laps, busy_ms } => {
                let mut out = Writer::new(BEAT);
                out.u32(*epoch).u64(*laps).u32(*busy_ms);
                out.0
            }
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
            HELLO => Message::Hello(hello(&mut r)?),
            READY => Message::Ready(Ready {
                epoch: r.u32("epoch")?,
                stage: r.u32("stage")?,
                program: r.array("program")?,
                image: r.array("image")?,
                bytes: r.u64("bytes")?,
                requests: r.u32("requests")?,
            }),
            TOKEN => Message::Token { sequence: r.u32("seq")?, index: r.u32("tokenIdx")?, token: r.u32("token")? },
            FINISHED => Message::Finished { sequence: all_or(&mut r, name)? },
            JOIN => Message::Join(join(&mut r)?),
            ABOUT => Message::About(about(&mut r)?),
            ROSTER => {
                let count = r.count("members", MAX_DEVICES, 32 + 44 + 74)?;
                let member = |_| Ok(Member { key: r.array("key")?, hello: hello(&mut r)?, about: about(&mut r)? });
                Message::Roster((0..count).map(member).collect::<Result<_, WireError>>()?)
            }
            TRACE => Message::Trace(trace(&mut r)?),
            ERROR => Message::Error(Fault {
                epoch: r.u32("epoch")?,
                sequence: all_or(&mut r, name)?,
                code: r.text("code", CODE_CAP)?,
                text: r.text("text", TEXT_CAP)?,
            }),
            CANCEL => Message::Cancel { sequence: r.u32("seq")? },
            AUDIT => Message::Audit { sequence: r.u32("seq")? },
            BEAT => Message::Beat { epoch: r.u32("epoch")?, laps: r.u64("laps")?, busy_ms: r.u32("busy")? },
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

fn or_all(sequence: Option<u32>) -> i32 {
    sequence.map_or(-1, |sequence| i32::try_from(sequence).unwrap_or(i32::MAX))
}

fn all_or(r: &mut Reader<'_>, message: &'static str) -> Result<Option<u32>, WireError> {
    match r.i32("seq")? {
        -1 => Ok(None),
        given => u32::try_from(given).map(Some).map_err(|_| WireError::Negative { message, field: "seq", given }),
    }
}

fn put_hello(out: &mut Writer, hello: &Hello) {
    out.f64(hello.capacity).bytes(&hello.probe).text(&hello.backend, BACKEND_CAP);
}

fn hello(r: &mut Reader<'_>) -> Result<Hello, WireError> {
    let (capacity, probe) = (r.f64("capacity")?, r.array("probe")?);
    Ok(Hello { capacity, probe, backend: r.text("backend", BACKEND_CAP)? })
}

fn put_about(out: &mut Writer, about: &About) {
    let addresses = &about.addresses[..about.addresses.len().min(ADDRESSES)];
    out.u64(about.memory).u16(addresses.len() as u16);
    addresses.iter().for_each(|address| {
        out.text(address, ADDRESS_CAP);
    });
    out.bytes(&about.signature);
}

fn about(r: &mut Reader<'_>) -> Result<About, WireError> {
    let memory = r.u64("memory")?;
    let count = r.count("addresses", ADDRESSES, 4)?;
    let addresses = (0..count).map(|_| r.text("address", ADDRESS_CAP)).collect::<Result<_, _>>()?;
    Ok(About { memory, addresses, signature: r.array("signature")? })
}

fn join(r: &mut Reader<'_>) -> Result<Join, WireError> {
    let (version, purpose, epoch) = (r.u16("version")?, r.u8("purpose")?, r.u32("epoch")?);
    let purpose = match (purpose, epoch) {
        (0, 0) => Purpose::Member,
        (0, _) => return Err(WireError::Value { message: "join", field: "epoch", given: epoch.into() }),
        (1, epoch) => Purpose::Hops { epoch },
        (given, _) => return Err(WireError::Value { message: "join", field: "purpose", given: given.into() }),
    };
    Ok(Join { version, purpose, proof: r.array("proof")? })
}

fn trace(r: &mut Reader<'_>) -> Result<Trace, WireError> {
    let (sequence, lap, stage, position) = (r.u32("seq")?, r.u32("tokenIdx")?, r.u32("stage")?, r.u32("position")?);
    let (compute_us, queue_us) = (r.u32("compute")?, r.u32("queue")?);
    let count = r.u32("rows")? as usize;
    r.within("rows", count, TRACE_ROWS)?;
    let mut digests = Reader::new("trace", r.take("digests", 16 * count)?);
    let rows =
        (0..count).map(|_| Ok((digests.u64("came")?, digests.u64("went")?))).collect::<Result<_, WireError>>()?;
    Ok(Trace { sequence, lap, stage, position, compute_us, queue_us, rows })
}
