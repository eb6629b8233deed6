//! Sweeps: a step priced at every point of a grid of knobs, loads and formats, and the points that no other beats.
//!
//! A program is read once for each choice of formats; a point then costs as many prices as the step has shapes of
//! commands.

use crate::machine::{KNOBS, Machine, Provenance};
use crate::price::price;
use crate::report::{area, energy};
use crate::{Formats, Knob, Load, Logits, Sequences, Subject, TwinError};
use serde::Serialize;
use std::collections::HashMap;
use wordline_ir::Program;

/// Most points of a sweep.
pub const MOST_POINTS: usize = 1_000_000;

/// What an axis moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    Knob(Knob),
    Ctx,
    Rows,
    Sequences,
    Weights,
    Kv,
}

/// One axis of a grid: a name and its values, as they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it moves: a knob, or ctx, rows, sequences, weights, kv.
    pub name: String,
    /// Its values.
    pub values: Vec<String>,
    moves: Moves,
    numbers: Vec<f64>,
}

impl Axis {
    /// An axis: `NAME=VALUE,VALUE,…`, where a value is a number (`k`, `M`, `G` are 2^10, 2^20, 2^30), a format, or a range
    /// `A..B` that doubles from A up to B.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Axis, TwinError> {
        let refuse = |reason: String| TwinError::Data(format!("axis '{text}': {reason}"));
        let (name, list) = text.split_once('=').ok_or_else(|| refuse("write NAME=VALUE,VALUE or NAME=A..B".into()))?;
        let moves = match name {
            "ctx" => Moves::Ctx,
            "rows" => Moves::Rows,
            "sequences" => Moves::Sequences,
            "weights" => Moves::Weights,
            "kv" => Moves::Kv,
            _ => match Knob::named(name) {
                Some(knob) => Moves::Knob(knob),
                None => {
                    let near = Knob::nearest(name).map_or(String::new(), |n| format!("; did you mean '{n}'?"));
                    return Err(refuse(format!("it moves a knob, or ctx, rows, sequences, weights or kv{near}")));
                }
            },
        };
        let (mut values, mut numbers) = (Vec::new(), Vec::new());
        for part in list.split(',').map(str::trim) {
            if matches!(moves, Moves::Weights | Moves::Kv) {
                values.push(part.to_owned());
                numbers.push(values.len() as f64);
                continue;
            }
            let number = |text: &str| number(text).ok_or_else(|| refuse(format!("'{text}' is no number")));
            if let Some((from, to)) = part.split_once("..") {
                let (mut at, end) = (number(from)?, number(to)?);
                if !(at > 0.0 && at <= end) {
                    return Err(refuse(format!("'{part}' is no range: it doubles from a positive number upwards")));
                }
                while at < end * (1.0 + 1e-9) && values.len() < MOST_POINTS {
                    values.push(at.to_string());
                    numbers.push(at);
                    at *= 2.0;
                }
            } else {
                let value = number(part)?;
                values.push(value.to_string());
                numbers.push(value);
            }
        }
        Ok(Axis { name: name.into(), values, moves, numbers })
    }
}

impl Axis {
    /// Unit of its values; empty where they have none.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self.moves {
            Moves::Knob(knob) => knob.info().unit,
            Moves::Ctx => "positions",
            Moves::Rows => "token-rows",
            Moves::Sequences => "sequences",
            Moves::Weights | Moves::Kv => "",
        }
    }

    /// Its values are numbers.
    #[must_use]
    pub fn numeric(&self) -> bool {
        !matches!(self.moves, Moves::Weights | Moves::Kv)
    }
}

/// A number with an optional binary multiple.
#[must_use]
pub fn number(text: &str) -> Option<f64> {
    let (digits, times) = match text.strip_suffix(['k', 'K', 'M', 'G']) {
        Some(digits) => (
            digits,
            match &text[digits.len()..] {
                "M" => 1024.0 * 1024.0,
                "G" => 1024.0 * 1024.0 * 1024.0,
                _ => 1024.0,
            },
        ),
        None => (text, 1.0),
    };
    digits.parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| n * times)
}

/// What a sweep starts from, under the axes.
#[derive(Clone, Debug)]
pub struct Base {
    /// Machine.
    pub machine: Machine,
    /// Format of the weights.
    pub weights: String,
    /// Format of the caches.
    pub kv: String,
    /// Positions in each cache.
    pub ctx: u64,
    /// Rows of each sequence.
    pub rows: u64,
    /// Sequences.
    pub sequences: u64,
    /// More sequences, unlike the others, at every point.
    pub also: Vec<Sequences>,
    /// Format of memories and rings.
    pub state: String,
    /// Exponent of the law by which experts are picked.
    pub skew: f64,
}

