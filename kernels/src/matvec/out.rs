//! The part of an output that one thread may write: a run of tiles, every row of the step.

use super::{MatrixLayout, TILE_ROWS};
use std::marker::PhantomData;
use std::ops::Range;

/// Why an output cannot take a call's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutError {
    /// A row of results ends past the buffer.
    #[error("row {token} of the output ends at element {end} of {len}")]
    Short {
        /// Token-row.
        token: usize,
        /// One past its last element.
        end: usize,
        /// Elements of the buffer.
        len: usize,
    },
    /// Two rows of results share elements.
    #[error("the output's rows at elements {first} and {second} overlap: each takes {rows} elements")]
    Overlap {
        /// Start of one row.
        first: usize,
        /// Start of the next.
        second: usize,
        /// Matrix rows.
        rows: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Starts<'a> {
    Stride { offset: usize, stride: usize },
    List(&'a [usize]),
}

impl Starts<'_> {
    fn at(&self, token: usize) -> usize {
        match self {
            Starts::Stride { offset, stride } => offset + token * stride,
            Starts::List(list) => list[token],
        }
    }
}

/// Where the results of some tiles go. Element `r` of token-row `t` is `y[start(t) + r]`; two pieces with different
/// tiles never share an element, so pieces may be written by different threads.
#[derive(Debug)]
pub struct OutTiles<'a> {
    y: *mut f32,
    starts: Starts<'a>,
    tokens: usize,
    rows: usize,
    tiles: Range<usize>,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: a piece is the only one that may write its tiles' elements (see `split_at` and `piece`), and f32 is Send.
unsafe impl Send for OutTiles<'_> {}

impl<'a> OutTiles<'a> {
    /// All tiles of a matrix for `tokens` rows; row `t` starts at `offset + t * stride`.
    ///
    /// # Errors
    /// Rows overlap or leave the buffer.
    pub fn new(
        y: &'a mut [f32],
        layout: &MatrixLayout,
        tokens: usize,
        offset: usize,
        stride: usize,
    ) -> Result<Self, OutError> {
        let rows = layout.rows();
        if tokens > 1 && stride < rows {
            return Err(OutError::Overlap { first: offset, second: offset.saturating_add(stride), rows });
        }
        if let Some(token) = tokens.checked_sub(1) {
            let end = token.saturating_mul(stride).saturating_add(offset).saturating_add(rows);
            if end > y.len() {
                return Err(OutError::Short { token, end, len: y.len() });
            }
        }
        let starts = Starts::Stride { offset, stride };
        Ok(Self { y: y.as_mut_ptr(), starts, tokens, rows, tiles: 0..layout.tiles(), buffer: PhantomData })
    }

    /// All tiles of a matrix for a list of rows, each with its own start.
    ///
    /// # Errors
    /// Rows overlap or leave the buffer.
    pub fn at(y: &'a mut [f32], layout: &MatrixLayout, starts: &'a [usize]) -> Result<Self, OutError> {
        let (rows, len) = (layout.rows(), y.len());
        for (token, start) in starts.iter().enumerate() {
            let end = start.saturating_add(rows);
            if end > len {
                return Err(OutError::Short { token, end, len });
            }
        }
        let mut sorted = starts.to_vec();
        sorted.sort_unstable();
        if let Some(w) = sorted.windows(2).find(|w| w[1] - w[0] < rows) {
            return Err(OutError::Overlap { first: w[0], second: w[1], rows });
        }
        let (y, tiles) = (y.as_mut_ptr(), 0..layout.tiles());
        Ok(Self { y, starts: Starts::List(starts), tokens: starts.len(), rows, tiles, buffer: PhantomData })
    }

    /// Tiles before `tile`, and the others.
    #[must_use]
    pub fn split_at(self, tile: usize) -> (Self, Self) {
        let tile = tile.clamp(self.tiles.start, self.tiles.end);
        let head = Self { tiles: self.tiles.start..tile, ..self };
        let tail = Self { tiles: tile..self.tiles.end, ..self };
        (head, tail)
    }

    /// A piece of these tiles, for schedulers that hand tiles out as threads ask for them.
    ///
    /// # Safety
    /// While the piece lives no other piece, and not this value either, writes or reads the results of those tiles.
    #[must_use]
    pub unsafe fn piece(&self, tiles: Range<usize>) -> OutTiles<'a> {
        let end = tiles.end.min(self.tiles.end);
        OutTiles { tiles: tiles.start.clamp(self.tiles.start, end)..end, ..*self }
    }

    /// Tiles to be made.
    #[must_use]
    pub fn tiles(&self) -> Range<usize> {
        self.tiles.clone()
    }

    /// Token-rows.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Rows of the matrix.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Store a tile's results for one token-row; what lies past the matrix's last row is dropped.
    pub(crate) fn write(&mut self, tile: usize, token: usize, values: &[f32; TILE_ROWS]) {
        let (at, n) = self.span(tile, token);
        // SAFETY: `span` lies inside the buffer that the constructors checked, and inside this piece's tiles.
        let out = unsafe { std::slice::from_raw_parts_mut(self.y.add(at), n) };
        // A whole tile is a copy of known length: no call.
        match <&mut [f32; TILE_ROWS]>::try_from(&mut *out) {
            Ok(out) => *out = *values,
            Err(_) => out.copy_from_slice(&values[..n]),
        }
    }

    /// A tile's results for one token-row.
    pub(crate) fn read(&self, tile: usize, token: usize) -> &[f32] {
        let (at, n) = self.span(tile, token);
        // SAFETY: as in `write`; the piece is borrowed, so nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.y.add(at), n) }
    }

    fn span(&self, tile: usize, token: usize) -> (usize, usize) {
        assert!(self.tiles.contains(&tile) && token < self.tokens, "tile {tile}, row {token} is not this piece's");
        let first = tile * TILE_ROWS;
        (self.starts.at(token) + first, TILE_ROWS.min(self.rows - first))
    }
}
