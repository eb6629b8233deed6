//! The pieces that the functions share: pairs of floats, powers of two, e^x in parts, the inverse in parts.
//!
//! A pair (high, low) stands for the exact sum of its two floats. It carries what a single float would round away past
//! the few steps where that would show in the result.

use super::ops::{INFINITY, MAGNITUDE, NAN, ONE, Ops};

/// Arguments of [`exp_parts`] stay at or above this: 2^n is then a normal number.
pub(super) const EXP_LOW: f32 = -87.33;
/// The largest x whose e^x is below 2^128.
pub(super) const EXP_HIGH: f32 = 88.722_83;

/// The unevaluated sum of two floats.
pub(super) struct Pair<O: Ops> {
    pub(super) high: O::F,
    pub(super) low: O::F,
}

/// |x|.
#[inline(always)]
pub(super) fn abs<O: Ops>(o: O, x: O::F) -> O::F {
    o.float(o.and(o.bits(x), o.int(MAGNITUDE)))
}

/// The smaller of x and a constant; the constant where x is a NaN.
#[inline(always)]
pub(super) fn at_most<O: Ops>(o: O, x: O::F, bound: f32) -> O::F {
    let bound = o.num(bound);
    o.select(o.lt(x, bound), x, bound)
}

/// The larger of x and a constant; the constant where x is a NaN.
#[inline(always)]
pub(super) fn at_least<O: Ops>(o: O, x: O::F, bound: f32) -> O::F {
    let bound = o.num(bound);
    o.select(o.lt(bound, x), x, bound)
}

/// y, or the one NaN where x is a NaN.
#[inline(always)]
pub(super) fn or_nan<O: Ops>(o: O, x: O::F, y: O::F) -> O::F {
    let nan = o.ilt(o.int(INFINITY), o.and(o.bits(x), o.int(MAGNITUDE)));
    o.select(nan, o.float(o.int(NAN)), y)
}

/// x with the lower 12 of its 24 significant bits cleared: a product of two such values is exact.
#[inline(always)]
pub(super) fn upper<O: Ops>(o: O, x: O::F) -> O::F {
    o.float(o.and(o.bits(x), o.int(!0xfff)))
}

