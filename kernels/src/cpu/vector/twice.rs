//! Two vectors at a time.
//!
//! A function is one long chain of operations, each waiting for the one before. Two chains side by side keep the
//! processor's units busy.

use super::{Job, Simd};
use crate::math::ops::Ops;

/// The operations of `O`, each on two vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Twice<O>(pub(super) O);

/// Applies an operation of the inner type to the first and to the second parts of its operands.
macro_rules! both {
    ($self:ident, $op:ident $(::<$n:ident>)? ($($x:ident),*)) => {
        [$self.0.$op$(::<$n>)?($($x[0]),*), $self.0.$op$(::<$n>)?($($x[1]),*)]
    };
}

impl<O: Ops> Ops for Twice<O> {
    type F = [O::F; 2];
    type I = [O::I; 2];
    type M = [O::M; 2];
    type Within = Twice<O::Within>;

    #[inline(always)]
    fn within(self) -> Self::Within {
        Twice(self.0.within())
    }
    #[inline(always)]
    fn num(self, value: f32) -> Self::F {
        [self.0.num(value); 2]
    }
    #[inline(always)]
    fn int(self, value: i32) -> Self::I {
        [self.0.int(value); 2]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self, add(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self, sub(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(self, mul(a, b))
    }
    #[inline(always)]
    fn flush(self, x: Self::F) -> Self::F {
        both!(self, flush(x))
    }
    #[inline(always)]
    fn bits(self, x: Self::F) -> Self::I {
        both!(self, bits(x))
    }
    #[inline(always)]
    fn float(self, x: Self::I) -> Self::F {
        both!(self, float(x))
    }
    #[inline(always)]
    fn iadd(self, a: Self::I, b: Self::I) -> Self::I {
        both!(self, iadd(a, b))
    }
    #[inline(always)]
    fn isub(self, a: Self::I, b: Self::I) -> Self::I {
        both!(self, isub(a, b))
    }
    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        both!(self, and(a, b))
    }
    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        both!(self, or(a, b))
    }
    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        both!(self, xor(a, b))
    }
    #[inline(always)]
    fn shl<const N: i32>(self, x: Self::I) -> Self::I {
        both!(self, shl::<N>(x))
    }
    #[inline(always)]
    fn shr<const N: i32>(self, x: Self::I) -> Self::I {
        both!(self, shr::<N>(x))
    }
    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        both!(self, lt(a, b))
    }
    #[inline(always)]
    fn ilt(self, a: Self::I, b: Self::I) -> Self::M {
        both!(self, ilt(a, b))
    }
    #[inline(always)]
    fn select(self, mask: Self::M, yes: Self::F, no: Self::F) -> Self::F {
        both!(self, select(mask, yes, no))
    }
}

impl<O: Simd> Simd for Twice<O> {
    const LANES: usize = 2 * O::LANES;

    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::F {
        [self.0.load(from), self.0.load(&from[O::LANES..])]
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32]) {
        self.0.store(x[0], to);
        self.0.store(x[1], &mut to[O::LANES..]);
    }
    #[inline(always)]
    fn enter<J: Job>(self, job: J) -> J::Output {
        self.0.enter(job)
    }
}
