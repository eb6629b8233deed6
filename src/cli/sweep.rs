//! `wordline sweep`: a step priced at every point of a grid.

use super::args::JsonArg;
use super::failure::Failure;
use super::out;
use super::program_file::write;
use super::twin::source::{LoadArgs, SourceArgs, open_machine};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use wordline_twin::sweep::{Axis, Base, Point, csv, sweep};
use wordline_twin::{Machine, html};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// A machine that comes with the twin, or a machine file (docs/twin.md)
    #[arg(long, value_name = "NAME|FILE")]
    machine: String,
    /// An axis: a knob, or ctx, rows, sequences, weights, kv; values by commas, A..B doubles from A to B
    #[arg(long = "set", value_name = "NAME=VALUES")]
    set: Vec<String>,
    #[command(flatten)]
    load: LoadArgs,
    /// What the front is chosen by: tokens_per_s, ms_per_step, joules_per_token, watts, area_mm2, memory_bytes
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values_t = ["tokens_per_s".to_owned(), "joules_per_token".to_owned()])]
    pareto: Vec<String>,
    /// Only the points of the front
    #[arg(long)]
    front: bool,
    /// Write a page with plots here; it needs no other file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the points here; without it, to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    machine: &'a str,
    axes: Vec<&'a str>,
    objectives: &'a [String],
    points: Vec<&'a Point>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let axes = args.set.iter().map(|text| Axis::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let source = args.source.open()?;
    let machine: Machine = open_machine(&args.machine)?;
    let name = machine.name.clone();
    let base = Base {
        machine,
        weights: args.load.weights(&source.program).to_owned(),
        kv: args.load.kv.clone(),
        ctx: args.load.ctx(),
        rows: args.load.rows(),
        sequences: args.load.sequences(),
        also: args.load.also()?,
        state: args.load.state.clone(),
        skew: args.load.skew,
    };
    let points = sweep(&source.program, &base, &axes, &args.pareto)?;
    if let Some(path) = &args.html {
        let page = html(&format!("{} on {name}", source.name), &axes, &points, &args.pareto);
        write(Some(path), page.as_bytes())?;
    }
    let shown: Vec<Point> = points.iter().filter(|p| p.front || !args.front).cloned().collect();
    if args.json.json {
        let report = Report {
            model: &source.name,
            machine: &name,
            axes: axes.iter().map(|a| a.name.as_str()).collect(),
            objectives: &args.pareto,
            points: shown.iter().collect(),
        };
        let text = serde_json::to_string_pretty(&report).map_err(Failure::fault)? + "\n";
        return write(args.output.as_deref(), text.as_bytes());
    }
    write(args.output.as_deref(), csv(&axes, &shown).as_bytes())?;
    if points.iter().all(|p| p.figures.is_none()) {
        out::note("note: every point is refused; the last column says why");
    }
    Ok(())
}
