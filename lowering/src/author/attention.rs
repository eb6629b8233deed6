//! Softmax attention as its author writes it: projections, heads, rotary, cache, scores, softmax, context.

use super::{Author, Value, window_of};
use wordline_ir::graph::{Binary, Prim, Unary};
use wordline_ir::spec::{Attention, Norm, Rope};

impl Author {
    pub(crate) fn attention(&mut self, a: &Attention, max_pos: usize, h: Value) -> Value {
        // Heads are counted, then measured.
        let (queries, keys) = ([a.heads, a.head_dim], [a.kv_heads, a.head_dim]);
        let q = self.linear("q", &a.q, h);
        let k = self.linear("k", &a.k, h);
        let v = self.linear("v", &a.v, h);
        let gate = a.gate.as_ref().map(|gate| self.linear("gate", gate, h));

        let q = self.heads("q", queries, a.q_norm.as_ref(), a.rope.as_ref(), q);
        let k = self.heads("k", keys, a.k_norm.as_ref(), a.rope.as_ref(), k);
        let v = self.reshape("v.heads", &[a.kv_heads, a.v_dim], v);
        let (k, v) = (self.cached("k", a, k), self.cached("v", a, v));

        let scores = self.op("scores", Prim::MatMul, &[q, k]);
        let scores = self.scaled("scores.scaled", a.scale, scores);
        let scores = match a.soft_cap {
            Some(cap) => self.soft_cap("scores", cap, scores),
            None => scores,
        };
        let mask = self.mask(window_of(a.window, max_pos));
        let scores = self.binary("scores.masked", Binary::Add, scores, mask);
        let p = self.softmax("p", scores, 1);
        let v = self.op("v.turned", Prim::Transpose, &[v]);
        let context = self.op("context", Prim::MatMul, &[p, v]);
        let mut context = self.reshape("context.flat", &[a.heads * a.v_dim], context);
        if let Some(gate) = gate {
            let open = self.unary("gate.sigmoid", Unary::Sigmoid, gate);
            context = self.binary("context.gated", Binary::Mul, context, open);
        }
        self.linear("o", &a.o, context)
    }

    /// A projection's output as heads, normed and rotated where the model does so.
    fn heads(&mut self, label: &str, heads: [usize; 2], norm: Option<&Norm>, rope: Option<&Rope>, x: Value) -> Value {
        let mut x = self.reshape(&format!("{label}.heads"), &heads, x);
        if let Some(norm) = norm {
            x = self.norm(&format!("{label}_norm"), norm, x, 1);
        }
        match rope {
            Some(rope) => self.rotated(label, heads, rope, x),
            None => x,
        }
    }

    /// The row put into its cache, and the whole cache with each head repeated for the query heads that read it.
    fn cached(&mut self, label: &str, a: &Attention, x: Value) -> Value {
        let state = format!("{}.{label}_cache", self.path);
        let all = self.op(&format!("{label}.cache"), Prim::Append { state, ctx: self.ctx }, &[x]);
        self.repeat(&format!("{label}.repeated"), 0, a.heads / a.kv_heads, all)
    }

    /// The first `rot` dimensions of each head rotated, the others kept.
    pub(crate) fn rotated(&mut self, label: &str, [heads, dim]: [usize; 2], rope: &Rope, x: Value) -> Value {
        if rope.rot == dim {
            return self.rotate(label, heads, rope, x);
        }
        let turned = self.slice(&format!("{label}.rot"), 1, 0, rope.rot, x);
        let kept = self.slice(&format!("{label}.kept"), 1, rope.rot, dim - rope.rot, x);
        let turned = self.rotate(label, heads, rope, turned);
        self.op(&format!("{label}.whole"), Prim::Concat { axis: 1 }, &[turned, kept])
    }

    /// x * cos + turn(x) * sin, where turn maps each pair (a, b) to (-b, a).
    fn rotate(&mut self, label: &str, heads: usize, rope: &Rope, x: Value) -> Value {
        let [cos, sin] = self.rotary(rope);
        let half = rope.rot / 2;
        let turned = if rope.interleaved {
            let pairs = self.reshape(&format!("{label}.pairs"), &[heads, half, 2], x);
            let second = self.slice(&format!("{label}.second"), 2, 1, 1, pairs);
            let second = self.unary(&format!("{label}.negated"), Unary::Neg, second);
            let first = self.slice(&format!("{label}.first"), 2, 0, 1, pairs);
            let turned = self.op(&format!("{label}.turned_pairs"), Prim::Concat { axis: 2 }, &[second, first]);
            self.reshape(&format!("{label}.turned"), &[heads, rope.rot], turned)
        } else {
            let second = self.slice(&format!("{label}.second"), 1, half, half, x);
            let second = self.unary(&format!("{label}.negated"), Unary::Neg, second);
            let first = self.slice(&format!("{label}.first"), 1, 0, half, x);
            self.op(&format!("{label}.turned"), Prim::Concat { axis: 1 }, &[second, first])
        };
        let straight = self.binary(&format!("{label}.cosine"), Binary::Mul, x, cos);
        let across = self.binary(&format!("{label}.sine"), Binary::Mul, turned, sin);
        self.binary(&format!("{label}.rotated"), Binary::Add, straight, across)
    }
}
