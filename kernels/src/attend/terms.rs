//! Softmax terms as they enter the array: each times the scale of its position's values.

use crate::cpu::vector::{Job, Simd};
use crate::flush::mul;
use crate::format::BLOCK;
use crate::vector::{Form, VectorUnit};

/// Every head's terms of some pages, for each block of value elements.
pub(crate) struct Weigh<'a, E> {
    /// A head's terms, `stride` after those of the head before.
    pub(crate) terms: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) heads: usize,
    pub(crate) pages: usize,
    /// Blocks of value elements.
    pub(crate) blocks: usize,
    /// The exponents of a page's positions in a block of value elements, as i8.
    pub(crate) exponents: E,
    /// `[blocks][heads][pages][32]`.
    pub(crate) out: &'a mut [f32],
}

impl<'e, E: Fn(usize, usize) -> &'e [u8; BLOCK]> Job for Weigh<'_, E> {
    type Output = ();

    // One plain loop for every instruction set: the compiler makes its vectors.
    #[inline(always)]
    fn run<O: Simd>(self, _: O) {
        let Weigh { terms, stride, heads, pages, blocks, exponents, out } = self;
        let (out, _) = out.as_chunks_mut::<BLOCK>();
        for block in 0..blocks {
            for page in 0..pages {
                // 2^e by its bits: the exponents of a cache are those of the format, far from the ends of f32.
                let scale = |e: &u8| f32::from_bits((i32::from(*e as i8).wrapping_add(127) << 23) as u32);
                let exponents = exponents(page, block);
                for head in 0..heads {
                    let terms = &terms[head * stride + page * BLOCK..][..BLOCK];
                    let out = &mut out[(block * heads + head) * pages + page];
                    for ((out, term), e) in out.iter_mut().zip(terms).zip(exponents) {
                        *out = mul(*term, scale(e));
                    }
                }
            }
        }
    }
}

impl VectorUnit {
    /// `out[i] = r(terms[i] * 2^exponents[i])`.
    pub(crate) fn weigh<'e>(&self, weigh: Weigh<'_, impl Fn(usize, usize) -> &'e [u8; BLOCK]>) {
        self.form().enter(weigh);
    }
}

/// Holds a form to the definition.
///
/// # Errors
/// The first test whose bits differ.
pub(crate) fn check(form: Form) -> Result<(), String> {
    for values in crate::vector::Values::ALL {
        for [heads, pages, blocks] in [[1, 1, 1], [2, 1, 3], [3, 4, 1], [2, 3, 2]] {
            let stride = pages * BLOCK + 7;
            let terms = values.make(heads * stride, (heads + pages) as u32);
            let exponents: Vec<[u8; BLOCK]> = (0..blocks * pages)
                .map(|at| std::array::from_fn(|i| ((at * BLOCK + i) as i32 * 13 % 101 - 60) as i8 as u8))
                .collect();
            let mut out = vec![0.0; heads * pages * blocks * BLOCK];
            let of = |page: usize, block: usize| &exponents[block * pages + page];
            form.enter(Weigh { terms: &terms, stride, heads, pages, blocks, exponents: of, out: &mut out });
            for (at, given) in out.iter().enumerate() {
                let (i, page) = (at % BLOCK, at / BLOCK % pages);
                let (head, block) = (at / BLOCK / pages % heads, at / BLOCK / pages / heads);
                let e = i32::from(of(page, block)[i] as i8);
                let want = mul(terms[head * stride + page * BLOCK + i], crate::format::pow2(e));
                if given.to_bits() != want.to_bits() {
                    return Err(format!("softmax terms of {values:?} values, {heads} heads, {pages} pages"));
                }
            }
        }
    }
    Ok(())
}
