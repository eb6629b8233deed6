//! Arguments that several subcommands share.

use super::failure::{Failure, refused};
use super::hub::{BytesBar, HubArgs};
use super::out;
use crate::backends;
use crate::checkpoint::hub::{HubError, ModelId};
use crate::checkpoint::{CheckpointError, FileError};
use crate::engines::{EngineError, Setup, Watch};
use crate::image_cache::ImageCache;
use crate::model::{Model, ModelFileError};
use crate::tokenizer::TokenizerError;
use clap::{Args, ValueEnum};
use std::num::NonZeroUsize;
use wordline_engine::image::ImageLayout;
use wordline_engine::{Capacity, EngineModel};
use wordline_ir::{ActFormat, Numerics, Program, ProgramError, WeightFormat};

refused!(CheckpointError, EngineError, ProgramError, TokenizerError);

impl From<ModelFileError> for Failure {
    fn from(error: ModelFileError) -> Self {
        let failure = Failure::refused(super::failure::chain(&error));
        match error {
            ModelFileError::Checkpoint(CheckpointError::File(FileError::NotADirectory { path }))
                if !std::path::Path::new(&path).exists() =>
            {
                let hint = "there is nothing of this name; MODEL is a directory, `demo`, or owner/name on the Hub";
                match path.parse::<ModelId>() {
                    Err(error) if path.contains('/') => failure.hint(format!("{hint} ({error})")),
                    _ => failure.hint(hint),
                }
            }
            ModelFileError::Checkpoint(CheckpointError::File(FileError::Hub(error)))
                if matches!(*error, HubError::NoModel { .. }) =>
            {
                failure.hint("nor is there a directory of this name")
            }
            _ => failure,
        }
    }
}

/// The model.
#[derive(Debug, Args)]
pub(super) struct ModelArg {
    /// A directory with config.json and safetensors files, `demo`, or owner/name[@revision] on the Hub
    #[arg(value_name = "MODEL")]
    pub(super) model: String,
    #[command(flatten)]
    hub: HubArgs,
}

impl ModelArg {
    pub(super) fn open(&self) -> Result<Model, Failure> {
        self.hub.open(&self.model)
    }
}

/// Where a report goes.
#[derive(Debug, Args)]
pub(super) struct JsonArg {
    /// Report as JSON (docs/json.md)
    #[arg(long)]
    pub(super) json: bool,
}

/// Limbs of a quantised row.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Limbs {
    /// One int8 limb
    One,
    /// Two int8 limbs
    Two,
}

/// How a weight image holds matrices.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Weights {
    /// int8, blocks of 32: 8.25 bits a weight
    Int8,
    /// 4-bit codes of uneven levels, blocks of 16: 4.5 bits a weight
    Code4,
    /// 4-bit floats E2M1, blocks of 16: 4.5 bits a weight, exact for what is stored as MXFP4
    E2m1,
}

impl Weights {
    fn format(self) -> WeightFormat {
        match self {
            Weights::Int8 => WeightFormat::Int8,
            Weights::Code4 => WeightFormat::Code4,
            Weights::E2m1 => WeightFormat::E2m1,
        }
    }
}

impl Limbs {
    fn format(self) -> ActFormat {
        match self {
            Limbs::One => ActFormat::OneLimb,
            Limbs::Two => ActFormat::TwoLimbs,
        }
    }
}

/// The knobs that decide a result's bits; without them the pinned defaults.
#[derive(Debug, Args)]
#[command(next_help_heading = "Numerics")]
pub(super) struct NumericsArgs {
    /// Format of the matrices, the embedding and the head among them
    #[arg(long, value_name = "FORMAT")]
    weights: Option<Weights>,
    #[command(flatten)]
    limbs: LimbArgs,
}

impl NumericsArgs {
    pub(super) fn numerics(&self) -> Numerics {
        let limbs = self.limbs.numerics();
        Numerics { weights: self.weights.map_or(limbs.weights, Weights::format), ..limbs }
    }
}

/// The knobs of quantised rows; without them the pinned defaults.
#[derive(Debug, Args)]
#[command(next_help_heading = "Numerics")]
pub(super) struct LimbArgs {
    /// Limbs of the rows that enter linear layers and the head
    #[arg(long, value_name = "LIMBS")]
    acts: Option<Limbs>,
    /// Limbs of the queries
    #[arg(long, value_name = "LIMBS")]
    queries: Option<Limbs>,
    /// Limbs of the softmax terms
    #[arg(long, value_name = "LIMBS")]
    probs: Option<Limbs>,
}

impl LimbArgs {
    pub(super) fn numerics(&self) -> Numerics {
        let usual = Numerics::default();
        Numerics {
            acts: self.acts.map_or(usual.acts, Limbs::format),
            queries: self.queries.map_or(usual.queries, Limbs::format),
            probs: self.probs.map_or(usual.probs, Limbs::format),
            ..usual
        }
    }
}

/// A backend of the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Backend {
    /// A graphics device with memory of its own where there is one and the weights take more than 32 MiB, else the processor
    Auto,
    /// The processor
    Cpu,
    /// Products looked up in a table, on a GPU
    Lut,
    /// Packed int8 dot products, on a GPU
    Dp4a,
}

