//! `Region`: memory of the device, a whole buffer or a part of one.

use super::error::GpuError;

/// A run of bytes of a buffer.
#[derive(Clone, Debug)]
pub struct Region {
    buffer: wgpu::Buffer,
    offset: u64,
    size: u64,
}

impl Region {
    /// A whole buffer.
    #[must_use]
    pub fn new(buffer: wgpu::Buffer) -> Self {
        let size = buffer.size();
        Self { buffer, offset: 0, size }
    }

    /// `size` bytes from `offset` on. What a shader sees begins at a multiple of [`Gpu::align`](super::device::Gpu::align).
    ///
    /// # Errors
    /// They are not inside this region.
    pub fn part(&self, offset: u64, size: u64) -> Result<Self, GpuError> {
        let end = offset.saturating_add(size);
        if end > self.size {
            let what = "end of a part of a region".to_owned();
            return Err(GpuError::TooLarge { what, given: end, limit: self.size });
        }
        Ok(Self { buffer: self.buffer.clone(), offset: self.offset + offset, size })
    }

    /// The buffer.
    #[must_use]
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// First byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn binding(&self) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.buffer,
            offset: self.offset,
            size: wgpu::BufferSize::new(self.size),
        })
    }
}
