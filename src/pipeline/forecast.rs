//! `forecast`: tokens a second of 1 to N devices, by the twin's price of every stage and the time of every hop.
//!
//! Each device is a machine of the twin: a described one, or the twin's `host` as fast as the device has measured itself.
//! A lap is the stages' steps one after the other and a hop behind each; with as many sequences as there are stages the
//! slowest stage sets the pace.
//!
//! **Invariant**: no input or output, no clock.

use super::capacity::{MACS, MATRIX_BYTES};
use super::plan::{Demand, Device, Plan, PlanError, Room};
use serde::Serialize;
use std::time::Duration;
use wordline_ir::{Program, WeightFormat};
use wordline_lowering::split::{SplitError, split};
use wordline_twin::{Formats, Knob, Load, Machine, MachineError, Provenance, Subject, TwinError, doubt, price};

/// A split that is faster by less than this is not called faster.
const MARGIN: f64 = 1.05;

/// Why there is no forecast.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    /// The devices do not hold the model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The program cannot be cut so.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The twin does not price a stage.
    #[error("stage {stage}: {source}")]
    Price {
        /// The stage.
        stage: usize,
        /// Why.
        #[source]
        source: TwinError,
    },
}

/// How fast a device is, and how far.
#[derive(Clone, Debug)]
pub struct Speed {
    /// As the twin knows it.
    pub machine: Machine,
    /// Time there and back.
    pub rtt: Duration,
}

/// The twin's `host` at the pace of a device. Its memory is as fast as the products say that the device has measured, each of
/// which streams a matrix, unless a read bandwidth is given; its array is faster than the host's where they ask for it.
///
/// # Errors
/// The twin's own description of a host is none; a fault of the twin.
pub fn machine(capacity: f64, read_gbps: Option<f64>) -> Result<Machine, MachineError> {
    let mut machine = Machine::preset("host")?;
    let at = |knob: Knob| machine.get(knob);
    let products = if capacity.is_finite() && capacity > 0.0 { capacity } else { 1e-6 };
    let macs = at(Knob::LanesN) * at(Knob::LanesK) * at(Knob::MacsPerLane) * at(Knob::Utilisation);
    // A row has two limbs of `array.bits`, as the capacity is measured.
    let array = macs * at(Knob::CoreMhz) * 1e6 / 2.0 / MACS as f64;
    let streamed = products * MATRIX_BYTES / 1e9 / at(Knob::WeightsEfficiency);
    let figures = [
        (Knob::CoreMhz, at(Knob::CoreMhz) * (products / array).max(1.0)),
        (Knob::PeakGbps, read_gbps.unwrap_or(streamed)),
    ];
    for (knob, value) in figures {
        let info = knob.info();
        machine.set(knob, value.clamp(info.min, info.max), Provenance::Measured)?;
    }
    Ok(machine)
}

/// What a ring does, forecast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pace {
    /// Stages.
    pub stages: usize,
    /// Tokens a second of one sequence.
    pub tokens_per_s: f64,
    /// The interval that holds the middle 80 %, by the twin's doubts about each machine; hops are taken as given.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Tokens a second of as many sequences as there are stages.
    pub filled_tokens_per_s: f64,
    /// Milliseconds of a row on each stage.
    pub stage_ms: Vec<f64>,
    /// Milliseconds of all hops of a lap.
    pub hops_ms: f64,
}

/// What so many of the devices would do, the head and the first ones behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Devices.
    pub devices: usize,
    /// None where there is no forecast.
    #[serde(flatten)]
    pub pace: Option<Pace>,
    /// Why not.
    pub why: Option<String>,
}

