//! CPU forms of the array unit: what every form does, and the mirror that defines it.

use crate::format::{
    BLOCK, Book, Cause, HALF, Limbs, limbs_of, max_bits, pow2, pow2_exponent, quantise_pow2, scale_value,
};
use crate::gate::Form;
use crate::matvec::{Acts, BLOCK_BYTES, CODE_BYTES, TILE_ROWS, ZERO};
use std::ops::Range;

/// Most rows in one call of a form.
pub(crate) const GROUP: usize = 16;

/// Bytes between what is multiplied and what is asked of memory: the processor's own prefetcher stops at every page, or
/// does not see a stream between the activations' loads, and here the next tile is known to follow. Past the end of a matrix
/// nothing is read.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) const AHEAD: usize = 6 << 10;

/// Scales of the blocks of a run; they say what the elements are too.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scales<'a> {
    /// int8 elements: the 16 rows' bases, and 16 scale bytes a block.
    Codes { bases: &'a [u8; TILE_ROWS], codes: &'a [u8] },
    /// 4-bit codes of a book's levels: the 16 rows' bases, and 16 scale bytes each half of a block.
    Halves { bases: &'a [u8; TILE_ROWS], codes: &'a [u8], book: &'static Book },
    /// int8 elements whose every scale is 1.
    Unit,
}

impl Scales<'_> {
    /// Scale of a half of block `b` in row `r`.
    #[inline]
    pub(crate) fn at(&self, b: usize, half: usize, r: usize) -> f32 {
        match *self {
            Scales::Codes { bases, codes } => scale_value(bases[r] as i8, codes[b * TILE_ROWS + r]),
            Scales::Halves { bases, codes, book } => book.scale(bases[r] as i8, codes[(2 * b + half) * TILE_ROWS + r]),
            Scales::Unit => 1.0,
        }
    }

    /// Element `k` of a half of row `r`, from the bytes of a block's elements.
    #[inline]
    pub(crate) fn element(&self, elements: &[u8], half: usize, r: usize, k: usize) -> i8 {
        let at = |quad: usize| (quad * TILE_ROWS + r) * 4 + k % 4;
        match *self {
            Scales::Codes { .. } | Scales::Unit => (elements[at(half * HALF / 4 + k / 4)] ^ ZERO) as i8,
            Scales::Halves { book, .. } => book.levels[usize::from(elements[at(k / 4)] >> (4 * half) & 15)],
        }
    }

    /// Bytes of a block's elements, and of its scales.
    const fn block_bytes(&self) -> (usize, usize) {
        match self {
            Scales::Codes { .. } => (BLOCK_BYTES, TILE_ROWS),
            Scales::Halves { .. } => (CODE_BYTES, 2 * TILE_ROWS),
            Scales::Unit => (BLOCK_BYTES, 0),
        }
    }
}

/// A run of blocks of one tile and the quantised rows that meet them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// Elements of the first block, and of those `stride` bytes on.
    pub(crate) elements: &'a [u8],
    pub(crate) stride: usize,
    pub(crate) blocks: usize,
    pub(crate) scales: Scales<'a>,
    pub(crate) acts: &'a Acts,
    /// The rows' block that meets the first block.
    pub(crate) first_act: usize,
    /// The lane of the first block.
    pub(crate) first_lane: usize,
    /// Lanes, a power of two.
    pub(crate) lanes: usize,
}

impl Run<'_> {
    /// Panic unless everything that a form will touch is there; forms rely on it.
    #[inline(always)]
    pub(crate) fn check(&self, rows: &[usize], lanes: &[[f32; TILE_ROWS]]) {
        let acts = self.acts;
        let (elements, scales) = self.scales.block_bytes();
        assert!(self.blocks == 0 || self.elements.len() >= (self.blocks - 1) * self.stride + elements);
        assert!(self.first_act + self.blocks <= acts.blocks() && rows.iter().all(|r| *r < acts.rows()));
        assert!(self.lanes.is_power_of_two() && rows.len() <= GROUP && lanes.len() == rows.len() * self.lanes);
        if let Scales::Codes { codes, .. } | Scales::Halves { codes, .. } = self.scales {
            assert!(codes.len() >= self.blocks * scales);
        }
        let n = acts.rows() * acts.blocks();
        assert!(
            acts.scale().len() >= n && acts.fix().len() >= n * acts.limbs() && acts.half().len() == acts.fix().len()
        );
        assert!(acts.q8().len() >= n * acts.limbs() * BLOCK && acts.q16().len() >= n * BLOCK);
    }

    /// Lanes that the tree joins: those that the blocks reach. A lane past them stays +0.0, and none is ever -0.0, so
    /// to add it would change no bit.
    #[inline(always)]
    pub(crate) fn reached(&self) -> usize {
        if self.first_lane == 0 { self.lanes.min(self.blocks.next_power_of_two()) } else { self.lanes }
    }

    /// Lane of block `b` of the run.
    #[inline(always)]
    pub(crate) fn lane(&self, b: usize) -> usize {
        (self.first_lane.wrapping_add(b)) & (self.lanes.wrapping_sub(1))
    }
}

