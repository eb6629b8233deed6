//! Program text: a [`Program`] as people read and write it, one command a line.
//!
//! ```text
//! program 1                                   # version of this form
//! family llama
//! spec 5b1d…                                  # SHA-256 of the Spec
//! numerics weights=int8 acts=two_limbs queries=two_limbs probs=two_limbs lanes=8
//! cut ctx=256 layers=0..2
//! max_pos 256
//! slot x 64                                   # a slot and its width
//! tensor l0.qkv matrix 96x64                  # name, kind, rows x columns; `stack E of …`, `plain …`, `… add_one`
//!   part model.layers.0.q.weight 64x64        # its values: whole tensors, `transposed`, `rows a..b,c..d`
//!   part model.layers.0.kv.weight 64x64 rows 0..16,48..64
//! rope 0 theta=10000.0 rot=16 pairs=half scaling=default
//!
//! -- embed          -> x        table=embed[256x64] scale=1.0
//! L0 matvec         h -> qkv    weight=l0.qkv[96x64]
//! L0 rope           qkv         heads=4 kv_heads=1 head_dim=16 rot=16 table=0 scale=0.25
//! ```
//!
//! A command line gives its layer (`--` outside any layer), its mnemonic, the slots it reads, `->` and the slots it
//! writes (no arrow: in place), then the other fields by name. A tensor is given by name, its shape in brackets checked
//! when present, or by index (`@7`). An absent optional tensor or slot and a zero offset are left out. A constant is the
//! shortest decimal that gives its bits back, or its bits (`0x7f800000`) where no decimal does. Names with unusual
//! characters stand in quotes with JSON's escapes. `#` starts a comment.
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
const SCALINGS: &[&str] = &["default", "linear", "dynamic", "yarn", "llama3", "long_rope"];

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
