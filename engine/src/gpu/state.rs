//! What sequences keep in device memory: caches in banks, rings, memories, a place for each sequence.

use super::error::DeviceError;
use crate::int8::LayerContent;
use crate::state::Capacity;
use wordline_ir::state::LayerState;
use wordline_kernels::attend::{CacheError, CacheLayout};
use wordline_kernels::gpu::cache::Bank;
use wordline_kernels::gpu::record::{ReadBack, encode, submit};
use wordline_kernels::gpu::{Gpu, GpuError, Region, Staging};

/// Positions of a page.
const PAGE: usize = 32;

/// A layer's cache: banks of key heads and of states, each as large as a binding may be.
pub(super) struct LayerCache {
    pub(super) layout: CacheLayout,
    pub(super) pages: usize,
    heads_per_bank: usize,
    states_per_bank: usize,
    banks: Vec<BankMemory>,
}

struct BankMemory {
    first_head: usize,
    heads: usize,
    first_state: usize,
    states: usize,
    region: Region,
}

/// What one layer keeps for all sequences.
#[derive(Default)]
pub(super) struct LayerMemory {
    pub(super) cache: Option<LayerCache>,
    /// `[states, taps - 1, channels]`.
    pub(super) ring: Option<Region>,
    /// `[states, heads, key dim, value dim]`.
    pub(super) memory: Option<Region>,
}

/// The states of all sequences.
pub(super) struct States {
    shapes: Vec<LayerState>,
    pub(super) layers: Vec<LayerMemory>,
    states: usize,
    /// Positions that each state has seen.
    lengths: Vec<usize>,
}

impl LayerCache {
    fn new(gpu: &Gpu, layout: CacheLayout, ctx: usize) -> Result<Self, GpuError> {
        let pages = layout.ring().unwrap_or(ctx.div_ceil(PAGE));
        let limit = limit(gpu) as usize;
        let head = pages * layout.page_bytes() / layout.kv_heads();
        let heads_per_bank = (limit / head).min(layout.kv_heads());
        if heads_per_bank == 0 {
            let what = format!("the cache of one key head over {} positions", pages * PAGE);
            return Err(GpuError::TooLarge { what, given: head as u64, limit: limit as u64 });
        }
        let states_per_bank = limit / (head * heads_per_bank);
        Ok(Self { layout, pages, heads_per_bank, states_per_bank, banks: Vec::new() })
    }

    fn grow(&mut self, gpu: &Gpu, states: usize) -> Result<(), GpuError> {
        let bytes = self.pages * self.layout.page_bytes() / self.layout.kv_heads();
        for first_head in (0..self.layout.kv_heads()).step_by(self.heads_per_bank) {
            let heads = self.heads_per_bank.min(self.layout.kv_heads() - first_head);
            for first_state in (0..states).step_by(self.states_per_bank) {
                let n = self.states_per_bank.min(states - first_state);
                let old = self.banks.iter().position(|b| b.first_head == first_head && b.first_state == first_state);
                if old.is_some_and(|old| self.banks[old].states == n) {
                    continue;
                }
                let region = gpu.region("attention cache", (n * heads * bytes) as u64)?;
                if let Some(old) = old {
                    let old = self.banks.swap_remove(old);
                    copy(gpu, &old.region, &region)?;
                }
                self.banks.push(BankMemory { first_head, heads, first_state, states: n, region });
            }
        }
        self.banks.sort_by_key(|b| (b.first_state, b.first_head));
        Ok(())
    }

    /// The banks as kernels take them.
    pub(super) fn banks(&self) -> impl Iterator<Item = Bank<'_>> {
        self.banks.iter().map(|b| Bank {
            layout: &self.layout,
            first_head: b.first_head,
            heads: b.heads,
            pages: self.pages,
            first_state: b.first_state,
            states: b.states,
            memory: &b.region,
        })
    }

    /// The bytes of one state's pages, in the order in which the host's cache has them.
    fn content(&self, gpu: &Gpu, state: usize, length: usize) -> Result<Vec<u8>, GpuError> {
        let pages = length.div_ceil(PAGE).min(self.pages);
        let (page_bytes, heads) = (self.layout.page_bytes(), self.layout.kv_heads());
        let head_bytes = page_bytes / heads;
        let mut content = vec![0; pages * page_bytes];
        for bank in self.banks().filter(|b| (b.first_state..b.first_state + b.states).contains(&state)) {
            let size = (pages * bank.heads * head_bytes) as u64;
            let at = (state - bank.first_state) * bank.state_bytes();
            let bytes = read(gpu, &bank.memory.part(at as u64, size)?)?;
            for (page, from) in bytes.chunks_exact(bank.heads * head_bytes).enumerate() {
                content[page * page_bytes + bank.first_head * head_bytes..][..from.len()].copy_from_slice(from);
            }
        }
        Ok(content)
    }
}

impl States {
    /// For a program's layers; no state yet.
    pub(super) fn new(gpu: &Gpu, shapes: Vec<LayerState>, capacity: Capacity) -> Result<Self, StateError> {
        let mut layers = Vec::new();
        for shape in &shapes {
            let cache = shape.cache.map(|cache| crate::int8::cache_layout(cache, capacity)).transpose()?;
            let cache = cache.map(|layout| LayerCache::new(gpu, layout, capacity.ctx)).transpose()?;
            layers.push(LayerMemory { cache, ring: None, memory: None });
        }
        Ok(Self { shapes, layers, states: 0, lengths: Vec::new() })
    }

