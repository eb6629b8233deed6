//! The functions of the vector unit, each written once over [`Ops`].
//!
//! All are defined for every input: a NaN gives the one NaN, an infinity gives the limit there, and an input below
//! 2^-120 in size counts as zero. Results below 2^-120 are +0.0.

use super::ops::{INFINITY, MAGNITUDE, NAN, ONE, Ops, SIGN};
use super::parts::{
    EXP_HIGH, EXP_LOW, Exp, Inverse, Pair, abs, at_least, at_most, exp_parts, inverse_parts, or_nan, ordered_sum,
    polynomial, power_of_two, product, quotient, sum, upper,
};

/// e^x.
#[inline(always)]
pub fn exp<O: Ops>(o: O, x: O::F) -> O::F {
    let x = o.flush(x);
    let Exp { high, n, .. } = exp_parts(o.within(), at_most(o, at_least(o, x, EXP_LOW), EXP_HIGH), None);
    // 2^n alone may be too large for a float, so n goes onto the exponent field; a field below that of 2^-120 flushes.
    let y = o.flush(o.float(o.iadd(o.bits(high), o.shl::<23>(n))));
    let y = o.select(o.lt(o.num(EXP_HIGH), x), o.float(o.int(INFINITY)), y);
    or_nan(o, x, y)
}

/// part * scale, the scale a power of two: left apart so that a product with the whole flushes only once.
struct Scaled<F> {
    part: F,
    scale: F,
}

/// sigmoid(v + low) for |v| <= -[`EXP_LOW`]: e / (1 + e) below zero, 1 / (1 + e) above, where e = exp(-|v|).
#[inline(always)]
fn sigmoid_parts<O: Ops>(o: O, v: O::F, low: Option<O::F>) -> Scaled<O::F> {
    let negative = o.lt(v, o.num(0.0));
    let down = o.float(o.or(o.bits(v), o.int(SIGN)));
    // The low part takes the sign that makes the whole argument negative.
    #[expect(clippy::manual_map, reason = "a closure would be compiled apart, without the caller's instruction set")]
    let low = match low {
        Some(low) => Some(o.select(negative, low, o.sub(o.num(0.0), low))),
        None => None,
    };
    let Exp { high, low, n } = exp_parts(o, down, low);
    let power = power_of_two(o, n);
    let one = o.num(1.0);
    let below = ordered_sum(o, one, o.mul(high, power));
    let by = inverse_parts(o, below.high, Some(o.add(below.low, o.mul(low, power))));
    let over = Pair { high: o.select(negative, high, one), low: o.select(negative, low, o.num(0.0)) };
    Scaled { part: quotient(o, &by, over), scale: o.select(negative, power, one) }
}

