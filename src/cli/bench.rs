//! `wordline bench`: how fast a model decodes and takes prompts in, beside the limits of the device it runs on.

mod table;

use super::args::{EngineArgs, JsonArg, NumericsArgs, Prepared, show_notices};
use super::failure::{Failure, chain, refused};
use super::hub::HubArgs;
use super::out;
use crate::backends::Backend;
use crate::engines::{self, Watch};
use crate::image_memory;
use crate::measure::array_rate::{ArrayRate, Gemm, RateError};
use crate::measure::bandwidth::{LEAST, ReadLoop, Reads};
use crate::measure::limit::{LimitError, Limits};
use crate::measure::speed::{Plan, Speed, measure};
use crate::shapes::{Shape, ShapeError};
use clap::{ArgGroup, Args as ClapArgs};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::sync::Arc;
use wordline_engine::image::ImageLayout;
use wordline_engine::{Capacity, EngineModel, Kernels, Sequencer};
use wordline_ir::{ActFormat, Numerics, Program, Spec};
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gate::Units;
use wordline_lowering::lower;

refused!(LimitError, RateError, ShapeError);

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
    /// The device, where one computed.
    adapter: Option<String>,
    driver: Option<String>,
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
                prepared
                    .backend_of(program)
                    .engine(sequencer, capacity, image, kernels, prepared.threads)
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
    let (threads, backend) = (prepared.threads, prepared.backend_of(&program));
    let need = Need::of(&program, &plan, image_bytes, backend)?;
    let read_bytes = need.fit(image_memory::available(), prepared.watch())?;
    let kernels = engines::kernels(prepared.watch())?;
    let array = Arc::clone(&kernels.array);
    let mut engine = subject.engine(&program, capacity, kernels, &prepared)?;
    let form = engine.form();
    let limbs = match numerics.acts {
        ActFormat::OneLimb => Limbs::One,
        ActFormat::TwoLimbs => Limbs::Two,
    };
    let lanes = Lanes::new(numerics.lanes).ok_or_else(|| Failure::fault("the lanes are no power of two"))?;
    let mut on = Measured { engine: &mut engine, vocab: spec.vocab, plan: &plan, array: &array, lanes, limbs };
    let (read, speed, [adapter, driver]) = match backend {
        Backend::Cpu => on.processor(read_bytes, threads)?,
        Backend::Dp4a | Backend::Lut => on.device(backend, read_bytes)?,
    };
    if engine.form() != form && backend != Backend::Cpu {
        let (now, notices) = (engine.form(), engine.notices().join("; "));
        return Err(Failure::refused(format!("{form} was not measured: {now} computed a part of it ({notices})")));
    }
    show_notices(&mut engine);
    let report = Report {
        model: args.model.as_deref(),
        shape: args.shape.as_deref(),
        backend: backend.name(),
        form: engine.form(),
        adapter,
        driver,
        threads,
        ctx: plan.ctx,
        numerics,
        image_bytes,
        read,
        speed,
    };
    if args.json.json { out::json(&report) } else { table::print(&report) }
}

/// An engine to measure, and what its limits are measured with.
struct Measured<'a> {
    engine: &'a mut EngineModel,
    vocab: usize,
    plan: &'a Plan,
    array: &'a Units,
    lanes: Lanes,
    limbs: Limbs,
}

/// What was read, what was measured, and the device's adapter and driver.
type Found = (ReadLoop, Speed, [Option<String>; 2]);

impl Measured<'_> {
    fn processor(&mut self, read_bytes: usize, threads: usize) -> Result<Found, Failure> {
        let mut reads = Reads::new(read_bytes, threads)
            .map_err(|e| Failure::refused(format!("there is no memory for {read_bytes} bytes to read: {e}")))?;
        let mut rate = ArrayRate::new(self.array, Gemm::CACHED, self.lanes, self.limbs, threads)?;
        let read = reads.describe();
        let limits =
            Limits { read: &mut reads, array: Some(&mut rate), launch: None, limbs: self.limbs.count() as u64 };
        Ok((read, self.speed(limits)?, [None, None]))
    }

    #[cfg(feature = "gpu")]
    fn device(&mut self, backend: Backend, read_bytes: usize) -> Result<Found, Failure> {
        use crate::measure::device_limits::{DeviceArrayRate, DeviceReads, KernelStarts, Submissions};
        use crate::measure::limit::LaunchLimits;
        use wordline_kernels::gpu::Method;
        let method = Method::ALL.into_iter().find(|method| method.name() == self.engine.form());
        let Some(method) = method.filter(|method| backend.method() == Some(*method)) else {
            // Another backend's figures under this one's name would be worse than none.
            let why = self.engine.notices().join("; ");
            let what = format!("backend '{}' does not compute here, so it is not measured: {why}", backend.name());
            return Err(Failure::refused(what).hint("`wordline units` says what computes on this machine"));
        };
        let gpu = crate::backends::device().map_err(|e| Failure::refused(chain(&e)))?;
        let mut reads = DeviceReads::new(&gpu, read_bytes)?;
        let gemm = DeviceArrayRate::gemm(&gpu);
        let mut rate = DeviceArrayRate::new(&gpu, method, self.array, gemm, self.lanes, self.limbs)?;
        let (mut kernel, mut submission) = (KernelStarts::new(&gpu)?, Submissions::new(&gpu)?);
        let read = reads.describe();
        let launch = Some(LaunchLimits { kernel: &mut kernel, submission: &mut submission });
        let limits = Limits { read: &mut reads, array: Some(&mut rate), launch, limbs: self.limbs.count() as u64 };
        let speed = self.speed(limits)?;
        let facts = gpu.facts();
        Ok((read, speed, [Some(facts.adapter.clone()), Some(facts.driver.clone())]))
    }

    #[cfg(not(feature = "gpu"))]
    fn device(&mut self, backend: Backend, _: usize) -> Result<Found, Failure> {
        Err(Failure::refused(format!("backend '{}' is not built into this program", backend.name())))
    }

    fn speed(&mut self, mut limits: Limits<'_>) -> Result<Speed, Failure> {
        measure(self.engine, self.vocab, self.plan, &mut limits).map_err(|e| Failure::refused(chain(&e)))
    }
}

