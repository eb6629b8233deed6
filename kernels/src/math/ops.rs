//! `Ops`: the operations that every function of the vector unit is written in, and their scalar form.
//!
//! The set is what every device of today rounds correctly: three float operations through `r`, moves
//! between a float and its bits, integer arithmetic on the bits, two compares, a select. A function written once over
//! `Ops` runs on scalars (the definition), on SIMD vectors, and on a recorder that turns it into text for a shader.

use crate::flush;

/// Bits of the one NaN that the functions return.
pub const NAN: i32 = 0x7fc0_0000;
/// Bits of +infinity.
pub const INFINITY: i32 = 0x7f80_0000;
/// Mask of every bit but the sign.
pub const MAGNITUDE: i32 = 0x7fff_ffff;
/// The sign bit.
pub const SIGN: i32 = i32::MIN;
/// Bits of 1.0.
pub const ONE: i32 = 127 << 23;

/// One device's elementary operations on a float, an integer and a mask, each one value or one vector of values.
///
/// Float operations round to nearest even and pass `r` ([`flush::r`]); integer operations wrap.
pub trait Ops: Copy {
    /// Floats.
    type F: Copy;
    /// 32-bit integers.
    type I: Copy;
    /// Truth values.
    type M: Copy;
    /// See [`Ops::within`].
    type Within: Ops<F = Self::F, I = Self::I, M = Self::M>;

    /// The operations for the inside of a function, where `r` never changes the function's result.
    ///
    /// By definition they pass `r` like all others. A form may leave it out there and spare three instructions in four:
    /// the sweeps over all 2^32 inputs hold it to the same bits.
    fn within(self) -> Self::Within;

    /// A float constant.
    fn num(self, value: f32) -> Self::F;
    /// An integer constant.
    fn int(self, value: i32) -> Self::I;

    /// r(a + b).
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// r(a - b).
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// r(a * b).
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// r(x).
    fn flush(self, x: Self::F) -> Self::F;

    /// The bits of a float.
    fn bits(self, x: Self::F) -> Self::I;
    /// The float of some bits.
    fn float(self, x: Self::I) -> Self::F;

    /// Wrapping sum.
    fn iadd(self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping difference.
    fn isub(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise exclusive or.
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    /// Left shift by N, 0 <= N < 32.
    fn shl<const N: i32>(self, x: Self::I) -> Self::I;
    /// Logical right shift by N, 0 <= N < 32.
    fn shr<const N: i32>(self, x: Self::I) -> Self::I;

    /// a < b; false where either is a NaN. Neither is subnormal, so no device can disagree.
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    /// a < b, signed.
    fn ilt(self, a: Self::I, b: Self::I) -> Self::M;
    /// yes where the mask is true, no elsewhere.
    fn select(self, mask: Self::M, yes: Self::F, no: Self::F) -> Self::F;
}

/// One value at a time: the definition of the bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

impl Ops for Scalar {
    type F = f32;
    type I = i32;
    type M = bool;
    type Within = Self;

    #[inline(always)]
    fn within(self) -> Self {
        self
    }
    #[inline(always)]
    fn num(self, value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn int(self, value: i32) -> i32 {
        value
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        flush::add(a, b)
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        flush::sub(a, b)
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        flush::mul(a, b)
    }
    #[inline(always)]
    fn flush(self, x: f32) -> f32 {
        flush::r(x)
    }
    #[inline(always)]
    fn bits(self, x: f32) -> i32 {
        x.to_bits() as i32
    }
    #[inline(always)]
    fn float(self, x: i32) -> f32 {
        f32::from_bits(x as u32)
    }
    #[inline(always)]
    fn iadd(self, a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn isub(self, a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }
    #[inline(always)]
    fn and(self, a: i32, b: i32) -> i32 {
        a & b
    }
    #[inline(always)]
    fn or(self, a: i32, b: i32) -> i32 {
        a | b
    }
    #[inline(always)]
    fn xor(self, a: i32, b: i32) -> i32 {
        a ^ b
    }
    #[inline(always)]
    fn shl<const N: i32>(self, x: i32) -> i32 {
        x << N
    }
    #[inline(always)]
    fn shr<const N: i32>(self, x: i32) -> i32 {
        (x as u32 >> N) as i32
    }
    #[inline(always)]
    fn lt(self, a: f32, b: f32) -> bool {
        a < b
    }
    #[inline(always)]
    fn ilt(self, a: i32, b: i32) -> bool {
        a < b
    }
    #[inline(always)]
    fn select(self, mask: bool, yes: f32, no: f32) -> f32 {
        if mask { yes } else { no }
    }
}
