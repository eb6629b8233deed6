//! Feed-forward networks as their author writes them.

use super::{Author, Value};
use wordline_ir::graph::{Binary, Part};
use wordline_ir::spec::{Ffn, Mlp};

impl Author {
    pub(crate) fn ffn(&mut self, base: &str, layer: usize, ffn: &Ffn, hidden: usize, h: Value) -> Value {
        match ffn {
            Ffn::Dense(mlp) => {
                self.at(&format!("{base}.mlp"), Some(layer), Part::Mlp);
                self.mlp(mlp, h)
            }
            Ffn::Moe(moe) => self.moe(base, layer, moe, hidden, h),
        }
    }

    /// down(act(gate) * up), or down(act(up)).
    pub(crate) fn mlp(&mut self, mlp: &Mlp, h: Value) -> Value {
        let inner = match &mlp.gate {
            Some(gate) => {
                let gate = self.linear("gate", gate, h);
                let up = self.linear("up", &mlp.up, h);
                let open = self.activation("gate", mlp.act, gate);
                self.binary("inner", Binary::Mul, open, up)
            }
            None => {
                let up = self.linear("up", &mlp.up, h);
                self.activation("up", mlp.act, up)
            }
        };
        self.linear("down", &mlp.down, inner)
    }
}
