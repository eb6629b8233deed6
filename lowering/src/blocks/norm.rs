//! Readers of norms.

use super::reader::Reader;
use wordline_ir::graph::{NodeId, Part, Weight};
use wordline_ir::spec::{Activation, NormKind};
use wordline_ir::{Command, Const, ProgramError, Slot};

/// A norm of the whole residual goes to `h`; a norm of what a mixer or an FFN adds stays in its place.
pub(super) fn norm(
    r: &mut Reader<'_>,
    id: NodeId,
    kind: NormKind,
    weight: &Weight,
    bias: Option<&Weight>,
    eps: Const,
) -> Result<(), ProgramError> {
    let (layer, x) = (r.layer(id)?, r.operand(id, 0)?);
    let out = match r.node(id)?.site.part {
        Part::MixerPost | Part::FfnPost => x,
        _ => Slot::H,
    };
    let (weight, bias) = (r.plain(id, weight)?, r.optional(id, bias)?);
    r.fill(id, out)?;
    r.emit(Command::Norm { layer, x, out, weight, bias, kind, eps });
    Ok(())
}

pub(super) fn head_norm(
    r: &mut Reader<'_>,
    id: NodeId,
    [q, k]: [Option<&Weight>; 2],
    [heads, kv_heads, head_dim]: [usize; 3],
    eps: Const,
) -> Result<(), ProgramError> {
    let (layer, qkv) = (r.layer(id)?, r.operand(id, 0)?);
    let (q_weight, k_weight) = (r.optional(id, q)?, r.optional(id, k)?);
    let [heads, kv_heads, head_dim] =
        r.counts(id, [("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim)])?;
    r.fill(id, qkv)?;
    r.emit(Command::HeadNorm { layer, qkv, q_weight, k_weight, heads, kv_heads, head_dim, eps });
    Ok(())
}

pub(super) fn l2_norm(
    r: &mut Reader<'_>,
    id: NodeId,
    heads: usize,
    head_dim: usize,
    eps: Const,
) -> Result<(), ProgramError> {
    let (layer, x) = (r.layer(id)?, r.operand(id, 0)?);
    let [heads, head_dim] = r.counts(id, [("heads", heads), ("head_dim", head_dim)])?;
    r.fill(id, x)?;
    r.emit(Command::L2Norm { layer, x, heads, head_dim, eps });
    Ok(())
}

pub(super) fn gated_norm(
    r: &mut Reader<'_>,
    id: NodeId,
    weight: &Weight,
    [heads, head_dim]: [usize; 2],
    act: Activation,
    eps: Const,
) -> Result<(), ProgramError> {
    let (layer, x, gate) = (r.layer(id)?, r.operand(id, 0)?, r.operand(id, 1)?);
    let weight = r.plain(id, weight)?;
    let [heads, head_dim] = r.counts(id, [("heads", heads), ("head_dim", head_dim)])?;
    r.fill(id, x)?;
    r.emit(Command::GatedNorm { layer, x, gate, out: x, weight, heads, head_dim, act, eps });
    Ok(())
}