/// Horner's rule, highest coefficient first.
#[inline(always)]
pub(super) fn polynomial<O: Ops, const N: usize>(o: O, x: O::F, coefficients: [f32; N]) -> O::F {
    let mut sum = o.num(coefficients[0]);
    for c in &coefficients[1..] {
        sum = o.add(o.mul(sum, x), o.num(*c));
    }
    sum
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
pub(super) fn power_of_two<O: Ops>(o: O, n: O::I) -> O::F {
    o.float(o.iadd(o.shl::<23>(n), o.int(ONE)))
}

/// a + b as a pair; exact where |a| >= |b|.
#[inline(always)]
pub(super) fn ordered_sum<O: Ops>(o: O, a: O::F, b: O::F) -> Pair<O> {
    let high = o.add(a, b);
    Pair { high, low: o.sub(b, o.sub(high, a)) }
}

/// a + b as a pair; exact in any order of size.
#[inline(always)]
pub(super) fn sum<O: Ops>(o: O, a: O::F, b: O::F) -> Pair<O> {
    let high = o.add(a, b);
    let of_b = o.sub(high, a);
    let of_a = o.sub(high, of_b);
    Pair { high, low: o.add(o.sub(a, of_a), o.sub(b, of_b)) }
}

/// a * b as a pair; exact where no part of it is flushed.
#[inline(always)]
pub(super) fn product<O: Ops>(o: O, a: O::F, b: O::F) -> Pair<O> {
    let high = o.mul(a, b);
    let (a1, b1) = (upper(o, a), upper(o, b));
    let (a0, b0) = (o.sub(a, a1), o.sub(b, b1));
    let rest = o.sub(o.mul(a1, b1), high);
    let rest = o.add(o.add(rest, o.mul(a1, b0)), o.mul(a0, b1));
    Pair { high, low: o.add(rest, o.mul(a0, b0)) }
}

/// e^x = (high + low) * 2^n with high in 0.7..1.42.
pub(super) struct Exp<O: Ops> {
    pub(super) high: O::F,
    pub(super) low: O::F,
    pub(super) n: O::I,
}

/// e^(x + low), for [`EXP_LOW`] <= x <= [`EXP_HIGH`] and a low part within half an ulp of x or so.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2. ln 2 is held as a 10-bit head, whose product with n is exact, and a tail. The
/// polynomial is the minimax fit of (e^r - 1 - r) / r^2, relative error 2^-28.
#[inline(always)]
pub(super) fn exp_parts<O: Ops>(o: O, x: O::F, low: Option<O::F>) -> Exp<O> {
    // Added to a value below 2^22 in size, this leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let shifted = o.add(o.mul(x, o.num(std::f32::consts::LOG2_E)), o.num(ROUND));
    let n = o.isub(o.bits(shifted), o.int(ROUND.to_bits() as i32));
    let whole = o.sub(shifted, o.num(ROUND));
    let tail = o.mul(whole, o.num(-2.121_944_4e-4));
    // No closures here or below: one would be compiled apart, without the caller's instruction set.
    let tail = match low {
        Some(low) => o.sub(tail, low),
        None => tail,
    };
    let r = o.sub(o.sub(x, o.mul(whole, o.num(0.693_359_4))), tail);
    let p = polynomial(o, r, [0.001_381_453_9, 0.008_368_745, 0.041_668_39, 0.166_665_21, 0.499_999_94]);
    let rise = o.add(r, o.mul(o.mul(r, r), p));
    let Pair { high, low } = ordered_sum(o, o.num(1.0), rise);
    Exp { high, low, n }
}

/// 1 / d = rough * (1 + correction); rough has 12 significant bits.
pub(super) struct Inverse<O: Ops> {
    pub(super) rough: O::F,
    pub(super) correction: O::F,
}

impl<O: Ops> Inverse<O> {
    /// 1 / d, rounded once but for a 2^-30 or so.
    #[inline(always)]
    pub(super) fn value(&self, o: O) -> O::F {
        o.add(self.rough, o.mul(self.rough, self.correction))
    }
}

/// 1 / (d + low) for 1 <= d <= 2 and a low part below an ulp of d.
///
/// The cubic is the one whose d * p(d) - 1 equioscillates on 1..=2, at 1/577: the Chebyshev polynomial T4(2d - 3) / 577.
/// What is left, e = 1 - d * rough, is exact to its last few bits, and 1 / (1 - e) = 1 + e + e^2 + e^3 leaves 2^-35.
#[inline(always)]
pub(super) fn inverse_parts<O: Ops>(o: O, d: O::F, low: Option<O::F>) -> Inverse<O> {
    let rough = upper(o, polynomial(o, d, [-0.221_837_09, 1.331_022_5, -2.939_341_3, 2.828_422_8]));
    let head = upper(o, d);
    let tail = o.sub(d, head);
    let e = o.sub(o.sub(o.num(1.0), o.mul(head, rough)), o.mul(tail, rough));
    let e = match low {
        Some(low) => o.sub(e, o.mul(low, rough)),
        None => e,
    };
    let one = o.num(1.0);
    let correction = o.mul(e, o.add(one, o.mul(e, o.add(one, e))));
    Inverse { rough, correction }
}

/// (high + low) / d from the parts of 1 / d, rounded once at the end but for a 2^-30 or so.
#[inline(always)]
pub(super) fn quotient<O: Ops>(o: O, by: &Inverse<O>, Pair { high, low }: Pair<O>) -> O::F {
    let near = o.mul(high, by.rough);
    let head = upper(o, high);
    let rest = o.sub(o.mul(head, by.rough), near);
    let rest = o.add(rest, o.mul(o.sub(high, head), by.rough));
    let rest = o.add(rest, o.mul(low, by.rough));
    o.add(near, o.add(o.mul(near, by.correction), rest))
}
