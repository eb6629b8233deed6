//! AVX2 form of the activation quantiser.
//!
//! Dividing by a power of two is exact in f32 wherever the quotient matters, and the conversion to integers rounds half
//! to even, so these float operations give what the definition in [`crate::format`] gives by integer ones.

use super::matvec::RowOut;
use crate::format::{BLOCK, Cause, Limbs, max_bits, pow2, pow2_exponent};
use std::arch::x86_64::*;

/// Quantise a row; `out` holds exactly its blocks.
#[target_feature(enable = "avx2")]
pub(super) fn quantise(row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
    match limbs {
        Limbs::One => rows_blocks::<1>(row, limbs, out),
        Limbs::Two => rows_blocks::<2>(row, limbs, out),
    }
}

#[target_feature(enable = "avx2")]
fn rows_blocks<const N: usize>(row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
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
        let max = largest(x);
        // Not finite: the definition says which value.
        let max = if max < 0x7f80_0000 { Ok(max) } else { max_bits(values) };
        let e = max.and_then(|max| pow2_exponent(max, limbs)).map_err(|cause| (block, cause))?;
        *scale = pow2(e);
        let q = integers(x, e);
        widen(q, q16);
        if N == 1 {
            (fix[0], half[0]) = put(q, &mut q8[0]);
            continue;
        }
        // |q| + 128 fits 16 bits, and the sum's upper byte is the high limb.
        let hi = q.map(|q| _mm256_srai_epi16(_mm256_add_epi16(q, _mm256_set1_epi16(128)), 8));
        let lo = [0, 1].map(|i| _mm256_sub_epi16(q[i], _mm256_slli_epi16(hi[i], 8)));
        (fix[0], half[0]) = put(hi, &mut q8[0]);
        (fix[N - 1], half[N - 1]) = put(lo, &mut q8[N - 1]);
    }
    Ok(())
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(values: &[f32; BLOCK]) -> [__m256; 4] {
    // SAFETY: four times eight values.
    [0, 8, 16, 24].map(|i| unsafe { _mm256_loadu_ps(values.as_ptr().add(i)) })
}

/// The bits of the largest magnitude.
#[inline]
#[target_feature(enable = "avx2")]
fn largest(x: [__m256; 4]) -> u32 {
    let size = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff)));
    let max = _mm256_max_epu32(_mm256_max_epu32(size[0], size[1]), _mm256_max_epu32(size[2], size[3]));
    let max = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32(max, 0b01_00_11_10));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32(max, 0b10_11_00_01));
    _mm_cvtsi128_si32(max) as u32
}

/// The block's quotients by 2^e as 16-bit integers, in order.
#[inline]
#[target_feature(enable = "avx2")]
fn integers(x: [__m256; 4], e: i32) -> [__m256i; 2] {
    let inverse = _mm256_set1_ps(pow2(-e));
    let q = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)));
    // Packing works in halves; the permutation puts the quarters back in order.
    [(q[0], q[1]), (q[2], q[3])].map(|(a, b)| _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0b11_01_10_00))
}

/// Store a block's integers in the order k, k + 2, k + 1, k + 3 of each quad.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(q: [__m256i; 2], q16: &mut [i16; BLOCK]) {
    let order = _mm256_setr_epi8(
        0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,
    );
    for (i, q) in q.into_iter().enumerate() {
        // SAFETY: twice sixteen values.
        unsafe { _mm256_storeu_si256(q16.as_mut_ptr().add(16 * i).cast(), _mm256_shuffle_epi8(q, order)) };
    }
}

/// Store a limb as bytes; returns -128 times its sum, and times that of its first half.
#[inline]
#[target_feature(enable = "avx2")]
fn put(limb: [__m256i; 2], q8: &mut [i8; BLOCK]) -> (i32, i32) {
    let bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(limb[0], limb[1]), 0b11_01_10_00);
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(q8.as_mut_ptr().cast(), bytes) };
    let pairs = limb.map(|limb| _mm256_madd_epi16(limb, _mm256_set1_epi16(-128)));
    let sums = _mm256_hadd_epi32(pairs[0], pairs[1]);
    let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    let sums = _mm_hadd_epi32(sums, sums);
    let (first, second) = (_mm_cvtsi128_si32(sums), _mm_extract_epi32(sums, 1));
    (first.wrapping_add(second), first)
}
