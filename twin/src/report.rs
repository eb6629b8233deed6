//! `Report`: the answers about one step: how fast, how sure, where the time and the energy go, what it is limited by.

use crate::doubt::{Doubt, Gain, gains, interval};
use crate::fit::{Held, held};
use crate::format::NotRun;
use crate::machine::{Knob, Machine};
use crate::price::{Price, UNITS, price, stages};
use crate::subject::Subject;
use crate::{Load, Moved, TwinError};
use serde::Serialize;
use std::collections::BTreeMap;
use wordline_ir::LayerId;

/// What is asked beside the price.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ask {
    /// Chance that a drafted token is accepted: a sequence's rows are a draft to be checked.
    pub accept: Option<f64>,
    /// Microseconds that drafting takes a step.
    pub draft_us: f64,
}

/// Where the time of a step goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Split {
    /// Milliseconds in which arithmetic is the limit.
    pub compute: f64,
    /// Milliseconds in which bytes are.
    pub transfer: f64,
    /// Milliseconds beside both: launches, barriers, links, the host, bubbles.
    pub wait: f64,
}

/// Time of the commands of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kind {
    /// Mnemonic.
    pub command: &'static str,
    /// How many there are in a step.
    pub count: u64,
    /// Milliseconds of them all.
    pub ms: f64,
    /// Share of the step.
    pub share: f64,
}

/// Energy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Energy {
    /// Joules a step.
    pub joules_per_step: f64,
    /// Joules a token.
    pub joules_per_token: f64,
    /// Watts, averaged.
    pub watts: f64,
    /// Joules a step of multiply-accumulates.
    pub macs: f64,
    /// Joules a step of bytes from memory.
    pub memory: f64,
    /// Joules a step of bytes on the chip.
    pub on_chip: f64,
    /// Joules a step of bytes over links.
    pub link: f64,
    /// Joules a step of devices that stand there.
    pub idle: f64,
}

/// How a pipeline runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pipeline {
    /// Layers of each stage, first and one past the last.
    pub layers: Vec<(usize, usize)>,
    /// Milliseconds of a micro-batch on each.
    pub stage_ms: Vec<f64>,
    /// Milliseconds of a hop.
    pub hop_ms: f64,
    /// Milliseconds of a micro-batch's way round.
    pub lap_ms: f64,
    /// Micro-batches.
    pub micro_batches: u64,
    /// Share of the stages' time in which they wait.
    pub bubble: f64,
    /// The slowest stage against their mean.
    pub imbalance: f64,
}

/// The answers about one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: String,
    /// Token-rows of the step, its sequences, and positions of the longest.
    pub rows: u64,
    /// See `rows`.
    pub sequences: u64,
    /// See `rows`.
    pub positions: u64,
    /// Milliseconds of the step.
    pub ms_per_step: f64,
    /// Token-rows a second; with a draft, tokens that are accepted.
    pub tokens_per_s: f64,
    /// The interval of `tokens_per_s` that holds the middle 80 %.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Steps a second.
    pub steps_per_s: f64,
    /// Tokens that a step is expected to bring each sequence: 1, its rows, or those of its draft that are accepted.
    pub tokens_per_step: f64,
    /// Milliseconds from one token of a sequence to the next.
    pub ms_per_token: f64,
    /// What bytes over peak bandwidth, and nothing else, would give.
    pub naive_tokens_per_s: f64,
    /// Bytes.
    pub bytes: Moved,
    /// Multiply-accumulates.
    pub macs: u64,
    /// Cycles of `clock.core_mhz`.
    pub cycles: u64,
    /// Share of the step in which each resource is busy: units computing, the memory's pins moving bytes, links.
    pub busy: BTreeMap<&'static str, f64>,
    /// Where the time goes.
    pub time: Split,
    /// Milliseconds of the commands of each unit.
    pub by_unit: BTreeMap<&'static str, f64>,
    /// Milliseconds of each layer; what lies outside layers comes last.
    pub by_layer: Vec<(String, f64)>,
    /// By kind, the slowest first.
    pub by_command: Vec<Kind>,
    /// Energy.
    pub energy: Energy,
    /// Square millimetres of a device; none where the machine does not say.
    pub area_mm2: Option<f64>,
    /// What the fullest device holds.
    pub memory: Held,
    /// Stages, where there is a pipeline.
    pub pipeline: Option<Pipeline>,
    /// The knob that brings most when doubled.
    pub bottleneck: Option<Gain>,
    /// What each knob brings.
    pub gains: Vec<Gain>,
    /// What makes the interval as wide as it is.
    pub doubts: Vec<Doubt>,
    /// Formats that are priced and that the engine does not run.
    pub not_run: Vec<NotRun>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Area of a device; none where the machine does not say.
