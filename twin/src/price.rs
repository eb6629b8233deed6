//! `Price`: what a step of a load costs on a machine, by command, stage and class of bytes.

use crate::conserve;
use crate::cost::{Cost, Moved, Rates, Rows, cost};
use crate::machine::{Knob, Machine};
use crate::subject::Subject;
use crate::timeline::{Ahead, walk};
use crate::{Load, TwinError, fit};
use std::ops::Range;
use wordline_ir::LayerId;
use wordline_ir::command::Unit;

/// A stage of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePrice {
    /// Its layers; the first stage holds embedding and head beside them.
    pub layers: Range<usize>,
    /// Cycles of one micro-batch.
    pub cycles: u64,
}

/// What a step costs. Cycles are those of `clock.core_mhz`.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// Cycles of the step.
    pub cycles: u64,
    /// Micro-batches that go round the pipeline; 1 without one. Costs are those of a micro-batch.
    pub micro_batches: u64,
    /// Cost of each shape of command, for a device.
    pub costs: Vec<Cost>,
    /// Cycles of each command.
    pub spent: Vec<u64>,
    /// Cycles of the memory that each command found done before it.
    pub early: Vec<u64>,
    /// Stages.
    pub stages: Vec<StagePrice>,
    /// Cycles of a hop between stages, and its bytes.
    pub hop: (u64, u64),
    /// Cycles of the host in a micro-batch's lap.
    pub host: u64,
    /// Bytes of a micro-batch, all commands together, for a device of each stage.
    pub moved: Moved,
    /// Multiply-accumulates of the same.
    pub macs: u64,
    /// Cycles that each unit computes in a micro-batch: array, vector, conv, delta, attend.
    pub computes: [u64; 5],
    /// Cycles of commands' fixed parts, and of links.
    pub fixed: u64,
    /// See `fixed`.
    pub link: u64,
    /// Devices.
    pub devices: u64,
    /// Devices of a stage.
    pub group: u64,
}

/// Index of a unit among [`Price::computes`].
#[must_use]
pub const fn unit_index(unit: Unit) -> usize {
    match unit {
        Unit::Array => 0,
        Unit::Vector => 1,
        Unit::Conv => 2,
        Unit::Delta => 3,
        Unit::Attend => 4,
    }
}

/// Names of the units, by [`unit_index`].
pub const UNITS: [&str; 5] = ["array", "vector", "conv", "delta", "attend"];

impl Price {
    /// Seconds of the step.
    #[must_use]
    pub fn seconds(&self, machine: &Machine) -> f64 {
        self.cycles as f64 / (machine.get(Knob::CoreMhz) * 1e6)
    }

    /// Cost of a command.
    #[must_use]
    pub fn of(&self, subject: &Subject, command: usize) -> &Cost {
        &self.costs[subject.items[command].shape as usize]
    }

    /// Bytes of the whole step, over all micro-batches and all devices of a stage.
    #[must_use]
    pub fn step_moved(&self) -> Moved {
        let times = |bytes: u64| bytes.saturating_mul(self.micro_batches).saturating_mul(self.group);
        let m = &self.moved;
        let hops = if self.stages.len() > 1 { self.stages.len() as u64 * self.hop.1 * self.micro_batches } else { 0 };
        Moved {
            weights: times(m.weights),
            kv: times(m.kv),
            state: times(m.state),
            activations: times(m.activations),
            on_chip: times(m.on_chip),
            link: times(m.link).saturating_add(hops),
        }
    }

    /// Multiply-accumulates of the whole step, over all devices.
    #[must_use]
    pub fn step_macs(&self) -> u64 {
        self.macs.saturating_mul(self.micro_batches).saturating_mul(self.group)
    }
}

/// Price a step.
///
/// # Errors
/// Weights, caches and states do not fit in memory; the split does not fit the program; the price contradicts itself.
pub fn price(subject: &Subject, machine: &Machine, load: &Load) -> Result<Price, TwinError> {
    machine.check()?;
    let ranges = stages(subject, machine)?;
    fit::check(subject, machine, load, &ranges)?;
    price_unchecked(subject, machine, load, &ranges)
}

/// The layers of each stage: as equal as they can be, the first stages the larger ones but for the head's work.
pub(crate) fn stages(subject: &Subject, machine: &Machine) -> Result<Vec<Range<usize>>, TwinError> {
    let (count, layers) = (machine.get(Knob::Stages) as usize, subject.layers());
    if count > layers.len().max(1) {
        return Err(TwinError::Parallel(format!(
            "{count} stages for {} layers; a stage holds at least one",
            layers.len()
        )));
    }
    let mut start = layers.start;
    let ranges = (0..count).map(|stage| {
        // What is left over goes to the last stages: the first holds embedding and head.
        let size = layers.len() / count + usize::from(stage >= count - layers.len() % count);
        start += size;
        start - size..start
    });
    Ok(ranges.collect())
}