/// A priced point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Values on the axes, by the axes' order.
    pub at: Vec<String>,
    /// The figures; none where the point is refused.
    pub figures: Option<Figures>,
    /// Why it is refused.
    pub refused: Option<String>,
    /// No other point is as good in every objective and better in one.
    pub front: bool,
}

/// The figures of a point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Token-rows a second.
    pub tokens_per_s: f64,
    /// Milliseconds of the step.
    pub ms_per_step: f64,
    /// Joules a token-row.
    pub joules_per_token: f64,
    /// Watts.
    pub watts: f64,
    /// Square millimetres; 0 where the machine does not say.
    pub area_mm2: f64,
    /// Bytes a step from memory.
    pub memory_bytes: u64,
    /// What bytes over peak bandwidth alone would give.
    pub naive_tokens_per_s: f64,
}

/// A figure that points are chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objective {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// More of it is better.
    pub more: bool,
}

const fn objective(name: &'static str, unit: &'static str, more: bool) -> Objective {
    Objective { name, unit, more }
}

/// Every figure that points may be chosen by.
pub const OBJECTIVES: &[Objective] = &[
    objective("tokens_per_s", "tokens/s", true),
    objective("ms_per_step", "ms", false),
    objective("joules_per_token", "J", false),
    objective("watts", "W", false),
    objective("area_mm2", "mm2", false),
    objective("memory_bytes", "bytes", false),
];

impl Figures {
    /// A figure by its name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<f64> {
        Some(match name {
            "tokens_per_s" => self.tokens_per_s,
            "ms_per_step" => self.ms_per_step,
            "joules_per_token" => self.joules_per_token,
            "watts" => self.watts,
            "area_mm2" => self.area_mm2,
            "memory_bytes" => self.memory_bytes as f64,
            "naive_tokens_per_s" => self.naive_tokens_per_s,
            _ => return None,
        })
    }
}

