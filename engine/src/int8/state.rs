//! What a sequence keeps in the int8 units: quantised caches, rings, memories.

use crate::state::Capacity;
use wordline_ir::state::{CacheShape, LayerState};
use wordline_kernels::attend::{Cache, CacheError, CacheLayout};
use wordline_kernels::conv::Ring;
use wordline_kernels::delta::Memory;

/// The layout of a layer's cache.
pub(crate) fn cache_layout(shape: CacheShape, capacity: Capacity) -> Result<CacheLayout, CacheError> {
    // The window's positions before a step's first row, and all rows of the step: they are appended before the first
    // of them attends.
    let keep = shape.window.map(|window| window.max(1) - 1 + capacity.step_rows);
    CacheLayout::new(shape.kv_heads, shape.head_dim, shape.v_dim, keep.filter(|keep| *keep < capacity.ctx))
}

/// What each layer of a sequence keeps.
pub(super) struct Layout {
    layers: Vec<(Option<CacheLayout>, LayerState)>,
    ctx: usize,
}

/// The state of one sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) layers: Vec<Layer>,
}

/// The state of one layer of a sequence.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) cache: Option<Cache>,
    pub(super) ring: Option<Ring>,
    pub(super) memory: Option<Memory>,
}

impl Layout {
    pub(super) fn new(layers: &[LayerState], capacity: Capacity) -> Result<Self, CacheError> {
        let cache = |shape: CacheShape| cache_layout(shape, capacity);
        let layer = |layer: &LayerState| Ok((layer.cache.map(cache).transpose()?, *layer));
        Ok(Self { layers: layers.iter().map(layer).collect::<Result<_, _>>()?, ctx: capacity.ctx })
    }

    /// The cache of a layer.
    pub(super) fn cache(&self, layer: usize) -> Option<&CacheLayout> {
        self.layers.get(layer)?.0.as_ref()
    }

    /// The state at a sequence's start, its caches with room for so many positions at once.
    pub(super) fn sequence(&self, at_once: usize) -> Sequence {
        let cache = |layout| {
            let mut cache = Cache::new(layout);
            cache.reserve(self.ctx.min(at_once));
            cache
        };
        let layer = |(layout, shape): &(Option<CacheLayout>, LayerState)| Layer {
            cache: layout.map(cache),
            ring: shape.ring.map(|r| Ring::new(r.channels, r.taps)),
            memory: shape.memory.map(|m| Memory::new(m.heads, m.key_dim, m.value_dim)),
        };
        Sequence { layers: self.layers.iter().map(layer).collect() }
    }
}

/// What a layer keeps of a sequence, as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerContent {
    /// Positions that it has seen, where it has a cache.
    pub(crate) length: usize,
    /// The cache's pages.
    pub(crate) cache: Option<Vec<u8>>,
    /// The ring's inputs, the oldest first.
    pub(crate) ring: Option<Vec<u32>>,
    pub(crate) memory: Option<Vec<u32>>,
}

impl Layer {
    pub(super) fn content(&self) -> LayerContent {
        let bits = |v: &f32| v.to_bits();
        LayerContent {
            length: self.cache.as_ref().map_or(0, Cache::len),
            cache: self.cache.as_ref().map(|cache| cache.content().to_vec()),
            ring: self.ring.as_ref().map(|ring| ring.rows().flatten().map(bits).collect()),
            memory: self.memory.as_ref().map(|memory| memory.state().iter().map(bits).collect()),
        }
    }

    /// Make a layer what some content says; what does not fit it is left out.
    #[cfg(feature = "gpu")]
    pub(super) fn set(&mut self, content: &LayerContent) {
        let floats = |words: &Vec<u32>| words.iter().map(|word| f32::from_bits(*word)).collect::<Vec<f32>>();
        if let (Some(cache), Some(bytes)) = (&mut self.cache, &content.cache) {
            cache.restore(content.length, bytes);
        }
        if let (Some(ring), Some(words)) = (&mut self.ring, &content.ring) {
            ring.restore(&floats(words));
        }
        if let (Some(memory), Some(words)) = (&mut self.memory, &content.memory)
            && memory.state().len() == words.len()
        {
            memory.state_mut().copy_from_slice(&floats(words));
        }
    }
}

impl Sequence {
    /// Everything in it, as bits.
    pub(super) fn bits(&self) -> Vec<u64> {
        let mut bits = Vec::new();
        for layer in self.layers.iter().map(Layer::content) {
            if let Some(cache) = &layer.cache {
                bits.push(layer.length as u64);
                bits.extend(cache.iter().map(|b| u64::from(*b)));
            }
            bits.extend(layer.ring.iter().chain(&layer.memory).flatten().map(|word| u64::from(*word)));
        }
        bits
    }
}
