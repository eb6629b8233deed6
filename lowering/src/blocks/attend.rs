//! Readers of the cache and of attention over it.

use super::reader::Reader;
use wordline_ir::graph::{Block, NodeId, Op};
use wordline_ir::{Command, Const, ProgramError, Slot};

pub(super) fn cache_append(
    r: &mut Reader<'_>,
    id: NodeId,
    [heads, kv_heads, head_dim, v_dim]: [usize; 4],
) -> Result<(), ProgramError> {
    let (layer, qkv) = (r.layer(id)?, r.operand(id, 0)?);
    let fields = [("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim), ("v_dim", v_dim)];
    let [heads, kv_heads, head_dim, v_dim] = r.counts(id, fields)?;
    r.emit(Command::CacheAppend { layer, qkv, heads, kv_heads, head_dim, v_dim });
    Ok(())
}

/// The cache is a sequence's state and lies in no slot: attention names it by its layer.
pub(super) fn attend(
    r: &mut Reader<'_>,
    id: NodeId,
    [heads, kv_heads, head_dim]: [usize; 3],
    window: Option<usize>,
    cap: Option<Const>,
) -> Result<(), ProgramError> {
    let (layer, qkv) = (r.layer(id)?, r.operand(id, 0)?);
    let cache = r.graph.input(id, 1).and_then(|cache| r.graph.node(cache));
    let own = cache.is_some_and(|c| {
        matches!(c.op, Op::Block(Block::CacheAppend { .. }))
            && c.site.layer == r.node(id).ok().and_then(|n| n.site.layer)
    });
    if !own {
        return Err(r.refuse(id, "it reads no cache of its own layer".to_owned()));
    }
    let fields = [("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim), ("window", window.unwrap_or(0))];
    let [heads, kv_heads, head_dim, window] = r.counts(id, fields)?;
    r.fill(id, Slot::Attn)?;
    let cap = cap.unwrap_or(Const::new(0.0));
    r.emit(Command::Attend { layer, qkv, out: Slot::Attn, heads, kv_heads, head_dim, window, cap });
    Ok(())
}
