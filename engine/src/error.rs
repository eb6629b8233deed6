//! `ModelError`: why there is no engine.

use crate::image::ImageError;
use crate::sequencer::WordsError;
use crate::source::SourceError;
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
