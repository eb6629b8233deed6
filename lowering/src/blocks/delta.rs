//! Readers of Gated DeltaNet's gates and recurrence.

use super::reader::Reader;
use wordline_ir::graph::{NodeId, Weight};
use wordline_ir::{Command, Const, ProgramError, Slot};

pub(super) fn delta_gate(
    r: &mut Reader<'_>,
    id: NodeId,
    a_log: &Weight,
    dt_bias: &Weight,
    heads: usize,
) -> Result<(), ProgramError> {
    let (layer, ba) = (r.layer(id)?, r.operand(id, 0)?);
    let (a_log, dt_bias) = (r.plain(id, a_log)?, r.plain(id, dt_bias)?);
    let heads = r.count(id, "heads", heads)?;
    r.fill(id, Slot::DeltaGb)?;
    r.emit(Command::DeltaGate { layer, ba, gb: Slot::DeltaGb, a_log, dt_bias, heads });
    Ok(())
}

pub(super) fn delta(
    r: &mut Reader<'_>,
    id: NodeId,
    [key_heads, value_heads, key_dim, value_dim]: [usize; 4],
    share: usize,
    scale: Const,
) -> Result<(), ProgramError> {
    let (layer, qkv, gb) = (r.layer(id)?, r.operand(id, 0)?, r.operand(id, 1)?);
    let fields =
        [("key_heads", key_heads), ("value_heads", value_heads), ("key_dim", key_dim), ("value_dim", value_dim)];
    let [key_heads, value_heads, key_dim, value_dim] = r.counts(id, fields)?;
    let share = r.offset(id, "share", share)?;
    let out = Slot::DeltaOut;
    r.fill(id, out)?;
    r.emit(Command::Delta { layer, qkv, gb, out, key_heads, value_heads, key_dim, value_dim, share, scale });
    Ok(())
}
