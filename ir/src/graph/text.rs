//! Text of a step graph: one node a line in schedule order, operands by number, attributes by name.

use super::{Block, Op, Prim, StepGraph, Weight};
use crate::spec::Rope;
use std::collections::HashMap;
use std::fmt::{self, Display};

impl Display for StepGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schedule = self.schedule();
        let number: HashMap<_, usize> = schedule.iter().enumerate().map(|(n, id)| (*id, n)).collect();
        for (n, id) in schedule.iter().enumerate() {
            let Some(node) = self.node(*id) else { continue };
            write!(f, "%{n} = {}", node.op)?;
            for (port, input) in self.inputs(*id).iter().enumerate() {
                f.write_str(if port == 0 { " " } else { ", " })?;
                match number.get(input) {
                    Some(input) => write!(f, "%{input}")?,
                    None => f.write_str("%?")?,
                }
            }
            let index = if node.index { "index" } else { "" };
            writeln!(f, " : {index}{:?}  # {}", node.shape, node.name)?;
        }
        match self.result().and_then(|r| number.get(&r)) {
            Some(result) => writeln!(f, "result %{result}"),
            None => Ok(()),
        }
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Op::Prim(prim) => prim_attributes(prim, f),
            Op::Block(block) => block_attributes(block, f),
        }
    }
}

fn prim_attributes(prim: &Prim, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match prim {
        Prim::Param { weight, .. } => write!(f, "({weight})"),
        Prim::Const(value) => write!(f, "({value:?})"),
        Prim::Reduce { axis, .. } | Prim::Concat { axis } => write!(f, "(axis {axis})"),
        Prim::Slice { axis, start, len } => write!(f, "(axis {axis}, {start}..{})", start.saturating_add(*len)),
        Prim::Repeat { axis, times } => write!(f, "(axis {axis}, times {times})"),
        Prim::Rotary { rope, wave } => write!(f, "({wave:?}, {})", Recipe(rope)),
        Prim::Mask { ctx, window: Some(window) } => write!(f, "(ctx {ctx}, window {window})"),
        Prim::Mask { ctx, window: None } => write!(f, "(ctx {ctx})"),
        Prim::Append { state, ctx } => write!(f, "({state}, ctx {ctx})"),
        Prim::Shift { state, taps } => write!(f, "({state}, taps {taps})"),
        Prim::Load { state, .. } | Prim::Store { state } => write!(f, "({state})"),
        Prim::TopK { k } => write!(f, "(k {k})"),
        Prim::Token
        | Prim::Position
        | Prim::Rows
        | Prim::MatMul
        | Prim::Binary(_)
        | Prim::Unary(_)
        | Prim::Reshape { .. }
        | Prim::Transpose
        | Prim::Take
        | Prim::Pick => Ok(()),
    }
}

fn block_attributes(block: &Block, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match block {
        Block::Embed { table, positions, scale } => write!(f, "({table}{}, scale {scale:?})", Plus(positions)),
        Block::Norm { weight, bias, eps, .. } => write!(f, "({weight}{}, eps {eps:?})", Plus(bias)),
        Block::L2 { eps } => write!(f, "(eps {eps:?})"),
        Block::SoftCap { cap } => write!(f, "(cap {cap:?})"),
        Block::Rotate { rope } => write!(f, "({})", Recipe(rope)),
        Block::Scale { factor } => write!(f, "({factor:?})"),
        Block::Linear { weight, bias } => write!(f, "({weight}{})", Plus(bias)),
        Block::HeadNorm { q, k, heads, kv_heads, head_dim, eps } => {
            let name = |w: &Option<Weight>| w.as_ref().map_or("-".to_owned(), |w| w.to_string());
            write!(f, "({}, {}, heads {heads}/{kv_heads} x {head_dim}, eps {eps:?})", name(q), name(k))
        }
        Block::Rope { heads, kv_heads, head_dim, rope, scale } => {
            write!(f, "(heads {heads}/{kv_heads} x {head_dim}, {}, scale {scale:?})", Recipe(rope))
        }
        Block::ScaleFirst { width, factor } => write!(f, "(first {width}, {factor:?})"),
        Block::CacheAppend { heads, kv_heads, head_dim, v_dim } => {
            write!(f, "(heads {heads}/{kv_heads} x {head_dim}, v {v_dim})")
        }
        Block::Attend { heads, kv_heads, head_dim, window, cap } => {
            write!(f, "(heads {heads}/{kv_heads} x {head_dim}")?;
            if let Some(window) = window {
                write!(f, ", window {window}")?;
            }
            if let Some(cap) = cap {
                write!(f, ", cap {cap:?}")?;
            }
            f.write_str(")")
        }
        Block::Gate { group } => write!(f, "(group {group})"),
        Block::Conv { weight, bias, channels, taps, act } => {
            write!(f, "({weight}{}, channels {channels}, taps {taps}, {act:?})", Plus(bias))
        }
        Block::L2Norm { heads, head_dim, eps } => write!(f, "(heads {heads} x {head_dim}, eps {eps:?})"),
        Block::DeltaGate { a_log, dt_bias, heads } => write!(f, "({a_log}, {dt_bias}, heads {heads})"),
        Block::Delta { key_heads, value_heads, key_dim, value_dim, share, scale } => write!(
            f,
            "(keys {key_heads} x {key_dim}, values {value_heads} x {value_dim}, share {share}, scale {scale:?})"
        ),
        Block::GatedNorm { weight, heads, head_dim, act, eps } => {
            write!(f, "({weight}, heads {heads} x {head_dim}, {act:?}, eps {eps:?})")
        }
        Block::Act { kind, gated, groups } => {
            write!(f, "({kind:?}{}, groups {groups})", if *gated { ", gated" } else { "" })
        }
        Block::TopK { experts, k, renormalise } => {
            write!(f, "({k} of {experts}{})", if *renormalise { ", renormalise" } else { "" })
        }
        Block::RoutedSpread { stack, experts, k } | Block::RoutedGather { stack, experts, k } => {
            write!(f, "({stack}, {k} of {experts})")
        }
        Block::Softmax | Block::Activate(_) | Block::Pack | Block::Add | Block::PickWeights => Ok(()),
    }
}

impl Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

struct Plus<'a>(&'a Option<Weight>);

impl Display for Plus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(weight) => write!(f, " + {weight}"),
            None => Ok(()),
        }
    }
}

struct Recipe<'a>(&'a Rope);

impl Display for Recipe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = if self.0.interleaved { "neighbours" } else { "halves" };
        write!(f, "theta {}, rot {}, {pairs}", self.0.theta, self.0.rot)
    }
}
