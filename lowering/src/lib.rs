//! Lowering: a model's decode step from the facts of its checkpoint to a program of words.
//!
//! ```text
//! Spec --author--> authored step --lift--> StepGraph --fuse--> StepGraph of blocks --lower_graph--> Program
//!  |                                                                                                  ==
//!  +------------------------------------- hand_lowering (the oracle) ----------------------------> Program
//! ```
//!
//! What holds at each rung is in `docs/lowering.md`.
//!
//! **Invariants**: nothing here reads a weight's value, knows a unit's arithmetic, or does I/O. No command depends on the
//! cache's length. [`hand`] imports nothing of the path it judges, and the path imports nothing of it.

pub mod author;
pub mod blocks;
pub mod fuse;
pub mod hand;
pub mod lift;
pub mod mutants;
pub mod rules;
pub mod split;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use author::author;
pub use blocks::lower_graph;
pub use fuse::{Shim, fuse};
pub use hand::hand_lowering;
pub use lift::lift;
pub use split::{Stage, split};

use wordline_ir::{Cut, Identity, Lowered, Numerics, Program, ProgramError, Spec, spec_digest};

/// The engine's step of `spec` at `numerics`, read off the decode step the author writes over a cache of `ctx` positions.
///
/// The commands do not depend on `ctx`: a cache's length is the layout's. The identity records the cut read.
///
/// # Errors
/// [`ProgramError`] by cause: the author cannot write the step, the front end cannot lift it, the graph holds a block that
/// the engine has no unit for, or a value overflows a field of the word.
pub fn lower(spec: &Spec, numerics: &Numerics, ctx: usize) -> Result<Lowered, ProgramError> {
    let step = author(spec, ctx)?;
    let mut graph = lift(&step)?;
    fuse(&mut graph, &Shim::engine());
    let body = lower_graph(&graph)?;
    let cut = Cut { ctx, first_layer: 0, last_layer: spec.layers.len() };
    let identity = Identity { family: spec.family.clone(), spec: spec_digest(spec), numerics: *numerics, cut };
    let blocks::Body { slots, tensors, ropes, commands } = body;
    let program = Program { identity, max_pos: spec.max_pos, slots, tensors, ropes, commands };
    Ok(Lowered { program, cut })
}
