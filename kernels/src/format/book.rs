//! 4-bit weights: blocks of 16 values, a code an element that names one of 16 int8 levels, one scale byte a block.
//!
//! A [`Book`] is the table of levels and the shape of its scales:
//!
//! | book | levels | scale of a block |
//! |---|---|---|
//! | [`CODE4`] | 16 uneven ones in -127..=125, zero among them | `±m * 2^e`, `m` in 16..=31: sign in bit 0, `m - 16` in bits 4:1, exponent above the row's base in bits 7:5 |
//! | [`E2M1`] | twice the values of OCP's 4-bit float: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives | `m * 2^e`, `m` in 8..=15: `m - 8` in bits 2:0, exponent above the row's base in bits 7:3 |
//!
//! The levels of `CODE4` lie where they leave the least squared error on normally distributed weights when each block
//! searches its scale and sign as below; the table is lopsided, and the sign lets a block turn it over.
//!
//! A sum of 16 products is below 2^18, `m` has at most 5 bits: their product is exact in f32, like int8's.
//!
//! Quantising a block is a search, defined by integers alone so that every machine finds the same bytes:
//!
//! * `u` is each value in units of `2^(E - 12)`, rounded half up in magnitude, where the block's largest magnitude lies
//!   in `2^E .. 2^(E + 1)`: at most 8,192;
//! * a scale in those units is `s = m * 2^j`, `j >= 0`; it is tried when `16 * top * s` lies between `low` and `high`
//!   times the largest `|u|`, `top` being the table's largest magnitude, and when its exponent is not below the floor.
//!   Where the floor forbids all of these, the floor's smallest scale alone is tried;
//! * with a scale, an element's level is the largest whose midpoint with the one before it is below `u / s`;
//! * the scale with the least sum of squares of `u - level * s` is taken, the smallest of equals, positive before
//!   negative.
//!
//! A row's floor is at first [`EXP_MIN`]. Its base is the largest exponent that any block took, less what the scale
//! byte can count; blocks below it search again with the base as their floor. A block of zeros, or one so small that no
//! level but zero is nearest at the floor, has zero codes and scale byte 0.

use super::{Cause, EXP_MAX, EXP_MIN, max_bits, split};

/// Values in a block of a 4-bit format.
pub const HALF: usize = 16;

/// Bits of `u`: the largest magnitude lies in `2^(U_BITS - 1) ..= 2^U_BITS`.
const U_BITS: i32 = 13;
/// Shifts of a scale above the unit of `u` at which a block rounds to zero whatever its values.
const ZERO_SHIFT: i32 = 11;
/// The largest shift that a scale inside the window has.
const MAX_SHIFT: i32 = 7;

/// Levels and scales of a 4-bit format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Book {
    /// What each code stands for, ascending.
    pub(crate) levels: [i8; 16],
    /// Bits of a scale's mantissa: `m` in `2^mantissa .. 2^(mantissa + 1)`.
    pub(crate) mantissa: u32,
    /// Bits of the sign in a scale byte: 1 or 0.
    pub(crate) sign: u32,
    /// Sixteenths of the largest magnitude between which `top * s` is searched.
    low: i32,
    high: i32,
}

/// The uneven book.
pub(crate) static CODE4: Book = Book {
    levels: [-127, -105, -84, -66, -50, -36, -22, -10, 0, 14, 27, 41, 55, 71, 90, 125],
    mantissa: 4,
    sign: 1,
    low: 10,
    high: 21,
};

/// OCP's E2M1, doubled to be integers.
pub(crate) static E2M1: Book = Book {
    levels: [-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12],
    mantissa: 3,
    sign: 0,
    // A block whose largest element is E2M1's 4 has its own scale at one and a half of the smallest that reaches it.
    low: 12,
    high: 24,
};

/// A block as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    e: i32,
    m: i32,
    negative: bool,
    codes: [u8; HALF],
    error: i32,
}

impl Book {
    /// The code of zero.
    pub(crate) const fn zero(&self) -> u8 {
        let mut code = 0;
        while self.levels[code as usize] != 0 {
            code += 1;
        }
        code
    }

    /// Exponents that a scale byte counts above a row's base.
    pub(crate) const fn span(&self) -> i32 {
        (1 << (8 - self.mantissa - self.sign)) - 1
    }

    /// The value of a scale byte over a row's base.
    #[inline(always)]
    pub(crate) const fn scale(&self, base: i8, byte: u8) -> f32 {
        let magnitude = (self.offset(base) + (byte as u32 >> self.sign)) << (23 - self.mantissa);
        f32::from_bits(magnitude | (byte as u32 & self.sign) << 31)
    }

    /// What a row's base adds to its scale bytes, past their sign: `m * 2^e` is `1.m * 2^(e + mantissa)`.
    #[inline(always)]
    pub(crate) const fn offset(&self, base: i8) -> u32 {
        ((base as i32 + 127 + self.mantissa as i32) as u32) << self.mantissa
    }

    /// Largest magnitude of a level.
    const fn top(&self) -> i32 {
        let (first, last) = (-(self.levels[0] as i32), self.levels[15] as i32);
        if first > last { first } else { last }
    }

    const fn byte(&self, found: &Found, base: i32) -> u8 {
        let m = found.m - (1 << self.mantissa);
        (((found.e - base) << self.mantissa | m) << self.sign) as u8 | found.negative as u8
    }

