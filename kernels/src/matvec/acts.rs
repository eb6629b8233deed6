//! A step's rows quantised for the array: made once a command, read by every tile.

use crate::cpu::matvec::RowOut;
use crate::format::{BLOCK, Limbs, QuantError};
use crate::gate::Units;

/// Why rows cannot be quantised.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ActError {
    /// The values do not hold the rows.
    #[error("{rows} rows of {cols} at stride {stride} need {need} values, {given} are given")]
    Values {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Elements from one row to the next.
        stride: usize,
        /// Values needed.
        need: usize,
        /// Values given.
        given: usize,
    },
    /// A block has no int8 form.
    #[error(transparent)]
    Quant(#[from] QuantError),
}

/// Quantised rows `[rows, cols]`: per block of 32 columns one power-of-two scale and one or two int8 limbs.
///
/// The buffer is reused from command to command. Beside the limbs it holds what the forms want: both limbs joined in
/// one i16 in the order in which a tile's columns are multiplied, and the correction of the matrix's bias of 128.
#[derive(Clone, Debug, Default)]
pub struct Acts {
    rows: usize,
    cols: usize,
    blocks: usize,
    limbs: usize,
    /// `[rows][blocks][limbs, high first][32]`.
    q8: Vec<i8>,
    /// `[rows][blocks][8 quads][k, k+2, k+1, k+3]`: the limbs joined, 256 times the high one and once the low one.
    q16: Vec<i16>,
    /// `[rows][blocks][limbs]`: -128 times the sum of the limb.
    fix: Vec<i32>,
    /// The same of a block's first 16 values.
    half: Vec<i32>,
    /// `[rows][blocks]`: `2^e`.
    scale: Vec<f32>,
}

impl Acts {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Quantised rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Quantise `rows` rows of `cols` values, each starting `stride` values after the one before.
    ///
    /// # Errors
    /// `values` is too short, or a block has no int8 form: the error's row counts from the first of these rows. The
    /// buffer's content is unspecified then.
    pub fn quantise(
        &mut self,
        units: &Units,
        values: &[f32],
        stride: usize,
        rows: usize,
        cols: usize,
        limbs: Limbs,
    ) -> Result<(), ActError> {
        self.shape(rows, cols, limbs).quantise(units, values, stride)
    }

    /// Make room for `rows` x `cols`; the rows handed out can be split among threads and quantised there.
    pub fn shape(&mut self, rows: usize, cols: usize, limbs: Limbs) -> ActRows<'_> {
        (self.rows, self.cols, self.blocks, self.limbs) = (rows, cols, cols.div_ceil(BLOCK), limbs.count());
        let n = rows * self.blocks;
        self.q8.resize(n * self.limbs * BLOCK, 0);
        self.q16.resize(n * BLOCK, 0);
        self.fix.resize(n * self.limbs, 0);
        self.half.resize(n * self.limbs, 0);
        self.scale.resize(n, 0.0);
        ActRows {
            first: 0,
            rows,
            cols,
            limbs,
            out: RowOut {
                q8: &mut self.q8,
                q16: &mut self.q16,
                fix: &mut self.fix,
                half: &mut self.half,
                scale: &mut self.scale,
            },
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn limbs(&self) -> usize {
        self.limbs
    }

    pub(crate) fn q8(&self) -> &[i8] {
        &self.q8
    }

    pub(crate) fn q16(&self) -> &[i16] {
        &self.q16
    }

    pub(crate) fn fix(&self) -> &[i32] {
        &self.fix
    }

    pub(crate) fn half(&self) -> &[i32] {
        &self.half
    }

    pub(crate) fn scale(&self) -> &[f32] {
        &self.scale
    }

    /// Rows given by their integers, for tests of operands that the quantiser never makes:
    /// `limbs[(row * blocks + block) * count + limb]`, high limb first, and a scale a block.
    pub(crate) fn from_limbs(rows: usize, cols: usize, count: usize, limbs: &[[i8; BLOCK]], scale: &[f32]) -> Self {
        let mut acts = Self { rows, cols, blocks: cols.div_ceil(BLOCK), limbs: count, ..Self::default() };
        for limbs in limbs.chunks_exact(count) {
            for limb in limbs {
                let (fix, half) = crate::cpu::matvec::fixes_of(limb);
                acts.fix.push(fix);
                acts.half.push(half);
                acts.q8.extend(limb);
            }
            let mut q16 = [0; BLOCK];
            crate::cpu::matvec::widen(limbs, &mut q16);
            acts.q16.extend(q16);
        }
        acts.scale.extend(scale);
        acts
    }
}

/// Rows of an [`Acts`] still to be quantised.
#[derive(Debug)]
pub struct ActRows<'a> {
    first: usize,
    rows: usize,
    cols: usize,
    limbs: Limbs,
    out: RowOut<'a>,
}

impl<'a> ActRows<'a> {
    /// How many.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The first `rows` rows and the rest.
    #[must_use]
    pub fn split_at(self, rows: usize) -> (Self, Self) {
        let rows = rows.min(self.rows);
        let (a, b) = self.out.split_at(rows * self.cols.div_ceil(BLOCK), self.limbs.count());
        let head = Self { rows, out: a, ..self };
        let (cols, limbs) = (head.cols, head.limbs);
        let tail = Self { first: self.first + rows, rows: self.rows - rows, cols, limbs, out: b };
        (head, tail)
    }

    /// Number of the first of them among the rows of the [`Acts`].
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// Take the first `rows` rows out.
    #[must_use]
    pub fn take(&mut self, rows: usize) -> Self {
        let out = RowOut { q8: &mut [], q16: &mut [], fix: &mut [], half: &mut [], scale: &mut [] };
        let none = Self { first: self.first, rows: 0, cols: self.cols, limbs: self.limbs, out };
        let (head, tail) = std::mem::replace(self, none).split_at(rows);
        *self = tail;
        head
    }

    /// Space of all of them, one row after the other.
    pub(crate) fn all(&mut self) -> &mut RowOut<'a> {
        &mut self.out
    }

    pub(crate) fn space(&mut self, row: usize) -> RowOut<'_> {
        self.out.row(row, self.cols.div_ceil(BLOCK), self.limbs.count())
    }

    /// Quantise them; `values` starts at the first of these rows.
    ///
    /// # Errors
    /// As [`Acts::quantise`].
    pub fn quantise(mut self, units: &Units, values: &[f32], stride: usize) -> Result<(), ActError> {
        let (rows, cols) = (self.rows, self.cols);
        if rows == 0 {
            return Ok(());
        }
        let need = (rows - 1).saturating_mul(stride).saturating_add(cols);
        if values.len() < need {
            return Err(ActError::Values { rows, cols, stride, need, given: values.len() });
        }
        for row in 0..rows {
            let values = &values[row * stride..][..cols];
            let first = self.first;
            let place = |(block, cause)| QuantError { row: first + row, block, cause };
            units.array().quantise(values, self.limbs, &mut self.space(row)).map_err(place)?;
        }
        Ok(())
    }
}
