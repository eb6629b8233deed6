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

impl Sequence {
    /// Everything in it, as bits.
    pub(super) fn bits(&self) -> Vec<u64> {
        let mut bits = Vec::new();
        for layer in &self.layers {
            if let Some(cache) = &layer.cache {
                bits.push(cache.len() as u64);
                bits.extend(cache.content().iter().map(|b| u64::from(*b)));
            }
            let floats = layer.ring.iter().flat_map(|ring| ring.rows().flatten());
            let floats = floats.chain(layer.memory.iter().flat_map(|memory| memory.state()));
            bits.extend(floats.map(|v| u64::from(v.to_bits())));
        }
        bits
    }
}
