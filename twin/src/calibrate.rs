//! Calibration: a machine's knobs from how long a real engine took for commands of each kind.
//!
//! A bench file gives, for models of different sizes, the microseconds of decode steps of several batches whole and by
//! kind of command, those of a prompt, and what the device reads and multiplies in the same run. The knobs [`FITTED`] are
//! found by least squares of the logarithms of predicted over measured times, of steps and of their kinds; bandwidth and
//! multiply rate are each run's own.

use crate::least_squares::descend;
use crate::machine::{Kind, Knob, Machine, Provenance};
use crate::price::price;
use crate::{Formats, Load, Logits, Subject, TwinError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wordline_ir::{Numerics, Program};

/// A bench run of one model, as `bench --json` reports it; keys that are not needed are passed over.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Bench {
    /// A model's directory.
    #[serde(default)]
    pub model: Option<String>,
    /// Or the name of its shape.
    #[serde(default)]
    pub shape: Option<String>,
    /// What ran it; without it the processor.
    #[serde(default)]
    pub backend: Option<String>,
    /// The numerics that it ran under; without them the defaults.
    #[serde(default)]
    pub numerics: Option<Numerics>,
    /// Positions that a step sees.
    #[serde(default = "usual_ctx")]
    pub ctx: u64,
    /// Read bandwidth, measured in turns with the steps.
    pub limit_bytes_per_s: f64,
    /// Multiply-accumulates a second of the array unit on operands at hand, each counted once a limb.
    #[serde(default)]
    pub array_macs_per_s: Option<f64>,
    /// Decode steps.
    pub decode: Vec<Decode>,
    /// A prompt taken in.
    #[serde(default)]
    pub prefill: Option<Prefill>,
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
    /// Microseconds a step, by command kind; none where the device does not say.
    #[serde(default)]
    pub us_by_command: Option<BTreeMap<String, f64>>,
}

/// A prompt taken in as one step.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Prefill {
    /// Rows of it.
    pub rows: u64,
    /// Rows a second.
    pub rows_per_s: f64,
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
    /// A graphics device ran it.
    #[must_use]
    pub fn on_device(&self) -> bool {
        self.backend.as_deref().is_some_and(|backend| backend != "cpu")
    }

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
    /// Multiply-accumulates a second of the array in the run, each counted once a limb.
    pub array: Option<f64>,
    /// Sequences.
    pub batch: u64,
    /// Rows of each: 1, or a prompt's.
    pub rows: u64,
    /// Microseconds a step: whole, and by kind.
    pub step_us: f64,
    /// See `step_us`.
    pub us: BTreeMap<String, f64>,
}

impl Run<'_> {
    fn load(&self) -> Result<Load, TwinError> {
        // Prompts read out the logits of their last row, decode steps those of every sequence.
        Load::even(self.batch, self.rows, self.ctx, Logits::Last)
    }
}

impl Bench {
    /// The runs of a report on the step `subject`: its decode steps that `batches` lets in, and its prompt.
    #[must_use]
    pub fn runs<'a>(&self, subject: &'a Subject, batches: impl Fn(u64) -> bool) -> Vec<Run<'a>> {
        let run = |batch: u64, rows: u64, ctx: u64, step_us: f64, us: BTreeMap<String, f64>| Run {
            name: self.name().to_owned(),
            subject,
            ctx,
            limit: self.limit_bytes_per_s,
            array: self.array_macs_per_s,
            batch,
            rows,
            step_us,
            us,
        };
        let of = |d: &Decode| {
            run(
                d.batch,
                1,
                self.ctx,
                1e6 * d.batch as f64 / d.tokens_per_s,
                d.us_by_command.clone().unwrap_or_default(),
            )
        };
        let mut runs: Vec<Run<'a>> = self.decode.iter().filter(|d| batches(d.batch)).map(of).collect();
        if let Some(p) = self.prefill.as_ref().filter(|p| p.rows > 1) {
            runs.push(run(1, p.rows, 0, 1e6 * p.rows as f64 / p.rows_per_s, BTreeMap::new()));
        }
        runs
    }
}

/// Predicted against measured for a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The run.
    pub run: String,
    /// Sequences.
    pub batch: u64,
    /// Rows of each: 1, or a prompt's.
    pub rows: u64,
    /// Positions of each before the step.
    pub ctx: u64,
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

/// The knobs that a calibration fits. One that no run tells of stays where it was.
pub const FITTED: &[Knob] = &[
    Knob::CommandUs,
    Knob::WeightsEfficiency,
    Knob::WeightsRamp,
    Knob::Utilisation,
    Knob::Overlap,
    Knob::VectorLanes,
    Knob::VectorLatency,
    Knob::KvRamp,
    Knob::AttendLanes,
    Knob::SoftmaxLanes,
    Knob::ConvLanes,
    Knob::DeltaLanes,
    Knob::HostStepUs,
];

