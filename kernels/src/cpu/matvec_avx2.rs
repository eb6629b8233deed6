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
        unsafe { accumulate(run, rows, lanes) }
    }

    fn tile(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]], results: &mut [[f32; TILE_ROWS]]) {
        run.check(rows, lanes);
        // SAFETY: as in `accumulate`.
        unsafe { tile(run, rows, lanes, results) }
    }

    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
        // SAFETY: an `Avx2` exists only where the processor has AVX2.
        unsafe { quantise(row, limbs, out) }
    }
}

/// Rows of a block that share its unpacked weights, as many as the registers take.
pub(super) const R: usize = 4;

/// # Safety
/// `run.check(rows, lanes)` has passed.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn accumulate(run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
    if let Scales::Halves { bases, codes, book } = run.scales {
        // SAFETY: as the caller promises.
        return unsafe { super::codes_avx2::accumulate(run, bases, codes, book, rows, lanes) };
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
        let bits = [0, 1].map(|h| _mm256_slli_epi32(_mm256_add_epi32(scale[h], offsets[h]), 20));
        let scale = [Scale::of(bits[0], 3), Scale::of(bits[1], 3)];
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
                block::<R>(run, b, elements, scale, pick(rows, i), lane.add(i.wrapping_mul(run.lanes)));
                i = i.wrapping_add(R);
            }
            // Not a loop: the compiler would keep a whole block's unpacked weights for it, in memory.
            let lane = lane.add(i.wrapping_mul(run.lanes));
            match rows.len() - i {
                0 => (),
                1 => block::<1>(run, b, elements, scale, pick(rows, i), lane),
                2 => block::<2>(run, b, elements, scale, pick(rows, i), lane),
                _ => block::<3>(run, b, elements, scale, pick(rows, i), lane),
            }
        }
    }
}

/// [`ArrayForm::tile`], its three parts compiled for these instructions together.
///
/// # Safety
/// As [`accumulate`].
#[target_feature(enable = "avx2")]
unsafe fn tile(run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]], results: &mut [[f32; TILE_ROWS]]) {
    clear(run, lanes);
    // SAFETY: as the caller promises.
    unsafe { accumulate(run, rows, lanes) };
    join(run, lanes, results);
}

/// One block, `R` rows; `lane` is the first row's, the next row's lies `run.lanes` on.
///
/// # Safety
/// As [`accumulate`]; the pointers are into what the check covers.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn block<const R: usize>(
    run: &Run<'_>,
    b: usize,
    elements: *const u8,
    scale: [Scale; 2],
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let acts = run.acts;
    let at = rows.map(|row| row.wrapping_mul(acts.blocks()).wrapping_add(run.first_act).wrapping_add(b));
    let low = _mm256_set1_epi16(0xff);
    // SAFETY: `at` counts blocks of the activations, all inside; a block's elements are 512 bytes.
    unsafe {
        let q = at.map(|at| acts.q16().as_ptr().add(at.wrapping_mul(BLOCK)));
        let mut sum = at.map(|at| [_mm256_set1_epi32(joined(acts.limbs(), acts.fix().as_ptr(), at)); 2]);
        for quad in 0..BLOCK / 4 {
            let w = elements.add(quad * TILE_ROWS * 4);
            let w = [load(w), load(w.add(32))];
            let even = w.map(|w| _mm256_and_si256(w, low));
            let odd = w.map(|w| _mm256_srli_epi16(w, 8));
            for r in 0..R {
                let x = q[r].add(quad * 4).cast::<i32>();
                let x = [_mm256_set1_epi32(x.read_unaligned()), _mm256_set1_epi32(x.add(1).read_unaligned())];
                for h in 0..2 {
                    let s = _mm256_add_epi32(sum[r][h], _mm256_madd_epi16(even[h], x[0]));
                    sum[r][h] = _mm256_add_epi32(s, _mm256_madd_epi16(odd[h], x[1]));
                }
            }
        }
        for r in 0..R {
            let x = _mm256_set1_ps(*acts.scale().as_ptr().add(at[r]));
            let lane = lane.add(r.wrapping_mul(run.lanes)).cast::<f32>();
            add(lane, sum[r], scale, x);
        }
    }
}

/// A block's correction: that of the high limb 256 times, where there are two.
///
/// # Safety
/// `fixes` has `limbs` values for each block up to `at`.
#[inline(always)]
pub(super) unsafe fn joined(limbs: usize, fixes: *const i32, at: usize) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        match limbs {
            1 => *fixes.add(at),
            _ => {
                let fixes = fixes.add(at.wrapping_mul(2));
                (*fixes).wrapping_mul(256).wrapping_add(*fixes.add(1))
            }
        }
    }
}

/// Scales of eight rows, m·2^k each.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    m: __m256i,
    power: __m256,
}

impl Scale {
    /// Of floats with so many bits of mantissa: m has one more.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn of(bits: __m256i, mantissa: u32) -> Self {
        let one = 1 << mantissa;
        let m = _mm256_srlv_epi32(bits, _mm256_set1_epi32(23_i32.wrapping_sub(mantissa as i32)));
        let m = _mm256_and_si256(m, _mm256_set1_epi32(one - 1));
        let power = _mm256_and_si256(bits, _mm256_set1_epi32(0xff80_0000_u32 as i32));
        let power = _mm256_sub_epi32(power, _mm256_set1_epi32((mantissa << 23) as i32));
        Self { m: _mm256_or_si256(m, _mm256_set1_epi32(one)), power: _mm256_castsi256_ps(power) }
    }
}

/// Add the products of a block's sums and scales to its lane. A sum times m is below 2^31, so that its conversion is the
/// one rounding of the product.
///
/// # Safety
/// 16 values can be read and written.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn add(lane: *mut f32, sum: [__m256i; 2], scale: [Scale; 2], x: __m256) {
    for h in 0..2 {
        let product = _mm256_cvtepi32_ps(_mm256_mullo_epi32(sum[h], scale[h].m));
        let product = _mm256_mul_ps(product, _mm256_mul_ps(scale[h].power, x));
        // SAFETY: as the caller promises.
        unsafe {
            let lane = lane.add(8 * h);
            _mm256_storeu_ps(lane, _mm256_add_ps(_mm256_loadu_ps(lane), product));
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
