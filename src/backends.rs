//! `Backend`: what an engine's commands run on, by the command line's choice.

#[cfg(feature = "gpu")]
use std::path::Path;
use std::sync::Arc;
use wordline_engine::{Capacity, EngineModel, Image, Kernels, ModelError, Sequencer};
#[cfg(feature = "gpu")]
use wordline_kernels::gpu::{Choice, Gpu, GpuError, Kind, Method};

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

    /// What computes fastest here: a graphics device with memory of its own, by packed dot products; without one the processor,
    /// whose memory the others share. No device is opened, and no driver loaded where the system has no device.
    #[must_use]
    pub fn best() -> Self {
        #[cfg(feature = "gpu")]
        if has_device(Path::new("/dev")) && Gpu::list().first().is_some_and(|facts| facts.kind == Kind::Discrete) {
            return Backend::Dp4a;
        }
        Backend::Cpu
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

/// Whether the system has the node of a graphics device under this folder; where devices have no nodes, they may be there.
/// Looking is free, while drivers that are loaded without a device say so on standard error.
#[cfg(feature = "gpu")]
fn has_device(nodes: &Path) -> bool {
    let renders = |folder: std::fs::ReadDir| {
        folder.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("renderD"))
    };
    !cfg!(target_os = "linux")
        || ["nvidiactl", "dxg"].iter().any(|node| nodes.join(node).exists())
        || std::fs::read_dir(nodes.join("dri")).is_ok_and(renders)
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

#[cfg(all(test, feature = "gpu", target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_a_node() {
        let nodes = tempfile::tempdir().unwrap();
        let create = |name: &str| std::fs::write(nodes.path().join(name), "").unwrap();
        std::fs::create_dir(nodes.path().join("dri")).unwrap();
        create("dri/card0");
        create("null");
        assert!(!has_device(nodes.path()) && !has_device(&nodes.path().join("none")));
        create("dri/renderD128");
        assert!(has_device(nodes.path()));
        std::fs::remove_dir_all(nodes.path().join("dri")).unwrap();
        create("nvidiactl");
        assert!(has_device(nodes.path()));
    }
}
