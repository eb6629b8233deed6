//! A mixture of experts as its author writes it: router, picked experts, and the expert that every row takes.

use super::{Author, Value};
use wordline_ir::graph::{Binary, Part, Prim, Reduce, Unary};
use wordline_ir::spec::{Moe, SharedExpert, View};

impl Author {
    pub(crate) fn moe(&mut self, base: &str, layer: usize, moe: &Moe, hidden: usize, h: Value) -> Value {
        self.at(&format!("{base}.moe"), Some(layer), Part::Moe);
        let logits = self.linear("router", &moe.router, h);
        let p = self.softmax("router", logits, 0);
        let picks = self.op("picks", Prim::TopK { k: moe.top_k }, &[p]);
        let mut weights = self.op("pick_weights", Prim::Take, &[p, picks]);
        if moe.renormalise {
            let sum = self.reduce("pick_weights.sum", Reduce::Sum, 0, weights);
            weights = self.binary("pick_weights.share", Binary::Div, weights, sum);
        }

        let (k, inter) = (moe.top_k, moe.inter);
        let matrices = self.picked("gate_up", &moe.gate_up, moe.experts, picks);
        let both = self.op("gate_up.matmul", Prim::MatMul, &[h, matrices]);
        let gate = self.slice("gate", 1, 0, inter, both);
        let up = self.slice("up", 1, inter, inter, both);
        let open = self.activation("gate", moe.act, gate);
        let inner = self.binary("inner", Binary::Mul, open, up);
        let matrices = self.picked("down", &moe.down, moe.experts, picks);
        let down = self.op("down.matmul", Prim::MatMul, &[inner, matrices]);
        let weights = self.reshape("pick_weights.column", &[k, 1], weights);
        let down = self.binary("down.weighted", Binary::Mul, down, weights);
        let down = self.reduce("down.sum", Reduce::Sum, 0, down);
        let routed = self.reshape("down.flat", &[hidden], down);
        match &moe.shared {
            Some(shared) => {
                let out = self.shared_expert(base, layer, shared, h);
                self.at(&format!("{base}.moe"), Some(layer), Part::Moe);
                self.binary("sum", Binary::Add, routed, out)
            }
            None => routed,
        }
    }

    /// The picked experts' matrices of a stack.
    fn picked(&mut self, label: &str, view: &View, experts: usize, picks: Value) -> Value {
        let stack = self.param(label, view, vec![experts, view.rows() / experts, view.cols()]);
        self.op(&format!("{label}.picked"), Prim::Pick, &[stack, picks])
    }

    fn shared_expert(&mut self, base: &str, layer: usize, shared: &SharedExpert, h: Value) -> Value {
        self.at(&format!("{base}.moe.shared"), Some(layer), Part::Shared);
        let out = self.mlp(&shared.mlp, h);
        match &shared.gate {
            Some(gate) => {
                let logit = self.linear("output_gate", gate, h);
                let open = self.unary("output_gate.sigmoid", Unary::Sigmoid, logit);
                self.binary("gated", Binary::Mul, out, open)
            }
            None => out,
        }
    }
}
