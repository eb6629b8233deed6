//! Values that lie side by side in one vector: what happens to parts of it happens in it, and what makes all of it makes
//! it at once.

use super::pattern::{Pattern, path};
use crate::fuse::{Fresh, Operand, Patch};
use std::sync::Arc;
use wordline_ir::StepGraph;
use wordline_ir::graph::{Block, NodeId, Weight};
use wordline_ir::spec::View;

/// The pack `at` replaced by `block` over a pack of `parts`, both placed where the last of the replaced parts was.
pub(super) fn over_pack(mut p: Pattern<'_>, at: NodeId, label: &str, block: Block, parts: &[NodeId]) -> Option<Patch> {
    let node = p.node(at)?;
    p.block(at)?;
    let order = p.last_part_order(at)?;
    let pack = Fresh {
        name: node.name.clone(),
        site: node.site,
        block: Block::Pack,
        shape: node.shape.clone(),
        index: false,
        order,
        inputs: parts.iter().map(|part| Operand::Old(*part)).collect(),
    };
    let name = format!("{}.{label}", path(&node.name));
    let over = Fresh { name, block, inputs: vec![Operand::New(0)], ..pack.clone() };
    let mut patch = p.patch(&[at])?;
    patch.add(pack);
    let over = patch.add(over);
    patch.stand_for(at, over);
    Some(patch)
}

/// pack(slices of x, in order, that cover it) -> x.
pub(super) fn pack_of_slices(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let Block::Pack = p.seen(at)? else { return None };
    let (_, parts) = p.block(at)?;
    let (mut whole, mut next) = (None, 0);
    for part in parts {
        let (x, kept) = match p.reshaped(part) {
            Some(inner) => p.slice(inner)?,
            None => p.slice(part)?,
        };
        if *whole.get_or_insert(x) != x || kept.axis != 0 || kept.start != next {
            return None;
        }
        next += kept.len;
    }
    let whole = whole?;
    if *p.shape(whole)? != [next] {
        return None;
    }
    let mut patch = p.patch(&[at])?;
    patch.stand_for(at, whole.into());
    Some(patch)
}

/// pack(linears of x) -> one linear of x, where weights concatenate and either all or none have a bias.
pub(super) fn pack_of_linears(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let Block::Pack = p.seen(at)? else { return None };
    let node = p.node(at)?;
    let (_, parts) = p.block(at)?;
    let mut input = None;
    let mut order = usize::MAX;
    let (mut weights, mut biases): (Vec<&View>, Vec<&View>) = (Vec::new(), Vec::new());
    for part in &parts {
        let made = p.reshaped(*part).unwrap_or(*part);
        let (Block::Linear { weight, bias }, inputs) = p.block(made)? else { return None };
        let x = *inputs.first()?;
        if *input.get_or_insert(x) != x {
            return None;
        }
        weights.push(&weight.view);
        biases.extend(bias.as_ref().map(|b| b.view.as_ref()));
        order = order.min(p.node(made)?.order);
    }
    let weight = View::concat(&weights)?;
    let bias = match biases.len() {
        0 => None,
        n if n == weights.len() => Some(View::concat(&biases)?),
        _ => return None,
    };
    let held = |name: String, view| Weight { name, view: Arc::new(view) };
    let block = Block::Linear {
        weight: held(node.name.clone(), weight),
        bias: bias.map(|bias| held(format!("{}.bias", node.name), bias)),
    };
    let fresh = Fresh {
        name: node.name.clone(),
        site: node.site,
        block,
        shape: node.shape.clone(),
        index: false,
        order,
        inputs: vec![input?.into()],
    };
    let mut patch = p.patch(&[at])?;
    let linear = patch.add(fresh);
    patch.stand_for(at, linear);
    Some(patch)
}
