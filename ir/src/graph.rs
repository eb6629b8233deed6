//! `StepGraph`: one decode step as a directed acyclic graph of operations, the one form between an author and a program.
//!
//! Every node makes one value, of one token-row, with a known shape. A node starts as a primitive of the author
//! ([`Prim`]); fusion rules replace groups of primitives by blocks ([`Block`]) that an engine may have a unit for.
//! Nodes carry the place at which they were written, so that a graph has one schedule however its rules were applied.

mod block;
mod op;
mod prim;
mod text;

pub use block::Block;
pub use op::{Op, Weight};
pub use prim::{Binary, Prim, Reduce, Unary, Wave};

use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

/// A node of a [`StepGraph`].
pub type NodeId = NodeIndex<u32>;

/// The part of a model that an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// What the whole step shares: rotary rows, masks.
    Step,
    /// Embedding.
    Embed,
    /// Norm before a mixer.
    MixerNorm,
    /// Attention mixer.
    Attn,
    /// Gated DeltaNet mixer.
    Delta,
    /// Norm of a mixer's output.
    MixerPost,
    /// Residual add of a mixer.
    MixerAdd,
    /// Norm before a feed-forward network.
    FfnNorm,
    /// Dense feed-forward network.
    Mlp,
    /// Mixture of experts.
    Moe,
    /// The expert of a mixture that every row takes.
    Shared,
    /// Norm of a feed-forward network's output.
    FfnPost,
    /// Residual add of a feed-forward network.
    FfnAdd,
    /// Norm before the head.
    FinalNorm,
    /// LM head.
    Head,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Step => "step",
            Part::Embed => "embedding",
            Part::MixerNorm => "norm before the mixer",
            Part::Attn => "attention",
            Part::Delta => "delta net",
            Part::MixerPost => "norm after the mixer",
            Part::MixerAdd => "residual add of the mixer",
            Part::FfnNorm => "norm before the ffn",
            Part::Mlp => "ffn",
            Part::Moe => "mixture of experts",
            Part::Shared => "shared expert",
            Part::FfnPost => "norm after the ffn",
            Part::FfnAdd => "residual add of the ffn",
            Part::FinalNorm => "final norm",
            Part::Head => "head",
        })
    }
}

/// Where in a model an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Layer; `None` outside any layer.
    pub layer: Option<usize>,
    /// Part of the layer, or of the model.
    pub part: Part,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layer {layer}, {}", self.part),
            None => write!(f, "{}", self.part),
        }
    }
}

/// One operation and the value it makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name: the dotted path of the part, then what the operation is to it.
    pub name: String,
    /// Where it stands.
    pub site: Site,
    /// The operation.
    pub op: Op,
    /// Shape of the value, per token-row; empty for a scalar.
    pub shape: Vec<usize>,
    /// The value holds whole numbers that index something: a token, a position, picked experts.
    pub index: bool,
    /// Place in the authored step; a block keeps the place of what it replaced.
    pub order: usize,
}

impl Node {
    /// Elements of the value; saturates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |n, d| n.saturating_mul(*d))
    }

    /// True when the value has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
}

/// A decode step as a graph.
#[derive(Clone, Debug, Default)]
pub struct StepGraph {
    /// Edges run from a value to its users and carry the operand's port; nodes carry the number of their making, which
    /// breaks ties between nodes of one authored place.
    graph: StableDiGraph<(Node, usize), usize, u32>,
    made: usize,
    result: Option<NodeId>,
}

impl StepGraph {
    /// A graph without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Add a node that reads `inputs`, in operand order. The inputs must be nodes of this graph.
    pub fn add(&mut self, node: Node, inputs: &[NodeId]) -> NodeId {
        let id = self.graph.add_node((node, self.made));
        self.made += 1;
        for (port, input) in inputs.iter().enumerate() {
            self.graph.add_edge(*input, id, port);
        }
        id
    }

    /// The value that the step is for: the logits.
    #[must_use]
    pub fn result(&self) -> Option<NodeId> {
        self.result
    }

    /// Name the value that the step is for.
    pub fn set_result(&mut self, id: NodeId) {
        self.result = Some(id);
    }

