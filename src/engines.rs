//! Engines for a model: the reference on the checkpoint's own weights, and the int8 one on its weight image.

use crate::backends::Backend;
use crate::checkpoint::FileError;
use crate::image_cache::{CacheError, ImageCache};
use crate::image_memory::{ImageBytes, hold, zeroed};
use crate::model::Model;
use crate::random_weights::RandomWeights;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use wordline_engine::image::{BuildError, Digest, Image, ImageError, ImageLayout, LayoutError, build_into};
use wordline_engine::team::Team;
use wordline_engine::{Capacity, EngineModel, Kernels, Linear, ModelError, Sequencer, WordsError};
use wordline_ir::Program;
use wordline_ir::digest::hex;
use wordline_kernels::gate::{UnitsError, Verdict};

/// Why there is no engine for a model.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The program was refused.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// The engine could not be made.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A matrix has no place in a weight image.
    #[error("no weight image: {0}")]
    Layout(#[from] LayoutError),
    /// The weight image could not be built.
    #[error("no weight image: {0}")]
    Build(#[from] BuildError),
    /// The system has no memory for the weight image.
    #[error("no memory for the weight image: {0}; take a smaller model, or give the image a cache on disk")]
    Memory(#[source] std::io::Error),
    /// The weight image was refused, although it was built just now.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The weights cannot be read, or fetched.
    #[error(transparent)]
    Weights(#[from] FileError),
    /// The units do not compute on this device.
    #[error("this device does not compute: {0}")]
    Units(#[from] UnitsError),
}

/// Who is told how the making of an engine goes.
pub trait Watch: Sync {
    /// `done` of `total` bytes of the weight image are built.
    fn building(&self, done: usize, total: usize) {
        let _ = (done, total);
    }

    /// `done` of `total` bytes of weights have come from the Hub.
    fn fetching(&self, done: u64, total: u64) {
        let _ = (done, total);
    }

    /// Something that does not stop the work, in a sentence.
    fn remark(&self, text: &str) {
        let _ = text;
    }
}

/// A [`Watch`] that looks away.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Watch for Unwatched {}

/// What engines are made with.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The checkpoint.
    pub model: &'a Model,
    /// The program to run.
    pub program: &'a Program,
    /// Room for sequences.
    pub capacity: Capacity,
    /// Threads.
    pub threads: usize,
    /// What runs the int8 engine's commands.
    pub backend: Backend,
    /// Where weight images are kept; none builds them in memory.
    pub cache: Option<&'a ImageCache>,
    /// Who is told.
    pub watch: &'a dyn Watch,
}

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("model", &self.model.name)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl Setup<'_> {
    /// The reference engine: f64 sums over unquantised weights, linear layers as `linear` says.
    ///
    /// # Errors
    /// The program is not sound, the capacity is none, or a weight cannot be read.
    pub fn reference(&self, linear: Linear) -> Result<EngineModel, EngineError> {
        let sequencer = Sequencer::new(self.program)?;
        self.fetch()?;
        Ok(EngineModel::reference(sequencer, self.capacity, &self.model.checkpoint.weights, linear, self.threads)?)
    }

    /// The int8 engine on the fastest units of this device, its weight image taken from the cache or built.
    ///
    /// # Errors
    /// As [`Setup::reference`]; a weight cannot be quantised; or the device does not compute.
    pub fn int8(&self) -> Result<EngineModel, EngineError> {
        self.int8_on(kernels(self.watch)?)
    }

    /// The int8 engine on given units.
    ///
    /// # Errors
    /// As [`Setup::int8`].
    pub fn int8_on(&self, kernels: Kernels) -> Result<EngineModel, EngineError> {
        self.int8_of(self.image()?, kernels)
    }

    /// The int8 engine on given units and the program's weight image.
    ///
    /// # Errors
    /// As [`Setup::int8`].
    pub fn int8_of(&self, image: impl Into<Arc<Image>>, kernels: Kernels) -> Result<EngineModel, EngineError> {
        let sequencer = Sequencer::new(self.program)?;
        Ok(self.backend.engine(sequencer, self.capacity, image, kernels, self.threads)?)
    }

    /// The program's weight image.
    ///
    /// # Errors
    /// A weight cannot be read or quantised.
    pub fn image(&self) -> Result<Image, EngineError> {
        let layout = ImageLayout::of(self.program)?;
        let content = Sha256::digest(self.model.checkpoint.weights.identity()?).into();
        let build = |out: &mut [u8]| self.build(&layout, content, out);
        let open = |bytes| Image::open(self.program, bytes, Some(content));
        Keep { cache: self.cache, threads: self.threads, watch: self.watch }.image(
            &layout,
            content,
            build,
            open,
            EngineError::Memory,
        )
    }

    /// Bring the weights of the program here, where the model is on the Hub.
    ///
    /// # Errors
    /// They cannot be fetched.
    pub fn fetch(&self) -> Result<(), EngineError> {
        let names = self.program.tensors.iter().flat_map(|t| &t.view.parts).map(|part| part.tensor.as_str());
        self.model.checkpoint.weights.fetch(names, &|done, total| self.watch.fetching(done, total))?;
        Ok(())
    }

    fn build(&self, layout: &ImageLayout, content: Digest, out: &mut [u8]) -> Result<(), EngineError> {
        self.fetch()?;
        let progress = |done, total| {
            self.watch.building(done, total);
            true
        };
        let weights = &self.model.checkpoint.weights;
        build_into(self.program, layout, weights, content, out, &mut Team::new(self.threads), &progress)?;
        Ok(())
    }
}

/// The fastest units of this device that pass their init gates; those that do not are remarked on.
///
/// # Errors
/// The device does not compute.
pub fn kernels(watch: &dyn Watch) -> Result<Kernels, EngineError> {
    let kernels = Kernels::new()?;
    for form in kernels.array.report().forms {
        if let Verdict::Failed(test) = form.verdict {
            let now = kernels.array.active();
            watch.remark(&format!("{} failed the init gate at '{test}'; {now} computes", form.form));
        }
    }
    Ok(kernels)
}

/// The weight image of a program with random weights, in memory.
///
/// # Errors
/// There is no memory for it.
pub fn random_image(program: &Program, seed: u64, threads: usize, watch: &dyn Watch) -> Result<Image, EngineError> {
    let layout = ImageLayout::of(program)?;
    let content = Sha256::digest(format!("random weights of seed {seed}")).into();
    let mut bytes = zeroed(layout.bytes()).map_err(EngineError::Memory)?;
    let progress = |done, total| {
        watch.building(done, total);
        true
    };
    let (source, mut team) = (RandomWeights::new(seed), Team::new(threads));
    build_into(program, &layout, &source, content, &mut bytes, &mut team, &progress)?;
    Ok(Image::open(program, ImageBytes::Held(bytes), Some(content))?)
}

/// Where weight images are kept, and who is told of it.
pub(crate) struct Keep<'a> {
    pub(crate) cache: Option<&'a ImageCache>,
    pub(crate) threads: usize,
    pub(crate) watch: &'a dyn Watch,
}

impl Keep<'_> {
    /// A weight image out of the cache, built into it the first time; in memory where there is no cache, or none that can be
    /// written.
    ///
    /// # Errors
    /// What `build` gives; no memory, as `memory` says it; or what was built is refused by `open`.
    pub(crate) fn image<E: std::error::Error + From<ImageError> + 'static>(
        &self,
        layout: &ImageLayout,
        content: Digest,
        build: impl Fn(&mut [u8]) -> Result<(), E>,
        open: impl Fn(ImageBytes) -> Result<Image, ImageError>,
        memory: impl Fn(std::io::Error) -> E,
    ) -> Result<Image, E> {
        let key = key(layout, content);
        if let Some(cache) = self.cache {
            // The second time around a damaged image has been removed.
            for _ in 0..2 {
                match cache.get(&key, layout.bytes(), &build) {
                    Ok(map) => match open(hold(map, self.threads)) {
                        Ok(image) => return Ok(image),
                        Err(error) => {
                            let path = cache.path(&key);
                            self.watch.remark(&format!("{}: {error}; it is built again", path.display()));
                            cache.discard(&key);
                        }
                    },
                    Err(CacheError::Build(error)) => return Err(error),
                    Err(error @ CacheError::Io { .. }) => {
                        self.watch.remark(&format!("{error}; the weight image is built in memory"));
                        break;
                    }
                }
            }
        }
        let mut bytes = zeroed(layout.bytes()).map_err(memory)?;
        build(&mut bytes)?;
        Ok(open(ImageBytes::Held(bytes))?)
    }
}

/// The image's name in the cache: the layout's identity covers program tensors, format and version, the content's the
/// checkpoint.
fn key(layout: &ImageLayout, content: Digest) -> String {
    let mut hasher = Sha256::new();
    hasher.update(layout.identity());
    hasher.update(content);
    hex(&hasher.finalize())
}
