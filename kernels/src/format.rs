//! Block-scaled int8: blocks of 32 values along the reduction dimension, int8 elements, one scale a block; and in `book`
//! the 4-bit formats whose codes name int8 levels.
//!
//! The quantiser is defined by integer operations on the bits of its f32 input, so that every device that can add,
//! shift and compare integers makes the same block:
//!
//! * the scale is the smallest one in range under which the block's largest magnitude needs no more than
//!   [`WEIGHT_MAX`] (weights, one limb) or [`TWO_LIMB_MAX`] (two limbs);
//! * an element is the quotient by that scale, rounded half to even;
//! * a weight scale is `m * 2^e` with `m` in 8..=15, an activation scale `2^e`, `e` in [`EXP_MIN`]`..=`[`EXP_MAX`];
//! * a row of weights holds its scales in one byte each, `m - 8` and five bits of exponent above the row's own base,
//!   so that a row's bits depend on that row alone;
//! * a block of zeros (or of values that all round to zero) has elements 0 and the smallest scale, code 0.
//!
//! With these bounds a limb's product with a block times both scales is exact in f32, 20 bits of sum times 4 bits of `m`,
//! and the product of both limbs together times `m` is an i32.

mod book;

pub use book::HALF;
pub(crate) use book::{Book, CODE4, E2M1};

/// How the array unit's matrices are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weights {
    /// int8 in blocks of 32: this module's own format.
    #[default]
    Int8,
    /// 4 bits in blocks of 16: uneven int8 levels, signed searched scales (`book`).
    Code4,
    /// 4 bits in blocks of 16: OCP's E2M1 values, searched scales (`book`).
    E2m1,
}

impl Weights {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::Int8, Self::Code4, Self::E2m1];

    /// Levels and scales of a 4-bit format.
    pub(crate) const fn book(self) -> Option<&'static Book> {
        match self {
            Self::Int8 => None,
            Self::Code4 => Some(&CODE4),
            Self::E2m1 => Some(&E2M1),
        }
    }
}

/// Values in a block.
pub const BLOCK: usize = 32;
/// Largest element magnitude in one limb.
pub const WEIGHT_MAX: u32 = 127;
/// Largest magnitude in two limbs: `256 * 127 + 127`.
pub const TWO_LIMB_MAX: u32 = 32_639;
/// Smallest scale exponent.
pub const EXP_MIN: i32 = -60;
/// Largest scale exponent.
pub const EXP_MAX: i32 = 40;
/// Exponents that a row's scale codes can reach above the row's base.
pub const EXP_SPAN: i32 = 31;

/// int8 limbs of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limbs {
    /// `q = lo`, |q| <= 127.
    One,
    /// `q = 256 * hi + lo`, |q| <= 32,639, `hi` in -127..=127, `lo` in -128..=127.
    Two,
}

impl Limbs {
    /// How many.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Limbs::One => 1,
            Limbs::Two => 2,
        }
    }

    /// Largest magnitude.
    #[must_use]
    pub const fn max(self) -> u32 {
        match self {
            Limbs::One => WEIGHT_MAX,
            Limbs::Two => TWO_LIMB_MAX,
        }
    }
}

/// Accumulator lanes `L` of the array: block `b` adds to lane `b mod L`. 4, 8, 16 or 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lanes(u8);

impl Lanes {
    /// The most lanes there can be.
    pub const MAX: usize = 32;

    /// `None` unless the count is 4, 8, 16 or 32.
    #[must_use]
    pub const fn new(count: u8) -> Option<Self> {
        match count {
            4 | 8 | 16 | 32 => Some(Self(count)),
            _ => None,
        }
    }

    /// How many.
    #[must_use]
    pub const fn count(self) -> usize {
        self.0 as usize
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self(8)
    }
}

/// Why a block has no int8 form.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Cause {
    /// A value is NaN or infinite.
    #[error("{0} is not a finite number")]
    NotFinite(f32),
    /// The block needs a scale above the range.
    #[error("magnitude {given:e} is above {limit:e}, the largest that the block scale can reach")]
    TooLarge {
        /// Largest magnitude of the block.
        given: f32,
        /// Largest magnitude that has a scale.
        limit: f32,
    },
}

