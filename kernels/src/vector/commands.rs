//! One function for each command of the vector unit, over the slices of one token-row.
//!
//! Widths are those of the slices. Every parameter (weight, bias, …) has passed `r` when it was loaded, see
//! [`crate::flush::flush_all`]. Each function panics when a slice is shorter than the command needs: programs are
//! verified before they run.

use super::run::{Operand, Run};
use super::table;
use super::{Call, Form, Micro, Shape, VectorUnit};
use crate::math::Function;

/// Mean and variance that a norm takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// x * rsqrt(mean(x^2) + eps) * weight.
    Rms,
    /// (x - mean) * rsqrt(mean((x - mean)^2) + eps) * weight (+ bias).
    Ln,
}

/// Shape of a per-head norm: heads of `head_dim`, one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// Query heads, at the start of the row.
    pub heads: usize,
    /// Key heads, after them.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Added under the root.
    pub eps: f32,
}

/// Shape of a rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Query heads, at the start of the row.
    pub heads: usize,
    /// Key heads, after them.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Rotated dimensions of a head, even, from its first on.
    pub rot: usize,
    /// Pairs are (2i, 2i + 1) when true, (i, i + rot / 2) when false.
    pub interleaved: bool,
    /// Score scale: multiplies the query heads after the rotation, all their dimensions.
    pub scale: f32,
}

impl VectorUnit {
    /// out = scale * row (+ position), elementwise.
    pub fn embed(&self, row: &[f32], position: Option<&[f32]>, scale: f32, out: &mut [f32]) {
        let width = out.len();
        let (row, out) = (Operand::input(row, 0), Operand::output(out, 0));
        match position {
            None => self.run(&table::EMBED, 1, width, &[scale], &mut [row, out]),
            Some(position) => {
                let position = Operand::input(position, 0);
                self.run(&table::EMBED_POSITIONS, 1, width, &[scale], &mut [row, position, out]);
            }
        }
    }

    /// out = norm(x) * weight (+ bias) over the whole row. Only [`Norm::Ln`] takes a bias.
    pub fn norm(&self, kind: Norm, x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        let width = x.len();
        let params = [inverse_of(width), eps];
        let (x, weight, out) = (Operand::input(x, 0), Operand::input(weight, 0), Operand::output(out, 0));
        match (kind, bias) {
            (Norm::Rms, bias) => {
                assert!(bias.is_none(), "an rms norm takes no bias");
                self.run(&table::NORM_RMS, 1, width, &params, &mut [x, weight, out]);
            }
            (Norm::Ln, None) => self.run(&table::NORM_LN, 1, width, &params, &mut [x, weight, out]),
            (Norm::Ln, Some(bias)) => {
                let bias = Operand::input(bias, 0);
                self.run(&table::NORM_LN_BIAS, 1, width, &params, &mut [x, weight, bias, out]);
            }
        }
    }

    /// RMS norm of each query head and each key head of q | k | v, in place; heads without a weight stay.
    pub fn head_norm(&self, qkv: &mut [f32], q_weight: Option<&[f32]>, k_weight: Option<&[f32]>, shape: &HeadNorm) {
        let HeadNorm { heads, kv_heads, head_dim, eps } = *shape;
        let params = [inverse_of(head_dim), eps];
        let (q, rest) = qkv.split_at_mut(heads * head_dim);
        for (x, weight, heads) in [(q, q_weight, heads), (rest, k_weight, kv_heads)] {
            if let Some(weight) = weight {
                let operands = &mut [Operand::output(x, head_dim), Operand::input(weight, 0)];
                self.run(&table::HEAD_NORM, heads, head_dim, &params, operands);
            }
        }
    }

