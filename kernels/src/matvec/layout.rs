//! How a matrix lies in memory: tiles of 16 output rows, each one run of bytes, read front to back.
//!
//! An int8 tile ([`Weights::Int8`]) holds, in this order:
//!
//! | bytes | what |
//! |---|---|
//! | 16 | exponent base of each row, i8 |
//! | 16 a block | scale byte of each row: `m - 8` in bits 2:0, exponent above the row's base in bits 7:3 |
//! | to the next multiple of 64 | zero |
//! | 512 a block | elements biased by 128 as u8, `[8 quads][16 rows][4 columns]` |
//!
//! so a 512-bit load holds four columns of every row, and a 32-bit step along the columns multiplies with one broadcast.
//! The bias of 128 makes the elements the unsigned operand of a dot instruction; the activations carry its correction.
//!
//! A 4-bit tile ([`Weights::Code4`], [`Weights::E2m1`]) has blocks of 16 columns; two of them, the halves of one block of
//! 32 columns of the activations, lie together:
//!
//! | bytes | what |
//! |---|---|
//! | 16 | exponent base of each row, i8 |
//! | 32 a block of 32 columns | scale bytes `[2 halves][16 rows]`, as [`crate::format::book`] shapes them |
//! | to the next multiple of 64 | zero |
//! | 256 a block of 32 columns | codes `[4 quads][16 rows][4 columns]`, two a byte |
//!
//! Byte `(16 * quad + row) * 4 + k` holds in its low nibble the code of column `4 * quad + k` and in its high nibble that
//! of column `16 + 4 * quad + k`: a 512-bit load holds four columns of every row twice, once for each half, and a nibble
//! goes through one table of 16 levels into what an int8 tile holds.
//!
//! Rows past the matrix are rows of zeros, columns past it zero.

use crate::cpu::matvec::Scales;
use crate::format::{BLOCK, Cause, EXP_MIN, HALF, QuantError, Weights, quantise_weights};
use std::ops::Range;

/// Output rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Bytes of a block's elements in an int8 tile.
pub(crate) const BLOCK_BYTES: usize = BLOCK * TILE_ROWS;
/// Bytes of 32 columns' codes in a 4-bit tile.
pub(crate) const CODE_BYTES: usize = BLOCK_BYTES / 2;
/// Largest column count: the sum of a row cannot overflow f32.
pub(super) const MAX_COLS: usize = 1 << 20;
/// What zero looks like among the elements.
pub(crate) const ZERO: u8 = 128;

/// Why a matrix has no layout or its bytes are not the layout's.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LayoutError {
    /// No rows, or no columns.
    #[error("a matrix of {rows} x {cols} has no elements")]
    Empty {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
    /// More columns than the array's exactness allows, or more bytes than can be addressed.
    #[error("a matrix of {rows} x {cols} is too large: at most {limit} columns, and its bytes must be addressable")]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Largest column count.
        limit: usize,
    },
    /// The bytes have another length.
    #[error("the matrix takes {expected} bytes, {given} are given")]
    Bytes {
        /// Bytes given.
        given: usize,
        /// Bytes of the layout.
        expected: usize,
    },
    /// A tile, row or expert that the matrix does not have.
    #[error("{what} {given} of {limit} is asked for")]
    Index {
        /// What is counted.
        what: &'static str,
        /// Index asked for.
        given: usize,
        /// How many there are.
        limit: usize,
    },
    /// The values to pack, or the space to unpack into, have another length.
    #[error("{given} values are given for {expected}")]
    Values {
        /// Values given.
        given: usize,
        /// Values of the tile or row.
        expected: usize,
    },
    /// A block of the values has no int8 form.
    #[error(transparent)]
    Quant(#[from] QuantError),
}

/// Shape and byte layout of a matrix (out, in).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixLayout {
    weights: Weights,
    rows: usize,
    cols: usize,
}

impl MatrixLayout {
    /// The layout of an int8 matrix of `rows` outputs and `cols` inputs.
    ///
    /// # Errors
    /// [`LayoutError::Empty`], [`LayoutError::TooLarge`].
    pub fn new(rows: usize, cols: usize) -> Result<Self, LayoutError> {
        Self::of(Weights::Int8, rows, cols)
    }

