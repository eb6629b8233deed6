//! `Hop`: hidden rows on their way to a stage, or back to the head.
//!
//! Two forms. The stateless one (-23) is an activation of the last T tokens: whoever takes it begins the sequence anew. The
//! cached one (-29) appends its rows to what the stages keep of the sequence.

use super::bytes::{Reader, Writer};
use super::hash::act_hash;
use super::{ACT, ROWS, WireError};

/// Bytes of an activation before its hidden values.
pub const ACT_HEADER: usize = 24;
/// Bytes of cached rows before their hidden values.
pub const ROWS_HEADER: usize = 32;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The stage of this number runs its layers.
    Stage(u32),
    /// The head reads out. An address of its own and never a stage: the head is stage 0 too, and told so it would run
    /// its layers again and no lap would ever close.
    Return,
    /// The head keeps a copy for its audit; nobody runs anything.
    Copy,
}

impl Next {
    /// The address as a message has it: a stage's number, -1 for RETURN, -2 for a copy.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Next::Stage(stage) => i32::try_from(stage).unwrap_or(i32::MAX),
            Next::Return => -1,
            Next::Copy => -2,
        }
    }

    fn of(message: &'static str, code: i32) -> Result<Self, WireError> {
        match code {
            -1 => Ok(Next::Return),
            -2 => Ok(Next::Copy),
            // Stage 0 is the head: it takes what RETURN says, nothing else.
            1.. => Ok(Next::Stage(code.unsigned_abs())),
            given => Err(WireError::Address { message, given }),
        }
    }
}

/// Which form a hop has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// -23: the sequence begins anew with these rows.
    Anew,
    /// -29: the rows follow the `position` rows that the sequence has.
    Cached {
        /// Rows that the sequence has before.
        position: u32,
        /// Rows that the head wants back, the last ones.
        keep: u32,
    },
}

/// Hidden rows of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Hop {
    /// Sequence.
    pub sequence: u32,
    /// Lap of the sequence, from 0.
    pub lap: u32,
    /// Whose turn it is.
    pub next: Next,
    /// The model that the rows belong to.
    pub model: u32,
    /// Form.
    pub form: Form,
    /// Rows, `[rows, hidden]`.
    pub hidden: Vec<f32>,
}

impl Hop {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (sentinel, header) = match self.form {
            Form::Anew => (ACT, ACT_HEADER),
            Form::Cached { .. } => (ROWS, ROWS_HEADER),
        };
        let mut out = Writer::new(sentinel);
        out.0.reserve(header + 4 * self.hidden.len());
        out.u32(self.sequence).u32(self.lap).i32(self.next.code()).u32(0).u32(self.model);
        if let Form::Cached { position, keep } = self.form {
            out.u32(position).u32(keep);
        }
        out.values(&self.hidden);
        let hash = act_hash(&out.0[header..]);
        out.0[16..20].copy_from_slice(&hash.to_le_bytes());
        out.0
    }

    pub(super) fn decode(sentinel: i32, mut reader: Reader<'_>) -> Result<Self, WireError> {
        let message = if sentinel == ACT { "activation" } else { "cached rows" };
        let number =
            |given: i32, field| u32::try_from(given).map_err(|_| WireError::Negative { message, field, given });
        let sequence = number(reader.i32("seq")?, "seq")?;
        let lap = number(reader.i32("tokenIdx")?, "tokenIdx")?;
        let next = Next::of(message, reader.i32("nextIndex")?)?;
        let (hash, model) = (reader.u32("actHash")?, reader.u32("modelHash")?);
        let form = if sentinel == ACT {
            Form::Anew
        } else {
            Form::Cached { position: reader.u32("position")?, keep: reader.u32("keep")? }
        };
        let payload = reader.rest();
        let computed = act_hash(payload);
        if computed != hash {
            return Err(WireError::Corrupt { message, sequence, lap, said: hash, computed });
        }
        let hidden = Reader::new(message, payload).values("hidden")?;
        Ok(Self { sequence, lap, next, model, form, hidden })
    }
}
