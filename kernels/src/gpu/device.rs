//! `Gpu`: one graphics device, what it can do, its memory and pipelines, and every way in which it can fail.
//!
//! A failure is a [`GpuError`], never a panic: an adapter that is not there, memory that runs out, a shader or a binding
//! that the driver refuses, a device that is lost, a wait that does not end.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::GpuError;
use super::region::Region;

/// Longest wait for a submission: a driver that hangs must not hang its caller.
const WAIT: Duration = Duration::from_secs(600);
/// Times that a wait looks whether the device is done before it sleeps: some tens of milliseconds.
const GLANCES: usize = 1 << 14;

/// What kind of device an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A processor that acts as one.
    Software,
    /// Not told.
    Other,
    /// A share of another machine's.
    Virtual,
    /// In the processor, with its memory.
    Integrated,
    /// With memory of its own.
    Discrete,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Software => "software",
            Kind::Other => "other",
            Kind::Virtual => "virtual",
            Kind::Integrated => "integrated",
            Kind::Discrete => "discrete",
        })
    }
}

/// What an adapter says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Programming interface: "vulkan", "metal", "dx12", "webgpu".
    pub backend: String,
    /// Name.
    pub adapter: String,
    /// Driver and its version.
    pub driver: String,
    /// Kind.
    pub kind: Kind,
    /// Least and most invocations of a subgroup, where the shader may use subgroups.
    pub subgroup: Option<(u32, u32)>,
    /// Whether passes can be timed by the device.
    pub timestamps: bool,
    /// Most bytes of a buffer.
    pub buffer_limit: u64,
    /// Most bytes of a buffer that a shader sees at once.
    pub binding_limit: u64,
    /// Most workgroups in one direction.
    pub groups_limit: u32,
}

impl Facts {
    fn of(adapter: &wgpu::Adapter) -> Self {
        let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
            wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
            wgpu::DeviceType::VirtualGpu => Kind::Virtual,
            wgpu::DeviceType::Cpu => Kind::Software,
            wgpu::DeviceType::Other => Kind::Other,
        };
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        Self {
            backend: info.backend.to_string(),
            adapter: info.name,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            kind,
            subgroup: subgroups.then_some((info.subgroup_min_size, info.subgroup_max_size)),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            buffer_limit: limits.max_buffer_size,
            binding_limit: limits.max_storage_buffer_binding_size,
            groups_limit: limits.max_compute_workgroups_per_dimension,
        }
    }

    /// Subgroup size, where it is one for every shader.
    #[must_use]
    pub fn subgroup_size(&self) -> Option<u32> {
        self.subgroup.filter(|(least, most)| least == most).map(|(size, _)| size)
    }
}

/// Which adapter is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// One with memory of its own before one in the processor, one in software last.
    #[default]
    Best,
    /// The first whose name or backend contains this, in any case.
    Named(String),
}

/// A source's way to the driver in tests of the gates: what it returns is compiled.
pub type Patch = fn(&str) -> String;

/// A device. Copies are the same device.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    facts: Facts,
    limits: wgpu::Limits,
    patch: Option<Patch>,
    /// Pipelines by their source.
    pipelines: Mutex<HashMap<String, Pipeline>>,
    /// The first failure that no call was there to return.
    failed: Arc<Mutex<Option<GpuError>>>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.0.facts.adapter).finish()
    }
}

/// A compiled shader.
#[derive(Clone, Debug)]
pub struct Pipeline {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

impl Gpu {
    /// The adapters of this machine, the best first.
    #[must_use]
    pub fn list() -> Vec<Facts> {
        adapters().iter().map(|(facts, _)| facts.clone()).collect()
    }

    /// Open a device.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`], [`GpuError::NoSuch`], [`GpuError::Unfit`].
    pub fn open(choice: &Choice) -> Result<Self, GpuError> {
        Self::open_patched(choice, None)
    }

    /// The same; every shader's source goes through `patch` before it is compiled. Tests of the init gates put a fault
    /// into a shader this way.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open_patched(choice: &Choice, patch: Option<Patch>) -> Result<Self, GpuError> {
        let mut adapters = adapters();
        let at = match choice {
            Choice::Best if adapters.is_empty() => return Err(GpuError::NoAdapter),
            Choice::Best => 0,
            Choice::Named(given) => {
                let part = given.to_lowercase();
                let is = |f: &Facts| f.adapter.to_lowercase().contains(&part) || f.backend.to_lowercase() == part;
                let found = || adapters.iter().map(|(facts, _)| facts.adapter.clone()).collect::<Vec<_>>();
                match adapters.iter().position(|(facts, _)| is(facts)) {
                    Some(at) => at,
                    None if adapters.is_empty() => return Err(GpuError::NoAdapter),
                    None => return Err(GpuError::NoSuch { given: given.clone(), found: found() }),
                }
            }
        };
        let (facts, adapter) = adapters.swap_remove(at);
        Self::of(facts, &adapter, patch)
    }

