//! AVX2 form of the array unit.
//!
//! A 256-bit load holds four columns of eight rows as biased bytes. Masking and shifting split it into the even and the
//! odd columns as 16-bit values 0..=255, and `madd` with a broadcast pair of activations adds two products a row,
//! exact in i32; the bias of 128 leaves through the correction that each sum starts from.

use super::matvec::{AHEAD, ArrayForm, RowOut, Run, Scales, clear, join, pick};
use super::quantise_avx2::quantise;
use super::walk::{Walk, groups};
use crate::ahead;
use crate::format::{BLOCK, Cause, Limbs, scale_offset};
use crate::gate::Form;
use crate::matvec::{BLOCK_BYTES, TILE_ROWS};
use std::arch::x86_64::*;
use std::ops::Range;

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
    // One offset for code 0 makes every scale 1.
    let unit = [0; TILE_ROWS];
    let (offsets, codes, step): ([u32; TILE_ROWS], _, _) = match run.scales {
        Scales::Codes { bases, codes } => {
            (std::array::from_fn(|r| scale_offset(bases[r] as i8)), codes.as_ptr(), TILE_ROWS)
        }
        Scales::Halves { .. } | Scales::Unit => ([0x3f8; TILE_ROWS], unit.as_ptr(), 0),
    };
    // SAFETY: two halves of an array of 16.
    let offsets = unsafe { [load(offsets.as_ptr().cast()), load(offsets.as_ptr().add(8).cast())] };
    let scales = Codes { offsets, codes, step };
    run.ask();
    groups(run, rows, lanes, R, |part, rows, lane| {
        // SAFETY: as the caller promises.
        unsafe {
            match rows.len() {
                R => blocks::<R>(run, part, &scales, pick(rows, 0), lane),
                3 => blocks::<3>(run, part, &scales, pick(rows, 0), lane),
                2 => blocks::<2>(run, part, &scales, pick(rows, 0), lane),
                _ => blocks::<1>(run, part, &scales, pick(rows, 0), lane),
            }
        }
    });
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

/// Scale bytes of the blocks, and what each row's are added to.
struct Codes {
    offsets: [__m256i; 2],
    codes: *const u8,
    /// Bytes from a block's to the next one's.
    step: usize,
}

/// Some blocks, `R` rows; `lane` is the first row's first, the next row's lies `run.lanes` on.
///
/// # Safety
/// As [`accumulate`]; the pointers are to what the check covers.
#[expect(clippy::needless_range_loop, reason = "a row is the index of several arrays")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn blocks<const R: usize>(
    run: &Run<'_>,
    part: Range<usize>,
    scales: &Codes,
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let mut walk = Walk::new(run, part.start, rows, run.acts.q16(), BLOCK);
    let limbs = run.acts.limbs();
    // What the loop stores might be any of this, for all that the compiler knows.
    let (first, stride, lanes, first_lane) = (run.elements.as_ptr(), run.stride, run.lanes, run.first_lane);
    let Codes { offsets, codes, step } = *scales;
    let low = _mm256_set1_epi16(0xff);
    for b in part {
        // SAFETY: the check covers every block's elements and scales, and every row's block in the activations and the lanes.
        unsafe {
            let elements = first.add(b.wrapping_mul(stride));
            for line in 0..BLOCK_BYTES / ahead::LINE {
                ahead::near(elements.wrapping_add(AHEAD).wrapping_add(line * ahead::LINE));
            }
            let mut sum = [[_mm256_setzero_si256(); 2]; R];
            for r in 0..R {
                sum[r] = [_mm256_set1_epi32(joined(limbs, walk.fix[r])); 2];
            }
            for quad in 0..BLOCK / 4 {
                let w = elements.add(quad * TILE_ROWS * 4);
                let w = [load(w), load(w.add(32))];
                let even = [_mm256_and_si256(w[0], low), _mm256_and_si256(w[1], low)];
                let odd = [_mm256_srli_epi16(w[0], 8), _mm256_srli_epi16(w[1], 8)];
                for r in 0..R {
                    let x = walk.q[r].add(quad * 4).cast::<i32>();
                    let x = [_mm256_set1_epi32(x.read_unaligned()), _mm256_set1_epi32(x.add(1).read_unaligned())];
                    for h in 0..2 {
                        let s = _mm256_add_epi32(sum[r][h], _mm256_madd_epi16(even[h], x[0]));
                        sum[r][h] = _mm256_add_epi32(s, _mm256_madd_epi16(odd[h], x[1]));
                    }
                }
            }
            let code = _mm_loadu_si128(codes.add(b.wrapping_mul(step)).cast());
            let code = [_mm256_cvtepu8_epi32(code), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(code, code))];
            let mut scale = [Scale::of(offsets[0], 3); 2];
            for h in 0..2 {
                scale[h] = Scale::of(_mm256_slli_epi32(_mm256_add_epi32(code[h], offsets[h]), 20), 3);
            }
            let lane = lane.add(first_lane.wrapping_add(b) & lanes.wrapping_sub(1));
            for r in 0..R {
                let x = _mm256_set1_ps(*walk.scale[r]);
                add(lane.add(r.wrapping_mul(lanes)).cast::<f32>(), sum[r], scale, x);
            }
        }
        walk.next(BLOCK, limbs);
    }
}

/// A block's correction: that of the high limb 256 times, where there are two.
///
/// # Safety
/// `fix` points to `limbs` values.
#[inline(always)]
pub(super) unsafe fn joined(limbs: usize, fix: *const i32) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        match limbs {
            1 => *fix,
            _ => (*fix).wrapping_mul(256).wrapping_add(*fix.add(1)),
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
