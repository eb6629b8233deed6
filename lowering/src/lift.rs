//! `lift`: an authored step brought into the one IR: every operand found, every shape inferred, every state whole.

mod shape;

use crate::author::{Authored, Step, Value};
use shape::infer;
use std::collections::{HashMap, HashSet};
use wordline_ir::graph::{Node, NodeId, Op, Prim};
use wordline_ir::{ProgramError, StepGraph};

/// The step graph of an authored step.
///
/// # Errors
/// [`ProgramError::Lift`] names the operation: a value or a name made twice, an operand that nothing made before, a
/// wrong number of operands, operands whose shapes do not fit, a value that nothing reads, a state used twice or only
/// half.
pub fn lift(step: &Step) -> Result<StepGraph, ProgramError> {
    let mut graph = StepGraph::new();
    let mut made: HashMap<Value, NodeId> = HashMap::with_capacity(step.ops.len());
    let mut names = HashSet::with_capacity(step.ops.len());
    for (order, op) in step.ops.iter().enumerate() {
        if !names.insert(op.name.as_str()) {
            return Err(refuse(op, "another operation has this name".to_owned()));
        }
        let inputs: Vec<NodeId> = (op.inputs.iter())
            .map(|v| made.get(v).copied().ok_or_else(|| refuse(op, format!("nothing before it makes %{}", v.0))))
            .collect::<Result<_, _>>()?;
        let operands: Vec<&Node> = inputs.iter().filter_map(|id| graph.node(*id)).collect();
        let (shape, index) = infer(&op.prim, &operands, step.ctx).map_err(|what| refuse(op, what))?;
        let node = Node { name: op.name.clone(), site: op.site, op: Op::Prim(op.prim.clone()), shape, index, order };
        let id = graph.add(node, &inputs);
        if made.insert(op.value, id).is_some() {
            return Err(refuse(op, format!("%{} is made twice", op.value.0)));
        }
    }
    let Some(result) = made.get(&step.result) else {
        return Err(ProgramError::Lift { op: "result".to_owned(), what: format!("nothing makes %{}", step.result.0) });
    };
    graph.set_result(*result);
    states(step)?;
    used(step, &graph, &made)?;
    Ok(graph)
}

/// Every value is read, stored, or the result: an author does not write what nobody needs.
fn used(step: &Step, graph: &StepGraph, made: &HashMap<Value, NodeId>) -> Result<(), ProgramError> {
    for op in &step.ops {
        let read = made.get(&op.value).is_some_and(|id| graph.is_used(*id));
        if !read && op.value != step.result && !matches!(op.prim, Prim::Store { .. }) {
            return Err(refuse(op, "nothing reads its value".to_owned()));
        }
    }
    Ok(())
}

/// Every state has one place that advances it: a cache or ring one operation, a memory one load and one store.
fn states(step: &Step) -> Result<(), ProgramError> {
    let mut touched = HashSet::new();
    let (mut loaded, mut stored) = (HashSet::new(), HashSet::new());
    for op in &step.ops {
        let fresh = match &op.prim {
            Prim::Append { state, .. } | Prim::Shift { state, .. } => touched.insert(state.as_str()),
            Prim::Load { state, .. } => touched.insert(state.as_str()) && loaded.insert(state.as_str()),
            Prim::Store { state } => stored.insert(state.as_str()),
            _ => true,
        };
        if !fresh {
            return Err(refuse(op, "another operation advances this state".to_owned()));
        }
    }
    for op in &step.ops {
        match &op.prim {
            Prim::Load { state, .. } if !stored.contains(state.as_str()) => {
                return Err(refuse(op, format!("memory '{state}' is read and never stored")));
            }
            Prim::Store { state } if !loaded.contains(state.as_str()) => {
                return Err(refuse(op, format!("memory '{state}' is stored and never read")));
            }
            _ => {}
        }
    }
    Ok(())
}

fn refuse(op: &Authored, what: String) -> ProgramError {
    ProgramError::Lift { op: format!("{} '{}'", op.prim.name(), op.name), what }
}
