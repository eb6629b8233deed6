//! AVX2: eight values at a time.

use super::Simd;
use crate::flush::{EXPONENT, MIN_FIELD};
use crate::math::ops::Ops;
use std::arch::x86_64::*;

/// Proof that the processor has AVX2; its operations are sound for whoever holds one.
///
/// They are inlined into functions compiled for AVX2 (`#[target_feature]`), where each is one to four instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, where the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

/// Wraps intrinsics whose only requirement is the instruction set.
macro_rules! intrinsic {
    ($call:expr) => {
        // SAFETY: whoever calls holds an `Avx2`, which exists only where AVX2 was detected; the call touches no memory.
        unsafe { $call }
    };
}

/// The operations inside a function: without `r`, which would change nothing there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within(Avx2);

impl Avx2 {
    #[inline(always)]
    fn proof(self) -> Avx2 {
        self
    }
}

impl Within {
    #[inline(always)]
    fn proof(self) -> Avx2 {
        self.0
    }
}

/// r(x).
#[inline(always)]
fn flush(_: Avx2, x: __m256) -> __m256 {
    intrinsic!({
        let field = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(EXPONENT));
        let kept = _mm256_cmpgt_epi32(field, _mm256_set1_epi32((MIN_FIELD << 23) - 1));
        _mm256_and_ps(x, _mm256_castsi256_ps(kept))
    })
}

/// x.
#[inline(always)]
fn keep(_: Avx2, x: __m256) -> __m256 {
    x
}

/// Implements [`Ops`] for a holder of the proof: its float operations finished by the named function, and what it uses
/// within functions.
macro_rules! ops {
    ($holder:ty, $finish:ident, $within:ident) => {
        impl Ops for $holder {
            type F = __m256;
            type I = __m256i;
            type M = __m256;
            type Within = $within;

            #[inline(always)]
            fn within(self) -> $within {
                $within(self.proof())
            }
            #[inline(always)]
            fn num(self, value: f32) -> __m256 {
                intrinsic!(_mm256_set1_ps(value))
            }
            #[inline(always)]
            fn int(self, value: i32) -> __m256i {
                intrinsic!(_mm256_set1_epi32(value))
            }
            #[inline(always)]
            fn add(self, a: __m256, b: __m256) -> __m256 {
                $finish(self.proof(), intrinsic!(_mm256_add_ps(a, b)))
            }
            #[inline(always)]
            fn sub(self, a: __m256, b: __m256) -> __m256 {
                $finish(self.proof(), intrinsic!(_mm256_sub_ps(a, b)))
            }
            #[inline(always)]
            fn mul(self, a: __m256, b: __m256) -> __m256 {
                $finish(self.proof(), intrinsic!(_mm256_mul_ps(a, b)))
            }
            #[inline(always)]
            fn flush(self, x: __m256) -> __m256 {
                flush(self.proof(), x)
            }
            #[inline(always)]
            fn bits(self, x: __m256) -> __m256i {
                intrinsic!(_mm256_castps_si256(x))
            }
            #[inline(always)]
            fn float(self, x: __m256i) -> __m256 {
                intrinsic!(_mm256_castsi256_ps(x))
            }
            #[inline(always)]
            fn iadd(self, a: __m256i, b: __m256i) -> __m256i {
                intrinsic!(_mm256_add_epi32(a, b))
            }
            #[inline(always)]
            fn isub(self, a: __m256i, b: __m256i) -> __m256i {
                intrinsic!(_mm256_sub_epi32(a, b))
            }
            #[inline(always)]
            fn and(self, a: __m256i, b: __m256i) -> __m256i {
                intrinsic!(_mm256_and_si256(a, b))
            }
            #[inline(always)]
            fn or(self, a: __m256i, b: __m256i) -> __m256i {
                intrinsic!(_mm256_or_si256(a, b))
            }
            #[inline(always)]
            fn xor(self, a: __m256i, b: __m256i) -> __m256i {
                intrinsic!(_mm256_xor_si256(a, b))
            }
            #[inline(always)]
            fn shl<const N: i32>(self, x: __m256i) -> __m256i {
                intrinsic!(_mm256_slli_epi32::<N>(x))
            }
            #[inline(always)]
            fn shr<const N: i32>(self, x: __m256i) -> __m256i {
                intrinsic!(_mm256_srli_epi32::<N>(x))
            }
            #[inline(always)]
            fn lt(self, a: __m256, b: __m256) -> __m256 {
                intrinsic!(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
            }
            #[inline(always)]
            fn ilt(self, a: __m256i, b: __m256i) -> __m256 {
                intrinsic!(_mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)))
            }
            #[inline(always)]
            fn select(self, mask: __m256, yes: __m256, no: __m256) -> __m256 {
                intrinsic!(_mm256_blendv_ps(no, yes, mask))
            }
        }
    };
}

