//! Linear layers.

use super::pattern::Pattern;
use crate::fuse::Patch;
use wordline_ir::StepGraph;
use wordline_ir::graph::{Binary, Block, NodeId};

/// One vector times a held matrix, and the bias added to it.
pub(super) fn linear(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    if let Some((product, bias)) = p.binary(at, Binary::Add) {
        let bias = p.param(bias, 1)?;
        let (x, weight) = p.matmul(product)?;
        let weight = p.param(weight, 2)?;
        let same = p.shape(product) == p.shape(at) && p.shape(x)?.len() == 1;
        let block = Block::Linear { weight: weight.clone(), bias: Some(bias.clone()) };
        return if same { p.replace(at, block, &[x]) } else { None };
    }
    let (x, weight) = p.matmul(at)?;
    let weight = p.param(weight, 2)?;
    if p.is_biased(at) || p.shape(x)?.len() != 1 {
        return None;
    }
    p.replace(at, Block::Linear { weight: weight.clone(), bias: None }, &[x])
}
