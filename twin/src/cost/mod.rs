//! `Cost`: what one command costs on a machine: cycles, bytes by class, multiply-accumulates, and who is busy with it.
//!
//! One function for each unit gives the arithmetic; [`cost`] adds what every command has: its fetch and barrier, the
//! memory's time for its bytes, the token-rows' time on the chip, and what devices of a group exchange.

mod array;
mod attend;
mod delta;
mod vector;

use crate::Load;
use crate::format::Format;
use crate::machine::{Curve, Knob, Machine, Traffic};
use crate::subject::{Rides, Shape, Split, Subject};
use serde::Serialize;
use std::ops::AddAssign;
use wordline_ir::command::Unit;

/// Bytes moved, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Matrices, plain tensors and looked-up rows, from memory.
    pub weights: u64,
    /// Caches, read and appended.
    pub kv: u64,
    /// Memories and rings, read and written back.
    pub state: u64,
    /// Token-rows, on the chip.
    pub activations: u64,
    /// Weights and states that live on the chip.
    pub on_chip: u64,
    /// Over links between devices.
    pub link: u64,
}

impl Moved {
    /// Bytes to and from memory.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.state)
    }
}

impl AddAssign for Moved {
    fn add_assign(&mut self, o: Moved) {
        self.weights += o.weights;
        self.kv += o.kv;
        self.state += o.state;
        self.activations += o.activations;
        self.on_chip += o.on_chip;
        self.link += o.link;
    }
}

/// What one command costs, for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Cycles beside the work: fetch, barrier, launch, fill and drain.
    pub fixed: u64,
    /// Cycles of its unit's arithmetic.
    pub compute: u64,
    /// Cycles of the memory for its bytes.
    pub stream: u64,
    /// Of those, cycles of weights, which may be prefetched.
    pub weight_stream: u64,
    /// Cycles of the memory on the chip.
    pub on_chip: u64,
    /// Cycles of sums and exchanges between devices.
    pub link: u64,
    /// Bytes.
    pub moved: Moved,
    /// Multiply-accumulates.
    pub macs: u64,
}

impl Cost {
    /// Cycles and bytes of a command that the twin counts to: sums over all commands, stages, micro-batches and devices then
    /// stay within 64 bits.
    pub(crate) const REACH: (u64, u64) = (1 << 40, 1 << 44);

    /// What of the command is further than that: what, how much, the limit.
    pub(crate) fn beyond(&self) -> Option<(&'static str, u64, u64)> {
        let (cycles, bytes) = Cost::REACH;
        let m = &self.moved;
        let parts = [self.fixed, self.compute, self.stream, self.on_chip, self.link];
        let moved = [m.weights, m.kv, m.state, m.activations, m.on_chip, m.link];
        let over = |what, of: &[u64], limit| of.iter().copied().find(|n| *n > limit).map(|n| (what, n, limit));
        over("cycles", &parts, cycles)
            .or_else(|| over("bytes", &moved, bytes))
            .or_else(|| over("multiply-accumulates", &[self.macs], bytes << 4))
    }

    /// Cycles of the command when `early` cycles of its stream were done before it and the share `exposed` of the
    /// shorter of arithmetic and transfer does not hide behind the longer.
    #[must_use]
    pub fn cycles(&self, early: u64, exposed: f64) -> u64 {
        let stream = self.stream.saturating_sub(early);
        let added = whole(exposed * self.compute.min(stream) as f64);
        self.fixed + self.link + (self.compute.max(stream) + added).max(self.on_chip)
    }
}