/// Weight of a kind's time beside its step's: kinds say where the time goes, the step how much there is.
const KIND: f64 = 0.5;
/// How strongly a knob is held where it was: what no run tells of stays.
const HOLD: f64 = 0.01;
/// Where a knob starts that was zero.
const SOME: f64 = 0.5;

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

/// A machine under a run's own conditions: its read bandwidth, and the rate of its array where that was measured.
fn under(machine: &Machine, run: &Run<'_>) -> Result<Machine, TwinError> {
    let mut machine = machine.clone();
    machine.set(Knob::PeakGbps, run.limit / 1e9, Provenance::Measured)?;
    if let Some(rate) = run.array {
        let lanes = machine.get(Knob::LanesN) * machine.get(Knob::LanesK) * machine.get(Knob::CoreMhz) * 1e6;
        machine.set(Knob::MacsPerLane, rate / lanes, Provenance::Measured)?;
    }
    Ok(machine)
}

/// Microseconds of a run's step on a machine, and of its kinds of commands.
fn times(machine: &Machine, run: &Run<'_>) -> Result<(f64, BTreeMap<&'static str, f64>), TwinError> {
    let price = price(run.subject, machine, &run.load()?)?;
    let us = |cycles: u64| cycles as f64 / machine.get(Knob::CoreMhz);
    let mut kinds = BTreeMap::new();
    for (command, spent) in run.subject.commands().iter().zip(&price.spent) {
        *kinds.entry(command.info().mnemonic).or_insert(0.0) += us(*spent);
    }
    Ok((us(price.cycles), kinds))
}

/// The knobs of a machine like `base`, fitted on the runs, each under its own conditions.
fn fit(base: &Machine, runs: &[&Run<'_>]) -> Result<Machine, TwinError> {
    let bounds = |knob: &Knob| {
        let info = knob.info();
        (info.min.max(1e-3), info.max.min(1e6))
    };
    let limits: Vec<(f64, f64)> = FITTED.iter().map(bounds).collect();
    let start: Vec<f64> = FITTED
        .iter()
        .zip(&limits)
        // From nothing no share of it leads away.
        .map(|(k, b)| if base.get(*k) > 0.0 { base.get(*k).clamp(b.0, b.1) } else { SOME })
        .collect();
    let machines = runs.iter().map(|run| under(base, run)).collect::<Result<Vec<_>, _>>()?;
    let mut values = start.clone();
    let shares: Vec<f64> = runs.iter().map(|run| run.us.values().sum::<f64>().max(f64::MIN_POSITIVE)).collect();
    descend(&mut values, &limits, |values| {
        let mut residuals = Vec::new();
        for ((run, machine), whole) in runs.iter().zip(&machines).zip(&shares) {
            let mut machine = machine.clone();
            FITTED.iter().zip(values).for_each(|(knob, value)| {
                machine.replace(*knob, *value);
            });
            let (step, kinds) = times(&machine, run)?;
            residuals.push((step / run.step_us).ln());
            for (kind, us) in &run.us {
                if let Some(said) = kinds.get(kind.as_str()).filter(|said| **said > 0.0 && *us > 0.0) {
                    residuals.push(KIND * (us / whole).sqrt() * (said / us).ln());
                }
            }
        }
        residuals.extend(values.iter().zip(&start).map(|(value, start)| HOLD * (value / start).ln()));
        Ok(residuals)
    })?;
    let mut machine = base.clone();
    for (knob, value) in FITTED.iter().zip(values) {
        let whole = knob.info().kind != Kind::Real;
        machine.set(*knob, if whole { value.round().max(1.0) } else { value }, Provenance::Fitted)?;
    }
    Ok(machine)
}

/// Milliseconds of a run's step on a machine, under the run's own conditions.
fn predicted(machine: &Machine, run: &Run<'_>) -> Result<f64, TwinError> {
    Ok(times(&under(machine, run)?, run)?.0 / 1e3)
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
            rows: run.rows,
            ctx: run.ctx,
            measured_ms: run.step_us / 1e3,
            fitted_ms: predicted(&machine, run)?,
            left_out_ms: predicted(&left, run)?,
        });
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    for (knob, value) in [
        (Knob::PeakGbps, median(runs.iter().map(|r| r.limit / 1e9).collect())),
        (Knob::MacsPerLane, median(runs.iter().filter_map(|r| r.array).collect())),
    ] {
        let lanes = machine.get(Knob::LanesN) * machine.get(Knob::LanesK) * machine.get(Knob::CoreMhz) * 1e6;
        let unit = if knob == Knob::MacsPerLane { lanes } else { 1.0 };
        if let Some(value) = value {
            machine.set(knob, value / unit, Provenance::Measured)?;
        }
    }
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
                rows: run.rows,
                ctx: run.ctx,
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
    Subject::new(program, &Formats::of_program(program))
}
