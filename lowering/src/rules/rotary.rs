//! Rotary embedding of heads.

use super::pattern::{Kept, Pattern};
use crate::fuse::Patch;
use std::sync::Arc;
use wordline_ir::StepGraph;
use wordline_ir::graph::{Binary, Block, NodeId, Prim, Unary, Wave};
use wordline_ir::spec::Rope;

/// x * cos + (-second half | first half) * sin.
pub(super) fn rotate_halves(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, turned, rope) = rotated(&mut p, at)?;
    let half = rope.rot / 2;
    let (negated, first) = p.concat(turned, 1)?;
    let second = p.unary(negated, Unary::Neg)?;
    let (a, second) = p.slice(second)?;
    let (b, first) = p.slice(first)?;
    let halves = first == Kept { axis: 1, start: 0, len: half } && second == Kept { axis: 1, start: half, len: half };
    if rope.interleaved || a != x || b != x || !halves {
        return None;
    }
    p.replace(at, Block::Rotate { rope }, &[x])
}

/// x * cos + (-second | first of each pair of neighbours) * sin.
pub(super) fn rotate_pairs(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, turned, rope) = rotated(&mut p, at)?;
    let [heads, _] = p.shape(x)? else { return None };
    let turned_pairs = p.reshape(turned, &[*heads, rope.rot])?;
    let (negated, first) = p.concat(turned_pairs, 2)?;
    let second = p.unary(negated, Unary::Neg)?;
    let (a, second) = p.slice(second)?;
    let (b, first) = p.slice(first)?;
    let pairs = first == Kept { axis: 2, start: 0, len: 1 } && second == Kept { axis: 2, start: 1, len: 1 };
    let same = p.reshape(a, &[*heads, rope.rot / 2, 2])?;
    if !rope.interleaved || a != b || same != x || !pairs {
        return None;
    }
    p.replace(at, Block::Rotate { rope }, &[x])
}

/// x, the turned x and the recipe of x * cos + turned * sin, over [heads, rot].
fn rotated(p: &mut Pattern<'_>, at: NodeId) -> Option<(NodeId, NodeId, Arc<Rope>)> {
    let (straight, across) = p.binary(at, Binary::Add)?;
    let (x, cos) = p.binary(straight, Binary::Mul)?;
    let (turned, sin) = p.binary(across, Binary::Mul)?;
    let (Prim::Rotary { rope, wave: Wave::Cos }, Prim::Rotary { rope: other, wave: Wave::Sin }) =
        (p.at_position(cos)?, p.at_position(sin)?)
    else {
        return None;
    };
    let whole = matches!(p.shape(x)?, [_, dim] if *dim == rope.rot);
    (rope == other && whole).then(|| (x, turned, rope.clone()))
}

/// rotate(first dimensions of each head) | the others.
pub(super) fn rotate_part(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (turned, kept) = p.concat(at, 1)?;
    let (block, inputs) = p.block(turned)?;
    let (Block::Rotate { rope }, [first]) = (block, inputs.as_slice()) else { return None };
    let (x, first) = p.slice(*first)?;
    let (same, rest) = p.slice(kept)?;
    let [_, dim] = p.shape(x)? else { return None };
    let split = first == Kept { axis: 1, start: 0, len: rope.rot }
        && rest == Kept { axis: 1, start: rope.rot, len: dim.checked_sub(rope.rot)? };
    if same != x || !split {
        return None;
    }
    p.replace(at, Block::Rotate { rope: rope.clone() }, &[x])
}
