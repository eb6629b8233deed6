//! `Maker`: stages from assignments. Everything in one is validated, the stage's own tensors are read from the device's own copy
//! of the model, and its engine is made.

use super::demand::{Reads, demand, reads, stored};
use super::plan::{Device, Plan, PlanError, Room};
use super::wire::{Assign, Member, Ready};
use super::worker::Worker;
use crate::checkpoint::{FileError, Weights, mxfp4};
use crate::image_cache::{CacheError, ImageCache};
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wordline_engine::image::{BuildError, LayoutError, build_into};
use wordline_engine::source::{SourceError, WeightSource};
use wordline_engine::team::Team;
use wordline_engine::{
    Capacity, EngineModel, Image, ImageError, ImageLayout, Kernels, ModelError, Sequencer, WordsError,
};
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
    /// The disk does not take the image.
    #[error("{0}; free some, name another directory in WORDLINE_CACHE, or give --no-cache")]
    Disk(String),
}

impl LoadError {
    /// The error's name on the wire.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            LoadError::Index { .. } => "model",
            LoadError::Json { .. } | LoadError::Program(_) | LoadError::Split(_) | LoadError::Words(_) => "assignment",
            LoadError::Plan(_) => "plan",
            LoadError::Layout(_) | LoadError::Build(_) | LoadError::Image(_) | LoadError::Weights(_) => "weights",
            LoadError::Engine(_) => "engine",
            LoadError::Disk(_) => "disk",
        }
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
    /// Where images are kept; none builds them in memory.
    pub cache: Option<&'a ImageCache>,
    /// Told how many bytes of how many of an image are built.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
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
    /// SHA-256 over the digests of its tensors.
    pub image: [u8; 32],
    /// What its tensors take of the weight files.
    pub reads: Reads,
    /// Bytes of stored tensors that were in fact asked for; 0 when the image was there.
    pub read: u64,
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
    pub fn assigned(&self, assign: &Assign, heard: &[Member]) -> Result<(Worker, Ready), LoadError> {
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
        Ok((made.worker, ready))
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
        let counted = Counted { weights: self.weights, read: AtomicU64::new(0) };
        let image = Arc::new(self.image(stage, &counted)?);
        let mut hasher = Sha256::new();
        for id in &stage.tensors {
            hasher.update(id.get().to_le_bytes());
            hasher.update(image.digest(*id).unwrap_or_default());
        }
        let capacity = Capacity { ctx: room.ctx as usize, step_rows: room.step_rows as usize };
        let sequencer = Sequencer::new(program)?;
        let engine = EngineModel::int8(sequencer, capacity, image, self.kernels.clone(), self.threads)?;
        Ok(Made {
            worker: Worker::new(engine),
            program: program_digest(program),
            image: hasher.finalize().into(),
            reads: reads(program, &stage.tensors, self.weights),
            read: counted.read.into_inner(),
        })
    }

    fn image(&self, stage: &Stage, source: &Counted<'_>) -> Result<Image, LoadError> {
        let program = &stage.program;
        let layout = ImageLayout::of_used(program)?;
        let names = stored(program, &stage.tensors);
        let content: [u8; 32] = Sha256::digest(self.weights.part_identity(&names)?).into();
        let progress = |done, total| {
            (self.progress)(done, total);
            true
        };
        let build = |out: &mut [u8]| -> Result<(), LoadError> {
            // In as few requests as the stage's tensors allow, where they are on the Hub.
            self.weights.fetch(names.iter().copied(), &|_, _| {})?;
            build_into(program, &layout, source, content, out, &mut Team::new(self.threads), &progress)?;
            Ok(())
        };
        let Some(cache) = self.cache else {
            let mut bytes = vec![0; layout.bytes()];
            build(&mut bytes)?;
            return Ok(Image::open_used(program, bytes, Some(content))?);
        };
        let mut hasher = Sha256::new();
        hasher.update(layout.identity());
        hasher.update(content);
        let key = hex(&hasher.finalize());
        for last in [false, true] {
            match cache.get(&key, layout.bytes(), build) {
                Ok(map) => match Image::open_used(program, map, Some(content)) {
                    Ok(image) => return Ok(image),
                    Err(error) if last => return Err(error.into()),
                    // Damaged on disk: it is built again.
                    Err(_) => cache.discard(&key),
                },
                Err(CacheError::Build(error)) => return Err(error),
                Err(error @ CacheError::Io { .. }) => return Err(LoadError::Disk(error.to_string())),
            }
        }
        Err(LoadError::Disk(format!("{}: damaged twice", cache.path(&key).display())))
    }
}

/// Weights that count the stored bytes that are asked of them.
struct Counted<'a> {
    weights: &'a Weights,
    read: AtomicU64,
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
