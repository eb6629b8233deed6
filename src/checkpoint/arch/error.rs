//! `ArchError`: why a checkpoint's config and weight headers give no `Spec`. Every message names the key or the tensor.

use safetensors::Dtype;

/// Why there is no `Spec` for a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum ArchError {
    /// The config is not a JSON object.
    #[error("not a JSON object{}", source.as_ref().map(|e| format!(": {e}")).unwrap_or_default())]
    NotAnObject {
        /// What the JSON reader found, when it is no JSON at all.
        #[source]
        source: Option<serde_json::Error>,
    },
    /// An architecture that is not known. Never mapped to one that looks alike.
    #[error("architecture {found} is not known; known are {known}")]
    Unknown {
        /// What the config says.
        found: String,
        /// The known ones.
        known: String,
    },
    /// A key that must be there is not.
    #[error("key '{key}' is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A value of the wrong kind or out of range.
    #[error("key '{key}': {given} is not {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// The value, shortened.
        given: String,
        /// What is accepted.
        expected: String,
    },
    /// A value that is understood and would change the arithmetic to one that is not supported.
    #[error("key '{key}': {given} is not supported: {reason}")]
    Unsupported {
        /// The key.
        key: String,
        /// The value, shortened.
        given: String,
        /// Why.
        reason: String,
    },
    /// A key that is neither read nor known to be inert.
    #[error(
        "key '{key}' ({given}) is not understood; it may change the arithmetic, so the model is refused. \
         docs/checkpoint.md lists the keys that are read and those that change nothing"
    )]
    UnknownKey {
        /// The key.
        key: String,
        /// The value, shortened.
        given: String,
    },
    /// Two keys contradict each other.
    #[error("keys '{first}' and '{second}' contradict each other: {reason}")]
    Conflict {
        /// One key.
        first: String,
        /// The other.
        second: String,
        /// How.
        reason: String,
    },
    /// The weight file lacks a tensor.
    #[error("tensor '{tensor}' is missing: {purpose}")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// What it is for, and which key asks for it.
        purpose: String,
    },
    /// A tensor's shape is not the one that the config gives.
    #[error("tensor '{tensor}' ({purpose}) has shape {found:?}, the config asks for {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// What it is for.
        purpose: String,
        /// Shape as stored.
        found: Vec<usize>,
        /// Each dimension with the keys that it comes from.
        expected: String,
    },
    /// The weight file contradicts a key.
    #[error("key '{key}': {reason} (tensor '{tensor}', shape {found:?})")]
    Evidence {
        /// The key.
        key: String,
        /// How.
        reason: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// A weight of a type that has no widening.
    #[error("tensor '{tensor}' ({purpose}) is stored as {dtype}, which is no weight's type")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// What it is for.
        purpose: String,
        /// Type as stored.
        dtype: Dtype,
    },
    /// A tensor that nothing of the model uses.
    #[error("tensor '{tensor}' is used by nothing of this model{hint}; and it is not on the list of tensors to skip")]
    Unused {
        /// The tensor.
        tensor: String,
        /// What may explain it.
        hint: String,
    },
}

impl ArchError {
    /// The same error; a missing tensor is said to be asked for by these keys.
    pub(super) fn because(self, keys: &str) -> Self {
        match self {
            Self::MissingTensor { tensor, purpose } => {
                Self::MissingTensor { tensor, purpose: format!("{purpose}, asked for by {keys}") }
            }
            other => other,
        }
    }
}
