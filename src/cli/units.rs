//! `wordline units`: checks the units of this device.

use super::args::{EngineArgs, JsonArg, Prepared, show_notices};
use super::failure::{Failure, chain};
use super::out;
use crate::measure::array_rate::Gemm;
use crate::measure::backends::{self, Backend, Standing};
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
use wordline_kernels::math::exhaustive::{ALL_INPUTS, exhaustive, sample};
use wordline_kernels::math::pins::{Pin, SAMPLE_STRIDE};
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
    /// Everything that can run the units, and how fast it multiplies.
    backends: Vec<Backend>,
    /// The product that the speeds are of.
    gemm: Gemm,
    array: Forms,
    vector: Forms,
    /// Functions of the vector unit whose outputs over a sample of inputs are not as pinned.
    unpinned: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    functions: Option<BTreeMap<&'static str, Swept>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<BTreeMap<String, Run>>,
}

/// A unit's forms on this device.
#[derive(Serialize)]
struct Forms {
    active: &'static str,
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
    let prepared = args.engine.prepare()?.on_one();
    let units = Units::new().map_err(|e| Failure::refused(chain(&e)).hint("this device does not compute"))?;
    let vector = vector::VectorUnit::new();
    let unpinned = Function::ALL.iter().filter(|f| !as_pinned(**f, vector.form())).map(|f| f.name()).collect();
    let (array, vector) = (array_forms(&units.report()), vector_forms(&vector));
    let mut backends = devices(&units);
    backends.extend(backends::processor(&units, prepared.threads));
    backends::activate(&mut backends, prepared.backend.name());
    let gemm = backends::GEMM;
    let mut report = Report { ok: true, backends, gemm, array, vector, unpinned, functions: None, runs: None };
    let failed = |forms: &Forms| forms.forms.values().any(|verdict| verdict.starts_with(FAILED));
    let passed = report.backends.iter().all(|line| line.standing != Standing::Failed);
    report.ok = passed && !failed(&report.array) && !failed(&report.vector) && report.unpinned.is_empty();
    if !args.json.json {
        print(&report)?;
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

/// The methods of this machine's graphics device.
#[cfg(feature = "gpu")]
fn devices(units: &Units) -> Vec<Backend> {
    backends::device(&crate::backends::device(), units)
}

#[cfg(not(feature = "gpu"))]
fn devices(_: &Units) -> Vec<Backend> {
    Vec::new()
}

/// How the verdict on a form that was found wrong begins.
const FAILED: &str = "FAILED";
const ABSENT: &str = "absent: the processor lacks its instructions";

fn array_forms(report: &GateReport) -> Forms {
    let verdict = |verdict: &Verdict| match verdict {
        Verdict::Absent => ABSENT.to_owned(),
        Verdict::Passed(probe) => format!("passed {} tests, probe {probe}", report.tests),
        Verdict::Failed(test) => format!("{FAILED} {test}"),
    };
    let forms = report.forms.iter().map(|f| (f.form.name(), verdict(&f.verdict))).collect();
    Forms { active: report.active.name(), forms }
}

fn vector_forms(unit: &vector::VectorUnit) -> Forms {
    let verdict = |verdict: &vector::Verdict| match verdict {
        vector::Verdict::Absent => ABSENT.to_owned(),
        vector::Verdict::Passed => "passed".to_owned(),
        vector::Verdict::Failed(test) => format!("{FAILED} {test}"),
    };
    let forms = unit.reports().iter().map(|f| (f.form.name(), verdict(&f.verdict))).collect();
    Forms { active: unit.form().name(), forms }
}

/// A function's outputs over a sample of inputs are as pinned.
fn as_pinned(function: Function, form: vector::Form) -> bool {
    Pin::of(function).is_some_and(|pin| sample(function, form, SAMPLE_STRIDE).hex() == pin.sample_sha256)
}

fn print(report: &Report) -> Result<(), Failure> {
    let computes = report.backends.iter().find(|line| line.active);
    out::line(format_args!("array unit: {} computes", computes.map_or(report.array.active, |line| line.form)))?;
    let Gemm { rows, cols, tokens } = report.gemm;
    out::line(format_args!(
        "  backend  form             GEMMs/s  gates and probe; a GEMM is {rows} x {cols} by {tokens}"
    ))?;
    for line in &report.backends {
        let rate = line.gemms_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
        let verdict = match (line.standing, &line.failed_gate, &line.probe, line.gates_passed) {
            (Standing::Passed, _, Some(probe), Some(tests)) => format!("passed {tests} tests, probe {probe}"),
            (Standing::Failed, Some(test), _, _) => format!("{FAILED} {test}"),
            _ => format!("absent: {}", line.absent.as_deref().unwrap_or("it is not on this machine")),
        };
        let adapter = line.adapter.as_deref().map_or_else(String::new, |adapter| {
            let driver = line.driver.as_deref().map_or_else(String::new, |driver| format!(", {driver}"));
            format!(" ({adapter}{driver})")
        });
        let Backend { backend, form, .. } = line;
        out::line(format_args!("  {backend:<8} {form:<16} {rate:>7}  {verdict}{adapter}"))?;
    }
    out::line(format_args!("vector unit: {} computes", report.vector.active))?;
    for (form, verdict) in &report.vector.forms {
        out::line(format_args!("  {form:<16} {verdict}"))?;
    }
    match report.unpinned.as_slice() {
        [] => out::line(format_args!("functions: all {} as pinned over a sample of inputs", Function::ALL.len())),
        names => out::line(format_args!("functions: {FAILED}, not as pinned: {}", names.join(", "))),
    }
}

fn sweep(args: &Args, threads: usize) -> Result<BTreeMap<&'static str, Swept>, Failure> {
    let form = vector::VectorUnit::new().form();
    let mut functions = BTreeMap::new();
    for &function in Function::ALL {
        let sweep = exhaustive(function, form, ALL_INPUTS, threads);
        let pinned = Pin::of(function).is_some_and(|pin| pin.agrees(&sweep));
        let at_bits = format!("{:08x}", sweep.at);
        let swept = Swept { worst_ulp: sweep.worst_ulp, at_bits, sha256: sweep.hex(), pinned };
        if !args.json.json {
            let (name, worst) = (function.name(), swept.worst_ulp);
            let verdict = if pinned { "as pinned" } else { "NOT as pinned" };
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
    let hash = run_hash(&mut engine, spec.vocab).map_err(|e| Failure::refused(chain(&e)));
    show_notices(&mut engine);
    hash
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
