//! `wordline twin`: what a step costs on a described machine, and the tools around that price.

mod calibrate;
mod diff;
mod knobs;
mod machines;
mod print;
pub(super) mod source;
mod trace;
mod validate;

use super::args::JsonArg;
use super::failure::{Failure, refused};
use super::out;
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;
use source::{LoadArgs, MachineArgs, SourceArgs};
use wordline_twin::{Ask, Report, Subject, TwinError};

refused!(TwinError);

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Args {
    #[command(subcommand)]
    tool: Option<Tool>,
    #[command(flatten)]
    price: PriceArgs,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// List machines, or show one as a file
    Machines(machines::Args),
    /// Show every knob of a machine: unit, bounds, meaning
    Knobs(knobs::Args),
    /// Write a step as a trace for Perfetto or chrome://tracing
    Trace(trace::Args),
    /// Compare two machines on one model, or two models or programs on one machine
    Diff(diff::Args),
    /// Fit a machine on bench reports of the engine
    Calibrate(calibrate::Args),
    /// Hold the twin to published measurements
    Validate(validate::Args),
}

#[derive(Debug, ClapArgs)]
struct PriceArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Chance that a drafted token is accepted: each sequence's rows are a draft that the step checks
    #[arg(long, value_name = "P")]
    accept: Option<f64>,
    /// Microseconds that drafting takes a step
    #[arg(long, value_name = "US", default_value_t = 0.0, requires = "accept")]
    draft_us: f64,
    #[command(flatten)]
    json: JsonArg,
}

/// What `--json` reports.
#[derive(Serialize)]
struct Priced<'a> {
    model: &'a str,
    weights: &'a str,
    kv: &'a str,
    ctx: u64,
    commands: usize,
    shapes: usize,
    image_bytes: u64,
    #[serde(flatten)]
    report: &'a Report,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.tool {
        None => price(&args.price),
        Some(Tool::Machines(args)) => machines::run(args),
        Some(Tool::Knobs(args)) => knobs::run(args),
        Some(Tool::Trace(args)) => trace::run(args),
        Some(Tool::Diff(args)) => diff::run(args),
        Some(Tool::Calibrate(args)) => calibrate::run(args),
        Some(Tool::Validate(args)) => validate::run(args),
    }
}

fn price(args: &PriceArgs) -> Result<(), Failure> {
    let source = args.source.open()?;
    let machine = args.machine.machine()?;
    let formats = args.load.formats(&source.program)?;
    let subject = Subject::new(&source.program, &formats)?;
    let load = args.load.load(args.accept.is_some())?;
    let report = Report::of(&subject, &machine, &load, Ask { accept: args.accept, draft_us: args.draft_us })?;
    if args.json.json {
        out::json(&Priced {
            model: &source.name,
            weights: args.load.weights(&source.program),
            kv: &args.load.kv,
            ctx: args.load.ctx(),
            commands: subject.commands().len(),
            shapes: subject.shapes(),
            image_bytes: subject.image_bytes(),
            report: &report,
        })
    } else {
        print::report(&source, &args.load, &subject, &report)
    }
}