    fn of(facts: Facts, adapter: &wgpu::Adapter, patch: Option<Patch>) -> Result<Self, GpuError> {
        let unfit = |reason: String| GpuError::Unfit { adapter: facts.adapter.clone(), reason };
        if !adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
            return Err(unfit("it runs no compute shaders".to_owned()));
        }
        let limits = adapter.limits();
        let wanted = wgpu::Features::SUBGROUP
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("wordline"),
            required_features: adapter.features() & wanted,
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::Performance,
            ..Default::default()
        });
        let (device, queue) = pollster::block_on(request).map_err(|e| unfit(e.to_string()))?;
        let failed = Arc::new(Mutex::new(None));
        let (lost, uncaught) = (Arc::clone(&failed), Arc::clone(&failed));
        device.set_device_lost_callback(move |why, text| {
            // Destroyed: the last handle was dropped, by us.
            if why != wgpu::DeviceLostReason::Destroyed {
                lock(&lost).get_or_insert(GpuError::Lost { reason: text });
            }
        });
        device.on_uncaptured_error(Arc::new(move |error| {
            lock(&uncaught).get_or_insert(failure("the device", error));
        }));
        let pipelines = Mutex::default();
        Ok(Self(Arc::new(Inner { device, queue, facts, limits, patch, pipelines, failed })))
    }

    /// Whether both are the same device.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What the adapter says of itself.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// All limits, for kernels that choose their shape by them.
    #[must_use]
    pub fn limits(&self) -> &wgpu::Limits {
        &self.0.limits
    }

    /// The device, for what has no method here; wrap calls in [`Gpu::scope`].
    #[must_use]
    pub fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    /// `size` rounded up so that another region may begin there.
    #[must_use]
    pub fn align(&self, size: u64) -> u64 {
        size.next_multiple_of(u64::from(self.0.limits.min_storage_buffer_offset_alignment).max(4))
    }

    /// Run `job`; what goes wrong in it is returned as the failure of `what`.
    ///
    /// # Errors
    /// Whatever the device says, or has said before where nobody could be told.
    pub fn scope<T>(&self, what: &str, job: impl FnOnce(&wgpu::Device) -> T) -> Result<T, GpuError> {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        self.check()?;
        let device = &self.0.device;
        let scopes = [OutOfMemory, Internal, Validation].map(|filter| device.push_error_scope(filter));
        let value = job(device);
        // The last pushed is the first popped; the first failure is the one to tell.
        let errors = scopes.into_iter().rev().filter_map(|scope| pollster::block_on(scope.pop()));
        match errors.reduce(|first, _| first) {
            Some(error) => Err(failure(what, error)),
            None => self.check().map(|()| value),
        }
    }

    /// Whether the device still works.
    ///
    /// # Errors
    /// [`GpuError::Lost`], or a failure that no call was there to return.
    pub fn check(&self) -> Result<(), GpuError> {
        lock(&self.0.failed).clone().map_or(Ok(()), Err)
    }

    /// A buffer of zeros, for storage and for copies both ways; rounded up to whole words.
    ///
    /// # Errors
    /// [`GpuError::TooLarge`], [`GpuError::OutOfMemory`], or the device is lost.
    pub fn region(&self, what: &str, size: u64) -> Result<Region, GpuError> {
        let size = size.max(4).next_multiple_of(4);
        let limit = self.0.facts.buffer_limit.min(self.0.facts.binding_limit);
        if size > limit {
            return Err(GpuError::TooLarge { what: what.to_owned(), given: size, limit });
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        self.scope(what, |device| device.create_buffer(&descriptor)).map(Region::new)
    }

    /// A buffer of these bytes.
    ///
    /// # Errors
    /// As [`Gpu::region`].
    pub fn upload(&self, what: &str, bytes: &[u8]) -> Result<Region, GpuError> {
        let region = self.region(what, bytes.len() as u64)?;
        self.write(&region, 0, bytes)?;
        Ok(region)
    }

    /// Write bytes into a region before the next submission; `offset` is a multiple of 4, and bytes after the last whole
    /// word are followed by zeros.
    ///
    /// # Errors
    /// The region is too short, or the device is lost.
    pub fn write(&self, region: &Region, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        let (whole, rest) = bytes.split_at(bytes.len() & !3);
        let end = offset.saturating_add(bytes.len().next_multiple_of(4) as u64);
        if end > region.size() {
            let (what, limit) = ("bytes written to a region".to_owned(), region.size());
            return Err(GpuError::TooLarge { what, given: end, limit });
        }
        let at = region.offset() + offset;
        self.scope("a write to device memory", |_| {
            if !whole.is_empty() {
                self.0.queue.write_buffer(region.buffer(), at, whole);
            }
            if !rest.is_empty() {
                let mut word = [0; 4];
                word[..rest.len()].copy_from_slice(rest);
                self.0.queue.write_buffer(region.buffer(), at + whole.len() as u64, &word);
            }
        })
    }

    /// The pipeline of a WGSL source whose entry point is `main`; compiled once.
    ///
    /// A source makes no access outside its bindings that it relies on, and its loops end: bounds are kept by the driver
    /// or the translator, loops are not counted.
    ///
    /// # Errors
    /// [`GpuError::Refused`] with the compiler's words.
    pub fn pipeline(&self, what: &str, source: &str) -> Result<Pipeline, GpuError> {
        if let Some(pipeline) = lock(&self.0.pipelines).get(source) {
            return Ok(pipeline.clone());
        }
        let patched = self.0.patch.map(|patch| patch(source));
        let text = patched.as_deref().unwrap_or(source);
        let checks = wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() };
        let pipeline = self.scope(what, |device| {
            let source = wgpu::ShaderSource::Wgsl(text.into());
            let module = wgpu::ShaderModuleDescriptor { label: Some(what), source };
            // SAFETY: bounds are checked; the one thing that is not is that loops end, and every loop of the sources in
            // this crate counts to a bound.
            let module = unsafe { device.create_shader_module_trusted(module, checks) };
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(what),
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: None,
            });
            let layout = pipeline.get_bind_group_layout(0);
            Pipeline { pipeline, layout }
        })?;
        lock(&self.0.pipelines).insert(source.to_owned(), pipeline.clone());
        Ok(pipeline)
    }

    /// Compile sources that will be asked for, on as many threads as there are processors. What fails here fails again,
    /// with its error, when it is asked for.
    pub fn prepare(&self, what: &str, sources: &[String]) {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(sources.len()) {
                scope.spawn(|| {
                    while let Some(source) = sources.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                        let _ = self.pipeline(what, source);
                    }
                });
            }
        });
    }

    /// Wait for a submission, or for all.
    ///
    /// # Errors
    /// [`GpuError::Hung`], [`GpuError::Lost`], or a failure that no call was there to return.
    pub fn wait(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<(), GpuError> {
        if submission.is_none() && self.0.facts.kind > Kind::Software {
            // A thread that sleeps takes 30 us and more to be told that the device is done, which is some percent of a small
            // model's step: it looks for the length of a usual step before it sleeps.
            for _ in 0..GLANCES {
                if self.0.device.poll(wgpu::PollType::Poll).is_ok_and(|status| status.is_queue_empty()) {
                    return self.check();
                }
                std::hint::spin_loop();
            }
        }
        let wait = wgpu::PollType::Wait { submission_index: submission, timeout: Some(WAIT) };
        let polled = self.0.device.poll(wait);
        self.check()?;
        match polled {
            Ok(_) => Ok(()),
            Err(wgpu::PollError::Timeout) => Err(GpuError::Hung { seconds: WAIT.as_secs() }),
            Err(e) => Err(GpuError::Refused { what: "waiting for the device".to_owned(), reason: e.to_string() }),
        }
    }
}

/// The adapters, the best first; of equals the one that the system names first.
fn adapters() -> Vec<(Facts, wgpu::Adapter)> {
    if wgpu::Instance::enabled_backend_features().is_empty() {
        return Vec::new();
    }
    let backends = wgpu::Backends::PRIMARY;
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    // What a debug build would add slows every call; errors are reported without it.
    descriptor.flags = wgpu::InstanceFlags::empty();
    let adapters = pollster::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(backends));
    let mut adapters: Vec<_> = adapters.into_iter().map(|adapter| (Facts::of(&adapter), adapter)).collect();
    adapters.sort_by_key(|(facts, _)| std::cmp::Reverse(facts.kind));
    adapters
}

fn failure(what: &str, error: wgpu::Error) -> GpuError {
    let what = what.to_owned();
    match error {
        wgpu::Error::OutOfMemory { .. } => GpuError::OutOfMemory { what },
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            GpuError::Refused { what, reason: description }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
