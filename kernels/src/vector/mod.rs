//! The vector unit: micro-programs and their interpreter.
//!
//! Norms, gates, products, residual adds, rotary and softmax pieces are data: micro-programs in one table, [`MICRO`].
//! The scalar interpreter of the table is the definition of the bits; the tile interpreter runs the same table on SIMD
//! vectors and is held to it by the init gate. A new elementwise family needs an entry of the table and no kernel.
//!
//! [`VectorUnit`] is what computes: one function for each command, over the slices of one token-row.

mod audit;
mod commands;
mod form;
mod gate;
pub mod micro;
mod mirror;
pub mod run;
pub mod table;
#[cfg(test)]
mod tests;

pub(crate) use audit::{Call, Shape};
pub use commands::{HeadNorm, Norm, Rope};
pub use form::Form;
pub(crate) use gate::Values;
pub use gate::{FormReport, GateError, VectorUnit, Verdict};
#[cfg(feature = "gpu")]
pub(crate) use gate::{check_micros, check_with};
pub use micro::{Micro, micro_text};
pub use table::MICRO;

use crate::cpu::vector::tiles::Interpret;
use run::Run;

/// Runs a micro-program in a form, gated or not.
///
/// # Panics
/// When an operand or a parameter is missing, or an operand is too short or read-only where it is written.
pub fn interpret(form: Form, micro: &Micro, mut run: Run<'_, '_>) {
    compute(form, micro, &mut run);
}

fn compute(form: Form, micro: &Micro, run: &mut Run<'_, '_>) {
    run.check(micro);
    match form {
        Form::Mirror => mirror::interpret(micro, run),
        _ => form.enter(Interpret { micro, run }),
    }
}
