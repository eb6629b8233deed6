//! `WireError`: why bytes are no message.

use super::super::plan::PlanError;
use std::ops::Range;

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
