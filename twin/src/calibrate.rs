//! Calibration: a machine's knobs from how long a real engine took for commands of each kind.
//!
//! A bench file gives, for models of different sizes, the microseconds of a decode step by command kind and the read
//! bandwidth of the same run. Each kind's time is a sum over its commands of a fixed part and a part in proportion to its
//! work, so that fixed time and rate follow from a line through the models by least squares of relative errors:
//!
//! | kinds | fixed part | proportional to | knobs |
//! |---|---|---|---|
//! | matvec, routed_matvec | each command | bytes over read bandwidth | `weights.ramp_us`, `weights.efficiency` |
//! | vector unit, cache_append | each command | micro-operations | `sequencer.command_us`, `vector.lanes` |
//! | attend | each command | multiply-accumulates | `kv.ramp_us`, `attend.lanes`, `attend.softmax_lanes` |
//! | conv | as the vector unit | multiply-accumulates | `conv.lanes` |
//! | delta | as the vector unit | multiply-accumulates | `delta.lanes` |

use crate::machine::{Knob, Machine, Provenance};
use crate::price::price;
use crate::{Formats, Load, Logits, Subject, TwinError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wordline_ir::Program;

/// A bench run of one model, as `bench --json` reports it; keys that are not needed are passed over.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Bench {
    /// A model's directory.
    #[serde(default)]
    pub model: Option<String>,
    /// Or the name of its shape.
    #[serde(default)]
    pub shape: Option<String>,
    /// Positions that a step sees.
    #[serde(default = "usual_ctx")]
    pub ctx: u64,
    /// Read bandwidth, measured in turns with the steps.
    pub limit_bytes_per_s: f64,
    /// Decode steps.
    pub decode: Vec<Decode>,
}

fn usual_ctx() -> u64 {
    64
}

/// Decode steps of one batch.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Decode {
    /// Sequences, one row each.
    pub batch: u64,
    /// Rows a second.
    pub tokens_per_s: f64,
    /// Microseconds a step, by command kind.
    pub us_by_command: BTreeMap<String, f64>,
}

/// The bench runs of a text: one report or a list of them.
///
/// # Errors
/// It is no JSON, or no bench report.
pub fn benches(text: &str) -> Result<Vec<Bench>, TwinError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        One(Box<Bench>),
        Many(Vec<Bench>),
    }
    let wrong = |e: serde_json::Error| {
        TwinError::Data(format!("no bench report: {e}; it is what `bench --json` prints, or a list of that"))
    };
    Ok(match serde_json::from_str(text).map_err(wrong)? {
        Either::One(one) => vec![*one],
        Either::Many(many) => many,
    })
}

impl Bench {
    /// The model's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.shape.as_deref().or(self.model.as_deref()).unwrap_or("?")
    }
}

/// One run to calibrate on: a model at one batch.
pub struct Run<'a> {
    /// Name, for people.
    pub name: String,
    /// The model's step.
    pub subject: &'a Subject,
    /// Positions.
    pub ctx: u64,
    /// Read bandwidth of the run, bytes a second.
    pub limit: f64,
    /// Sequences.
    pub batch: u64,
    /// Microseconds a step: whole, and by kind.
    pub step_us: f64,
    /// See `step_us`.
    pub us: BTreeMap<String, f64>,
}

/// Predicted against measured for a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The run.
    pub run: String,
    /// Sequences.
    pub batch: u64,
    /// Milliseconds a step, measured.
    pub measured_ms: f64,
    /// By the machine fitted on all runs.
    pub fitted_ms: f64,
    /// By a machine fitted on the runs of all other models.
    pub left_out_ms: f64,
}

impl Checked {
    /// Errors of time: fitted, left out.
    #[must_use]
    pub fn errors(&self) -> (f64, f64) {
        (self.fitted_ms / self.measured_ms - 1.0, self.left_out_ms / self.measured_ms - 1.0)
    }
}

/// The knobs that a calibration fits.
pub const FITTED: &[Knob] = &[
    Knob::CommandUs,
    Knob::WeightsEfficiency,
    Knob::WeightsRamp,
    Knob::VectorLanes,
    Knob::KvRamp,
    Knob::AttendLanes,
    Knob::SoftmaxLanes,
    Knob::ConvLanes,
    Knob::DeltaLanes,
    Knob::HostStepUs,
];

/// A calibrated machine with how well it fits.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The machine, its bandwidth the median of the runs'.
    pub machine: Machine,
    /// Every run.
    pub runs: Vec<Checked>,
    /// Median size of the errors: fitted, left out.
    pub median: (f64, f64),
}

