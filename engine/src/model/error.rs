//! `ModelError` and `StepError`: why there is no engine, and why a step was refused or failed.

use super::SeqId;
use crate::image::ImageError;
use crate::sequencer::WordsError;
use crate::source::SourceError;
use crate::units::UnitError;
use wordline_ir::LayerId;
use wordline_kernels::attend::CacheError;
use wordline_kernels::rope::RecipeError;

/// Why an engine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The words are no sound program.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// A weight could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The weight image does not serve the program.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A rotary recipe gives no table.
    #[error(transparent)]
    Rope(#[from] RecipeError),
    /// A layer's cache has no layout.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The kernels have no form of the program's numerics.
    #[error("the units do not compute with {given} accumulator lanes; 4, 8, 16 and 32 exist")]
    Lanes {
        /// Lanes of the program's numerics.
        given: u8,
    },
    /// The capacity is no capacity.
    #[error("{what} is {given}; it must be at least 1 and at most {limit}")]
    Capacity {
        /// Which figure.
        what: &'static str,
        /// Given.
        given: usize,
        /// Largest allowed.
        limit: usize,
    },
}

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