#[must_use]
pub fn area(machine: &Machine) -> Option<f64> {
    let at = |knob: Knob| machine.get(knob);
    let lanes = at(Knob::LanesN) * at(Knob::LanesK) * at(Knob::MacsPerLane);
    let area = at(Knob::AreaBase) + at(Knob::AreaLane) * lanes / 1e3 + at(Knob::AreaSram) * at(Knob::SramMib);
    (area > 0.0).then_some(area)
}

/// Tokens that a sequence's rows are expected to bring when each drafted one is accepted with chance `p` and the first
/// refusal ends it: 1 + p + p^2 + … over the rows.
fn accepted(rows: u64, p: f64) -> f64 {
    if p >= 1.0 { rows as f64 } else { (1.0 - p.powf(rows as f64)) / (1.0 - p) }
}

/// Energy of a step that takes so many seconds.
#[must_use]
pub fn energy(machine: &Machine, price: &Price, seconds: f64, tokens: f64) -> Energy {
    let pico = |bytes: u64, knob: Knob| bytes as f64 * machine.get(knob) * 1e-12;
    let moved = price.step_moved();
    let macs = pico(price.step_macs(), Knob::MacPj);
    let memory = pico(moved.memory(), Knob::MemoryPj);
    let on_chip = pico(moved.activations + moved.on_chip, Knob::SramPj);
    let link = pico(moved.link, Knob::LinkPj);
    let idle = machine.get(Knob::IdleW) * seconds * price.devices as f64;
    let joules = macs + memory + on_chip + link + idle;
    Energy {
        joules_per_step: joules,
        joules_per_token: joules / tokens,
        watts: joules / seconds,
        macs,
        memory,
        on_chip,
        link,
        idle,
    }
}

impl Report {
    /// Price a step and answer.
    ///
    /// # Errors
    /// As [`price`](crate::price()), and an acceptance that is no chance.
    pub fn of(subject: &Subject, machine: &Machine, load: &Load, ask: Ask) -> Result<Report, TwinError> {
        if let Some(p) = ask.accept.filter(|p| !(0.0..=1.0).contains(p)) {
            let reason = "it is a chance, between 0 and 1".into();
            return Err(TwinError::Load { what: "accept", given: p.to_string(), reason });
        }
        if !(0.0..=1e9).contains(&ask.draft_us) {
            let reason = "microseconds, 0 to 1e9".into();
            return Err(TwinError::Load { what: "draft", given: ask.draft_us.to_string(), reason });
        }
        let price = price(subject, machine, load)?;
        let device = price.seconds(machine);
        let seconds = device + ask.draft_us / 1e6;
        let interval = interval(subject, machine, load, device)?;
        let gains = gains(subject, machine, load, device)?;
        let sequences = load.sequences() as f64;
        let tokens = match ask.accept {
            Some(p) => load.groups().iter().map(|g| g.count as f64 * accepted(g.rows, p)).sum(),
            None => load.rows() as f64,
        };
        let moved = price.step_moved();
        let naive = moved.memory() as f64 / (machine.get(Knob::PeakGbps) * 1e9 * price.devices as f64);
        let per_s = tokens / seconds;
        Ok(Report {
            machine: machine.name.clone(),
            rows: load.rows(),
            sequences: load.sequences(),
            positions: load.longest(),
            ms_per_step: seconds * 1e3,
            tokens_per_s: per_s,
            low: per_s / interval.factor,
            high: per_s * interval.factor,
            steps_per_s: 1.0 / seconds,
            tokens_per_step: tokens / sequences,
            ms_per_token: seconds * 1e3 * sequences / tokens,
            naive_tokens_per_s: if naive > 0.0 { tokens / naive } else { f64::INFINITY },
            bytes: moved,
            macs: price.step_macs(),
            cycles: price.cycles,
            busy: busy(machine, &price),
            time: split(subject, machine, &price, seconds),
            by_unit: by_unit(subject, machine, &price),
            by_layer: by_layer(subject, machine, &price),
            by_command: by_command(subject, machine, &price),
            energy: energy(machine, &price, seconds, tokens),
            area_mm2: area(machine),
            memory: held(subject, machine, load, &stages(subject, machine)?),
            pipeline: pipeline(machine, &price),
            bottleneck: gains.first().cloned(),
            gains,
            doubts: interval.doubts,
            not_run: subject.formats.not_run(),
            notes: notes(subject, load),
        })
    }
}

