//! NEON: four values at a time.

use super::Simd;
use crate::flush::{EXPONENT, MIN_FIELD};
use crate::math::ops::Ops;
use std::arch::aarch64::*;

/// Proof that the processor has NEON; its operations are sound for whoever holds one.
///
/// They are inlined into functions compiled for NEON (`#[target_feature]`), where each is one to three instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// The proof, where the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    #[inline(always)]
    fn proof(self) -> Self {
        self
    }
}

/// Wraps intrinsics whose only requirement is the instruction set.
macro_rules! intrinsic {
    ($call:expr) => {
        // SAFETY: whoever calls holds an `Neon`, which exists only where NEON was detected; the call touches no memory.
        unsafe { $call }
    };
}

/// The operations inside a function: without `r`, which would change nothing there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within(Neon);

impl Within {
    #[inline(always)]
    fn proof(self) -> Neon {
        self.0
    }
}

/// r(x).
#[inline(always)]
fn flush(_: Neon, x: float32x4_t) -> float32x4_t {
    intrinsic!({
        let bits = vreinterpretq_s32_f32(x);
        let kept = vcgtq_s32(vandq_s32(bits, vdupq_n_s32(EXPONENT)), vdupq_n_s32((MIN_FIELD << 23) - 1));
        vreinterpretq_f32_s32(vandq_s32(bits, vreinterpretq_s32_u32(kept)))
    })
}

/// x.
#[inline(always)]
fn keep(_: Neon, x: float32x4_t) -> float32x4_t {
    x
}

/// Implements [`Ops`] for a holder of the proof, its float operations finished by the named function.
macro_rules! ops {
    ($holder:ty, $finish:ident) => {
        impl Ops for $holder {
            type F = float32x4_t;
            type I = int32x4_t;
            type M = uint32x4_t;
            type Within = Within;

            #[inline(always)]
            fn within(self) -> Within {
                Within(self.proof())
            }
            #[inline(always)]
            fn num(self, value: f32) -> float32x4_t {
                intrinsic!(vdupq_n_f32(value))
            }
            #[inline(always)]
            fn int(self, value: i32) -> int32x4_t {
                intrinsic!(vdupq_n_s32(value))
            }
            #[inline(always)]
            fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
                $finish(self.proof(), intrinsic!(vaddq_f32(a, b)))
            }
            #[inline(always)]
            fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
                $finish(self.proof(), intrinsic!(vsubq_f32(a, b)))
            }
            #[inline(always)]
            fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
                $finish(self.proof(), intrinsic!(vmulq_f32(a, b)))
            }
            #[inline(always)]
            fn flush(self, x: float32x4_t) -> float32x4_t {
                flush(self.proof(), x)
            }
            #[inline(always)]
            fn bits(self, x: float32x4_t) -> int32x4_t {
                intrinsic!(vreinterpretq_s32_f32(x))
            }
            #[inline(always)]
            fn float(self, x: int32x4_t) -> float32x4_t {
                intrinsic!(vreinterpretq_f32_s32(x))
            }
            #[inline(always)]
            fn iadd(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
                intrinsic!(vaddq_s32(a, b))
            }
            #[inline(always)]
            fn isub(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
                intrinsic!(vsubq_s32(a, b))
            }
            #[inline(always)]
            fn and(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
                intrinsic!(vandq_s32(a, b))
            }
            #[inline(always)]
            fn or(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
                intrinsic!(vorrq_s32(a, b))
            }
            #[inline(always)]
            fn xor(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
                intrinsic!(veorq_s32(a, b))
            }
            #[inline(always)]
            fn shl<const N: i32>(self, x: int32x4_t) -> int32x4_t {
                intrinsic!(vshlq_n_s32::<N>(x))
            }
            #[inline(always)]
            fn shr<const N: i32>(self, x: int32x4_t) -> int32x4_t {
                intrinsic!(vreinterpretq_s32_u32(vshrq_n_u32::<N>(vreinterpretq_u32_s32(x))))
            }
            #[inline(always)]
            fn lt(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
                intrinsic!(vcltq_f32(a, b))
            }
            #[inline(always)]
            fn ilt(self, a: int32x4_t, b: int32x4_t) -> uint32x4_t {
                intrinsic!(vcltq_s32(a, b))
            }
            #[inline(always)]
            fn select(self, mask: uint32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
                intrinsic!(vbslq_f32(mask, yes, no))
            }
        }
    };
}

ops!(Neon, flush);
ops!(Within, keep);

impl Simd for Neon {
    const LANES: usize = 4;

    #[inline(always)]
    fn load(self, from: &[f32]) -> float32x4_t {
        assert!(from.len() >= Self::LANES);
        // SAFETY: four floats lie there, checked above; the load needs no alignment. NEON as `self` proves.
        unsafe { vld1q_f32(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: float32x4_t, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: as in `load`, and `to` is borrowed for writing.
        unsafe { vst1q_f32(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn enter<J: super::Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "neon")]
        fn inner<J: super::Job>(o: Neon, job: J) -> J::Output {
            job.run(o)
        }
        // SAFETY: NEON as `self` proves.
        unsafe { inner(self, job) }
    }
}
