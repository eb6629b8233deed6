//! The ends of a step, and sums.

use super::pattern::Pattern;
use crate::fuse::Patch;
use wordline_ir::graph::{Binary, Block, NodeId, Prim, Weight};
use wordline_ir::{Const, StepGraph};

/// scale * the token's row (+ the position's row).
pub(super) fn embed(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    if let Some((token_row, position_row)) = p.binary(at, Binary::Add) {
        let (positions, position) = row(&mut p, position_row, &Prim::Position)?;
        let (table, scale, token) = token_part(&mut p, token_row)?;
        return p.replace(at, Block::Embed { table, positions: Some(positions), scale }, &[token, position]);
    }
    let (table, scale, token) = token_part(&mut p, at)?;
    // What is added or multiplied above, met later in the schedule, takes the whole.
    let part_of_more = p.users(at).iter().any(|(user, port)| {
        let mut above = Pattern::new(g);
        match above.any(*user) {
            Some((Prim::Binary(Binary::Mul), inputs)) => *port == 0 && above.constant(inputs[1]).is_some(),
            Some((Prim::Binary(Binary::Add), inputs)) => {
                *port == 0 && row(&mut above, inputs[1], &Prim::Position).is_some()
            }
            _ => false,
        }
    });
    if part_of_more {
        return None;
    }
    p.replace(at, Block::Embed { table, positions: None, scale }, &[token])
}

fn token_part(p: &mut Pattern<'_>, at: NodeId) -> Option<(Weight, Const, NodeId)> {
    if let Some((inner, factor)) = p.binary(at, Binary::Mul) {
        let scale = p.constant(factor)?;
        let (table, token) = row(p, inner, &Prim::Token)?;
        return Some((table, scale, token));
    }
    let (table, token) = row(p, at, &Prim::Token)?;
    Some((table, Const::new(1.0), token))
}

/// The table and the index of a row looked up at a token or a position.
fn row(p: &mut Pattern<'_>, at: NodeId, index: &Prim) -> Option<(Weight, NodeId)> {
    let (Prim::Rows, inputs) = p.any(at)? else { return None };
    let [table, at]: [NodeId; 2] = inputs.try_into().ok()?;
    let table = p.param(table, 2)?.clone();
    (p.leaf(at)? == index).then_some((table, at))
}

/// Logits times a constant.
pub(super) fn logit_scale(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, factor) = p.binary(at, Binary::Mul)?;
    let factor = p.constant(factor)?;
    let Block::Linear { .. } = p.seen(x)? else { return None };
    p.replace(at, Block::Scale { factor }, &[x])
}

/// x + y, two vectors of one shape.
pub(super) fn residual(g: &StepGraph, at: NodeId) -> Option<Patch> {
    let mut p = Pattern::new(g);
    let (x, y) = p.binary(at, Binary::Add)?;
    let vectors = p.shape(x)?.len() == 1 && p.shape(x)? == p.shape(y)?;
    if !vectors || p.leaf(x).is_some() || p.leaf(y).is_some() {
        return None;
    }
    p.replace(at, Block::Add, &[x, y])
}
