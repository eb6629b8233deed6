//! Readers of activations, gates and sums.

use super::reader::Reader;
use wordline_ir::graph::{NodeId, Part};
use wordline_ir::spec::Activation;
use wordline_ir::{Command, Const, ProgramError, Slot};

pub(super) fn act(
    r: &mut Reader<'_>,
    id: NodeId,
    kind: Activation,
    gated: bool,
    groups: usize,
) -> Result<(), ProgramError> {
    let (layer, x) = (r.layer(id)?, r.operand(id, 0)?);
    let out = match r.node(id)?.site.part {
        Part::Mlp => Slot::Inner,
        Part::Moe => Slot::ExpertInner,
        Part::Shared => Slot::SharedInner,
        part => return Err(r.refuse(id, format!("no slot for an activation in '{part}'"))),
    };
    let groups = r.count(id, "groups", groups)?;
    r.fill(id, out)?;
    r.emit(Command::Act { layer, x, out, kind, gated, groups });
    Ok(())
}

/// The gated value stays in its place.
pub(super) fn gate(r: &mut Reader<'_>, id: NodeId, group: usize) -> Result<(), ProgramError> {
    let (layer, x, gate) = (r.layer(id)?, r.operand(id, 0)?, r.operand(id, 1)?);
    let group = r.count(id, "group", group)?;
    r.fill(id, x)?;
    r.emit(Command::Gate { layer, x, gate, out: x, group });
    Ok(())
}

/// The sum takes the place of its first operand: the residual, or what the routed experts made.
pub(super) fn add(r: &mut Reader<'_>, id: NodeId) -> Result<(), ProgramError> {
    let (layer, x, y) = (r.layer(id)?, r.operand(id, 0)?, r.operand(id, 1)?);
    r.fill(id, x)?;
    r.emit(Command::Add { layer, x, y, out: x, scale: Const::new(1.0) });
    Ok(())
}
