//! The timeline: commands one after the other, each finished before the next one starts.
//!
//! Nothing overlaps across commands but one thing, where the machine has it: while a command leaves the memory idle,
//! weights of the next matrix may arrive, as many as there is room for.

use crate::cost::Cost;
use crate::subject::{Item, Shape};
use wordline_ir::command::Unit;

/// What a machine may prefetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// Cycles of the memory that the room for prefetched weights holds; 0: no prefetch.
    pub cycles: u64,
    /// Share of the shorter of a command's arithmetic and transfer that does not hide behind the longer.
    pub exposed: f64,
}

/// Cycles of each of the commands at `of`, in their order; the second number is what of its stream was there before it.
pub(crate) fn walk(
    items: &[Item],
    shapes: &[Shape],
    costs: &[Cost],
    of: impl Iterator<Item = usize>,
    ahead: Ahead,
    mut each: impl FnMut(usize, u64, u64),
) {
    let mut lead = 0_u64;
    for at in of {
        let number = items[at].shape as usize;
        let (cost, shape) = (&costs[number], &shapes[number]);
        if ahead.cycles == 0 {
            each(at, cost.cycles(0, ahead.exposed), 0);
            continue;
        }
        let early = if shape.unit == Unit::Array { lead.min(cost.weight_stream) } else { 0 };
        let stream = cost.stream - early;
        let spent = cost.cycles(early, ahead.exposed);
        each(at, spent, early);
        let kept = if shape.unit == Unit::Array { 0 } else { lead };
        lead = if shape.decides { 0 } else { (kept + (spent - stream)).min(ahead.cycles) };
    }
}
