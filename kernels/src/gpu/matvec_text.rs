//! The array unit's shaders as text: one for subgroups, one for devices without.
//!
//! Lane order is the array's own: block `b` adds to lane `b mod L`, ascending, high limb before low, then the halving tree.
//! Every addition passes the rounding barrier. What lies past the last block has a scale of zero: a lane never holds a
//! negative zero, so adding a zero of either sign changes no bit.
//!
//! | module | holds |
//! |---|---|
//! | `shape` | what the text depends on |
//! | `bindings`, `terms` | what both shaders begin with; which products they add, in which order |
//! | `subgroups`, `stage` | the shader for subgroups; the blocks that its loop asks for at once |
//! | `memory` | the shader that joins lanes through workgroup memory |

mod bindings;
mod memory;
mod shape;
mod stage;
mod subgroups;
mod terms;

use super::wgsl::prelude;

pub use shape::Plan;
pub(super) use shape::{Ends, Gate, Place, Shape};

/// The shader.
pub(super) fn source(plan: &Plan, shape: &Shape) -> String {
    let mut text = match shape.gated {
        Some(gate) => prelude(&[gate.act]),
        None if shape.routed => prelude(&[]),
        None => reading(&prelude(&[])),
    };
    text += &bindings::text(shape, plan.tokens);
    text += &match plan.subgroup {
        Some(size) => subgroups::text(plan, shape, size),
        None => memory::text(plan, shape),
    };
    text
}

/// The prelude of a shader that never fails its command: it only reads the step's words, so products that do not depend
/// on one another overlap.
fn reading(prelude: &str) -> String {
    let lines = prelude.lines().filter(|line| !line.starts_with("fn fail"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let text = text.replace("fault: atomic<u32>", "fault: u32").replace("atomicLoad(&step.fault)", "step.fault");
    text.replace("var<storage, read_write> step", "var<storage, read> step")
}