/// `N` of the rows, from `first` on.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn pick<const N: usize>(rows: &[usize], first: usize) -> [usize; N] {
    std::array::from_fn(|i| rows[first.wrapping_add(i)])
}

/// Space for one or more quantised rows; see [`Acts`] for the order.
#[derive(Debug)]
pub(crate) struct RowOut<'a> {
    pub(crate) q8: &'a mut [i8],
    pub(crate) q16: &'a mut [i16],
    pub(crate) fix: &'a mut [i32],
    pub(crate) half: &'a mut [i32],
    pub(crate) scale: &'a mut [f32],
}

impl<'a> RowOut<'a> {
    /// Space of the first `n` blocks, and the rest.
    pub(crate) fn split_at(self, n: usize, limbs: usize) -> (Self, Self) {
        let (q8, q8_rest) = self.q8.split_at_mut(n * limbs * BLOCK);
        let (q16, q16_rest) = self.q16.split_at_mut(n * BLOCK);
        let (fix, fix_rest) = self.fix.split_at_mut(n * limbs);
        let (half, half_rest) = self.half.split_at_mut(n * limbs);
        let (scale, scale_rest) = self.scale.split_at_mut(n);
        let rest = Self { q8: q8_rest, q16: q16_rest, fix: fix_rest, half: half_rest, scale: scale_rest };
        (Self { q8, q16, fix, half, scale }, rest)
    }

    /// Space of one row.
    pub(crate) fn row(&mut self, row: usize, blocks: usize, limbs: usize) -> RowOut<'_> {
        let n = blocks * limbs;
        RowOut {
            q8: &mut self.q8[row * n * BLOCK..][..n * BLOCK],
            q16: &mut self.q16[row * blocks * BLOCK..][..blocks * BLOCK],
            fix: &mut self.fix[row * n..][..n],
            half: &mut self.half[row * n..][..n],
            scale: &mut self.scale[row * blocks..][..blocks],
        }
    }
}

/// One form of the array unit.
pub(crate) trait ArrayForm: Send + Sync {
    /// Which.
    fn form(&self) -> Form;

    /// Add every block of the run to its lane, for each of the rows: `lanes[i * run.lanes + lane][r]` is the lane of
    /// `rows[i]` and the tile's row `r`.
    fn accumulate(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]);

    /// The results of a run: lanes from zero, every block of the run, then the halving tree. `lanes` is space for
    /// them; there is a result for each of the rows.
    fn tile(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]], results: &mut [[f32; TILE_ROWS]]) {
        clear(run, lanes);
        self.accumulate(run, rows, lanes);
        join(run, lanes, results);
    }

    /// Quantise one row; `out` holds exactly its blocks.
    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)>;
}

/// The definition of the bits: one product, one addition at a time.
#[derive(Debug)]
pub(crate) struct Mirror;

impl ArrayForm for Mirror {
    fn form(&self) -> Form {
        Form::Mirror
    }

    fn accumulate(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
        run.check(rows, lanes);
        for (&row, lanes) in rows.iter().zip(lanes.chunks_exact_mut(run.lanes)) {
            for b in 0..run.blocks {
                match run.scales {
                    Scales::Codes { .. } | Scales::Unit => add_products(run, row, b, 0..BLOCK, lanes),
                    Scales::Halves { .. } => {
                        add_products(run, row, b, 0..HALF, lanes);
                        add_products(run, row, b, HALF..BLOCK, lanes);
                    }
                }
            }
        }
    }

    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
        quantise_row(row, limbs, out)
    }
}

/// Add the product of some columns of block `b`, which share a scale, to the block's lane: of both limbs together.
fn add_products(run: &Run<'_>, row: usize, b: usize, columns: Range<usize>, lanes: &mut [[f32; TILE_ROWS]]) {
    let (acts, limbs) = (run.acts, run.acts.limbs());
    let act = row * acts.blocks() + run.first_act + b;
    let elements = &run.elements[b * run.stride..];
    for (r, lane) in lanes[run.lane(b)].iter_mut().enumerate() {
        // 256 times the high limb's product and once the low limb's: below 2^27.
        let each = acts.q8()[act * limbs * BLOCK..].chunks_exact(BLOCK).take(limbs);
        let sum = each.fold(0, |sum, q| 256 * sum + dot(&run.scales, elements, r, columns.clone(), q));
        let scale = run.scales.at(b, columns.start / HALF, r) * acts.scale()[act];
        // Exact in f64, so this is the one rounding of the product.
        *lane += (f64::from(sum) * f64::from(scale)) as f32;
    }
}

/// The product of some columns of row `r` of a block's elements with one limb of activations.
fn dot(scales: &Scales<'_>, elements: &[u8], r: usize, columns: Range<usize>, q: &[i8]) -> i32 {
    match scales {
        Scales::Halves { .. } => {
            let element = |k: usize| i32::from(scales.element(elements, k / HALF, r, k % HALF));
            columns.map(|k| element(k) * i32::from(q[k])).sum()
        }
        Scales::Codes { .. } | Scales::Unit => {
            let row = elements.chunks_exact(TILE_ROWS * 4).flat_map(|quad| &quad[r * 4..][..4]);
            row.zip(q).map(|(w, q)| i32::from((w ^ ZERO) as i8) * i32::from(*q)).sum()
        }
    }
}

