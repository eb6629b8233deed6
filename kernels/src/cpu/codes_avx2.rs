//! AVX2 form of the array unit over 4-bit codes.
//!
//! A 256-bit load holds four columns of both halves of a block for eight rows. A nibble goes through a shuffle of the
//! book's 16 levels, biased by 128; from there on it is the int8 form, half a block at a time.

use super::matvec::{AHEAD, Run, pick};
use super::matvec_avx2::{R, Scale, add, joined};
use super::walk::{Walk, groups};
use crate::ahead;
use crate::format::{BLOCK, Book, HALF};
use crate::matvec::{CODE_BYTES, TILE_ROWS, ZERO};
use std::arch::x86_64::*;
use std::ops::Range;

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
    run.ask();
    groups(run, rows, lanes, R, |part, rows, lane| {
        // SAFETY: as the caller promises.
        unsafe {
            match rows.len() {
                R => blocks::<R>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
                3 => blocks::<3>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
                2 => blocks::<2>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
                _ => blocks::<1>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
            }
        }
    });
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
    codes: *const u8,
    tables: &Tables,
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let mut walk = Walk::new(run, part.start, rows, run.acts.q16(), BLOCK);
    let limbs = run.acts.limbs();
    // What the loop stores might be any of this, for all that the compiler knows.
    let (first, stride, lanes, first_lane) = (run.elements.as_ptr(), run.stride, run.lanes, run.first_lane);
    let tables = *tables;
    let low = _mm256_set1_epi16(0xff);
    for b in part {
        // SAFETY: the check covers every block's codes and scales, and every row's block in the activations and lanes.
        unsafe {
            let elements = first.add(b.wrapping_mul(stride));
            for line in 0..CODE_BYTES / ahead::LINE {
                ahead::near(elements.wrapping_add(AHEAD).wrapping_add(line * ahead::LINE));
            }
            let lane = lane.add(first_lane.wrapping_add(b) & lanes.wrapping_sub(1));
            for half in 0..2 {
                let mut sum = [[_mm256_setzero_si256(); 2]; R];
                for r in 0..R {
                    let first = joined(limbs, walk.half[r]);
                    let fix = if half == 0 { first } else { joined(limbs, walk.fix[r]).wrapping_sub(first) };
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
                        let x = walk.q[r].add(half * HALF + quad * 4).cast::<i32>();
                        let x = [_mm256_set1_epi32(x.read_unaligned()), _mm256_set1_epi32(x.add(1).read_unaligned())];
                        for h in 0..2 {
                            let s = _mm256_add_epi32(sum[r][h], _mm256_madd_epi16(even[h], x[0]));
                            sum[r][h] = _mm256_add_epi32(s, _mm256_madd_epi16(odd[h], x[1]));
                        }
                    }
                }
                let scale = tables.scale(codes.add(b.wrapping_mul(2 * TILE_ROWS).wrapping_add(half * TILE_ROWS)));
                for r in 0..R {
                    let x = _mm256_set1_ps(*walk.scale[r]);
                    add(lane.add(r.wrapping_mul(lanes)).cast::<f32>(), sum[r], scale, x);
                }
            }
        }
        walk.next(BLOCK, limbs);
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
