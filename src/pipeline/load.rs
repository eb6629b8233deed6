//! `Maker`: stages from assignments. Everything in one is validated, the stage's own tensors are read from the device's own copy
//! of the model, and its engine is made.

use super::demand::{Reads, demand, reads, stored};
use super::plan::{Device, Plan, PlanError, Room};
use super::wire::{Assign, Member, Ready};
use super::worker::{WorkError, Worker};
use crate::backends::Backend;
use crate::checkpoint::hub::{Fetched, HubError};
use crate::checkpoint::{FileError, Weights, mxfp4};
use crate::engines::{Keep, Watch};
use crate::image_cache::ImageCache;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use wordline_engine::image::{BuildError, LayoutError, build_into};
use wordline_engine::source::{SourceError, WeightSource};
use wordline_engine::team::Team;
use wordline_engine::{Capacity, Image, ImageError, ImageLayout, Kernels, ModelError, Sequencer, WordsError};
use wordline_ir::digest::hex;
use wordline_ir::{Numerics, Program, ProgramError, Spec, Tensor, file::to_bytes};
use wordline_lowering::lower;
use wordline_lowering::split::{SplitError, Stage, split};

/// Why a stage was not made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The copy here is of another model.
    #[error(
        "the copy on this device has the tensor index {}…, the head's {}…: another model or another revision of {repo}",
        hex(&given[..8]), hex(&needed[..8])
    )]
    Index {
        /// The repository.
        repo: String,
        /// Digest of this copy's index.
        given: [u8; 32],
        /// The head's.
        needed: [u8; 32],
    },
    /// The spec or the numerics are none.
    #[error("the assignment's {what}: {source}")]
    Json {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The weights cannot be read, or fetched.
    #[error(transparent)]
    Weights(#[from] FileError),
    /// There is no program for the spec.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The plan is not the one that this device computes, or none.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The program cannot be cut so.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The stage's program is not sound.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// A matrix has no place in an image.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A weight cannot be read or quantised.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The image was refused.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The engine could not be made.
    #[error(transparent)]
    Engine(#[from] ModelError),
    /// The engine does not run.
    #[error("a first step of nothing: {0}")]
    Work(#[from] WorkError),
    /// The system has no memory for the image.
    #[error("no memory for the stage's weights: {0}; lend less with --memory, so that the plan gives it fewer layers")]
    Memory(#[source] std::io::Error),
}

impl LoadError {
    /// The error's name on the wire.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            LoadError::Index { .. } => "model",
            LoadError::Json { .. } | LoadError::Program(_) | LoadError::Split(_) | LoadError::Words(_) => "assignment",
            LoadError::Plan(_) => "plan",
            LoadError::Weights(error) => file_code(error),
            LoadError::Layout(_) | LoadError::Build(_) | LoadError::Image(_) => "weights",
            LoadError::Engine(_) | LoadError::Work(_) => "engine",
            LoadError::Memory(_) => "memory",
        }
    }
}

/// The name on the wire of a file that was not read, or not fetched.
#[must_use]
pub fn file_code(error: &FileError) -> &'static str {
    match error {
        FileError::Hub(error) => hub_code(error),
        _ => "weights",
    }
}

/// The name on the wire of what the Hub did not give, or the disk did not take.
#[must_use]
pub fn hub_code(error: &HubError) -> &'static str {
    match error {
        HubError::Disk { .. } | HubError::CacheLimit { .. } | HubError::NoCache | HubError::Unsound { .. } => "disk",
        HubError::Access { .. } | HubError::Token(_) => "access",
        _ => "fetch",
    }
}

/// What a device makes its stages with.
pub struct Maker<'a> {
    /// Its copy of the model: headers, and tensors as they are asked for.
    pub weights: &'a Weights,
    /// Its kernels.
    pub kernels: Kernels,
    /// Threads.
    pub threads: usize,
    /// What runs the commands.
    pub backend: Backend,
    /// Where images are kept; none builds them in memory.
    pub cache: Option<&'a ImageCache>,
    /// Who is told how the fetching and the building go.
    pub watch: &'a dyn Watch,
}

impl std::fmt::Debug for Maker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maker").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// A stage, made.
#[derive(Debug)]
pub struct Made {
    /// Its worker.
    pub worker: Worker,
    /// SHA-256 of its program file.
    pub program: [u8; 32],
    /// See [`image_digest`].
    pub image: [u8; 32],
    /// What its tensors take of the weight files.
    pub reads: Reads,
    /// Bytes of stored tensors that were in fact asked for; 0 when the image was there.
    pub read: u64,
    /// What was fetched for it, by file; nothing where the image or the weights were here.
    pub fetched: Vec<Fetched>,
}