    /// Rotates the query and key heads of q | k | v in place, then scales the query heads.
    ///
    /// `cos` and `sin` are the position's row of the rotary table, `rot / 2` values each ([`crate::rope`]).
    pub fn rope(&self, qkv: &mut [f32], cos: &[f32], sin: &[f32], shape: &Rope) {
        let Rope { heads, kv_heads, head_dim, rot, interleaved, scale } = *shape;
        assert!(rot.is_multiple_of(2) && rot <= head_dim, "{rot} rotated dimensions of {head_dim}");
        let (query, key) = if interleaved {
            (&table::ROPE_PAIRS_QUERY, &table::ROPE_PAIRS_KEY)
        } else {
            (&table::ROPE_HALF_QUERY, &table::ROPE_HALF_KEY)
        };
        let (q, rest) = qkv.split_at_mut(heads * head_dim);
        let table_row = || (Operand::input(cos, 0), Operand::input(sin, 0));
        let (c, s) = table_row();
        self.run(query, heads, rot / 2, &[scale], &mut [Operand::output(q, head_dim), c, s]);
        let (c, s) = table_row();
        self.run(key, kv_heads, rot / 2, &[], &mut [Operand::output(rest, head_dim), c, s]);
        if rot < head_dim && heads > 0 {
            let others = &mut [Operand::output(&mut q[rot..], head_dim)];
            self.run(&table::SCALE, heads, head_dim - rot, &[scale], others);
        }
    }

