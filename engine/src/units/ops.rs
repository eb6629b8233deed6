//! What each command asks of a unit: its word's fields with their types, counts as sizes, constants as numbers.

use wordline_ir::spec::{Activation, NormKind};
use wordline_ir::{RopeId, Slot, TensorId};

/// `out = scale * table[token] (+ positions[position])`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// Written.
    pub out: Slot,
    /// Token embedding `[vocab, width]`.
    pub table: TensorId,
    /// Learned positions [max positions, width].
    pub positions: Option<TensorId>,
    /// Multiplies the token's row.
    pub scale: f32,
}

/// `out = norm(x) * weight (+ bias)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Read.
    pub x: Slot,
    /// Written.
    pub out: Slot,
    /// Weight `[width]`.
    pub weight: TensorId,
    /// Bias `[width]`.
    pub bias: Option<TensorId>,
    /// Which mean and variance.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
}

/// RMS norm of each query and key head, in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// Changed in place.
    pub qkv: Slot,
    /// Query weight `[head_dim]`; none: query heads stay.
    pub q_weight: Option<TensorId>,
    /// Key weight `[head_dim]`; none: key heads stay.
    pub k_weight: Option<TensorId>,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Added under the root.
    pub eps: f32,
}

/// Rotate query and key heads by the row's position, then scale the query heads, in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotate {
    /// Changed in place.
    pub qkv: Slot,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Rotated dimensions, from a head's first on.
    pub rot: usize,
    /// Rotary table.
    pub table: RopeId,
    /// Multiplies the query heads.
    pub scale: f32,
}

/// Multiply the first `width` elements by a constant, in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Changed in place.
    pub x: Slot,
    /// Elements of a row that are multiplied; none: all.
    pub width: Option<usize>,
    /// Factor.
    pub scale: f32,
}

/// `y[offset ..] = weight * x (+ bias)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matvec {
    /// Read.
    pub x: Slot,
    /// Written from `offset` on.
    pub y: Slot,
    /// Matrix (out, in).
    pub weight: TensorId,
    /// Bias `[out]`.
    pub bias: Option<TensorId>,
    /// First element of `y` written.
    pub offset: usize,
    /// The command stands outside any layer: the matrix is an LM head.
    pub head: bool,
}

/// Append each row's keys and values to its sequence's cache of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheAppend {
    /// Layer.
    pub layer: usize,
    /// Read: q heads | k heads | v heads.
    pub qkv: Slot,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Dimension of a query or key head.
    pub head_dim: usize,
    /// Dimension of a value head.
    pub v_dim: usize,
}

/// Softmax attention of each row over its sequence's cache of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// Layer.
    pub layer: usize,
    /// Read: q heads | k heads | v heads.
    pub qkv: Slot,
    /// Written: heads * value dim.
    pub out: Slot,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Dimension of a query or key head.
    pub head_dim: usize,
    /// Positions seen, the row's own included.
    pub window: Option<usize>,
    /// Soft cap of the scores.
    pub cap: Option<f32>,
}

/// `out = x * sigmoid(gate)`, a gate element over each group of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// Read.
    pub x: Slot,
    /// Read.
    pub gate: Slot,
    /// Written.
    pub out: Slot,
    /// Elements of `x` that a gate element covers.
    pub group: usize,
}

/// Depthwise causal convolution over a row and its sequence's past inputs, then an activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv {
    /// Layer.
    pub layer: usize,
    /// Read.
    pub x: Slot,
    /// Written.
    pub out: Slot,
    /// Taps, oldest first `[channels, taps]`.
    pub weight: TensorId,
    /// Bias `[channels]`.
    pub bias: Option<TensorId>,
    /// Channels.
    pub channels: usize,
    /// Taps, the row's own input included.
    pub taps: usize,
    /// Activation.
    pub act: Activation,
}

/// `x * rsqrt(sum(x^2) + eps)` of each of the slot's first heads, in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Norm {
    /// Changed in place.
    pub x: Slot,
    /// Heads.
    pub heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Added under the root.
    pub eps: f32,
}

/// `decay = exp(-exp(a_log) * softplus(a + dt_bias))`, `beta = sigmoid(b)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaGate {
    /// Read: b | a.
    pub ba: Slot,
    /// Written: decay | beta.
    pub gb: Slot,
    /// `[heads]`.
    pub a_log: TensorId,
    /// `[heads]`.
    pub dt_bias: TensorId,
    /// Value heads.
    pub heads: usize,
}

/// The gated delta rule over each row's sequence's memory of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delta {
    /// Layer.
    pub layer: usize,
    /// Read: q heads | k heads | v heads.
    pub qkv: Slot,
    /// Read: decay | beta.
    pub gb: Slot,
    /// Written: value heads * value dim.
    pub out: Slot,
    /// Key and query heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Dimension of a key head.
    pub key_dim: usize,
    /// Dimension of a value head.
    pub value_dim: usize,
    /// Consecutive value heads that share one key head.
    pub share: usize,
    /// Multiplies q.
    pub scale: f32,
}

/// `out = rms_norm(x) * weight * act(gate)`, head by head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNorm {
    /// Read.
    pub x: Slot,
    /// Read.
    pub gate: Slot,
    /// Written.
    pub out: Slot,
    /// Weight `[head_dim]`.
    pub weight: TensorId,
    /// Heads.
    pub heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Activation of the gate.
    pub act: Activation,
    /// Added under the root.
    pub eps: f32,
}

/// `out = act(gate) * up` of each group, or `out = act(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Act {
    /// Read: groups of gate | up, or of x.
    pub x: Slot,
    /// Written: groups of the inner vector.
    pub out: Slot,
    /// Activation.
    pub kind: Activation,
    /// The input holds gate | up.
    pub gated: bool,
    /// Groups.
    pub groups: usize,
}

/// `out = x + scale * y`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Add {
    /// Read.
    pub x: Slot,
    /// Read.
    pub y: Slot,
    /// Written.
    pub out: Slot,
    /// Multiplies `y`.
    pub scale: f32,
}

/// `x = cap * tanh(x / cap)`, in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftCap {
    /// Changed in place.
    pub x: Slot,
    /// Cap.
    pub cap: f32,
}

/// Softmax over the logits of the experts; the largest `k` are picked, in falling order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopK {
    /// Read.
    pub logits: Slot,
    /// Written: expert numbers.
    pub picks: Slot,
    /// Written: their weights.
    pub weights: Slot,
    /// Experts.
    pub experts: usize,
    /// Picks.
    pub k: usize,
    /// Divide the weights by their sum.
    pub renormalise: bool,
}

/// Each pick's matrix times x (spread), or the weighted sum of each pick's matrix times its vector (gather).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutedMatvec {
    /// Read: one vector (spread) or one a pick (gather).
    pub x: Slot,
    /// Read: expert numbers.
    pub picks: Slot,
    /// Read: pick weights; present: gather.
    pub weights: Option<Slot>,
    /// Written.
    pub y: Slot,
    /// Experts' matrices.
    pub stack: TensorId,
    /// Picks.
    pub k: usize,
}
