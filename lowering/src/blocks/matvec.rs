//! Readers of linear layers, whole or as parts of one vector.

use super::placed::Extent;
use super::reader::Reader;
use wordline_ir::graph::{Block, NodeId, Op, Part, Weight};
use wordline_ir::{Command, Offset, ProgramError, Slot, TensorKind};

/// A linear layer writes the slot that its first reader looks in, or the part of it that is its own.
pub(super) fn linear(
    r: &mut Reader<'_>,
    id: NodeId,
    weight: &Weight,
    bias: Option<&Weight>,
) -> Result<(), ProgramError> {
    let (layer, x) = (r.layer(id)?, r.operand(id, 0)?);
    let len = r.node(id)?.len();
    let user = r.first_user(id);
    let (y, offset) = match user {
        Some((pack, port)) if is_pack(r, pack) => {
            let before = r.graph.inputs(pack).into_iter().take(port).filter_map(|part| r.graph.node(part));
            let start = before.fold(0usize, |sum, part| sum.saturating_add(part.len()));
            let slot = home(r, id, r.first_user(pack))?;
            let offset = r.offset(id, "offset", start)?;
            r.put(id, Extent { slot, start, len });
            (slot, offset)
        }
        user => {
            let slot = home(r, id, user)?;
            r.fill(id, slot)?;
            (slot, Offset(0))
        }
    };
    let weight = r.tensor(id, weight, TensorKind::Matrix)?;
    let bias = r.optional(id, bias)?;
    r.emit(Command::Matvec { layer, x, y, weight, bias, offset });
    Ok(())
}

/// A pack that no rule took apart: its parts must lie side by side already, each written there by its own command.
pub(super) fn pack(r: &mut Reader<'_>, id: NodeId) -> Result<(), ProgramError> {
    let mut next = 0usize;
    let mut slot = None;
    for port in 0..r.graph.inputs(id).len() {
        let (made, extent) = r.extent(id, port)?;
        if *slot.get_or_insert(extent.slot) != extent.slot || extent.start != next {
            let name = r.node(made)?.name.clone();
            return Err(r.refuse(id, format!("its part '{name}' does not lie behind the part before it")));
        }
        next = next.saturating_add(extent.len);
    }
    let slot = slot.ok_or_else(|| r.refuse(id, "it has no parts".to_owned()))?;
    r.fill(id, slot)
}

fn is_pack(r: &Reader<'_>, id: NodeId) -> bool {
    matches!(r.graph.node(id).map(|n| &n.op), Some(Op::Block(Block::Pack)))
}

/// The slot in which the reader of a linear layer's output looks for it.
fn home(r: &Reader<'_>, id: NodeId, user: Option<(NodeId, usize)>) -> Result<Slot, ProgramError> {
    let Some((user, port)) = user else { return Ok(Slot::Logits) };
    let node = r.node(user)?;
    let Op::Block(block) = &node.op else {
        return Err(r.refuse(id, format!("no slot for an output that '{}' reads", node.name)));
    };
    let slot = match (block, port, node.site.part) {
        (
            Block::HeadNorm { .. }
            | Block::Rope { .. }
            | Block::ScaleFirst { .. }
            | Block::CacheAppend { .. }
            | Block::Attend { .. },
            0,
            _,
        ) => Slot::Qkv,
        (Block::Gate { .. }, 1, Part::Attn) => Slot::Gate,
        (Block::Gate { .. }, 1, Part::Shared) => Slot::SharedGate,
        (Block::Gate { .. }, 0, Part::Shared) => Slot::SharedOut,
        (Block::Conv { .. }, 0, _) => Slot::DeltaIn,
        (Block::GatedNorm { .. }, 1, _) => Slot::DeltaZ,
        (Block::DeltaGate { .. }, 0, _) => Slot::DeltaBa,
        (Block::TopK { .. }, 0, _) => Slot::Router,
        (Block::Act { .. }, 0, Part::Mlp) => Slot::GateUp,
        (Block::Act { .. }, 0, Part::Shared) => Slot::SharedGateUp,
        (Block::Add, 1, Part::Moe) => Slot::SharedOut,
        (Block::Add, 1, _) | (Block::Norm { .. }, 0, Part::MixerPost | Part::FfnPost) => Slot::Mix,
        (Block::Scale { .. } | Block::SoftCap { .. }, 0, Part::Head) => Slot::Logits,
        _ => return Err(r.refuse(id, format!("no slot for an output that '{}' reads at operand {port}", node.name))),
    };
    Ok(slot)
}
