//! Validation: the twin against published measurements, with what it is fitted on and what it is not.
//!
//! Rows are data ([`PUBLISHED`], or a file of the caller's). At most eight constants are fitted, none of them a row's:
//! each is a knob of a class, and every machine of the class has it unless its own file says otherwise.

mod fit;
mod markdown;
mod row;

pub use fit::{CONSTANTS, Constant};
pub use row::{JUDGED, PUBLISHED, Row, rows};

use crate::doubt::interval_of;
use crate::machine::Machine;
use crate::price::{Price, price, price_unchecked, stages};
use crate::{Formats, Knob, Load, Logits, SKEW, Sequences, Subject, TwinError};
use fit::Fit;
use serde::Serialize;
use std::collections::HashMap;
use wordline_ir::Program;

/// What the twin says of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The row's name.
    pub id: String,
    /// Rows that are judged together.
    pub group: String,
    /// What is measured, in words.
    pub what: String,
    /// Unit of the three values: "tok/s", "ms" or "us".
    pub unit: &'static str,
    /// Published.
    pub measured: f64,
    /// Predicted.
    pub predicted: f64,
    /// Ends of the interval.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Bytes over peak bandwidth alone.
    pub naive: f64,
    /// Predicted time over the measured, less 1.
    pub error: f64,
    /// The same with the constants fitted on all other rows.
    pub left_out: f64,
    /// The same with the constants fitted on the rows of machines of other classes alone.
    pub class_left_out: f64,
    /// The same of the naive figure.
    pub naive_error: f64,
    /// The interval holds the measured value.
    pub inside: bool,
    /// Shares of the predicted time: arithmetic, bytes, waiting.
    pub shares: [f64; 3],
    /// The row takes part in the fit.
    pub fitted: bool,
    /// Trust.
    pub trust: String,
    /// Source.
    pub source: String,
}

/// Widest interval that counts as holding a row: high over low.
pub const WIDEST: f64 = 1.6;

impl Outcome {
    /// The interval holds the published value and is no wider than [`WIDEST`].
    #[must_use]
    pub fn holds(&self) -> bool {
        self.inside && self.high / self.low <= WIDEST
    }
}

/// A constant of the fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// `class/knob`.
    pub name: String,
    /// What it means.
    pub meaning: &'static str,
    /// The value in the class's file, which every price uses.
    pub value: f64,
    /// The best value on the rows given.
    pub best: f64,
    /// Unit.
    pub unit: &'static str,
}

/// How fast a quantity rises along a series of rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slope {
    /// The series.
    pub series: String,
    /// Milliseconds for each 1,000 positions, published.
    pub measured: f64,
    /// Predicted.
    pub predicted: f64,
}

/// The whole validation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Validation {
    /// Rows, in their order.
    pub rows: Vec<Outcome>,
    /// The fitted constants.
    pub constants: Vec<Fitted>,
    /// Slopes.
    pub slopes: Vec<Slope>,
    /// Share of the rows whose interval holds the measured value and is no wider than [`WIDEST`].
    pub held: f64,
}

/// A row made ready: what its price needs.
pub(crate) struct Case {
    pub row: Row,
    machine: Machine,
    subject: Subject,
    load: Load,
    /// The command that is measured; none for the step.
    command: Option<usize>,
}

impl Case {
    fn new(row: &Row, program: &Program) -> Result<Case, TwinError> {
        let refuse = |what: String| TwinError::Data(format!("row '{}': {what}", row.id));
        let formats = Formats::new(&row.weights, &row.kv, "f32")?;
        let subject = Subject::new(program, &formats)?;
        let mut machine = match &row.machine_file {
            Some(text) => Machine::parse(text)?,
            None => Machine::preset(&row.machine)?,
        };
        if row.devices > 1 {
            machine.set(Knob::Tensor, row.devices as f64, crate::Provenance::Datasheet)?;
        }
        let logits = if row.rows > 1 { Logits::Last } else { Logits::All };
        let group = Sequences { count: row.sequences, rows: row.rows, ctx: row.ctx };
        let load = Load::new(vec![group], logits, SKEW)?;
        let fits = |at: &usize| {
            let tensor = row.tensor.as_ref().is_none_or(|t| subject.tensor_of(*at).ends_with(t.as_str()));
            let kind = row.command.as_ref().is_none_or(|c| subject.commands()[*at].info().mnemonic == c);
            tensor && kind
        };
        let command = if row.tensor.is_some() || row.command.is_some() {
            let found = (0..subject.commands().len()).find(fits);
            Some(found.ok_or_else(|| refuse("the program has no such command".into()))?)
        } else {
            None
        };
        if row.seconds().is_none() {
            return Err(refuse("it has none of tokens_per_s, ms and us, or more than one".into()));
        }
        Ok(Case { row: row.clone(), machine, subject, load, command })
    }

    /// The price of the step; a command by itself is priced whether or not its whole model fits.
    fn price(&self, machine: &Machine) -> Result<Price, TwinError> {
        match self.command {
            Some(_) => price_unchecked(&self.subject, machine, &self.load, &stages(&self.subject, machine)?),
            None => price(&self.subject, machine, &self.load),
        }
    }

    /// Seconds of the step or of the measured command.
    fn seconds(&self, price: &Price, machine: &Machine) -> f64 {
        match self.command {
            Some(at) => price.spent[at] as f64 / (machine.get(Knob::CoreMhz) * 1e6),
            None => price.seconds(machine),
        }
    }

