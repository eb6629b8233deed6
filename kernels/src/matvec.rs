//! The array unit: `y = W x` for every token-row of a step while each byte of `W` is read from memory once.
//!
//! A matrix lies in tiles of 16 output rows ([`MatrixLayout`]); a step's rows come quantised in [`Acts`]; [`Matvec`]
//! names the operands of one call and [`OutTiles`] the part of the output that a thread may write.
//!
//! Bits: block `b` of a row adds to lane `b mod L`, ascending, its product with both limbs and both scales rounded once to
//! f32, each addition rounded; then the lanes are halved, `lane[i] += lane[i + s]` for `s = L/2, L/4 … 1`; then the bias
//! is added, rounded once and flushed as any operation of the vector unit is.

mod acts;
mod layout;
mod out;
mod stack;

pub use acts::{ActError, ActRows, Acts};
pub use layout::{LayoutError, Matrix, MatrixLayout, TILE_ROWS};
pub use out::{OutError, OutTiles};
pub use stack::{Stack, StackLayout};

pub(crate) use layout::{BLOCK_BYTES, CODE_BYTES, ZERO, tile_parts};

use crate::cpu::matvec::{ArrayForm, GROUP, Run};
use crate::flush::add;
use crate::format::Lanes;
use crate::gate::Units;

/// Why operands do not fit one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The rows have another width than the matrix.
    #[error("the matrix has {matrix} columns, the quantised rows {acts}")]
    Columns {
        /// Columns of the matrix.
        matrix: usize,
        /// Columns of the quantised rows.
        acts: usize,
    },
    /// The bias has another length than the matrix has rows.
    #[error("the matrix has {rows} rows, the bias {bias} elements")]
    Bias {
        /// Rows of the matrix.
        rows: usize,
        /// Elements of the bias.
        bias: usize,
    },
    /// A picked row does not exist.
    #[error("row {given} of {rows} quantised rows is asked for")]
    Row {
        /// Row asked for.
        given: usize,
        /// Quantised rows.
        rows: usize,
    },
    /// The output is made for another shape.
    #[error("the output takes {out_tokens} rows of {out_rows}, the call makes {tokens} of {rows}")]
    Output {
        /// Token-rows of the output.
        out_tokens: usize,
        /// Matrix rows of the output.
        out_rows: usize,
        /// Token-rows of the call.
        tokens: usize,
        /// Rows of the matrix.
        rows: usize,
    },
}

/// One call of the array unit.
#[derive(Clone, Copy, Debug)]
pub struct Matvec<'a> {
    matrix: Matrix<'a>,
    acts: &'a Acts,
    picked: Option<&'a [usize]>,
    bias: Option<&'a [f32]>,
    lanes: Lanes,
}

impl<'a> Matvec<'a> {
    /// `y[t] = matrix * acts[t] (+ bias)` for every quantised row.
    ///
    /// # Errors
    /// The shapes differ.
    pub fn new(matrix: Matrix<'a>, acts: &'a Acts, bias: Option<&'a [f32]>, lanes: Lanes) -> Result<Self, ShapeError> {
        let layout = matrix.layout();
        if layout.cols() != acts.cols() {
            return Err(ShapeError::Columns { matrix: layout.cols(), acts: acts.cols() });
        }
        if let Some(bias) = bias.filter(|b| b.len() != layout.rows()) {
            return Err(ShapeError::Bias { rows: layout.rows(), bias: bias.len() });
        }
        Ok(Self { matrix, acts, picked: None, bias, lanes })
    }

    /// The same for a list of quantised rows: output `i` is made from row `rows[i]`, as an expert sees only the rows
    /// that picked it.
    ///
    /// # Errors
    /// A row does not exist.
    pub fn picked(mut self, rows: &'a [usize]) -> Result<Self, ShapeError> {
        if let Some(&given) = rows.iter().find(|r| **r >= self.acts.rows()) {
            return Err(ShapeError::Row { given, rows: self.acts.rows() });
        }
        self.picked = Some(rows);
        Ok(self)
    }