impl Backend {
    fn chosen(self) -> backends::Backend {
        match self {
            Backend::Auto => backends::Backend::best(),
            Backend::Cpu => backends::Backend::Cpu,
            Backend::Lut => backends::Backend::Lut,
            Backend::Dp4a => backends::Backend::Dp4a,
        }
    }
}

/// How an engine runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(super) struct EngineArgs {
    /// Threads; no bit of a result depends on them [default: one a processor]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// What runs the units
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Build the weight image in memory and leave no image in the cache directory
    #[arg(long)]
    no_cache: bool,
}

impl EngineArgs {
    /// Refuse a backend that this build does not have; otherwise everything that engines are made with but the model.
    pub(super) fn prepare(&self) -> Result<Prepared, Failure> {
        let mut backend = self.backend.chosen();
        if let Err(error) = backend.open() {
            let why = super::failure::chain(&error);
            if self.backend != Backend::Auto {
                return Err(Failure::refused(why).hint("use --backend cpu; every backend gives the same bits"));
            }
            out::note(format!("note: {why}; the processor computes"));
            backend = backends::Backend::Cpu;
        }
        let processors = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = self.threads.map_or_else(processors, NonZeroUsize::get);
        let cache = if self.no_cache { None } else { ImageCache::of_user() };
        if cache.is_none() && !self.no_cache {
            out::note("note: WORDLINE_CACHE, XDG_CACHE_HOME and HOME are unset; the weight image is built in memory");
        }
        let auto = self.backend == Backend::Auto;
        Ok(Prepared { threads, backend, auto, cache, watch: Shown::default() })
    }
}

/// Weight images below this many bytes are the processor's, unless a backend is asked for by name: it has read them before a
/// device has made its kernels, and takes no longer for a step than a device takes to begin and end its own.
const SMALL: usize = 32 << 20;

/// What engines are made with but the model.
pub(super) struct Prepared {
    pub(super) threads: usize,
    /// What this machine computes fastest with, or was asked for.
    pub(super) backend: backends::Backend,
    /// Nothing was asked for.
    auto: bool,
    cache: Option<ImageCache>,
    watch: Shown,
}

impl Prepared {
    /// Who is told how things go.
    pub(super) fn watch(&self) -> &dyn Watch {
        &self.watch
    }

    /// Where weight images are kept.
    pub(super) fn cache(&self) -> Option<&ImageCache> {
        self.cache.as_ref()
    }

    /// Every program's engine runs on the one backend, small ones too.
    pub(super) fn on_one(self) -> Self {
        Self { auto: false, ..self }
    }

    /// The backend of a program's engine.
    pub(super) fn backend_of(&self, program: &Program) -> backends::Backend {
        let small = || ImageLayout::of(program).is_ok_and(|layout| layout.bytes() < SMALL);
        if self.auto && small() { backends::Backend::Cpu } else { self.backend }
    }

    /// What the engines of one program are made with.
    pub(super) fn setup<'a>(&'a self, model: &'a Model, program: &'a Program, capacity: Capacity) -> Setup<'a> {
        let (threads, backend) = (self.threads, self.backend_of(program));
        Setup { model, program, capacity, threads, backend, cache: self.cache.as_ref(), watch: &self.watch }
    }
}

/// Shows on standard error how the making of an engine goes.
#[derive(Default)]
struct Shown {
    building: BytesBar,
    fetching: BytesBar,
}

/// Weight images below this many bytes are built too fast to watch.
const WATCHED: u64 = 64 << 20;

impl Watch for Shown {
    fn building(&self, done: usize, total: usize) {
        self.building.show("building the weight image", done as u64, total as u64, WATCHED);
    }

    fn fetching(&self, done: u64, total: u64) {
        self.fetching.show("fetching weights", done, total, 1);
    }

    fn remark(&self, text: &str) {
        out::note(format_args!("note: {text}"));
    }
}

/// Pass on what an engine's units found out about themselves: a form that the audit demoted.
pub(super) fn show_notices(engine: &mut EngineModel) {
    engine.notices().iter().for_each(|notice| out::note(format_args!("note: {notice}")));
}

/// Positions that a lowering is authored over where the command line does not say. No command depends on it.
pub(super) fn usual_ctx(max_pos: usize) -> usize {
    max_pos.min(4096)
}

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use super::*;
    use crate::shapes::Shape;
    use wordline_lowering::lower;

    #[test]
    fn small_weights_stay_on_the_processor_unless_a_device_is_asked_for() {
        let (large, small) = (Shape::named("smollm2-135m").unwrap(), Model::open("demo").unwrap());
        let [large, small] =
            [&large.spec, &small.checkpoint.spec].map(|spec| lower(spec, &Numerics::default(), 64).unwrap().program);
        let prepared = |auto| {
            let backend = backends::Backend::Dp4a;
            Prepared { threads: 1, backend, auto, cache: None, watch: Shown::default() }
        };
        let names = [prepared(true), prepared(false), prepared(true).on_one()]
            .map(|p| [&small, &large].map(|program| p.backend_of(program).name()));
        assert_eq!(names, [["cpu", "dp4a"], ["dp4a", "dp4a"], ["dp4a", "dp4a"]]);
    }
}
