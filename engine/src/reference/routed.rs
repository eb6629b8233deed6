//! Commands of a mixture of experts.

use super::ReferenceUnits;
use super::functions::softmax;
use super::linear::Product;
use crate::units::{self, UnitError};

impl ReferenceUnits {
    /// The router's choice for each row.
    pub(super) fn pick(&mut self, op: &units::TopK) -> Result<(), UnitError> {
        let width = self.at.store.width(op.logits);
        for row in 0..self.at.rows.len() {
            let logits = &self.at.store.get(op.logits)[row * width..][..op.experts];
            let mut shares: Vec<f64> = logits.iter().map(|v| f64::from(*v)).collect();
            let mut order: Vec<usize> = (0..op.experts).collect();
            // Stable: of equal logits the lower index comes first.
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            order.truncate(op.k);
            softmax(&mut shares);
            let sum: f64 = if op.renormalise { order.iter().map(|e| shares[*e]).sum() } else { 1.0 };
            for (pick, expert) in order.iter().enumerate() {
                self.at.store.get_mut(op.picks)[row * op.k + pick] = *expert as f32;
                self.at.store.get_mut(op.weights)[row * op.k + pick] = (shares[*expert] / sum) as f32;
            }
        }
        Ok(())
    }

    /// Each pick's matrix times its vector; gathered, their weighted sum.
    pub(super) fn routed(&mut self, op: &units::RoutedMatvec) -> Result<(), UnitError> {
        let stack = &self.tensors[op.stack.index()];
        let (cols, outputs) = (stack.cols, stack.expert_rows);
        let experts = stack.values.len() / (cols * outputs);
        let mut picks = Vec::new();
        units::experts(self.at.store.get(op.picks), op.picks, op.k, experts, &mut picks)?;
        let weights = op.weights.map(|w| self.at.store.get(w).to_vec());
        self.widen(op.x, cols);
        let stack = &self.tensors[op.stack.index()];
        let mut made = vec![0.0; picks.len() * outputs];
        for (pick, (expert, made)) in picks.iter().zip(made.chunks_mut(outputs)).enumerate() {
            // Spread: every pick of a row sees the row's one vector; gather: each its own.
            let x = if weights.is_some() { pick } else { pick / op.k };
            let product = Product {
                weight: &stack.values[expert * outputs * cols..][..outputs * cols],
                cols,
                x: &self.wide[x * cols..][..cols],
                bias: None,
                offset: 0,
                linear: self.linear,
            };
            product.run(&mut self.team, made, outputs);
        }
        let out = self.at.store.get_mut(op.y);
        match weights {
            None => out.copy_from_slice(&made),
            Some(weights) => {
                let rows = out.chunks_mut(outputs).zip(made.chunks(op.k * outputs)).zip(weights.chunks(op.k));
                for ((out, made), weights) in rows {
                    for (i, out) in out.iter_mut().enumerate() {
                        let terms = weights.iter().zip(made.chunks(outputs));
                        *out = terms.map(|(w, y)| f64::from(*w) * f64::from(y[i])).sum::<f64>() as f32;
                    }
                }
            }
        }
        let mut picked = picks.clone();
        picked.sort_unstable();
        picked.dedup();
        let bytes = picked.len() * outputs * cols * size_of::<f32>();
        self.counters.routed(picks.len() * outputs * cols, bytes, self.at.rows.len());
        Ok(())
    }
}