/// The pace of a ring that is planned over these devices, the head first, at half of the room's positions.
///
/// # Errors
/// See [`ForecastError`].
pub fn pace(
    program: &Program,
    devices: &[Device],
    speeds: &[Speed],
    demand: &Demand,
    room: Room,
) -> Result<Pace, ForecastError> {
    let (head, others) = devices.split_first().ok_or(PlanError::Devices { given: 0 })?;
    let plan = Plan::of(*head, others, demand, room)?;
    let formats = formats(program);
    let speed = |stage: usize| {
        let key = plan.key(stage).unwrap_or_default();
        devices.iter().position(|d| d.key == key).and_then(|at| Some((devices[at], speeds.get(at)?)))
    };
    let (mut stages, mut doubts, mut rtts) = (Vec::new(), Vec::new(), Vec::new());
    for (number, stage) in split(program, &plan.ranges())?.iter().enumerate() {
        let Some((device, speed)) = speed(number) else { continue };
        let priced = || -> Result<(f64, f64), TwinError> {
            let mut machine = speed.machine.clone();
            // What fits is the plan's to say: it has weighed the stage's bytes against what the device lends.
            let info = Knob::CapacityGb.info();
            let capacity =
                (device.memory as f64 / 1e9 + machine.get(Knob::ReservedGb)).max(machine.get(Knob::CapacityGb));
            machine.set(Knob::CapacityGb, capacity.clamp(info.min, info.max), Provenance::Datasheet)?;
            let subject = Subject::new(&stage.program, &formats)?;
            let load = Load::decode(u64::from(room.ctx / 2))?;
            let seconds = price(&subject, &machine, &load)?.seconds(&machine);
            Ok((seconds, doubt::interval(&subject, &machine, &load, seconds)?.factor))
        };
        let (seconds, factor) = priced().map_err(|source| ForecastError::Price { stage: number, source })?;
        stages.push(seconds);
        doubts.push(factor);
        rtts.push(speed.rtt.as_secs_f64());
    }
    // Each hop takes half the time there and back of the farther of its ends; a ring of one has none.
    let count = stages.len();
    let hop = |from: usize| rtts[from].max(rtts[(from + 1) % count]) / 2.0;
    let hops = if count > 1 { (0..count).map(hop).sum() } else { 0.0 };
    let lap =
        |scale: &dyn Fn(f64, f64) -> f64| stages.iter().zip(&doubts).map(|(s, d)| scale(*s, *d)).sum::<f64>() + hops;
    let rate = |seconds: f64| 1.0 / seconds.max(1e-12);
    let middle = lap(&|seconds, _| seconds);
    let slowest = stages.iter().copied().fold(0.0, f64::max).max(middle / count.max(1) as f64);
    Ok(Pace {
        stages: count,
        tokens_per_s: rate(middle),
        low: rate(lap(&|seconds, doubt| seconds * doubt)),
        high: rate(lap(&|seconds, doubt| seconds / doubt)),
        filled_tokens_per_s: rate(slowest),
        stage_ms: stages.iter().map(|seconds| seconds * 1e3).collect(),
        hops_ms: hops * 1e3,
    })
}

/// The pace of the head alone, of the head and one more, and so on.
#[must_use]
pub fn forecast(program: &Program, devices: &[Device], speeds: &[Speed], demand: &Demand, room: Room) -> Vec<Forecast> {
    (1..=devices.len())
        .map(|count| match pace(program, &devices[..count], speeds, demand, room) {
            Ok(pace) => Forecast { devices: count, pace: Some(pace), why: None },
            Err(error) => Forecast { devices: count, pace: None, why: Some(error.to_string()) },
        })
        .collect()
}

/// What to make of it, in a sentence.
#[must_use]
pub fn advice(forecast: &[Forecast]) -> String {
    let rates = forecast.iter().filter_map(|f| Some((f.devices, f.pace.as_ref()?.tokens_per_s)));
    let one = rates.clone().find(|(devices, _)| *devices == 1).map(|(_, rate)| rate);
    let best = rates.filter(|(devices, _)| *devices > 1).max_by(|a, b| a.1.total_cmp(&b.1));
    match (one, best) {
        (Some(one), Some((devices, best))) if best > one * MARGIN => format!(
            "{devices} devices are fastest for one sequence: {best:.1} tokens/s against {one:.1} of one machine alone"
        ),
        (Some(one), Some((devices, best))) if best * MARGIN > one => format!(
            "{devices} devices write one sequence about as fast as one machine alone ({best:.1} and {one:.1} tokens/s): a ring \
             pays for room, or for many sequences at once"
        ),
        (Some(one), _) => format!(
            "one machine alone is faster for one sequence ({one:.1} tokens/s): a ring pays for room, or for many sequences at \
             once"
        ),
        (None, Some((devices, best))) => {
            format!("no machine holds the model alone; {devices} devices write {best:.1} tokens/s")
        }
        (None, None) => "the devices do not hold the model".to_owned(),
    }
}

