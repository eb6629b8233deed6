//! What full sweeps found, pinned: the worst error of each function over all 2^32 inputs, and a hash of all outputs.
//!
//! A function's bits are part of the numerics, so a digest changes only together with every golden value of the
//! project. [`super::exhaustive::exhaustive`] over [`super::exhaustive::ALL_INPUTS`] finds these values again; a
//! [`super::exhaustive::sample`] of stride [`SAMPLE_STRIDE`] is quick enough for every build.

use super::Function;
use super::exhaustive::Sweep;

/// Stride of the pinned sample: prime to every power of two, so that the sample meets all exponents and all low bits.
pub const SAMPLE_STRIDE: usize = 65_537;

/// The pinned findings for one function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pin {
    /// The function.
    pub function: Function,
    /// Largest error over all inputs, in units in the last place, rounded up to four decimals.
    pub worst_ulp: f64,
    /// Bits of the lowest input with that error.
    pub at: u32,
    /// Digest of the full sweep, in hexadecimal.
    pub sha256: &'static str,
    /// Digest of the sample.
    pub sample_sha256: &'static str,
}

/// One pin for each function.
pub const PINS: &[Pin] = &[
    Pin {
        function: Function::Exp,
        worst_ulp: 0.982,
        at: 0xc2a2_ca22, // -8.139479e1
        sha256: "932521040b9400450d97c034aaa8b84cafaaf00448b4d2c043bb59f96e7275c6",
        sample_sha256: "28cdf271fc065accff3a3c0f1eab285ae5aa59e7cec93bd956d75a8d2654a3f1",
    },
    Pin {
        function: Function::Sigmoid,
        worst_ulp: 1.0291,
        at: 0xc0ba_eeee, // -5.841666e0
        sha256: "d9862c0ea4e8b46cedb7e90b0508edce6990ba9b711c6f8339f3d1b5c4013d48",
        sample_sha256: "9d19f3dfd5c2a267404373104cf88fa2b19f36d94dbafc0bce98878f9f2ed5ee",
    },
    Pin {
        function: Function::Silu,
        worst_ulp: 1.7252,
        at: 0xc240_fa65, // -4.8244526e1
        sha256: "7026dddba7035458e68743caaa2510086c83e5e6861805c339fcd0403625edb3",
        sample_sha256: "e48883b1fd31c3a9e1856279b382c1a8be5f6c26fc4bf4e0a76a71f9a8222daa",
    },
    Pin {
        function: Function::GeluTanh,
        worst_ulp: 1.7866,
        at: 0xc030_5b27, // -2.7555635e0
        sha256: "92b472a22ececce2b5a98198b933f0f30a389cac0b989c6593d62b945b3cb6bb",
        sample_sha256: "35f30c53eebd00c4fc0b97fb99ee60ed1d7fa208bfc4d1e7f7e291e7b38331b2",
    },
    Pin {
        function: Function::GeluErf,
        worst_ulp: 4.2465,
        at: 0x3b7b_9ab6, // 3.8391775e-3
        sha256: "6288fbc8853c725bf72462990d27ca18317361a6c84daab39441a9a03e548074",
        sample_sha256: "34643968eebb5c13bb9815979f37b611ff16bfcffe833d98f204511616c52668",
    },
    Pin {
        function: Function::Softplus,
        worst_ulp: 2.3847,
        at: 0x3cee_bed0, // 2.914372e-2
        sha256: "e55c7e74146e375a1b4cfff77716f28466b79c289b031627dd338da4d6b830f6",
        sample_sha256: "85aea4de5757f8524751f89e049637fd6743ae2a565e545c4f1233c57ee33593",
    },
    Pin {
        function: Function::Recip,
        worst_ulp: 0.5041,
        at: 0x03bf_b9d4, // 1.1268635e-36
        sha256: "561e27275b4c7031f5cf9384e8048cf17b57da99728bbb5a4bba01b90f80846d",
        sample_sha256: "40eda844ed3e992e04b14f4c63916ca3b191c3ffdef907408b6fc3ad7df859e7",
    },
    Pin {
        function: Function::Rsqrt,
        worst_ulp: 0.5051,
        at: 0x0429_2c63, // 1.9886236e-36
        sha256: "1dc192fc3a52563fb43724b2ed9cc0f791b08e41545f9bebdc93187bc1f735b2",
        sample_sha256: "0510322d55522ddc0b98efdd22b39d31aabcc8bd211b37af38f5d9b110033a26",
    },
    Pin {
        function: Function::Tanh,
        worst_ulp: 0.9039,
        at: 0x3f04_e180, // 5.1906586e-1
        sha256: "8c96e734d8f194149a349e810f624f6be86d2be7e7a1a34109b36bc11a27c781",
        sample_sha256: "fb318099befff4d11ac8a6ad0b967a01d0f38738b5e8826a41b0daafd51fb94f",
    },
    Pin {
        function: Function::Relu,
        worst_ulp: 0.0,
        at: 0x0000_0000, // 0e0
        sha256: "223748997d183fdc469a56be087f2616ed976d0d7212f00eeb34d2397c6db7fa",
        sample_sha256: "38fd952a4b57adc5f70ce7d69a6f8b2f908c9ab1dc221506702b16fc98999e33",
    },
];

