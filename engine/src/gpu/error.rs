//! `DeviceError`: why a program is not on a device.

use crate::error::ModelError;
use crate::image::ImageError;
use wordline_kernels::gate::UnitsError;
use wordline_kernels::gpu::GpuError;
use wordline_kernels::gpu::weights::UploadError;

/// Why a program is not on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device fails, or has no room.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A weight cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A weight cannot be brought there.
    #[error(transparent)]
    Upload(#[from] UploadError),
    /// The program cannot be run by any units.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The mirror, which the device is held to, does not compute.
    #[error(transparent)]
    Units(#[from] UnitsError),
}
