//! Softmax terms as they enter the array: each times the scale of its position's values.

use crate::cpu::vector::{Job, Simd};
use crate::flush::mul;
use crate::vector::{Form, VectorUnit};

/// A row of terms and the exponents of their positions' scales.
struct Weigh<'a> {
    terms: &'a [f32],
    exponents: &'a [u8],
    out: &'a mut [f32],
}

impl Job for Weigh<'_> {
    type Output = ();

    // One plain loop for every instruction set: the compiler makes its vectors.
    #[inline(always)]
    fn run<O: Simd>(self, _: O) {
        for ((out, term), e) in self.out.iter_mut().zip(self.terms).zip(self.exponents) {
            // 2^e by its bits: the exponents of a cache are those of the format, far from the ends of f32.
            let scale = f32::from_bits((i32::from(*e as i8).wrapping_add(127) << 23) as u32);
            *out = mul(*term, scale);
        }
    }
}

impl VectorUnit {
    /// `out[i] = r(terms[i] * 2^exponents[i])` over the shortest of the three; exponents are i8.
    pub(crate) fn weigh(&self, terms: &[f32], exponents: &[u8], out: &mut [f32]) {
        self.form().enter(Weigh { terms, exponents, out });
    }
}

/// Holds a form to the definition.
///
/// # Errors
/// The first test whose bits differ.
pub(crate) fn check(form: Form) -> Result<(), String> {
    for values in crate::vector::Values::ALL {
        for n in [1, 7, 32, 100] {
            let terms = values.make(n, n as u32);
            let exponents: Vec<u8> = (0..n as i32).map(|i| (i * 13 % 101 - 60) as i8 as u8).collect();
            let mut out = vec![0.0; n];
            form.enter(Weigh { terms: &terms, exponents: &exponents, out: &mut out });
            let want = terms.iter().zip(&exponents).map(|(x, e)| mul(*x, crate::format::pow2(i32::from(*e as i8))));
            if !out.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()) {
                return Err(format!("softmax terms of {values:?} values, width {n}"));
            }
        }
    }
    Ok(())
}
