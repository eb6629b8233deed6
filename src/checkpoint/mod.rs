//! Checkpoints: a folder of config.json, safetensors files and a tokenizer, read as a `Spec` and a source of weights.
//!
//! Ladder: [`files::Folder`] (disk, embedded, or on the [`hub`]) -> [`header`] (every claim of a file's header checked) ->
//! [`weights::Weights`] (all tensors by name, mapped) -> [`arch`] (config and headers to a `Spec`, by evidence) ->
//! [`view`] (rows of a view, widened to f32, as the weight image asks for them).
//!
//! **Invariant**: opening a checkpoint reads its config and headers; tensor bytes are read when rows of them are asked
//! for. The one exception is a stored LM head, compared with the embedding as far as the two agree, where both are on
//! disk or embedded; of a model on the Hub no tensor byte moves.

pub mod arch;
pub mod files;
pub mod header;
pub mod hub;
mod identity;
pub mod json;
pub mod mxfp4;
pub mod roles;
pub mod view;
pub mod weights;
pub mod widen;

pub use arch::{ArchError, Note};
pub use files::{FileError, Folder};
pub use header::HeaderError;
pub use identity::WHOLE_LIMIT;
pub use view::ViewError;
pub use weights::{TensorRef, Weights, WeightsError};

use serde_json::Value;
use std::path::Path;
use wordline_ir::Spec;

/// Name of the config.
pub const CONFIG_FILE: &str = "config.json";

/// One checkpoint: its facts, and its weights as a source of rows.
#[derive(Debug)]
pub struct Checkpoint {
    /// Where its files are.
    pub folder: Folder,
    /// config.json.
    pub config: Value,
    /// The facts that everything downstream works from.
    pub spec: Spec,
    /// Config keys that were there and changed nothing in `spec`, with reasons.
    pub notes: Vec<Note>,
    /// Every tensor.
    pub weights: Weights,
}

/// Why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The weight files or their headers are wrong.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Config and weight headers give no `Spec`.
    #[error("{file}: {source}")]
    Config {
        /// The config.
        file: String,
        /// Why.
        #[source]
        source: Box<ArchError>,
    },
}

impl Checkpoint {
    /// The checkpoint in a directory.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::from_folder(Folder::open(path.as_ref())?)
    }

    /// The checkpoint in a folder, on disk or embedded.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn from_folder(folder: Folder) -> Result<Self, CheckpointError> {
        let file = folder.label(CONFIG_FILE);
        let text = folder.read(CONFIG_FILE)?.ok_or_else(|| FileError::Absent { file: file.clone() })?;
        let in_config = |source| CheckpointError::Config { file: file.clone(), source: Box::new(source) };
        let config = json::parse(&text).map_err(|source| in_config(ArchError::NotAnObject { source: Some(source) }))?;
        let weights = Weights::open(&folder)?;
        let arch::Loaded { spec, notes } = arch::load(&config, &weights).map_err(in_config)?;
        Ok(Self { folder, config, spec, notes, weights })
    }
}
