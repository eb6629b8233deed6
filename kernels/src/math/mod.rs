//! The functions of the vector unit, built from correctly rounded operations alone.
//!
//! [`functions`] writes each function once over the operations of [`ops::Ops`]; [`Function::eval`] is the scalar form
//! and the definition of its bits, the SIMD forms run the same code, and [`record`] lists its steps. [`exhaustive`]
//! holds a function to its f64 reference over all 2^32 inputs, and [`pins`] keeps what those sweeps found.
//!
//! There is no division, no root, no fused multiply-add and no platform library in any of them.

pub mod exhaustive;
pub mod functions;
pub mod ops;
mod parts;
pub mod pins;
pub mod record;

use ops::{Ops, Scalar};

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident $function:ident $text:literal;)+) => {
        /// A function of one value that the vector unit computes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Function { $($(#[$doc])* $name,)+ }

        impl Function {
            /// Every function.
            pub const ALL: &[Function] = &[$(Function::$name,)+];

            /// Its name in micro-programs and reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Function::$name => $text,)+ }
            }

            /// Its value on any device's operations.
            #[inline(always)]
            pub fn on<O: Ops>(self, o: O, x: O::F) -> O::F {
                match self { $(Function::$name => functions::$function(o, x),)+ }
            }
        }

        /// Runs `$body` with `$f` bound to the function's generic form, chosen outside the loop that the body holds.
        macro_rules! with_function {
            ($function_value:expr, $f:ident => $body:expr) => {
                match $function_value { $($crate::math::Function::$name => {
                    use $crate::math::functions::$function as $f;
                    $body
                })+ }
            };
        }
        pub(crate) use with_function;
    };
}

functions! {
    /// e^x.
    Exp exp "exp";
    /// 1 / (1 + e^-x).
    Sigmoid sigmoid "sigmoid";
    /// x sigmoid(x).
    Silu silu "silu";
    /// The tanh form of gelu.
    GeluTanh gelu_tanh "gelu_tanh";
    /// x Phi(x).
    GeluErf gelu_erf "gelu_erf";
    /// ln(1 + e^x).
    Softplus softplus "softplus";
    /// 1 / x.
    Recip recip "recip";
    /// 1 / sqrt(x).
    Rsqrt rsqrt "rsqrt";
    /// Hyperbolic tangent.
    Tanh tanh "tanh";
    /// max(x, 0).
    Relu relu "relu";
}

impl Function {
    /// The function of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Function> {
        Self::ALL.iter().copied().find(|f| f.name() == name)
    }

    /// The value at `x`: the definition of its bits.
    #[must_use]
    pub fn eval(self, x: f32) -> f32 {
        self.on(Scalar, x)
    }
}
