//! `wordline bench`: decode speed against the bandwidth of plain reads, both measured in this run.

use super::args::{EngineArgs, JsonArg, ModelArg, NumericsArgs, show_notices};
use super::failure::{Failure, chain};
use super::out;
use crate::generate::sampler::argmax;
use crate::measure::bandwidth::plain_read;
use crate::measure::run_hash;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::time::Instant;
use wordline_engine::{Capacity, EngineModel, Row, StepError};
use wordline_lowering::lower;

/// Plain reads cover at least this many bytes, more than processors cache.
const FLOOR: usize = 256 << 20;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Steps of one token to time, in each of three rounds
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    numerics: NumericsArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// What `--json` reports: the best round of each.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    threads: usize,
    tokens_per_s: f64,
    bytes_per_step: u64,
    stream_bytes_per_s: f64,
    read_bytes_per_s: f64,
    share: f64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let prepared = args.engine.prepare()?;
    let model = args.model.open()?;
    let spec = &model.checkpoint.spec;
    let tokens = args.tokens.max(1);
    let ctx = (run_hash::PROMPT + ROUNDS * tokens).min(spec.max_pos);
    if ctx < run_hash::PROMPT + ROUNDS {
        return Err(Failure::refused(format!("the model takes {} positions, too few to time", spec.max_pos)));
    }
    let tokens = (ctx - run_hash::PROMPT) / ROUNDS;
    let capacity = Capacity { ctx, step_rows: run_hash::PROMPT };
    let program = lower(spec, &args.numerics.numerics(), ctx)?.program;
    let threads = prepared.threads;
    let mut engine = prepared.setup(&model, &program, capacity).int8()?;
    let refuse = |e: StepError| Failure::refused(chain(&e));
    let (mut seconds, mut read, mut bytes_per_step) = (f64::INFINITY, 0.0_f64, 0);
    let seq = engine.open();
    let prompt = run_hash::prompt(spec.vocab);
    let mut next = engine.prefill(seq, &prompt).map_err(refuse)?.row(0).and_then(argmax).unwrap_or(0);
    // Rounds of both take turns, so that a busy moment of the machine does not meet one of them alone.
    for _ in 0..ROUNDS {
        let (before, start) = (engine.counters().weight_bytes, Instant::now());
        next = steps(&mut engine, seq, next, tokens).map_err(refuse)?;
        seconds = seconds.min(start.elapsed().as_secs_f64() / tokens as f64);
        bytes_per_step = (engine.counters().weight_bytes - before) / tokens as u64;
        let bytes = usize::try_from(bytes_per_step).unwrap_or(FLOOR);
        read = read.max(plain_read(bytes, FLOOR, threads, 3));
    }
    show_notices(&mut engine);
    let stream = bytes_per_step as f64 / seconds;
    let report = Report {
        model: &args.model.model,
        threads,
        tokens_per_s: 1.0 / seconds,
        bytes_per_step,
        stream_bytes_per_s: stream,
        read_bytes_per_s: read,
        share: stream / read,
    };
    if args.json.json { out::json(&report) } else { print(&report) }
}

const ROUNDS: usize = 3;

/// Run greedy steps of one token; the token after them.
fn steps(engine: &mut EngineModel, seq: wordline_engine::SeqId, mut next: u32, n: usize) -> Result<u32, StepError> {
    for _ in 0..n {
        let logits = engine.step(&[Row { seq, token: next, logits: true }])?;
        next = logits.row(0).and_then(argmax).unwrap_or(0);
    }
    Ok(next)
}

fn print(r: &Report<'_>) -> Result<(), Failure> {
    let gb = |bytes: f64| bytes / 1e9;
    out::line(format_args!("{}: {} threads", r.model, r.threads))?;
    out::line(format_args!("  decode       {:9.1} tokens/s", r.tokens_per_s))?;
    out::line(format_args!("  a step       {:9.3} MB of weights", r.bytes_per_step as f64 / 1e6))?;
    out::line(format_args!("  streamed     {:9.2} GB/s", gb(r.stream_bytes_per_s)))?;
    out::line(format_args!("  plain reads  {:9.2} GB/s", gb(r.read_bytes_per_s)))?;
    out::line(format_args!("  share        {:9.1} %", 100.0 * r.share))
}
