//! Widening: stored elements to f32.
//!
//! Exact for F32, F16, BF16, F8_E4M3, F8_E5M2, I8 and U8. F64 rounds to the nearest f32, ties to even; a magnitude past
//! f32's range becomes infinite, which the weight image refuses by tensor name. Bytes are little-endian and need no
//! alignment.

use half::{bf16, f16};
use safetensors::Dtype;

/// True when elements of this type are values that a weight can have. Wider integers are indices or masks, and
/// block-scaled types mean nothing without the tensor of their scales.
#[must_use]
pub fn widens(dtype: Dtype) -> bool {
    size(dtype).is_some()
}

/// Bytes of one element; `None` when the type is no weight's.
pub(super) fn size(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::I8 | Dtype::U8 => Some(1),
        _ => None,
    }
}

/// Elements of a type that [`widens`] into f32; `None` when it does not, or when `bytes` is not `out.len()` elements.
pub fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> Option<()> {
    scatter(dtype, bytes, out, 1)
}

/// Element i of `bytes` to `out[i * stride]`, for as many elements as `bytes` holds; `None` when one has no place.
pub(super) fn scatter(dtype: Dtype, bytes: &[u8], out: &mut [f32], stride: usize) -> Option<()> {
    let size = size(dtype)?;
    let count = bytes.len() / size;
    if !bytes.len().is_multiple_of(size) || (count > 0 && (count - 1).checked_mul(stride)? >= out.len()) {
        return None;
    }
    match dtype {
        Dtype::F64 => run(bytes, out, stride, |b| f64::from_le_bytes(b) as f32),
        Dtype::F32 => run(bytes, out, stride, f32::from_le_bytes),
        Dtype::F16 => run(bytes, out, stride, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => run(bytes, out, stride, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F8_E4M3 => run(bytes, out, stride, |[b]: [u8; 1]| E4M3[usize::from(b)]),
        // E5M2 is the upper byte of an f16.
        Dtype::F8_E5M2 => run(bytes, out, stride, |[b]: [u8; 1]| f16::from_le_bytes([0, b]).to_f32()),
        Dtype::I8 => run(bytes, out, stride, |b| f32::from(i8::from_le_bytes(b))),
        Dtype::U8 => run(bytes, out, stride, |[b]: [u8; 1]| f32::from(b)),
        _ => return None,
    }
    Some(())
}

fn run<const N: usize>(bytes: &[u8], out: &mut [f32], stride: usize, one: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    if stride == 1 {
        for (value, element) in out.iter_mut().zip(elements) {
            *value = one(*element);
        }
    } else {
        for (value, element) in out.iter_mut().step_by(stride.max(1)).zip(elements) {
            *value = one(*element);
        }
    }
}

/// Every F8_E4M3 value (the "fn" form of OCP's 8-bit float: bias 7, no infinity, all-ones is NaN).
static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = e4m3(code as u8);
        code += 1;
    }
    table
};

const fn e4m3(code: u8) -> f32 {
    let sign = (code as u32 & 0x80) << 24;
    let (exponent, mantissa) = ((code as u32 >> 3) & 15, code as u32 & 7);
    if exponent == 15 && mantissa == 7 {
        return f32::from_bits(sign | 0x7fc0_0000);
    }
    if exponent == 0 {
        // Subnormal: mantissa * 2^-9, exact in f32.
        let magnitude = mantissa as f32 / 512.0;
        return if sign == 0 { magnitude } else { -magnitude };
    }
    f32::from_bits(sign | ((exponent + 127 - 7) << 23) | (mantissa << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(dtype: Dtype, bytes: &[u8]) -> f32 {
        let mut out = [7.0];
        widen(dtype, bytes, &mut out).unwrap();
        out[0]
    }

    #[test]
    fn every_f16_bf16_and_small_value_is_exact() {
        for code in 0..=u16::MAX {
            let f = one(Dtype::F16, &code.to_le_bytes());
            let (sign, e, m) = ((code >> 15) as i32, (code >> 10 & 31) as i32, (code & 1023) as f64);
            let magnitude = if e == 0 { m * 2f64.powi(-24) } else { (1024.0 + m) * 2f64.powi(e - 25) };
            match (e, m as u16) {
                (31, 0) => assert_eq!(f, if sign == 1 { f32::NEG_INFINITY } else { f32::INFINITY }),
                (31, _) => assert!(f.is_nan()),
                _ => assert_eq!(f64::from(f), if sign == 1 { -magnitude } else { magnitude }),
            }
            assert_eq!(
                one(Dtype::BF16, &code.to_le_bytes()).to_bits() | 0x40_0000,
                (u32::from(code) << 16) | 0x40_0000
            );
        }
        for code in 0..=u8::MAX {
            assert_eq!(one(Dtype::U8, &[code]), f32::from(code));
            assert_eq!(one(Dtype::I8, &[code]), f32::from(code as i8));
        }
    }

    #[test]
    fn every_fp8_value_follows_its_definition() {
        for code in 0..=u8::MAX {
            let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
            let (e, m) = (i32::from(code >> 3 & 15), f64::from(code & 7));
            let f = one(Dtype::F8_E4M3, &[code]);
            if code & 0x7f == 0x7f {
                assert!(f.is_nan());
            } else {
                let magnitude = if e == 0 { m * 2f64.powi(-9) } else { (8.0 + m) * 2f64.powi(e - 10) };
                assert_eq!(f64::from(f), sign * magnitude);
                assert_eq!(f.is_sign_negative(), sign < 0.0);
            }
            let (e, m) = (i32::from(code >> 2 & 31), f64::from(code & 3));
            let f = one(Dtype::F8_E5M2, &[code]);
            let magnitude = if e == 0 { m * 2f64.powi(-16) } else { (4.0 + m) * 2f64.powi(e - 17) };
            match (e, m as u8) {
                (31, 0) => assert_eq!(f64::from(f), sign * f64::INFINITY),
                (31, _) => assert!(f.is_nan()),
                _ => assert_eq!(f64::from(f), sign * magnitude),
            }
        }
        assert_eq!(one(Dtype::F8_E4M3, &[0x7e]), 448.0);
        assert_eq!(one(Dtype::F8_E5M2, &[0x7b]), 57344.0);
    }

    #[test]
    fn f64_rounds_half_even() {
        let tie = 1.0 + 2f64.powi(-24);
        assert_eq!(one(Dtype::F64, &tie.to_le_bytes()), 1.0);
        assert_eq!(one(Dtype::F64, &(tie + 2f64.powi(-23)).to_le_bytes()), 1.0 + 2.0 * f32::EPSILON);
        assert_eq!(one(Dtype::F64, &1e300f64.to_le_bytes()), f32::INFINITY);
    }

    #[test]
    fn other_types_and_wrong_lengths_are_refused() {
        assert!(widen(Dtype::I64, &[0; 8], &mut [0.0]).is_none());
        assert!(widen(Dtype::F32, &[0; 6], &mut [0.0; 2]).is_none());
        assert!(widen(Dtype::F32, &[0; 8], &mut [0.0; 1]).is_none());
    }
}
