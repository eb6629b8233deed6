//! `Dispatch`: work of the device; a list of dispatches recorded into one pass, and what is read
//! back.
//!
//! Dispatches of a pass run in order, each seeing what those before it wrote. A binding that a shader only reads must not
//! lie in a buffer that the same dispatch writes, whatever the offsets: slots that one kernel reads and writes are buffers
//! of their own, or all its bindings are `read_write`.

use super::device::{Gpu, Pipeline};
use super::error::GpuError;
use super::region::Region;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Longest time that another thread may hold back the word that memory is mapped.
const TOLD: Duration = Duration::from_secs(10);

/// One kernel over its operands.
#[derive(Clone, Debug)]
pub struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    bind: wgpu::BindGroup,
    groups: [u32; 3],
    label: Arc<str>,
}

impl Dispatch {
    /// `groups` workgroups of a pipeline; region `i` is the shader's `@group(0) @binding(i)`, and the shader uses every
    /// one of them.
    ///
    /// # Errors
    /// More workgroups than the device takes in one direction, or regions that do not fit the shader.
    pub fn new(
        gpu: &Gpu,
        label: &str,
        pipeline: &Pipeline,
        groups: [u32; 3],
        regions: &[&Region],
    ) -> Result<Self, GpuError> {
        let limit = gpu.facts().groups_limit;
        if let Some(given) = groups.into_iter().find(|n| *n > limit) {
            let what = format!("{label}: workgroups");
            return Err(GpuError::TooLarge { what, given: given.into(), limit: limit.into() });
        }
        let entries: Vec<_> = regions
            .iter()
            .enumerate()
            .map(|(i, region)| wgpu::BindGroupEntry { binding: i as u32, resource: region.binding() })
            .collect();
        let descriptor = wgpu::BindGroupDescriptor { label: Some(label), layout: &pipeline.layout, entries: &entries };
        let bind = gpu.scope(label, |device| device.create_bind_group(&descriptor))?;
        Ok(Self { pipeline: pipeline.pipeline.clone(), bind, groups, label: label.into() })
    }

    /// Name for reports.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Workgroups.
    #[must_use]
    pub fn groups(&self) -> [u32; 3] {
        self.groups
    }
}

/// Memory that the host reads; kept from step to step.
#[derive(Clone, Debug)]
pub struct Staging(wgpu::Buffer);

impl Staging {
    /// Room for this many bytes.
    ///
    /// # Errors
    /// Memory ran out, or the device is lost.
    pub fn new(gpu: &Gpu, size: u64) -> Result<Self, GpuError> {
        let descriptor = wgpu::BufferDescriptor {
            label: Some("read back"),
            size: size.max(4).next_multiple_of(4),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        gpu.scope("memory to read back", |device| device.create_buffer(&descriptor)).map(Self)
    }

    /// Bytes of room.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// Record a copy of a whole buffer.
    pub(super) fn take(&self, encoder: &mut wgpu::CommandEncoder, from: &wgpu::Buffer) {
        encoder.copy_buffer_to_buffer(from, 0, &self.0, 0, from.size());
    }

    /// Wait until the submissions so far have ended, and show the first `size` bytes to `see`.
    ///
    /// # Errors
    /// `size` is above the room, or the device fails.
    pub fn read<T>(&self, gpu: &Gpu, size: u64, see: impl FnOnce(&[u8]) -> T) -> Result<T, GpuError> {
        let what = "bytes read back".to_owned();
        let end = size.next_multiple_of(4);
        if end > self.0.size() {
            return Err(GpuError::TooLarge { what, given: size, limit: self.0.size() });
        }
        if size == 0 {
            return Ok(see(&[]));
        }
        let refused = |reason: String| GpuError::Refused { what, reason };
        let slice = self.0.slice(..end);
        let (tell, told) = mpsc::sync_channel(1);
        gpu.scope("reading back", |_| {
            slice.map_async(wgpu::MapMode::Read, move |result| {
                // Whoever waited has given up when nobody is there to be told.
                let _ = tell.send(result);
            });
        })?;
        gpu.wait(None)?;
        // Another thread that waits for the same device may have taken the word and not passed it on yet.
        match told.recv_timeout(TOLD) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(refused(e.to_string())),
            Err(_) => return Err(refused("the device did not map its memory".to_owned())),
        }
        let seen = match slice.get_mapped_range() {
            Ok(view) => Ok(see(&view[..size as usize])),
            Err(e) => Err(refused(e.to_string())),
        };
        self.0.unmap();
        seen
    }
}

/// Bytes of a region that go to a place in memory that the host reads, after the last dispatch.
#[derive(Clone, Copy, Debug)]
pub struct ReadBack<'a> {
    /// Where from.
    pub from: &'a Region,
    /// Where to.
    pub to: &'a Staging,
    /// First byte there, a multiple of 4.
    pub offset: u64,
}

/// Record dispatches into one pass, then the copies.
///
/// # Errors
/// The driver refuses something, or the device is lost.
pub fn encode(gpu: &Gpu, dispatches: &[Dispatch], reads: &[ReadBack<'_>]) -> Result<wgpu::CommandBuffer, GpuError> {
    encode_cleared(gpu, &[], dispatches, reads)
}

/// The same; these regions are zero when the first dispatch begins.
///
/// # Errors
/// As [`encode`].
pub fn encode_cleared(
    gpu: &Gpu,
    clears: &[Region],
    dispatches: &[Dispatch],
    reads: &[ReadBack<'_>],
) -> Result<wgpu::CommandBuffer, GpuError> {
    gpu.scope("a step", |device| {
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for region in clears {
            encoder.clear_buffer(region.buffer(), region.offset(), Some(region.size()));
        }
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            fill(&mut pass, dispatches);
        }
        copy_back(&mut encoder, reads);
        encoder.finish()
    })
}

pub(super) fn copy_back(encoder: &mut wgpu::CommandEncoder, reads: &[ReadBack<'_>]) {
    for read in reads {
        let (from, to) = (read.from, &read.to.0);
        encoder.copy_buffer_to_buffer(from.buffer(), from.offset(), to, read.offset, from.size());
    }
}

pub(super) fn fill(pass: &mut wgpu::ComputePass<'_>, dispatches: &[Dispatch]) {
    let mut set = None;
    for dispatch in dispatches {
        let [x, y, z] = dispatch.groups;
        if set != Some(&dispatch.pipeline) {
            pass.set_pipeline(&dispatch.pipeline);
            set = Some(&dispatch.pipeline);
        }
        pass.set_bind_group(0, &dispatch.bind, &[]);
        pass.dispatch_workgroups(x, y, z);
    }
}

/// Submit what was recorded.
///
/// # Errors
/// The driver refuses something, or the device is lost.
pub fn submit(gpu: &Gpu, commands: wgpu::CommandBuffer) -> Result<wgpu::SubmissionIndex, GpuError> {
    gpu.scope("a submission", |_| gpu.queue().submit([commands]))
}

/// Run dispatches and return the bytes of a region; for gates and tests, a step keeps its memory and its recording.
///
/// # Errors
/// The driver refuses something, or the device is lost.
pub fn run(gpu: &Gpu, dispatches: &[Dispatch], result: &Region) -> Result<Vec<u8>, GpuError> {
    let staging = Staging::new(gpu, result.size())?;
    let commands = encode(gpu, dispatches, &[ReadBack { from: result, to: &staging, offset: 0 }])?;
    submit(gpu, commands)?;
    staging.read(gpu, result.size(), <[u8]>::to_vec)
}
