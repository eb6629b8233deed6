//! Commands of the vector unit: micro-programs over slots.

use super::{Maker, PlanError};
use crate::units;
use wordline_ir::spec::NormKind;
use wordline_kernels::gpu::rows::Largest;
use wordline_kernels::gpu::vector::{Bound, MicroRun};
use wordline_kernels::math::Function;
use wordline_kernels::vector::table;

impl Maker<'_> {
    pub(super) fn embed(&mut self, op: &units::Embed) -> Result<(), PlanError> {
        let width = self.width(op.out);
        let out = self.write(op.out, &[]);
        let row = self.device.embedded(op.table)?;
        let (row, out) = (Bound::rows(&row, width, 0), Bound::rows(&out, width, 0));
        match op.positions {
            None => self.micro(&table::EMBED, 1, width, &[op.scale], &[row, out]),
            Some(id) => {
                let positions = self.plain(id)?.clone();
                let position = Bound::by_position(&positions, width);
                self.micro(&table::EMBED_POSITIONS, 1, width, &[op.scale], &[row, position, out]);
            }
        }
        Ok(())
    }

    pub(super) fn norm(&mut self, index: u32, op: &units::Norm) -> Result<(), PlanError> {
        let width = self.width(op.x);
        let (x, weight) = (self.read(op.x), self.plain(op.weight)?.clone());
        let bias = op.bias.map(|id| self.plain(id).cloned()).transpose()?;
        let out = self.write(op.out, &[op.x]);
        let (x, weight, out) = (Bound::rows(&x, width, 0), Bound::shared(&weight), Bound::rows(&out, width, 0));
        let params = [inverse_of(width), op.eps];
        let (micro, bound) = match (op.kind, &bias) {
            (NormKind::Rms, _) => (&table::NORM_RMS, vec![x, weight, out]),
            (NormKind::Ln, None) => (&table::NORM_LN, vec![x, weight, out]),
            (NormKind::Ln, Some(bias)) => (&table::NORM_LN_BIAS, vec![x, weight, Bound::shared(bias), out]),
        };
        let run = self.run(micro, 1, width, &params);
        self.micro_into((index, op.out), &run, &bound)
    }

    pub(super) fn head_norm(&mut self, op: &units::HeadNorm) -> Result<(), PlanError> {
        let (width, qkv) = (self.width(op.qkv), self.update(op.qkv));
        let params = [inverse_of(op.head_dim), op.eps];
        let parts = [(op.q_weight, 0, op.heads), (op.k_weight, op.heads * op.head_dim, op.kv_heads)];
        for (weight, from, heads) in parts {
            if let Some(id) = weight {
                let weight = self.plain(id)?.clone();
                let bound = [Bound::rows(&qkv, width, op.head_dim).from(from), Bound::shared(&weight)];
                self.micro(&table::HEAD_NORM, heads, op.head_dim, &params, &bound);
            }
        }
        Ok(())
    }

    pub(super) fn scale(&mut self, op: &units::Scale) {
        let (width, x) = (self.width(op.x), self.update(op.x));
        self.micro(&table::SCALE, 1, op.width.unwrap_or(width), &[op.scale], &[Bound::rows(&x, width, 0)]);
    }

    pub(super) fn gate(&mut self, index: u32, op: &units::Gate) -> Result<(), PlanError> {
        let width = self.width(op.x);
        let (x, gate) = (self.read(op.x), self.read(op.gate));
        let out = self.write(op.out, &[op.x, op.gate]);
        let (micro, head, gate_head) =
            if op.group == 1 { (&table::GATE, 0, 0) } else { (&table::GATE_GROUP, op.group, 1) };
        let (heads, of) = if op.group == 1 { (1, width) } else { (width / op.group, op.group) };
        let gates = Bound::rows(&gate, self.width(op.gate), gate_head);
        let bound = [Bound::rows(&x, width, head), gates, Bound::rows(&out, width, head)];
        let run = self.run(micro, heads, of, &[]);
        self.micro_into((index, op.out), &run, &bound)?;
        Ok(())
    }

    pub(super) fn l2_norm(&mut self, op: &units::L2Norm) {
        let (width, x) = (self.width(op.x), self.update(op.x));
        let bound = [Bound::rows(&x, width, op.head_dim)];
        self.micro(&table::L2_NORM, op.heads, op.head_dim, &[op.eps], &bound);
    }

    pub(super) fn delta_gate(&mut self, op: &units::DeltaGate) -> Result<(), PlanError> {
        let (width, gates) = (self.width(op.ba), self.width(op.gb));
        let ba = self.read(op.ba);
        let gb = self.write(op.gb, &[op.ba]);
        let (a_log, dt_bias) = (self.plain(op.a_log)?.clone(), self.plain(op.dt_bias)?.clone());
        let (b, g) = (Bound::rows(&ba, width, 0), Bound::rows(&gb, gates, 0));
        let (l, t) = (Bound::shared(&a_log), Bound::shared(&dt_bias));
        self.micro(&table::DELTA_GATE, 1, op.heads, &[], &[b, b.from(op.heads), l, t, g, g.from(op.heads)]);
        Ok(())
    }

    pub(super) fn gated_norm(&mut self, index: u32, op: &units::GatedNorm) -> Result<(), PlanError> {
        let width = self.width(op.x);
        let (x, gate, weight) = (self.read(op.x), self.read(op.gate), self.plain(op.weight)?.clone());
        let out = self.write(op.out, &[op.x, op.gate]);
        let rows = |region| Bound::rows(region, width, op.head_dim);
        let params = [inverse_of(op.head_dim), op.eps];
        let bound = [rows(&x), rows(&gate), Bound::shared(&weight), rows(&out)];
        let act = crate::int8::function(op.act);
        let run = self.run(&table::GATED_NORM, width / op.head_dim, op.head_dim, &params);
        self.micro_into((index, op.out), &MicroRun { act, ..run }, &bound)?;
        Ok(())
    }

    pub(super) fn act(&mut self, index: u32, op: &units::Act) -> Result<(), PlanError> {
        let (width, out_width) = (self.width(op.x), self.width(op.out));
        let x = self.read(op.x);
        let out = self.write(op.out, &[op.x]);
        let act = crate::int8::function(op.kind);
        if op.gated {
            let inner = width / (2 * op.groups);
            let bound = [Bound::rows(&x, width, 2 * inner), Bound::rows(&out, out_width, inner)];
            let run = self.run(&table::ACT_GATED, op.groups, inner, &[]);
            self.micro_into((index, op.out), &MicroRun { act, ..run }, &bound)?;
        } else {
            let bound = [Bound::rows(&x, width, 0), Bound::rows(&out, out_width, 0)];
            let run = self.run(&table::ACT, 1, width, &[]);
            self.micro_into((index, op.out), &MicroRun { act, ..run }, &bound)?;
        }
        Ok(())
    }

    pub(super) fn add(&mut self, op: &units::Add) {
        let width = self.width(op.out);
        let (x, y) = (self.read(op.x), self.read(op.y));
        let out = self.write(op.out, &[op.x, op.y]);
        let bound = [&x, &y, &out].map(|region| Bound::rows(region, width, 0));
        self.micro(&table::ADD, 1, width, &[op.scale], &bound);
    }

    pub(super) fn soft_cap(&mut self, op: &units::SoftCap) {
        let (width, x) = (self.width(op.x), self.update(op.x));
        self.micro(&table::SOFT_CAP, 1, width, &[op.cap], &[Bound::rows(&x, width, 0)]);
    }

    pub(super) fn top_k(&mut self, op: &units::TopK) -> Result<(), PlanError> {
        let (width, logits) = (self.width(op.logits), self.read(op.logits));
        let probabilities = self.device.scratch("probabilities", self.rows * op.experts)?;
        let (picks, weights) = (self.write(op.picks, &[op.logits]), self.write(op.weights, &[op.logits]));
        let out = Bound::rows(&probabilities, op.experts, 0);
        self.micro(&table::TOP_K_SOFTMAX, 1, op.experts, &[], &[Bound::rows(&logits, width, 0), out]);
        let (rows, experts, k) = (self.rows, op.experts, op.k);
        let largest = Largest { rows, experts, k, values: &probabilities, picks: &picks, weights: &weights };
        self.jobs.push(largest.job());
        if op.renormalise {
            self.micro(&table::TOP_K_RENORMALISE, 1, op.k, &[], &[Bound::rows(&weights, op.k, 0)]);
        }
        Ok(())
    }
}

/// recip(width), the factor that makes a mean of a sum.
fn inverse_of(width: usize) -> f32 {
    Function::Recip.eval(width as f32)
}
