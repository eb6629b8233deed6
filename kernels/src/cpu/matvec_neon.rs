//! NEON forms of the array unit: one with the dot product instruction, one without.
//!
//! A 128-bit load holds four columns of four rows as biased bytes; an exclusive or with 128 makes them signed. `sdot`
//! multiplies them with four broadcast activations and adds four products a row, exact in i32. Processors without it
//! widen the products to i16, where each fits, and add them in pairs to i32.

use super::matvec::{AHEAD, ArrayForm, RowOut, Run, Scales, pick};
use super::{codes_neon, quantise_neon::quantise};
use crate::ahead;
use crate::format::{BLOCK, Cause, Limbs, scale_offset};
use crate::gate::Form;
use crate::matvec::{BLOCK_BYTES, TILE_ROWS, ZERO};
use std::arch::aarch64::*;
use std::arch::asm;

/// Vectors of four rows in a tile.
pub(super) const FOURS: usize = TILE_ROWS / 4;

/// Wraps intrinsics that need NEON alone, which every target that this file is compiled for has.
macro_rules! neon {
    ($call:expr) => {
        // SAFETY: NEON is part of the target; the call touches no memory.
        unsafe { $call }
    };
}
pub(super) use neon;

/// The NEON form; exists only where [`detect`] found the instructions.
#[derive(Debug)]
pub(crate) struct Neon(());

/// The form with dot products; exists only where [`detect_dot`] found them.
#[derive(Debug)]
pub(crate) struct Dot(());

/// The NEON form, when the processor has it.
pub(crate) fn detect() -> Option<&'static Neon> {
    static FORM: Neon = Neon(());
    std::arch::is_aarch64_feature_detected!("neon").then_some(&FORM)
}

/// The form with dot products, when the processor has them.
pub(crate) fn detect_dot() -> Option<&'static Dot> {
    static FORM: Dot = Dot(());
    let found = std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod");
    found.then_some(&FORM)
}

impl ArrayForm for Neon {
    fn form(&self) -> Form {
        Form::Neon
    }

    fn accumulate(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
        run.check(rows, lanes);
        // SAFETY: `check` covers every access.
        unsafe {
            match run.acts.limbs() {
                1 => accumulate::<Widened, 1, 2>(run, rows, lanes),
                _ => accumulate::<Widened, 2, 1>(run, rows, lanes),
            }
        }
    }

    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
        quantise(row, limbs, out)
    }
}

impl ArrayForm for Dot {
    fn form(&self) -> Form {
        Form::Dotprod
    }

    fn accumulate(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
        run.check(rows, lanes);
        // SAFETY: a `Dot` exists only where the processor has the instruction; `check` covers every access.
        unsafe {
            match run.acts.limbs() {
                1 => accumulate_dot::<1, 4>(run, rows, lanes),
                _ => accumulate_dot::<2, 2>(run, rows, lanes),
            }
        }
    }

    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
        quantise(row, limbs, out)
    }
}

/// How products of four rows are summed.
pub(super) trait Products {
    /// Sums of four rows.
    type Sum: Copy;

    /// Nothing yet.
    fn zero() -> Self::Sum;

    /// Add the products of four columns of four rows with activations `4 * QUAD ..` of 16.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn add<const QUAD: i32>(sum: Self::Sum, w: int8x16_t, x: int8x16_t) -> Self::Sum;

    /// The sums, a row each.
    fn total(sum: Self::Sum) -> int32x4_t;
}

/// By `sdot`.
pub(super) enum Dotted {}

impl Products for Dotted {
    type Sum = int32x4_t;

    #[inline(always)]
    fn zero() -> int32x4_t {
        neon!(vdupq_n_s32(0))
    }

