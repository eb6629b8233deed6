//! `ArrayRate`: how fast the array unit multiplies when memory holds it up nowhere, the limit of what many rows share.
//!
//! Each thread multiplies a matrix and rows of its own that fit its first cache, again and again. A multiply-accumulate
//! counts once a limb of the rows.

use super::limit::{Limit, LimitError};
use serde::Serialize;
use std::collections::HashMap;
use std::hint::black_box;
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use wordline_engine::team::Team;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gate::Units;
use wordline_kernels::matvec::{
    ActError, Acts, LayoutError, Matrix, MatrixLayout, Matvec, OutError, OutTiles, ShapeError,
};

/// A product of a matrix with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gemm {
    /// Rows of the matrix.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
    /// Rows that share it.
    pub tokens: usize,
}

impl Gemm {
    /// Two tiles of 256 columns, 8 KiB and their scales: it stays in the first cache.
    pub const CACHED: Gemm = Gemm { rows: 32, cols: 256, tokens: 16 };

    /// Multiply-accumulates.
    #[must_use]
    pub fn macs(&self) -> usize {
        self.rows * self.cols * self.tokens
    }
}

/// Long enough that neither starting threads nor a moment in which the machine does something else decides.
const PASS: Duration = Duration::from_millis(8);

/// Why the rate cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum RateError {
    /// The matrix has no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The rows have no int8 form.
    #[error(transparent)]
    Acts(#[from] ActError),
    /// Matrix and rows do not fit each other.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Nor does the output.
    #[error(transparent)]
    Out(#[from] OutError),
}

/// One thread's share.
struct Share {
    matrix: Vec<u8>,
    acts: Acts,
    out: Vec<f32>,
    /// Who made its products of the last pass, and how long that took.
    last: Option<(ThreadId, Duration)>,
}

/// The array unit on operands in the first cache.
pub struct ArrayRate<'a> {
    units: &'a Units,
    gemm: Gemm,
    layout: MatrixLayout,
    lanes: Lanes,
    limbs: usize,
    team: Team,
    shares: Vec<Share>,
    /// Products of each share in a pass.
    repeats: usize,
}

impl std::fmt::Debug for ArrayRate<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrayRate").field("threads", &self.shares.len()).finish_non_exhaustive()
    }
}

impl<'a> ArrayRate<'a> {
    /// The unit with these lanes and rows of these limbs, each of `threads` threads with a product of its own.
    ///
    /// # Errors
    /// The unit refuses the operands.
    pub fn new(units: &'a Units, gemm: Gemm, lanes: Lanes, limbs: Limbs, threads: usize) -> Result<Self, RateError> {
        let Gemm { rows, cols, tokens } = gemm;
        let layout = MatrixLayout::new(rows, cols)?;
        let team = Team::new(threads);
        let values: Vec<f32> = (0..rows.max(tokens) * cols).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let mut shares = Vec::with_capacity(team.members());
        for _ in 0..team.members() {
            // A matrix starts at a multiple of 64 bytes.
            let mut matrix = vec![0; layout.bytes() + 64];
            let start = matrix.as_ptr().align_offset(64);
            for tile in 0..layout.tiles() {
                let of = layout.tile_rows(tile);
                let tile_bytes = layout.tile_bytes();
                let out = &mut matrix[start + tile * tile_bytes..][..tile_bytes];
                layout.pack_tile(tile, &values[of.start * cols..of.end * cols], out)?;
            }
            let mut acts = Acts::new();
            acts.quantise(units, &values[..tokens * cols], cols, tokens, cols, limbs)?;
            let mut share = Share { matrix, acts, out: vec![0.0; tokens * rows], last: None };
            // What is multiplied once is multiplied the same way ever after.
            share.multiply(units, layout, lanes)?;
            shares.push(share);
        }
        let mut rate = Self { units, gemm, layout, lanes, limbs: limbs.count(), team, shares, repeats: 1 };
        // A pass has as many products as its length asks for.
        while rate.timed() < PASS && rate.repeats < 1 << 24 {
            rate.repeats *= 2;
        }
        Ok(rate)
    }

    /// A pass; how long the whole of it took.
    fn timed(&mut self) -> Duration {
        let Self { units, layout, lanes, team, shares, repeats, .. } = self;
        let start = Instant::now();
        team.chunks(usize::MAX, shares, 1, &|_, share| {
            for share in share {
                let start = Instant::now();
                for _ in 0..*repeats {
                    let _ = share.multiply(units, *layout, *lanes);
                }
                share.last = Some((std::thread::current().id(), start.elapsed()));
            }
        });
        start.elapsed()
    }
}

impl ArrayRate<'_> {
    /// Products a second of one pass, of all threads together.
    pub fn products(&mut self) -> f64 {
        self.rate() / (self.limbs * self.gemm.macs()) as f64
    }

    /// The sum of what each thread does: in a step threads take work as they are free, so one that the machine holds up does not
    /// hold up the others. A thread that took several shares made them one after the other.
    fn rate(&mut self) -> f64 {
        self.timed();
        let each = (self.repeats * self.limbs * self.gemm.macs()) as f64;
        let mut threads: HashMap<ThreadId, (f64, f64)> = HashMap::new();
        for (thread, took) in self.shares.iter().filter_map(|share| share.last) {
            let (done, seconds) = threads.entry(thread).or_default();
            *done += each;
            *seconds += took.as_secs_f64();
        }
        threads.values().map(|(done, seconds)| done / seconds.max(1e-9)).sum()
    }
}

impl Limit for ArrayRate<'_> {
    /// Multiply-accumulates a second, each counted once a limb.
    fn pass(&mut self) -> Result<f64, LimitError> {
        Ok(self.rate())
    }
}

impl Share {
    fn multiply(&mut self, units: &Units, layout: MatrixLayout, lanes: Lanes) -> Result<(), RateError> {
        let start = self.matrix.as_ptr().align_offset(64);
        let matrix = Matrix::new(layout, &self.matrix[start..][..layout.bytes()])?;
        let mut out = OutTiles::new(&mut self.out, &layout, self.acts.rows(), 0, layout.rows())?;
        Matvec::new(matrix, &self.acts, None, lanes)?.run(units, &mut out)?;
        black_box(&self.out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_multiply() {
        let units = Units::new().unwrap();
        for (limbs, threads) in [(Limbs::One, 1), (Limbs::Two, 2)] {
            let mut rate = ArrayRate::new(&units, Gemm::CACHED, Lanes::new(8).unwrap(), limbs, threads).unwrap();
            assert!(rate.pass().unwrap() > 0.0 && rate.products() > 0.0);
            // Each share holds what the mirror holds: products of one matrix and one set of rows.
            assert!(rate.shares.windows(2).all(|two| two[0].out == two[1].out));
            assert!(rate.shares[0].out.iter().any(|y| *y != 0.0));
        }
    }
}
