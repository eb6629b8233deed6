//! Readers of a mixture of experts.

use super::reader::Reader;
use wordline_ir::graph::{Block, NodeId, Op, Weight};
use wordline_ir::{Command, ProgramError, Slot, TensorKind};

/// One command makes picks and weights; the graph's node for the weights only names them.
pub(super) fn top_k(
    r: &mut Reader<'_>,
    id: NodeId,
    experts: usize,
    k: usize,
    renormalise: bool,
) -> Result<(), ProgramError> {
    let (layer, logits) = (r.layer(id)?, r.operand(id, 0)?);
    let [experts, k] = r.counts(id, [("experts", experts), ("k", k)])?;
    r.fill(id, Slot::Picks)?;
    let weights = r.graph.users(id).into_iter().map(|(user, _)| user);
    let weights: Vec<NodeId> = weights
        .filter(|user| matches!(r.graph.node(*user).map(|n| &n.op), Some(Op::Block(Block::PickWeights))))
        .collect();
    for weights in weights {
        r.fill(weights, Slot::PickWeights)?;
    }
    let (picks, weights) = (Slot::Picks, Slot::PickWeights);
    r.emit(Command::TopK { layer, logits, picks, weights, experts, k, renormalise });
    Ok(())
}

/// The weights must lie beside the picks they belong to.
pub(super) fn pick_weights(r: &mut Reader<'_>, id: NodeId) -> Result<(), ProgramError> {
    r.operand(id, 0).map(|_| ())
}

pub(super) fn routed_spread(
    r: &mut Reader<'_>,
    id: NodeId,
    stack: &Weight,
    experts: usize,
    k: usize,
) -> Result<(), ProgramError> {
    let (layer, x, picks) = (r.layer(id)?, r.operand(id, 0)?, r.operand(id, 1)?);
    let (stack, k) = (r.tensor(id, stack, TensorKind::Stack { experts })?, r.count(id, "k", k)?);
    let y = Slot::ExpertGateUp;
    r.fill(id, y)?;
    r.emit(Command::RoutedMatvec { layer, x, picks, weights: None, y, stack, k });
    Ok(())
}

pub(super) fn routed_gather(
    r: &mut Reader<'_>,
    id: NodeId,
    stack: &Weight,
    experts: usize,
    k: usize,
) -> Result<(), ProgramError> {
    let (layer, x, picks) = (r.layer(id)?, r.operand(id, 0)?, r.operand(id, 1)?);
    let weights = Some(r.operand(id, 2)?);
    let (stack, k) = (r.tensor(id, stack, TensorKind::Stack { experts })?, r.count(id, "k", k)?);
    r.fill(id, Slot::Mix)?;
    r.emit(Command::RoutedMatvec { layer, x, picks, weights, y: Slot::Mix, stack, k });
    Ok(())
}
