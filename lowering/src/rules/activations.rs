//! Elementwise activations, soft caps, softmax, and the products that gate.

use super::pattern::{Pattern, path};
use crate::fuse::{Fresh, Operand, Patch};
use wordline_ir::graph::{Binary, Block, NodeId, Reduce, Unary};
use wordline_ir::spec::Activation;
use wordline_ir::{Const, StepGraph};

/// x * sigmoid(x).
pub(super) fn silu(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, gate) = p.binary(at, Binary::Mul)?;
    if p.unary(gate, Unary::Sigmoid)? != x {
        return None;
    }
    p.replace(at, Block::Activate(Activation::Silu), &[x])
}

/// (0.5 x) * (erf(x / sqrt 2) + 1).
pub(super) fn gelu_erf(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (half, phi) = p.binary(at, Binary::Mul)?;
    let x = p.times(half, 0.5)?;
    let erf = plus_one(&mut p, phi)?;
    let arg = p.unary(erf, Unary::Erf)?;
    if p.times(arg, std::f32::consts::FRAC_1_SQRT_2)? != x {
        return None;
    }
    p.replace(at, Block::Activate(Activation::GeluErf), &[x])
}

/// (0.5 x) * (tanh(sqrt(2/pi) (x + 0.044715 x^3)) + 1).
pub(super) fn gelu_tanh(g: &StepGraph, at: NodeId) -> Option<Patch> {
    // Rounded once from f64: the product of the f32 constants is another number.
    const SQRT_2_OVER_PI: f32 = (std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2) as f32;
    let mut p = Pattern::new(g);
    let (half, phi) = p.binary(at, Binary::Mul)?;
    let x = p.times(half, 0.5)?;
    let tanh = plus_one(&mut p, phi)?;
    let arg = p.unary(tanh, Unary::Tanh)?;
    let poly = p.times(arg, SQRT_2_OVER_PI)?;
    let (linear, cubic) = p.binary(poly, Binary::Add)?;
    let cube = p.times(cubic, 0.044_715)?;
    let (square, third) = p.binary(cube, Binary::Mul)?;
    let (first, second) = p.binary(square, Binary::Mul)?;
    if [linear, first, second, third].iter().any(|y| *y != x) {
        return None;
    }
    p.replace(at, Block::Activate(Activation::GeluTanh), &[x])
}

fn plus_one(p: &mut Pattern<'_>, at: NodeId) -> Option<NodeId> {
    let (x, one) = p.binary(at, Binary::Add)?;
    (p.constant(one)? == Const::new(1.0)).then_some(x)
}

/// max(x, 0).
pub(super) fn relu(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, zero) = p.binary(at, Binary::Max)?;
    if p.constant(zero)? != Const::new(0.0) {
        return None;
    }
    p.replace(at, Block::Activate(Activation::Relu), &[x])
}

/// tanh(x / cap) * cap.
pub(super) fn soft_cap(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (tanh, above) = p.binary(at, Binary::Mul)?;
    let cap = p.constant(above)?;
    let ratio = p.unary(tanh, Unary::Tanh)?;
    let (x, below) = p.binary(ratio, Binary::Div)?;
    if p.constant(below)? != cap {
        return None;
    }
    p.replace(at, Block::SoftCap { cap }, &[x])
}

/// exp(x - max) / sum, over the last axis.
pub(super) fn softmax(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (exp, sum) = p.binary(at, Binary::Div)?;
    if p.reduce_last(sum, Reduce::Sum)? != exp {
        return None;
    }
    let shifted = p.unary(exp, Unary::Exp)?;
    let (x, max) = p.binary(shifted, Binary::Sub)?;
    if p.reduce_last(max, Reduce::Max)? != x {
        return None;
    }
    p.replace(at, Block::Softmax, &[x])
}

/// activation(gate) * up: of the halves of one vector's rows, or of two vectors, which then lie side by side.
pub(super) fn gated_act(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (open, up) = p.binary(at, Binary::Mul)?;
    let (block, inputs) = p.block(open)?;
    let (Block::Activate(kind), [gate]) = (block, inputs.as_slice()) else { return None };
    let (gate, kind) = (*gate, *kind);
    if p.shape(gate)? != p.shape(up)? || gate == up {
        return None;
    }
    let shape = p.shape(at)?;
    let last = shape.len().checked_sub(1)?;
    let groups = shape[..last].iter().product();
    let mut halves = Pattern::new(g);
    if let (Some((a, first)), Some((b, second))) = (halves.slice(gate), halves.slice(up))
        && a == b
        && first.axis == last
        && second.axis == last
        && first.start == 0
        && second.start == first.len
        && p.shape(a)?.get(last) == Some(&(first.len + second.len))
    {
        p.slice(gate)?;
        p.slice(up)?;
        return p.replace(at, Block::Act { kind, gated: true, groups }, &[a]);
    }
    if last != 0 {
        return None;
    }
    let node = p.node(at)?;
    let pack = Fresh {
        name: format!("{}.gate_up", path(&node.name)),
        site: node.site,
        block: Block::Pack,
        shape: vec![shape[0].checked_mul(2)?],
        index: false,
        order: node.order,
        inputs: vec![gate.into(), up.into()],
    };
    let act = Fresh {
        name: node.name.clone(),
        site: node.site,
        block: Block::Act { kind, gated: true, groups: 1 },
        shape: shape.to_vec(),
        index: false,
        order: node.order,
        inputs: vec![Operand::New(0)],
    };
    let mut patch = p.patch(&[at])?;
    patch.add(pack);
    let act = patch.add(act);
    patch.stand_for(at, act);
    Some(patch)
}

/// activation(x) of one vector.
pub(super) fn act(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (block, inputs) = p.block(at)?;
    let (Block::Activate(kind), [x]) = (block, inputs.as_slice()) else { return None };
    if p.shape(at)?.len() != 1 {
        return None;
    }
    p.replace(at, Block::Act { kind: *kind, gated: false, groups: 1 }, &[*x])
}

/// x * sigmoid(g), with one gate element for each element of x or one for all.
pub(super) fn gate(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, open) = p.binary(at, Binary::Mul)?;
    let gate = p.unary(open, Unary::Sigmoid)?;
    let group = match (p.shape(x)?, p.shape(gate)?) {
        ([n], [m]) if n == m => 1,
        ([n], [1]) => *n,
        _ => return None,
    };
    p.replace(at, Block::Gate { group }, &[x, gate])
}
