//! AVX2 form of the array unit.
//!
//! A 256-bit load holds four columns of eight rows as biased bytes. Masking and shifting split it into the even and the
//! odd columns as 16-bit values 0..=255, and `madd` with a broadcast pair of activations adds two products a row,
//! exact in i32; the bias of 128 leaves through the correction that each sum starts from.

use super::matvec::{AHEAD, ArrayForm, RowOut, Run, Scales, clear, join, pick};
use super::quantise_avx2::quantise;
use crate::format::{BLOCK, Cause, Limbs, scale_offset};
use crate::gate::Form;
use crate::matvec::{BLOCK_BYTES, TILE_ROWS};
use std::arch::x86_64::*;

/// The AVX2 form; exists only where [`detect`] found the instructions.
#[derive(Debug)]
pub(crate) struct Avx2(());

/// The form, when the processor has it.
pub(crate) fn detect() -> Option<&'static Avx2> {
    static FORM: Avx2 = Avx2(());
    is_x86_feature_detected!("avx2").then_some(&FORM)
}

impl ArrayForm for Avx2 {
    fn form(&self) -> Form {
        Form::Avx2
    }

    fn accumulate(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
        run.check(rows, lanes);
        // SAFETY: an `Avx2` exists only where the processor has AVX2; `check` covers every access.
        unsafe {
            match run.acts.limbs() {
                1 => accumulate::<1, 4>(run, rows, lanes),
                _ => accumulate::<2, 2>(run, rows, lanes),
            }
        }
    }

    fn tile(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]], results: &mut [[f32; TILE_ROWS]]) {
        run.check(rows, lanes);
        // SAFETY: as in `accumulate`.
        unsafe {
            match run.acts.limbs() {
                1 => tile::<1, 4>(run, rows, lanes, results),
                _ => tile::<2, 2>(run, rows, lanes, results),
            }
        }
    }

    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
        // SAFETY: an `Avx2` exists only where the processor has AVX2.
        unsafe { quantise(row, limbs, out) }
    }
}

/// `LIMBS` limbs, `R` rows at a time.
///
/// # Safety
/// `run.check(rows, lanes)` has passed and the rows have `LIMBS` limbs.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn accumulate<const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    rows: &[usize],
    lanes: &mut [[f32; TILE_ROWS]],
) {
    if let Scales::Halves { bases, codes, book } = run.scales {
        // SAFETY: as the caller promises.
        return unsafe { super::codes_avx2::accumulate::<LIMBS, R>(run, bases, codes, book, rows, lanes) };
    }
    let offsets = match run.scales {
        Scales::Codes { bases, .. } => std::array::from_fn(|r| scale_offset(bases[r] as i8)),
        Scales::Halves { .. } | Scales::Unit => [0; TILE_ROWS],
    };
    // SAFETY: two halves of an array of 16.
    let offsets = unsafe { [load(offsets.as_ptr().cast()), load(offsets.as_ptr().add(8).cast())] };
    for b in 0..run.blocks {
        let scale = match run.scales {
            Scales::Codes { codes, .. } => {
                // SAFETY: the check covers 16 scale bytes of every block.
                let codes = unsafe { _mm_loadu_si128(codes.as_ptr().add(b.wrapping_mul(TILE_ROWS)).cast()) };
                [codes, _mm_unpackhi_epi64(codes, codes)].map(|c| _mm256_cvtepu8_epi32(c))
            }
            // With offset 0 this is the code of 1.0.
            Scales::Halves { .. } | Scales::Unit => [_mm256_set1_epi32(0x3f8); 2],
        };
        let scale = [0, 1].map(|h| _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(scale[h], offsets[h]), 20)));
        // SAFETY: the check covers every block's elements, and every row's block in the activations and the lanes.
        unsafe {
            let elements = run.elements.as_ptr().add(b.wrapping_mul(run.stride));
            for line in 0..BLOCK_BYTES / 64 {
                let ahead = elements.wrapping_add(run.stride.wrapping_mul(AHEAD).wrapping_add(line * 64));
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            let lane = lanes.as_mut_ptr().add(run.lane(b));
            let mut i = 0;
            while rows.len() - i >= R {
                block::<LIMBS, R>(run, b, elements, scale, pick(rows, i), lane.add(i.wrapping_mul(run.lanes)));
                i = i.wrapping_add(R);
            }
            // Not a loop: the compiler would keep a whole block's unpacked weights for it, in memory.
            let lane = lane.add(i.wrapping_mul(run.lanes));
            match rows.len() - i {
                0 => (),
                1 => block::<LIMBS, 1>(run, b, elements, scale, pick(rows, i), lane),
                2 => block::<LIMBS, 2>(run, b, elements, scale, pick(rows, i), lane),
                _ => block::<LIMBS, 3>(run, b, elements, scale, pick(rows, i), lane),
            }
        }
    }
}

