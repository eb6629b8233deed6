//! Parts that several blocks of a model are written with: linear layers, norms, activations, softmax, soft caps.

use super::{Author, Value};
use wordline_ir::graph::{Binary, Prim, Reduce, Unary};
use wordline_ir::spec::{Activation, Linear, Norm, NormKind};

impl Author {
    /// W x (+ b). The label names the tensor; an empty one stands for the path itself.
    pub(crate) fn linear(&mut self, label: &str, linear: &Linear, x: Value) -> Value {
        let dotted = |what: &str| if label.is_empty() { what.to_owned() } else { format!("{label}.{what}") };
        let weight = self.matrix(label, &linear.weight);
        let y = self.op(&dotted("matmul"), Prim::MatMul, &[x, weight]);
        match &linear.bias {
            Some(bias) => {
                let bias = self.vector(&dotted("bias"), bias);
                self.binary(&dotted("biased"), Binary::Add, y, bias)
            }
            None => y,
        }
    }

    /// A norm over an axis, the last. The label names the weight; an empty one stands for the path itself.
    pub(crate) fn norm(&mut self, label: &str, norm: &Norm, x: Value, axis: usize) -> Value {
        let dotted = |what: &str| if label.is_empty() { what.to_owned() } else { format!("{label}.{what}") };
        let centred = match norm.kind {
            NormKind::Rms => x,
            NormKind::Ln => {
                let mean = self.reduce(&dotted("mean"), Reduce::Mean, axis, x);
                self.binary(&dotted("centred"), Binary::Sub, x, mean)
            }
        };
        let square = self.binary(&dotted("square"), Binary::Mul, centred, centred);
        let spread = self.reduce(&dotted("mean_square"), Reduce::Mean, axis, square);
        let eps = self.constant(&dotted("eps"), norm.eps);
        let sum = self.binary(&dotted("shifted"), Binary::Add, spread, eps);
        let root = self.unary(&dotted("rsqrt"), Unary::Rsqrt, sum);
        let normed = self.binary(&dotted("normed"), Binary::Mul, centred, root);
        let weight = self.vector(label, &norm.weight);
        let y = self.binary(&dotted("weighted"), Binary::Mul, normed, weight);
        match &norm.bias {
            Some(bias) => {
                let bias = self.vector(&dotted("bias"), bias);
                self.binary(&dotted("biased"), Binary::Add, y, bias)
            }
            None => y,
        }
    }

    /// x * rsqrt(sum(x^2) + eps) over an axis.
    pub(crate) fn l2(&mut self, label: &str, eps: f32, x: Value, axis: usize) -> Value {
        let square = self.binary(&format!("{label}.square"), Binary::Mul, x, x);
        let sum = self.reduce(&format!("{label}.sum_square"), Reduce::Sum, axis, square);
        let eps = self.constant(&format!("{label}.eps"), eps);
        let sum = self.binary(&format!("{label}.shifted"), Binary::Add, sum, eps);
        let root = self.unary(&format!("{label}.rsqrt"), Unary::Rsqrt, sum);
        self.binary(&format!("{label}.unit"), Binary::Mul, x, root)
    }

    pub(crate) fn activation(&mut self, label: &str, kind: Activation, x: Value) -> Value {
        match kind {
            Activation::Silu => {
                let gate = self.unary(&format!("{label}.sigmoid"), Unary::Sigmoid, x);
                self.binary(&format!("{label}.silu"), Binary::Mul, x, gate)
            }
            Activation::Relu => {
                let zero = self.constant(&format!("{label}.zero"), 0.0);
                self.binary(&format!("{label}.relu"), Binary::Max, x, zero)
            }
            Activation::GeluErf => {
                let half = self.scaled(&format!("{label}.half"), 0.5, x);
                let arg = self.scaled(&format!("{label}.arg"), std::f32::consts::FRAC_1_SQRT_2, x);
                let erf = self.unary(&format!("{label}.erf"), Unary::Erf, arg);
                let one = self.constant(&format!("{label}.one"), 1.0);
                let phi = self.binary(&format!("{label}.phi"), Binary::Add, erf, one);
                self.binary(&format!("{label}.gelu"), Binary::Mul, half, phi)
            }
            Activation::GeluTanh => {
                let half = self.scaled(&format!("{label}.half"), 0.5, x);
                let square = self.binary(&format!("{label}.square"), Binary::Mul, x, x);
                let cube = self.binary(&format!("{label}.cube"), Binary::Mul, square, x);
                let cube = self.scaled(&format!("{label}.cubic"), 0.044_715, cube);
                let sum = self.binary(&format!("{label}.poly"), Binary::Add, x, cube);
                // sqrt(2 / pi)
                let arg = self.scaled(&format!("{label}.arg"), 0.797_884_6, sum);
                let tanh = self.unary(&format!("{label}.tanh"), Unary::Tanh, arg);
                let one = self.constant(&format!("{label}.one"), 1.0);
                let phi = self.binary(&format!("{label}.phi"), Binary::Add, tanh, one);
                self.binary(&format!("{label}.gelu"), Binary::Mul, half, phi)
            }
        }
    }

    /// exp(x - max) / sum over an axis.
    pub(crate) fn softmax(&mut self, label: &str, x: Value, axis: usize) -> Value {
        let max = self.reduce(&format!("{label}.max"), Reduce::Max, axis, x);
        let shifted = self.binary(&format!("{label}.shifted"), Binary::Sub, x, max);
        let exp = self.unary(&format!("{label}.exp"), Unary::Exp, shifted);
        let sum = self.reduce(&format!("{label}.sum"), Reduce::Sum, axis, exp);
        self.binary(&format!("{label}.softmax"), Binary::Div, exp, sum)
    }

    /// cap * tanh(x / cap).
    pub(crate) fn soft_cap(&mut self, label: &str, cap: f32, x: Value) -> Value {
        let below = self.constant(&format!("{label}.cap"), cap);
        let ratio = self.binary(&format!("{label}.ratio"), Binary::Div, x, below);
        let tanh = self.unary(&format!("{label}.tanh"), Unary::Tanh, ratio);
        let above = self.constant(&format!("{label}.cap_again"), cap);
        self.binary(&format!("{label}.capped"), Binary::Mul, tanh, above)
    }
}
