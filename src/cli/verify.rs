//! `wordline verify`: holds a model to golden values of the reference framework.

use super::args::{EngineArgs, JsonArg, ModelArg, NumericsArgs, show_notices};
use super::failure::{Failure, chain, refused};
use super::out;
use super::program_file::read_bytes;
use crate::checkpoint::FileError;
use crate::measure::golden::{Golden, GoldenError, TextCase};
use crate::measure::verify::{Agreement, Distance, VerifyError, verify};
use crate::model::{Model, ModelFileError};
use clap::Args as ClapArgs;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use wordline_engine::{Capacity, Linear};
use wordline_ir::digest::hex;
use wordline_lowering::lower;

refused!(VerifyError);

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit codes: 0 the reference engine agrees in logits, greedy ids and token ids, 1 it does not, \
                        2 refused."
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Golden values [default: golden.json in MODEL]
    #[arg(long, value_name = "FILE")]
    golden: Option<PathBuf>,
    /// Leave the int8 engine out
    #[arg(long)]
    reference_only: bool,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    numerics: NumericsArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    reference: Agreement,
    int8: Option<Distance>,
    tokenizer: Option<Texts>,
}

/// The tokenizer against golden ids.
#[derive(Serialize)]
struct Texts {
    cases: usize,
    ok: bool,
    /// The first text whose ids or whose ids' text differ.
    first_difference: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let prepared = args.engine.prepare()?;
    let model = args.model.open()?;
    let golden = golden(&model, args.golden.as_deref())?;
    check_inputs(&model, &golden)?;
    let tokenizer = texts(&model, &golden.texts)?;
    let longest = golden.cases.iter().map(|case| case.ids().len()).max().unwrap_or(1);
    let capacity = Capacity { ctx: longest.max(1), step_rows: Capacity::default().step_rows.min(longest.max(1)) };
    let program = lower(&model.checkpoint.spec, &args.numerics.numerics(), capacity.ctx)?.program;
    let setup = prepared.setup(&model, &program, capacity);
    let mut reference = setup.reference(Linear::Exact)?;
    let mut int8 = if args.reference_only { None } else { Some(setup.int8()?) };
    let found = verify(&golden, &mut reference, int8.as_mut())?;
    int8.iter_mut().for_each(show_notices);
    let report = Report { model: &args.model.model, reference: found.reference, int8: found.int8, tokenizer };
    if args.json.json {
        out::json(&report)?
    } else {
        print(&report)?
    }
    let texts = report.tokenizer.as_ref().is_none_or(|t| t.ok);
    if report.reference.ok && report.reference.greedy_equal && texts { Ok(()) } else { Err(Failure::check()) }
}

/// The golden file that the command line names, or the model's own.
fn golden(model: &Model, path: Option<&Path>) -> Result<Golden, Failure> {
    let refuse = |label: &str, e: GoldenError| Failure::refused(e).at(label);
    match path {
        Some(path) => {
            let beside = path.with_extension("safetensors");
            let logits = || std::fs::read(&beside).map_err(|e| format!("{}: {e}", beside.display()));
            Golden::parse(&read_bytes(path)?, logits).map_err(|e| refuse(&path.display().to_string(), e))
        }
        None => {
            let label = model.label(GOLDEN);
            let Some(json) = model.file(GOLDEN)? else {
                return Err(
                    Failure::refused(format!("{label}: not there")).hint("name golden values with --golden FILE")
                );
            };
            let logits = || match model.file(LOGITS) {
                Ok(Some(bytes)) => Ok(bytes),
                Ok(None) => Err(format!("{}: not there", model.label(LOGITS))),
                Err(error) => Err(chain(&error)),
            };
            Golden::parse(&json, logits).map_err(|e| refuse(&label, e))
        }
    }
}

const GOLDEN: &str = "golden.json";
const LOGITS: &str = "golden.safetensors";

/// Golden values of other files say nothing about this model.
fn check_inputs(model: &Model, golden: &Golden) -> Result<(), Failure> {
    for (name, expected) in &golden.sha256 {
        let refuse = |e: FileError| Failure::refused(chain(&e));
        if !model.checkpoint.folder.has(name).map_err(refuse)? {
            continue;
        }
        let file = model.checkpoint.folder.map(name).map_err(refuse)?;
        let found = hex(&Sha256::digest(file.slice(0..file.len()).map_err(refuse)?));
        if found != *expected {
            let what =
                format!("{}: not the file that the golden values were made from (SHA-256 {found})", model.label(name));
            return Err(Failure::refused(what).hint("verify the checkpoint with its own golden values"));
        }
    }
    Ok(())
}

/// Hold the tokenizer to the golden file's texts; none when it has none, or the model no tokenizer.
fn texts(model: &Model, cases: &[TextCase]) -> Result<Option<Texts>, Failure> {
    let tokenizer = match model.tokenizer() {
        _ if cases.is_empty() => return Ok(None),
        Err(ModelFileError::Absent { .. }) => return Ok(None),
        other => other?,
    };
    let differs = |case: &&TextCase| {
        tokenizer.encode(&case.text, case.special).ok().as_ref() != Some(&case.ids)
            || case.decoded.as_ref().is_some_and(|text| *text != tokenizer.decode(&case.ids, true))
    };
    let first_difference = cases.iter().find(differs).map(|case| case.text.clone());
    Ok(Some(Texts { cases: cases.len(), ok: first_difference.is_none(), first_difference }))
}

fn print(report: &Report<'_>) -> Result<(), Failure> {
    let Report { model, reference, int8, tokenizer } = report;
    let verdict = |ok: bool| if ok { "ok" } else { "FAILED" };
    let place = reference.worst.map_or_else(String::new, |w| {
        let id = w.id.map_or_else(|| "mean of all ids".to_owned(), |id| format!("id {id}"));
        format!(", at prompt {}, position {}, {id}", w.case, w.position)
    });
    out::line(format_args!(
        "{model}: reference {}: max |difference| {:.2e} of {:.1e} allowed, {} logits at {} positions{place}",
        verdict(reference.ok),
        reference.max_abs,
        reference.atol,
        reference.compared,
        reference.positions
    ))?;
    match reference.greedy_difference {
        None => out::line(format_args!("{model}: greedy continuation ok"))?,
        Some(d) => {
            let found = d.found.map_or_else(|| "none".to_owned(), |id| id.to_string());
            let place = format!("prompt {}, token {}", d.case, d.index);
            out::line(format_args!(
                "{model}: greedy continuation FAILED: {place}: golden {}, found {found}",
                d.golden
            ))?;
        }
    }
    if let Some(texts) = tokenizer {
        let what = texts.first_difference.as_ref().map(|text| format!(", first at {text:?}")).unwrap_or_default();
        out::line(format_args!("{model}: tokenizer {}: {} cases{what}", verdict(texts.ok), texts.cases))?;
    }
    if let Some(int8) = int8 {
        let (kl, top1, n) = (int8.kl, 100.0 * int8.top1, int8.positions);
        out::line(format_args!(
            "{model}: int8 against reference: KL {kl:.3e} nats, top-1 {top1:.2} % of {n} positions"
        ))?;
    }
    Ok(())
}
