//! Gated DeltaNet: convolution, recurrence, and what happens before and after it.

use super::attention::packed;
use super::packs::over_pack;
use super::pattern::{Pattern, path};
use crate::fuse::{Fresh, Operand, Patch};
use wordline_ir::graph::{Binary, Block, NodeId, Prim, Reduce, Unary};
use wordline_ir::spec::NormKind;
use wordline_ir::{Const, StepGraph};

/// activation(sum over the ring of input * tap (+ b)).
pub(super) fn conv(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let Block::Activate(act) = p.seen(at)? else { return None };
    let mut y = *p.block(at)?.1.first()?;
    let mut bias = None;
    if let Some((sum, b)) = p.binary(y, Binary::Add) {
        bias = Some(p.param(b, 1)?.clone());
        y = sum;
    }
    let sum = p.reshaped(y)?;
    let products = p.reduce(sum, Reduce::Sum, 1)?;
    let (recent, taps) = p.binary(products, Binary::Mul)?;
    let weight = p.param(taps, 2)?.clone();
    let (Prim::Shift { taps, .. }, inputs) = p.any(recent)? else { return None };
    let x = *inputs.first()?;
    let [channels] = *p.shape(x)? else { return None };
    let fits = weight.view.rows() == channels
        && weight.view.cols() == *taps
        && *p.shape(at)? == [channels]
        && bias.as_ref().is_none_or(|b| b.view.rows() == channels);
    if !fits {
        return None;
    }
    p.replace(at, Block::Conv { weight, bias, channels, taps: *taps, act: *act }, &[x])
}

/// S *= decay; m = S^T k; S += k ((v - m) * beta)^T; out = S^T (q * scale), per value head.
pub(super) fn delta(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let [value_heads, value_dim] = *p.shape(at)? else { return None };
    let sum = p.reshaped(at)?;
    let products = p.reduce(sum, Reduce::Sum, 1)?;
    let (new, q_column) = p.binary(products, Binary::Mul)?;
    let [_, key_dim, _] = *p.shape(new)? else { return None };
    let q = p.reshape(q_column, &[value_heads, key_dim, 1])?;

    let store = p.users(new).into_iter().find(|(user, _)| *user != products)?.0;
    let (Prim::Store { state: stored }, _) = p.any(store)? else { return None };
    let (faded, outer) = p.binary(new, Binary::Add)?;
    let (old, decay) = p.binary(faded, Binary::Mul)?;
    let (Prim::Load { state, shape }, _) = p.any(old)? else { return None };
    let decay = p.reshape(decay, &[value_heads, 1, 1])?;
    let (k_column, row) = p.binary(outer, Binary::Mul)?;
    let step = p.reshape(row, &[value_heads, 1, value_dim])?;
    let (error, beta) = p.binary(step, Binary::Mul)?;
    let beta = p.reshape(beta, &[value_heads, 1])?;
    let (v, found) = p.binary(error, Binary::Sub)?;
    let found = p.reshape(found, &[value_heads, value_dim])?;
    let found = p.reduce(found, Reduce::Sum, 1)?;
    let (same_faded, same_k) = p.binary(found, Binary::Mul)?;
    let k = p.reshape(k_column, &[value_heads, key_dim, 1])?;

    let (q, q_share) = p.repeated(q)?;
    let (k, share) = p.repeated(k)?;
    let (q, scale) = match p.binary(q, Binary::Mul).map(|(x, c)| (x, p.constant(c))) {
        Some((x, Some(factor))) => (x, factor),
        Some((_, None)) => return None,
        None => (q, Const::new(1.0)),
    };
    let [key_heads, dim] = *p.shape(k)? else { return None };
    let agree = stored == state
        && *shape == [value_heads, key_dim, value_dim]
        && same_faded == faded
        && same_k == k_column
        && q_share == share
        && dim == key_dim
        && p.shape(q)? == p.shape(k)?
        && *p.shape(v)? == [value_heads, value_dim]
        && key_heads.checked_mul(share) == Some(value_heads)
        && *p.shape(decay)? == [value_heads]
        && *p.shape(beta)? == [value_heads];
    if !agree {
        return None;
    }

    let node = p.node(at)?;
    let base = path(&node.name);
    let fresh = |label: &str, block: Block, shape: Vec<usize>, inputs: Vec<Operand>| Fresh {
        name: format!("{base}.{label}"),
        site: node.site,
        block,
        shape,
        index: false,
        order: node.order,
        inputs,
    };
    let parts = [p.node(q)?.len(), p.node(k)?.len(), p.node(v)?.len()];
    let width = parts.into_iter().try_fold(0usize, |sum, part| sum.checked_add(part))?;
    let gates = value_heads.checked_mul(2)?;
    let mut patch = p.patch(&[at])?;
    let qkv = patch.add(fresh("qkv.heads", Block::Pack, vec![width], vec![q.into(), k.into(), v.into()]));
    let gb = patch.add(fresh("gb", Block::Pack, vec![gates], vec![decay.into(), beta.into()]));
    let block = Block::Delta { key_heads, value_heads, key_dim, value_dim, share, scale };
    let out = patch.add(fresh("delta", block, vec![value_heads, value_dim], vec![qkv, gb]));
    patch.stand_for(at, out);
    Some(patch)
}

