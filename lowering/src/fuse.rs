//! `fuse`: rules from one table rewrite a step graph until it is made of blocks that a target has units for.
//!
//! A rule is a function from a node to a patch, or to nothing. Rules run in the order of their table, each once over the
//! nodes; a rule fires only where it recognises the whole of what it replaces, constants, operand order and users
//! included. What the target takes is its [`Shim`]'s to say: a rule whose block the target has no use for stays silent.

use crate::rules::PHASES;
use wordline_ir::graph::{Block, Node, NodeId, Op};
use wordline_ir::{StepGraph, graph::Site};

/// One rule: its name is in every report.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name.
    pub name: &'static str,
    /// What it replaces by what.
    pub doc: &'static str,
    /// Looks at one node; the patch that replaces it and what leads to it.
    pub apply: fn(&StepGraph, NodeId) -> Option<Patch>,
}

/// Rules that build on the same things.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// Name.
    pub name: &'static str,
    /// Rules, in the order in which they run.
    pub rules: &'static [Rule],
}

/// What a target takes of the shared table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shim {
    refused: Vec<&'static str>,
}

impl Shim {
    /// The engine: it has a unit, or a use on the way to one, for what every rule makes.
    #[must_use]
    pub fn engine() -> Self {
        Self::default()
    }

    /// A target that does not take what one more rule makes.
    #[must_use]
    pub fn without(mut self, rule: &'static str) -> Self {
        self.refused.push(rule);
        self
    }

    /// A target that takes no rule: graphs stay as they were lifted.
    #[must_use]
    pub fn empty() -> Self {
        Self { refused: PHASES.iter().flat_map(|p| p.rules).map(|r| r.name).collect() }
    }

    /// True when the target takes what the rule makes.
    #[must_use]
    pub fn takes(&self, rule: &Rule) -> bool {
        !self.refused.contains(&rule.name)
    }
}

/// How often a rule fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The rule.
    pub rule: &'static str,
    /// Patches it made.
    pub times: usize,
}

/// Apply the table's rules that `shim` takes; says which fired.
pub fn fuse(graph: &mut StepGraph, shim: &Shim) -> Vec<Fired> {
    let mut fired = Vec::new();
    let mut nodes = graph.authored();
    for rule in PHASES.iter().flat_map(|phase| phase.rules).filter(|rule| shim.takes(rule)) {
        let times = run(graph, rule, &nodes);
        if times > 0 {
            fired.push(Fired { rule: rule.name, times });
            nodes = graph.authored();
        }
    }
    fired
}

/// One rule over these nodes; how often it fired.
pub(crate) fn run(graph: &mut StepGraph, rule: &Rule, nodes: &[NodeId]) -> usize {
    let mut times = 0;
    for id in nodes {
        // An earlier patch of this pass may have taken the node.
        if graph.node(*id).is_none() {
            continue;
        }
        if let Some(patch) = (rule.apply)(graph, *id) {
            patch.apply(graph);
            times += 1;
        }
    }
    times
}

/// An operand of a new node.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// A node that stays.
    Old(NodeId),
    /// The n-th new node.
    New(usize),
}

impl From<NodeId> for Operand {
    fn from(id: NodeId) -> Self {
        Operand::Old(id)
    }
}

/// A block that a patch adds.
#[derive(Clone, Debug)]
pub(crate) struct Fresh {
    pub(crate) name: String,
    pub(crate) site: Site,
    pub(crate) block: Block,
    pub(crate) shape: Vec<usize>,
    pub(crate) index: bool,
    pub(crate) order: usize,
    pub(crate) inputs: Vec<Operand>,
}

/// A rewrite: blocks to add, values that they stand for, nodes that go.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    fresh: Vec<Fresh>,
    redirect: Vec<(NodeId, Operand)>,
    remove: Vec<NodeId>,
}

impl Patch {
    /// A patch that removes these nodes.
    pub(crate) fn removing(nodes: Vec<NodeId>) -> Self {
        Self { remove: nodes, ..Self::default() }
    }

    /// Add a block.
    pub(crate) fn add(&mut self, fresh: Fresh) -> Operand {
        self.fresh.push(fresh);
        Operand::New(self.fresh.len() - 1)
    }

    /// Users of `from` take `to`.
    pub(crate) fn stand_for(&mut self, from: NodeId, to: Operand) {
        self.redirect.push((from, to));
    }

    fn apply(self, graph: &mut StepGraph) {
        let mut made: Vec<NodeId> = Vec::with_capacity(self.fresh.len());
        let resolve = |made: &[NodeId], operand: Operand| match operand {
            Operand::Old(id) => id,
            Operand::New(n) => made[n],
        };
        for Fresh { name, site, block, shape, index, order, inputs } in self.fresh {
            let inputs: Vec<NodeId> = inputs.into_iter().map(|i| resolve(&made, i)).collect();
            made.push(graph.add(Node { name, site, op: Op::Block(block), shape, index, order }, &inputs));
        }
        for (from, to) in self.redirect {
            graph.redirect(from, resolve(&made, to));
        }
        let mut touched = Vec::new();
        for id in self.remove {
            if graph.node(id).is_some() {
                touched.extend(graph.inputs(id));
                graph.remove(id);
            }
        }
        sweep(graph, touched);
    }
}

/// Leaves that a patch left without users go too: their content is in the new block's fields.
fn sweep(graph: &mut StepGraph, mut touched: Vec<NodeId>) {
    while let Some(id) = touched.pop() {
        let leaf = graph.node(id).is_some_and(|n| matches!(&n.op, Op::Prim(prim) if prim.is_leaf()));
        if leaf && !graph.is_used(id) && graph.result() != Some(id) {
            touched.extend(graph.inputs(id));
            graph.remove(id);
        }
    }
}
