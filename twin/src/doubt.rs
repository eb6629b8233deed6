//! How sure a price is, and what would make it smaller: each knob moved in turn.
//!
//! The interval comes from the knobs' provenance. Each knob has a standard deviation of its logarithm, by where its value
//! comes from or as its file says; the step is priced with the knob moved up and down by that much; the effects, taken
//! as independent, add up as squares, with [`MODEL`] for what no knob stands for. The interval holds the middle 80 %.

use crate::machine::{Better, KNOBS, Kind, Knob, Machine, Provenance};
use crate::price::{Price, price_unchecked, stages};
use crate::subject::Subject;
use crate::{Load, TwinError};
use serde::Serialize;

/// Standard deviation of a price's logarithm that no knob accounts for: the form of the model itself. It is what rows
/// that nothing is fitted on leave over (docs/twin-validation.md).
pub const MODEL: f64 = 0.12;
/// Standard deviations on either side that hold the middle 80 % of a normal law.
const MIDDLE: f64 = 1.2816;

/// How a knob's doubt moves the step's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Doubt {
    /// The knob.
    pub knob: &'static str,
    /// Its value.
    pub value: f64,
    /// Where the value comes from.
    pub provenance: Provenance,
    /// Standard deviation of the logarithm of the step's time that it brings.
    pub effect: f64,
}

/// An interval around a price.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Factor on the step's time at its ends: time / factor .. time * factor.
    pub factor: f64,
    /// The knobs that matter, the largest effect first.
    pub doubts: Vec<Doubt>,
}

/// What a knob, moved alone to twice its value or half of it, brings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The knob.
    pub knob: &'static str,
    /// Its value.
    pub from: f64,
    /// The value tried: twice as much of what is better more, half of what is better less, no more than the bounds allow.
    pub to: f64,
    /// More tokens a second, as a share: 0.5 is half as many again.
    pub gain: f64,
}

/// What is asked of a price: its seconds, or those of a part.
pub(crate) type Metric<'a> = &'a dyn Fn(&Price, &Machine) -> f64;

/// A metric of the machine with one knob moved.
fn moved(
    subject: &Subject,
    machine: &mut Machine,
    load: &Load,
    knob: Knob,
    value: f64,
    metric: Metric<'_>,
) -> Result<f64, TwinError> {
    let before = machine.replace(knob, value);
    let seconds = stages(subject, machine)
        .and_then(|ranges| price_unchecked(subject, machine, load, &ranges))
        .map(|price| metric(&price, machine));
    machine.replace(knob, before);
    seconds
}

/// The interval of a step's time.
///
/// # Errors
/// A moved price contradicts itself.
pub fn interval(subject: &Subject, machine: &Machine, load: &Load, seconds: f64) -> Result<Interval, TwinError> {
    interval_of(subject, machine, load, seconds, &|price, machine| price.seconds(machine))
}

/// The interval of a part's time.
pub(crate) fn interval_of(
    subject: &Subject,
    machine: &Machine,
    load: &Load,
    seconds: f64,
    metric: Metric<'_>,
) -> Result<Interval, TwinError> {
    let mut machine = machine.clone();
    let mut variance = MODEL * MODEL;
    let mut doubts = Vec::new();
    for info in KNOBS {
        let setting = *machine.setting(info.knob);
        if setting.spread == 0.0 || setting.value == 0.0 || info.better == Better::Neither || info.kind == Kind::Flag {
            continue;
        }
        let at = |sign: f64| (setting.value * (sign * setting.spread).exp()).clamp(info.min, info.max);
        let up = moved(subject, &mut machine, load, info.knob, at(1.0), metric)?;
        let down = moved(subject, &mut machine, load, info.knob, at(-1.0), metric)?;
        let effect = ((up / seconds).ln().abs() + (down / seconds).ln().abs()) / 2.0;
        variance += effect * effect;
        if effect > 5e-4 {
            let provenance = setting.provenance;
            doubts.push(Doubt { knob: info.name, value: setting.value, provenance, effect });
        }
    }
    doubts.sort_by(|a, b| b.effect.total_cmp(&a.effect));
    Ok(Interval { factor: (MIDDLE * variance.sqrt()).exp(), doubts })
}

/// What each knob would bring, the largest gain first.
///
/// # Errors
/// A moved price contradicts itself.
pub fn gains(subject: &Subject, machine: &Machine, load: &Load, seconds: f64) -> Result<Vec<Gain>, TwinError> {
    let mut machine = machine.clone();
    let mut gains = Vec::new();
    for info in KNOBS {
        let from = machine.get(info.knob);
        let to = match (info.better, info.kind) {
            (Better::Neither, _) => continue,
            (_, Kind::Flag) => 1.0,
            (Better::More, _) => (2.0 * from).min(info.max),
            (Better::Less, Kind::Count) => (from / 2.0).floor().max(info.min),
            (Better::Less, _) => (from / 2.0).max(info.min),
        };
        // What lies on the chip needs room there.
        let room = machine.get(Knob::SramMib);
        let placed = |knob: Knob| if knob == info.knob { to } else { machine.get(knob) };
        let fits = placed(Knob::SramWeightsMib) + placed(Knob::PrefetchMib) <= room;
        if to == from || !fits {
            continue;
        }
        let gain = seconds / moved(subject, &mut machine, load, info.knob, to, &|p, m| p.seconds(m))? - 1.0;
        gains.push(Gain { knob: info.name, from, to, gain });
    }
    gains.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    Ok(gains)
}
