//! `wordline bench`: how fast a model decodes and takes prompts in, beside the limits of the device it runs on.

use super::args::{EngineArgs, JsonArg, NumericsArgs, Prepared, show_notices};
use super::failure::{Failure, chain, refused};
use super::hub::HubArgs;
use super::out;
use crate::engines::{self, Watch};
use crate::image_memory;
use crate::measure::array_rate::{ArrayRate, Gemm, RateError};
use crate::measure::bandwidth::{LEAST, ReadLoop, Reads};
use crate::measure::speed::{BoundBy, Decode, Limits, Plan, Speed, measure};
use crate::shapes::{Shape, ShapeError};
use clap::{ArgGroup, Args as ClapArgs};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::sync::Arc;
use wordline_engine::image::ImageLayout;
use wordline_engine::{Capacity, EngineModel, Kernels, Sequencer};
use wordline_ir::{ActFormat, Numerics, Program, Spec};
use wordline_kernels::format::{Lanes, Limbs};
use wordline_lowering::lower;

refused!(RateError, ShapeError);

#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("what").required(true).args(["model", "shape"]))]
pub(super) struct Args {
    /// A directory with config.json and safetensors files, `demo`, or owner/name[@revision] on the Hub
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// A published model by its config alone, with random weights in memory; a wrong name lists them
    #[arg(long, value_name = "NAME")]
    shape: Option<String>,
    /// Seed of a shape's weights
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "model")]
    seed: u64,
    /// Rows of a decode step, each of a sequence of its own
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = batches())]
    batch: Vec<NonZeroUsize>,
    /// Positions that a decode step sees, on average
    #[arg(long, value_name = "N", default_value = "64")]
    ctx: NonZeroUsize,
    /// Rows of the prompt that is taken in
    #[arg(long, value_name = "N", default_value = "64")]
    prefill: NonZeroUsize,
    /// Rounds: pairs of a pass of plain reads and decode steps, for each batch
    #[arg(long, value_name = "N", default_value = "24")]
    pairs: NonZeroUsize,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    numerics: NumericsArgs,
    #[command(flatten)]
    json: JsonArg,
}

fn batches() -> [NonZeroUsize; 3] {
    [1, 4, 16].map(|rows| NonZeroUsize::new(rows).unwrap_or(NonZeroUsize::MIN))
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report<'a> {
    model: Option<&'a str>,
    shape: Option<&'a str>,
    backend: &'static str,
    /// The form of the array unit that computed.
    form: &'static str,
    threads: usize,
    ctx: usize,
    numerics: Numerics,
    image_bytes: usize,
    read: ReadLoop,
    #[serde(flatten)]
    speed: Speed,
}

/// What is measured: its facts, and where its weights come from.
enum Subject {
    Model(crate::model::Model),
    Shape(Shape, u64),
}

impl Subject {
    fn open(args: &Args) -> Result<Self, Failure> {
        match (&args.model, &args.shape) {
            (Some(model), _) => Ok(Self::Model(args.hub.open(model)?)),
            (None, Some(name)) => Ok(Self::Shape(Shape::named(name)?, args.seed)),
            (None, None) => Err(Failure::refused("give a MODEL or --shape NAME")),
        }
    }

    fn spec(&self) -> &Spec {
        match self {
            Self::Model(model) => &model.checkpoint.spec,
            Self::Shape(shape, _) => &shape.spec,
        }
    }

