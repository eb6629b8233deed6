//! `survey`: before any slot is given out, every node of a graph is one that some reader takes; the first that is not
//! is refused, with the reason where one can be seen.

use wordline_ir::graph::{Block, Node, NodeId, Op, Prim};
use wordline_ir::spec::NormKind;
use wordline_ir::{ProgramError, StepGraph};

/// Refuse the first node that no reader takes.
pub(super) fn survey(graph: &StepGraph, schedule: &[NodeId]) -> Result<(), ProgramError> {
    for id in schedule {
        let Some(node) = graph.node(*id) else { continue };
        if let Some(what) = unread(graph, *id, node) {
            return Err(ProgramError::Block {
                block: node.op.name().to_owned(),
                site: format!("{}, '{}'", node.site, node.name),
                what,
            });
        }
    }
    Ok(())
}

/// Why no reader takes a node; `None` when one does.
fn unread(graph: &StepGraph, id: NodeId, node: &Node) -> Option<String> {
    let block = match &node.op {
        Op::Prim(prim) if prim.is_leaf() || matches!(prim, Prim::Reshape { .. }) => return None,
        Op::Prim(_) => {
            return Some("the engine has no unit for this primitive, and no rule made it part of a block".into());
        }
        Op::Block(block) => block,
    };
    match block {
        Block::Norm { kind, bias, eps, .. } if node.shape.len() != 1 => Some(match kind {
            NormKind::Ln => "heads are normed by rms alone".to_owned(),
            NormKind::Rms if bias.is_some() => "heads are normed without a bias".to_owned(),
            NormKind::Rms => match other_eps(graph, id, eps.get()) {
                Some(other) => format!("query and key heads have eps {} and {other}; one command has one", eps.get()),
                None => "a norm of heads that no rule made part of a block".to_owned(),
            },
        }),
        Block::L2 { .. } | Block::Softmax | Block::Activate(_) | Block::Rotate { .. } => {
            Some("the engine has no unit for this part alone, and no rule made it part of a block".to_owned())
        }
        _ => None,
    }
}

/// The eps of another head norm that meets this one in a pack, when it differs.
fn other_eps(graph: &StepGraph, id: NodeId, own: f32) -> Option<f32> {
    let (pack, _) = *graph.users(id).first()?;
    let beside = graph.inputs(pack).into_iter().filter_map(|part| graph.node(part));
    beside
        .filter_map(|node| match &node.op {
            Op::Block(Block::Norm { eps, .. }) => Some(eps.get()),
            _ => None,
        })
        .find(|eps| *eps != own)
}
