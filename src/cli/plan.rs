//! `wordline plan`: which device would hold which layers, what each would read, and how fast it would be.

use super::args::{JsonArg, ModelArg, NumericsArgs};
use super::failure::{Failure, chain};
use super::out;
use super::twin::source::open_machine;
use crate::model::Model;
use crate::pipeline::demand::{Reads, demand, reads};
use crate::pipeline::forecast::{Forecast, Speed, advice, forecast, machine};
use crate::pipeline::load::program_of;
use crate::pipeline::plan::{Demand, Device, Key, Plan, Room};
use clap::Args as ClapArgs;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::time::Duration;
use wordline_engine::ImageLayout;
use wordline_lowering::split::{Stage, split};

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "FILE is a JSON array, the head first: [{\"name\": \"a\", \"capacity\": 900.0, \"memory\": 8000000000, \
                        \"rtt_ms\": 0.3, \"read_gbps\": 20}, …]. Capacity is what `stage` prints when it starts; rtt_ms, the \
                        time to the device and back, is 0.3 where absent. The forecast takes each device as the twin's \
                        `host` at that pace; read_gbps, the memory's bandwidth as `bench` prints it, or \"machine\", one \
                        of `twin machines` or a machine file, makes it better."
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
    /// Bandwidth of its memory.
    read_gbps: Option<f64>,
    /// A machine of the twin.
    machine: Option<String>,
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

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let model = args.model.open()?;
    let place = args.devices.display().to_string();
    let text = std::fs::read_to_string(&args.devices).map_err(|e| Failure::refused(e).at(&place))?;
    let listed: Vec<Listed> = serde_json::from_str(&text).map_err(|e| Failure::refused(e).at(&place))?;
    let mut devices = Vec::new();
    for (i, listed) in listed.iter().enumerate() {
        figures(listed, i).map_err(|e| Failure::refused(e).at(&place))?;
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
    let speeds = listed.iter().map(speed).collect::<Result<Vec<Speed>, Failure>>()?;
    let forecast = forecast(&program, &devices, &speeds, &needs, room);
    // One device alone has nothing to be compared with.
    let advice = if devices.len() > 1 { advice(&forecast) } else { String::new() };
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

/// Figures that nothing can have are refused.
fn figures(listed: &Listed, index: usize) -> Result<(), String> {
    if let Some(rtt) = listed.rtt_ms.filter(|rtt| *rtt < 0.0) {
        return Err(format!("device {index}: rtt_ms is {rtt}; a time is at least 0"));
    }
    match listed.read_gbps.filter(|read| *read <= 0.0) {
        Some(read) => Err(format!("device {index}: read_gbps is {read}; a bandwidth is above 0")),
        None => Ok(()),
    }
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

/// How fast a listed device is: as the machine that it names, or as the twin's host at its pace.
fn speed(listed: &Listed) -> Result<Speed, Failure> {
    let machine = match &listed.machine {
        Some(name) => open_machine(name)?,
        None => machine(listed.capacity, listed.read_gbps).map_err(Failure::fault)?,
    };
    let rtt = listed.rtt_ms.unwrap_or(0.3).min(1e9);
    Ok(Speed { machine, rtt: Duration::from_secs_f64(rtt / 1e3) })
}

fn show(report: &Report) -> Result<(), Failure> {
    for stage in &report.stages {
        let [start, end] = stage.layers;
        out::line(format_args!(
            "{:<16} layers {start:>3}..{end:<3} reads {} bytes in {} requests, needs {} of {} bytes",
            plain(&stage.device),
            stage.bytes,
            stage.requests,
            stage.needs_bytes,
            stage.memory
        ))?;
    }
    report
        .dropped
        .iter()
        .try_for_each(|device| out::line(format_args!("{:<16} no layers: left out of the ring", plain(device))))?;
    for f in &report.forecast {
        out::line(match &f.pace {
            Some(p) => format!(
                "{} device(s), {} stage(s): {:.1} tokens/s of one sequence ({:.1} to {:.1}), {:.1} with all stages busy",
                f.devices, p.stages, p.tokens_per_s, p.low, p.high, p.filled_tokens_per_s
            ),
            None => format!("{} device(s): {}", f.devices, f.why.as_deref().unwrap_or_default()),
        })?;
    }
    if report.advice.is_empty() { Ok(()) } else { out::line(&report.advice) }
}

/// A name out of a file as a terminal may have it.
fn plain(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_nothing_can_have_are_refused_by_name() {
        let listed = |more: &str| -> Listed {
            serde_json::from_str(&format!(r#"{{"capacity": 1.0, "memory": 1{more}}}"#)).unwrap()
        };
        for (more, says) in [
            (r#", "rtt_ms": -4"#, "device 2: rtt_ms is -4; a time is at least 0"),
            (r#", "read_gbps": -4"#, "device 2: read_gbps is -4; a bandwidth is above 0"),
            (r#", "read_gbps": 0"#, "device 2: read_gbps is 0; a bandwidth is above 0"),
        ] {
            assert_eq!(figures(&listed(more), 2), Err(says.to_owned()));
        }
        assert_eq!(figures(&listed(r#", "rtt_ms": 0, "read_gbps": 0.5"#), 2), Ok(()));
        assert_eq!(figures(&listed(""), 2), Ok(()));
    }

    #[test]
    fn a_name_does_not_reach_the_terminal_raw() {
        assert_eq!(plain("é's\u{1b}[31m\n"), "é's\\u{1b}[31m\\n");
    }
}