/// A block that cannot be quantised, by its place.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("row {row}, block {block} (columns {} to {}): {cause}", block * BLOCK, block * BLOCK + BLOCK - 1)]
pub struct QuantError {
    /// Row of the matrix, or token-row of the step.
    pub row: usize,
    /// Block along the reduction dimension.
    pub block: usize,
    /// Why.
    pub cause: Cause,
}

/// The bits of the largest magnitude of a block.
///
/// # Errors
/// [`Cause::NotFinite`].
#[inline(always)]
pub(crate) fn max_bits(values: &[f32]) -> Result<u32, Cause> {
    let max = values.iter().fold(0, |max, v| (v.to_bits() & 0x7fff_ffff).max(max));
    if max < 0x7f80_0000 {
        return Ok(max);
    }
    let bad = values.iter().copied().find(|v| !v.is_finite()).unwrap_or(f32::NAN);
    Err(Cause::NotFinite(bad))
}

/// The exponent `E` and the 24-bit integer `M` of a magnitude `M * 2^E`. A subnormal counts as zero: its quotient by
/// the smallest scale is below one half.
#[inline(always)]
const fn split(bits: u32) -> (i32, u32) {
    let field = (bits >> 23) & 0xff;
    let hidden = if field == 0 { 0 } else { (bits & 0x7f_ffff) | 0x80_0000 };
    (field as i32 - 150, hidden)
}

/// Exponent of the smallest power of two `2^e` with `max <= limit * 2^e`, at least [`EXP_MIN`].
///
/// # Errors
/// [`Cause::TooLarge`].
#[inline(always)]
pub(crate) fn pow2_exponent(max: u32, limbs: Limbs) -> Result<i32, Cause> {
    let (exp, m) = split(max);
    // limit * 2^shift lies in 2^23 .. 2^24 as M does, so e is E + shift, or one more.
    let shift = limbs.max().leading_zeros() as i32 - 8;
    let e = exp + shift + i32::from(m > limbs.max() << shift);
    let e = if m == 0 { EXP_MIN } else { e.max(EXP_MIN) };
    if e <= EXP_MAX {
        return Ok(e);
    }
    let limit = limbs.max() as f32 * pow2(EXP_MAX);
    Err(Cause::TooLarge { given: f32::from_bits(max), limit })
}

/// `2^e`, `e` in -126..=127.
#[inline(always)]
pub(crate) const fn pow2(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

/// `value / 2^e` rounded half to even.
#[inline(always)]
pub(crate) const fn quantise_pow2(value: f32, e: i32) -> i32 {
    let bits = value.to_bits();
    let (exp, m) = split(bits);
    // The scale was chosen so that 9 <= k for every element; from 25 on the quotient is below one half. The wrapping
    // operations never wrap: they keep the loop over a block free of branches.
    let k = e.wrapping_sub(exp);
    let k = (if k > 31 { 31 } else { k }) as u32 & 31;
    let below_half = (1_u32 << (k.wrapping_sub(1) & 31)).wrapping_sub(1);
    let q = (m.wrapping_add(below_half).wrapping_add((m >> k) & 1) >> k) as i32;
    let sign = bits as i32 >> 31;
    (q ^ sign).wrapping_sub(sign)
}

/// The limbs `(hi, lo)` of a value.
#[inline(always)]
pub(crate) const fn limbs_of(q: i32) -> (i8, i8) {
    let lo = q as i8;
    ((q.wrapping_sub(lo as i32) >> 8) as i8, lo)
}

/// A weight scale `m * 2^e`, `m` in 8..=15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scale {
    pub(crate) e: i32,
    pub(crate) m: u32,
}

impl Scale {
    /// The smallest scale with `max <= 127 * m * 2^e`, at least `8 * 2^EXP_MIN`.
    ///
    /// # Errors
    /// [`Cause::TooLarge`].
    #[inline(always)]
    pub(crate) fn smallest(max: u32) -> Result<Self, Cause> {
        let (exp, big) = split(max);
        // 127 * 8 * 2^13 < 2^23 <= M < 2^24 < 127 * 9 * 2^14, so one of these is the first that reaches M.
        let scales = (8..16).map(|m| (13, m)).chain([(14, 8), (14, 9)]);
        let (shift, m) = scales.into_iter().find(|(shift, m)| (WEIGHT_MAX * m) << shift >= big).unwrap_or((14, 9));
        let scale = Scale { e: exp + shift, m };
        let scale = if big == 0 { Scale::bottom(EXP_MIN) } else { scale.max(Scale::bottom(EXP_MIN)) };
        if scale.e <= EXP_MAX {
            return Ok(scale);
        }
        let limit = (WEIGHT_MAX * 15) as f32 * pow2(EXP_MAX);
        Err(Cause::TooLarge { given: f32::from_bits(max), limit })
    }

