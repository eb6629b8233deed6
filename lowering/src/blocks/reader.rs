//! `Reader`: what the readers of blocks share: operands by slot, values placed, fields checked, commands written.

use super::Body;
use super::placed::{Extent, Placed, Stale};
use super::tables::Tables;
use wordline_ir::graph::{Node, NodeId, Op, Prim, Weight};
use wordline_ir::spec::Rope;
use wordline_ir::{Command, LayerId, Offset, ProgramError, RopeId, Slot, StepGraph, TensorId, TensorKind};

type Result<T> = std::result::Result<T, ProgramError>;

pub(super) struct Reader<'g> {
    pub(super) graph: &'g StepGraph,
    tables: Tables,
    placed: Placed,
    commands: Vec<Command>,
}

impl<'g> Reader<'g> {
    pub(super) fn new(graph: &'g StepGraph) -> Self {
        Self { graph, tables: Tables::default(), placed: Placed::default(), commands: Vec::new() }
    }

    /// The body, once the result lies in its slot.
    pub(super) fn finish(self) -> Result<Body> {
        let result = self
            .graph
            .result()
            .ok_or_else(|| ProgramError::Lift { op: "result".to_owned(), what: "the step has none".to_owned() })?;
        let made = self.base(result);
        let extent = self.placed.find(made).map_err(|stale| self.stale(result, made, stale))?;
        if extent.slot != Slot::Logits {
            return Err(self.refuse(result, format!("the result lies in slot '{}'", extent.slot.name())));
        }
        let (tensors, ropes) = self.tables.finish();
        Ok(Body { slots: self.placed.slots(), tensors, ropes, commands: self.commands })
    }

