//! `Profile`: where the time of a step goes, by kind of kernel, from the device's own timestamps.
//!
//! A timestamp follows every dispatch; a dispatch has the time since the one before it ended, so the times add up to the
//! step's. Where a device takes timestamps only where a pass begins or ends, every dispatch stands in a pass of its own,
//! which may cost several times what a small kernel does: there a profile says which kinds are many or large, and a step
//! that is not profiled how long it is.

use super::device::Gpu;
use super::error::GpuError;
use super::record::{Dispatch, ReadBack, Staging, copy_back, fill};
use super::region::Region;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most timestamps of a set.
const SET: usize = 4096;

/// What the kernels of one kind took.
#[derive(Clone, Debug, PartialEq)]
pub struct KindTime {
    /// Name of the kernel.
    pub kind: String,
    /// Dispatches in all steps.
    pub dispatches: u64,
    /// Time in all steps.
    pub time: Duration,
}

/// Times of the dispatches of some steps, summed by kind.
#[derive(Debug, Default)]
pub struct Profile {
    marks: Option<Marks>,
    kinds: BTreeMap<String, (u64, f64)>,
    steps: u64,
}

#[derive(Debug)]
struct Marks {
    sets: Vec<wgpu::QuerySet>,
    resolved: wgpu::Buffer,
    staging: Staging,
    room: usize,
}

impl Marks {
    fn new(gpu: &Gpu, dispatches: usize) -> Result<Self, GpuError> {
        let count = (dispatches + 1).div_ceil(SET);
        let size = (count * SET * 8) as u64;
        let (sets, resolved) = gpu.scope("timestamps of a step", |device| {
            let (ty, label) = (wgpu::QueryType::Timestamp, Some("profile"));
            let descriptor = wgpu::QuerySetDescriptor { label, ty, count: SET as u32 };
            let sets = (0..count).map(|_| device.create_query_set(&descriptor)).collect();
            let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
            let buffer = wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false };
            (sets, device.create_buffer(&buffer))
        })?;
        Ok(Self { sets, resolved, staging: Staging::new(gpu, size)?, room: dispatches })
    }
}

impl Profile {
    /// Record dispatches, a pass each, then the copies; `None` where the device has no timestamps.
    ///
    /// # Errors
    /// The driver refuses something, or the device is lost.
    pub fn encode(
        &mut self,
        gpu: &Gpu,
        clears: &[Region],
        dispatches: &[Dispatch],
        reads: &[ReadBack<'_>],
    ) -> Result<Option<wgpu::CommandBuffer>, GpuError> {
        if !gpu.facts().timestamps || dispatches.is_empty() {
            return Ok(None);
        }
        if self.marks.as_ref().is_none_or(|marks| marks.room < dispatches.len()) {
            self.marks = Some(Marks::new(gpu, dispatches.len())?);
        }
        let Some(marks) = &self.marks else { return Ok(None) };
        gpu.scope("a profiled step", |device| {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            for region in clears {
                encoder.clear_buffer(region.buffer(), region.offset(), Some(region.size()));
            }
            // Mark 0 is the moment before the first dispatch, mark n the end of the n-th.
            if device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES) {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                pass.write_timestamp(&marks.sets[0], 0);
                for (end, dispatch) in (1..).zip(dispatches) {
                    fill(&mut pass, std::slice::from_ref(dispatch));
                    pass.write_timestamp(&marks.sets[end / SET], (end % SET) as u32);
                }
            } else {
                pass(&mut encoder, &marks.sets[0], (Some(0), None), &[]);
                for (end, dispatch) in (1..).zip(dispatches) {
                    let place = (None, Some((end % SET) as u32));
                    pass(&mut encoder, &marks.sets[end / SET], place, std::slice::from_ref(dispatch));
                }
            }
            let all = dispatches.len() + 1;
            for (n, set) in marks.sets.iter().enumerate().filter(|(n, _)| n * SET < all) {
                let count = (all - n * SET).min(SET) as u32;
                encoder.resolve_query_set(set, 0..count, &marks.resolved, (n * SET * 8) as u64);
            }
            marks.staging.take(&mut encoder, &marks.resolved);
            copy_back(&mut encoder, reads);
            Some(encoder.finish())
        })
    }

    /// Take in the times of the step that was recorded last and has run.
    ///
    /// # Errors
    /// The device fails.
    pub fn take(&mut self, gpu: &Gpu, dispatches: &[Dispatch]) -> Result<(), GpuError> {
        let Some(marks) = &self.marks else { return Ok(()) };
        let size = 8 * (dispatches.len() as u64 + 1);
        let ticks: Vec<u64> = marks.staging.read(gpu, size, bytemuck::pod_collect_to_vec)?;
        let period = f64::from(gpu.queue().get_timestamp_period());
        for (dispatch, ends) in dispatches.iter().zip(ticks.windows(2)) {
            let (count, time) = self.kinds.entry(dispatch.label().to_owned()).or_default();
            *count += 1;
            *time += ends[1].saturating_sub(ends[0]) as f64 * period;
        }
        self.steps += 1;
        Ok(())
    }

    /// Steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What each kind of kernel took, by name.
    pub fn kinds(&self) -> impl Iterator<Item = KindTime> {
        self.kinds.iter().map(|(kind, (dispatches, nanoseconds))| KindTime {
            kind: kind.clone(),
            dispatches: *dispatches,
            time: Duration::from_nanos(*nanoseconds as u64),
        })
    }
}

/// A pass of dispatches with timestamps where it begins and where it ends.
fn pass(
    encoder: &mut wgpu::CommandEncoder,
    query_set: &wgpu::QuerySet,
    (beginning_of_pass_write_index, end_of_pass_write_index): (Option<u32>, Option<u32>),
    dispatches: &[Dispatch],
) {
    let writes = wgpu::ComputePassTimestampWrites { query_set, beginning_of_pass_write_index, end_of_pass_write_index };
    let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(writes) };
    fill(&mut encoder.begin_compute_pass(&descriptor), dispatches);
}
