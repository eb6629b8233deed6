//! `StateLayout`: what each sequence keeps between steps, layer by layer, read off a program's state commands.

use wordline_ir::{Command, LayerId, Program};

/// How much room the sequences of an engine have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Positions a sequence may hold. Commands never depend on it.
    pub ctx: usize,
    /// Rows that one sequence may have in one step. It sizes the cache of a windowed layer, which holds a step's rows
    /// beside the window's before any of them is read.
    pub step_rows: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { ctx: 4096, step_rows: 256 }
    }
}

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

/// Past inputs of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Channels.
    pub channels: usize,
    /// Taps, the present input included: the ring holds one fewer.
    pub taps: usize,
}

/// Memory of a delta layer.
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
pub struct LayerShape {
    /// Cache.
    pub cache: Option<CacheShape>,
    /// Ring.
    pub ring: Option<RingShape>,
    /// Memory.
    pub memory: Option<MemoryShape>,
}

/// What a sequence keeps between steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLayout {
    /// Room.
    pub capacity: Capacity,
    /// By layer number; layers without state, and numbers without layer, keep nothing.
    pub layers: Vec<LayerShape>,
}

impl StateLayout {
    /// The layout that a program's state commands ask for.
    #[must_use]
    pub fn of(program: &Program, capacity: Capacity) -> Self {
        let last = program.commands.iter().map(Command::layer).filter(|l| *l != LayerId::OUTSIDE).max();
        let mut layers = vec![LayerShape::default(); last.map_or(0, |l| usize::from(l.0) + 1)];
        for command in &program.commands {
            // State commands stand in layers; one outside any is refused when the program is verified.
            let Some(layer) = layers.get_mut(usize::from(command.layer().0)) else { continue };
            match *command {
                Command::CacheAppend { kv_heads, head_dim, v_dim, .. } => {
                    let (kv_heads, head_dim, v_dim) = (kv_heads.into(), head_dim.into(), v_dim.into());
                    let window = layer.cache.and_then(|c| c.window);
                    layer.cache = Some(CacheShape { kv_heads, head_dim, v_dim, window });
                }
                Command::Attend { window, .. } => {
                    if let Some(cache) = &mut layer.cache {
                        // A second Attend over the same cache may see further.
                        cache.window = match (cache.window, window) {
                            (_, 0) => None,
                            (before, window) => Some(before.unwrap_or(0).max(window.into())),
                        };
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
        Self { capacity, layers }
    }
}

/// The states of the sequences that are open, by index.
#[derive(Debug)]
pub(crate) struct States<T> {
    held: Vec<Option<T>>,
}

impl<T> States<T> {
    pub(crate) fn new() -> Self {
        Self { held: Vec::new() }
    }

    /// Hold a fresh state at an index, in place of any before.
    pub(crate) fn open(&mut self, sequence: usize, state: T) {
        if self.held.len() <= sequence {
            self.held.resize_with(sequence + 1, || None);
        }
        self.held[sequence] = Some(state);
    }

    pub(crate) fn release(&mut self, sequence: usize) {
        if let Some(state) = self.held.get_mut(sequence) {
            *state = None;
        }
    }

    /// The state of an open sequence.
    ///
    /// # Panics
    /// The sequence is not open: the model checks each row's sequence before the step begins.
    pub(crate) fn get(&self, sequence: usize) -> &T {
        match self.held.get(sequence) {
            Some(Some(state)) => state,
            _ => panic!("sequence {sequence} is not open"),
        }
    }

    /// The state of an open sequence, to change. Panics as [`States::get`] does.
    pub(crate) fn get_mut(&mut self, sequence: usize) -> &mut T {
        match self.held.get_mut(sequence) {
            Some(Some(state)) => state,
            _ => panic!("sequence {sequence} is not open"),
        }
    }
}
