//! The vector unit: micro-programs and their interpreter.

use crate::cpu::vector::{Job, Map, Simd};
use crate::math::Function;
use crate::math::ops::Scalar;
use std::fmt;

/// A way of computing on this device. Every form gives the mirror's bits, or the gate refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// One value at a time, step by step: the definition of the bits.
    Mirror,
    /// The tile interpreter without instructions of its own: whatever the compiler makes of it.
    Portable,
    /// The tile interpreter on AVX2.
    Avx2,
}

impl Form {
    /// The forms that this device can run, fastest first.
    #[must_use]
    pub fn available() -> Vec<Form> {
        let all = [Form::Avx2, Form::Portable, Form::Mirror];
        all.into_iter().filter(|form| form.is_available()).collect()
    }

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => crate::cpu::vector::avx2::Avx2::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Form::Avx2 => false,
            Form::Portable | Form::Mirror => true,
        }
    }

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Form::Mirror => "mirror",
            Form::Portable => "portable",
            Form::Avx2 => "avx2",
        }
    }

    /// Runs a job on the form's instructions; a form that this device lacks runs as the portable one.
    pub(crate) fn enter<J: Job>(self, job: J) -> J::Output {
        #[cfg(target_arch = "x86_64")]
        if self == Form::Avx2
            && let Some(avx2) = crate::cpu::vector::avx2::Avx2::detect()
        {
            return avx2.enter(job);
        }
        Scalar.enter(job)
    }

    /// to[i] = function(from[i]) over the shorter of the two.
    pub fn map(self, function: Function, from: &[f32], to: &mut [f32]) {
        if self == Form::Mirror {
            for (x, y) in from.iter().zip(to) {
                *y = function.eval(*x);
            }
        } else {
            self.enter(Map { function, from, to });
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
