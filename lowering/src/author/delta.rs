//! Gated DeltaNet as its author writes it: projections, convolution, gates, and the delta rule over a memory.

use super::{Author, Value};
use wordline_ir::graph::{Binary, Prim, Reduce, Unary};
use wordline_ir::spec::{Activation, DeltaNet};

impl Author {
    pub(crate) fn delta(&mut self, d: &DeltaNet, h: Value) -> Value {
        let qkv = self.linear("qkv", &d.qkv, h);
        let z = self.linear("z", &d.z, h);
        let b = self.linear("b", &d.b, h);
        let a = self.linear("a", &d.a, h);

        let qkv = self.convolved(d, qkv);
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let share = d.value_heads / d.key_heads;
        let q = self.slice("q", 0, 0, keys, qkv);
        let q = self.reshape("q.heads", &[d.key_heads, d.key_dim], q);
        let q = self.l2("q", d.l2_eps, q, 1);
        let q = self.scaled("q.scaled", d.q_scale, q);
        let q = self.repeat("q.repeated", 0, share, q);
        let k = self.slice("k", 0, keys, keys, qkv);
        let k = self.reshape("k.heads", &[d.key_heads, d.key_dim], k);
        let k = self.l2("k", d.l2_eps, k, 1);
        let k = self.repeat("k.repeated", 0, share, k);
        let v = self.slice("v", 0, 2 * keys, values, qkv);
        let v = self.reshape("v.heads", &[d.value_heads, d.value_dim], v);

        let decay = self.decay(d, a);
        let beta = self.unary("beta", Unary::Sigmoid, b);
        let out = self.recurrence(d, [q, k, v], decay, beta);

        let out = self.norm("norm", &d.norm, out, 1);
        let z = self.reshape("z.heads", &[d.value_heads, d.value_dim], z);
        let open = self.activation("z", Activation::Silu, z);
        let out = self.binary("gated", Binary::Mul, out, open);
        let out = self.reshape("gated.flat", &[values], out);
        self.linear("o", &d.o, out)
    }

    /// Each channel's newest inputs times its taps, summed, then the activation.
    fn convolved(&mut self, d: &DeltaNet, x: Value) -> Value {
        let state = format!("{}.ring", self.path);
        let recent = self.op("conv.ring", Prim::Shift { state, taps: d.conv_taps }, &[x]);
        let taps = self.matrix("conv", &d.conv.weight);
        let products = self.binary("conv.products", Binary::Mul, recent, taps);
        let sum = self.reduce("conv.sum", Reduce::Sum, 1, products);
        let mut y = self.reshape("conv.flat", &[d.conv.weight.rows()], sum);
        if let Some(bias) = &d.conv.bias {
            let bias = self.vector("conv.bias", bias);
            y = self.binary("conv.biased", Binary::Add, y, bias);
        }
        self.activation("conv", d.conv_act, y)
    }

    /// exp(-exp(a_log) * softplus(a + dt_bias)), one a value head.
    fn decay(&mut self, d: &DeltaNet, a: Value) -> Value {
        let a_log = self.vector("a_log", &d.a_log);
        let dt_bias = self.vector("dt_bias", &d.dt_bias);
        let rate = self.unary("decay.rate", Unary::Exp, a_log);
        let rate = self.unary("decay.negated", Unary::Neg, rate);
        let shifted = self.binary("decay.shifted", Binary::Add, a, dt_bias);
        let dt = self.unary("decay.softplus", Unary::Softplus, shifted);
        let exponent = self.binary("decay.exponent", Binary::Mul, rate, dt);
        self.unary("decay", Unary::Exp, exponent)
    }

    /// S *= decay; m = S^T k; S += k ((v - m) * beta)^T; out = S^T q, per value head.
    fn recurrence(&mut self, d: &DeltaNet, [q, k, v]: [Value; 3], decay: Value, beta: Value) -> Value {
        let (heads, dk, dv) = (d.value_heads, d.key_dim, d.value_dim);
        let state = format!("{}.memory", self.path);
        let old = self.op("memory.load", Prim::Load { state: state.clone(), shape: vec![heads, dk, dv] }, &[]);
        let decay = self.reshape("decay.column", &[heads, 1, 1], decay);
        let faded = self.binary("memory.faded", Binary::Mul, old, decay);
        let k = self.reshape("k.column", &[heads, dk, 1], k);
        let found = self.binary("memory.found", Binary::Mul, faded, k);
        let found = self.reduce("memory.found_sum", Reduce::Sum, 1, found);
        let found = self.reshape("memory.found_flat", &[heads, dv], found);
        let beta = self.reshape("beta.column", &[heads, 1], beta);
        let error = self.binary("error", Binary::Sub, v, found);
        let step = self.binary("error.scaled", Binary::Mul, error, beta);
        let step = self.reshape("error.row", &[heads, 1, dv], step);
        let outer = self.binary("memory.outer", Binary::Mul, k, step);
        let new = self.binary("memory.new", Binary::Add, faded, outer);
        self.op("memory.store", Prim::Store { state }, &[new]);
        let q = self.reshape("q.column", &[heads, dk, 1], q);
        let out = self.binary("out.products", Binary::Mul, new, q);
        let out = self.reduce("out.sum", Reduce::Sum, 1, out);
        self.reshape("out", &[heads, dv], out)
    }
}