/// Price every point of the grid. The last axis moves fastest. A point that is refused stays, with its reason.
///
/// # Errors
/// Too many points, an objective that is none, or formats that nobody knows.
pub fn sweep(program: &Program, base: &Base, axes: &[Axis], objectives: &[String]) -> Result<Vec<Point>, TwinError> {
    let count = axes.iter().try_fold(1_usize, |n, a| n.checked_mul(a.values.len())).filter(|n| *n <= MOST_POINTS);
    let count = count.ok_or_else(|| TwinError::Data(format!("the grid has more than {MOST_POINTS} points")))?;
    let directions = objectives
        .iter()
        .map(|name| {
            let known = || OBJECTIVES.iter().map(|o| o.name).collect::<Vec<_>>().join(", ");
            let found = OBJECTIVES.iter().find(|o| o.name == name);
            found
                .copied()
                .ok_or_else(|| TwinError::Data(format!("no objective is called '{name}'; there are {}", known())))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut subjects: HashMap<(String, String), Subject> = HashMap::new();
    let mut points = Vec::with_capacity(count);
    let mut at = vec![0_usize; axes.len()];
    for _ in 0..count {
        let values: Vec<String> = axes.iter().zip(&at).map(|(axis, i)| axis.values[*i].clone()).collect();
        let (figures, refused) = match point(program, base, axes, &at, &mut subjects) {
            Ok(figures) => (Some(figures), None),
            // A grid has corners that no machine has; a price that contradicts itself is ours.
            Err(error @ TwinError::Conservation(_)) => return Err(error),
            Err(error) => (None, Some(error.to_string())),
        };
        points.push(Point { at: values, figures, refused, front: false });
        for (axis, i) in axes.iter().zip(&mut at).rev() {
            *i += 1;
            if *i < axis.values.len() {
                break;
            }
            *i = 0;
        }
    }
    front(&mut points, &directions);
    Ok(points)
}

fn point(
    program: &Program,
    base: &Base,
    axes: &[Axis],
    at: &[usize],
    subjects: &mut HashMap<(String, String), Subject>,
) -> Result<Figures, TwinError> {
    let mut machine = base.machine.clone();
    let (mut weights, mut kv) = (base.weights.as_str(), base.kv.as_str());
    let (mut ctx, mut rows, mut sequences) = (base.ctx, base.rows, base.sequences);
    let whole = |name: &'static str, value: f64| {
        let fits = value >= 0.0 && value.fract() == 0.0 && value < 1e15;
        let refused =
            || TwinError::Load { what: name, given: value.to_string(), reason: "it is a whole number".into() };
        fits.then_some(value as u64).ok_or_else(refused)
    };
    for (axis, i) in axes.iter().zip(at) {
        let number = axis.numbers[*i];
        match axis.moves {
            Moves::Knob(knob) => machine.set(knob, number, Provenance::Guessed)?,
            Moves::Ctx => ctx = whole("ctx", number)?,
            Moves::Rows => rows = whole("rows", number)?,
            Moves::Sequences => sequences = whole("sequences", number)?,
            Moves::Weights => weights = &axis.values[*i],
            Moves::Kv => kv = &axis.values[*i],
        }
    }
    let key = (weights.to_owned(), kv.to_owned());
    if !subjects.contains_key(&key) {
        let subject = Subject::new(program, &Formats::new(weights, kv, &base.state)?)?;
        subjects.insert(key.clone(), subject);
    }
    let subject = &subjects[&key];
    let mut groups = vec![Sequences { count: sequences, rows, ctx }];
    groups.extend(&base.also);
    let load = Load::new(groups, Logits::Last, base.skew)?;
    let price = price(subject, &machine, &load)?;
    let (seconds, tokens) = (price.seconds(&machine), load.rows() as f64);
    let energy = energy(&machine, &price, seconds, tokens);
    let memory_bytes = price.step_moved().memory();
    let naive = memory_bytes as f64 / (machine.get(Knob::PeakGbps) * 1e9 * price.devices as f64);
    Ok(Figures {
        tokens_per_s: tokens / seconds,
        ms_per_step: seconds * 1e3,
        joules_per_token: energy.joules_per_token,
        watts: energy.watts,
        area_mm2: area(&machine).unwrap_or(0.0),
        memory_bytes,
        naive_tokens_per_s: tokens / naive,
    })
}

/// Mark the points that no other beats: none is as good in every objective and better in one.
fn front(points: &mut [Point], directions: &[Objective]) {
    let costs: Vec<Option<Vec<f64>>> = points
        .iter()
        .map(|p| {
            let figures = p.figures.as_ref()?;
            let cost = |wanted: &Objective| {
                let value = figures.named(wanted.name).unwrap_or(f64::INFINITY);
                if wanted.more { -value } else { value }
            };
            Some(directions.iter().map(cost).collect())
        })
        .collect();
    let mut order: Vec<usize> = (0..points.len()).filter(|i| costs[*i].is_some()).collect();
    let by = |a: &usize, b: &usize| {
        let (a, b) = (costs[*a].as_deref().unwrap_or(&[]), costs[*b].as_deref().unwrap_or(&[]));
        let first = a.iter().zip(b).map(|(x, y)| x.total_cmp(y)).find(|o| o.is_ne());
        first.unwrap_or(std::cmp::Ordering::Equal)
    };
    order.sort_by(by);
    // In this order nothing is beaten by what comes after it.
    let mut kept: Vec<usize> = Vec::new();
    for at in order {
        let Some(cost) = &costs[at] else { continue };
        let beats = |other: &usize| {
            costs[*other].as_ref().is_some_and(|o| o.iter().zip(cost).all(|(x, y)| x <= y) && o != cost)
        };
        if !kept.iter().any(beats) {
            kept.push(at);
        }
    }
    kept.into_iter().for_each(|at| points[at].front = true);
}

/// The points as CSV: axes, figures, whether on the front, and why refused.
#[must_use]
pub fn csv(axes: &[Axis], points: &[Point]) -> String {
    let quoted = |text: &str| {
        if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
    };
    let mut out: Vec<String> = axes.iter().map(|a| quoted(&a.name)).collect();
    let names = OBJECTIVES.iter().map(|o| o.name);
    out.extend(names.clone().map(str::to_owned));
    out.extend(["naive_tokens_per_s", "front", "refused"].map(String::from));
    let mut text = out.join(",") + "\n";
    for point in points {
        let mut row: Vec<String> = point.at.iter().map(|v| quoted(v)).collect();
        let figure = |name: &str| point.figures.and_then(|f| f.named(name)).map_or(String::new(), |v| v.to_string());
        row.extend(names.clone().map(figure));
        row.push(figure("naive_tokens_per_s"));
        row.push(point.front.to_string());
        row.push(quoted(point.refused.as_deref().unwrap_or_default()));
        text += &(row.join(",") + "\n");
    }
    text
}

/// Every knob that an axis may move, with unit, bounds and meaning, as Markdown.
#[must_use]
pub fn knob_reference() -> String {
    let mut out = String::from("| knob | unit | from | to | meaning |\n|---|---|---|---|---|\n");
    for k in KNOBS {
        out += &format!("| `{}` | {} | {} | {} | {} |\n", k.name, k.unit, k.min, k.max, k.meaning);
    }
    out
}
