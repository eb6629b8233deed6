//! CPU forms of the vector unit: the instruction sets behind one trait, and what runs on any of them.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod tiles;
mod twice;

use crate::math::ops::{Ops, Scalar};
use crate::math::{Function, with_function};
use twice::Twice;

/// Operations on vectors that can be moved to and from memory.
pub(crate) trait Simd: Ops {
    /// Values in a vector: 1, 2, 4, 8, 16 or 32, so that a whole number of vectors makes the 32 lanes of a reduction.
    const LANES: usize;

    /// The first values of a slice.
    fn load(self, from: &[f32]) -> Self::F;
    /// Over the first values of a slice.
    fn store(self, x: Self::F, to: &mut [f32]);
    /// Runs a job in a function compiled for this instruction set.
    fn enter<J: Job>(self, job: J) -> J::Output;
}

/// Work written once for every instruction set. `run` is inlined into a function compiled for one.
pub(crate) trait Job {
    /// What it gives.
    type Output;
    /// Does the work; must be `#[inline(always)]`.
    fn run<O: Simd>(self, o: O) -> Self::Output;
}

impl Simd for Scalar {
    const LANES: usize = 1;

    #[inline(always)]
    fn load(self, from: &[f32]) -> f32 {
        from[0]
    }
    #[inline(always)]
    fn store(self, x: f32, to: &mut [f32]) {
        to[0] = x;
    }
    #[inline(always)]
    fn enter<J: Job>(self, job: J) -> J::Output {
        job.run(self)
    }
}

/// `to[i] = function(from[i])`.
pub(crate) struct Map<'a> {
    pub(crate) function: Function,
    pub(crate) from: &'a [f32],
    pub(crate) to: &'a mut [f32],
}

impl Job for Map<'_> {
    type Output = ();

    #[inline(always)]
    fn run<O: Simd>(self, o: O) {
        let length = self.from.len().min(self.to.len());
        let (from, to) = (&self.from[..length], &mut self.to[..length]);
        let whole = length - length % Twice::<O>::LANES;
        let o = Twice(o);
        with_function!(self.function, f => {
            for (x, y) in from.chunks_exact(Twice::<O>::LANES).zip(to.chunks_exact_mut(Twice::<O>::LANES)) {
                o.store(f(o, o.load(x)), y);
            }
            for (x, y) in from[whole..].iter().zip(&mut to[whole..]) {
                *y = f(Scalar, *x);
            }
        });
    }
}
