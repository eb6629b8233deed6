//! The convolution and the delta rule: commands that read a sequence's state and write it back.

use super::{Job, Rates, Rows, shared, vector};
use crate::machine::Knob;
use crate::subject::Shape;

/// A convolution over its ring.
pub(super) fn conv(rates: &Rates<'_>, rows: &Rows<'_>, shape: &Shape) -> Job {
    let n = rows.of(shape);
    let macs = n.saturating_mul(shared(rates, shape, shape.work.macs));
    let dots = macs as f64 / rates.at(Knob::ConvLanes);
    let elements = uses(rates, rows).saturating_mul(shared(rates, shape, shape.work.state));
    let state = rates.state.flat_bytes(elements).saturating_mul(2);
    Job { cycles: dots.max(vector::micro(rates, n, shape)), macs, state, ..Job::default() }
}

/// The delta rule over its memory.
pub(super) fn delta(rates: &Rates<'_>, rows: &Rows<'_>, shape: &Shape) -> Job {
    let macs = rows.of(shape).saturating_mul(shared(rates, shape, shape.work.macs));
    let elements = uses(rates, rows).saturating_mul(shared(rates, shape, shape.work.state));
    let state = rates.state.flat_bytes(elements).saturating_mul(2 * rates.at(Knob::DeltaTrips) as u64);
    let cycles = macs as f64 / rates.at(Knob::DeltaLanes) + rates.at(Knob::VectorLatency);
    Job { cycles, macs, state, ..Job::default() }
}

/// Times that states are read and written back in a step: by each sequence where they are held, by each row otherwise.
fn uses(rates: &Rates<'_>, rows: &Rows<'_>) -> u64 {
    if rates.machine.flag(Knob::DeltaHold) { rows.load.sequences() } else { rows.all }
}
