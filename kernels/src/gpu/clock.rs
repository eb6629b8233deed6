//! `Clock`: how long a pass takes on the device; and how fast its memory is read and copied.

use super::device::Gpu;
use super::error::GpuError;
use super::record::{self, Dispatch, Staging};
use super::region::Region;
use std::time::Duration;

/// The host's clock, in nanoseconds from a moment of its own. Whoever measures brings it: nothing here reads the time.
pub type HostClock = fn() -> u64;

/// Times passes by the device's own timestamps where it has them, else by the host's clock around the submission.
#[derive(Debug)]
pub struct Clock {
    host: HostClock,
    marks: Option<Marks>,
}

#[derive(Debug)]
struct Marks {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: Staging,
}

impl Clock {
    /// A clock of this device.
    ///
    /// # Errors
    /// The device fails.
    pub fn new(gpu: &Gpu, host: HostClock) -> Result<Self, GpuError> {
        if !gpu.facts().timestamps {
            return Ok(Self { host, marks: None });
        }
        let (set, resolved) = gpu.scope("a clock", |device| {
            let ty = wgpu::QueryType::Timestamp;
            let set = device.create_query_set(&wgpu::QuerySetDescriptor { label: Some("clock"), ty, count: 2 });
            let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
            let descriptor =
                wgpu::BufferDescriptor { label: Some("clock"), size: 16, usage, mapped_at_creation: false };
            (set, device.create_buffer(&descriptor))
        })?;
        Ok(Self { host, marks: Some(Marks { set, resolved, staging: Staging::new(gpu, 16)? }) })
    }

    /// Run the dispatches as one pass; how long it took.
    ///
    /// # Errors
    /// The device fails.
    pub fn time(&self, gpu: &Gpu, dispatches: &[Dispatch]) -> Result<Duration, GpuError> {
        let Some(marks) = &self.marks else {
            let commands = record::encode(gpu, dispatches, &[])?;
            gpu.wait(None)?;
            let start = (self.host)();
            record::submit(gpu, commands)?;
            gpu.wait(None)?;
            return Ok(Duration::from_nanos((self.host)().saturating_sub(start)));
        };
        let commands = gpu.scope("a timed pass", |device| {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                    label: None,
                    timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                        query_set: &marks.set,
                        beginning_of_pass_write_index: Some(0),
                        end_of_pass_write_index: Some(1),
                    }),
                });
                record::fill(&mut pass, dispatches);
            }
            encoder.resolve_query_set(&marks.set, 0..2, &marks.resolved, 0);
            marks.staging.take(&mut encoder, &marks.resolved);
            encoder.finish()
        })?;
        record::submit(gpu, commands)?;
        let ticks = marks.staging.read(gpu, 16, |bytes| {
            let tick = |at: usize| bytes[at..at + 8].iter().rev().fold(0_u64, |n, b| n << 8 | u64::from(*b));
            tick(8).saturating_sub(tick(0))
        })?;
        Ok(Duration::from_nanos((ticks as f64 * f64::from(gpu.queue().get_timestamp_period())) as u64))
    }
}

/// Bytes a second that the device's memory gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Read by a kernel that does nothing else.
    pub read: f64,
    /// Copied by a kernel from buffer to buffer; a byte counts twice, for it is read and written.
    pub copy: f64,
}

/// Workgroups of the read kernel take this many bytes each.
pub const READ_GROUP: u64 = 64 << 10;

impl Rates {
    /// The best of several rounds over `bytes` of memory, which should be well above every cache.
    ///
    /// # Errors
    /// The device fails.
    pub fn measure(gpu: &Gpu, clock: &Clock, bytes: u64, rounds: usize) -> Result<Self, GpuError> {
        let facts = gpu.facts();
        let bytes =
            bytes.min(facts.binding_limit).min(facts.buffer_limit).min(u64::from(facts.groups_limit) * READ_GROUP);
        let bytes = bytes / READ_GROUP * READ_GROUP;
        let (from, to, out) = (gpu.region("read", bytes)?, gpu.region("copy", bytes)?, gpu.region("sum", 16)?);
        let pass = vec![plain_read(gpu, &from, &out)?; 4];
        let copies = vec![plain_copy(gpu, &from, &to)?; 2];
        let (mut read, mut copy) = (Duration::MAX, Duration::MAX);
        for _ in 0..rounds.max(1) {
            read = read.min(clock.time(gpu, &pass)?);
            copy = copy.min(clock.time(gpu, &copies)?);
        }
        let rate = |n: u64, time: Duration| n as f64 / time.as_secs_f64().max(1e-9);
        Ok(Self { read: rate(bytes * pass.len() as u64, read), copy: rate(2 * bytes * copies.len() as u64, copy) })
    }
}

/// A kernel that reads a region and does nothing else; `out` has a word that it could write. What lies past the last
/// whole 64 KiB is not read.
///
/// # Errors
/// The device fails.
pub fn plain_read(gpu: &Gpu, region: &Region, out: &Region) -> Result<Dispatch, GpuError> {
    let pipeline = gpu.pipeline("plain read", READ)?;
    Dispatch::new(gpu, "plain read", &pipeline, [(region.size() / READ_GROUP) as u32, 1, 1], &[region, out])
}

/// A kernel that copies a region to another of its size, which is in another buffer; as [`plain_read`], by 64 KiB.
///
/// # Errors
/// The device fails.
pub fn plain_copy(gpu: &Gpu, from: &Region, to: &Region) -> Result<Dispatch, GpuError> {
    let pipeline = gpu.pipeline("plain copy", COPY)?;
    Dispatch::new(gpu, "plain copy", &pipeline, [(from.size() / READ_GROUP) as u32, 1, 1], &[from, to])
}

/// A kernel of one workgroup that changes a word each of whose values waits for the one before: what starting a kernel
/// costs when it has nothing to do.
///
/// # Errors
/// The device fails.
pub fn nothing(gpu: &Gpu, word: &Region) -> Result<Dispatch, GpuError> {
    let pipeline = gpu.pipeline("nothing", NOTHING)?;
    Dispatch::new(gpu, "nothing", &pipeline, [1, 1, 1], &[word])
}

const NOTHING: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) local: u32) {
  if (local == 0u) { x[0] = x[0] + 1u; }
}
";

const COPY: &str = "
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let at = group.x * 4096u + local;
  for (var i = at; i < at + 4096u; i += 1024u) {
    let a0 = x[i]; let a1 = x[i + 256u]; let a2 = x[i + 512u]; let a3 = x[i + 768u];
    y[i] = a0; y[i + 256u] = a1; y[i + 512u] = a2; y[i + 768u] = a3;
  }
}
";

const READ: &str = "
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
  let at = group.x * 4096u + local;
  var sum = vec4<u32>(0u);
  for (var i = at; i < at + 4096u; i += 2048u) {
    let a0 = x[i]; let a1 = x[i + 256u]; let a2 = x[i + 512u]; let a3 = x[i + 768u];
    let a4 = x[i + 1024u]; let a5 = x[i + 1280u]; let a6 = x[i + 1536u]; let a7 = x[i + 1792u];
    sum ^= a0 ^ a1 ^ a2 ^ a3 ^ a4 ^ a5 ^ a6 ^ a7;
  }
  // Never true for what is read here, which no compiler knows.
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x5bd1e995u) { y[0] = local; }
}
";
