//! `lower_graph`: a fused step graph read block by block into commands, slots and tables.
//!
//! Each block has one reader. A reader says in which slot its value goes and checks that every operand still lies where it
//! was put: commands overwrite slots, a graph does not. What no reader takes is refused by its block's name.

mod act;
mod attend;
mod conv;
mod delta;
mod ends;
mod matvec;
mod moe;
mod norm;
mod placed;
mod reader;
mod rope;
mod survey;
mod tables;

use reader::Reader;
use wordline_ir::graph::{Block, NodeId, Op, Prim};
use wordline_ir::spec::Rope;
use wordline_ir::{Command, ProgramError, SlotInfo, StepGraph, Tensor};

/// What a step graph reads as: a program without its identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// Slots used, by code.
    pub slots: Vec<SlotInfo>,
    /// Tensors, in order of first use.
    pub tensors: Vec<Tensor>,
    /// Rotary recipes, in order of first use.
    pub ropes: Vec<Rope>,
    /// The commands.
    pub commands: Vec<Command>,
}

/// Read a fused step graph.
///
/// # Errors
/// [`ProgramError::Block`] names the first block that has no unit, whose operand's slot holds something else by then, or
/// whose value does not fit its slot; [`ProgramError::Field`] names the field that a value overflows.
pub fn lower_graph(graph: &StepGraph) -> Result<Body, ProgramError> {
    let schedule = graph.schedule();
    survey::survey(graph, &schedule)?;
    let mut reader = Reader::new(graph);
    for id in schedule {
        read(&mut reader, id)?;
    }
    reader.finish()
}

fn read(r: &mut Reader<'_>, id: NodeId) -> Result<(), ProgramError> {
    let graph = r.graph;
    let Some(node) = graph.node(id) else { return Ok(()) };
    let block = match &node.op {
        // A reshape is another view of the same elements, a leaf is a field or a table of whoever reads it.
        Op::Prim(prim) if prim.is_leaf() || matches!(prim, Prim::Reshape { .. }) => return Ok(()),
        Op::Prim(_) => return Err(r.refuse(id, "a primitive that no rule made part of a block".to_owned())),
        Op::Block(block) => block,
    };
    match block {
        Block::Embed { table, positions, scale } => ends::embed(r, id, table, positions.as_ref(), *scale),
        Block::Norm { kind, weight, bias, eps } => norm::norm(r, id, *kind, weight, bias.as_ref(), *eps),
        Block::Linear { weight, bias } => matvec::linear(r, id, weight, bias.as_ref()),
        Block::Pack => matvec::pack(r, id),
        Block::HeadNorm { q, k, heads, kv_heads, head_dim, eps } => {
            norm::head_norm(r, id, [q.as_ref(), k.as_ref()], [*heads, *kv_heads, *head_dim], *eps)
        }
        Block::Rope { heads, kv_heads, head_dim, rope, scale } => {
            rope::rope(r, id, [*heads, *kv_heads, *head_dim], rope, *scale)
        }
        Block::ScaleFirst { width, factor } => rope::scale_first(r, id, *width, *factor),
        Block::CacheAppend { heads, kv_heads, head_dim, v_dim } => {
            attend::cache_append(r, id, [*heads, *kv_heads, *head_dim, *v_dim])
        }
        Block::Attend { heads, kv_heads, head_dim, window, cap } => {
            attend::attend(r, id, [*heads, *kv_heads, *head_dim], *window, *cap)
        }
        Block::Gate { group } => act::gate(r, id, *group),
        Block::Conv { weight, bias, channels, taps, act } => {
            conv::conv(r, id, weight, bias.as_ref(), [*channels, *taps], *act)
        }
        Block::L2Norm { heads, head_dim, eps } => norm::l2_norm(r, id, *heads, *head_dim, *eps),
        Block::DeltaGate { a_log, dt_bias, heads } => delta::delta_gate(r, id, a_log, dt_bias, *heads),
        Block::Delta { key_heads, value_heads, key_dim, value_dim, share, scale } => {
            delta::delta(r, id, [*key_heads, *value_heads, *key_dim, *value_dim], *share, *scale)
        }
        Block::GatedNorm { weight, heads, head_dim, act, eps } => {
            norm::gated_norm(r, id, weight, [*heads, *head_dim], *act, *eps)
        }
        Block::Act { kind, gated, groups } => act::act(r, id, *kind, *gated, *groups),
        Block::Add => act::add(r, id),
        Block::Scale { factor } => ends::logit_scale(r, id, *factor),
        Block::SoftCap { cap } => ends::soft_cap(r, id, *cap),
        Block::TopK { experts, k, renormalise } => moe::top_k(r, id, *experts, *k, *renormalise),
        Block::PickWeights => moe::pick_weights(r, id),
        Block::RoutedSpread { stack, experts, k } => moe::routed_spread(r, id, stack, *experts, *k),
        Block::RoutedGather { stack, experts, k } => moe::routed_gather(r, id, stack, *experts, *k),
        Block::L2 { .. } | Block::Softmax | Block::Activate(_) | Block::Rotate { .. } => {
            Err(r.refuse(id, "a part that no rule made part of a block".to_owned()))
        }
    }
}
