//! AVX2 form of the array unit over 4-bit codes.
//!
//! A 256-bit load holds four columns of both halves of a block for eight rows. A nibble goes through a shuffle of the
//! book's 16 levels, biased by 128; from there on it is the int8 form, half a block at a time.

use super::matvec::{AHEAD, Run, pick};
use super::matvec_avx2::{R, Scale, add, joined};
use crate::format::{BLOCK, Book, HALF};
use crate::matvec::{CODE_BYTES, TILE_ROWS, ZERO};
use std::arch::x86_64::*;

/// What a book's codes and scale bytes are decoded with.
#[derive(Clone, Copy)]
struct Tables {
    levels: __m256i,
    offsets: [__m256i; 2],
    /// Shift of a scale byte's sign to the top, out of the register where it has none.
    sign: __m256i,
    /// Bits of a scale's mantissa.
    mantissa: u32,
    /// Shift of its other bits to the mantissa and the exponent.
    shift: __m256i,
    /// The mantissa and the exponent without the bit that the sign leaves below them.
    mask: __m256i,
}

/// # Safety
/// `run.check(rows, lanes)` has passed, and the other operands are those of `run.scales`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn accumulate(
    run: &Run<'_>,
    bases: &[u8; TILE_ROWS],
    codes: &[u8],
    book: &Book,
    rows: &[usize],
    lanes: &mut [[f32; TILE_ROWS]],
) {
    let levels = book.levels.map(|level| level as u8 ^ ZERO);
    let offsets: [u32; TILE_ROWS] = std::array::from_fn(|r| book.offset(bases[r] as i8) << book.sign);
    let shift = 23 - book.mantissa - book.sign;
    // SAFETY: an array of 16 bytes, two halves of one of 16 words.
    let tables = unsafe {
        Tables {
            levels: _mm256_broadcastsi128_si256(_mm_loadu_si128(levels.as_ptr().cast())),
            offsets: [load(offsets.as_ptr().cast()), load(offsets.as_ptr().add(8).cast())],
            sign: _mm256_set1_epi32(32 - book.sign as i32),
            mantissa: book.mantissa,
            shift: _mm256_set1_epi32(shift as i32),
            mask: _mm256_set1_epi32(!((book.sign as i32) << shift)),
        }
    };
    for b in 0..run.blocks {
        // SAFETY: the check covers every block's codes and scales, and every row's block in the activations and lanes.
        unsafe {
            let elements = run.elements.as_ptr().add(b.wrapping_mul(run.stride));
            for line in 0..CODE_BYTES / 64 {
                let ahead = elements.wrapping_add(run.stride.wrapping_mul(2 * AHEAD).wrapping_add(line * 64));
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            let lane = lanes.as_mut_ptr().add(run.lane(b));
            let scales = codes.as_ptr().add(b.wrapping_mul(2 * TILE_ROWS));
            // Not by `map`: what it calls is a function for any processor, and would not be inlined.
            let scales = [tables.scale(scales), tables.scale(scales.add(TILE_ROWS))];
            let mut i = 0;
            while rows.len() - i >= R {
                block::<R>(run, b, elements, &tables, scales, pick(rows, i), lane.add(i.wrapping_mul(run.lanes)));
                i = i.wrapping_add(R);
            }
            // Not a loop: the compiler would keep a whole block's unpacked weights for it, in memory.
            let lane = lane.add(i.wrapping_mul(run.lanes));
            match rows.len() - i {
                0 => (),
                1 => block::<1>(run, b, elements, &tables, scales, pick(rows, i), lane),
                2 => block::<2>(run, b, elements, &tables, scales, pick(rows, i), lane),
                _ => block::<3>(run, b, elements, &tables, scales, pick(rows, i), lane),
            }
        }
    }
}

impl Tables {
    /// The scales of 16 scale bytes.
    ///
    /// # Safety
    /// 16 bytes can be read.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn scale(&self, bytes: *const u8) -> [Scale; 2] {
        // SAFETY: as the caller promises.
        let bytes = unsafe { _mm_loadu_si128(bytes.cast()) };
        let bytes = [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))];
        let mut bits = [_mm256_setzero_si256(); 2];
        for h in 0..2 {
            let magnitude = _mm256_sllv_epi32(_mm256_add_epi32(bytes[h], self.offsets[h]), self.shift);
            let sign = _mm256_sllv_epi32(bytes[h], self.sign);
            bits[h] = _mm256_or_si256(sign, _mm256_and_si256(magnitude, self.mask));
        }
        [Scale::of(bits[0], self.mantissa), Scale::of(bits[1], self.mantissa)]
    }
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
    tables: &Tables,
    scales: [[Scale; 2]; 2],
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let acts = run.acts;
    let at = rows.map(|row| row.wrapping_mul(acts.blocks()).wrapping_add(run.first_act).wrapping_add(b));
    let low = _mm256_set1_epi16(0xff);
    // SAFETY: `at` counts blocks of the activations, all inside; a block's codes are 256 bytes.
    unsafe {
        let q = at.map(|at| acts.q16().as_ptr().add(at.wrapping_mul(BLOCK)));
        for (half, scale) in scales.into_iter().enumerate() {
            let mut sum = [[_mm256_setzero_si256(); 2]; R];
            for r in 0..R {
                let first = joined(acts.limbs(), acts.half().as_ptr(), at[r]);
                let fix = match half {
                    0 => first,
                    _ => joined(acts.limbs(), acts.fix().as_ptr(), at[r]).wrapping_sub(first),
                };
                sum[r] = [_mm256_set1_epi32(fix); 2];
            }
            for quad in 0..HALF / 4 {
                let both = elements.add(quad * TILE_ROWS * 4);
                let both = [load(both), load(both.add(32))];
                let (mut even, mut odd) = (both, both);
                for h in 0..2 {
                    let nibbles = if half == 0 { both[h] } else { _mm256_srli_epi16(both[h], 4) };
                    let codes = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
                    let w = _mm256_shuffle_epi8(tables.levels, codes);
                    (even[h], odd[h]) = (_mm256_and_si256(w, low), _mm256_srli_epi16(w, 8));
                }
                for r in 0..R {
                    let x = q[r].add(half * HALF + quad * 4).cast::<i32>();
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
}

/// # Safety
/// 32 bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(at: *const u8) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

const _: () = assert!(CODE_BYTES == 256 && TILE_ROWS == 16);
