//! `verify`: a symbolic check of any program, whoever made it. What passes cannot make engine, twin or split panic.
//!
//! The invariants, in the order in which they are checked:
//!
//! Identity and tables
//!  1. Nothing exceeds [`limits`]: commands, tensors, elements, widths, positions, state. Sizes are not zero.
//!  2. Lanes are a power of two. The cut is a run of layers up to 255; a program that embeds starts at layer 0.
//!  3. Slots stand once in their table; tensors have unique one-word names.
//!  4. A stack's rows are equal matrices. A view's parts lie in their stored tensors and hold as many elements as the
//!     tensor; a stored row holds whole rows of the tensor.
//!  5. Rotary recipes: rotated dimensions even and not zero, every number finite and in its formula's domain, one
//!     divisor a frequency.
//!  6. A whole model's program uses each entry of each table. A part's tables may be those of the whole.
//!
//! Each command by itself
//!  7. Its slots have widths, its tensors and its rotary table exist, and each tensor is held as the command reads it.
//!  8. No slot is written twice by it; only `norm`, `gate`, `gated_norm` and `add` may write a slot that they read.
//!  9. Constants are finite, eps >= 0, caps 0 or at least the smallest number that is not flushed.
//! 10. Counts are not zero (where zero has no meaning), they divide where heads or groups share, and widths and tensor
//!     shapes are what they say: the table in [`command`](crate::command) is the law.
//!
//! The step
//! 11. Embedding first, then layers in rising order, then the readout, outside any layer; each layer of the cut has
//!     commands, and each layer up to the last where no cut was read. The last command writes the logits, as many as the
//!     embedding has rows.
//! 12. Every element that is read was written before in the same step, and in the same layer: only `x` passes from one
//!     layer to the next, which is what lets a program be cut between them.
//! 13. Every element that is written is read before it is written again or its layer ends.
//! 14. State commands stand in a layer. A layer has at most one `cache_append`, with one or more `attend` behind it, at
//!     most one `conv` and at most one `delta`; its heads are the same in every command, and no command changes `qkv`
//!     between `cache_append` and `attend`.
//! 15. `routed_matvec` takes picks, and weights, as one `top_k` of as many experts and picks has left them.
//!
//! A command that breaks 7 to 10 is not followed further, so that one fault is one defect.

mod command;
mod defect;
mod flow;
mod order;
mod tables;

pub use defect::{At, Defect, DefectKind, Defects};

use crate::{Command, Program, Slot};

/// What a program may hold at most. Far above any model, and low enough that no product of sizes overflows and no
/// quantity of a step leaves a machine word.
pub mod limits {
    /// Commands.
    pub const COMMANDS: u128 = 1 << 18;
    /// Elements of a slot: twice what an offset reaches.
    pub const WIDTH: u128 = 1 << 21;
    /// Positions: every one is an exact f32, as rotary angles need.
    pub const POSITIONS: u128 = 1 << 24;
    /// Elements of all tensors together: their bytes, at up to 8 an element, are addressable.
    pub const ELEMENTS: u128 = {
        let addressable = isize::MAX as u128 / 8;
        if addressable < 1 << 40 { addressable } else { 1 << 40 }
    };
    /// Elements of a sequence's rings and memories in one layer.
    pub const STATE: u128 = 1 << 24;
    /// Elements of a layer's cache over all positions: addressable as f32.
    pub const CACHE: u128 = isize::MAX as u128 / 8;
}

/// Which ends of a model a program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Its first command embeds tokens; otherwise `x` is its input.
    pub embeds: bool,
    /// It ends with logits; otherwise `x` is its output.
    pub reads_out: bool,
}

impl Ends {
    /// Both: a whole model.
    pub const WHOLE: Ends = Ends { embeds: true, reads_out: true };

    /// The ends that a program's commands have: an `embed`, a write of the logits.
    #[must_use]
    pub fn of(program: &Program) -> Ends {
        let embeds = program.commands.iter().any(|c| matches!(c, Command::Embed { .. }));
        let logits = |c: &Command| c.slots().any(|(field, slot)| slot == Slot::Logits && field.role.writes());
        Ends { embeds, reads_out: program.commands.iter().any(logits) }
    }
}

/// Check a whole model's program.
///
/// # Errors
/// Every defect found.
pub fn verify(program: &Program) -> Result<(), Defects> {
    check(program, Ends::WHOLE, true)
}

/// Check the program of a part of a model: a pipeline's stage. Its tables may hold what other parts use.
///
/// # Errors
/// Every defect found; an end that the program has and should not have, or the other way round, is one.
pub fn verify_part(program: &Program, ends: Ends) -> Result<(), Defects> {
    check(program, ends, false)
}

fn check(program: &Program, ends: Ends, own_tables: bool) -> Result<(), Defects> {
    let mut found = Vec::new();
    // Past these limits nothing else is worth its time.
    if tables::counts(program, &mut found) {
        tables::check(program, ends, &mut found);
        if own_tables {
            tables::unused(program, &mut found);
        }
        let sound: Vec<bool> = (0..program.commands.len()).map(|i| command::check(program, i, &mut found)).collect();
        order::check(program, ends, &sound, &mut found);
        flow::check(program, ends, &sound, &mut found);
    }
    if found.is_empty() { Ok(()) } else { Err(Defects(found)) }
}