/// The program of a file of facts, as every device lowers it.
///
/// # Errors
/// The model has no program.
pub fn program_of(spec: &Spec, numerics: &Numerics) -> Result<Program, ProgramError> {
    // No command depends on the context; the cut that is recorded must be the same on every device.
    Ok(lower(spec, numerics, spec.max_pos.min(4096))?.program)
}

/// SHA-256 of a stage's program file.
#[must_use]
pub fn program_digest(program: &Program) -> [u8; 32] {
    // A program that was lowered can be written; one that cannot has no words to agree on.
    Sha256::digest(to_bytes(program).unwrap_or_default()).into()
}

/// SHA-256 over the numbers and digests of a stage's tensors, out of its own image or one of the whole program.
#[must_use]
pub fn image_digest(stage: &Stage, image: &Image) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for id in &stage.tensors {
        hasher.update(id.get().to_le_bytes());
        hasher.update(image.digest(*id).unwrap_or_default());
    }
    hasher.finalize().into()
}

/// Digest of a copy's tensor index.
#[must_use]
pub fn index_of(weights: &Weights) -> [u8; 32] {
    let hex = weights.index_digest();
    let mut index = [0; 32];
    for (byte, digits) in index.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
    }
    index
}

impl Maker<'_> {
    /// The stage of an assignment, and what to say when it is ready.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn assigned(&self, assign: &Assign, heard: &[Member]) -> Result<(Made, Ready), LoadError> {
        let index = index_of(self.weights);
        if index != assign.index {
            return Err(LoadError::Index { repo: assign.repo.clone(), given: index, needed: assign.index });
        }
        let json = |what| move |source| LoadError::Json { what, source };
        let spec: Spec = serde_json::from_str(&assign.spec).map_err(json("spec"))?;
        let numerics: Numerics = serde_json::from_str(&assign.numerics).map_err(json("numerics"))?;
        let program = program_of(&spec, &numerics)?;
        let device =
            |member: &Member| Device { key: member.key, capacity: member.hello.capacity, memory: member.about.memory };
        let heard: Vec<Device> = heard.iter().map(device).collect();
        assign.plan.agree(&heard, &demand(&program, assign.plan.room)?)?;
        let stages = split(&program, &assign.plan.ranges())?;
        // The wire has checked that the plan has this stage.
        let stage = stages.into_iter().nth(assign.stage as usize).ok_or(SplitError::NoStages)?;
        let made = self.make(&stage, assign.plan.room)?;
        let ready = Ready {
            epoch: assign.epoch,
            stage: assign.stage,
            program: made.program,
            image: made.image,
            bytes: made.reads.bytes,
            requests: made.reads.requests,
        };
        Ok((made, ready))
    }

    /// The head's own stage of a plan, and the digests of all stages' programs.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn head(&self, program: &Program, plan: &Plan) -> Result<(Made, Vec<[u8; 32]>), LoadError> {
        let stages = split(program, &plan.ranges())?;
        let programs = stages.iter().map(|stage| program_digest(&stage.program)).collect();
        let own = stages.first().ok_or(SplitError::NoStages)?;
        Ok((self.make(own, plan.room)?, programs))
    }

    /// Every stage of a cut, all on this device.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn all(&self, program: &Program, ranges: &[Range<usize>], room: Room) -> Result<Vec<Made>, LoadError> {
        split(program, ranges)?.iter().map(|stage| self.make(stage, room)).collect()
    }

    /// One stage: its image, taken from the cache or built of its own tensors alone, and its engine.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn make(&self, stage: &Stage, room: Room) -> Result<Made, LoadError> {
        let program = &stage.program;
        let counted = Counted { weights: self.weights, read: AtomicU64::new(0), fetched: Mutex::default() };
        let image = Arc::new(self.image(stage, &counted)?);
        let digest = image_digest(stage, &image);
        let capacity = Capacity { ctx: room.ctx as usize, step_rows: room.step_rows as usize };
        let sequencer = Sequencer::new(program)?;
        let engine = self.backend.engine(sequencer, capacity, image, self.kernels.clone(), self.threads)?;
        let mut worker = Worker::new(engine);
        if self.backend != Backend::Cpu {
            // A device's programs are made when they are first run; a head waits seconds for a lap, and not for that.
            for rows in [1, room.step_rows as usize] {
                worker.warm(rows)?;
            }
        }
        Ok(Made {
            worker,
            program: program_digest(program),
            image: digest,
            reads: reads(program, &stage.tensors, self.weights),
            read: counted.read.into_inner(),
            fetched: counted.fetched.into_inner().unwrap_or_default(),
        })
    }

    fn image(&self, stage: &Stage, source: &Counted<'_>) -> Result<Image, LoadError> {
        let program = &stage.program;
        let layout = ImageLayout::of_used(program)?;
        let names = stored(program, &stage.tensors);
        let content: [u8; 32] = Sha256::digest(self.weights.part_identity(&names)?).into();
        let progress = |done, total| {
            self.watch.building(done, total);
            true
        };
        let build = |out: &mut [u8]| -> Result<(), LoadError> {
            // In as few requests as the stage's tensors allow, where they are on the Hub.
            let fetching = |done, total| self.watch.fetching(done, total);
            let fetched = self.weights.fetch(names.iter().copied(), &fetching)?;
            source.fetched.lock().unwrap_or_else(PoisonError::into_inner).extend(fetched);
            build_into(program, &layout, source, content, out, &mut Team::new(self.threads), &progress)?;
            Ok(())
        };
        let open = |bytes| Image::open_used(program, bytes, Some(content));
        Keep { cache: self.cache, threads: self.threads, watch: self.watch }.image(
            &layout,
            content,
            build,
            open,
            LoadError::Memory,
        )
    }
}

