//! AVX-512: sixteen values at a time.

use super::Simd;
use crate::flush::{EXPONENT, MIN_FIELD};
use crate::math::ops::Ops;
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512; its operations are sound for whoever holds one.
///
/// They are inlined into functions compiled for AVX-512 (`#[target_feature]`), where each is one or two instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, where the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }

    #[inline(always)]
    fn proof(self) -> Self {
        self
    }
}

/// Wraps intrinsics whose only requirement is the instruction set.
macro_rules! intrinsic {
    ($call:expr) => {
        // SAFETY: whoever calls holds an `Avx512`, which exists only where AVX-512 was detected; the call touches no memory.
        unsafe { $call }
    };
}

/// The operations inside a function: without `r`, which would change nothing there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within(Avx512);

impl Within {
    #[inline(always)]
    fn proof(self) -> Avx512 {
        self.0
    }
}

/// r(x).
#[inline(always)]
fn flush(_: Avx512, x: __m512) -> __m512 {
    intrinsic!({
        let field = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(EXPONENT));
        let kept = _mm512_cmpgt_epi32_mask(field, _mm512_set1_epi32((MIN_FIELD << 23) - 1));
        _mm512_maskz_mov_ps(kept, x)
    })
}

/// x.
#[inline(always)]
fn keep(_: Avx512, x: __m512) -> __m512 {
    x
}

/// Implements [`Ops`] for a holder of the proof, its float operations finished by the named function.
macro_rules! ops {
    ($holder:ty, $finish:ident) => {
        impl Ops for $holder {
            type F = __m512;
            type I = __m512i;
            type M = __mmask16;
            type Within = Within;

            #[inline(always)]
            fn within(self) -> Within {
                Within(self.proof())
            }
            #[inline(always)]
            fn num(self, value: f32) -> __m512 {
                intrinsic!(_mm512_set1_ps(value))
            }
            #[inline(always)]
            fn int(self, value: i32) -> __m512i {
                intrinsic!(_mm512_set1_epi32(value))
            }
            #[inline(always)]
            fn add(self, a: __m512, b: __m512) -> __m512 {
                $finish(self.proof(), intrinsic!(_mm512_add_ps(a, b)))
            }
            #[inline(always)]
            fn sub(self, a: __m512, b: __m512) -> __m512 {
                $finish(self.proof(), intrinsic!(_mm512_sub_ps(a, b)))
            }
            #[inline(always)]
            fn mul(self, a: __m512, b: __m512) -> __m512 {
                $finish(self.proof(), intrinsic!(_mm512_mul_ps(a, b)))
            }
            #[inline(always)]
            fn flush(self, x: __m512) -> __m512 {
                flush(self.proof(), x)
            }
            #[inline(always)]
            fn bits(self, x: __m512) -> __m512i {
                intrinsic!(_mm512_castps_si512(x))
            }
            #[inline(always)]
            fn float(self, x: __m512i) -> __m512 {
                intrinsic!(_mm512_castsi512_ps(x))
            }
            #[inline(always)]
            fn iadd(self, a: __m512i, b: __m512i) -> __m512i {
                intrinsic!(_mm512_add_epi32(a, b))
            }
            #[inline(always)]
            fn isub(self, a: __m512i, b: __m512i) -> __m512i {
                intrinsic!(_mm512_sub_epi32(a, b))
            }
            #[inline(always)]
            fn and(self, a: __m512i, b: __m512i) -> __m512i {
                intrinsic!(_mm512_and_si512(a, b))
            }
            #[inline(always)]
            fn or(self, a: __m512i, b: __m512i) -> __m512i {
                intrinsic!(_mm512_or_si512(a, b))
            }
            #[inline(always)]
            fn xor(self, a: __m512i, b: __m512i) -> __m512i {
                intrinsic!(_mm512_xor_si512(a, b))
            }
            // The shifts by an immediate count it in another type than `N` has; by a constant vector they are the same
            // instruction.
            #[inline(always)]
            fn shl<const N: i32>(self, x: __m512i) -> __m512i {
                intrinsic!(_mm512_sllv_epi32(x, _mm512_set1_epi32(N)))
            }
            #[inline(always)]
            fn shr<const N: i32>(self, x: __m512i) -> __m512i {
                intrinsic!(_mm512_srlv_epi32(x, _mm512_set1_epi32(N)))
            }
            #[inline(always)]
            fn lt(self, a: __m512, b: __m512) -> __mmask16 {
                intrinsic!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
            }
            #[inline(always)]
            fn ilt(self, a: __m512i, b: __m512i) -> __mmask16 {
                intrinsic!(_mm512_cmplt_epi32_mask(a, b))
            }
            #[inline(always)]
            fn select(self, mask: __mmask16, yes: __m512, no: __m512) -> __m512 {
                intrinsic!(_mm512_mask_blend_ps(mask, no, yes))
            }
        }
    };
}

ops!(Avx512, flush);
ops!(Within, keep);

impl Simd for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    fn load(self, from: &[f32]) -> __m512 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: sixteen floats lie there, checked above; the load needs no alignment. AVX-512 as `self` proves.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: as in `load`, and `to` is borrowed for writing.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn enter<J: super::Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "avx512f")]
        fn inner<J: super::Job>(o: Avx512, job: J) -> J::Output {
            job.run(o)
        }
        // SAFETY: AVX-512 as `self` proves.
        unsafe { inner(self, job) }
    }
}
