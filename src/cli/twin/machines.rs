//! `wordline twin machines`: the machines that come with the twin.

use super::source::open_machine;
use crate::cli::args::JsonArg;
use crate::cli::failure::Failure;
use crate::cli::out;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::collections::BTreeMap;
use wordline_twin::machine::{class_names, preset_names};
use wordline_twin::{KNOBS, Knob, Machine, Provenance, Traffic};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Show this one as a file, every knob with where its value comes from
    #[arg(value_name = "NAME|FILE")]
    name: Option<String>,
    #[command(flatten)]
    json: JsonArg,
}

/// A machine in the list.
#[derive(Serialize)]
struct Listed {
    name: String,
    class: String,
    memory: String,
    peak_gbps: f64,
    capacity_gb: f64,
    about: String,
}

/// What `--json` reports without a name.
#[derive(Serialize)]
struct List {
    machines: Vec<Listed>,
    classes: Vec<&'static str>,
}

/// A knob of a shown machine.
#[derive(Serialize)]
struct Shown {
    value: f64,
    unit: &'static str,
    provenance: Provenance,
    spread: f64,
    own: bool,
}

/// What `--json` reports of one machine.
#[derive(Serialize)]
struct One {
    name: String,
    class: String,
    memory: String,
    about: String,
    knobs: BTreeMap<&'static str, Shown>,
    curves: BTreeMap<&'static str, Vec<(f64, f64)>>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(name) = &args.name {
        let machine = open_machine(name)?;
        return if args.json.json { out::json(&one(&machine)) } else { out::text(&machine.to_toml(true)) };
    }
    if args.json.json {
        return out::json(&list()?);
    }
    for name in preset_names() {
        let machine = Machine::preset(name).map_err(Failure::fault)?;
        let (peak, size) = (machine.get(Knob::PeakGbps), machine.get(Knob::CapacityGb));
        out::line(format_args!("{name:14} {:5} {peak:7} GB/s {size:6.1} GB  {}", machine.class, machine.memory))?;
    }
    out::line(format_args!("classes: {}", class_names().join(", ")))
}

fn list() -> Result<List, Failure> {
    let listed = |name: &str| -> Result<Listed, Failure> {
        let m = Machine::preset(name).map_err(Failure::fault)?;
        let (peak_gbps, capacity_gb) = (m.get(Knob::PeakGbps), m.get(Knob::CapacityGb));
        Ok(Listed { name: m.name, class: m.class, memory: m.memory, peak_gbps, capacity_gb, about: m.about })
    };
    let machines = preset_names().into_iter().map(listed).collect::<Result<_, Failure>>()?;
    Ok(List { machines, classes: class_names() })
}

fn one(machine: &Machine) -> One {
    let shown = |k: &wordline_twin::KnobInfo| {
        let s = machine.setting(k.knob);
        (k.name, Shown { value: s.value, unit: k.unit, provenance: s.provenance, spread: s.spread, own: s.own })
    };
    let curve = |t: Traffic| machine.curve(t).map(|curve| (t.name(), curve.points().to_vec()));
    One {
        name: machine.name.clone(),
        class: machine.class.clone(),
        memory: machine.memory.clone(),
        about: machine.about.clone(),
        knobs: KNOBS.iter().map(shown).collect(),
        curves: Traffic::ALL.into_iter().filter_map(curve).collect(),
    }
}