    /// The same in another format.
    ///
    /// # Errors
    /// As [`MatrixLayout::new`].
    pub fn of(weights: Weights, rows: usize, cols: usize) -> Result<Self, LayoutError> {
        if rows == 0 || cols == 0 {
            return Err(LayoutError::Empty { rows, cols });
        }
        let layout = Self { weights, rows, cols };
        if cols > MAX_COLS || layout.tile_bytes().checked_mul(layout.tiles()).is_none_or(|b| b > isize::MAX as usize) {
            return Err(LayoutError::TooLarge { rows, cols, limit: MAX_COLS });
        }
        Ok(layout)
    }

    /// Format of the elements.
    #[must_use]
    pub const fn weights(&self) -> Weights {
        self.weights
    }

    /// Output rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    #[must_use]
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Blocks of 32 along the columns.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// Tiles.
    #[must_use]
    pub const fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Bytes of one tile, a multiple of 64.
    #[must_use]
    pub const fn tile_bytes(&self) -> usize {
        self.scale_bytes() + self.blocks() * self.block_bytes()
    }

    /// Bytes of the matrix.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.tiles() * self.tile_bytes()
    }

    /// The matrix rows of a tile.
    #[must_use]
    pub fn tile_rows(&self, tile: usize) -> Range<usize> {
        (tile * TILE_ROWS).min(self.rows)..((tile + 1) * TILE_ROWS).min(self.rows)
    }

    /// Bytes of a tile before its elements.
    pub(crate) const fn scale_bytes(&self) -> usize {
        (TILE_ROWS * (1 + self.blocks() * self.scales_a_block())).next_multiple_of(64)
    }

    /// Bytes of the elements of 32 columns.
    pub(crate) const fn block_bytes(&self) -> usize {
        match self.weights {
            Weights::Int8 => BLOCK_BYTES,
            Weights::Code4 | Weights::E2m1 => CODE_BYTES,
        }
    }

    /// Scale bytes of a row's 32 columns.
    const fn scales_a_block(&self) -> usize {
        match self.weights {
            Weights::Int8 => 1,
            Weights::Code4 | Weights::E2m1 => BLOCK / HALF,
        }
    }

    /// Quantise the rows of one tile; `values` holds them one after the other, `out` takes [`Self::tile_bytes`].
    ///
    /// Tiles do not depend on one another, so a matrix may be packed in any order and by many threads.
    ///
    /// # Errors
    /// A length is wrong, or a block has no int8 form: the error's row counts from the matrix's first.
    pub fn pack_tile(&self, tile: usize, values: &[f32], out: &mut [u8]) -> Result<(), LayoutError> {
        if tile >= self.tiles() {
            return Err(LayoutError::Index { what: "tile", given: tile, limit: self.tiles() });
        }
        let rows = self.tile_rows(tile);
        if values.len() != rows.len() * self.cols {
            return Err(LayoutError::Values { given: values.len(), expected: rows.len() * self.cols });
        }
        if out.len() != self.tile_bytes() {
            return Err(LayoutError::Bytes { given: out.len(), expected: self.tile_bytes() });
        }
        self.clear_tile(out);
        for (r, row) in values.chunks_exact(self.cols).enumerate() {
            self.pack_row(r, row, out).map_err(|(block, cause)| QuantError { row: rows.start + r, block, cause })?;
        }
        Ok(())
    }

    /// Make every row of a tile a row of zeros.
    pub(crate) fn clear_tile(&self, out: &mut [u8]) {
        let (scales, elements) = out.split_at_mut(self.scale_bytes());
        scales.fill(0);
        scales[..TILE_ROWS].fill(EXP_MIN as i8 as u8);
        elements.fill(self.weights.book().map_or(ZERO, |book| book.zero() << 4 | book.zero()));
    }

    /// Quantise one row into row `r` of a tile that was cleared.
    pub(crate) fn pack_row(&self, r: usize, row: &[f32], out: &mut [u8]) -> Result<(), (usize, Cause)> {
        let (scales, elements) = out.split_at_mut(self.scale_bytes());
        let (bases, codes) = scales.split_at_mut(TILE_ROWS);
        let base = match self.weights.book() {
            None => quantise_weights(row, |block, code, q| {
                codes[block * TILE_ROWS + r] = code;
                let elements = &mut elements[block * BLOCK_BYTES..][..BLOCK_BYTES];
                for (line, quad) in elements.chunks_exact_mut(TILE_ROWS * 4).zip(q.chunks_exact(4)) {
                    for (byte, q) in line[r * 4..][..4].iter_mut().zip(quad) {
                        *byte = *q as u8 ^ ZERO;
                    }
                }
            })?,
            Some(book) => book
                .quantise(row, |half, code, q| {
                    codes[half * TILE_ROWS + r] = code;
                    let (elements, shift) = (&mut elements[half / 2 * CODE_BYTES..][..CODE_BYTES], half % 2 * 4);
                    for (line, quad) in elements.chunks_exact_mut(TILE_ROWS * 4).zip(q.chunks_exact(4)) {
                        for (byte, q) in line[r * 4..][..4].iter_mut().zip(quad) {
                            *byte = *byte & !(15 << shift) | q << shift;
                        }
                    }
                })
                .map_err(|(half, cause)| (half * HALF / BLOCK, cause))?,
        };
        bases[r] = base as u8;
        Ok(())
    }
}

