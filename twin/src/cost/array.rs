//! The array: matrices stream through it, once for all rows that share a stream.

use super::{Job, Rates, Rows, shared};
use crate::machine::Knob;
use crate::subject::{Shape, Split};

/// A matvec, or the picked experts of a routed one.
pub(super) fn job(rates: &Rates<'_>, rows: &Rows<'_>, shape: &Shape) -> Job {
    let n = rows.of(shape);
    // Matrices that stream, and the rows that meet each.
    let (matrices, rows_of_each) = if shape.experts > 0 {
        let distinct = rows.load.distinct(shape.experts, shape.picks, n).max(1.0);
        (distinct, (n * shape.picks) as f64 / distinct)
    } else {
        (1.0, n as f64)
    };
    let share = rates.at(Knob::StreamRows);
    let streams = if share > 0.0 { (rows_of_each / share).ceil().max(1.0) } else { 1.0 };
    let bytes = matrices * streams * shared(rates, shape, shape.matrix_bytes) as f64;
    let elements = shape.outputs.saturating_mul(shape.inputs);
    let routed = if shape.experts > 0 { shape.picks } else { 1 };
    Job {
        cycles: matrices * cycles(rates, shape, rows_of_each, streams),
        macs: n.saturating_mul(routed).saturating_mul(shared(rates, shape, elements)),
        weights: bytes.round() as u64,
        kv: 0,
        state: 0,
    }
}

/// Cycles of one matrix: the slowest of its lanes, its block scales and its widening, which work side by side.
fn cycles(rates: &Rates<'_>, shape: &Shape, rows: f64, streams: f64) -> f64 {
    let at = |knob: Knob| rates.at(knob);
    let outputs = match shape.split {
        Split::Shared => shape.outputs.div_ceil(rates.devices),
        Split::Whole => shape.outputs,
    };
    let tiles = |size: u64, lanes: f64| (size as f64 / lanes).ceil();
    let (tile, bits) = (at(Knob::RowTile), f64::from(shape.operand_bits));
    let padded = (rows / tile).ceil() * tile;
    let passes = (bits / at(Knob::ArrayBits)).ceil();
    let narrow = if 2.0 * bits <= at(Knob::ArrayBits) { at(Knob::Narrow) } else { 1.0 };
    let group = at(Knob::GroupRows);
    let (turns, filled) = if group > 0.0 {
        // Groups of token-rows fill the lanes beside the outputs; there are many small ones, so the last of them end together.
        let groups = (padded / group).ceil().max(1.0);
        (padded.min(group), (groups * outputs as f64 / at(Knob::LanesN)).max(1.0))
    } else {
        (padded, tiles(outputs, at(Knob::LanesN)))
    };
    let work = filled * tiles(shape.inputs, at(Knob::LanesK)) * passes;
    let lanes = turns * work / (at(Knob::MacsPerLane) * narrow * at(Knob::Utilisation));
    let share = outputs as f64 / shape.outputs.max(1) as f64;
    let scale_lanes = at(Knob::ScaleLanes);
    let scales = if scale_lanes > 0.0 { rows * share * shape.scales as f64 / scale_lanes } else { 0.0 };
    let elements = outputs as f64 * shape.inputs as f64;
    let widening = at(Knob::UnpackOps) * f64::from(shape.widened_to) / 16.0;
    let widened = streams * elements * widening / at(Knob::VectorLanes);
    lanes.max(scales).max(widened)
}
