//! Readers of rotary embedding and the score scale.

use super::reader::Reader;
use wordline_ir::graph::NodeId;
use wordline_ir::spec::Rope;
use wordline_ir::{Command, Const, ProgramError};

pub(super) fn rope(
    r: &mut Reader<'_>,
    id: NodeId,
    [heads, kv_heads, head_dim]: [usize; 3],
    rope: &Rope,
    scale: Const,
) -> Result<(), ProgramError> {
    let (layer, qkv) = (r.layer(id)?, r.operand(id, 0)?);
    let fields = [("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim), ("rot", rope.rot)];
    let [heads, kv_heads, head_dim, rot] = r.counts(id, fields)?;
    let table = r.rope(id, rope)?;
    r.fill(id, qkv)?;
    r.emit(Command::Rope { layer, qkv, heads, kv_heads, head_dim, rot, table, scale });
    Ok(())
}

pub(super) fn scale_first(r: &mut Reader<'_>, id: NodeId, width: usize, scale: Const) -> Result<(), ProgramError> {
    let (layer, x) = (r.layer(id)?, r.operand(id, 0)?);
    let width = r.count(id, "width", width)?;
    r.fill(id, x)?;
    r.emit(Command::Scale { layer, x, width, scale });
    Ok(())
}