/// A machine's rates in the units of the costs, worked out once for a price.
pub(crate) struct Rates<'a> {
    pub machine: &'a Machine,
    /// Formats of caches and states.
    pub kv: &'a Format,
    pub state: &'a Format,
    /// Cycles a microsecond.
    pub us: f64,
    /// Bytes a cycle of the memory at its peak.
    pub peak: f64,
    /// Bytes a cycle that requests in flight and the channels' ports allow.
    bound: f64,
    /// Of weights, caches and states: bytes a cycle, cycles of ramp, and the curve.
    traffic: [(f64, f64, Option<&'a Curve>); 3],
    burst: u64,
    latency: f64,
    sram: f64,
    pub link: f64,
    pub devices: u64,
    /// Shares of weights and of states that live on the chip.
    resident: (f64, f64),
}

impl<'a> Rates<'a> {
    pub(crate) fn new(machine: &'a Machine, subject: &'a Subject, load: &Load) -> Self {
        let at = |knob: Knob| machine.get(knob);
        let us = at(Knob::CoreMhz);
        // GB/s are bytes a nanosecond.
        let rate = |gbps: f64| gbps * 1e3 / us;
        let peak = rate(at(Knob::PeakGbps));
        let attainable = peak * at(Knob::Attainable);
        let traffic = Traffic::ALL.map(|t| (attainable * at(t.efficiency()), at(t.ramp()) * us, machine.curve(t)));
        let outstanding = at(Knob::Outstanding) * at(Knob::Channels) * at(Knob::BurstBytes);
        let in_flight = if outstanding > 0.0 { rate(outstanding / at(Knob::LatencyNs)) } else { f64::INFINITY };
        let ports = at(Knob::PortBytes) * at(Knob::Channels);
        let bound = if ports > 0.0 { in_flight.min(ports) } else { in_flight };
        let devices = at(Knob::Tensor) as u64;
        // A device of the longest stage holds this much.
        let stages = at(Knob::Stages).max(1.0);
        let weights = subject.image_bytes as f64 / devices as f64 / stages;
        let (_, state) = subject.kept(load, 0..usize::MAX);
        let state = state as f64 / devices as f64 / stages;
        let mib = f64::from(1 << 20);
        let room = (at(Knob::SramMib) - at(Knob::SramWeightsMib) - at(Knob::PrefetchMib)).max(0.0) * mib;
        let share = |room: f64, of: f64| if of > 0.0 { (room / of).min(1.0) } else { 0.0 };
        let resident = (
            share(at(Knob::SramWeightsMib) * mib, weights),
            if machine.flag(Knob::StateInSram) { share(room, state) } else { 0.0 },
        );
        Rates {
            machine,
            kv: &subject.formats.kv,
            state: &subject.formats.state,
            us,
            peak,
            bound,
            traffic,
            burst: (at(Knob::BurstBytes) as u64).max(1),
            latency: at(Knob::LatencyNs) * us / 1e3,
            sram: rate(at(Knob::SramGbps)),
            link: rate(at(Knob::LinkGbps)),
            devices,
            resident,
        }
    }

    pub(crate) fn at(&self, knob: Knob) -> f64 {
        self.machine.get(knob)
    }

    /// Bytes a cycle of long reads of weights.
    pub(crate) fn weights_rate(&self) -> f64 {
        self.traffic[Traffic::Weights as usize].0.min(self.bound)
    }

    /// Cycles of the memory for one transfer, its latency apart; `alone`: with its ramp.
    fn transfer(&self, traffic: Traffic, bytes: u64, alone: bool) -> f64 {
        if bytes == 0 {
            return 0.0;
        }
        let (rate, ramp, curve) = self.traffic[traffic as usize];
        let bytes = bytes.checked_next_multiple_of(self.burst).unwrap_or(bytes) as f64;
        let stretched = curve.map_or(bytes, |c| c.stretched(bytes));
        let ramp = if alone { ramp } else { 0.0 };
        ramp + (stretched / rate).max(bytes / self.bound)
    }
}

/// What a step has of rows, as the units ask for it.
pub(crate) struct Rows<'a> {
    pub load: &'a Load,
    pub all: u64,
    pub logits: u64,
}

impl Rows<'_> {
    pub(crate) fn of(&self, shape: &Shape) -> u64 {
        if shape.tail { self.logits } else { self.all }
    }
}

/// What a unit says of a command: its cycles, its multiply-accumulates, and its bytes of weights, cache and state before
/// it is said where they live.
#[derive(Default)]
struct Job {
    cycles: f64,
    macs: u64,
    weights: u64,
    kv: u64,
    state: u64,
}

