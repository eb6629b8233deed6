//! Mixture of experts: the pick, and matrices of picked experts.

use super::pattern::Pattern;
use crate::fuse::{Fresh, Operand, Patch};
use wordline_ir::StepGraph;
use wordline_ir::graph::{Binary, Block, NodeId, Prim, Reduce};

/// Softmax, the indices of the largest, their probabilities, and the division by their sum where there is one.
pub(super) fn top_k(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (Prim::TopK { k }, inputs) = p.any(at)? else { return None };
    let k = *k;
    let probabilities = *inputs.first()?;
    let (Block::Softmax, inputs) = p.block(probabilities)? else { return None };
    let logits = *inputs.first()?;
    let [experts] = *p.shape(logits)? else { return None };
    let taken = p.users(probabilities).into_iter().find(|(user, _)| *user != at)?.0;
    let (Prim::Take, inputs) = p.any(taken)? else { return None };
    if inputs != [probabilities, at] {
        return None;
    }
    // Either the taken probabilities are the weights, or they are divided by their own sum.
    let (weights, renormalise) = match shared_out(g, taken) {
        Some([sum, share]) => {
            p.any(sum)?;
            p.any(share)?;
            (share, true)
        }
        None => (taken, false),
    };
    let (picks_node, weights_node) = (p.node(at)?, p.node(weights)?);
    let picks = Fresh {
        name: picks_node.name.clone(),
        site: picks_node.site,
        block: Block::TopK { experts, k, renormalise },
        shape: vec![k],
        index: true,
        order: weights_node.order,
        inputs: vec![logits.into()],
    };
    let weights_fresh = Fresh {
        name: weights_node.name.clone(),
        block: Block::PickWeights,
        index: false,
        inputs: vec![Operand::New(0)],
        ..picks.clone()
    };
    let mut patch = p.patch(&[at, weights])?;
    let picks = patch.add(picks);
    let pick_weights = patch.add(weights_fresh);
    patch.stand_for(at, picks);
    patch.stand_for(weights, pick_weights);
    Some(patch)
}

/// The sum of a vector and the vector divided by it, when those two are all that reads the vector.
fn shared_out(g: &StepGraph, taken: NodeId) -> Option<[NodeId; 2]> {
    let mut p = Pattern::new(g);
    let users = g.users(taken);
    let (sum, share) = match users.as_slice() {
        [(sum, 0), (share, 0)] => (*sum, *share),
        _ => return None,
    };
    p.reduce(sum, Reduce::Sum, 0)?;
    (p.binary(share, Binary::Div)? == (taken, sum)).then_some([sum, share])
}

/// One vector through each picked matrix.
pub(super) fn routed_spread(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, matrices) = p.matmul(at)?;
    let [_] = p.shape(x)? else { return None };
    let (Prim::Pick, inputs) = p.any(matrices)? else { return None };
    let [stack, picks]: [NodeId; 2] = inputs.try_into().ok()?;
    let weight = p.param(stack, 3)?.clone();
    let Block::TopK { experts, k, .. } = *p.seen(picks)? else { return None };
    if p.shape(stack)?.first() != Some(&experts) {
        return None;
    }
    p.replace(at, Block::RoutedSpread { stack: weight, experts, k }, &[x, picks])
}

/// The weighted sum, over picks, of each pick's vector through its matrix.
pub(super) fn routed_gather(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let [width] = *p.shape(at)? else { return None };
    let sum = p.reshaped(at)?;
    let weighted = p.reduce(sum, Reduce::Sum, 0)?;
    let (products, column) = p.binary(weighted, Binary::Mul)?;
    let (x, matrices) = p.matmul(products)?;
    let [picked, _] = *p.shape(x)? else { return None };
    let (Prim::Pick, inputs) = p.any(matrices)? else { return None };
    let [stack, picks]: [NodeId; 2] = inputs.try_into().ok()?;
    let weight = p.param(stack, 3)?.clone();
    let Block::TopK { experts, k, .. } = *p.seen(picks)? else { return None };
    let weights = p.reshape(column, &[k, 1])?;
    let Block::PickWeights = p.seen(weights)? else { return None };
    let own = g.input(weights, 0) == Some(picks);
    let fits = picked == k && *p.shape(products)? == [k, width] && p.shape(stack)?.first() == Some(&experts);
    if !own || !fits {
        return None;
    }
    p.replace(at, Block::RoutedGather { stack: weight, experts, k }, &[x, picks, weights])
}
