//! `StepError`: why a step was refused or failed.

use super::SeqId;
use crate::units::UnitError;
use wordline_ir::LayerId;

/// Why a step was refused or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// The id names no open sequence of this engine.
    #[error("row {row}: {seq:?} is not an open sequence")]
    Unknown {
        /// Row of the step.
        row: usize,
        /// The id.
        seq: SeqId,
    },
    /// An earlier step failed midway and left the sequence's state undefined.
    #[error("row {row}: a step of {seq:?} failed before; reset the sequence first")]
    Poisoned {
        /// Row of the step.
        row: usize,
        /// The id.
        seq: SeqId,
    },
    /// The token has no row in the embedding.
    #[error("row {row}: token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// Row of the step.
        row: usize,
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// The sequence is full.
    #[error("row {row}: position {position} does not fit a context of {ctx}")]
    Context {
        /// Row of the step.
        row: usize,
        /// The row's position.
        position: usize,
        /// Positions a sequence may hold.
        ctx: usize,
    },
    /// One sequence has more rows in the step than its caches take at once.
    #[error("row {row}: more than {limit} rows of one sequence in a step; take them in several steps")]
    Rows {
        /// First row too many.
        row: usize,
        /// Rows that one sequence may have in a step.
        limit: usize,
    },
    /// The step's input has another form than the program takes.
    #[error("{0}")]
    Input(String),
    /// A command failed. The step's sequences are poisoned: their state is undefined until they are reset.
    #[error("command {index}, {mnemonic}{}: {source}", place(*layer))]
    Command {
        /// Index of the command.
        index: usize,
        /// Its mnemonic.
        mnemonic: &'static str,
        /// Its layer.
        layer: LayerId,
        /// What failed.
        source: UnitError,
    },
}

fn place(layer: LayerId) -> String {
    if layer == LayerId::OUTSIDE { String::new() } else { format!(" in layer {}", layer.0) }
}
