//! Readers of the embedding and of what happens to logits.

use super::reader::Reader;
use wordline_ir::graph::{NodeId, Weight};
use wordline_ir::{Command, Const, ProgramError, Slot, TensorKind};

pub(super) fn embed(
    r: &mut Reader<'_>,
    id: NodeId,
    table: &Weight,
    positions: Option<&Weight>,
    scale: Const,
) -> Result<(), ProgramError> {
    let layer = r.layer(id)?;
    let table = r.tensor(id, table, TensorKind::Matrix)?;
    let positions = r.optional(id, positions)?;
    r.fill(id, Slot::X)?;
    r.emit(Command::Embed { layer, out: Slot::X, table, positions, scale });
    Ok(())
}

/// A width of 0 is the whole slot: a vocabulary does not fit a count.
pub(super) fn logit_scale(r: &mut Reader<'_>, id: NodeId, scale: Const) -> Result<(), ProgramError> {
    let (layer, x) = (r.layer(id)?, r.operand(id, 0)?);
    r.fill(id, x)?;
    r.emit(Command::Scale { layer, x, width: 0, scale });
    Ok(())
}

pub(super) fn soft_cap(r: &mut Reader<'_>, id: NodeId, cap: Const) -> Result<(), ProgramError> {
    let (layer, x) = (r.layer(id)?, r.operand(id, 0)?);
    r.fill(id, x)?;
    r.emit(Command::SoftCap { layer, x, cap });
    Ok(())
}