fn ms(machine: &Machine, cycles: u64) -> f64 {
    cycles as f64 / (machine.get(Knob::CoreMhz) * 1e3)
}

fn busy(machine: &Machine, price: &Price) -> BTreeMap<&'static str, f64> {
    let cycles = (price.cycles * price.stages.len() as u64).max(1) as f64;
    let share = |busy: u64| (busy * price.micro_batches) as f64 / cycles;
    let mut busy: BTreeMap<&'static str, f64> =
        UNITS.into_iter().zip(price.computes).map(|(unit, cycles)| (unit, share(cycles))).collect();
    let peak = machine.get(Knob::PeakGbps) * 1e3 / machine.get(Knob::CoreMhz);
    busy.insert("memory", (price.moved.memory() * price.micro_batches) as f64 / peak / cycles);
    busy.insert("link", share(price.link));
    busy.insert("fixed", share(price.fixed));
    busy
}

fn split(subject: &Subject, machine: &Machine, price: &Price, seconds: f64) -> Split {
    let (mut compute, mut transfer) = (0, 0);
    for (command, spent) in price.spent.iter().enumerate() {
        let cost = price.of(subject, command);
        let work = spent - cost.fixed - cost.link;
        let stream = cost.stream - price.early[command];
        *(if cost.compute >= stream.max(cost.on_chip) { &mut compute } else { &mut transfer }) += work;
    }
    let (compute, transfer) = (ms(machine, compute), ms(machine, transfer));
    // A pipeline's laps overlap: what its micro-batches do side by side counts once.
    let wait = (seconds * 1e3 - compute - transfer).max(0.0);
    Split { compute, transfer, wait }
}

fn by_unit(subject: &Subject, machine: &Machine, price: &Price) -> BTreeMap<&'static str, f64> {
    let mut units = BTreeMap::new();
    for (item, spent) in subject.items.iter().zip(&price.spent) {
        let unit = UNITS[crate::unit_index(subject.shapes[item.shape as usize].unit)];
        *units.entry(unit).or_insert(0.0) += ms(machine, *spent);
    }
    units.insert("host", ms(machine, price.host));
    units
}

fn by_layer(subject: &Subject, machine: &Machine, price: &Price) -> Vec<(String, f64)> {
    let mut layers: BTreeMap<u8, u64> = BTreeMap::new();
    for (item, spent) in subject.items.iter().zip(&price.spent) {
        *layers.entry(item.layer.0).or_default() += spent;
    }
    let name = |layer: u8| if layer == LayerId::OUTSIDE.0 { "outside".to_owned() } else { layer.to_string() };
    layers.into_iter().map(|(layer, cycles)| (name(layer), ms(machine, cycles))).collect()
}

fn by_command(subject: &Subject, machine: &Machine, price: &Price) -> Vec<Kind> {
    let mut kinds: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
    for (command, spent) in subject.commands().iter().zip(&price.spent) {
        let kind = kinds.entry(command.info().mnemonic).or_default();
        *kind = (kind.0 + 1, kind.1 + spent);
    }
    let all = price.spent.iter().sum::<u64>().max(1) as f64;
    let mut kinds: Vec<Kind> = kinds
        .into_iter()
        .map(|(command, (count, cycles))| Kind { command, count, ms: ms(machine, cycles), share: cycles as f64 / all })
        .collect();
    kinds.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    kinds
}

fn pipeline(machine: &Machine, price: &Price) -> Option<Pipeline> {
    let stages = &price.stages;
    if stages.len() < 2 {
        return None;
    }
    let work: u64 = stages.iter().map(|s| s.cycles).sum();
    let slowest = stages.iter().map(|s| s.cycles).max().unwrap_or(0);
    let lap = work + price.host + price.hop.0 * stages.len() as u64;
    Some(Pipeline {
        layers: stages.iter().map(|s| (s.layers.start, s.layers.end)).collect(),
        stage_ms: stages.iter().map(|s| ms(machine, s.cycles)).collect(),
        hop_ms: ms(machine, price.hop.0),
        lap_ms: ms(machine, lap),
        micro_batches: price.micro_batches,
        bubble: 1.0 - (work * price.micro_batches) as f64 / (price.cycles * stages.len() as u64) as f64,
        imbalance: slowest as f64 * stages.len() as f64 / work.max(1) as f64,
    })
}

fn notes(subject: &Subject, load: &Load) -> Vec<String> {
    let mut notes = Vec::new();
    if load.longest() > subject.max_pos() as u64 {
        let longest = load.longest();
        notes.push(format!("a sequence reaches {longest} positions and the model takes {}", subject.max_pos()));
    }
    notes
}
