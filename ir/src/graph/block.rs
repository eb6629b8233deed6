//! `Block`: what rules make of primitives: work that a unit may do as one command, or a part of such work.

use super::Weight;
use crate::Const;
use crate::spec::{Activation, NormKind, Rope};
use std::sync::Arc;

/// Work that a unit of an engine may do as one command, or that a larger block is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// `scale * table[token] (+ positions[position])`: `(token, [position])`.
    Embed {
        /// Token table.
        table: Weight,
        /// Learned positions.
        positions: Option<Weight>,
        /// Multiplies the token's row.
        scale: Const,
    },
    /// Norm over the last axis, weight and bias applied.
    Norm {
        /// Kind.
        kind: NormKind,
        /// Weight.
        weight: Weight,
        /// Bias.
        bias: Option<Weight>,
        /// Added under the root.
        eps: Const,
    },
    /// x * rsqrt(sum(x^2) + eps) over the last axis.
    L2 {
        /// Added under the root.
        eps: Const,
    },
    /// Softmax over the last axis.
    Softmax,
    /// Elementwise activation.
    Activate(Activation),
    /// cap * tanh(x / cap).
    SoftCap {
        /// Cap.
        cap: Const,
    },
    /// Heads rotated by the row's position.
    Rotate {
        /// Recipe.
        rope: Arc<Rope>,
    },
    /// x times a constant.
    Scale {
        /// Factor.
        factor: Const,
    },
    /// W x (+ b).
    Linear {
        /// Matrix (out, in).
        weight: Weight,
        /// Bias.
        bias: Option<Weight>,
    },
    /// Values laid one after the other as one vector.
    Pack,
    /// q | k | v with query and key heads normed.
    HeadNorm {
        /// Weight of the query heads; `None`: they stay.
        q: Option<Weight>,
        /// Weight of the key heads; `None`: they stay.
        k: Option<Weight>,
        /// Query heads.
        heads: usize,
        /// Key heads.
        kv_heads: usize,
        /// Head dimension.
        head_dim: usize,
        /// Added under the root.
        eps: Const,
    },
    /// q | k | v with query and key heads rotated and query heads scaled.
    Rope {
        /// Query heads.
        heads: usize,
        /// Key heads.
        kv_heads: usize,
        /// Head dimension.
        head_dim: usize,
        /// Recipe.
        rope: Arc<Rope>,
        /// Score scale.
        scale: Const,
    },
    /// The first elements times a constant.
    ScaleFirst {
        /// Elements.
        width: usize,
        /// Factor.
        factor: Const,
    },
    /// The row's keys and values put into its sequence's cache: (q | k | v) -> the cache.
    CacheAppend {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
        /// Dimension of a query or key head.
        head_dim: usize,
        /// Dimension of a value head.
        v_dim: usize,
    },
    /// Softmax attention: (q | k | v, cache) -> [heads, value dim].
    Attend {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
        /// Dimension of a query or key head.
        head_dim: usize,
        /// Positions seen; `None`: all.
        window: Option<usize>,
        /// Soft cap of the scores.
        cap: Option<Const>,
    },
    /// x * sigmoid(gate): (x, gate).
    Gate {
        /// Elements of x that a gate element covers.
        group: usize,
    },
    /// Depthwise causal convolution and activation.
    Conv {
        /// Taps [channels, taps].
        weight: Weight,
        /// Bias.
        bias: Option<Weight>,
        /// Channels.
        channels: usize,
        /// Taps.
        taps: usize,
        /// Activation.
        act: Activation,
    },
    /// The first heads of q | k | v, each divided by its length.
    L2Norm {
        /// Heads from the start.
        heads: usize,
        /// Head dimension.
        head_dim: usize,
        /// Added under the root.
        eps: Const,
    },
    /// (b | a) -> decay | beta.
    DeltaGate {
        /// Logarithm of the decay rates.
        a_log: Weight,
        /// Bias of a.
        dt_bias: Weight,
        /// Value heads.
        heads: usize,
    },
    /// The delta rule over a sequence's memory: (q | k | v, decay | beta) -> [value heads, value dim].
    Delta {
        /// Key and query heads.
        key_heads: usize,
        /// Value heads.
        value_heads: usize,
        /// Dimension of a key head.
        key_dim: usize,
        /// Dimension of a value head.
        value_dim: usize,
        /// Consecutive value heads that share a key head.
        share: usize,
        /// Multiplies q.
        scale: Const,
    },
    /// rms_norm(x) * weight * act(gate), head by head: (x, gate).
    GatedNorm {
        /// Weight.
        weight: Weight,
        /// Heads.
        heads: usize,
        /// Head dimension.
        head_dim: usize,
        /// Activation of the gate.
        act: Activation,
        /// Added under the root.
        eps: Const,
    },
    /// act(gate) * up of gate | up, or act(x).
    Act {
        /// Activation.
        kind: Activation,
        /// The operand holds gate | up.
        gated: bool,
        /// Groups of gate | up, or of x.
        groups: usize,
    },
    /// x + y.
    Add,
    /// Router logits -> indices of the picked experts.
    TopK {
        /// Experts.
        experts: usize,
        /// Picks.
        k: usize,
        /// Divide the picked probabilities by their sum.
        renormalise: bool,
    },
    /// The weights that a top-k gave to its picks: `(picks) -> [k]`.
    PickWeights,
    /// One vector through each picked matrix: (x, picks) -> [k, out].
    RoutedSpread {
        /// Experts' matrices.
        stack: Weight,
        /// Experts.
        experts: usize,
        /// Picks.
        k: usize,
    },
    /// Each pick's vector through its matrix, weighted and summed: `(x, picks, weights) -> [out]`.
    RoutedGather {
        /// Experts' matrices.
        stack: Weight,
        /// Experts.
        experts: usize,
        /// Picks.
        k: usize,
    },
}

impl Block {
    /// Name, for errors and graph text.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Block::Embed { .. } => "embed",
            Block::Norm { kind: NormKind::Rms, .. } => "rms_norm",
            Block::Norm { kind: NormKind::Ln, .. } => "layer_norm",
            Block::L2 { .. } => "l2",
            Block::Softmax => "softmax",
            Block::Activate(Activation::Silu) => "silu",
            Block::Activate(Activation::GeluErf) => "gelu_erf",
            Block::Activate(Activation::GeluTanh) => "gelu_tanh",
            Block::Activate(Activation::Relu) => "relu",
            Block::SoftCap { .. } => "soft_cap",
            Block::Rotate { .. } => "rotate",
            Block::Scale { .. } => "scale",
            Block::Linear { .. } => "linear",
            Block::Pack => "pack",
            Block::HeadNorm { .. } => "head_norm",
            Block::Rope { .. } => "rope",
            Block::ScaleFirst { .. } => "scale_first",
            Block::CacheAppend { .. } => "cache_append",
            Block::Attend { .. } => "attend",
            Block::Gate { .. } => "gate",
            Block::Conv { .. } => "conv",
            Block::L2Norm { .. } => "l2_norm",
            Block::DeltaGate { .. } => "delta_gate",
            Block::Delta { .. } => "delta",
            Block::GatedNorm { .. } => "gated_norm",
            Block::Act { .. } => "act",
            Block::Add => "residual",
            Block::TopK { .. } => "top_k",
            Block::PickWeights => "pick_weights",
            Block::RoutedSpread { .. } => "routed_spread",
            Block::RoutedGather { .. } => "routed_gather",
        }
    }
}