/// Samples of one line: relative least squares of `us = fixed * count + slope * amount`.
#[derive(Default)]
struct Line(Vec<(f64, f64, f64)>);

impl Line {
    /// Fixed part and slope, neither below zero; none without samples.
    fn solve(&self) -> Option<(f64, f64)> {
        let samples: Vec<_> = self.0.iter().filter(|s| s.2 > 0.0 && (s.0 > 0.0 || s.1 > 0.0)).collect();
        if samples.is_empty() {
            return None;
        }
        let (mut cc, mut ca, mut aa, mut c1, mut a1) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (count, amount, us) in samples {
            // Divided by what was measured, each sample wants 1.
            let (c, a) = (count / us, amount / us);
            (cc, ca, aa, c1, a1) = (cc + c * c, ca + c * a, aa + a * a, c1 + c, a1 + a);
        }
        let det = cc * aa - ca * ca;
        let both = (det > 1e-9 * cc * aa).then(|| ((c1 * aa - a1 * ca) / det, (a1 * cc - c1 * ca) / det));
        let square = |(x, y): (f64, f64)| x * x * cc + 2.0 * x * y * ca + y * y * aa - 2.0 * (x * c1 + y * a1);
        match both {
            Some((fixed, slope)) if fixed >= 0.0 && slope >= 0.0 => Some((fixed, slope)),
            // The best on an edge: one of them is zero.
            _ => {
                let ends = [(if cc > 0.0 { c1 / cc } else { 0.0 }, 0.0), (0.0, if aa > 0.0 { a1 / aa } else { 0.0 })];
                ends.into_iter().min_by(|a, b| square(*a).total_cmp(&square(*b)))
            }
        }
    }
}

