//! `wordline plan`: which device would hold which layers, what each would read, and how fast it would be.

use super::args::{JsonArg, ModelArg, NumericsArgs};
use super::failure::{Failure, chain};
use super::out;
use crate::model::Model;
use crate::pipeline::capacity::MACS;
use crate::pipeline::demand::{Reads, demand, reads};
use crate::pipeline::load::program_of;
use crate::pipeline::plan::{Demand, Device, Key, Plan, Room};
use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use wordline_engine::ImageLayout;
use wordline_ir::Program;
use wordline_lowering::split::{Stage, split};

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "FILE is a JSON array, the head first: [{\"name\": \"a\", \"capacity\": 900.0, \"memory\": 8000000000, \
                        \"rtt_ms\": 0.3}, …]. Capacity is what `stage` prints when it starts; rtt_ms, the time to the \
                        device and back, is 0.3 where absent."
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Devices: capacity, memory, and time there and back
    #[arg(long, value_name = "FILE")]
    devices: PathBuf,
    /// Positions that a sequence may hold
    #[arg(long, value_name = "N", default_value_t = 4096)]
    ctx: u32,
    /// Sequences at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: u32,
    #[command(flatten)]
    numerics: NumericsArgs,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    name: Option<String>,
    /// 64 hexadecimal digits; devices stand by key behind the head. One is made of the name where it is absent.
    key: Option<String>,
    capacity: f64,
    memory: u64,
    rtt_ms: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    model: String,
    layers: u32,
    stages: Vec<Planned>,
    dropped: Vec<String>,
    forecast: Vec<Forecast>,
    advice: String,
}

#[derive(Serialize)]
struct Planned {
    device: String,
    layers: [u32; 2],
    bytes: u64,
    requests: u32,
    image_bytes: u64,
    needs_bytes: u64,
    memory: u64,
}

/// What so many of the devices would do, the head and the first ones behind it.
#[derive(Serialize)]
struct Forecast {
    devices: usize,
    stages: usize,
    /// Tokens a second of one sequence; none where the memory does not suffice.
    tokens_per_s: Option<f64>,
    /// Tokens a second of as many sequences as there are stages.
    filled_tokens_per_s: Option<f64>,
    why: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let model = args.model.open()?;
    let place = args.devices.display().to_string();
    let text = std::fs::read_to_string(&args.devices).map_err(|e| Failure::refused(e).at(&place))?;
    let listed: Vec<Listed> = serde_json::from_str(&text).map_err(|e| Failure::refused(e).at(&place))?;
    let mut devices = Vec::new();
    for (i, listed) in listed.iter().enumerate() {
        let (capacity, memory) = (listed.capacity, listed.memory);
        devices.push(Device { key: key(listed, i).map_err(|e| Failure::refused(e).at(&place))?, capacity, memory });
    }
    let (head, others) = devices.split_first().ok_or_else(|| Failure::refused("no device").at(&place))?;
    let spec = &model.checkpoint.spec;
    let ctx = args.ctx.clamp(1, u32::try_from(spec.max_pos).unwrap_or(u32::MAX).max(1));
    let room = Room { ctx, step_rows: 32.min(ctx), sequences: args.sequences };
    let program = program_of(spec, &args.numerics.numerics())?;
    let needs = demand(&program, room).map_err(|e| Failure::refused(chain(&e)))?;
    let plan = Plan::of(*head, others, &needs, room).map_err(|e| Failure::refused(e).at(&args.model.model))?;
    let name = |key: &Key| {
        let at = devices.iter().position(|d| d.key == *key).unwrap_or_default();
        listed[at].name.clone().unwrap_or_else(|| format!("device {at}"))
    };
    let stages = split(&program, &plan.ranges()).map_err(|e| Failure::fault(chain(&e)))?;
    let planned = stages.iter().enumerate().map(|(i, stage)| planned(&model, &plan, &needs, stage, i, &name));
    let planned = planned.collect::<Result<Vec<_>, Failure>>()?;
    let dropped =
        plan.devices.iter().filter(|d| plan.stage_of(&d.key).is_none()).map(|device| name(&device.key)).collect();
    let forecast: Vec<Forecast> =
        (1..=devices.len()).map(|count| forecast(&program, &devices[..count], &listed, &needs, room)).collect();
    let advice = advice(&forecast);
    let report =
        Report { model: args.model.model.clone(), layers: plan.layers, stages: planned, dropped, forecast, advice };
    if args.json.json { out::json(&report) } else { show(&report) }
}

fn key(listed: &Listed, index: usize) -> Result<Key, String> {
    let Some(text) = &listed.key else {
        let name = listed.name.clone().unwrap_or_else(|| format!("device {index}"));
        return Ok(Sha256::digest(name.as_bytes()).into());
    };
    let digits = (text.len() == 64 && text.is_ascii()).then(|| text.as_bytes().chunks(2));
    let bytes: Option<Vec<u8>> =
        digits.and_then(|d| d.map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok()).collect());
    bytes.and_then(|b| Key::try_from(b).ok()).ok_or_else(|| format!("device {index}: a key has 64 hexadecimal digits"))
}

