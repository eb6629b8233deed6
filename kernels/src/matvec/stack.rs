//! Stacks of experts: matrices of one shape, one after the other.

use super::layout::{LayoutError, MAX_COLS, Matrix, MatrixLayout};
use crate::format::Weights;

/// Layout of a stack: the same matrix shape for every expert, each starting at a tile of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackLayout {
    experts: usize,
    matrix: MatrixLayout,
}

impl StackLayout {
    /// `experts` int8 matrices of `rows` x `cols` each.
    ///
    /// # Errors
    /// As [`MatrixLayout::new`].
    pub fn new(experts: usize, rows: usize, cols: usize) -> Result<Self, LayoutError> {
        Self::of(Weights::Int8, experts, rows, cols)
    }

    /// The same in another format.
    ///
    /// # Errors
    /// As [`MatrixLayout::new`].
    pub fn of(weights: Weights, experts: usize, rows: usize, cols: usize) -> Result<Self, LayoutError> {
        let matrix = MatrixLayout::of(weights, rows, cols)?;
        if experts == 0 {
            return Err(LayoutError::Empty { rows: 0, cols });
        }
        if matrix.bytes().checked_mul(experts).is_none_or(|b| b > isize::MAX as usize) {
            return Err(LayoutError::TooLarge { rows, cols, limit: MAX_COLS });
        }
        Ok(Self { experts, matrix })
    }

    /// Experts.
    #[must_use]
    pub const fn experts(&self) -> usize {
        self.experts
    }

    /// Layout of one expert's matrix.
    #[must_use]
    pub const fn matrix(&self) -> MatrixLayout {
        self.matrix
    }

    /// Bytes of the stack.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.experts * self.matrix.bytes()
    }

    /// Tiles of the stack; tile `t` is tile `t % matrix().tiles()` of expert `t / matrix().tiles()`.
    #[must_use]
    pub const fn tiles(&self) -> usize {
        self.experts * self.matrix.tiles()
    }
}

/// A stack in its layout.
#[derive(Clone, Copy)]
pub struct Stack<'a> {
    layout: StackLayout,
    bytes: &'a [u8],
}

impl<'a> Stack<'a> {
    /// A stack over packed bytes; as [`Matrix::new`].
    ///
    /// # Errors
    /// [`LayoutError::Bytes`].
    pub fn new(layout: StackLayout, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        if bytes.len() != layout.bytes() {
            return Err(LayoutError::Bytes { given: bytes.len(), expected: layout.bytes() });
        }
        Ok(Self { layout, bytes })
    }

    /// Shape and layout.
    #[must_use]
    pub fn layout(&self) -> StackLayout {
        self.layout
    }

    /// One expert's matrix.
    ///
    /// # Errors
    /// [`LayoutError::Index`].
    pub fn expert(&self, expert: usize) -> Result<Matrix<'a>, LayoutError> {
        if expert >= self.layout.experts {
            return Err(LayoutError::Index { what: "expert", given: expert, limit: self.layout.experts });
        }
        let size = self.layout.matrix.bytes();
        Matrix::new(self.layout.matrix, &self.bytes[expert * size..][..size])
    }
}