ops!(Avx2, flush, Within);
ops!(Within, keep, Within);

impl Simd for Avx2 {
    const LANES: usize = 8;

    #[inline(always)]
    fn load(self, from: &[f32]) -> __m256 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: eight floats lie there, checked above; the load needs no alignment. AVX2 as `self` proves.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m256, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: as in `load`, and `to` is borrowed for writing.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn enter<J: super::Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "avx2")]
        fn inner<J: super::Job>(o: Avx2, job: J) -> J::Output {
            job.run(o)
        }
        // SAFETY: AVX2 as `self` proves.
        unsafe { inner(self, job) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Job, Map};
    use super::*;
    use crate::math::Function;
    use crate::math::exhaustive::{ALL_INPUTS, digest_of};
    use std::ops::Range;

    /// AVX2 with `r` after every operation, inside functions too.
    #[derive(Clone, Copy)]
    struct Strict(Avx2);

    impl Strict {
        fn proof(self) -> Avx2 {
            self.0
        }
    }

    ops!(Strict, flush, Strict);

    impl Simd for Strict {
        const LANES: usize = Avx2::LANES;

        #[inline(always)]
        fn load(self, from: &[f32]) -> __m256 {
            self.0.load(from)
        }
        #[inline(always)]
        fn store(self, x: __m256, to: &mut [f32]) {
            self.0.store(x, to);
        }
        fn enter<J: Job>(self, job: J) -> J::Output {
            #[target_feature(enable = "avx2")]
            fn inner<J: Job>(o: Strict, job: J) -> J::Output {
                job.run(o)
            }
            // SAFETY: AVX2 as `self` proves.
            unsafe { inner(self, job) }
        }
    }

    /// Over all functions, or the one that is named.
    fn compare(range: Range<u64>, threads: usize, only: Option<&str>) {
        let Some(avx2) = Avx2::detect() else { return };
        for &function in Function::ALL.iter().filter(|f| only.is_none_or(|name| name == f.name())) {
            let fast = digest_of(range.clone(), threads, |from, to| avx2.enter(Map { function, from, to }));
            let strict = digest_of(range.clone(), threads, |from, to| Strict(avx2).enter(Map { function, from, to }));
            assert_eq!(fast, strict, "{}", function.name());
        }
    }

    #[test]
    fn leaving_r_out_changes_nothing() {
        // Around 2^-120, 1 and the ends of the exponential, both signs.
        for start in [0x0370_0000u64, 0x3f7f_0000, 0x42a6_0000, 0x8370_0000, 0xbf7f_0000, 0xc2ae_0000] {
            compare(start..start + 0x2_0000, 1, None);
        }
    }

    #[test]
    #[ignore = "2^32 inputs of each function, twice, take minutes"]
    fn leaving_r_out_changes_nothing_anywhere() {
        let wanted = std::env::var("WORDLINE_FUNCTION").ok();
        compare(ALL_INPUTS, std::thread::available_parallelism().map_or(1, usize::from), wanted.as_deref());
    }
}
