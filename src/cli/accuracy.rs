//! `wordline accuracy`: perplexity on a text, and the int8 engine's distance from the reference.

use super::args::{EngineArgs, JsonArg, ModelArg, NumericsArgs, show_notices};
use super::failure::{Failure, refused};
use super::out;
use super::program_file::read_text;
use crate::measure::accuracy::{self as measure, Accuracy, AccuracyError, Engines};
use crate::model::Model;
use clap::{Args as ClapArgs, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use wordline_engine::{Capacity, Linear};
use wordline_ir::Numerics;
use wordline_lowering::lower;

refused!(AccuracyError);

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Text to score [default: val.txt in MODEL]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Token ids in a window; each window runs alone from an empty state
    #[arg(long, value_name = "N", default_value_t = 512)]
    window: usize,
    /// Also measure a baseline
    #[arg(long, value_enum)]
    baseline: Option<Baseline>,
    /// Score the first N token ids only
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    numerics: NumericsArgs,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Baseline {
    /// The reference with linear layers and head on int8 x int8, blocks of 32 with f32 scales on both sides
    Q8,
    /// The reference with the weights of linear layers and head in super-blocks of 256: eight 4-bit blocks of 32 with
    /// 6-bit scales and minima, searched; activations are exact
    #[value(name = "q4_k")]
    #[serde(rename = "q4_k")]
    Q4K,
}

impl Baseline {
    fn linear(self) -> Linear {
        match self {
            Baseline::Q8 => Linear::Q8,
            Baseline::Q4K => Linear::Q4K,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Baseline::Q8 => "q8",
            Baseline::Q4K => "q4_k",
        }
    }
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    numerics: Numerics,
    #[serde(flatten)]
    accuracy: Accuracy,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let prepared = args.engine.prepare()?;
    let model = args.model.open()?;
    let mut ids = model.tokenizer()?.encode(&text(&model, args)?, false)?;
    ids.truncate(args.limit.unwrap_or(usize::MAX));
    let spec = &model.checkpoint.spec;
    if args.window > spec.max_pos {
        let what = format!("a window of {} ids, the model takes {} positions", args.window, spec.max_pos);
        return Err(Failure::refused(what).hint("choose a smaller --window"));
    }
    let ctx = args.window.min(ids.len()).max(1);
    let capacity = Capacity { ctx, step_rows: Capacity::default().step_rows.min(ctx) };
    let numerics = args.numerics.numerics();
    let program = lower(spec, &numerics, ctx)?.program;
    let setup = prepared.setup(&model, &program, capacity);
    let (mut int8, mut reference) = (setup.int8()?, setup.reference(Linear::Exact)?);
    let mut baseline = match args.baseline {
        None => None,
        Some(baseline) => Some(setup.reference(baseline.linear())?),
    };
    let bar = ProgressBar::new(ids.len() as u64);
    bar.set_style(style());
    let engines = Engines { reference: &mut reference, int8: &mut int8, baseline: baseline.as_mut() };
    let accuracy = measure::accuracy(engines, &ids, args.window, |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    show_notices(&mut int8);
    if args.json.json {
        return out::json(&Report { model: &args.model.model, numerics, accuracy });
    }
    print(&accuracy, numerics.weights.name(), args.baseline.map_or("", Baseline::name))
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {pos}/{len} ids, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn text(model: &Model, args: &Args) -> Result<String, Failure> {
    const OWN: &str = "val.txt";
    if let Some(file) = &args.text {
        return read_text(file);
    }
    let label = model.label(OWN);
    let Some(bytes) = model.file(OWN)? else {
        return Err(Failure::refused(format!("{label}: not there")).hint("name a text with --text FILE"));
    };
    String::from_utf8(bytes).map_err(|e| Failure::refused(e).at(label))
}

fn print(a: &Accuracy, weights: &str, baseline: &str) -> Result<(), Failure> {
    out::line(format_args!("{} ids in windows of {}, {} scored", a.tokens, a.window, a.scored))?;
    out::line(format_args!("             perplexity  against the reference: KL in nats, top-1"))?;
    out::line(format_args!("  reference  {:10.4}", a.reference.ppl))?;
    let beside = [(weights, Some(a.int8)), (baseline, a.baseline)];
    for (name, against) in beside.iter().filter_map(|(name, a)| a.map(|a| (name, a))) {
        let top1 = 100.0 * against.top1;
        out::line(format_args!("  {name:<9}  {:10.4}  {:.3e}  {top1:.2} %", against.ppl, against.kl))?;
    }
    Ok(())
}
