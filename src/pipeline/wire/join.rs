//! `Join` (-26): what a peer wants when it opens a link, and its proof that it may.

use super::bytes::{Reader, Writer};
use super::{JOIN, WireError};

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

impl Join {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(JOIN);
        let (purpose, epoch) = match self.purpose {
            Purpose::Member => (0, 0),
            Purpose::Hops { epoch } => (1, epoch),
        };
        out.u16(self.version).u8(purpose).u32(epoch).bytes(&self.proof);
        out.0
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (version, purpose, epoch) = (r.u16("version")?, r.u8("purpose")?, r.u32("epoch")?);
        let purpose = match (purpose, epoch) {
            (0, 0) => Purpose::Member,
            (0, _) => return Err(WireError::Value { message: "join", field: "epoch", given: epoch.into() }),
            (1, epoch) => Purpose::Hops { epoch },
            (given, _) => return Err(WireError::Value { message: "join", field: "purpose", given: given.into() }),
        };
        Ok(Self { version, purpose, proof: r.array("proof")? })
    }
}
