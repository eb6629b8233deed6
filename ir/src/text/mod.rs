//! Program text: a [`Program`](crate::Program) as people read and write it.
//!
#![doc = include_str!("form.md")]
//!
//! **Invariant**: for every program whose commands encode, `parse(&to_text(&p)) == p`, NaN in a rotary recipe apart.

mod commands;
mod line;
mod parse;
mod print;
mod tables;

pub use line::{TextError, TextErrorKind};
pub use parse::parse;
pub use print::{command_text, to_text, to_text_with_words};
pub(crate) use print::{rope_text, tensor_text};

/// The form as users read it.
pub(crate) const FORM: &str = include_str!("form.md");

/// Version of the text form.
pub const TEXT_VERSION: u32 = 1;

use crate::program::{Tensor, TensorKind};
use crate::spec::RopeScaling;

/// A tensor's shape as command lines show it: `[n]` for a vector, `[rows x cols]`, `[experts x rows x cols]`.
fn shape_text(tensor: &Tensor) -> String {
    let (rows, cols) = (tensor.rows, tensor.cols);
    match tensor.kind {
        TensorKind::Plain if cols == 1 => format!("[{rows}]"),
        TensorKind::Stack { experts } if experts > 0 && rows % experts == 0 => {
            format!("[{experts}x{}x{cols}]", rows / experts)
        }
        _ => format!("[{rows}x{cols}]"),
    }
}

/// Characters of a name that needs no quotes.
fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '/' | '-' | '+')
}

/// Names of the rotary scalings, in the text form.
pub(crate) const SCALINGS: &[&str] = &["default", "linear", "dynamic", "yarn", "llama3", "long_rope"];

/// A scaling's name.
fn scaling_name(scaling: &RopeScaling) -> &'static str {
    match scaling {
        RopeScaling::Default => SCALINGS[0],
        RopeScaling::Linear { .. } => SCALINGS[1],
        RopeScaling::Dynamic { .. } => SCALINGS[2],
        RopeScaling::Yarn { .. } => SCALINGS[3],
        RopeScaling::Llama3 { .. } => SCALINGS[4],
        RopeScaling::LongRope { .. } => SCALINGS[5],
    }
}

impl std::fmt::Display for crate::Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&to_text(self))
    }
}

impl std::str::FromStr for crate::Program {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        parse(text)
    }
}