/// pack(l2 q, l2 k, v): both by one eps.
pub(super) fn l2_norm(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let [q, k, v] = packed(&mut p, at)?;
    let (Block::L2 { eps }, from_q) = p.block(q)? else { return None };
    let (Block::L2 { eps: other }, from_k) = p.block(k)? else { return None };
    let ([q_heads, head_dim], [k_heads, dim]) = (p.heads(q)?, p.heads(k)?);
    if eps != other || head_dim != dim {
        return None;
    }
    let (q, k) = (*from_q.first()?, *from_k.first()?);
    over_pack(p, at, "l2_norm", Block::L2Norm { heads: q_heads.checked_add(k_heads)?, head_dim, eps: *eps }, &[q, k, v])
}

/// pack(exp(-exp(a_log) * softplus(a + dt_bias)), sigmoid b).
pub(super) fn delta_gate(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let Block::Pack = p.seen(at)? else { return None };
    let [decay, beta]: [NodeId; 2] = p.block(at)?.1.try_into().ok()?;
    let exponent = p.unary(decay, Unary::Exp)?;
    let (rate, dt) = p.binary(exponent, Binary::Mul)?;
    let rate = p.unary(rate, Unary::Neg)?;
    let a_log = p.unary(rate, Unary::Exp)?;
    let a_log = p.param(a_log, 1)?.clone();
    let shifted = p.unary(dt, Unary::Softplus)?;
    let (a, dt_bias) = p.binary(shifted, Binary::Add)?;
    let dt_bias = p.param(dt_bias, 1)?.clone();
    let b = p.unary(beta, Unary::Sigmoid)?;
    let [heads] = *p.shape(a)? else { return None };
    let fits = *p.shape(b)? == [heads] && a_log.view.rows() == heads && dt_bias.view.rows() == heads;
    if !fits {
        return None;
    }
    let node = p.node(at)?;
    let name = format!("{}.ba", path(&node.name));
    let order = p.last_part_order(at)?;
    let pack = Fresh {
        name,
        site: node.site,
        block: Block::Pack,
        shape: node.shape.clone(),
        index: false,
        order,
        inputs: vec![b.into(), a.into()],
    };
    let gate = Fresh {
        name: node.name.clone(),
        block: Block::DeltaGate { a_log, dt_bias, heads },
        inputs: vec![Operand::New(0)],
        ..pack.clone()
    };
    let mut patch = p.patch(&[at])?;
    patch.add(pack);
    let gate = patch.add(gate);
    patch.stand_for(at, gate);
    Some(patch)
}

/// rms_norm(x) * activation(z), head by head.
pub(super) fn gated_norm(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (normed, open) = p.binary(at, Binary::Mul)?;
    let [heads, head_dim] = *p.shape(at)? else { return None };
    let (Block::Norm { kind: NormKind::Rms, weight, bias: None, eps }, x) = p.block(normed)? else { return None };
    let (Block::Activate(act), z) = p.block(open)? else { return None };
    let (x, z) = (*x.first()?, *z.first()?);
    if p.shape(x)? != p.shape(z)? {
        return None;
    }
    let block = Block::GatedNorm { weight: weight.clone(), heads, head_dim, act: *act, eps: *eps };
    p.replace(at, block, &[x, z])
}
