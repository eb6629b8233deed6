//! `mutants`: wrong steps, made one by one from a right one, that show whether the oracle judges.
//!
//! A mutant differs from the authored step in one place: an operation dropped, two operands of one shape swapped, an
//! operand wired to another value of its shape, a primitive exchanged for one of the same shape, a number altered. The path
//! must refuse it, or read another program off it than the oracle's. One that reads the same program must mean the same:
//! [`equivalent`] says which do, and why, by the kind of change.

use crate::author::{Authored, Step, Value};
use crate::{Shim, fuse, lift, lower_graph};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use wordline_ir::diff::{Difference, first_difference};
use wordline_ir::graph::{Binary, Prim, Reduce, Unary, Wave};
use wordline_ir::{Const, Program, ProgramError};

/// What was done to one operation, named as in the authored step.
#[derive(Clone, Debug, PartialEq)]
pub enum Mutation {
    /// Its users take its first operand of its own shape; without one, they are left without the value.
    Drop {
        /// The operation.
        op: String,
    },
    /// Two operands of one shape exchanged.
    Swap {
        /// The operation.
        op: String,
        /// Their ports.
        ports: [usize; 2],
    },
    /// An operand replaced by another value of its shape.
    Rewire {
        /// The operation.
        op: String,
        /// The operand's port.
        port: usize,
        /// Name of what it reads instead.
        to: String,
    },
    /// The primitive exchanged for another of the same shape, or a number of it altered.
    Alter {
        /// The operation.
        op: String,
        /// The new primitive's name.
        to: &'static str,
    },
}

/// A step with one thing wrong.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What is wrong.
    pub mutation: Mutation,
    /// The primitive it was done to.
    pub prim: Prim,
    /// The step.
    pub step: Step,
}

/// What came of a step that should not pass.
#[derive(Debug)]
pub enum Verdict {
    /// The path has no program for it.
    Refused(ProgramError),
    /// Its program differs from the oracle's.
    Differs(Box<Difference>),
    /// Its program is the oracle's.
    Equal,
}

/// What the path makes of a step under `shim`, against the oracle's program.
#[must_use]
pub fn judge(step: &Step, shim: &Shim, oracle: &Program) -> Verdict {
    let read = lift(step).and_then(|mut graph| {
        fuse(&mut graph, shim);
        lower_graph(&graph)
    });
    let body = match read {
        Ok(body) => body,
        Err(error) => return Verdict::Refused(error),
    };
    let program = Program {
        identity: oracle.identity.clone(),
        max_pos: oracle.max_pos,
        slots: body.slots,
        tensors: body.tensors,
        ropes: body.ropes,
        commands: body.commands,
    };
    first_difference(&program, oracle).map_or(Verdict::Equal, |difference| Verdict::Differs(Box::new(difference)))
}

/// Why a mutant of `step` that reads the right program is right: `None` when it is not.
#[must_use]
pub fn equivalent(step: &Step, mutant: &Mutant) -> Option<&'static str> {
    let Mutation::Rewire { op, port, to } = &mutant.mutation else { return None };
    let named = |name: &str| step.ops.iter().find(|op| op.name == name);
    let was = *named(op)?.inputs.get(*port)?;
    let was = &step.ops.iter().find(|op| op.value == was)?.prim;
    match (was, &named(to)?.prim) {
        (Prim::Const(a), Prim::Const(b)) if a == b => Some("a constant of the same bits is the same constant"),
        (Prim::Param { weight: a, shape: s }, Prim::Param { weight: b, shape: t }) if a.view == b.view && s == t => {
            Some("a tensor whose values lie in the same place is the same tensor: a tied head")
        }
        _ => None,
    }
}

/// Every mutant of a step. A step that cannot be lifted has none.
pub fn mutants(step: &Step) -> impl Iterator<Item = Mutant> + '_ {
    let shapes = shapes(step);
    (0..step.ops.len()).flat_map(move |at| of_op(step, &shapes, at))
}

/// Shape, and whether it holds indices, of each value.
type Shapes = HashMap<Value, (Vec<usize>, bool)>;

fn shapes(step: &Step) -> Shapes {
    let Ok(graph) = lift(step) else { return Shapes::new() };
    let value: HashMap<&str, Value> = step.ops.iter().map(|op| (op.name.as_str(), op.value)).collect();
    let nodes = graph.schedule().into_iter().filter_map(|id| graph.node(id));
    nodes.filter_map(|n| Some((*value.get(n.name.as_str())?, (n.shape.clone(), n.index)))).collect()
}

