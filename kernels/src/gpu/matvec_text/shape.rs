//! What the shaders' text depends on: how a shader is laid over a device, and what a product has beside its matrix.

use crate::format::{Limbs, Weights};
use crate::gpu::Method;
use crate::math::Function;

/// How a shader is laid over a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Threads of a subgroup; `None`: a lane a thread, joined through workgroup memory.
    pub subgroup: Option<u32>,
    /// Rows of a subgroup: a multiple of 4 and of `subgroup / lanes`.
    pub rows: u32,
    /// Blocks that a thread asks for before it multiplies the first.
    pub unroll: u32,
    /// The next blocks are asked for before these are multiplied: for few subgroups, which do not hide one another's
    /// waiting.
    pub ahead: bool,
    /// Subgroups of a workgroup.
    pub subgroups: u32,
    /// Token-rows that share one reading of the weights.
    pub tokens: u32,
}

/// What the text depends on.
#[derive(Clone, Copy, Debug)]
pub(in crate::gpu) struct Shape {
    pub(in crate::gpu) method: Method,
    pub(in crate::gpu) lanes: u32,
    pub(in crate::gpu) limbs: Limbs,
    pub(in crate::gpu) weights: Weights,
    pub(in crate::gpu) blocks: u32,
    pub(in crate::gpu) group: u32,
    /// Quads of the chunk's rows.
    pub(in crate::gpu) quads: u32,
    pub(in crate::gpu) bias: bool,
    pub(in crate::gpu) residual: Option<Place>,
    /// What becomes of pairs of rows.
    pub(in crate::gpu) gated: Option<Gate>,
    /// The matrix is one of a stack's, picked by a buffer.
    pub(in crate::gpu) routed: bool,
    /// Workgroups before the first of this dispatch.
    pub(in crate::gpu) first: u32,
    pub(in crate::gpu) ends: Ends,
}

/// Where results go and what they meet there: constants of the text, for a word that has to be loaded first costs as
/// much time as a small matrix.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::gpu) struct Ends {
    /// Rows of the chunk, and the matrix row of the first.
    pub(in crate::gpu) rows: u32,
    pub(in crate::gpu) first_row: u32,
    pub(in crate::gpu) offset: u32,
    pub(in crate::gpu) stride: u32,
    pub(in crate::gpu) x_offset: u32,
    pub(in crate::gpu) x_stride: u32,
    pub(in crate::gpu) scale: f32,
    pub(in crate::gpu) k: u32,
    pub(in crate::gpu) vectors: u32,
    pub(in crate::gpu) first_expert: u32,
    pub(in crate::gpu) experts: u32,
    pub(in crate::gpu) all_experts: u32,
}

/// The first half of the rows are gates of the second half: `act(gate) * up`, as f32 and as the array's limbs.
#[derive(Clone, Copy, Debug)]
pub(in crate::gpu) struct Gate {
    pub(in crate::gpu) act: Function,
    pub(in crate::gpu) limbs: Limbs,
}

/// Where the rows lie that a product is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) enum Place {
    /// Where the sums go.
    InPlace,
    /// In another buffer.
    Apart,
}

/// Threads of a workgroup without subgroups.
pub(super) const THREADS: u32 = 64;

impl Plan {
    /// Matrix rows of a workgroup.
    pub(in crate::gpu) fn group_rows(&self, lanes: u32) -> u32 {
        match self.subgroup {
            Some(_) => self.rows * self.subgroups,
            None => THREADS / lanes,
        }
    }
}
