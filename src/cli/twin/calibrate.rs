//! `wordline twin calibrate`: a machine fitted on bench reports of the engine.

use super::source::{MachineArgs, Source, open_machine};
use crate::cli::args::JsonArg;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::cli::program_file::{read_text, write};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use wordline_twin::calibrate::{Bench, Calibration, Checked, Run, benches, calibrate, subject};
use wordline_twin::{Knob, Provenance, Subject};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// What `wordline bench --json` printed, for models of different sizes: reports, or lists of them
    #[arg(value_name = "BENCHFILE", required = true)]
    benches: Vec<PathBuf>,
    /// The machine whose other knobs stay; without it `host`, or `host-gpu` for reports of a graphics device
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// Only decode steps of these batches; without it, all
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    batch: Vec<u64>,
    /// Give a knob another value before the fit
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    set: Vec<String>,
    /// Check the machine on the runs and fit nothing
    #[arg(long)]
    check: bool,
    /// Write the fitted machine here
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Serialize)]
struct Report<'a> {
    runs: &'a [Checked],
    median_error: f64,
    median_left_out: Option<f64>,
    machine: String,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut all: Vec<Bench> = Vec::new();
    for path in &args.benches {
        all.extend(benches(&read_text(path)?).map_err(|e| Failure::refused(e).at(path.display()))?);
    }
    let subjects: Vec<Subject> = all
        .iter()
        .map(|bench| {
            let numerics = bench.numerics.unwrap_or_default();
            let source = match (&bench.shape, &bench.model) {
                (Some(shape), _) => Source::shape(shape, &numerics)?,
                (None, Some(model)) => Source::open(model, &numerics)?,
                (None, None) => return Err(Failure::refused("a bench report names neither a model nor a shape")),
            };
            Ok(subject(&source.program)?)
        })
        .collect::<Result<_, Failure>>()?;
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (bench, subject) in all.iter().zip(&subjects) {
        runs.extend(bench.runs(subject, |batch| args.batch.is_empty() || args.batch.contains(&batch)));
    }
    let knobs = MachineArgs { machine: None, set: args.set.clone(), devices: None, stages: None };
    let own = if all.iter().all(Bench::on_device) { "host-gpu" } else { "host" };
    let base = knobs.apply(open_machine(args.machine.as_deref().unwrap_or(own))?)?;
    let Calibration { machine, runs, median } =
        if args.check { wordline_twin::calibrate::check(&base, &runs)? } else { calibrate(&base, &runs)? };
    if let Some(path) = &args.output {
        write(Some(path), machine.to_toml(false).as_bytes())?;
    }
    if args.json.json {
        let left_out = (!args.check).then_some(median.1);
        return out::json(&Report {
            runs: &runs,
            median_error: median.0,
            median_left_out: left_out,
            machine: machine.to_toml(false),
        });
    }
    out::line("model                batch  rows    ctx   measured ms     fitted      error   left out")?;
    for c in &runs {
        let (fitted, left_out) = c.errors();
        let left_out = if args.check { String::new() } else { format!("{:+8.1} %", 100.0 * left_out) };
        let (name, batch, rows, ctx, ms, by) = (&c.run, c.batch, c.rows, c.ctx, c.measured_ms, c.fitted_ms);
        let load = format!("{name:20} {batch:5} {rows:5} {ctx:6}");
        out::line(format_args!("{load} {ms:13.4} {by:10.4} {:+8.1} % {left_out}", 100.0 * fitted))?;
    }
    out::line(format_args!("median error {:.1} %, left out {:.1} %", 100.0 * median.0, 100.0 * median.1))?;
    for knob in wordline_twin::calibrate::FITTED {
        let setting = machine.setting(*knob);
        if setting.provenance == Provenance::Fitted {
            out::line(format_args!("  {knob} = {} {}", setting.value, Knob::info(*knob).unit))?;
        }
    }
    Ok(())
}
