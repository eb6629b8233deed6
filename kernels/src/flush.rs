//! The float operation of every unit but the array: rounded once, then flushed.
//!
//! `r(x)` is +0.0 where |x| < 2^-120 and x elsewhere, so neither a subnormal nor a negative zero exists in any value of
//! the engine. The threshold stands far above the subnormal range on purpose: devices disagree about what happens near
//! 2^-126, and a decaying memory goes right through it. The control word of the processor is never touched; the flush
//! is a compare on the exponent bits, which means the same on every device.
//!
//! A NaN stays a NaN; its sign and payload are outside the contract, for the engine refuses a row that holds one.

/// Exponent field of 2^-120, the smallest size that is kept.
pub const MIN_FIELD: i32 = 7;

/// Mask of the exponent field.
pub const EXPONENT: i32 = 0x7f80_0000;

/// +0.0 where |x| < 2^-120, else x.
#[inline(always)]
#[must_use]
pub const fn r(x: f32) -> f32 {
    if (x.to_bits() as i32 & EXPONENT) < MIN_FIELD << 23 { 0.0 } else { x }
}

/// r(a + b).
#[inline(always)]
#[must_use]
pub const fn add(a: f32, b: f32) -> f32 {
    r(a + b)
}

/// r(a - b).
#[inline(always)]
#[must_use]
pub const fn sub(a: f32, b: f32) -> f32 {
    r(a - b)
}

/// r(a * b).
#[inline(always)]
#[must_use]
pub const fn mul(a: f32, b: f32) -> f32 {
    r(a * b)
}

/// Flushes every element in place: what a parameter goes through once, when it is loaded.
pub fn flush_all(values: &mut [f32]) {
    for value in values {
        *value = r(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_at_least_two_to_the_minus_120() {
        let edge = f32::from_bits(7 << 23);
        assert_eq!(edge, 2f32.powi(-120));
        assert_eq!(r(edge), edge);
        assert_eq!(r(-edge), -edge);
        for x in [f32::MAX, f32::MIN, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(r(x).to_bits(), x.to_bits());
        }
        assert!(r(f32::NAN).is_nan());
    }

    #[test]
    fn everything_smaller_is_plus_zero() {
        let below = f32::from_bits((7 << 23) - 1);
        for x in [below, f32::MIN_POSITIVE, f32::from_bits(1), 0.0] {
            assert_eq!(r(x).to_bits(), 0);
            assert_eq!(r(-x).to_bits(), 0);
        }
    }

    #[test]
    fn operations_round_once_and_flush() {
        assert_eq!(add(1.0, f32::EPSILON / 2.0), 1.0, "ties to even");
        assert_eq!(mul(2f32.powi(-60), 2f32.powi(-60)), 2f32.powi(-120));
        assert_eq!(mul(2f32.powi(-60), -2f32.powi(-61)).to_bits(), 0);
        let near = 2f32.powi(-110);
        assert_eq!(sub(near * (1.0 + 2f32.powi(-23)), near).to_bits(), 0, "a difference of 2^-133");
        let mut row = [1e-38, -0.0, 3.0];
        flush_all(&mut row);
        assert_eq!(row.map(f32::to_bits), [0, 0, 3f32.to_bits()]);
    }
}
