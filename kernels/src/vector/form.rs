//! The forms of the units that compute in f32: vector, conv and delta.

use crate::cpu::vector::{Job, Map, Simd};
use crate::math::Function;
use crate::math::ops::Scalar;
use std::fmt;

/// A way of computing on this device. Every form gives the mirror's bits, or the gate refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// One value at a time, step by step: the definition of the bits.
    Mirror,
    /// The SIMD code without instructions of its own: whatever the compiler makes of it.
    Portable,
    /// AArch64 NEON.
    Neon,
    /// x86-64 AVX2.
    Avx2,
    /// x86-64 AVX-512.
    Avx512,
}

impl Form {
    /// Every form, the fastest first.
    pub const ALL: [Form; 5] = [Form::Avx512, Form::Avx2, Form::Neon, Form::Portable, Form::Mirror];

    /// True when this device has the form's instructions.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => crate::cpu::vector::avx512::Avx512::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => crate::cpu::vector::avx2::Avx2::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Form::Avx512 | Form::Avx2 => false,
            #[cfg(target_arch = "aarch64")]
            Form::Neon => crate::cpu::vector::neon::Neon::detect().is_some(),
            #[cfg(not(target_arch = "aarch64"))]
            Form::Neon => false,
            Form::Portable | Form::Mirror => true,
        }
    }

    /// Name for people and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Form::Mirror => "cpu-mirror",
            Form::Portable => "cpu-portable",
            Form::Neon => "cpu-neon",
            Form::Avx2 => "cpu-avx2",
            Form::Avx512 => "cpu-avx512",
        }
    }

    /// Runs a job on the form's instructions; a form that this device lacks runs as the portable one.
    pub(crate) fn enter<J: Job>(self, job: J) -> J::Output {
        #[cfg(target_arch = "x86_64")]
        if self == Form::Avx512
            && let Some(avx512) = crate::cpu::vector::avx512::Avx512::detect()
        {
            return avx512.enter(job);
        }
        #[cfg(target_arch = "x86_64")]
        if self == Form::Avx2
            && let Some(avx2) = crate::cpu::vector::avx2::Avx2::detect()
        {
            return avx2.enter(job);
        }
        #[cfg(target_arch = "aarch64")]
        if self == Form::Neon
            && let Some(neon) = crate::cpu::vector::neon::Neon::detect()
        {
            return neon.enter(job);
        }
        Scalar.enter(job)
    }

    /// `to[i] = function(from[i])` over the shorter of the two.
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
