//! `Prim`: the primitive operations that an author writes a step in; none of them knows a unit.

use super::Weight;
use crate::Const;
use crate::spec::Rope;
use std::sync::Arc;

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