/// The knobs of a machine like `base`, fitted on the runs, at each run's own read bandwidth.
fn fit(base: &Machine, runs: &[&Run<'_>]) -> Result<Machine, TwinError> {
    let mut machine = base.clone();
    let cycles_us = machine.get(Knob::CoreMhz);
    let (mut array, mut vector, mut attend) = (Line::default(), Line::default(), Line::default());
    let (mut conv, mut delta) = (Line::default(), Line::default());
    let mut beside = Vec::new();
    for run in runs {
        let mut sums: BTreeMap<&str, [f64; 4]> = BTreeMap::new();
        let load = Load::even(run.batch, 1, run.ctx, Logits::All)?;
        let mut at = machine.clone();
        at.set(Knob::PeakGbps, run.limit / 1e9, Provenance::Measured)?;
        at.set(Knob::VectorLanes, 1.0, Provenance::Measured)?;
        let price = price(run.subject, &at, &load)?;
        for (index, command) in run.subject.commands().iter().enumerate() {
            let cost = price.of(run.subject, index);
            let sum = sums.entry(command.info().mnemonic).or_default();
            sum[0] += 1.0;
            sum[1] += cost.moved.memory() as f64 / run.limit * 1e6;
            sum[2] += cost.macs as f64;
            sum[3] += cost.compute as f64;
        }
        for (kind, us) in &run.us {
            let Some([count, read_us, macs, ops]) = sums.get(kind.as_str()).copied() else { continue };
            match kind.as_str() {
                "matvec" | "routed_matvec" => array.0.push((count, read_us, *us)),
                "attend" => attend.0.push((count, macs, *us)),
                "conv" => conv.0.push((count, macs, *us)),
                "delta" => delta.0.push((count, macs, *us)),
                _ => vector.0.push((count, ops, *us)),
            }
        }
        beside.push((run.step_us - run.us.values().sum::<f64>()).max(0.0));
    }
    let mut set = |knob: Knob, value: f64| {
        let info = knob.info();
        machine.set(knob, value.clamp(info.min, info.max), Provenance::Fitted)
    };
    // Vector commands first: their fixed part is what every command has.
    let common = match vector.solve() {
        Some((fixed, slope)) => {
            set(Knob::CommandUs, fixed)?;
            if slope > 0.0 {
                set(Knob::VectorLanes, (1.0 / (slope * cycles_us)).round().max(1.0))?;
            }
            fixed
        }
        None => base.get(Knob::CommandUs),
    };
    if let Some((fixed, slope)) = array.solve() {
        set(Knob::WeightsRamp, (fixed - common).max(0.0))?;
        if slope > 0.0 {
            set(Knob::WeightsEfficiency, (1.0 / slope).min(1.0))?;
        }
    }
    let lanes = |slope: f64| (1.0 / (slope * cycles_us)).round().max(1.0);
    if let Some((fixed, slope)) = attend.solve() {
        set(Knob::KvRamp, (fixed - common).max(0.0))?;
        if slope > 0.0 {
            set(Knob::AttendLanes, lanes(slope))?;
            set(Knob::SoftmaxLanes, lanes(slope))?;
        }
    }
    // Caches and states lie near the processor: what their commands take beyond a fixed time is said by lanes alone.
    set(Knob::KvEfficiency, 1.0)?;
    set(Knob::StateEfficiency, 1.0)?;
    for (line, knob) in [(conv, Knob::ConvLanes), (delta, Knob::DeltaLanes)] {
        // Each command's fixed time is known already.
        let left = |s: &(f64, f64, f64)| (0.0, s.1, (s.2 - common * s.0).max(0.01 * s.2));
        let line = Line(line.0.iter().map(left).collect());
        if let Some((_, slope)) = line.solve().filter(|s| s.1 > 0.0) {
            set(knob, lanes(slope))?;
        }
    }
    beside.sort_by(f64::total_cmp);
    set(Knob::HostStepUs, beside.get(beside.len() / 2).copied().unwrap_or(0.0))?;
    Ok(machine)
}

/// Milliseconds of a run's step on a machine, at the run's own read bandwidth.
fn predicted(machine: &Machine, run: &Run<'_>) -> Result<f64, TwinError> {
    let mut machine = machine.clone();
    machine.set(Knob::PeakGbps, run.limit / 1e9, Provenance::Measured)?;
    let load = Load::even(run.batch, 1, run.ctx, Logits::All)?;
    Ok(1e3 * price(run.subject, &machine, &load)?.seconds(&machine))
}

/// Calibrate a machine like `base` on runs of an engine; runs of one model are left out together.
///
/// # Errors
/// There are no runs, or one cannot be priced.
pub fn calibrate(base: &Machine, runs: &[Run<'_>]) -> Result<Calibration, TwinError> {
    if runs.is_empty() {
        return Err(TwinError::Data("there are no runs to calibrate on".into()));
    }
    let all: Vec<&Run<'_>> = runs.iter().collect();
    let mut machine = fit(base, &all)?;
    let mut checked = Vec::with_capacity(runs.len());
    for run in runs {
        let others: Vec<&Run<'_>> = all.iter().copied().filter(|r| r.name != run.name).collect();
        let left = if others.is_empty() { base.clone() } else { fit(base, &others)? };
        checked.push(Checked {
            run: run.name.clone(),
            batch: run.batch,
            measured_ms: run.step_us / 1e3,
            fitted_ms: predicted(&machine, run)?,
            left_out_ms: predicted(&left, run)?,
        });
    }
    let mut limits: Vec<f64> = runs.iter().map(|r| r.limit / 1e9).collect();
    limits.sort_by(f64::total_cmp);
    machine.set(Knob::PeakGbps, limits[limits.len() / 2], Provenance::Measured)?;
    Ok(Calibration { machine, median: medians(&checked), runs: checked })
}

/// Check a machine on runs: nothing is fitted, only each run's own read bandwidth is taken.
///
/// # Errors
/// As [`calibrate`].
pub fn check(machine: &Machine, runs: &[Run<'_>]) -> Result<Calibration, TwinError> {
    if runs.is_empty() {
        return Err(TwinError::Data("there are no runs to check on".into()));
    }
    let checked = runs
        .iter()
        .map(|run| {
            let ms = predicted(machine, run)?;
            Ok(Checked {
                run: run.name.clone(),
                batch: run.batch,
                measured_ms: run.step_us / 1e3,
                fitted_ms: ms,
                left_out_ms: ms,
            })
        })
        .collect::<Result<Vec<_>, TwinError>>()?;
    Ok(Calibration { machine: machine.clone(), median: medians(&checked), runs: checked })
}

/// Median size of the errors: fitted, left out.
fn medians(checked: &[Checked]) -> (f64, f64) {
    let median = |of: fn(&Checked) -> f64| {
        let mut sizes: Vec<f64> = checked.iter().map(|c| of(c).abs()).collect();
        sizes.sort_by(f64::total_cmp);
        sizes[sizes.len() / 2]
    };
    (median(|c| c.errors().0), median(|c| c.errors().1))
}

/// The subject of a program as the engine runs it.
///
/// # Errors
/// The program cannot be read.
pub fn subject(program: &Program) -> Result<Subject, TwinError> {
    Subject::new(program, &Formats::engine())
}
