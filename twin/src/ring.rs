//! `price_ring`: a step that goes round a ring of stages, each on a machine of its own, over links of their own.
//!
//! [`price`](crate::price()) cuts a step over equal devices by a knob; a ring names each stage: what it runs on, its layers,
//! and the link to the next one. The first stage holds embedding, final norm and head, and the last one's link leads back
//! to it.

use crate::fit::{of_stage, refuse};
use crate::machine::{Knob, Machine};
use crate::price::price_micro;
use crate::subject::Subject;
use crate::{Load, TwinError};
use serde::Serialize;
use std::ops::Range;

/// The way to the next stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Microseconds from sending a message to its arrival, its bytes apart.
    pub latency_us: f64,
    /// GB/s, one way.
    pub gbps: f64,
    /// Bytes of a message beside its token-rows.
    pub framing_bytes: u64,
}

impl Link {
    /// The link that a machine describes: `link.latency_us`, `link.gbps`, `link.framing_bytes`.
    #[must_use]
    pub fn of(machine: &Machine) -> Link {
        Link {
            latency_us: machine.get(Knob::LinkLatencyUs),
            gbps: machine.get(Knob::LinkGbps),
            framing_bytes: machine.get(Knob::FramingBytes) as u64,
        }
    }

    /// Seconds of a message of so many bytes of token-rows.
    fn seconds(&self, bytes: u64) -> f64 {
        self.latency_us / 1e6 + (bytes.saturating_add(self.framing_bytes)) as f64 / (self.gbps * 1e9)
    }
}

/// A stage of a ring.
#[derive(Clone, Debug)]
pub struct RingStage<'a> {
    /// What it runs on. Its knobs of a pipeline and its link are not looked at; `parallel.tensor` is.
    pub machine: &'a Machine,
    /// Its layers. The first stage's may be none: it then holds embedding and head alone.
    pub layers: Range<usize>,
    /// The way to the next stage, or from the last one to the first.
    pub link: Link,
}

/// What a ring costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RingPrice {
    /// Seconds of each stage for the load, the first one's host time included.
    pub stage_s: Vec<f64>,
    /// Seconds of each hop; none where there is one stage.
    pub hop_s: Vec<f64>,
    /// Bytes of token-rows of a hop.
    pub hop_bytes: u64,
    /// Seconds of a lap: every stage and every hop, one after the other.
    pub lap_s: f64,
    /// Token-rows a second of the load alone, each lap begun when the one before has ended.
    pub tokens_per_s: f64,
    /// Token-rows a second when as many such loads go round as there are stages: the slowest stage sets the pace, or the
    /// lap where hops are long.
    pub filled_tokens_per_s: f64,
    /// Share of the stages' time in which they wait when the ring is filled.
    pub bubble: f64,
}

/// Price a lap of `load` round a ring.
///
/// # Errors
/// There are no stages; their layers are not the program's in order; a link is impossible; a stage has no room for what it
/// would hold (of `load` times the stages: the ring filled); a price contradicts itself.
pub fn price_ring(subject: &Subject, load: &Load, stages: &[RingStage<'_>]) -> Result<RingPrice, TwinError> {
    check(subject, stages)?;
    let ranges: Vec<Range<usize>> = stages.iter().map(|s| s.layers.clone()).collect();
    let filled = load.times(stages.len() as u64);
    let mut stage_s = Vec::with_capacity(stages.len());
    for (index, stage) in stages.iter().enumerate() {
        stage.machine.check()?;
        let held = of_stage(subject, stage.machine, &filled, &stage.layers, index == 0);
        refuse(stage.machine, held, stages.len() as u64)?;
        let price = price_micro(subject, stage.machine, load, 1, &ranges)?;
        let cycles = price.stages[index].cycles + if index == 0 { price.host } else { 0 };
        stage_s.push(cycles as f64 / (stage.machine.get(Knob::CoreMhz) * 1e6));
    }
    let hop_bytes = if stages.len() > 1 { load.rows().saturating_mul(4).saturating_mul(subject.hidden) } else { 0 };
    let hop_s: Vec<f64> = match stages {
        [_] => Vec::new(),
        _ => stages.iter().map(|s| s.link.seconds(hop_bytes)).collect(),
    };
    let work: f64 = stage_s.iter().sum();
    let lap_s = work + hop_s.iter().sum::<f64>();
    let count = stages.len() as f64;
    let slowest = stage_s.iter().copied().fold(0.0, f64::max);
    let turn = slowest.max(lap_s / count);
    let rows = load.rows() as f64;
    Ok(RingPrice {
        stage_s,
        hop_s,
        hop_bytes,
        lap_s,
        tokens_per_s: rows / lap_s,
        filled_tokens_per_s: rows / turn,
        bubble: 1.0 - work / (turn * count),
    })
}

fn check(subject: &Subject, stages: &[RingStage<'_>]) -> Result<(), TwinError> {
    let refuse = |reason: String| Err(TwinError::Parallel(reason));
    let all = subject.layers();
    let mut next = all.start;
    for (index, stage) in stages.iter().enumerate() {
        let Range { start, end } = stage.layers;
        if start != next || end < start || (end == start && index > 0) {
            return refuse(format!(
                "stage {index} has the layers {start}..{end}; it starts at {next}, and only the first may have none"
            ));
        }
        let Link { latency_us, gbps, .. } = stage.link;
        if !(0.0..=1e9).contains(&latency_us) || !(1e-6..=1e6).contains(&gbps) {
            return refuse(format!(
                "the link of stage {index} has {latency_us} us and {gbps} GB/s; 0 to 1e9 us and 1e-6 to 1e6 GB/s can be"
            ));
        }
        next = end;
    }
    if next != all.end || stages.is_empty() {
        return refuse(format!("{} stages end at layer {next} of {}", stages.len(), all.end));
    }
    Ok(())
}
