//! `Pattern`: matches one rule's shape, node by node, and remembers what the patch will replace.
//!
//! Every method either recognises a node and gives its operands, or gives nothing and the rule does not fire. A node that
//! was recognised is taken: it goes when the patch is applied, so that all its users must be taken too, unless it is a
//! root, whose users take the new block. Leaves (constants, tensors, positions) are read and not taken.

use crate::fuse::{Fresh, Operand, Patch};
use wordline_ir::graph::{Binary, Block, Node, NodeId, Op, Prim, Reduce, Unary, Weight};
use wordline_ir::{Const, StepGraph};

pub(super) struct Pattern<'g> {
    graph: &'g StepGraph,
    taken: Vec<NodeId>,
}

/// An axis and the elements of it that a slice keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) axis: usize,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl<'g> Pattern<'g> {
    pub(super) fn new(graph: &'g StepGraph) -> Self {
        Self { graph, taken: Vec::new() }
    }

    pub(super) fn node(&self, id: NodeId) -> Option<&'g Node> {
        self.graph.node(id)
    }

    pub(super) fn shape(&self, id: NodeId) -> Option<&'g [usize]> {
        self.graph.node(id).map(|n| n.shape.as_slice())
    }

    /// The shape of heads: how many, and how wide.
    pub(super) fn heads(&self, id: NodeId) -> Option<[usize; 2]> {
        self.shape(id)?.try_into().ok()
    }

    /// The node's primitive, taken.
    fn prim(&mut self, id: NodeId) -> Option<&'g Prim> {
        match &self.graph.node(id)?.op {
            Op::Prim(prim) if !prim.is_leaf() => {
                self.taken.push(id);
                Some(prim)
            }
            _ => None,
        }
    }

    /// Take the node if `is` says that its primitive is the wanted one.
    fn wanted(&mut self, id: NodeId, is: impl FnOnce(&Prim) -> bool) -> Option<()> {
        match &self.graph.node(id)?.op {
            Op::Prim(prim) if is(prim) => self.prim(id).map(|_| ()),
            _ => None,
        }
    }

    fn two(&self, id: NodeId) -> Option<(NodeId, NodeId)> {
        Some((self.graph.input(id, 0)?, self.graph.input(id, 1)?))
    }

    pub(super) fn binary(&mut self, id: NodeId, how: Binary) -> Option<(NodeId, NodeId)> {
        self.wanted(id, |p| *p == Prim::Binary(how))?;
        self.two(id)
    }

    pub(super) fn unary(&mut self, id: NodeId, how: Unary) -> Option<NodeId> {
        self.wanted(id, |p| *p == Prim::Unary(how))?;
        self.graph.input(id, 0)
    }

    /// x of x * constant.
    pub(super) fn times(&mut self, id: NodeId, factor: f32) -> Option<NodeId> {
        let (x, c) = self.binary(id, Binary::Mul)?;
        (self.constant(c)? == Const::new(factor)).then_some(x)
    }

    pub(super) fn reduce(&mut self, id: NodeId, how: Reduce, axis: usize) -> Option<NodeId> {
        self.wanted(id, |p| *p == Prim::Reduce { how, axis })?;
        self.graph.input(id, 0)
    }

    /// A reduction over the last axis.
    pub(super) fn reduce_last(&mut self, id: NodeId, how: Reduce) -> Option<NodeId> {
        let axis = self.shape(id)?.len().checked_sub(1)?;
        self.reduce(id, how, axis)
    }

    /// A reshape to exactly this shape.
    pub(super) fn reshape(&mut self, id: NodeId, to: &[usize]) -> Option<NodeId> {
        self.wanted(id, |p| matches!(p, Prim::Reshape { shape } if shape == to))?;
        self.graph.input(id, 0)
    }

    /// Any reshape.
    pub(super) fn reshaped(&mut self, id: NodeId) -> Option<NodeId> {
        self.wanted(id, |p| matches!(p, Prim::Reshape { .. }))?;
        self.graph.input(id, 0)
    }

    pub(super) fn slice(&mut self, id: NodeId) -> Option<(NodeId, Kept)> {
        match self.prim(id)? {
            Prim::Slice { axis, start, len } => {
                Some((self.graph.input(id, 0)?, Kept { axis: *axis, start: *start, len: *len }))
            }
            _ => None,
        }
    }

    pub(super) fn concat(&mut self, id: NodeId, axis: usize) -> Option<(NodeId, NodeId)> {
        self.wanted(id, |p| *p == Prim::Concat { axis })?;
        if self.graph.inputs(id).len() == 2 { self.two(id) } else { None }
    }

    /// x of a repeat along axis 0, and its copies; x itself and 1 where nothing is repeated.
    pub(super) fn repeated(&mut self, id: NodeId) -> Option<(NodeId, usize)> {
        match &self.graph.node(id)?.op {
            Op::Prim(Prim::Repeat { axis: 0, times }) => {
                self.taken.push(id);
                Some((self.graph.input(id, 0)?, *times))
            }
            _ => Some((id, 1)),
        }
    }

    pub(super) fn matmul(&mut self, id: NodeId) -> Option<(NodeId, NodeId)> {
        self.wanted(id, |p| *p == Prim::MatMul)?;
        self.two(id)
    }

    pub(super) fn transpose(&mut self, id: NodeId) -> Option<NodeId> {
        self.wanted(id, |p| *p == Prim::Transpose)?;
        self.graph.input(id, 0)
    }

    /// Any primitive that is no leaf, with its operands.
    pub(super) fn any(&mut self, id: NodeId) -> Option<(&'g Prim, Vec<NodeId>)> {
        let prim = self.prim(id)?;
        Some((prim, self.graph.inputs(id)))
    }

    /// A block that goes, with its operands.
    pub(super) fn block(&mut self, id: NodeId) -> Option<(&'g Block, Vec<NodeId>)> {
        match &self.graph.node(id)?.op {
            Op::Block(block) => {
                self.taken.push(id);
                Some((block, self.graph.inputs(id)))
            }
            Op::Prim(_) => None,
        }
    }

    /// A block that stays.
    pub(super) fn seen(&self, id: NodeId) -> Option<&'g Block> {
        match &self.graph.node(id)?.op {
            Op::Block(block) => Some(block),
            Op::Prim(_) => None,
        }
    }

    /// A leaf.
    pub(super) fn leaf(&self, id: NodeId) -> Option<&'g Prim> {
        match &self.graph.node(id)?.op {
            Op::Prim(prim) if prim.is_leaf() => Some(prim),
            _ => None,
        }
    }

    pub(super) fn constant(&self, id: NodeId) -> Option<Const> {
        match self.leaf(id)? {
            Prim::Const(value) => Some(*value),
            _ => None,
        }
    }

    /// A leaf that is looked up at the row's position.
    pub(super) fn at_position(&self, id: NodeId) -> Option<&'g Prim> {
        let leaf = self.leaf(id)?;
        let index = self.graph.input(id, 0)?;
        (*self.leaf(index)? == Prim::Position).then_some(leaf)
    }

    /// A held tensor read with this rank.
    pub(super) fn param(&self, id: NodeId, rank: usize) -> Option<&'g Weight> {
        match self.leaf(id)? {
            Prim::Param { weight, shape } if shape.len() == rank => Some(weight),
            _ => None,
        }
    }

    /// The users of a node.
    pub(super) fn users(&self, id: NodeId) -> Vec<(NodeId, usize)> {
        self.graph.users(id)
    }

    /// True when all that reads the value is the addition of a held vector: a rule with a bias takes the two together.
    pub(super) fn is_biased(&self, id: NodeId) -> bool {
        let users = self.users(id);
        let [(user, 0)] = users.as_slice() else { return false };
        let added = Pattern::new(self.graph).binary(*user, Binary::Add);
        added.is_some_and(|(_, bias)| self.param(bias, 1).is_some())
    }

    /// The last place, in authored order, of what was taken besides the pack `at` itself.
    pub(super) fn last_part_order(&self, at: NodeId) -> Option<usize> {
        self.taken.iter().filter(|id| **id != at).filter_map(|id| self.node(*id)).map(|n| n.order).max()
    }

    /// A patch that removes what was taken, once every taken node but the roots is used by taken nodes alone.
    pub(super) fn patch(mut self, roots: &[NodeId]) -> Option<Patch> {
        self.taken.sort_unstable();
        self.taken.dedup();
        let result = self.graph.result();
        let inner = self.taken.iter().filter(|id| !roots.contains(id));
        let closed = inner.into_iter().all(|id| Some(*id) != result && self.graph.used_only_by(*id, &self.taken));
        closed.then(|| Patch::removing(self.taken))
    }

    /// The patch of a rule that replaces one value by one block over `inputs`.
    pub(super) fn replace(self, root: NodeId, block: Block, inputs: &[NodeId]) -> Option<Patch> {
        let node = self.node(root)?;
        let fresh = Fresh {
            name: node.name.clone(),
            site: node.site,
            block,
            shape: node.shape.clone(),
            index: node.index,
            order: node.order,
            inputs: inputs.iter().map(|i| Operand::Old(*i)).collect(),
        };
        let mut patch = self.patch(&[root])?;
        let new = patch.add(fresh);
        patch.stand_for(root, new);
        Some(patch)
    }
}

/// The path of a node's name: all but its last word.
pub(super) fn path(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(path, _)| path)
}