/// Price a step that is known to fit.
pub(crate) fn price_unchecked(
    subject: &Subject,
    machine: &Machine,
    load: &Load,
    ranges: &[Range<usize>],
) -> Result<Price, TwinError> {
    let micro_batches = (ranges.len() as u64).min(load.sequences()).max(1);
    let shared;
    let micro = if micro_batches > 1 {
        shared = load.share(micro_batches);
        &shared
    } else {
        load
    };
    price_micro(subject, machine, micro, micro_batches, ranges)
}

/// Price a step of `micro_batches` micro-batches of the load `micro`, all of them on machines of one kind.
pub(crate) fn price_micro(
    subject: &Subject,
    machine: &Machine,
    micro: &Load,
    micro_batches: u64,
    ranges: &[Range<usize>],
) -> Result<Price, TwinError> {
    let rates = Rates::new(machine, subject, micro);
    let rows = Rows { load: micro, all: micro.rows(), logits: micro.logit_rows() };
    let costs: Vec<Cost> = subject.shapes.iter().map(|shape| cost(&rates, &rows, shape)).collect();
    for (command, item) in subject.items.iter().enumerate() {
        if let Some((what, given, limit)) = costs[item.shape as usize].beyond() {
            let part = format!("command {command}, a {},", subject.commands()[command].info().mnemonic);
            return Err(TwinError::Reach { part, what, given, limit });
        }
    }
    let within = |part: &str, cycles: u64| {
        let (limit, _) = Cost::REACH;
        let refused = || TwinError::Reach { part: part.into(), what: "cycles", given: cycles, limit };
        (cycles <= limit).then_some(cycles).ok_or_else(refused)
    };
    let ahead = if machine.flag(Knob::Prefetch) {
        let bytes = rates.at(Knob::PrefetchMib) * f64::from(1 << 20);
        (bytes / rates.weights_rate()) as u64
    } else {
        0
    };
    let count = subject.items.len();
    let mut price = Price {
        cycles: 0,
        micro_batches,
        costs,
        spent: vec![0; count],
        early: vec![0; count],
        stages: Vec::with_capacity(ranges.len()),
        hop: (0, 0),
        host: within(
            "the host's work",
            whole((rates.at(Knob::HostStepUs) + rates.at(Knob::HostSampleUs) * rows.logits as f64) * rates.us),
        )?,
        moved: Moved::default(),
        macs: 0,
        computes: [0; 5],
        fixed: 0,
        link: 0,
        devices: rates.devices * ranges.len() as u64,
        group: rates.devices,
    };
    let mut lap = price.host;
    let mut slowest = 0;
    for (stage, range) in ranges.iter().enumerate() {
        let mut cycles = 0;
        let on_stage = |at: &usize| stage_of(subject.items[*at].layer, ranges) == stage;
        let (spent, early) = (&mut price.spent, &mut price.early);
        walk(
            &subject.items,
            &subject.shapes,
            &price.costs,
            (0..count).filter(on_stage),
            Ahead { cycles: ahead, exposed: 1.0 - rates.at(Knob::Overlap) },
            |at, took, before| {
                cycles += took;
                (spent[at], early[at]) = (took, before);
            },
        );
        lap += cycles;
        slowest = slowest.max(cycles + if stage == 0 { price.host } else { 0 });
        price.stages.push(StagePrice { layers: range.clone(), cycles });
    }
    if ranges.len() > 1 {
        let bytes = 4 * rows.all * subject.hidden + rates.at(Knob::FramingBytes) as u64;
        let hop = within("a hop", whole(rates.at(Knob::LinkLatencyUs) * rates.us + bytes as f64 / rates.link))?;
        price.hop = (hop, bytes);
        lap += hop * ranges.len() as u64;
    }
    // Every micro-batch goes round once, and the slowest stage takes them one after the other.
    price.cycles = lap.max(micro_batches.saturating_mul(slowest));
    for item in &subject.items {
        let number = item.shape as usize;
        let cost = &price.costs[number];
        price.moved += cost.moved;
        price.macs += cost.macs;
        price.computes[unit_index(subject.shapes[number].unit)] += cost.compute;
        price.fixed += cost.fixed;
        price.link += cost.link;
    }
    conserve::check(subject, &rates, micro, &price)?;
    Ok(price)
}

/// The stage of a layer: the first one holds what lies outside the layers.
fn stage_of(layer: LayerId, ranges: &[Range<usize>]) -> usize {
    let layer = if layer == LayerId::OUTSIDE { return 0 } else { usize::from(layer.0) };
    ranges.iter().position(|r| r.contains(&layer)).unwrap_or(0)
}

fn whole(cycles: f64) -> u64 {
    cycles.ceil() as u64
}