    #[inline(always)]
    unsafe fn add<const QUAD: i32>(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's processor has the instruction; it reads and writes these registers only.
        unsafe {
            asm!(
                "sdot {sum:v}.4s, {w:v}.16b, {x:v}.4b[{quad}]",
                sum = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x, quad = const QUAD,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }

    #[inline(always)]
    fn total(sum: int32x4_t) -> int32x4_t {
        sum
    }
}

/// By products of 16 bits: of rows 0 and 1, and of rows 2 and 3, in pairs of columns.
pub(super) enum Widened {}

impl Products for Widened {
    type Sum = [int32x4_t; 2];

    #[inline(always)]
    fn zero() -> [int32x4_t; 2] {
        [neon!(vdupq_n_s32(0)); 2]
    }

    #[inline(always)]
    unsafe fn add<const QUAD: i32>(sum: [int32x4_t; 2], w: int8x16_t, x: int8x16_t) -> [int32x4_t; 2] {
        // A product is at most 2^14; two of them may not fit 16 bits.
        neon!({
            let x = vreinterpretq_s8_s32(vdupq_laneq_s32::<QUAD>(vreinterpretq_s32_s8(x)));
            let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
            [vpadalq_s16(sum[0], low), vpadalq_s16(sum[1], vmull_high_s8(w, x))]
        })
    }

    #[inline(always)]
    fn total(sum: [int32x4_t; 2]) -> int32x4_t {
        neon!(vpaddq_s32(sum[0], sum[1]))
    }
}

/// [`accumulate`] by dot products, compiled for them.
///
/// # Safety
/// As [`accumulate`]; the processor has the instruction.
#[target_feature(enable = "neon,dotprod")]
unsafe fn accumulate_dot<const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    rows: &[usize],
    lanes: &mut [[f32; TILE_ROWS]],
) {
    // SAFETY: as the caller promises.
    unsafe { accumulate::<Dotted, LIMBS, R>(run, rows, lanes) }
}

/// `LIMBS` limbs, `R` rows at a time.
///
/// # Safety
/// `run.check(rows, lanes)` has passed, the rows have `LIMBS` limbs, and the processor has `P`'s instructions.
#[inline(always)]
unsafe fn accumulate<P: Products, const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    rows: &[usize],
    lanes: &mut [[f32; TILE_ROWS]],
) {
    if let Scales::Halves { bases, codes, book } = run.scales {
        // SAFETY: as the caller promises.
        return unsafe { codes_neon::accumulate::<P, LIMBS, R>(run, bases, codes, book, rows, lanes) };
    }
    let offsets: [u32; TILE_ROWS] = match run.scales {
        Scales::Codes { bases, .. } => std::array::from_fn(|r| scale_offset(bases[r] as i8)),
        Scales::Halves { .. } | Scales::Unit => [0; TILE_ROWS],
    };
    // SAFETY: four quarters of an array of 16.
    let offsets: [uint32x4_t; FOURS] = std::array::from_fn(|i| unsafe { vld1q_u32(offsets.as_ptr().add(4 * i)) });
    for b in 0..run.blocks {
        let codes = match run.scales {
            // SAFETY: the check covers 16 scale bytes of every block.
            Scales::Codes { codes, .. } => widen(unsafe { vld1q_u8(codes.as_ptr().add(b * TILE_ROWS)) }),
            // With offset 0 this is the code of 1.0.
            Scales::Halves { .. } | Scales::Unit => [neon!(vdupq_n_u32(0x3f8)); FOURS],
        };
        let scale =
            std::array::from_fn(|i| neon!(vreinterpretq_f32_u32(vshlq_n_u32::<20>(vaddq_u32(codes[i], offsets[i])))));
        // SAFETY: the check covers every block's elements, and every row's block in the activations and the lanes.
        unsafe {
            let elements = run.elements.as_ptr().add(b * run.stride);
            for line in 0..BLOCK_BYTES / ahead::LINE {
                ahead::line(elements.wrapping_add(AHEAD + line * ahead::LINE));
            }
            let lane = lanes.as_mut_ptr().add(run.lane(b));
            let mut i = 0;
            while rows.len() - i >= R {
                block::<P, LIMBS, R>(run, b, elements, scale, pick(rows, i), lane.add(i * run.lanes));
                i += R;
            }
            while i < rows.len() {
                block::<P, LIMBS, 1>(run, b, elements, scale, pick(rows, i), lane.add(i * run.lanes));
                i += 1;
            }
        }
    }
}

