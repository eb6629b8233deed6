//! Norms over the last axis.

use super::pattern::Pattern;
use crate::fuse::Patch;
use wordline_ir::graph::{Binary, Block, NodeId, Reduce, Unary};
use wordline_ir::spec::NormKind;
use wordline_ir::{Const, StepGraph};

/// x * rsqrt(mean(x^2) + eps) * w.
pub(super) fn rms_norm(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (normed, weight) = p.binary(at, Binary::Mul)?;
    let weight = p.param(weight, 1)?.clone();
    let (x, eps) = over_root(&mut p, normed, Reduce::Mean)?;
    weight_spans(&p, at, x, weight.view.rows())?;
    p.replace(at, Block::Norm { kind: NormKind::Rms, weight, bias: None, eps }, &[x])
}

/// (x - mean) * rsqrt(mean((x - mean)^2) + eps) * w (+ b).
pub(super) fn layer_norm(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (weighted, bias) = match p.binary(at, Binary::Add) {
        Some((weighted, bias)) => (weighted, Some(p.param(bias, 1)?.clone())),
        None => (at, None),
    };
    let (normed, weight) = p.binary(weighted, Binary::Mul)?;
    if bias.is_none() && p.is_biased(at) {
        return None;
    }
    let weight = p.param(weight, 1)?.clone();
    let (centred, eps) = over_root(&mut p, normed, Reduce::Mean)?;
    let (x, mean) = p.binary(centred, Binary::Sub)?;
    let same = p.reduce_last(mean, Reduce::Mean)?;
    if same != x || bias.as_ref().is_some_and(|b| b.view.rows() != weight.view.rows()) {
        return None;
    }
    weight_spans(&p, at, x, weight.view.rows())?;
    p.replace(at, Block::Norm { kind: NormKind::Ln, weight, bias, eps }, &[x])
}

/// x * rsqrt(sum(x^2) + eps).
pub(super) fn l2(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, eps) = over_root(&mut p, at, Reduce::Sum)?;
    p.replace(at, Block::L2 { eps }, &[x])
}

/// x and eps of x * rsqrt(reduce(x * x) + eps).
fn over_root(p: &mut Pattern<'_>, at: NodeId, how: Reduce) -> Option<(NodeId, Const)> {
    let (x, root) = p.binary(at, Binary::Mul)?;
    let shifted = p.unary(root, Unary::Rsqrt)?;
    let (spread, eps) = p.binary(shifted, Binary::Add)?;
    let eps = p.constant(eps)?;
    let square = p.reduce_last(spread, how)?;
    let (a, b) = p.binary(square, Binary::Mul)?;
    (a == x && b == x).then_some((x, eps))
}

/// One weight an element of the last axis, and no broadcasting that changes the shape.
fn weight_spans(p: &Pattern<'_>, at: NodeId, x: NodeId, rows: usize) -> Option<()> {
    let shape = p.shape(x)?;
    (p.shape(at)? == shape && shape.last() == Some(&rows)).then_some(())
}
