//! Whether weights, caches and states fit in memory, and what would.

use crate::error::Bytes;
use crate::machine::{Knob, Machine};
use crate::subject::Subject;
use crate::{Load, TwinError};
use serde::Serialize;
use std::ops::Range;

/// What the fullest device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Weights.
    pub weights: u64,
    /// Caches after the step.
    pub kv: u64,
    /// Memories and rings.
    pub state: u64,
    /// Room for them.
    pub room: u64,
}

impl Held {
    /// Bytes held.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.state)
    }
}

/// What the fullest device holds.
pub(crate) fn held(subject: &Subject, machine: &Machine, load: &Load, ranges: &[Range<usize>]) -> Held {
    let mut fullest = Held::default();
    for (stage, range) in ranges.iter().enumerate() {
        let held = of_stage(subject, machine, load, range, stage == 0);
        if held.all() >= fullest.all() {
            fullest = held;
        }
    }
    fullest
}

/// What a device of a stage holds; `ends`: embedding and head beside its layers.
pub(crate) fn of_stage(subject: &Subject, machine: &Machine, load: &Load, layers: &Range<usize>, ends: bool) -> Held {
    let group = machine.get(Knob::Tensor) as u64;
    let room = (machine.get(Knob::CapacityGb) - machine.get(Knob::ReservedGb)) * 1e9;
    let end = layers.end.min(subject.layer_bytes.len());
    let bytes = subject.layer_bytes[layers.start.min(end)..end].iter().fold(0_u64, |sum, b| sum.saturating_add(*b));
    let weights = bytes.saturating_add(if ends { subject.outside_bytes } else { 0 });
    let (kv, state) = subject.kept(load, layers.clone());
    Held { weights: weights.div_ceil(group), kv: kv.div_ceil(group), state: state.div_ceil(group), room: room as u64 }
}

/// Refuse what does not fit.
pub(crate) fn check(
    subject: &Subject,
    machine: &Machine,
    load: &Load,
    ranges: &[Range<usize>],
) -> Result<(), TwinError> {
    refuse(machine, held(subject, machine, load, ranges), ranges.len() as u64)
}

/// Refuse what a device of one of so many stages has no room for.
pub(crate) fn refuse(machine: &Machine, held: Held, stages: u64) -> Result<(), TwinError> {
    if held.all() <= held.room {
        return Ok(());
    }
    let devices = machine.get(Knob::Tensor) as u64 * stages;
    let hint = if held.weights > held.room {
        let least = (held.weights.saturating_mul(devices)).div_ceil(held.room.max(1));
        format!("narrower weights, or at least {least} devices (parallel.tensor, parallel.stages), would do")
    } else {
        let left = held.room - held.weights;
        let share = left as f64 / (held.kv.saturating_add(held.state)).max(1) as f64;
        format!("beside the weights there is room for {:.0} % of these caches and states", 100.0 * share)
    };
    Err(TwinError::DoesNotFit {
        machine: machine.name.clone(),
        devices,
        have: Bytes(held.room),
        need: Bytes(held.all()),
        weights: Bytes(held.weights),
        kv: Bytes(held.kv),
        state: Bytes(held.state),
        hint,
    })
}