impl Pin {
    /// The pin of a function.
    #[must_use]
    pub fn of(function: Function) -> Option<&'static Pin> {
        PINS.iter().find(|pin| pin.function == function)
    }

    /// True when a full sweep found what is pinned.
    #[must_use]
    pub fn agrees(&self, full: &Sweep) -> bool {
        full.hex() == self.sha256 && full.at == self.at && up_to_four_decimals(full.worst_ulp) == self.worst_ulp
    }
}

/// The error as it is pinned. A negligible amount is taken off first: the references are f64.
#[must_use]
pub fn up_to_four_decimals(ulp: f64) -> f64 {
    // Never -0.
    libm::ceil(ulp * 1e4 - 1e-6) / 1e4 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::exhaustive::{ALL_INPUTS, digest, exhaustive, sample};
    use crate::vector::Form;

    fn forms() -> impl Iterator<Item = Form> {
        Form::ALL.into_iter().filter(|form| form.is_available())
    }

    #[test]
    fn every_function_is_pinned_once() {
        let pinned: Vec<Function> = PINS.iter().map(|pin| pin.function).collect();
        assert_eq!(pinned, Function::ALL);
    }

    #[test]
    fn the_sample_is_within_the_worst_error_and_has_the_pinned_bits() {
        for &function in Function::ALL {
            let pin = Pin::of(function).unwrap();
            for form in forms() {
                let found = sample(function, form, SAMPLE_STRIDE);
                let name = function.name();
                assert!(found.worst_ulp <= pin.worst_ulp, "{name}: {} ulp at {:#x}", found.worst_ulp, found.at);
                assert_eq!(found.hex(), pin.sample_sha256, "{name} on {form}");
            }
        }
    }

    #[test]
    fn a_sweep_does_not_depend_on_threads_or_on_the_form() {
        let range = 0x3f00_0000..0x3f05_4321;
        let one = exhaustive(Function::Tanh, Form::Mirror, range.clone(), 1);
        for form in Form::ALL {
            assert_eq!(one, exhaustive(Function::Tanh, form, range.clone(), 3), "{form}");
            assert_ne!(one.sha256, exhaustive(Function::Tanh, form, range.start..range.end - 1, 1).sha256);
        }
    }

    /// The whole of it, or of the one function that `WORDLINE_FUNCTION` names. `WORDLINE_PRINT=1` prints the pins
    /// instead of checking them.
    #[test]
    #[ignore = "2^32 inputs of each function, on the fastest form and on the mirror, take an hour of one core"]
    fn full_sweeps_find_what_is_pinned() {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let print = std::env::var_os("WORDLINE_PRINT").is_some();
        let fastest = forms().next().unwrap();
        let wanted = std::env::var("WORDLINE_FUNCTION").ok();
        let mut found = Vec::new();
        for &function in Function::ALL.iter().filter(|f| wanted.as_deref().is_none_or(|name| name == f.name())) {
            let full = exhaustive(function, fastest, ALL_INPUTS, threads);
            if print {
                let sample = sample(function, fastest, SAMPLE_STRIDE).hex();
                println!(
                    "    Pin {{\n        function: Function::{function:?},\n        worst_ulp: {:?},\n        \
                     at: {:#010x}, // {:e}\n        sha256: \"{}\",\n        sample_sha256: \"{sample}\",\n    }},",
                    up_to_four_decimals(full.worst_ulp),
                    full.at,
                    f32::from_bits(full.at),
                    full.hex(),
                );
            } else {
                assert!(Pin::of(function).unwrap().agrees(&full), "{} on {fastest}: {full:?}", function.name());
            }
            found.push((function, full.sha256));
        }
        // The mirror last: it is the slowest, and passes r where the others leave it out.
        for (function, expected) in found {
            assert_eq!(
                digest(function, Form::Mirror, ALL_INPUTS, threads),
                expected,
                "{} on the mirror",
                function.name()
            );
            println!("{} has the mirror's bits", function.name());
        }
    }
}
