//! `Op`: what a node of a step graph does: a primitive that knows no unit, or a block that rules made of primitives.

use crate::Const;
use crate::spec::{Activation, NormKind, Rope, View};
use std::sync::Arc;

/// A held tensor: its name in the program, and where its values lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Name in the program's tensor table.
    pub name: String,
    /// Where its values come from.
    pub view: Arc<View>,
}

/// Element by element, operands broadcast as the reference framework does (aligned at the last axis).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// a + b.
    Add,
    /// a - b.
    Sub,
    /// a * b.
    Mul,
    /// a / b.
    Div,
    /// The larger.
    Max,
}

/// Element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// -x.
    Neg,
    /// 1 / sqrt(x).
    Rsqrt,
    /// e^x.
    Exp,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// Error function.
    Erf,
    /// ln(1 + e^x).
    Softplus,
}

/// Over one axis, which stays with length 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// Sum.
    Sum,
    /// Arithmetic mean.
    Mean,
    /// Largest.
    Max,
}

/// Which half of a rotary row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wave {
    /// Cosines.
    Cos,
    /// Sines.
    Sin,
}

/// A primitive operation of an authored step. Shapes are those of one token-row.
#[derive(Clone, Debug, PartialEq)]
pub enum Prim {
    /// The row's token: an index.
    Token,
    /// The row's position: an index.
    Position,
    /// A held tensor read with this shape: `[n]`, `[out, in]` or `[experts, out, in]`.
    Param {
        /// The tensor.
        weight: Weight,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A scalar.
    Const(Const),
    /// Row `index` of a table: `([n, d], index []) -> [d]`.
    Rows,
    /// `y[o]` = sum over i of `x[i] * w[o, i]`: `([.., i], [.., o, i]) -> [.., o]`; leading axes are equal or absent on one
    /// side.
    MatMul,
    /// Two values.
    Binary(Binary),
    /// One value.
    Unary(Unary),
    /// One axis.
    Reduce {
        /// How.
        how: Reduce,
        /// Axis.
        axis: usize,
    },
    /// Elements `start .. start + len` of an axis.
    Slice {
        /// Axis.
        axis: usize,
        /// First element.
        start: usize,
        /// Elements.
        len: usize,
    },
    /// Values one after the other along an axis.
    Concat {
        /// Axis.
        axis: usize,
    },
    /// The same elements, in the same order, under another shape.
    Reshape {
        /// New shape.
        shape: Vec<usize>,
    },
    /// Each element of an axis `times` times in a row.
    Repeat {
        /// Axis.
        axis: usize,
        /// Copies.
        times: usize,
    },
    /// The last two axes exchanged.
    Transpose,
    /// The row of a rotary table at a position: `(index []) -> [rot]`, one value a dimension, as the pairs lie.
    Rotary {
        /// Recipe.
        rope: Arc<Rope>,
        /// Cosines or sines.
        wave: Wave,
    },
    /// What a position may see of `ctx` positions: `(index []) -> [ctx]`, 0 where visible, minus infinity elsewhere.
    Mask {
        /// Cache positions.
        ctx: usize,
        /// Positions seen, the row's own included; `None`: all up to it.
        window: Option<usize>,
    },
    /// Put the row into a sequence's cache and read the whole of it: ([h, d]) -> [h, ctx, d].
    Append {
        /// The cache's name.
        state: String,
        /// Cache positions.
        ctx: usize,
    },
    /// Shift the row into a sequence's ring and read the newest `taps` inputs, oldest first: `([c]) -> [c, taps]`.
    Shift {
        /// The ring's name.
        state: String,
        /// Inputs held, the row's own included.
        taps: usize,
    },
    /// A sequence's memory: () -> shape; zero at its start.
    Load {
        /// The memory's name.
        state: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Replace a sequence's memory: (x) -> nothing that anyone reads.
    Store {
        /// The memory's name.
        state: String,
    },
    /// Indices of the `k` largest, falling, ties to the lower index: `([n]) -> index [k]`.
    TopK {
        /// Picks.
        k: usize,
    },
    /// Elements at indices: `([n], index [k]) -> [k]`.
    Take,
    /// Matrices at indices: `([e, o, i], index [k]) -> [k, o, i]`.
    Pick,
}

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

/// What a node does.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A primitive.
    Prim(Prim),
    /// A block.
    Block(Block),
}

impl Prim {
    /// Name, for errors and graph text.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Prim::Token => "token",
            Prim::Position => "position",
            Prim::Param { .. } => "param",
            Prim::Const(_) => "const",
            Prim::Rows => "rows",
            Prim::MatMul => "matmul",
            Prim::Binary(Binary::Add) => "add",
            Prim::Binary(Binary::Sub) => "sub",
            Prim::Binary(Binary::Mul) => "mul",
            Prim::Binary(Binary::Div) => "div",
            Prim::Binary(Binary::Max) => "max",
            Prim::Unary(Unary::Neg) => "neg",
            Prim::Unary(Unary::Rsqrt) => "rsqrt",
            Prim::Unary(Unary::Exp) => "exp",
            Prim::Unary(Unary::Sigmoid) => "sigmoid",
            Prim::Unary(Unary::Tanh) => "tanh",
            Prim::Unary(Unary::Erf) => "erf",
            Prim::Unary(Unary::Softplus) => "softplus",
            Prim::Reduce { how: Reduce::Sum, .. } => "reduce_sum",
            Prim::Reduce { how: Reduce::Mean, .. } => "reduce_mean",
            Prim::Reduce { how: Reduce::Max, .. } => "reduce_max",
            Prim::Slice { .. } => "slice",
            Prim::Concat { .. } => "concat",
            Prim::Reshape { .. } => "reshape",
            Prim::Repeat { .. } => "repeat",
            Prim::Transpose => "transpose",
            Prim::Rotary { .. } => "rotary",
            Prim::Mask { .. } => "mask",
            Prim::Append { .. } => "append",
            Prim::Shift { .. } => "shift",
            Prim::Load { .. } => "load",
            Prim::Store { .. } => "store",
            Prim::TopK { .. } => "top_k_indices",
            Prim::Take => "take",
            Prim::Pick => "pick",
        }
    }

    /// True for operations that hold no work of their own: a unit reads what they stand for as a field or a table.
    #[must_use]
    pub fn is_leaf(&self) -> bool {
        matches!(
            self,
            Prim::Token
                | Prim::Position
                | Prim::Param { .. }
                | Prim::Const(_)
                | Prim::Rotary { .. }
                | Prim::Mask { .. }
        )
    }
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

impl Op {
    /// Name, for errors and graph text.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Prim(prim) => prim.name(),
            Op::Block(block) => block.name(),
        }
    }
}