    /// x = factor * x, in place.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        let width = x.len();
        self.run(&table::SCALE, 1, width, &[factor], &mut [Operand::output(x, 0)]);
    }

    /// out = x * sigmoid(gate); each gate element covers `group` elements of x.
    pub fn gate(&self, x: &[f32], gate: &[f32], group: usize, out: &mut [f32]) {
        let width = x.len();
        assert!(group > 0 && gate.len() * group == width, "{} gates of {group} over {width}", gate.len());
        if group == 1 {
            let operands = &mut [Operand::input(x, 0), Operand::input(gate, 0), Operand::output(out, 0)];
            self.run(&table::GATE, 1, width, &[], operands);
        } else {
            let operands = &mut [Operand::input(x, group), Operand::input(gate, 1), Operand::output(out, group)];
            self.run(&table::GATE_GROUP, width / group, group, &[], operands);
        }
    }

    /// x * rsqrt(sum(x^2) + eps) of each of the row's first heads, in place.
    pub fn l2_norm(&self, x: &mut [f32], heads: usize, head_dim: usize, eps: f32) {
        self.run(&table::L2_NORM, heads, head_dim, &[eps], &mut [Operand::output(x, head_dim)]);
    }

    /// decay = exp(-exp(a_log) * softplus(a + dt_bias)) and beta = sigmoid(b), one a value head.
    ///
    /// `ba` is b | a, `gb` is decay | beta; all have as many values a part as `a_log`.
    pub fn delta_gate(&self, ba: &[f32], a_log: &[f32], dt_bias: &[f32], gb: &mut [f32]) {
        let heads = a_log.len();
        let ((b, a), (decay, beta)) = (ba.split_at(heads), gb.split_at_mut(heads));
        let operands = &mut [
            Operand::input(b, 0),
            Operand::input(a, 0),
            Operand::input(a_log, 0),
            Operand::input(dt_bias, 0),
            Operand::output(decay, 0),
            Operand::output(beta, 0),
        ];
        self.run(&table::DELTA_GATE, 1, heads, &[], operands);
    }

    /// out = rms_norm(x) * weight * act(gate), head by head; the heads' dimension is the weight's length.
    pub fn gated_norm(&self, x: &[f32], gate: &[f32], weight: &[f32], act: Function, eps: f32, out: &mut [f32]) {
        let (width, head_dim) = (x.len(), weight.len());
        assert!(head_dim > 0 && width.is_multiple_of(head_dim), "heads of {head_dim} in {width}");
        let operands = &mut [
            Operand::input(x, head_dim),
            Operand::input(gate, head_dim),
            Operand::input(weight, 0),
            Operand::output(out, head_dim),
        ];
        let params = &[inverse_of(head_dim), eps];
        self.run_with(&table::GATED_NORM, width / head_dim, head_dim, params, act, 0, operands);
    }

    /// out = act(x), elementwise.
    pub fn act(&self, x: &[f32], act: Function, out: &mut [f32]) {
        let operands = &mut [Operand::input(x, 0), Operand::output(out, 0)];
        self.run_with(&table::ACT, 1, x.len(), &[], act, 0, operands);
    }

    /// Each of the groups: out = act(gate) * up from gate | up.
    pub fn act_gated(&self, x: &[f32], act: Function, groups: usize, out: &mut [f32]) {
        assert!(groups > 0 && x.len().is_multiple_of(2 * groups), "{groups} groups of gate | up in {}", x.len());
        let width = x.len() / (2 * groups);
        let operands = &mut [Operand::input(x, 2 * width), Operand::output(out, width)];
        self.run_with(&table::ACT_GATED, groups, width, &[], act, 0, operands);
    }

    /// out = x + scale * y, elementwise.
    pub fn add(&self, x: &[f32], y: &[f32], scale: f32, out: &mut [f32]) {
        let operands = &mut [Operand::input(x, 0), Operand::input(y, 0), Operand::output(out, 0)];
        self.run(&table::ADD, 1, x.len(), &[scale], operands);
    }

    /// x = cap * tanh(x * recip(cap)), in place.
    pub fn soft_cap(&self, x: &mut [f32], cap: f32) {
        let width = x.len();
        self.run(&table::SOFT_CAP, 1, width, &[cap], &mut [Operand::output(x, 0)]);
    }

    /// scores = exp(scores - max) in place; returns their sum. `first_position` is the absolute position of the first
    /// score, which decides the lanes of the sum.
    #[must_use]
    pub fn softmax_terms(&self, scores: &mut [f32], first_position: usize) -> f32 {
        let (mut sum, width) = ([0.0], scores.len());
        self.softmax_heads(scores, 0, width, first_position, &mut sum);
        sum[0]
    }

    /// [`VectorUnit::softmax_terms`] head by head, and each head's sum. A head has `width` scores, the
    /// first of the next head lies `stride` on; `first_position` is the position of every head's first score.
    pub fn softmax_heads(
        &self,
        scores: &mut [f32],
        stride: usize,
        width: usize,
        first_position: usize,
        sums: &mut [f32],
    ) {
        let heads = sums.len();
        let operands = &mut [Operand::output(scores, stride), Operand::output(sums, 1)];
        self.run_with(&table::ATTEND_SOFTMAX, heads, width, &[], Function::Relu, first_position, operands);
    }

    /// x = x * recip(sum), head by head, in place: what ends an attention.
    pub fn divide_by_sums(&self, x: &mut [f32], sums: &[f32]) {
        assert!(!sums.is_empty() && x.len().is_multiple_of(sums.len()), "{} sums for {}", sums.len(), x.len());
        let width = x.len() / sums.len();
        let operands = &mut [Operand::output(x, width), Operand::input(sums, 1)];
        self.run(&table::ATTEND_FINISH, sums.len(), width, &[], operands);
    }

    /// out = softmax(logits): the router's probabilities.
    pub fn softmax(&self, logits: &[f32], out: &mut [f32]) {
        let operands = &mut [Operand::input(logits, 0), Operand::output(out, 0)];
        self.run(&table::TOP_K_SOFTMAX, 1, logits.len(), &[], operands);
    }

    /// weights = weights * recip(sum(weights)), in place.
    pub fn renormalise(&self, weights: &mut [f32]) {
        let width = weights.len();
        self.run(&table::TOP_K_RENORMALISE, 1, width, &[], &mut [Operand::output(weights, 0)]);
    }

    fn run(&self, micro: &Micro, heads: usize, width: usize, params: &[f32], operands: &mut [Operand<'_>]) {
        self.run_with(micro, heads, width, params, Function::Relu, 0, operands);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a run, in their order")]
    fn run_with(
        &self,
        micro: &Micro,
        heads: usize,
        width: usize,
        params: &[f32],
        act: Function,
        first_lane: usize,
        operands: &mut [Operand<'_>],
    ) {
        let run = Run { heads, width, params, act, first_lane, operands };
        self.perform(MicroCall { micro, run });
    }
}

/// A micro-program on its operands.
struct MicroCall<'m, 'r, 'd> {
    micro: &'m Micro,
    run: Run<'r, 'd>,
}

impl Call for MicroCall<'_, '_, '_> {
    fn shape(&self) -> Shape {
        // The pieces of attention, the soft cap of its scores among them.
        let grows = self.micro.name.starts_with("attend") || self.micro.name == table::SOFT_CAP.name;
        Shape { unit: self.micro.name, sizes: [self.run.heads, self.run.width], grows }
    }

    #[inline]
    fn compute(&mut self, form: Form) {
        super::compute(form, self.micro, &mut self.run);
    }

    fn written(&mut self, see: &mut dyn FnMut(&mut [f32])) {
        self.run.operands.iter_mut().for_each(|operand| see(operand.data_mut()));
    }
}

/// recip(width), the factor that makes a mean of a sum.
fn inverse_of(width: usize) -> f32 {
    // Rows are far below 2^24 elements, so the width is exact.
    Function::Recip.eval(width as f32)
}