/// x * part * scale, zero where `vanishes`; the one NaN where x is a NaN.
#[inline(always)]
fn times<O: Ops>(o: O, x: O::F, s: &Scaled<O::F>, vanishes: O::M) -> O::F {
    let y = o.mul(o.mul(x, s.part), s.scale);
    or_nan(o, x, o.select(vanishes, o.num(0.0), y))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<O: Ops>(o: O, x: O::F) -> O::F {
    let x = o.flush(x);
    let s = sigmoid_parts(o.within(), at_most(o, at_least(o, x, EXP_LOW), -EXP_LOW), None);
    or_nan(o, x, o.mul(s.part, s.scale))
}

/// x * sigmoid(x).
#[inline(always)]
pub fn silu<O: Ops>(o: O, x: O::F) -> O::F {
    let x = o.flush(x);
    let s = sigmoid_parts(o.within(), at_most(o, at_least(o, x, EXP_LOW), -EXP_LOW), None);
    times(o, x, &s, o.lt(x, o.num(EXP_LOW)))
}

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x * sigmoid(x (c1 + c3 x^2)).
///
/// The argument is carried as a pair: e^v turns a relative error of v into one |v| times as large.
#[inline(always)]
pub fn gelu_tanh<O: Ops>(o: O, x: O::F) -> O::F {
    /// At -10 the result is 2^-122.
    const EDGE: f32 = 10.0;
    /// 2 sqrt(2/pi), and what its rounding leaves.
    const C1: (f32, f32) = (1.595_769_2, -4.534_068e-8);
    /// 0.044715 times that.
    const C3: (f32, f32) = (0.071_354_814, 2.398_832_5e-9);
    let x = o.flush(x);
    let i = o.within();
    let a = at_most(o, at_least(o, x, -EDGE), EDGE);
    let square = product(i, a, a);
    let cubic = product(i, i.num(C3.0), square.high);
    let low = i.add(cubic.low, i.add(i.mul(i.num(C3.0), square.low), i.mul(i.num(C3.1), square.high)));
    let slope = sum(i, i.num(C1.0), cubic.high);
    let low = i.add(slope.low, i.add(low, i.num(C1.1)));
    let v = product(i, a, slope.high);
    let low = i.add(v.low, i.mul(a, low));
    let s = sigmoid_parts(i, v.high, Some(low));
    times(o, x, &s, o.lt(x, o.num(-EDGE)))
}

/// x * Phi(x), Phi being the normal distribution: 0.5 x (1 + erf(x / sqrt 2)).
///
/// Phi(-a) = e^(-a^2/2) t W(t) with t = 1 / (a + 3) and W a minimax polynomial of relative error 2^-30 on 0 <= a <= 13.25,
/// so the lower tail keeps its relative accuracy; above zero Phi(x) = 1 - Phi(-x).
#[inline(always)]
pub fn gelu_erf<O: Ops>(o: O, x: O::F) -> O::F {
    /// At -13.2 the result is 2^-127.
    const EDGE: f32 = 13.2;
    /// The polynomial is in t less this, the middle of its range.
    const MIDDLE: f32 = 0.197_435_9;
    const W: [f32; 11] = [
        3_280.497_8,
        -308.740_27,
        -636.618_5,
        154.245_2,
        96.545_88,
        -40.416_565,
        -20.952_933,
        8.063_019,
        9.130_971,
        3.592_751_5,
        0.831_237_7,
    ];
    let x = o.flush(x);
    let a = at_most(o, abs(o, x), EDGE);
    let i = o.within();
    let square = product(i, a, a);
    let half = i.num(-0.5);
    let Exp { high, low, n } = exp_parts(i, i.mul(square.high, half), Some(i.mul(square.low, half)));
    let below = sum(i, a, i.num(3.0));
    let (by, down) = inverse_of_normal(i, below.high, Some(below.low));
    let t = i.mul(by.value(i), down);
    let w = polynomial(i, i.sub(t, i.num(MIDDLE)), W);
    let over = product(i, high, w);
    let over = Pair { high: over.high, low: i.add(over.low, i.mul(low, w)) };
    let power = power_of_two(i, n);
    let part = i.mul(quotient(i, &by, over), down);
    let (negative, one) = (i.lt(x, i.num(0.0)), i.num(1.0));
    let above = i.sub(one, i.mul(part, power));
    let phi = Scaled { part: i.select(negative, part, above), scale: i.select(negative, power, one) };
    times(o, x, &phi, o.lt(x, o.num(-EDGE)))
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + e) with e = exp(-|x|).
///
/// ln(1 + e) = e + e^2 R(e), R a minimax polynomial: relative error 2^-30 on 0 <= e <= 1.
#[inline(always)]
pub fn softplus<O: Ops>(o: O, x: O::F) -> O::F {
    const R: [f32; 10] = [
        0.002_072_946_4,
        -0.013_631_475,
        0.041_981_354,
        -0.083_074_06,
        0.124_671_23,
        -0.161_293_36,
        0.198_979_32,
        -0.249_885_8,
        0.333_326_9,
        -0.499_999_88,
    ];
    let x = o.flush(x);
    let down = at_least(o, o.float(o.or(o.bits(x), o.int(SIGN))), EXP_LOW);
    let i = o.within();
    let Exp { high, low, n } = exp_parts(i, down, None);
    let power = power_of_two(i, n);
    let e = i.mul(high, power);
    let bend = i.mul(e, polynomial(i, e, R));
    let log = o.mul(i.add(high, i.add(low, i.mul(high, bend))), power);
    let y = o.add(at_least(o, x, 0.0), log);
    or_nan(o, x, y)
}

/// (1 - e) / (1 + e) with e = exp(-2|x|), and x + x^3 P(x^2) where that would cancel.
#[inline(always)]
pub fn tanh<O: Ops>(o: O, x: O::F) -> O::F {
    /// Below this the odd polynomial serves, of relative error 2^-31.
    const SMALL: f32 = 0.35;
    /// From here on the result rounds to 1.
    const ONE_FROM: f32 = 10.0;
    const P: [f32; 4] = [0.019_420_952, -0.053_722_63, 0.133_323_49, -0.333_333_22];
    let x = o.flush(x);
    let a = at_most(o, abs(o, x), ONE_FROM);
    let i = o.within();
    let Exp { high, low, n } = exp_parts(i, i.mul(i.num(-2.0), a), None);
    let power = power_of_two(i, n);
    let (e, low) = (i.mul(high, power), i.mul(low, power));
    let one = i.num(1.0);
    let below = ordered_sum(i, one, e);
    let by = inverse_parts(i, below.high, Some(i.add(below.low, low)));
    let gap = i.sub(one, e);
    let over = Pair { high: gap, low: i.sub(i.sub(i.sub(one, gap), e), low) };
    let large = quotient(i, &by, over);
    let square = i.mul(a, a);
    let small = i.add(a, i.mul(i.mul(a, square), polynomial(i, square, P)));
    let size = o.select(o.lt(a, o.num(SMALL)), small, large);
    let y = o.float(o.or(o.bits(size), o.and(o.bits(x), o.int(SIGN))));
    or_nan(o, x, y)
}

/// 1 / (x + low) = the inverse's value * scale, for a normal x of size 2^-120 to 2^127, and positive where there is a
/// low part.
///
/// The exponent field is taken off, the significand in 1..2 inverted; the field, negated, is the scale.
#[inline(always)]
fn inverse_of_normal<O: Ops>(o: O, x: O::F, low: Option<O::F>) -> (Inverse<O>, O::F) {
    let bits = o.bits(x);
    let d = o.float(o.or(o.and(bits, o.int(0x007f_ffff)), o.int(ONE)));
    let field = o.isub(o.int(254 << 23), o.and(bits, o.int(INFINITY)));
    let scale = o.float(o.or(field, o.and(bits, o.int(SIGN))));
    #[expect(clippy::manual_map, reason = "a closure would be compiled apart, without the caller's instruction set")]
    let low = match low {
        Some(low) => Some(o.mul(low, scale)),
        None => None,
    };
    (inverse_parts(o, d, low), scale)
}

/// 1 / x. 1 / 0 is +infinity whatever the zero's sign, for `r` leaves only +0.
#[inline(always)]
pub fn recip<O: Ops>(o: O, x: O::F) -> O::F {
    let x = o.flush(x);
    // From 2^127 on the inverse flushes; the exponent field must not run out on the way there.
    let bits = o.bits(x);
    let sized = at_most(o, o.float(o.and(bits, o.int(MAGNITUDE))), f32::from_bits(253 << 23));
    let i = o.within();
    let (by, scale) = inverse_of_normal(i, o.float(o.or(o.bits(sized), o.and(bits, o.int(SIGN)))), None);
    let y = o.mul(by.value(i), scale);
    let y = o.select(o.ilt(o.int(0), o.and(bits, o.int(MAGNITUDE))), y, o.float(o.int(INFINITY)));
    or_nan(o, x, y)
}

/// 1 / sqrt(x). +infinity at zero, the one NaN below it.
///
/// x = m 4^j with m in 1..4. The start is the halved and negated exponent with a fitted offset (error 2^-4.8), one
/// Newton step takes it to 2^-9.1; with 12 bits of that kept, e = 1 - m rough^2 is exact to its last few bits and
/// (1 - e)^(-1/2) = 1 + e/2 + 3e^2/8 + 5e^3/16 leaves 2^-33.
#[inline(always)]
pub fn rsqrt<O: Ops>(o: O, x: O::F) -> O::F {
    let x = o.flush(x);
    let bits = o.bits(x);
    let next = o.iadd(o.shr::<23>(bits), o.int(1));
    let odd = o.and(next, o.int(1));
    let m = o.float(o.or(o.and(bits, o.int(0x007f_ffff)), o.iadd(o.int(ONE), o.shl::<23>(odd))));
    let start = o.float(o.isub(o.int(0x5f37_5a86), o.shr::<1>(o.bits(m))));
    let i = o.within();
    let half = i.mul(m, i.num(0.5));
    let newton = i.mul(start, i.sub(i.num(1.5), i.mul(half, i.mul(start, start))));
    let rough = upper(i, newton);
    let square = i.mul(rough, rough);
    let (m1, s1) = (upper(i, m), upper(i, square));
    let (m0, s0) = (i.sub(m, m1), i.sub(square, s1));
    let one = i.num(1.0);
    let e = i.sub(i.sub(one, i.mul(m1, s1)), i.add(i.mul(m1, s0), i.mul(m0, s1)));
    let e = i.sub(e, i.mul(m0, s0));
    let correction = i.mul(e, polynomial(i, e, [0.3125, 0.375, 0.5]));
    let y = i.add(rough, i.mul(rough, correction));
    // 2^-j: the field is 127 - j, and j = (field of x + 1) / 2 - 64.
    let scale = o.float(o.shl::<23>(o.isub(o.int(191), o.shr::<1>(next))));
    let y = o.mul(y, scale);
    // Compares on the bits: a shader compiler may take a float to be finite.
    let y = o.select(o.ilt(bits, o.int(INFINITY)), y, o.num(0.0));
    let y = o.select(o.ilt(o.int(0), bits), y, o.float(o.int(INFINITY)));
    let y = o.select(o.ilt(bits, o.int(0)), o.float(o.int(NAN)), y);
    or_nan(o, x, y)
}

/// max(x, 0).
#[inline(always)]
pub fn relu<O: Ops>(o: O, x: O::F) -> O::F {
    let x = o.flush(x);
    or_nan(o, x, at_least(o, x, 0.0))
}