    /// Quantise one row; returns its exponent base. `put(block, scale byte, codes)` receives each block of 16 in order,
    /// the last one padded with codes of zero.
    ///
    /// # Errors
    /// The first block that has no form, with its cause; nothing was put.
    pub(crate) fn quantise(
        &'static self,
        row: &[f32],
        put: impl FnMut(usize, u8, &[u8; HALF]),
    ) -> Result<i8, (usize, Cause)> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { self.quantise_avx2(row, put) };
        }
        self.quantise_row(row, put)
    }

    /// [`Book::quantise_row`] compiled for AVX2: the same integer operations.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn quantise_avx2(
        &'static self,
        row: &[f32],
        put: impl FnMut(usize, u8, &[u8; HALF]),
    ) -> Result<i8, (usize, Cause)> {
        self.quantise_row(row, put)
    }

    #[inline(always)]
    fn quantise_row(
        &'static self,
        row: &[f32],
        mut put: impl FnMut(usize, u8, &[u8; HALF]),
    ) -> Result<i8, (usize, Cause)> {
        let mut found = Vec::with_capacity(row.len().div_ceil(HALF));
        let mut top = EXP_MIN;
        for (block, values) in row.chunks(HALF).enumerate() {
            let best = self.search(values, EXP_MIN).map_err(|cause| (block, cause))?;
            top = top.max(best.e);
            found.push(best);
        }
        let base = (top - self.span()).max(EXP_MIN);
        for (block, (values, mut best)) in row.chunks(HALF).zip(found).enumerate() {
            if best.e < base {
                best = self.search(values, base).map_err(|cause| (block, cause))?;
            }
            put(block, self.byte(&best, base), &best.codes);
        }
        Ok(base as i8)
    }

    /// The best scale of a block whose exponent is not below `floor`, and its codes.
    #[inline(always)]
    fn search(&'static self, values: &[f32], floor: i32) -> Result<Found, Cause> {
        let max = max_bits(values)?;
        let nothing = Found { e: floor, m: 1 << self.mantissa, negative: false, codes: [self.zero(); HALF], error: 0 };
        let (exp, hidden) = split(max);
        // The exponent of u's unit; the largest M of 24 bits has U_BITS of them there, or rounds up to the next power.
        let unit = exp + 24 - U_BITS;
        if hidden == 0 || floor - unit > ZERO_SHIFT {
            return Ok(nothing);
        }
        let mut u = [0_i32; HALF];
        for (u, v) in u.iter_mut().zip(values) {
            let (exp, hidden) = split(v.to_bits());
            let shift = (unit - exp).clamp(0, 31) as u32;
            let size = ((hidden as u64 + (1_u64 << shift >> 1)) >> shift) as i32;
            *u = if v.is_sign_negative() { -size } else { size };
        }
        let largest = u.iter().fold(0, |largest, u| u.abs().max(largest));
        let mut best: Option<Found> = None;
        let first = (floor - unit).max(0);
        for shift in first..=first.max(MAX_SHIFT) {
            for m in (1 << self.mantissa)..(2 << self.mantissa) {
                let reach = 16 * self.top() * (m << shift);
                let inside = self.low * largest <= reach && reach <= self.high * largest;
                // The floor's smallest scale stands for all that it forbids.
                let bottom = shift == first && m == 1 << self.mantissa && reach > self.high * largest;
                if !inside && !bottom {
                    continue;
                }
                for negative in [false, true] {
                    if negative && self.sign == 0 {
                        continue;
                    }
                    let error = self.error(&u, if negative { -(m << shift) } else { m << shift });
                    if best.is_none_or(|best| error < best.error) {
                        best = Some(Found { e: unit + shift, m, negative, error, ..nothing });
                    }
                }
            }
        }
        let Some(mut best) = best else { unreachable!("the window is wider than the step from one scale to the next") };
        if best.e > EXP_MAX {
            let limit = self.top() as f32 * ((2 << self.mantissa) - 1) as f32 * super::pow2(EXP_MAX);
            return Err(Cause::TooLarge { given: f32::from_bits(max), limit });
        }
        let s = best.m << (best.e - unit);
        best.codes = self.codes(&u, if best.negative { -s } else { s });
        if best.codes == nothing.codes {
            return Ok(nothing);
        }
        Ok(best)
    }

    /// Sum of the squares that a scale leaves. Zero is a level, so no difference exceeds `u`: 26 bits squared, 30 in all,
    /// and the wrapping operations, which keep the loop free of branches, never wrap.
    #[inline(always)]
    fn error(&'static self, u: &[i32; HALF], s: i32) -> i32 {
        let mut nearest = [i32::from(self.levels[0]).wrapping_mul(s); HALF];
        // With a negative scale the levels descend; both sides change their sign.
        let sign = s.signum();
        let turned = u.map(|u| u.wrapping_mul(2).wrapping_mul(sign));
        for pair in self.levels.windows(2) {
            let (a, b) = (i32::from(pair[0]).wrapping_mul(s), i32::from(pair[1]).wrapping_mul(s));
            let middle = a.wrapping_add(b).wrapping_mul(sign);
            for (nearest, u) in nearest.iter_mut().zip(&turned) {
                *nearest = if *u > middle { b } else { *nearest };
            }
        }
        nearest.iter().zip(u).fold(0, |sum, (n, u)| {
            let d = u.wrapping_sub(*n);
            d.wrapping_mul(d).wrapping_add(sum)
        })
    }

    /// The codes under a scale.
    fn codes(&'static self, u: &[i32; HALF], s: i32) -> [u8; HALF] {
        u.map(|u| {
            let above = |pair: &&[i8]| 2 * u * s.signum() > (i32::from(pair[0]) + i32::from(pair[1])) * s.abs();
            self.levels.windows(2).filter(above).count() as u8
        })
    }
}

#[cfg(test)]
mod tests;
