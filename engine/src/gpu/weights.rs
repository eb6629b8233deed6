//! A program's tensors in device memory.

use super::error::DeviceError;
use crate::image::{Image, ImageError};
use wordline_ir::TensorId;
use wordline_ir::command::Role;
use wordline_kernels::gpu::weights::DeviceMatrix;
use wordline_kernels::gpu::{Gpu, Region};

/// A tensor in device memory.
pub(super) enum Weight {
    Matrix(DeviceMatrix),
    Plain(Region),
}

/// Hold all of a matrix to its digest, so that no step waits for that: a digest of one row's chunk takes longer than a
/// kernel of the whole matrix.
pub(super) fn check(image: &Image, id: TensorId) -> Result<(), ImageError> {
    image.matrix(id).map_or(Ok(()), |matrix| image.touch(id, 0..matrix.layout().tiles()))
}

pub(super) fn upload(gpu: &Gpu, image: &Image, id: TensorId, role: Role) -> Result<Weight, DeviceError> {
    let what = format!("tensor {}", id.index());
    if role == Role::Plain {
        return Ok(Weight::Plain(gpu.upload(&what, bytemuck::cast_slice(image.plain(id)))?));
    }
    if let Some(matrix) = image.matrix(id) {
        image.touch(id, 0..matrix.layout().tiles())?;
        return Ok(Weight::Matrix(DeviceMatrix::matrix(gpu, &what, matrix)?));
    }
    if let Some(stack) = image.stack(id) {
        image.touch(id, 0..stack.layout().tiles())?;
        return Ok(Weight::Matrix(DeviceMatrix::stack(gpu, &what, stack)?));
    }
    Ok(Weight::Plain(gpu.upload(&what, &[])?))
}
