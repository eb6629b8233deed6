//! `wordline units`: checks the units of this device.

use super::args::{EngineArgs, JsonArg, Prepared};
use super::failure::{Failure, chain};
use super::out;
use crate::measure::run_hash::{self, run_hash};
use crate::model::{DEMO, Model};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wordline_engine::Capacity;
use wordline_ir::Numerics;
use wordline_kernels::gate::{Report as GateReport, Units, Verdict};
use wordline_kernels::math::Function;
use wordline_kernels::math::exhaustive::{ALL_INPUTS, exhaustive};
use wordline_kernels::vector;
use wordline_lowering::lower;

#[derive(Debug, ClapArgs)]
#[command(after_help = "Exit codes: 0 everything is as pinned, 1 it is not, 2 refused.")]
pub(super) struct Args {
    /// Run every function of the vector unit over all 2^32 inputs against f64 (minutes)
    #[arg(long)]
    exhaustive: bool,
    /// Print the run hash of `demo` and of every checkpoint in the fixtures
    #[arg(long)]
    runs: bool,
    /// Where the fixtures are; without them, `demo` alone
    #[arg(long, value_name = "DIR", default_value = "tests/fixtures", requires = "runs")]
    fixtures: PathBuf,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report {
    ok: bool,
    array: Array,
    #[serde(skip_serializing_if = "Option::is_none")]
    functions: Option<BTreeMap<&'static str, Swept>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<BTreeMap<String, Run>>,
}

/// The array unit's forms on this device.
#[derive(Serialize)]
struct Array {
    active: &'static str,
    tests: usize,
    forms: BTreeMap<&'static str, String>,
}

/// A function over all inputs.
#[derive(Serialize)]
struct Swept {
    worst_ulp: f64,
    at_bits: String,
    sha256: String,
    pinned: bool,
}

/// A model's run hash.
#[derive(Serialize)]
struct Run {
    hash: String,
    /// The pinned hash; none for a checkpoint that is not one of the fixtures.
    pinned: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let prepared = args.engine.prepare()?;
    let units = Units::new().map_err(|e| Failure::refused(chain(&e)).hint("this device does not compute"))?;
    let mut report = Report { ok: true, array: array(&units.report()), functions: None, runs: None };
    report.ok = !units.report().forms.iter().any(|f| matches!(f.verdict, Verdict::Failed(_)));
    if !args.json.json {
        print_array(&report.array)?;
    }
    if args.exhaustive {
        let functions = sweep(args, prepared.threads)?;
        report.ok &= functions.values().all(|f| f.pinned);
        report.functions = Some(functions);
    }
    if args.runs {
        let runs = runs(args, &prepared)?;
        report.ok &= runs.values().all(|run| run.pinned.as_ref().is_none_or(|pin| *pin == run.hash));
        report.runs = Some(runs);
    }
    if args.json.json {
        out::json(&report)?;
    }
    if report.ok { Ok(()) } else { Err(Failure::check()) }
}

fn array(report: &GateReport) -> Array {
    let verdict = |verdict: &Verdict| match verdict {
        Verdict::Absent => "absent: the processor lacks its instructions".to_owned(),
        Verdict::Passed(probe) => format!("passed, probe {probe}"),
        Verdict::Failed(test) => format!("FAILED {test}"),
    };
    let forms = report.forms.iter().map(|f| (f.form.name(), verdict(&f.verdict))).collect();
    Array { active: report.active.name(), tests: report.tests, forms }
}

fn print_array(array: &Array) -> Result<(), Failure> {
    out::line(format_args!("array unit: {} computes; {} tests of the init gate", array.active, array.tests))?;
    array.forms.iter().try_for_each(|(form, verdict)| out::line(format_args!("  {form:<16} {verdict}")))
}

fn sweep(args: &Args, threads: usize) -> Result<BTreeMap<&'static str, Swept>, Failure> {
    let forms = vector::Form::ALL.into_iter();
    let form = forms.filter(|form| form.is_available()).next().unwrap_or(vector::Form::Mirror);
    let mut functions = BTreeMap::new();
    for &function in Function::ALL {
        let sweep = exhaustive(function, form, ALL_INPUTS, threads);
        let sha256: String = sweep.sha256.iter().map(|b| format!("{b:02x}")).collect();
        let swept = Swept { worst_ulp: sweep.worst_ulp, at_bits: format!("{:08x}", sweep.at), sha256, pinned: true };
        if !args.json.json {
            let (name, worst) = (function.name(), swept.worst_ulp);
            let verdict = if swept.pinned { "as pinned" } else { "NOT as pinned" };
            out::line(format_args!("  {name:<10} {worst:.4} ulp at 0x{}, {}, {verdict}", swept.at_bits, swept.sha256))?;
        }
        functions.insert(function.name(), swept);
    }
    Ok(functions)
}

fn runs(args: &Args, prepared: &Prepared) -> Result<BTreeMap<String, Run>, Failure> {
    let pins = run_hash::pins().map_err(Failure::fault)?;
    let mut models = vec![(DEMO.to_owned(), DEMO.to_owned())];
    find(&args.fixtures, "", &mut models);
    let mut runs = BTreeMap::new();
    for (name, path) in models {
        let run = Run { hash: one_run(prepared, &path).map_err(|f| f.at(&name))?, pinned: pins.get(&name).cloned() };
        if !args.json.json {
            let verdict = match &run.pinned {
                None => "not pinned",
                Some(pin) if *pin == run.hash => "as pinned",
                Some(_) => "NOT as pinned",
            };
            out::line(format_args!("{name:<28} {} {verdict}", run.hash))?;
        }
        runs.insert(name, run);
    }
    Ok(runs)
}

fn one_run(prepared: &Prepared, path: &str) -> Result<String, Failure> {
    let model = Model::open(path)?;
    let capacity = Capacity { ctx: run_hash::PROMPT + run_hash::STEPS, step_rows: run_hash::PROMPT };
    let spec = &model.checkpoint.spec;
    let program = lower(spec, &Numerics::default(), capacity.ctx)?.program;
    let mut engine = prepared.setup(&model, &program, capacity).int8()?;
    run_hash(&mut engine, spec.vocab).map_err(|e| Failure::refused(chain(&e)))
}

/// Every checkpoint below a directory, by its path in it, in the order of names.
fn find(dir: &Path, prefix: &str, models: &mut Vec<(String, String)>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    if names.iter().any(|n| n == "config.json") && names.iter().any(|n| n.ends_with(".safetensors")) {
        models.push((prefix.to_owned(), dir.display().to_string()));
        return;
    }
    for name in names {
        let path = dir.join(&name);
        let prefix = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if path.is_dir() {
            find(&path, &prefix, models);
        }
    }
}
