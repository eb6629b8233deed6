//! NEON form of the activation quantiser.
//!
//! Dividing by a power of two is exact in f32 wherever the quotient matters, and the conversion to integers rounds half
//! to even, so these float operations give what the definition in [`crate::format`] gives by integer ones.

use super::matvec::RowOut;
use super::matvec_neon::neon;
use crate::format::{BLOCK, Cause, Limbs, max_bits, pow2, pow2_exponent};
use std::arch::aarch64::*;

/// Quantise a row; `out` holds exactly its blocks.
pub(super) fn quantise(row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
    match limbs {
        Limbs::One => row_blocks::<1>(row, limbs, out),
        Limbs::Two => row_blocks::<2>(row, limbs, out),
    }
}

fn row_blocks<const N: usize>(row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
    let (q8, _) = out.q8.as_chunks_mut::<BLOCK>();
    let (q16, _) = out.q16.as_chunks_mut::<BLOCK>();
    let limbs_out = q8.chunks_exact_mut(N).zip(q16);
    let fixes = out.fix.chunks_exact_mut(N).zip(out.half.chunks_exact_mut(N));
    let places = limbs_out.zip(fixes).zip(out.scale.iter_mut());
    for ((block, part), (((q8, q16), (fix, half)), scale)) in row.chunks(BLOCK).enumerate().zip(places) {
        let mut padded = [0.0; BLOCK];
        let values = part.try_into().unwrap_or_else(|_| {
            padded[..part.len()].copy_from_slice(part);
            &padded
        });
        let x = load(values);
        let max = largest(&x);
        // Not finite: the definition says which value.
        let max = if max < 0x7f80_0000 { Ok(max) } else { max_bits(values) };
        let e = max.and_then(|max| pow2_exponent(max, limbs)).map_err(|cause| (block, cause))?;
        *scale = pow2(e);
        let q = integers(&x, e);
        widen(q, q16);
        if N == 1 {
            (fix[0], half[0]) = put(q, &mut q8[0]);
            continue;
        }
        // |q| + 128 fits 16 bits, and the sum's upper byte is the high limb.
        let hi = q.map(|q| neon!(vshrq_n_s16::<8>(vaddq_s16(q, vdupq_n_s16(128)))));
        let lo = std::array::from_fn(|i| neon!(vsubq_s16(q[i], vshlq_n_s16::<8>(hi[i]))));
        (fix[0], half[0]) = put(hi, &mut q8[0]);
        (fix[N - 1], half[N - 1]) = put(lo, &mut q8[N - 1]);
    }
    Ok(())
}

#[inline(always)]
fn load(values: &[f32; BLOCK]) -> [float32x4_t; 8] {
    // SAFETY: eight times four values.
    std::array::from_fn(|i| unsafe { vld1q_f32(values.as_ptr().add(4 * i)) })
}

/// The bits of the largest magnitude.
#[inline(always)]
fn largest(x: &[float32x4_t; 8]) -> u32 {
    neon!({
        let size = |x: &float32x4_t| vreinterpretq_u32_f32(vabsq_f32(*x));
        vmaxvq_u32(x[1..].iter().fold(size(&x[0]), |max, x| vmaxq_u32(max, size(x))))
    })
}

/// The block's quotients by 2^e as 16-bit integers, in order.
#[inline(always)]
fn integers(x: &[float32x4_t; 8], e: i32) -> [int16x8_t; 4] {
    let inverse = neon!(vdupq_n_f32(pow2(-e)));
    let quotient = |x: float32x4_t| neon!(vcvtnq_s32_f32(vmulq_f32(x, inverse)));
    std::array::from_fn(|i| neon!(vqmovn_high_s32(vqmovn_s32(quotient(x[2 * i])), quotient(x[2 * i + 1]))))
}

/// Store a block's integers in the order k, k + 2, k + 1, k + 3 of each quad.
#[inline(always)]
fn widen(q: [int16x8_t; 4], q16: &mut [i16; BLOCK]) {
    const ORDER: [u8; 16] = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
    // SAFETY: an array of 16 bytes; four times eight values are stored.
    unsafe {
        let order = vld1q_u8(ORDER.as_ptr());
        for (i, q) in q.into_iter().enumerate() {
            let ordered = vqtbl1q_u8(vreinterpretq_u8_s16(q), order);
            vst1q_s16(q16.as_mut_ptr().add(8 * i), vreinterpretq_s16_u8(ordered));
        }
    }
}

/// Store a limb as bytes; returns -128 times its sum, and times that of its first half.
#[inline(always)]
fn put(limb: [int16x8_t; 4], q8: &mut [i8; BLOCK]) -> (i32, i32) {
    // SAFETY: 32 bytes are stored.
    unsafe {
        for i in 0..2 {
            let bytes = vmovn_high_s16(vmovn_s16(limb[2 * i]), limb[2 * i + 1]);
            vst1q_s8(q8.as_mut_ptr().add(16 * i), bytes);
        }
    }
    let sum = limb.map(|limb| neon!(vaddlvq_s16(limb)));
    let first = (sum[0] + sum[1]) * -128;
    (first + (sum[2] + sum[3]) * -128, first)
}