/// Lanes from zero, those that the run reaches.
#[inline(always)]
pub(crate) fn clear(run: &Run<'_>, lanes: &mut [[f32; TILE_ROWS]]) {
    let reached = run.reached();
    lanes.chunks_exact_mut(run.lanes).for_each(|lanes| lanes[..reached].fill([0.0; TILE_ROWS]));
}

/// Each row's lanes joined, those that the run has reached.
#[inline(always)]
pub(crate) fn join(run: &Run<'_>, lanes: &mut [[f32; TILE_ROWS]], results: &mut [[f32; TILE_ROWS]]) {
    let reached = run.reached();
    for (lanes, result) in lanes.chunks_exact_mut(run.lanes).zip(results) {
        *result = fold(&mut lanes[..reached]);
    }
}

/// The halving tree over the lanes of one row.
#[inline(always)]
pub(crate) fn fold(lanes: &mut [[f32; TILE_ROWS]]) -> [f32; TILE_ROWS] {
    match <&[[f32; TILE_ROWS]; 8]>::try_from(&*lanes) {
        Ok(lanes) => tree_of_eight(lanes),
        Err(_) => tree(lanes),
    }
}

/// The tree over the usual number of lanes, a row's whole tree at once: nothing is written but the result.
#[inline(always)]
fn tree_of_eight(l: &[[f32; TILE_ROWS]; 8]) -> [f32; TILE_ROWS] {
    let mut out = [0.0; TILE_ROWS];
    for (r, out) in out.iter_mut().enumerate() {
        let even = (l[0][r] + l[4][r]) + (l[2][r] + l[6][r]);
        let odd = (l[1][r] + l[5][r]) + (l[3][r] + l[7][r]);
        *out = even + odd;
    }
    out
}

#[inline(always)]
fn tree(lanes: &mut [[f32; TILE_ROWS]]) -> [f32; TILE_ROWS] {
    let mut half = lanes.len() / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            for (a, b) in low.iter_mut().zip(high) {
                *a += *b;
            }
        }
        half /= 2;
    }
    lanes[0]
}

/// A row's blocks by the definition in [`crate::format`].
#[inline(always)]
pub(crate) fn quantise_row(row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
    match limbs {
        Limbs::One => quantise_limbs::<1>(row, limbs, out),
        Limbs::Two => quantise_limbs::<2>(row, limbs, out),
    }
}

#[inline(always)]
fn quantise_limbs<const N: usize>(row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
    let q8 = out.q8.chunks_exact_mut(BLOCK * N);
    let (q16, _) = out.q16.as_chunks_mut::<BLOCK>();
    let fixes = out.fix.chunks_exact_mut(N).zip(out.half.chunks_exact_mut(N));
    let places = q8.zip(q16).zip(fixes).zip(out.scale.iter_mut());
    for ((block, part), (((q8, q16), (fix, half)), scale)) in row.chunks(BLOCK).enumerate().zip(places) {
        let mut values = [0.0; BLOCK];
        values[..part.len()].copy_from_slice(part);
        let e = max_bits(&values).and_then(|max| pow2_exponent(max, limbs)).map_err(|cause| (block, cause))?;
        *scale = pow2(e);
        let mut q = [[0_i8; BLOCK]; N];
        for (i, v) in values.iter().enumerate() {
            let (hi, lo) = limbs_of(quantise_pow2(*v, e));
            q[0][i] = hi;
            q[N - 1][i] = lo;
        }
        for (limb, q) in q.iter().enumerate() {
            q8[limb * BLOCK..][..BLOCK].copy_from_slice(q);
            (fix[limb], half[limb]) = fixes_of(q);
        }
        widen(&q, q16);
    }
    Ok(())
}

/// -128 times the sum of a limb, and times that of its first half.
#[inline(always)]
pub(crate) fn fixes_of(limb: &[i8; BLOCK]) -> (i32, i32) {
    let sum = |half: &[i8]| half.iter().fold(0_i32, |sum, q| sum.wrapping_add(i32::from(*q))).wrapping_mul(-128);
    let (first, second) = limb.split_at(HALF);
    let first = sum(first);
    (first.wrapping_add(sum(second)), first)
}

/// A block's limbs joined, in the order `[8 quads][k, k+2, k+1, k+3]`.
#[inline(always)]
pub(crate) fn widen(limbs: &[[i8; BLOCK]], wide: &mut [i16; BLOCK]) {
    for (quad, out) in wide.chunks_exact_mut(4).enumerate() {
        for (out, k) in out.iter_mut().zip([0, 2, 1, 3]) {
            *out = limbs.iter().fold(0_i16, |q, limb| q.wrapping_mul(256).wrapping_add(i16::from(limb[4 * quad + k])));
        }
    }
}