    /// Predicted seconds under given constants.
    pub(crate) fn under(&self, fit: &Fit) -> Result<f64, TwinError> {
        let machine = fit.apply(&self.machine)?;
        let price = self.price(&machine)?;
        Ok(self.seconds(&price, &machine))
    }

    /// Published seconds.
    pub(crate) fn measured(&self) -> f64 {
        self.row.seconds().unwrap_or(f64::NAN)
    }

    fn outcome(&self, left_out: f64, class_left_out: f64) -> Result<Outcome, TwinError> {
        let machine = &self.machine;
        let price = self.price(machine)?;
        let seconds = self.seconds(&price, machine);
        let interval =
            interval_of(&self.subject, machine, &self.load, seconds, &|price, machine| self.seconds(price, machine))?;
        let bytes = match self.command {
            Some(at) => price.of(&self.subject, at).moved.memory(),
            None => price.step_moved().memory(),
        };
        let devices = if self.command.is_some() { 1 } else { price.devices };
        let naive = bytes as f64 / (machine.get(Knob::PeakGbps) * 1e9 * devices as f64);
        let (row, measured) = (&self.row, self.measured());
        let (unit, value) = row.unit();
        let (a, b) = (value(seconds * interval.factor), value(seconds / interval.factor));
        let (low, high) = (a.min(b), a.max(b));
        let truth = value(measured);
        Ok(Outcome {
            id: row.id.clone(),
            group: row.group.clone(),
            what: row.what(),
            unit,
            measured: truth,
            predicted: value(seconds),
            low,
            high,
            naive: value(naive),
            error: seconds / measured - 1.0,
            left_out: left_out / measured - 1.0,
            class_left_out: class_left_out / measured - 1.0,
            naive_error: naive / measured - 1.0,
            inside: low <= truth && truth <= high,
            shares: self.shares(&price),
            fitted: row.weight > 0.0,
            trust: row.trust.clone(),
            source: row.source.clone(),
        })
    }

    fn shares(&self, price: &Price) -> [f64; 3] {
        let range = self.command.map_or(0..price.spent.len(), |at| at..at + 1);
        let (mut compute, mut transfer, mut all) = (0, 0, if self.command.is_some() { 0 } else { price.host });
        for at in range {
            let (cost, spent) = (price.of(&self.subject, at), price.spent[at]);
            let work = spent - cost.fixed - cost.link;
            let bytes = cost.compute < (cost.stream - price.early[at]).max(cost.on_chip);
            *(if bytes { &mut transfer } else { &mut compute }) += work;
            all += spent;
        }
        let share = |part: u64| part as f64 / all.max(1) as f64;
        [share(compute), share(transfer), 1.0 - share(compute) - share(transfer)]
    }
}

/// Validate the twin on rows; `program` gives the step of a shape by name.
///
/// # Errors
/// A row that cannot be priced, or a shape that there is none of.
pub fn validate(
    rows: &[Row],
    mut program: impl FnMut(&str) -> Result<Program, TwinError>,
) -> Result<Validation, TwinError> {
    let mut programs: HashMap<&str, Program> = HashMap::new();
    let mut cases = Vec::with_capacity(rows.len());
    for row in rows {
        if !programs.contains_key(row.shape.as_str()) {
            programs.insert(&row.shape, program(&row.shape)?);
        }
        cases.push(Case::new(row, &programs[row.shape.as_str()])?);
    }
    let best = Fit::best(&cases, |_, _| true)?;
    let mut without: HashMap<&str, Fit> = HashMap::new();
    for case in &cases {
        let class = case.machine.class.as_str();
        if !without.contains_key(class) {
            without.insert(class, Fit::best(&cases, |_, other| other.machine.class != class)?);
        }
    }
    let mut outcomes = Vec::with_capacity(cases.len());
    for (index, case) in cases.iter().enumerate() {
        // A row that takes no part in the fit is left out of it already.
        let fit = if case.row.weight > 0.0 { Fit::best(&cases, |i, _| i != index)? } else { best.clone() };
        let class = case.under(&without[case.machine.class.as_str()])?;
        outcomes.push(case.outcome(case.under(&fit)?, class)?);
    }
    let held = outcomes.iter().filter(|o| o.holds()).count() as f64 / outcomes.len().max(1) as f64;
    Ok(Validation { slopes: slopes(&cases, &outcomes), constants: best.constants()?, rows: outcomes, held })
}

/// The slope of each series from its first row to its last.
fn slopes(cases: &[Case], outcomes: &[Outcome]) -> Vec<Slope> {
    let mut slopes: Vec<Slope> = Vec::new();
    for (first, case) in cases.iter().enumerate() {
        let Some(series) = &case.row.series else { continue };
        if slopes.iter().any(|s| s.series == *series) {
            continue;
        }
        let Some(last) = cases.iter().rposition(|c| c.row.series.as_ref() == Some(series)).filter(|l| *l > first)
        else {
            continue;
        };
        let positions = cases[last].row.ctx as f64 - case.row.ctx as f64;
        let rise = |at: usize, predicted: bool| {
            let seconds = cases[at].measured();
            1e6 * if predicted { seconds * (1.0 + outcomes[at].error) } else { seconds }
        };
        let slope = |predicted| (rise(last, predicted) - rise(first, predicted)) / positions;
        slopes.push(Slope { series: series.clone(), measured: slope(false), predicted: slope(true) });
    }
    slopes
}
