//! What comes of a gate, whichever unit's it is.

use super::error::GpuError;
use super::matvec::RunError;
use super::weights::UploadError;
use crate::probe::Probe;

/// Why the gate does not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// A test whose bits are not the mirror's.
    #[error("{0}")]
    Test(String),
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// What a method that passed all its gates has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Tests, those of the array unit among them.
    pub tests: usize,
    /// The array unit's probe.
    pub probe: Probe,
}

impl From<RunError> for Failed {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Gpu(error) => Self::Gpu(error),
            other => Self::Test(other.to_string()),
        }
    }
}

impl From<UploadError> for Failed {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Gpu(error) => Self::Gpu(error),
            error @ UploadError::Layout(_) => Self::Test(error.to_string()),
        }
    }
}

impl From<Failed> for RunError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Gpu(error) => error.into(),
            Failed::Test(reason) => GpuError::Refused { what: "the probe".to_owned(), reason }.into(),
        }
    }
}
