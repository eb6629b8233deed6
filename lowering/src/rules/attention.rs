//! Attention: the cache and what reads it, then what happens to q | k | v before it.

use super::packs::over_pack;
use super::pattern::{Pattern, path};
use crate::fuse::{Fresh, Operand, Patch};
use wordline_ir::graph::{Binary, Block, NodeId, Prim};
use wordline_ir::spec::NormKind;
use wordline_ir::{Const, StepGraph};

/// Keys or values read from a cache.
struct Cached {
    /// The row appended: [kv heads, dim].
    row: NodeId,
    kv_heads: usize,
    dim: usize,
    ctx: usize,
    /// Query heads that read each head.
    times: usize,
}

/// softmax(mask(cap(scale q k^T))) v over the caches of k and v. The score scale moves to q.
pub(super) fn attend(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (probabilities, turned) = p.matmul(at)?;
    let values = p.transpose(turned)?;
    let (Block::Softmax, inputs) = p.block(probabilities)? else { return None };
    let (scores, mask) = p.binary(*inputs.first()?, Binary::Add)?;
    let Prim::Mask { ctx, window } = p.at_position(mask)? else { return None };
    let (scores, cap) = match p.seen(scores) {
        Some(Block::SoftCap { cap }) => (*p.block(scores)?.1.first()?, Some(*cap)),
        _ => (scores, None),
    };
    let (scores, scale) = match p.binary(scores, Binary::Mul) {
        Some((scores, factor)) => (scores, Some(p.constant(factor)?)),
        None => (scores, None),
    };
    let (q, keys) = p.matmul(scores)?;
    let (k, v) = (cached(&mut p, keys)?, cached(&mut p, values)?);
    let [heads, head_dim] = *p.shape(q)? else { return None };
    let agree = k.dim == head_dim
        && k.kv_heads == v.kv_heads
        && [&k, &v].iter().all(|c| c.ctx == *ctx && c.kv_heads.checked_mul(c.times) == Some(heads))
        && *p.shape(at)? == [heads, v.dim];
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
    let (kv_heads, v_dim, window) = (k.kv_heads, v.dim, *window);
    let parts = [p.node(q)?.len(), p.node(k.row)?.len(), p.node(v.row)?.len()];
    let width = parts.into_iter().try_fold(0usize, |sum, part| sum.checked_add(part))?;
    let mut patch = p.patch(&[at])?;
    let q = match scale {
        Some(factor) => patch.add(fresh("q.scaled", Block::Scale { factor }, vec![heads, head_dim], vec![q.into()])),
        None => q.into(),
    };
    let pack = patch.add(fresh("qkv", Block::Pack, vec![width], vec![q, k.row.into(), v.row.into()]));
    let append = Block::CacheAppend { heads, kv_heads, head_dim, v_dim };
    let cache = patch.add(fresh("cache", append, vec![], vec![pack]));
    let attend = Block::Attend { heads, kv_heads, head_dim, window, cap };
    let context = patch.add(fresh("attend", attend, vec![heads, v_dim], vec![pack, cache]));
    patch.stand_for(at, context);
    Some(patch)
}

fn cached(p: &mut Pattern<'_>, at: NodeId) -> Option<Cached> {
    let (all, times) = p.repeated(at)?;
    let (Prim::Append { ctx, .. }, inputs) = p.any(all)? else { return None };
    let row = *inputs.first()?;
    let [kv_heads, dim] = *p.shape(row)? else { return None };
    Some(Cached { row, kv_heads, dim, ctx: *ctx, times })
}

/// pack(scale(rotate q), rotate k, v): both by one recipe.
pub(super) fn rope(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let [q, k, v] = packed(&mut p, at)?;
    let (q, scale) = match p.seen(q)? {
        Block::Scale { factor } => (*p.block(q)?.1.first()?, *factor),
        _ => (q, Const::new(1.0)),
    };
    let (Block::Rotate { rope }, rotated_q) = p.block(q)? else { return None };
    let (Block::Rotate { rope: other }, rotated_k) = p.block(k)? else { return None };
    if rope != other {
        return None;
    }
    let (q, k) = (*rotated_q.first()?, *rotated_k.first()?);
    let ([heads, head_dim], [kv_heads, _]) = (p.heads(q)?, p.heads(k)?);
    let block = Block::Rope { heads, kv_heads, head_dim, rope: rope.clone(), scale };
    over_pack(p, at, "rope", block, &[q, k, v])
}

/// pack(scale q, k, v), where no rotary takes the scale.
pub(super) fn scale_q(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let [q, k, v] = packed(&mut p, at)?;
    let (Block::Scale { factor }, inputs) = p.block(q)? else { return None };
    let q = *inputs.first()?;
    let width = p.node(q)?.len();
    over_pack(p, at, "q.scaled", Block::ScaleFirst { width, factor: *factor }, &[q, k, v])
}

/// pack(rms_norm q, rms_norm k, v): one or both normed, by one eps.
pub(super) fn head_norm(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let [q, k, v] = packed(&mut p, at)?;
    let ([heads, head_dim], [kv_heads, _]) = (p.heads(q)?, p.heads(k)?);
    let mut eps = None;
    let mut normed = |p: &mut Pattern<'_>, x: NodeId| {
        let Some(Block::Norm { kind: NormKind::Rms, weight, bias: None, eps: own }) = p.seen(x) else {
            return Some((x, None));
        };
        if *eps.get_or_insert(*own) != *own {
            return None;
        }
        Some((*p.block(x)?.1.first()?, Some(weight.clone())))
    };
    let (q, q_weight) = normed(&mut p, q)?;
    let (k, k_weight) = normed(&mut p, k)?;
    let block = Block::HeadNorm { q: q_weight, k: k_weight, heads, kv_heads, head_dim, eps: eps? };
    over_pack(p, at, "head_norm", block, &[q, k, v])
}

/// The three parts of a pack of heads; the pack is taken.
pub(super) fn packed(p: &mut Pattern<'_>, at: NodeId) -> Option<[NodeId; 3]> {
    match p.seen(at)? {
        Block::Pack => p.block(at)?.1.try_into().ok(),
        _ => None,
    }
}