    /// Make room for a state, and make it that of a sequence's start. True when memory moved: what was bound to it is
    /// stale.
    pub(super) fn open(&mut self, gpu: &Gpu, state: usize) -> Result<bool, GpuError> {
        let moved = state >= self.states;
        if moved {
            let states = (state + 1).next_power_of_two();
            for (layer, shape) in self.layers.iter_mut().zip(&self.shapes) {
                if let Some(cache) = &mut layer.cache {
                    cache.grow(gpu, states)?;
                }
                let ring = shape.ring.map_or(0, |r| r.channels * (r.taps - 1));
                let memory = shape.memory.map_or(0, |m| m.heads * m.key_dim * m.value_dim);
                if shape.ring.is_some() {
                    grow(gpu, "convolution rings", &mut layer.ring, ring * states)?;
                }
                if shape.memory.is_some() {
                    grow(gpu, "delta memories", &mut layer.memory, memory * states)?;
                }
            }
            self.states = states;
            self.lengths.resize(states, 0);
        }
        self.lengths[state] = 0;
        self.clear(gpu, state)?;
        Ok(moved)
    }

    /// A state has seen this many positions.
    pub(super) fn reached(&mut self, state: usize, length: usize) {
        self.lengths[state] = self.lengths[state].max(length);
    }

    fn clear(&self, gpu: &Gpu, state: usize) -> Result<(), GpuError> {
        let mut parts = Vec::new();
        for layer in &self.layers {
            for bank in layer.cache.iter().flat_map(LayerCache::banks) {
                if (bank.first_state..bank.first_state + bank.states).contains(&state) {
                    let size = bank.state_bytes() as u64;
                    parts.push(bank.memory.part((state - bank.first_state) as u64 * size, size)?);
                }
            }
            for region in layer.ring.iter().chain(&layer.memory) {
                let size = (region.size() / self.states as u64) & !3;
                parts.push(region.part(state as u64 * size, size)?);
            }
        }
        let commands = gpu.scope("a sequence's state", |device| {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            for part in parts.iter().filter(|part| part.size() > 0) {
                encoder.clear_buffer(part.buffer(), part.offset(), Some(part.size()));
            }
            encoder.finish()
        })?;
        submit(gpu, commands).map(|_| ())
    }

    /// Everything in a state, as the host's units list it.
    pub(super) fn bits(&self, gpu: &Gpu, state: usize) -> Result<Vec<u64>, GpuError> {
        let mut bits = Vec::new();
        let length = self.lengths[state];
        for layer in 0..self.layers.len() {
            let content = self.layer(gpu, layer, state, length)?;
            if let Some(cache) = &content.cache {
                bits.push(length as u64);
                bits.extend(cache.iter().map(|b| u64::from(*b)));
            }
            bits.extend(content.ring.iter().chain(&content.memory).flatten().map(|word| u64::from(*word)));
        }
        Ok(bits)
    }

    /// What a layer keeps of a state that has seen so many positions.
    pub(super) fn layer(&self, gpu: &Gpu, layer: usize, state: usize, length: usize) -> Result<LayerContent, GpuError> {
        let (Some(memory), Some(shape)) = (self.layers.get(layer), self.shapes.get(layer)) else {
            return Ok(LayerContent::default());
        };
        let mut content = LayerContent::default();
        if let Some(cache) = &memory.cache {
            (content.length, content.cache) = (length, Some(cache.content(gpu, state, length)?));
        }
        if let (Some(region), Some(ring)) = (&memory.ring, shape.ring) {
            let (rows, channels) = (ring.taps - 1, ring.channels);
            let words = self.floats(gpu, region, state, rows * channels)?;
            // The oldest input is in the row of the position that comes next.
            let order = (0..rows).map(|i| (length + i) % rows.max(1));
            content.ring = Some(order.flat_map(|row| words[row * channels..][..channels].to_vec()).collect());
        }
        if let (Some(region), Some(of)) = (&memory.memory, shape.memory) {
            content.memory = Some(self.floats(gpu, region, state, of.heads * of.key_dim * of.value_dim)?);
        }
        Ok(content)
    }

    fn floats(&self, gpu: &Gpu, region: &Region, state: usize, n: usize) -> Result<Vec<u32>, GpuError> {
        let bytes = read(gpu, &region.part((4 * n * state) as u64, 4 * n as u64)?)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }
}

/// Why there is no memory for states.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl From<StateError> for DeviceError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Cache(e) => DeviceError::Model(e.into()),
            StateError::Gpu(e) => DeviceError::Gpu(e),
        }
    }
}

/// Most bytes of a bank.
fn limit(gpu: &Gpu) -> u64 {
    gpu.facts().binding_limit.min(gpu.facts().buffer_limit) & !255
}

fn grow(gpu: &Gpu, what: &str, region: &mut Option<Region>, floats: usize) -> Result<(), GpuError> {
    let new = gpu.region(what, 4 * floats.max(1) as u64)?;
    if let Some(old) = region.take() {
        copy(gpu, &old, &new)?;
    }
    *region = Some(new);
    Ok(())
}

/// Copy a region to the beginning of a larger one.
fn copy(gpu: &Gpu, from: &Region, to: &Region) -> Result<(), GpuError> {
    let commands = gpu.scope("states that move", |device| {
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from.buffer(), from.offset(), to.buffer(), to.offset(), from.size());
        encoder.finish()
    })?;
    submit(gpu, commands).map(|_| ())
}

/// The bytes of a region.
pub(super) fn read(gpu: &Gpu, region: &Region) -> Result<Vec<u8>, GpuError> {
    if region.size() == 0 {
        return Ok(Vec::new());
    }
    let staging = Staging::new(gpu, region.size())?;
    let commands = encode(gpu, &[], &[ReadBack { from: region, to: &staging, offset: 0 }])?;
    submit(gpu, commands)?;
    staging.read(gpu, region.size(), <[u8]>::to_vec)
}