    pub(super) fn node(&self, id: NodeId) -> Result<&'g Node> {
        self.graph.node(id).ok_or_else(|| ProgramError::Lift {
            op: format!("node {}", id.index()),
            what: "it is not in the graph".to_owned(),
        })
    }

    /// The node that made a value's elements: reshapes only name them anew.
    pub(super) fn base(&self, mut id: NodeId) -> NodeId {
        while let Some(Node { op: Op::Prim(Prim::Reshape { .. }), .. }) = self.graph.node(id) {
            match self.graph.input(id, 0) {
                Some(input) => id = input,
                None => break,
            }
        }
        id
    }

    /// The first node, in schedule order, that reads a value, under whatever shape, and the port it reads it at.
    pub(super) fn first_user(&self, mut id: NodeId) -> Option<(NodeId, usize)> {
        loop {
            let (user, port) = *self.graph.users(id).first()?;
            match self.graph.node(user) {
                Some(Node { op: Op::Prim(Prim::Reshape { .. }), .. }) => id = user,
                _ => return Some((user, port)),
            }
        }
    }

    /// The value at a port, and the elements of a slot that hold it.
    pub(super) fn extent(&self, id: NodeId, port: usize) -> Result<(NodeId, Extent)> {
        let input = self.graph.input(id, port).ok_or_else(|| self.refuse(id, format!("operand {port} is missing")))?;
        let made = self.base(input);
        let extent = self.placed.find(made).map_err(|stale| self.stale(id, made, stale))?;
        Ok((made, extent))
    }

    /// The slot that the operand at a port fills.
    pub(super) fn operand(&self, id: NodeId, port: usize) -> Result<Slot> {
        let (made, extent) = self.extent(id, port)?;
        if !self.placed.fills(extent) {
            let name = self.node(made)?.name.clone();
            return Err(self.refuse(id, format!("'{name}' is a part of slot '{}'", extent.slot.name())));
        }
        Ok(extent.slot)
    }

    /// The value of `id` fills `slot`.
    pub(super) fn fill(&mut self, id: NodeId, slot: Slot) -> Result<()> {
        let len = self.node(id)?.len();
        self.width(id, slot, len)?;
        self.placed.put(id, Extent { slot, start: 0, len });
        Ok(())
    }

    /// The value of `id` fills elements of a slot.
    pub(super) fn put(&mut self, id: NodeId, extent: Extent) {
        self.placed.put(id, extent);
    }

    /// Give `slot` its width, or refuse the block that needs another.
    pub(super) fn width(&mut self, id: NodeId, slot: Slot, width: usize) -> Result<()> {
        self.placed.width(slot, width).map_err(|known| {
            self.refuse(id, format!("slot '{}' would be {width} wide here, and is {known} elsewhere", slot.name()))
        })
    }

    pub(super) fn emit(&mut self, command: Command) {
        self.commands.push(command);
    }

    /// The layer a node's command belongs to.
    pub(super) fn layer(&self, id: NodeId) -> Result<LayerId> {
        let last = usize::from(LayerId::OUTSIDE.0) - 1;
        match self.node(id)?.site.layer {
            None => Ok(LayerId::OUTSIDE),
            Some(layer) if layer <= last => Ok(LayerId(layer as u8)),
            Some(layer) => Err(self.overflow(id, "layer", layer, last)),
        }
    }

    pub(super) fn count(&self, id: NodeId, field: &'static str, value: usize) -> Result<u16> {
        u16::try_from(value).map_err(|_| self.overflow(id, field, value, u16::MAX.into()))
    }

    pub(super) fn counts<const N: usize>(&self, id: NodeId, fields: [(&'static str, usize); N]) -> Result<[u16; N]> {
        let mut counts = [0; N];
        for (count, (field, value)) in counts.iter_mut().zip(fields) {
            *count = self.count(id, field, value)?;
        }
        Ok(counts)
    }

    pub(super) fn offset(&self, id: NodeId, field: &'static str, value: usize) -> Result<Offset> {
        const LIMIT: usize = 0xf_ffff;
        if value <= LIMIT { Ok(Offset(value as u32)) } else { Err(self.overflow(id, field, value, LIMIT)) }
    }

    pub(super) fn tensor(&mut self, id: NodeId, weight: &Weight, kind: TensorKind) -> Result<TensorId> {
        let given = self.tables.tensor(weight, kind);
        given.map_err(|given| self.overflow(id, "tensor", given, TensorId::LIMIT - 1))
    }

    pub(super) fn plain(&mut self, id: NodeId, weight: &Weight) -> Result<TensorId> {
        self.tensor(id, weight, TensorKind::Plain)
    }

    pub(super) fn optional(&mut self, id: NodeId, weight: Option<&Weight>) -> Result<Option<TensorId>> {
        weight.map(|weight| self.plain(id, weight)).transpose()
    }

    pub(super) fn rope(&mut self, id: NodeId, rope: &Rope) -> Result<RopeId> {
        let given = self.tables.rope(rope);
        given.map_err(|given| self.overflow(id, "table", given, usize::from(u8::MAX) - 1))
    }

    /// No unit for this block, and why.
    pub(super) fn refuse(&self, id: NodeId, what: String) -> ProgramError {
        let (block, site) = self.graph.node(id).map_or_else(
            || ("node".to_owned(), "nowhere".to_owned()),
            |node| (node.op.name().to_owned(), format!("{}, '{}'", node.site, node.name)),
        );
        ProgramError::Block { block, site, what }
    }

    fn overflow(&self, id: NodeId, field: &'static str, given: usize, limit: usize) -> ProgramError {
        let site = self.graph.node(id).map_or_else(String::new, |n| format!("{}, {}", n.site, n.op.name()));
        ProgramError::Field { field, given, limit, site }
    }

    fn stale(&self, id: NodeId, operand: NodeId, stale: Stale) -> ProgramError {
        let name = |id: NodeId| self.graph.node(id).map_or("a removed node", |n| n.name.as_str());
        let what = match stale {
            Stale::Unmade => format!("no command made its operand '{}'", name(operand)),
            Stale::Overwritten(slot, Some(other)) => {
                format!("slot '{}' holds '{}' by now, not its operand '{}'", slot.name(), name(other), name(operand))
            }
            Stale::Overwritten(slot, None) => {
                format!("slot '{}' no longer holds its operand '{}'", slot.name(), name(operand))
            }
        };
        self.refuse(id, what)
    }
}
