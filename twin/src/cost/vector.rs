//! The vector unit: micro-programs over token-rows.

use super::{Job, Rates, Rows};
use crate::machine::Knob;
use crate::subject::{Shape, Split};

/// A command of the vector unit.
pub(super) fn job(rates: &Rates<'_>, rows: &Rows<'_>, shape: &Shape) -> Job {
    Job { cycles: micro(rates, rows.of(shape), shape), macs: 0, ..Job::default() }
}

/// Cycles of a command's micro-operations over its rows.
pub(super) fn micro(rates: &Rates<'_>, rows: u64, shape: &Shape) -> f64 {
    let micro = &shape.micro;
    if micro.elements == 0 {
        return 0.0;
    }
    let passes = if micro.norm { rates.at(Knob::NormPasses) } else { 1.0 };
    // A norm's first pass, its sum, is what is repeated.
    let ops = micro.ops as f64 + (passes - 1.0) + micro.exps as f64 * rates.at(Knob::ExpCycles);
    let devices = if shape.split == Split::Shared { rates.devices } else { 1 };
    let elements = rows.saturating_mul(micro.elements.div_ceil(devices)) as f64;
    let row_lanes = rates.at(Knob::RowLanes);
    let trips = if row_lanes > 0.0 && !micro.spread {
        (micro.elements.div_ceil(devices) as f64 / row_lanes).ceil()
    } else {
        1.0
    };
    (elements / rates.at(Knob::VectorLanes)).ceil() * ops + passes * trips * rates.at(Knob::VectorLatency)
}