    /// The smallest scale over a base.
    pub(crate) const fn bottom(base: i32) -> Self {
        Self { e: base, m: 8 }
    }

    /// The base of a row whose largest block scale is this one.
    pub(crate) fn base(self) -> i32 {
        (self.e - EXP_SPAN).max(EXP_MIN)
    }

    /// The scale's byte in a row of this base; the scale is at least the base's smallest.
    pub(crate) const fn code(self, base: i32) -> u8 {
        ((self.e - base) << 3) as u8 | (self.m - 8) as u8
    }

    /// `value / scale` rounded half to even.
    #[inline(always)]
    pub(crate) const fn quantise(self, value: f32) -> i8 {
        let bits = value.to_bits();
        let (exp, big) = split(bits);
        // The scale was chosen so that 13 <= k for every element; from 22 on the quotient is below one half. The
        // wrapping operations never wrap: they keep the loop over a block free of branches.
        let k = self.e.wrapping_sub(exp);
        let k = (if k > 24 { 24 } else { k }) as u32 & 31;
        // Quotient by m of an integer below 2^11: the reciprocal's error of 2^-16 cannot reach the next integer.
        let q = (big >> k).wrapping_mul(0x1_0000 / self.m + 1) >> 16;
        let unit = self.m << k;
        let twice_rest = big.wrapping_sub(q.wrapping_mul(unit)) << 1;
        let up = (twice_rest > unit) as u32 | ((twice_rest == unit) as u32 & q);
        let q = q.wrapping_add(up & 1) as i32;
        let sign = bits as i32 >> 31;
        (q ^ sign).wrapping_sub(sign) as i8
    }
}

/// The value of a scale byte over a row's base: the byte's low three bits are the top of an f32's mantissa, its high
/// five add to the exponent.
#[inline(always)]
pub(crate) const fn scale_value(base: i8, code: u8) -> f32 {
    f32::from_bits((scale_offset(base) + code as u32) << 20)
}

/// What a row's base adds to its scale bytes: `m * 2^e` is `1.mmm * 2^(e + 3)`.
#[inline(always)]
pub(crate) const fn scale_offset(base: i8) -> u32 {
    ((base as i32 + 130) as u32) << 3
}

/// Quantise one row of weights; returns its exponent base. `put(block, scale byte, elements)` receives each block in
/// order, the last one padded with zeros.
///
/// # Errors
/// The first block that has no int8 form, with its cause; nothing was put.
pub(crate) fn quantise_weights(row: &[f32], put: impl FnMut(usize, u8, &[i8; BLOCK])) -> Result<i8, (usize, Cause)> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { quantise_weights_avx2(row, put) };
    }
    quantise_row(row, put)
}

/// [`quantise_row`] compiled for AVX2: the same integer operations.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn quantise_weights_avx2(row: &[f32], put: impl FnMut(usize, u8, &[i8; BLOCK])) -> Result<i8, (usize, Cause)> {
    quantise_row(row, put)
}

#[inline(always)]
fn quantise_row(row: &[f32], mut put: impl FnMut(usize, u8, &[i8; BLOCK])) -> Result<i8, (usize, Cause)> {
    let scale_of =
        |(block, values): (usize, &[f32])| max_bits(values).and_then(Scale::smallest).map_err(|cause| (block, cause));
    let mut top = Scale::bottom(EXP_MIN);
    for block in row.chunks(BLOCK).enumerate() {
        top = top.max(scale_of(block)?);
    }
    let base = top.base();
    for (block, values) in row.chunks(BLOCK).enumerate() {
        let scale = scale_of((block, values))?.max(Scale::bottom(base));
        let mut q = [0; BLOCK];
        for (q, v) in q.iter_mut().zip(values) {
            *q = scale.quantise(*v);
        }
        put(block, scale.code(base), &q);
    }
    Ok(base as i8)
}

#[cfg(test)]
mod tests;