/// Weights that count the stored bytes that are asked of them.
struct Counted<'a> {
    weights: &'a Weights,
    read: AtomicU64,
    fetched: Mutex<Vec<Fetched>>,
}

impl WeightSource for Counted<'_> {
    fn read_rows(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        let stored = tensor.view.parts.first().and_then(|part| self.weights.tensor(&part.tensor));
        let bits = stored.map_or(0, |stored| stored.dtype.bitsize() as u64);
        let scales = stored.filter(|stored| stored.is_scaled()).map_or(0, |_| out.len() / mxfp4::BLOCK) as u64;
        self.read.fetch_add(bits * out.len() as u64 / 8 + scales, Ordering::Relaxed);
        self.weights.read_rows(tensor, rows, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Unwatched;
    use crate::model::Model;
    use std::io::{Seek, SeekFrom, Write};
    use std::path::Path;

    /// A copy of a model's only weight file in which all but these tensors are a hole.
    fn hollow(model: &Model, from: &Path, to: &Path, names: &std::collections::BTreeSet<&str>) {
        let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
        let mut file = std::fs::File::create(to.join("model.safetensors")).unwrap();
        let first = model.checkpoint.weights.entries().map(|(_, entry)| entry.bytes.start).min().unwrap();
        file.write_all(&bytes[..first as usize]).unwrap();
        for (_, entry) in model.checkpoint.weights.entries().filter(|(_, e)| names.contains(e.name.as_str())) {
            file.seek(SeekFrom::Start(entry.bytes.start)).unwrap();
            file.write_all(&bytes[entry.bytes.start as usize..entry.bytes.end as usize]).unwrap();
        }
        file.set_len(bytes.len() as u64).unwrap();
        std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    }

    fn maker(weights: &Weights) -> Maker<'_> {
        let (kernels, backend) = (Kernels::new().unwrap(), Backend::Cpu);
        Maker { weights, kernels, threads: 1, backend, cache: None, watch: &Unwatched }
    }

    #[test]
    fn a_stage_reads_its_own_tensors_and_the_others_may_be_holes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in
            ["demo", "tests/fixtures/given/qwen3", "tests/fixtures/given/qwen3_next", "tests/fixtures/given/gpt2"]
        {
            let folder = root.join(folder);
            let model = Model::open(&folder.display().to_string()).unwrap();
            let program = program_of(&model.checkpoint.spec, &Numerics::default()).unwrap();
            let layers = program.layers();
            let room = Room { ctx: 16, step_rows: 4, sequences: 1 };
            let mut sum = 0;
            for stage in split(&program, &[0..1, 1..2, 2..layers]).unwrap() {
                let whole = maker(&model.checkpoint.weights).make(&stage, room).unwrap();
                let own = tempfile::tempdir().unwrap();
                hollow(&model, &folder, own.path(), &stored(&stage.program, &stage.tensors));
                let copy = Model::open(&own.path().display().to_string()).unwrap();
                assert_eq!(index_of(&copy.checkpoint.weights), index_of(&model.checkpoint.weights));
                let mut made = maker(&copy.checkpoint.weights).make(&stage, room).unwrap();
                for rows in [1, 4] {
                    made.worker.warm(rows).unwrap();
                    assert_eq!(made.worker.held(), 0);
                }
                assert_eq!((made.image, made.program), (whole.image, whole.program), "{}", folder.display());
                assert_eq!(made.read, made.reads.bytes, "{}: each byte of its own, once", folder.display());
                assert!(made.reads.requests <= 3, "{:?}", made.reads);
                sum += made.reads.bytes;
            }
            // No tensor is on two stages, and all that is used is on one.
            let used: std::collections::BTreeSet<&str> =
                program.tensors.iter().flat_map(|t| &t.view.parts).map(|part| part.tensor.as_str()).collect();
            let entries = model.checkpoint.weights.entries().filter(|(_, e)| used.contains(e.name.as_str()));
            assert_eq!(sum, entries.map(|(_, e)| e.bytes.end - e.bytes.start).sum::<u64>(), "{}", folder.display());
        }
    }
}
