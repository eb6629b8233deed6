//! `Placed`: which values the slots hold at a point of the program, and how wide each slot is.

use std::collections::HashMap;
use wordline_ir::graph::NodeId;
use wordline_ir::{Slot, SlotInfo};

/// Elements of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) slot: Slot,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Extent {
    fn meets(&self, other: &Extent) -> bool {
        self.slot == other.slot
            && self.start < other.start.saturating_add(other.len)
            && other.start < self.start.saturating_add(self.len)
    }
}

#[derive(Default)]
pub(super) struct Placed {
    /// What lies in the slots now.
    held: Vec<(Extent, NodeId)>,
    /// Where each value was put.
    homes: HashMap<NodeId, Extent>,
    widths: HashMap<Slot, usize>,
}

/// Why an operand cannot be read from where it was put.
pub(super) enum Stale {
    /// No command made it.
    Unmade,
    /// Its slot holds something else: what, if anything.
    Overwritten(Slot, Option<NodeId>),
}

impl Placed {
    /// A command has written `id` over `extent`: what lay there is gone.
    pub(super) fn put(&mut self, id: NodeId, extent: Extent) {
        self.held.retain(|(other, _)| !extent.meets(other));
        self.held.push((extent, id));
        self.homes.insert(id, extent);
    }

    /// Where a value lies.
    pub(super) fn find(&self, id: NodeId) -> Result<Extent, Stale> {
        let home = *self.homes.get(&id).ok_or(Stale::Unmade)?;
        if self.held.contains(&(home, id)) {
            return Ok(home);
        }
        let instead = self.held.iter().find(|(extent, _)| extent.meets(&home)).map(|(_, id)| *id);
        Err(Stale::Overwritten(home.slot, instead))
    }

    /// True when the elements are all of their slot.
    pub(super) fn fills(&self, extent: Extent) -> bool {
        extent.start == 0 && self.widths.get(&extent.slot) == Some(&extent.len)
    }

    /// Give a slot its width. One that has another already is told.
    pub(super) fn width(&mut self, slot: Slot, width: usize) -> Result<(), usize> {
        match *self.widths.entry(slot).or_insert(width) {
            known if known == width => Ok(()),
            known => Err(known),
        }
    }

    /// The slots used, by code.
    pub(super) fn slots(&self) -> Vec<SlotInfo> {
        let mut slots: Vec<SlotInfo> =
            self.widths.iter().map(|(slot, width)| SlotInfo { slot: *slot, width: *width }).collect();
        slots.sort_unstable_by_key(|info| info.slot.code());
        slots
    }
}