    fn engine(
        &self,
        program: &Program,
        capacity: Capacity,
        kernels: Kernels,
        prepared: &Prepared,
    ) -> Result<EngineModel, Failure> {
        match self {
            Self::Model(model) => Ok(prepared.setup(model, program, capacity).int8_on(kernels)?),
            Self::Shape(_, seed) => {
                let sequencer = Sequencer::new(program).map_err(|e| Failure::fault(chain(&e)))?;
                let image = engines::random_image(program, *seed, prepared.threads, prepared.watch())?;
                EngineModel::int8(sequencer, capacity, Arc::new(image), kernels, prepared.threads)
                    .map_err(|e| Failure::refused(chain(&e)))
            }
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let prepared = args.engine.prepare()?;
    let subject = Subject::open(args)?;
    let spec = subject.spec();
    let plan = Plan {
        batches: args.batch.iter().map(|rows| rows.get()).collect(),
        ctx: args.ctx.get(),
        prefill: args.prefill.get(),
        pairs: args.pairs.get(),
    };
    let capacity = Capacity { ctx: plan.positions(), step_rows: plan.prefill };
    if capacity.ctx > spec.max_pos {
        let (given, limit) = (capacity.ctx, spec.max_pos);
        return Err(Failure::refused(format!("the run reaches position {given}, the model takes {limit} positions"))
            .hint("ask for a smaller --ctx or --prefill, or for fewer --pairs"));
    }
    let numerics = args.numerics.numerics();
    let program = lower(spec, &numerics, capacity.ctx)?.program;
    let image_bytes = ImageLayout::of(&program).map_err(|e| Failure::refused(chain(&e)))?.bytes();
    let read_bytes = fit(&program, &plan, image_bytes, image_memory::available(), prepared.watch())?;
    let threads = prepared.threads;
    let kernels = engines::kernels(prepared.watch())?;
    let array = Arc::clone(&kernels.array);
    let mut engine = subject.engine(&program, capacity, kernels, &prepared)?;
    let mut reads = Reads::new(read_bytes, threads)
        .map_err(|e| Failure::refused(format!("there is no memory for {read_bytes} bytes to read: {e}")))?;
    let limbs = match numerics.acts {
        ActFormat::OneLimb => Limbs::One,
        ActFormat::TwoLimbs => Limbs::Two,
    };
    let lanes = Lanes::new(numerics.lanes).ok_or_else(|| Failure::fault("the lanes are no power of two"))?;
    let mut rate = ArrayRate::new(&array, Gemm::CACHED, lanes, limbs, threads)?;
    let read = reads.describe();
    let mut limits = Limits { read: &mut reads, array: Some(&mut rate), limbs: limbs.count() as u64 };
    let speed = measure(&mut engine, spec.vocab, &plan, &mut limits).map_err(|e| Failure::refused(chain(&e)))?;
    show_notices(&mut engine);
    let report = Report {
        model: args.model.as_deref(),
        shape: args.shape.as_deref(),
        backend: "cpu",
        form: array.active().name(),
        threads,
        ctx: plan.ctx,
        numerics,
        image_bytes,
        read,
        speed,
    };
    if args.json.json { out::json(&report) } else { print(&report) }
}

/// Bytes to read, as many as the image has where memory allows; refused when the rest does not fit as it is.
fn fit(
    program: &Program,
    plan: &Plan,
    image: usize,
    available: Option<usize>,
    watch: &dyn Watch,
) -> Result<usize, Failure> {
    let (wanted, positions) = (image.max(LEAST), plan.positions() as u64);
    let Some(available) = available.map(|bytes| bytes as u64) else { return Ok(wanted) };
    // A cache element is a byte and its share of a block's scale; rings and memories are f32.
    let of_sequence = |command: &wordline_ir::Command| {
        let work = command.work(program);
        (work.appended * 17 / 16).saturating_mul(positions).saturating_add(4 * work.state)
    };
    let each = program.commands.iter().map(of_sequence).fold(0, u64::saturating_add);
    let states = each.saturating_mul(plan.sequences() as u64);
    let need = (image as u64).saturating_add(states);
    let left = available.saturating_sub(need);
    if left < LEAST as u64 {
        let what = format!(
            "{} bytes are needed ({image} of weights, {states} of sequences, {LEAST} to read), {available} are free",
            need.saturating_add(LEAST as u64)
        );
        return Err(Failure::refused(what).hint("choose a smaller shape, a shorter --ctx or a smaller --batch"));
    }
    // Some of what is left is for everything else.
    let most = usize::try_from(left - left / 8).unwrap_or(usize::MAX).max(LEAST);
    if wanted > most {
        watch.remark(&format!("plain reads go over {most} bytes only: memory holds no second {wanted}"));
    }
    Ok(wanted.min(most))
}

fn print(report: &Report<'_>) -> Result<(), Failure> {
    let Report { speed, read, .. } = report;
    let name = report.model.or(report.shape).unwrap_or_default();
    let weights = if report.shape.is_some() { ", random weights" } else { "" };
    let (form, threads, ctx) = (report.form, report.threads, report.ctx);
    out::line(format_args!("{name}{weights}: {} ({form}), {threads} threads, context {ctx}", report.backend))?;
    let (limit, mb) = (speed.limit_bytes_per_s / 1e9, read.buffer_bytes as f64 / 1e6);
    out::line(format_args!("plain reads  {limit:8.2} GB/s over {mb:.0} MB ({})", read.name))?;
    if let Some(rate) = speed.array_macs_per_s {
        out::line(format_args!("array unit   {:8.1} GMAC/s in its first cache, each limb counted", rate / 1e9))?;
    }
    out::line("decode   tokens/s      step us   MB a step     GB/s  of reads  x bound")?;
    for decode in &speed.decode {
        let Decode { batch, tokens_per_s, step_us, bytes_per_step, share_of_limit, bound, .. } = decode;
        let (us, bytes, share) = (step_us.median, *bytes_per_step as f64, 100.0 * share_of_limit);
        let (mb, rate, times, by) = (bytes / 1e6, bytes / us / 1e3, bound.times_bound, by(bound.bound_by));
        let first = format!("{batch:6} {tokens_per_s:10.1} {us:12.1} {mb:11.2} {rate:8.2} {share:7.1} %");
        out::line(format_args!("{first} {times:8.2} ({by})"))?;
    }
    let prefill = &speed.prefill;
    let (times, by) = (prefill.bound.times_bound, by(prefill.bound.bound_by));
    let (rows, rate) = (prefill.rows, prefill.rows_per_s);
    out::line(format_args!("prefill of {rows} rows: {rate:.1} rows/s, {times:.2} x bound ({by})"))?;
    for decode in &speed.decode {
        let total: f64 = decode.us_by_command.values().sum();
        let mut kinds: Vec<(&str, f64)> = decode.us_by_command.iter().map(|(kind, us)| (*kind, *us)).collect();
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        let shares = kinds.iter().map(|(kind, us)| format!("{kind} {:.1} %", 100.0 * us / total));
        out::line(format_args!("time at batch {}: {}", decode.batch, shares.collect::<Vec<_>>().join(", ")))?;
    }
    Ok(())
}

fn by(limit: BoundBy) -> &'static str {
    match limit {
        BoundBy::Memory => "memory",
        BoundBy::Array => "array",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Unwatched;

    #[test]
    fn memory_is_asked_before_it_is_taken() {
        let spec = Shape::named(&crate::shapes::names().unwrap()[0]).unwrap().spec;
        let program = lower(&spec, &Numerics::default(), 64).unwrap().program;
        let plan = Plan { batches: vec![1, 4], ctx: 64, prefill: 64, pairs: 20 };
        let image = 1 << 30;
        let fit = |free: Option<usize>| fit(&program, &plan, image, free, &Unwatched);
        assert_eq!(fit(None).unwrap(), image);
        assert_eq!(fit(Some(1 << 40)).unwrap(), image);
        let less = fit(Some((1 << 30) + (700 << 20))).unwrap();
        assert!((LEAST..image).contains(&less), "{less}");
        let refused = fit(Some(1 << 30)).unwrap_err();
        assert!(refused.what.contains("1073741824 of weights"), "{refused}");
    }
}