    /// A node; `None` when it was removed.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.graph.node_weight(id).map(|(node, _)| node)
    }

    /// The operand at a port.
    #[must_use]
    pub fn input(&self, id: NodeId, port: usize) -> Option<NodeId> {
        self.graph.edges_directed(id, Direction::Incoming).find(|e| *e.weight() == port).map(|e| e.source())
    }

    /// The operands, in order.
    #[must_use]
    pub fn inputs(&self, id: NodeId) -> Vec<NodeId> {
        let mut ports: Vec<(usize, NodeId)> =
            self.graph.edges_directed(id, Direction::Incoming).map(|e| (*e.weight(), e.source())).collect();
        ports.sort_unstable_by_key(|(port, _)| *port);
        ports.into_iter().map(|(_, input)| input).collect()
    }

    /// The nodes that read a value, each with the port it reads it at, in schedule order.
    #[must_use]
    pub fn users(&self, id: NodeId) -> Vec<(NodeId, usize)> {
        let mut users: Vec<(NodeId, usize)> =
            self.graph.edges_directed(id, Direction::Outgoing).map(|e| (e.target(), *e.weight())).collect();
        users.sort_unstable_by_key(|(user, port)| (self.key(*user), *port));
        users
    }

    /// True when some node reads the value.
    #[must_use]
    pub fn is_used(&self, id: NodeId) -> bool {
        self.graph.edges_directed(id, Direction::Outgoing).next().is_some()
    }

    /// True when every node that reads the value is one of `nodes`.
    #[must_use]
    pub fn used_only_by(&self, id: NodeId, nodes: &[NodeId]) -> bool {
        self.graph.edges_directed(id, Direction::Outgoing).all(|e| nodes.contains(&e.target()))
    }

    /// Every user of `from`, and the step's result if it was `from`, takes `to` instead.
    pub fn redirect(&mut self, from: NodeId, to: NodeId) {
        for (user, port) in self.users(from) {
            if let Some(edge) = self.graph.edges_directed(user, Direction::Incoming).find(|e| *e.weight() == port) {
                let edge = edge.id();
                self.graph.remove_edge(edge);
                self.graph.add_edge(to, user, port);
            }
        }
        if self.result == Some(from) {
            self.result = Some(to);
        }
    }

    /// Remove a node and the edges at it.
    pub fn remove(&mut self, id: NodeId) {
        self.graph.remove_node(id);
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.graph.node_count()
    }

    /// True when there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All nodes in authored order, which need not put operands before users once blocks have replaced primitives.
    #[must_use]
    pub fn authored(&self) -> Vec<NodeId> {
        let mut nodes: Vec<((usize, usize), NodeId)> = self.graph.node_indices().map(|id| (self.key(id), id)).collect();
        nodes.sort_unstable();
        nodes.into_iter().map(|(_, id)| id).collect()
    }

    /// All nodes, operands before users, otherwise in authored order: the one schedule of the step.
    #[must_use]
    pub fn schedule(&self) -> Vec<NodeId> {
        let bound = self.graph.node_indices().map(|n| n.index() + 1).max().unwrap_or(0);
        let mut waiting = vec![0usize; bound];
        let mut ready = BinaryHeap::new();
        for id in self.graph.node_indices() {
            waiting[id.index()] = self.graph.edges_directed(id, Direction::Incoming).count();
            if waiting[id.index()] == 0 {
                ready.push(Reverse((self.key(id), id)));
            }
        }
        let mut schedule = Vec::with_capacity(self.len());
        while let Some(Reverse((_, id))) = ready.pop() {
            schedule.push(id);
            for edge in self.graph.edges_directed(id, Direction::Outgoing) {
                let user = edge.target();
                waiting[user.index()] -= 1;
                if waiting[user.index()] == 0 {
                    ready.push(Reverse((self.key(user), user)));
                }
            }
        }
        schedule
    }

    fn key(&self, id: NodeId) -> (usize, usize) {
        self.graph.node_weight(id).map_or((usize::MAX, usize::MAX), |(node, made)| (node.order, *made))
    }
}
