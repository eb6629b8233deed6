//! AVX-512 VNNI form of the array unit over 4-bit codes.
//!
//! A 512-bit load holds four columns of both halves of a block for all 16 rows. A nibble goes through a shuffle of the
//! book's 16 levels, biased by 128, into the unsigned operand of `vpdpbusd`; from there on it is the int8 form, half a
//! block at a time.

use super::matvec::{AHEAD, Run, pick};
use super::walk::{Walk, groups};
use crate::ahead;
use crate::format::{BLOCK, Book, HALF};
use crate::matvec::{CODE_BYTES, TILE_ROWS, ZERO};
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows of a block that share its loads and shuffles.
const R: usize = 8;

/// What a book's codes and scale bytes are decoded with.
#[derive(Clone, Copy)]
struct Tables {
    levels: __m512i,
    offsets: __m512i,
    /// Shift of a scale byte's sign to the top, out of the register where it has none.
    sign: __m512i,
    /// Shift of its other bits to the mantissa and the exponent.
    shift: __m512i,
    /// The mantissa and the exponent without the bit that the sign leaves below them.
    mask: __m512i,
}

/// # Safety
/// `run.check(rows, lanes)` has passed, the rows have `LIMBS` limbs, and the other operands are those of `run.scales`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn accumulate<const LIMBS: usize>(
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
    // SAFETY: arrays of 16 bytes and of 16 words.
    let tables = unsafe {
        Tables {
            levels: _mm512_broadcast_i32x4(_mm_loadu_si128(levels.as_ptr().cast())),
            offsets: _mm512_loadu_si512(offsets.as_ptr().cast()),
            sign: _mm512_set1_epi32(32 - book.sign as i32),
            shift: _mm512_set1_epi32(shift as i32),
            mask: _mm512_set1_epi32(!((book.sign as i32) << shift)),
        }
    };
    run.ask();
    groups(run, rows, lanes, R, |part, rows, lane| {
        // SAFETY: as the caller promises.
        unsafe {
            match rows.len() {
                R => blocks::<LIMBS, R>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
                4 => blocks::<LIMBS, 4>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
                3 => blocks::<LIMBS, 3>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
                2 => blocks::<LIMBS, 2>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
                _ => blocks::<LIMBS, 1>(run, part, codes.as_ptr(), &tables, pick(rows, 0), lane),
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
    #[target_feature(enable = "avx512f")]
    unsafe fn scale(&self, bytes: *const u8) -> __m512 {
        // SAFETY: as the caller promises.
        let bytes = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.cast()) });
        let magnitude = _mm512_sllv_epi32(_mm512_add_epi32(bytes, self.offsets), self.shift);
        // sign | (magnitude & mask)
        let bits = _mm512_ternarylogic_epi32::<0xf8>(_mm512_sllv_epi32(bytes, self.sign), magnitude, self.mask);
        _mm512_castsi512_ps(bits)
    }
}

/// Some blocks, `R` rows; `lane` is the first row's first, the next row's lies `run.lanes` on.
///
/// # Safety
/// As [`accumulate`]; the pointers are to what the check covers.
#[expect(clippy::needless_range_loop, reason = "a row is the index of several arrays")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn blocks<const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    part: Range<usize>,
    codes: *const u8,
    tables: &Tables,
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let mut walk = Walk::new(run, part.start, rows, run.acts.q8(), LIMBS * BLOCK);
    // What the loop stores might be any of this, for all that the compiler knows.
    let (first, stride, lanes, first_lane) = (run.elements.as_ptr(), run.stride, run.lanes, run.first_lane);
    let tables = *tables;
    for b in part {
        // SAFETY: the check covers every block's codes and scales, and every row's block in the activations and lanes.
        unsafe {
            let elements = first.add(b.wrapping_mul(stride));
            for line in 0..CODE_BYTES / ahead::LINE {
                ahead::near(elements.wrapping_add(AHEAD).wrapping_add(line * ahead::LINE));
            }
            let lane = lane.add(first_lane.wrapping_add(b) & lanes.wrapping_sub(1));
            for half in 0..2 {
                let mut sum = [[_mm512_setzero_si512(); LIMBS]; R];
                for r in 0..R {
                    for (limb, sum) in sum[r].iter_mut().enumerate() {
                        let first = *walk.half[r].add(limb);
                        let fix = if half == 0 { first } else { (*walk.fix[r].add(limb)).wrapping_sub(first) };
                        *sum = _mm512_set1_epi32(fix);
                    }
                }
                for quad in 0..HALF / 4 {
                    let both = _mm512_loadu_si512(elements.add(quad * TILE_ROWS * 4).cast());
                    let nibbles = if half == 0 { both } else { _mm512_srli_epi16(both, 4) };
                    let w = _mm512_shuffle_epi8(tables.levels, _mm512_and_si512(nibbles, _mm512_set1_epi8(15)));
                    for r in 0..R {
                        for (limb, sum) in sum[r].iter_mut().enumerate() {
                            let x = walk.q[r].add(limb * BLOCK + half * HALF + quad * 4).cast::<i32>().read_unaligned();
                            *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(x));
                        }
                    }
                }
                let scale = tables.scale(codes.add(b.wrapping_mul(2 * TILE_ROWS).wrapping_add(half * TILE_ROWS)));
                for r in 0..R {
                    // A limb's product is exact, so that what adds two of them rounds the whole product once.
                    let s = _mm512_mul_ps(scale, _mm512_set1_ps(*walk.scale[r]));
                    let lane = lane.add(r.wrapping_mul(lanes)).cast::<f32>();
                    let mut product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][LIMBS - 1]), s);
                    if LIMBS == 2 {
                        let high = _mm512_cvtepi32_ps(sum[r][0]);
                        let high = _mm512_mul_ps(high, _mm512_mul_ps(s, _mm512_set1_ps(256.0)));
                        product = _mm512_add_ps(high, product);
                    }
                    _mm512_storeu_ps(lane, _mm512_add_ps(_mm512_loadu_ps(lane), product));
                }
            }
        }
        walk.next(LIMBS * BLOCK, LIMBS);
    }
}

const _: () = assert!(CODE_BYTES == 256 && TILE_ROWS == 16);
