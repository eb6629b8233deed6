//! NEON forms of the array unit over 4-bit codes.
//!
//! A 128-bit load holds four columns of both halves of a block for four rows. A nibble goes through a table look-up of
//! the book's 16 levels; from there on it is the int8 form, half a block at a time.

use super::matvec::{AHEAD, Run, pick};
use super::matvec_neon::{FOURS, Products, Sums, neon, widen};
use crate::ahead;
use crate::format::Book;
use crate::matvec::{CODE_BYTES, TILE_ROWS};
use std::arch::aarch64::*;

/// What a book's codes and scale bytes are decoded with.
#[derive(Clone, Copy)]
struct Tables {
    levels: int8x16_t,
    offsets: [uint32x4_t; FOURS],
    /// Shift of a scale byte's sign to the top, out of the register where it has none.
    sign: int32x4_t,
    /// Shift of its other bits to the mantissa and the exponent.
    shift: int32x4_t,
    /// The mantissa and the exponent without the bit that the sign leaves below them.
    mask: uint32x4_t,
}

/// # Safety
/// `run.check(rows, lanes)` has passed, the rows have `LIMBS` limbs, the other operands are those of `run.scales`, and
/// the processor has `P`'s instructions.
#[inline(always)]
pub(super) unsafe fn accumulate<P: Products, const LIMBS: usize, const R: usize>(
    run: &Run<'_>,
    bases: &[u8; TILE_ROWS],
    codes: &[u8],
    book: &Book,
    rows: &[usize],
    lanes: &mut [[f32; TILE_ROWS]],
) {
    let offsets: [u32; TILE_ROWS] = std::array::from_fn(|r| book.offset(bases[r] as i8) << book.sign);
    let shift = 23 - book.mantissa - book.sign;
    // SAFETY: an array of 16 bytes, four quarters of one of 16 words.
    let tables = unsafe {
        Tables {
            levels: vld1q_s8(book.levels.as_ptr()),
            offsets: std::array::from_fn(|i| vld1q_u32(offsets.as_ptr().add(4 * i))),
            sign: vdupq_n_s32(32 - book.sign as i32),
            shift: vdupq_n_s32(shift as i32),
            mask: vdupq_n_u32(!(book.sign << shift)),
        }
    };
    for b in 0..run.blocks {
        // SAFETY: the check covers every block's codes and scales, and every row's block in the activations and lanes.
        unsafe {
            let elements = run.elements.as_ptr().add(b * run.stride);
            for line in 0..CODE_BYTES / ahead::LINE {
                ahead::line(elements.wrapping_add(AHEAD + line * ahead::LINE));
            }
            let lane = lanes.as_mut_ptr().add(run.lane(b));
            let scales = codes.as_ptr().add(2 * b * TILE_ROWS);
            let scales = [0, 1].map(|half| tables.scale(vld1q_u8(scales.add(half * TILE_ROWS))));
            let mut i = 0;
            while rows.len() - i >= R {
                block::<P, LIMBS, R>(run, b, elements, &tables, scales, pick(rows, i), lane.add(i * run.lanes));
                i += R;
            }
            while i < rows.len() {
                block::<P, LIMBS, 1>(run, b, elements, &tables, scales, pick(rows, i), lane.add(i * run.lanes));
                i += 1;
            }
        }
    }
}

impl Tables {
    /// The scales of 16 scale bytes.
    #[inline(always)]
    fn scale(&self, bytes: uint8x16_t) -> [float32x4_t; FOURS] {
        let bytes = widen(bytes);
        std::array::from_fn(|i| {
            neon!({
                let magnitude = vshlq_u32(vaddq_u32(bytes[i], self.offsets[i]), self.shift);
                let sign = vshlq_u32(bytes[i], self.sign);
                vreinterpretq_f32_u32(vorrq_u32(sign, vandq_u32(magnitude, self.mask)))
            })
        })
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
    tables: &Tables,
    scales: [[float32x4_t; FOURS]; 2],
    rows: [usize; R],
    lane: *mut [f32; TILE_ROWS],
) {
    let at = rows.map(|row| row * run.acts.blocks() + run.first_act + b);
    for (half, scale) in scales.into_iter().enumerate() {
        let mut sums = Sums::<P, LIMBS, R>::new();
        // SAFETY: `at` counts blocks of the activations, all inside; a block's codes are 256 bytes.
        unsafe {
            sums.add_half(run, at, half, |quad| {
                let quad = elements.add(quad * TILE_ROWS * 4);
                std::array::from_fn(|i| {
                    let both = vld1q_u8(quad.add(16 * i));
                    let nibbles = if half == 0 { vandq_u8(both, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(both) };
                    vqtbl1q_s8(tables.levels, nibbles)
                })
            });
            sums.add_to_lanes(run, at, scale, lane);
        }
    }
}

const _: () = assert!(CODE_BYTES == 256 && TILE_ROWS == 16);