/// [`ArrayForm::tile`], its three parts compiled for these instructions together.
///
/// # Safety
/// As [`accumulate`].
#[target_feature(enable = "avx2")]
unsafe fn tile<const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    rows: &[usize],
    lanes: &mut [[f32; TILE_ROWS]],
    results: &mut [[f32; TILE_ROWS]],
) {
    clear(run, lanes);
    // SAFETY: as the caller promises.
    unsafe { accumulate::<LIMBS, R>(run, rows, lanes) };
    join(run, lanes, results);
}

/// One block, `R` rows; `lane` is the first row's, the next row's lies `run.lanes` on.
///
/// # Safety
/// As [`accumulate`]; the pointers are into what the check covers.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn block<const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    b: usize,
    elements: *const u8,
    scale: [__m256; 2],
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let acts = run.acts;
    let at = rows.map(|row| row.wrapping_mul(acts.blocks()).wrapping_add(run.first_act).wrapping_add(b));
    let low = _mm256_set1_epi16(0xff);
    // SAFETY: `at` counts blocks of the activations, all inside; a block's elements are 512 bytes.
    unsafe {
        let q = at.map(|at| acts.q16().as_ptr().add(at.wrapping_mul(LIMBS * BLOCK)));
        let mut sum = [[[_mm256_setzero_si256(); 2]; LIMBS]; R];
        for r in 0..R {
            for (limb, sum) in sum[r].iter_mut().enumerate() {
                let fix = *acts.fix().as_ptr().add(at[r].wrapping_mul(LIMBS).wrapping_add(limb));
                *sum = [_mm256_set1_epi32(fix); 2];
            }
        }
        for quad in 0..BLOCK / 4 {
            let w = elements.add(quad * TILE_ROWS * 4);
            let w = [load(w), load(w.add(32))];
            let even = w.map(|w| _mm256_and_si256(w, low));
            let odd = w.map(|w| _mm256_srli_epi16(w, 8));
            for r in 0..R {
                for (limb, sum) in sum[r].iter_mut().enumerate() {
                    let x = q[r].add(limb * BLOCK + quad * 4).cast::<i32>();
                    let x = [_mm256_set1_epi32(x.read_unaligned()), _mm256_set1_epi32(x.add(1).read_unaligned())];
                    for h in 0..2 {
                        let s = _mm256_add_epi32(sum[h], _mm256_madd_epi16(even[h], x[0]));
                        sum[h] = _mm256_add_epi32(s, _mm256_madd_epi16(odd[h], x[1]));
                    }
                }
            }
        }
        for r in 0..R {
            let x = _mm256_set1_ps(*acts.scale().as_ptr().add(at[r]));
            let lane = lane.add(r.wrapping_mul(run.lanes)).cast::<f32>();
            for h in 0..2 {
                // Every product is exact, so their order is free; the additions are in the contract's order.
                let s = _mm256_mul_ps(scale[h], x);
                let mut y = _mm256_loadu_ps(lane.add(8 * h));
                for (limb, sum) in sum[r].iter().enumerate() {
                    let s = if limb + 1 < LIMBS { _mm256_mul_ps(s, _mm256_set1_ps(256.0)) } else { s };
                    y = _mm256_add_ps(y, _mm256_mul_ps(_mm256_cvtepi32_ps(sum[h]), s));
                }
                _mm256_storeu_ps(lane.add(8 * h), y);
            }
        }
    }
}

/// # Safety
/// 32 bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(at: *const u8) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

const _: () = assert!(BLOCK_BYTES == 512 && TILE_ROWS == 16);