fn planned(
    model: &Model,
    plan: &Plan,
    needs: &Demand,
    stage: &Stage,
    index: usize,
    name: &dyn Fn(&Key) -> String,
) -> Result<Planned, Failure> {
    let device = plan.devices[plan.stages[index].device];
    let layers = &plan.stages[index].layers;
    let own: u64 = needs.layers[stage.layers.clone()].iter().sum();
    let Reads { bytes, requests } = reads(&stage.program, &stage.tensors, &model.checkpoint.weights);
    let layout = ImageLayout::of_used(&stage.program).map_err(|e| Failure::refused(chain(&e)))?;
    Ok(Planned {
        device: name(&device.key),
        layers: [layers.start, layers.end],
        bytes,
        requests,
        image_bytes: layout.bytes() as u64,
        needs_bytes: own + if index == 0 { needs.ends } else { 0 },
        memory: device.memory,
    })
}

/// The time of a row on each stage is its multiply-accumulates over the device's measured ones; a hop takes half the time
/// there and back.
fn forecast(program: &Program, devices: &[Device], listed: &[Listed], needs: &Demand, room: Room) -> Forecast {
    let count = devices.len();
    let none = |why: String| Forecast {
        devices: count,
        stages: 0,
        tokens_per_s: None,
        filled_tokens_per_s: None,
        why: Some(why),
    };
    let plan = match Plan::of(devices[0], &devices[1..], needs, room) {
        Ok(plan) => plan,
        Err(error) => return none(error.to_string()),
    };
    let Ok(stages) = split(program, &plan.ranges()) else { return none("the program cannot be cut so".into()) };
    let at = |stage: usize| plan.devices[plan.stages[stage].device];
    let compute = |(i, stage): (usize, &Stage)| {
        let matrices = stage.program.commands.iter().filter(|c| c.info().mnemonic.ends_with("matvec"));
        let ids = matrices.flat_map(|c| c.tensors().map(|(_, id)| id));
        let macs: u64 = ids.filter_map(|id| program.tensor(id)).map(|t| (t.rows * t.cols) as u64).sum();
        macs as f64 / MACS as f64 / at(i).capacity.max(1e-9)
    };
    let times: Vec<f64> = stages.iter().enumerate().map(compute).collect();
    let rtt = |stage: usize| {
        let index = devices.iter().position(|d| d.key == at(stage).key).unwrap_or_default();
        listed[index].rtt_ms.unwrap_or(0.3) / 1e3
    };
    // Each hop crosses half the way of both its ends; a ring of one has none.
    let hops: f64 = if stages.len() > 1 {
        (0..stages.len()).map(|i| rtt(i).max(rtt((i + 1) % stages.len())) / 2.0).sum()
    } else {
        0.0
    };
    let lap = times.iter().sum::<f64>() + hops;
    let slowest = times.iter().copied().fold(0.0, f64::max).max(lap / stages.len() as f64);
    let (one, filled) = (1.0 / lap.max(1e-12), 1.0 / slowest.max(1e-12));
    Forecast {
        devices: count,
        stages: stages.len(),
        tokens_per_s: Some(one),
        filled_tokens_per_s: Some(filled),
        why: None,
    }
}

fn advice(forecast: &[Forecast]) -> String {
    let one = forecast.first().and_then(|f| f.tokens_per_s);
    let best = forecast.iter().filter_map(|f| Some((f.devices, f.tokens_per_s?))).max_by(|a, b| a.1.total_cmp(&b.1));
    match (one, best) {
        (Some(one), Some((devices, best))) if devices > 1 && best > one => {
            format!(
                "{devices} devices are fastest for one sequence: {best:.1} tokens/s against {one:.1} of one machine alone"
            )
        }
        (Some(one), _) => format!(
            "one machine alone is faster for one sequence ({one:.1} tokens/s): a ring pays for room, or for many sequences at once"
        ),
        (None, Some((devices, best))) => {
            format!("no machine holds the model alone; {devices} devices write {best:.1} tokens/s")
        }
        (None, None) => "the devices do not hold the model".to_owned(),
    }
}

fn show(report: &Report) -> Result<(), Failure> {
    for stage in &report.stages {
        let [start, end] = stage.layers;
        out::line(format_args!(
            "{:<16} layers {start:>3}..{end:<3} reads {} bytes in {} requests, needs {} of {} bytes",
            stage.device, stage.bytes, stage.requests, stage.needs_bytes, stage.memory
        ))?;
    }
    report
        .dropped
        .iter()
        .try_for_each(|device| out::line(format_args!("{device:<16} no layers: left out of the ring")))?;
    for f in &report.forecast {
        let figures = f.tokens_per_s.zip(f.filled_tokens_per_s);
        out::line(match (figures, &f.why) {
            (Some((one, filled)), _) => format!(
                "{} device(s), {} stage(s): {one:.1} tokens/s of one sequence, {filled:.1} with all stages busy",
                f.devices, f.stages
            ),
            (None, why) => format!("{} device(s): {}", f.devices, why.as_deref().unwrap_or_default()),
        })?;
    }
    out::line(&report.advice)
}