/// Bytes of this machine's memory that a measurement takes.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// The weight image.
    image: u64,
    /// Where the device's memory is this machine's: its copy of the weights.
    copy: u64,
    /// What sequences keep.
    states: u64,
    /// The least to read.
    least: u64,
}

impl Need {
    /// Of a program; a device with memory of its own takes the weights and the states there.
    fn of(program: &Program, plan: &Plan, image: usize, backend: Backend) -> Result<Self, Failure> {
        // A cache element is a byte and its share of a block's scale; rings and memories are f32.
        let of_sequence = |command: &wordline_ir::Command| {
            let work = command.work(program);
            (work.appended * 17 / 16).saturating_mul(plan.positions() as u64).saturating_add(4 * work.state)
        };
        let each = program.commands.iter().map(of_sequence).fold(0, u64::saturating_add);
        let states = each.saturating_mul(plan.sequences() as u64);
        let (image, least) = (image as u64, LEAST as u64);
        let apart = match backend {
            Backend::Cpu => return Ok(Self { image, copy: 0, states, least }),
            Backend::Dp4a | Backend::Lut => apart()?,
        };
        // What a device reads it also copies.
        Ok(if apart {
            Self { image, copy: 0, states: 0, least: 0 }
        } else {
            Self { image, copy: image, states, least: 2 * least }
        })
    }

    /// Bytes to read, as many as the image has where memory allows; refused when the rest does not fit as it is.
    fn fit(&self, available: Option<usize>, watch: &dyn Watch) -> Result<usize, Failure> {
        let Self { image, copy, states, least } = *self;
        let wanted = usize::try_from(image).unwrap_or(usize::MAX).max(LEAST);
        let Some(available) = available.map(|bytes| bytes as u64) else { return Ok(wanted) };
        let need = image.saturating_add(copy).saturating_add(states);
        let left = available.saturating_sub(need);
        if left < least || available < need {
            let mut parts = format!("{image} of weights, ");
            if copy > 0 {
                parts += &format!("{copy} of their copy for the device, ");
            }
            let what = format!(
                "{} bytes are needed ({parts}{states} of sequences, {least} to read), {available} are free",
                need.saturating_add(least)
            );
            return Err(Failure::refused(what).hint("choose a smaller shape, a shorter --ctx or a smaller --batch"));
        }
        if least == 0 {
            return Ok(wanted);
        }
        // Some of what is left is for everything else.
        let most = usize::try_from((left - left / 8) / (least / LEAST as u64)).unwrap_or(usize::MAX).max(LEAST);
        if wanted > most {
            watch.remark(&format!("plain reads go over {most} bytes only: memory holds no second {wanted}"));
        }
        Ok(wanted.min(most))
    }
}

/// The device has memory of its own.
#[cfg(feature = "gpu")]
fn apart() -> Result<bool, Failure> {
    use wordline_kernels::gpu::Kind;
    let gpu = crate::backends::device().map_err(|e| Failure::refused(chain(&e)))?;
    Ok(matches!(gpu.facts().kind, Kind::Discrete | Kind::Virtual))
}

#[cfg(not(feature = "gpu"))]
fn apart() -> Result<bool, Failure> {
    Ok(false)
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
        let need = Need::of(&program, &plan, image, Backend::Cpu).unwrap();
        let fit = |free: Option<usize>| need.fit(free, &Unwatched);
        assert_eq!(fit(None).unwrap(), image);
        assert_eq!(fit(Some(1 << 40)).unwrap(), image);
        let less = fit(Some((1 << 30) + (700 << 20))).unwrap();
        assert!((LEAST..image).contains(&less), "{less}");
        let refused = fit(Some(1 << 30)).unwrap_err();
        assert!(refused.what.contains("1073741824 of weights"), "{refused}");
        // A device that shares this machine's memory holds the weights a second time, and copies what it reads.
        let shared = Need { copy: 1 << 30, least: 2 * LEAST as u64, ..need };
        let refused = shared.fit(Some((2 << 30) + (500 << 20)), &Unwatched).unwrap_err();
        assert!(refused.what.contains("1073741824 of their copy"), "{refused}");
        let less = shared.fit(Some((3 << 30) + (200 << 20)), &Unwatched).unwrap();
        assert!((LEAST..640 << 20).contains(&less), "{less}");
        // One with memory of its own takes nothing here but the image.
        let apart = Need { states: 0, least: 0, ..need };
        assert_eq!(apart.fit(Some(1 << 30), &Unwatched).unwrap(), image);
        assert!(apart.fit(Some((1 << 30) - 1), &Unwatched).is_err());
    }
}
