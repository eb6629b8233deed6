//! `Backend`: what an engine's commands run on, by the command line's choice.

use std::sync::Arc;
use wordline_engine::{Capacity, EngineModel, Image, Kernels, ModelError, Sequencer};
#[cfg(feature = "gpu")]
use wordline_kernels::gpu::{Choice, Gpu, GpuError, Method};

/// What runs the units. Every backend gives the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The processor.
    #[default]
    Cpu,
    /// A graphics device, by packed int8 dot products; by the table of products, then on the processor, where the gates
    /// do not pass.
    Dp4a,
    /// A graphics device, by the table of products; on the processor where the gates do not pass.
    Lut,
}

/// Why a backend cannot be had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// The program was built without it.
    #[error("backend '{0}' is not built into this program: it was built without the feature 'gpu'")]
    NotBuilt(&'static str),
    /// There is no device.
    #[cfg(feature = "gpu")]
    #[error("backend '{name}': {source}")]
    Device {
        /// The backend.
        name: &'static str,
        /// Why.
        #[source]
        source: GpuError,
    },
}

impl Backend {
    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Dp4a => "dp4a",
            Backend::Lut => "lut",
        }
    }

    /// Open the device, if it takes one; once in a process.
    ///
    /// # Errors
    /// There is none.
    pub fn open(self) -> Result<(), BackendError> {
        match self {
            Backend::Cpu => Ok(()),
            #[cfg(feature = "gpu")]
            Backend::Dp4a | Backend::Lut => {
                device().map(|_| ()).map_err(|source| BackendError::Device { name: self.name(), source })
            }
            #[cfg(not(feature = "gpu"))]
            Backend::Dp4a | Backend::Lut => Err(BackendError::NotBuilt(self.name())),
        }
    }

    /// An engine on this backend; on the processor where there is no device, and its notices say so.
    ///
    /// # Errors
    /// As [`EngineModel::int8`].
    pub fn engine(
        self,
        sequencer: Sequencer,
        capacity: Capacity,
        image: impl Into<Arc<Image>>,
        kernels: Kernels,
        threads: usize,
    ) -> Result<EngineModel, ModelError> {
        #[cfg(feature = "gpu")]
        if let Some(methods) = self.methods()
            && let Ok(gpu) = device()
        {
            return EngineModel::gpu(sequencer, capacity, image, (gpu, methods), kernels, threads);
        }
        EngineModel::int8(sequencer, capacity, image, kernels, threads)
    }

    /// The method that is meant, of a device.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn method(self) -> Option<Method> {
        self.methods().and_then(|methods| methods.first().copied())
    }

    /// Methods in the order in which they are tried.
    #[cfg(feature = "gpu")]
    fn methods(self) -> Option<&'static [Method]> {
        match self {
            Backend::Cpu => None,
            Backend::Dp4a => Some(&[Method::Dp4a, Method::Lut]),
            Backend::Lut => Some(&[Method::Lut]),
        }
    }
}

/// The device of this process.
///
/// # Errors
/// There is none.
#[cfg(feature = "gpu")]
pub fn device() -> Result<Gpu, GpuError> {
    static DEVICE: std::sync::OnceLock<Result<Gpu, GpuError>> = std::sync::OnceLock::new();
    DEVICE.get_or_init(|| Gpu::open(&Choice::Best)).clone()
}
