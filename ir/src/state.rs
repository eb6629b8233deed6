//! `state_layout`: what a sequence keeps between steps, layer by layer, read off a program's state commands.

use crate::{Command, LayerId, Program};

/// Keys and values of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Dimension of a key head.
    pub head_dim: usize,
    /// Dimension of a value head.
    pub v_dim: usize,
    /// Positions that can still be seen, the present one included; none: all.
    pub window: Option<usize>,
}

impl CacheShape {
    /// Elements of one position: its keys and its values.
    #[must_use]
    pub const fn row(&self) -> usize {
        self.kv_heads * (self.head_dim + self.v_dim)
    }
}

/// Past inputs of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Channels.
    pub channels: usize,
    /// Taps, the present input included: the ring holds one fewer.
    pub taps: usize,
}

/// Memory of a delta layer: a matrix [key_dim, value_dim] a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShape {
    /// Value heads.
    pub heads: usize,
    /// Dimension of a key head.
    pub key_dim: usize,
    /// Dimension of a value head.
    pub value_dim: usize,
}

/// What one layer keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerState {
    /// Cache.
    pub cache: Option<CacheShape>,
    /// Ring.
    pub ring: Option<RingShape>,
    /// Memory.
    pub memory: Option<MemoryShape>,
}

/// What each layer of a program keeps, by layer number, up to the last layer that has commands. Layers without state,
/// and the numbers below a part's first layer, keep nothing.
#[must_use]
pub fn state_layout(program: &Program) -> Vec<LayerState> {
    let last = program.commands.iter().map(Command::layer).filter(|l| *l != LayerId::OUTSIDE).max();
    let mut layers = vec![LayerState::default(); last.map_or(0, |l| usize::from(l.0) + 1)];
    for command in &program.commands {
        // A state command outside any layer does not pass `verify`.
        let Some(layer) = layers.get_mut(usize::from(command.layer().0)) else { continue };
        match *command {
            Command::CacheAppend { kv_heads, head_dim, v_dim, .. } => {
                let (kv_heads, head_dim, v_dim) = (kv_heads.into(), head_dim.into(), v_dim.into());
                // Nothing is seen until an Attend says how far.
                layer.cache = Some(CacheShape { kv_heads, head_dim, v_dim, window: Some(0) });
            }
            Command::Attend { window, .. } => {
                if let Some(cache) = &mut layer.cache {
                    // Of several Attends over one cache, the one that sees furthest decides.
                    let seen = (window != 0).then_some(usize::from(window));
                    cache.window = cache.window.zip(seen).map(|(a, b)| a.max(b));
                }
            }
            Command::Conv { channels, taps, .. } => {
                layer.ring = Some(RingShape { channels: channels.into(), taps: taps.into() });
            }
            Command::Delta { value_heads, key_dim, value_dim, .. } => {
                let (heads, key_dim, value_dim) = (value_heads.into(), key_dim.into(), value_dim.into());
                layer.memory = Some(MemoryShape { heads, key_dim, value_dim });
            }
            _ => {}
        }
    }
    layers
}