/// A matrix in its layout.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    layout: MatrixLayout,
    bytes: &'a [u8],
}

impl std::fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matrix").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl<'a> Matrix<'a> {
    /// A matrix over packed bytes. Any bytes of the right length are safe to compute with; a caller that maps them from
    /// a file checks that they are the ones that were packed. Fast when `bytes` starts at a multiple of 64.
    ///
    /// # Errors
    /// [`LayoutError::Bytes`].
    pub fn new(layout: MatrixLayout, bytes: &'a [u8]) -> Result<Self, LayoutError> {
        if bytes.len() != layout.bytes() {
            return Err(LayoutError::Bytes { given: bytes.len(), expected: layout.bytes() });
        }
        Ok(Self { layout, bytes })
    }

    /// Shape and layout.
    #[must_use]
    pub fn layout(&self) -> MatrixLayout {
        self.layout
    }

    /// Its bytes, tile after tile.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bases, scale bytes and elements of a tile.
    pub(crate) fn tile_parts(&self, tile: usize) -> (&'a [u8; TILE_ROWS], &'a [u8], &'a [u8]) {
        let size = self.layout.tile_bytes();
        tile_parts(&self.layout, &self.bytes[tile * size..][..size])
    }

    /// The scales and elements of a tile.
    pub(crate) fn tile(&self, tile: usize) -> (Scales<'a>, &'a [u8]) {
        let (bases, codes, elements) = self.tile_parts(tile);
        let scales = match self.layout.weights.book() {
            None => Scales::Codes { bases, codes },
            Some(book) => Scales::Halves { bases, codes, book },
        };
        (scales, elements)
    }

    /// One row as the array sees it, `q * scale`, exact in f32.
    ///
    /// # Errors
    /// The matrix has no such row, or `out` is not as wide as it.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) -> Result<(), LayoutError> {
        if row >= self.layout.rows {
            return Err(LayoutError::Index { what: "row", given: row, limit: self.layout.rows });
        }
        if out.len() != self.layout.cols {
            return Err(LayoutError::Values { given: out.len(), expected: self.layout.cols });
        }
        let (scales, elements) = self.tile(row / TILE_ROWS);
        let (r, stride) = (row % TILE_ROWS, self.layout.block_bytes());
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let elements = &elements[block * stride..][..stride];
            for (half, out) in out.chunks_mut(HALF).enumerate() {
                let scale = scales.at(block, half, r);
                for (k, y) in out.iter_mut().enumerate() {
                    *y = f32::from(scales.element(elements, half, r, k)) * scale;
                }
            }
        }
        Ok(())
    }
}

/// The bases, scale bytes and elements of one tile's bytes.
pub(crate) fn tile_parts<'a>(layout: &MatrixLayout, tile: &'a [u8]) -> (&'a [u8; TILE_ROWS], &'a [u8], &'a [u8]) {
    let (scales, elements) = tile.split_at(layout.scale_bytes());
    let Some((bases, codes)) = scales.split_first_chunk() else { unreachable!("a tile starts with its bases") };
    (bases, &codes[..layout.blocks() * layout.scales_a_block() * TILE_ROWS], elements)
}