/// One block, `R` rows; `lane` is the first row's, the next row's lies `run.lanes` on.
///
/// # Safety
/// As [`accumulate`]; the pointers are into what the check covers.
#[inline(always)]
unsafe fn block<P: Products, const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    b: usize,
    elements: *const u8,
    scale: [float32x4_t; FOURS],
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let at = rows.map(|row| row * run.acts.blocks() + run.first_act + b);
    let mut sums = Sums::<P, LIMBS, R>::new();
    // SAFETY: `at` counts blocks of the activations, all inside; a block's elements are 512 bytes.
    unsafe {
        for half in 0..2 {
            sums.add_half(run, at, half, |quad| {
                let quad = elements.add((4 * half + quad) * TILE_ROWS * 4);
                std::array::from_fn(|i| vreinterpretq_s8_u8(veorq_u8(vld1q_u8(quad.add(16 * i)), vdupq_n_u8(ZERO))))
            });
        }
        sums.add_to_lanes(run, at, scale, lane);
    }
}

/// Sums of four rows each: a tile's, for the limbs of some token-rows.
pub(super) struct Sums<P: Products, const LIMBS: usize, const R: usize>([[[P::Sum; FOURS]; LIMBS]; R]);

impl<P: Products, const LIMBS: usize, const R: usize> Sums<P, LIMBS, R> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([[[P::zero(); FOURS]; LIMBS]; R])
    }

    /// Add the products of 16 columns, the `half` of the activations' blocks `at`; `weights` gives the tile's elements
    /// of four columns.
    ///
    /// # Safety
    /// The blocks are inside the activations, and the processor has `P`'s instructions.
    #[inline(always)]
    pub(super) unsafe fn add_half(
        &mut self,
        run: &Run<'_>,
        at: [usize; R],
        half: usize,
        weights: impl Fn(usize) -> [int8x16_t; FOURS],
    ) {
        // SAFETY: as the caller promises; a limb of a block is 32 bytes, and a half of it 16.
        unsafe {
            let x = at.map(|at| {
                let block = run.acts.q8().as_ptr().add(at * LIMBS * BLOCK);
                std::array::from_fn(|limb| vld1q_s8(block.add(limb * BLOCK + half * 16)))
            });
            self.add::<0>(weights(0), &x);
            self.add::<1>(weights(1), &x);
            self.add::<2>(weights(2), &x);
            self.add::<3>(weights(3), &x);
        }
    }

    /// # Safety
    /// The processor has `P`'s instructions.
    #[inline(always)]
    unsafe fn add<const QUAD: i32>(&mut self, w: [int8x16_t; FOURS], x: &[[int8x16_t; LIMBS]; R]) {
        for (sums, x) in self.0.iter_mut().zip(x) {
            for (sums, x) in sums.iter_mut().zip(x) {
                for (sum, w) in sums.iter_mut().zip(w) {
                    // SAFETY: as the caller promises.
                    *sum = unsafe { P::add::<QUAD>(*sum, w, *x) };
                }
            }
        }
    }

    /// Add the sums, scaled, to a lane of each token-row: both limbs together.
    ///
    /// # Safety
    /// The blocks are inside the activations, and `lane` and what lies `run.lanes` on, for each row, inside the lanes.
    #[inline(always)]
    pub(super) unsafe fn add_to_lanes(
        self,
        run: &Run<'_>,
        at: [usize; R],
        scale: [float32x4_t; FOURS],
        lane: *mut [f32; TILE_ROWS],
    ) {
        for (r, (sums, at)) in self.0.into_iter().zip(at).enumerate() {
            // SAFETY: as the caller promises.
            unsafe {
                let x = vdupq_n_f32(*run.acts.scale().as_ptr().add(at));
                let lane = lane.add(r * run.lanes).cast::<f32>();
                for i in 0..FOURS {
                    // A limb's product is exact, so that what adds two of them rounds the whole product once.
                    let s = vmulq_f32(scale[i], x);
                    let product = |limb: usize, s| vmulq_f32(vcvtq_f32_s32(P::total(sums[limb][i])), s);
                    let low = product(LIMBS - 1, s);
                    let both =
                        if LIMBS == 2 { vaddq_f32(product(0, vmulq_f32(s, vdupq_n_f32(256.0))), low) } else { low };
                    let lane = lane.add(4 * i);
                    vst1q_f32(lane, vaddq_f32(vld1q_f32(lane), both));
                }
            }
        }
    }
}

/// 16 bytes as words.
#[inline(always)]
pub(super) fn widen(bytes: uint8x16_t) -> [uint32x4_t; FOURS] {
    neon!({
        let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
        [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
    })
}

const _: () = assert!(BLOCK_BYTES == 512 && TILE_ROWS == 16);