fn formats(program: &Program) -> Formats {
    let weights = match program.identity.numerics.weights {
        WeightFormat::Int8 => "int8",
        WeightFormat::Code4 => "code4",
        WeightFormat::E2m1 => "e2m1",
    };
    // Each is a format that the twin has by this name; the engine's own stands for one that it has not.
    Formats::new(weights, "int8", "f32").unwrap_or_else(|_| Formats::engine())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::pipeline::demand::demand;
    use crate::pipeline::load::program_of;
    use wordline_ir::Numerics;

    const ROOM: Room = Room { ctx: 64, step_rows: 8, sequences: 1 };

    fn devices(capacities: &[f64], rtt_ms: f64) -> (Vec<Device>, Vec<Speed>) {
        let device = |(i, c): (usize, &f64)| Device { key: [i as u8; 32], capacity: *c, memory: 1 << 34 };
        let speed = |c: &f64| Speed { machine: machine(*c, None).unwrap(), rtt: Duration::from_secs_f64(rtt_ms / 1e3) };
        (capacities.iter().enumerate().map(device).collect(), capacities.iter().map(speed).collect())
    }

    fn demo() -> (Program, Demand) {
        let program = program_of(&Model::open("demo").unwrap().checkpoint.spec, &Numerics::default()).unwrap();
        let demand = demand(&program, ROOM).unwrap();
        (program, demand)
    }

    #[test]
    fn one_machine_is_the_twins_price_of_the_whole_program() {
        let (program, demand) = demo();
        let (devices, speeds) = devices(&[20_000.0], 0.3);
        let pace = pace(&program, &devices, &speeds, &demand, ROOM).unwrap();
        let subject = Subject::new(&program, &Formats::engine()).unwrap();
        let report =
            wordline_twin::Report::of(&subject, &speeds[0].machine, &Load::decode(32).unwrap(), Default::default());
        let report = report.unwrap();
        assert!((pace.tokens_per_s / report.tokens_per_s - 1.0).abs() < 1e-9, "{pace:?}");
        assert!((pace.low / report.low - 1.0).abs() < 1e-9 && (pace.high / report.high - 1.0).abs() < 1e-9, "{pace:?}");
    }

    #[test]
    fn stages_sum_to_the_whole_but_for_hops_and_a_far_ring_is_slower() {
        let (program, demand) = demo();
        let (near, speeds) = devices(&[20_000.0; 3], 0.0);
        let whole = pace(&program, &near[..1], &speeds, &demand, ROOM).unwrap();
        let cut = pace(&program, &near, &speeds, &demand, ROOM).unwrap();
        assert_eq!((cut.stages, cut.hops_ms), (3, 0.0));
        let sum: f64 = cut.stage_ms.iter().sum();
        assert!((sum / whole.stage_ms[0] - 1.0).abs() < 0.01, "{sum} {whole:?}");
        assert!(cut.filled_tokens_per_s > 1.5 * cut.tokens_per_s, "{cut:?}");
        let (far, speeds) = devices(&[20_000.0; 3], 40.0);
        let all = forecast(&program, &far, &speeds, &demand, ROOM);
        assert!(all[2].pace.as_ref().unwrap().hops_ms > 59.0, "{all:?}");
        assert!(advice(&all).starts_with("one machine alone is faster"), "{}", advice(&all));
        // A slow head gains by a fast second device.
        let (mixed, speeds) = devices(&[500.0, 50_000.0], 0.1);
        let all = forecast(&program, &mixed, &speeds, &demand, ROOM);
        assert!(advice(&all).starts_with("2 devices are fastest"), "{}", advice(&all));
    }

    #[test]
    fn what_one_machine_does_not_hold_is_said() {
        let (program, demand) = demo();
        let (mut devices, speeds) = devices(&[20_000.0; 2], 0.1);
        let all: u64 = demand.ends + demand.layers.iter().sum::<u64>();
        devices[0].memory = all - 1;
        let forecasts = forecast(&program, &devices, &speeds, &demand, ROOM);
        assert!(forecasts[0].pace.is_none() && forecasts[0].why.as_ref().unwrap().contains("lend"), "{forecasts:?}");
        assert!(
            advice(&forecasts).starts_with("no machine holds the model alone; 2 devices"),
            "{}",
            advice(&forecasts)
        );
    }

    #[test]
    fn any_capacity_is_a_machine() {
        for capacity in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9, 1e12] {
            machine(capacity, None).unwrap();
        }
        assert_eq!(machine(1000.0, Some(12.5)).unwrap().get(Knob::PeakGbps), 12.5);
    }
}
