//! MXFP4: matrices stored as two tensors of bytes, 4-bit floats and the powers of two that they are multiplied by.
//!
//! Beside `X_blocks`, U8 `[…, blocks, 16]`, stands `X_scales`, U8 `[…, blocks]`: together the tensor `X`,
//! `[…, 32 * blocks]`. A byte holds two elements of OCP's E2M1 (sign, two bits of exponent, one of mantissa), the lower half
//! first; a scale is OCP's E8M0, 2^(code - 127), and 255 is no number. Every product is a value of f32, subnormal ones
//! among them, so reading rounds nothing; one past f32's range becomes infinite, which the weight image refuses by tensor
//! name, as it does what is no number.
//!
//! Source of the formats: OCP Microscaling Formats (MX), version 1.0, sections 5.2 and 5.3.3.

use super::header::Entry;
use safetensors::Dtype;
use std::collections::BTreeMap;

/// Elements that share a scale.
pub const BLOCK: usize = 32;
/// Name endings of the two tensors.
pub const ENDINGS: [&str; 2] = ["_blocks", "_scales"];

/// A matrix stored as two tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// Names of the elements' tensor and of the scales'.
    pub(super) stored: [String; 2],
    /// Shape of what they are together.
    pub(super) shape: Vec<usize>,
}

/// The pairs among a checkpoint's tensors, by the name of what they are together. Two tensors that only look alike, and
/// pairs whose name is taken, are none: whoever asks for tensors finds them unread, and says so.
pub(super) fn pairs<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<String, Pair> {
    let entries: BTreeMap<&str, &Entry> = entries.map(|entry| (entry.name.as_str(), entry)).collect();
    let pair = |blocks: &Entry| {
        let name = blocks.name.strip_suffix(ENDINGS[0])?;
        let scales = entries.get(format!("{name}{}", ENDINGS[1]).as_str())?;
        let (bytes, outer) = blocks.shape.split_last()?;
        let (count, rows) = outer.split_last()?;
        let fits = blocks.dtype == Dtype::U8
            && scales.dtype == Dtype::U8
            && *bytes == BLOCK / 2
            && scales.shape == outer
            && !rows.is_empty()
            && !entries.contains_key(name);
        let shape = rows.iter().copied().chain([count.checked_mul(BLOCK)?]).collect();
        fits.then(|| (name.to_owned(), Pair { stored: [blocks.name.clone(), scales.name.clone()], shape }))
    };
    entries.values().filter_map(|entry| pair(entry)).collect()
}

/// Elements `first..` of what `codes` and `scales` are together, one to every `stride`-th place of `out` from the first on;
/// as many as `count`. `None` when one of them, or of the places, is not there.
pub(super) fn scatter(
    codes: &[u8],
    scales: &[u8],
    first: usize,
    count: usize,
    out: &mut [f32],
    stride: usize,
) -> Option<()> {
    let end = first.checked_add(count)?;
    let last = count.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride))?;
    if end > codes.len().checked_mul(2)? || end > scales.len().checked_mul(BLOCK)? || (count > 0 && last >= out.len()) {
        return None;
    }
    for (at, value) in (first..end).zip(out.iter_mut().step_by(stride.max(1))) {
        let code = codes[at / 2] >> (4 * (at % 2)) & 15;
        *value = E2M1[usize::from(code)] * power(scales[at / BLOCK]);
    }
    Some(())
}

/// Every E2M1 value.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// An E8M0 scale: 2^(code - 127), the lowest of them subnormal in f32.
fn power(code: u8) -> f32 {
    f32::from_bits(match code {
        0 => 1 << 22,
        255 => 0x7fc0_0000,
        code => u32::from(code) << 23,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_at_every_scale_is_the_product_in_f64() {
        let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0_f64];
        for scale in 0..=254_u8 {
            for code in 0..16_u8 {
                let mut out = [7.0, 7.0];
                scatter(&[code << 4 | code], &[scale], 0, 2, &mut out, 1).unwrap();
                let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
                let exact = sign * magnitudes[usize::from(code & 7)] * 2f64.powi(i32::from(scale) - 127);
                let expected = if exact.abs() > f64::from(f32::MAX) { sign * f64::INFINITY } else { exact };
                assert_eq!(out.map(f64::from), [expected; 2], "code {code}, scale {scale}");
                assert!(out.iter().all(|v| v.is_sign_negative() == (sign < 0.0)));
            }
        }
        let mut out = [0.0];
        scatter(&[0x11], &[255], 0, 1, &mut out, 1).unwrap();
        assert!(out[0].is_nan());
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        let mut out = [0.0; 4];
        assert!(scatter(&[0; 16], &[0], 0, 33, &mut [0.0; 40], 1).is_none());
        assert!(scatter(&[0; 32], &[0], 31, 2, &mut out, 1).is_none());
        assert!(scatter(&[0; 16], &[0], usize::MAX, 2, &mut out, 1).is_none());
        assert!(scatter(&[0; 16], &[0], 0, 5, &mut out, 1).is_none());
        assert!(scatter(&[0; 16], &[0], 0, 3, &mut out, 2).is_none());
        assert!(scatter(&[0; 16], &[0], 32, 0, &mut [], 3).is_some());
    }
}