    /// Rows of output.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.picked.map_or(self.acts.rows(), <[usize]>::len)
    }

    /// Lanes of the sums.
    #[must_use]
    pub fn lanes(&self) -> Lanes {
        self.lanes
    }

    /// The matrix.
    #[must_use]
    pub fn matrix(&self) -> Matrix<'a> {
        self.matrix
    }

    /// Limbs, lanes, and whether there is a bias.
    pub(crate) fn knobs(&self) -> (usize, usize, bool) {
        (self.acts.limbs(), self.lanes.count(), self.bias.is_some())
    }

    /// Make the output's tiles; returns the bytes of weights that were streamed: each tile counts once whatever the
    /// number of rows.
    ///
    /// # Errors
    /// The output is made for another shape.
    pub fn run(&self, units: &Units, out: &mut OutTiles<'_>) -> Result<u64, ShapeError> {
        self.run_in(units, out, &mut Space::default())
    }

    /// The same in memory that the caller keeps from call to call.
    ///
    /// # Errors
    /// As [`Matvec::run`].
    pub fn run_in(&self, units: &Units, out: &mut OutTiles<'_>, space: &mut Space) -> Result<u64, ShapeError> {
        let (tiles, layout, tokens) = (out.tiles(), self.matrix.layout(), self.tokens());
        if out.tokens() != tokens || out.rows() != layout.rows() {
            let (out_tokens, out_rows) = (out.tokens(), out.rows());
            return Err(ShapeError::Output { out_tokens, out_rows, tokens, rows: layout.rows() });
        }
        let mut group = Group::new(self, units.array(), space);
        for tile in tiles.clone() {
            let mut first = 0;
            while first < tokens {
                let n = GROUP.min(tokens - first);
                for (i, result) in group.results(tile, first, n).iter().enumerate() {
                    out.write(tile, first + i, result);
                }
                first += n;
            }
        }
        Ok(if tokens == 0 { 0 } else { (tiles.len() * layout.tile_bytes()) as u64 })
    }
}

/// Memory that one thread's calls work in, reused from call to call.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// `[rows][lanes]`.
    lanes: Vec<[f32; TILE_ROWS]>,
    /// `[rows]`.
    results: Vec<[f32; TILE_ROWS]>,
}

impl Space {
    /// Make room for calls of this many rows, so that they allocate nothing.
    pub fn reserve(&mut self, rows: usize, lanes: Lanes) {
        let rows = GROUP.min(rows);
        self.lanes.reserve((rows * lanes.count()).saturating_sub(self.lanes.len()));
        self.results.reserve(rows.saturating_sub(self.results.len()));
    }
}

/// A form at work on a call: a tile and at most [`GROUP`] rows at a time.
pub(crate) struct Group<'a> {
    call: &'a Matvec<'a>,
    form: &'a dyn ArrayForm,
    space: &'a mut Space,
}

impl<'a> Group<'a> {
    pub(crate) fn new(call: &'a Matvec<'a>, form: &'a dyn ArrayForm, space: &'a mut Space) -> Self {
        let rows = GROUP.min(call.tokens());
        space.lanes.resize(rows * call.lanes.count(), [0.0; TILE_ROWS]);
        space.results.resize(rows, [0.0; TILE_ROWS]);
        Self { call, form, space }
    }

    /// The 16 outputs of a tile for each of the rows `first .. first + n`, bias included.
    pub(crate) fn results(&mut self, tile: usize, first: usize, n: usize) -> &[[f32; TILE_ROWS]] {
        let Self { call, form, space } = self;
        let lanes = call.lanes.count();
        let (scales, elements) = call.matrix.tile(tile);
        let rows: [usize; GROUP] = std::array::from_fn(|i| match call.picked {
            Some(picked) if i < n => picked[first + i],
            _ => first + i,
        });
        let run = Run {
            elements,
            stride: call.matrix.layout().block_bytes(),
            blocks: call.matrix.layout().blocks(),
            scales,
            acts: call.acts,
            first_act: 0,
            first_lane: 0,
            lanes,
        };
        let results = &mut space.results[..n];
        form.tile(&run, &rows[..n], &mut space.lanes[..n * lanes], results);
        if let Some(bias) = call.bias {
            let bias = &bias[tile * TILE_ROWS..];
            for result in results.iter_mut() {
                result.iter_mut().zip(bias).for_each(|(y, b)| *y = add(*y, *b));
            }
        }
        results
    }
}

#[cfg(test)]
mod tests;