/// What a command costs for a device of the machine.
pub(crate) fn cost(rates: &Rates<'_>, rows: &Rows<'_>, shape: &Shape) -> Cost {
    let mut job = match shape.unit {
        Unit::Array => array::job(rates, rows, shape),
        Unit::Vector => vector::job(rates, rows, shape),
        Unit::Conv => delta::conv(rates, rows, shape),
        Unit::Delta => delta::delta(rates, rows, shape),
        Unit::Attend => attend::job(rates, rows, shape),
    };
    let n = rows.of(shape);
    let alone = match shape.rides {
        Rides::Alone => true,
        Rides::Along => rates.at(Knob::Merge) < 1.0,
        Rides::Gated => rates.at(Knob::Merge) < 2.0 || n > 1,
    };
    if !alone {
        // Its few operations are done on what is at hand.
        job.cycles = 0.0;
    }
    // Plain tensors are read once, looked-up rows by each row.
    job.weights = job
        .weights
        .saturating_add(shared(rates, shape, shape.plain_bytes))
        .saturating_add(n.saturating_mul(shape.row_bytes));
    let stays = |bytes: u64, share: f64| (bytes as f64 * share) as u64;
    let (weights, states) = (stays(job.weights, rates.resident.0), stays(job.state, rates.resident.1));
    let activations = n.saturating_mul(4).saturating_mul(shared(rates, shape, shape.work.reads + shape.work.writes));
    let mut moved = Moved {
        weights: job.weights - weights,
        kv: job.kv,
        state: job.state - states,
        activations,
        on_chip: weights.saturating_add(states),
        link: 0,
    };
    let (link, link_bytes) = exchange(rates, shape, n);
    moved.link = link_bytes;
    let transfer = |traffic, bytes| rates.transfer(traffic, bytes, alone);
    let weight_stream = transfer(Traffic::Weights, moved.weights);
    let other = transfer(Traffic::Kv, moved.kv) + transfer(Traffic::State, moved.state);
    let latency = if alone && moved.memory() > 0 { rates.latency } else { 0.0 };
    let fixed = rates.at(Knob::WordCycles)
        + rates.at(Knob::BarrierCycles)
        + if alone { rates.at(Knob::CommandUs) * rates.us } else { 0.0 }
        + if shape.unit == Unit::Array { rates.at(Knob::FillCycles) } else { 0.0 };
    Cost {
        fixed: whole(fixed),
        compute: whole(job.cycles),
        stream: whole(weight_stream + other + latency),
        weight_stream: whole(weight_stream),
        on_chip: whole((activations as f64 + moved.on_chip as f64) / rates.sram),
        link: whole(link),
        moved,
        macs: job.macs,
    }
}

/// Cycles are whole: a unit that has begun a cycle holds it.
fn whole(cycles: f64) -> u64 {
    cycles.ceil() as u64
}

/// A device's share of what its group shares out.
fn shared(rates: &Rates<'_>, shape: &Shape, amount: u64) -> u64 {
    match shape.split {
        Split::Whole => amount,
        Split::Shared => amount.div_ceil(rates.devices),
    }
}

/// Cycles and bytes of what the devices of a group exchange for a command: a ring's sum of the summands before it, a
/// gathering of the shares after it. Rows go as f32.
fn exchange(rates: &Rates<'_>, shape: &Shape, rows: u64) -> (f64, u64) {
    if rates.devices <= 1 {
        return (0.0, 0);
    }
    let devices = rates.devices;
    let once = |elements: u64, times: u64| {
        rows.saturating_mul(4)
            .saturating_mul(elements)
            .saturating_mul(times)
            .saturating_mul(devices - 1)
            .div_ceil(devices)
    };
    let (reduced, gathered) = (once(shape.reduced, 2), once(shape.gathered, 1));
    let exchanges = u64::from(shape.reduced > 0) + u64::from(shape.gathered > 0);
    let cycles =
        exchanges as f64 * rates.at(Knob::ReduceUs) * rates.us + (reduced as f64 + gathered as f64) / rates.link;
    (cycles, reduced.saturating_add(gathered))
}