fn of_op(step: &Step, shapes: &Shapes, at: usize) -> Vec<Mutant> {
    let op = &step.ops[at];
    let name = || op.name.clone();
    let same = |a: &Value, b: &Value| shapes.get(a) == shapes.get(b);
    let mut made = vec![(Mutation::Drop { op: name() }, without(step, at, shapes))];
    for second in 1..op.inputs.len() {
        for first in 0..second {
            let (a, b) = (op.inputs[first], op.inputs[second]);
            if a != b && same(&a, &b) {
                let swapped = edit(step, at, |op| op.inputs.swap(first, second));
                made.push((Mutation::Swap { op: name(), ports: [first, second] }, swapped));
            }
        }
    }
    for (port, input) in op.inputs.iter().enumerate() {
        let others = || step.ops[..at].iter().filter(|o| o.value != *input && same(&o.value, input));
        // The nearest and the farthest: the next thing a slip of the pen would name, and what the step began with.
        for other in others().next_back().into_iter().chain(others().next().filter(|_| others().count() > 1)) {
            let rewired = edit(step, at, |op| op.inputs[port] = other.value);
            made.push((Mutation::Rewire { op: name(), port, to: other.name.clone() }, rewired));
        }
    }
    for prim in altered(&op.prim) {
        let to = prim.name();
        made.push((Mutation::Alter { op: name(), to }, edit(step, at, |op| op.prim = prim)));
    }
    made.into_iter().map(|(mutation, step)| Mutant { mutation, prim: op.prim.clone(), step }).collect()
}

/// The step without one operation.
fn without(step: &Step, at: usize, shapes: &Shapes) -> Step {
    let gone = step.ops[at].value;
    let instead = step.ops[at].inputs.iter().find(|input| shapes.get(input) == shapes.get(&gone)).copied();
    let mut step = step.clone();
    step.ops.remove(at);
    if let Some(instead) = instead {
        for input in step.ops.iter_mut().flat_map(|op| &mut op.inputs).filter(|input| **input == gone) {
            *input = instead;
        }
        if step.result == gone {
            step.result = instead;
        }
    }
    alive(step)
}

fn edit(step: &Step, at: usize, change: impl FnOnce(&mut Authored)) -> Step {
    let mut step = step.clone();
    change(&mut step.ops[at]);
    alive(step)
}

/// Operations that nothing reads any more go: otherwise lift would refuse them and the rules would not be asked.
fn alive(mut step: Step) -> Step {
    // Readers come after what they read, so that one pass from the end sees every reader first.
    let mut read: HashSet<Value> = HashSet::from([step.result]);
    let mut keep = vec![false; step.ops.len()];
    for (at, op) in step.ops.iter().enumerate().rev() {
        keep[at] = read.contains(&op.value) || matches!(op.prim, Prim::Store { .. });
        if keep[at] {
            read.extend(op.inputs.iter().copied());
        }
    }
    let mut keep = keep.into_iter();
    step.ops.retain(|_| keep.next().unwrap_or(true));
    step
}

/// Primitives of the same shape that mean something else.
fn altered(prim: &Prim) -> Vec<Prim> {
    const BINARY: [Binary; 5] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max];
    const UNARY: [Unary; 7] =
        [Unary::Neg, Unary::Rsqrt, Unary::Exp, Unary::Sigmoid, Unary::Tanh, Unary::Erf, Unary::Softplus];
    const REDUCE: [Reduce; 3] = [Reduce::Sum, Reduce::Mean, Reduce::Max];
    let mut others: Vec<Prim> = match prim {
        Prim::Binary(_) => BINARY.map(Prim::Binary).to_vec(),
        Prim::Unary(_) => UNARY.map(Prim::Unary).to_vec(),
        Prim::Reduce { axis, .. } => REDUCE.map(|how| Prim::Reduce { how, axis: *axis }).to_vec(),
        Prim::Const(value) => vec![Prim::Const(Const(value.0 ^ 1)), Prim::Const(Const(value.0 ^ (1 << 31)))],
        Prim::Slice { axis, start, len } => {
            let mut moved = vec![Prim::Slice { axis: *axis, start: start + 1, len: *len }];
            moved.extend(start.checked_sub(1).map(|start| Prim::Slice { axis: *axis, start, len: *len }));
            moved
        }
        Prim::Mask { ctx, window } => {
            let other = window.map_or(Some(3), |window| Some(window + 1));
            vec![Prim::Mask { ctx: *ctx, window: other }, Prim::Mask { ctx: *ctx, window: None }]
        }
        Prim::Rotary { rope, wave } => {
            let mut base = rope.as_ref().clone();
            base.theta *= 2.0;
            let other = if *wave == Wave::Cos { Wave::Sin } else { Wave::Cos };
            vec![Prim::Rotary { rope: rope.clone(), wave: other }, Prim::Rotary { rope: Arc::new(base), wave: *wave }]
        }
        _ => Vec::new(),
    };
    others.retain(|other| other != prim);
    others
}
