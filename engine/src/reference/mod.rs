//! `ReferenceUnits`: the commands in f64 on unquantised f32 weights, for tests, `verify` and `accuracy`.
//!
//! Slots hold f32, as the reference framework's tensors do; every sum and function between two slots is f64. Nothing
//! is quantised, except that [`Linear::Q8`] rounds both sides of linear layers and the head, [`Linear::Q4K`] their weights.

mod functions;
mod linear;
mod q4_k;
mod routed;
mod state;

pub use linear::Linear;

use crate::error::ModelError;
use crate::ropes::RopeTables;
use crate::sequencer::Sequencer;
use crate::source::WeightSource;
use crate::state::States;
use crate::store::RowStore;
use crate::team::Team;
use crate::units::{self, Counters, Rows, StepRow, UnitError, Units};
use functions::{activate, rms_norm, sigmoid, softplus};
use linear::Product;
use state::Sequence;
use std::sync::Mutex;
use wordline_ir::spec::NormKind;
use wordline_ir::state::{LayerState, state_layout};
use wordline_ir::{Slot, TensorId, TensorKind};

/// Rows that are read from the source at a time.
const READ_ROWS: usize = 64;

/// The reference units.
pub struct ReferenceUnits {
    tensors: Vec<Values>,
    layout: Vec<LayerState>,
    ropes: RopeTables,
    at: Rows,
    states: States<Sequence>,
    linear: Linear,
    team: Team,
    counters: Counters,
    /// Rows of a product's input, widened.
    wide: Vec<f64>,
}

/// A tensor's values, `[rows, cols]`.
struct Values {
    values: Vec<f32>,
    cols: usize,
    /// Rows of one expert.
    expert_rows: usize,
}

impl ReferenceUnits {
    /// Units for a sequencer's program, its weights read from a source.
    ///
    /// # Errors
    /// The source does not give a tensor, or a rotary recipe gives no table.
    pub fn new(
        sequencer: &Sequencer,
        source: &dyn WeightSource,
        linear: Linear,
        mut team: Team,
    ) -> Result<Self, ModelError> {
        let program = sequencer.program();
        let mut tensors = Vec::with_capacity(program.tensors.len());
        for tensor in &program.tensors {
            let mut values = vec![0.0; tensor.rows * tensor.cols];
            let failed = Mutex::new(None);
            team.chunks(usize::MAX, &mut values, READ_ROWS * tensor.cols, &|chunk, out| {
                let first = chunk * READ_ROWS;
                if let Err(error) = source.read_rows(tensor, first..first + out.len() / tensor.cols, out) {
                    *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                } else if tensor.kind != TensorKind::Plain {
                    out.chunks_mut(tensor.cols).for_each(|row| linear.store(row));
                }
            });
            if let Some(error) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
                return Err(error.into());
            }
            let expert_rows = match tensor.kind {
                TensorKind::Stack { experts } => tensor.rows / experts.max(1),
                TensorKind::Matrix | TensorKind::Plain => tensor.rows,
            };
            tensors.push(Values { values, cols: tensor.cols, expert_rows });
        }
        Ok(Self {
            tensors,
            layout: state_layout(program),
            ropes: RopeTables::new(&program.ropes)?,
            at: Rows { store: RowStore::new(&program.slots), rows: Vec::new() },
            states: States::new(),
            linear,
            team,
            counters: Counters::default(),
            wide: Vec::new(),
        })
    }

    fn widen(&mut self, slot: Slot, cols: usize) {
        let x = self.at.store.get(slot);
        self.wide.resize(x.len(), 0.0);
        if cols == 0 {
            return;
        }
        let linear = self.linear;
        self.team.chunks(x.len(), &mut self.wide, cols, &|i, out| linear.widen(&x[i * cols..][..cols], out));
    }
}

/// The values of a plain tensor.
fn plain(tensors: &[Values], id: TensorId) -> &[f32] {
    &tensors[id.index()].values
}

impl Units for ReferenceUnits {
    fn begin(&mut self, rows: &[StepRow]) {
        self.at.begin(rows);
        self.ropes.reach(rows.iter().map(|r| r.position).max().unwrap_or(0));
    }

    fn keep(&mut self, rows: &[usize]) {
        self.at.keep(rows);
    }

    fn slot(&mut self, slot: Slot) -> &[f32] {
        self.at.store.get(slot)
    }

    fn slot_mut(&mut self, slot: Slot) -> &mut [f32] {
        self.at.store.get_mut(slot)
    }

    fn open(&mut self, sequence: usize) {
        self.states.open(sequence, Sequence::new(&self.layout));
    }

    fn release(&mut self, sequence: usize) {
        self.states.release(sequence);
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn form(&self) -> &'static str {
        "reference"
    }

    fn state_bits(&self, sequence: usize) -> Vec<u64> {
        self.states.get(sequence).bits()
    }

    fn embed(&mut self, op: &units::Embed) -> Result<(), UnitError> {
        let table = &self.tensors[op.table.index()];
        let width = table.cols;
        let out = self.at.store.get_mut(op.out);
        for (row, out) in self.at.rows.iter().zip(out.chunks_mut(width)) {
            let token = &table.values[row.token as usize * width..][..width];
            for (i, out) in out.iter_mut().enumerate() {
                let position =
                    op.positions.map_or(0.0, |p| f64::from(plain(&self.tensors, p)[row.position * width + i]));
                *out = (f64::from(token[i]) * f64::from(op.scale) + position) as f32;
            }
        }
        Ok(())
    }

    fn norm(&mut self, op: &units::Norm) -> Result<(), UnitError> {
        let width = self.at.store.width(op.x);
        let weight = plain(&self.tensors, op.weight);
        let bias = op.bias.map(|b| plain(&self.tensors, b));
        let ([x], out) = self.at.store.split([op.x], op.out);
        for (x, out) in x.chunks(width).zip(out.chunks_mut(width)) {
            out.copy_from_slice(x);
            match op.kind {
                NormKind::Rms => rms_norm(out, op.eps, |i| f64::from(weight[i])),
                NormKind::Ln => {
                    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / width as f64;
                    let square = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
                    let factor = 1.0 / (square / width as f64 + f64::from(op.eps)).sqrt();
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = ((f64::from(x[i]) - mean) * factor * f64::from(weight[i])
                            + bias.map_or(0.0, |b| f64::from(b[i]))) as f32;
                    }
                }
            }
        }
        Ok(())
    }

    fn head_norm(&mut self, op: &units::HeadNorm) -> Result<(), UnitError> {
        let width = self.at.store.width(op.qkv);
        for row in self.at.store.get_mut(op.qkv).chunks_mut(width) {
            for (head, x) in row.chunks_mut(op.head_dim).take(op.heads + op.kv_heads).enumerate() {
                let weight = if head < op.heads { op.q_weight } else { op.k_weight };
                if let Some(weight) = weight.map(|w| plain(&self.tensors, w)) {
                    rms_norm(x, op.eps, |i| f64::from(weight[i]));
                }
            }
        }
        Ok(())
    }

    fn rotate(&mut self, op: &units::Rotate) -> Result<(), UnitError> {
        let width = self.at.store.width(op.qkv);
        let interleaved = self.ropes.interleaved(op.table);
        let half = op.rot / 2;
        for (row, qkv) in self.at.rows.iter().zip(self.at.store.get_mut(op.qkv).chunks_mut(width)) {
            let (cos, sin) = self.ropes.row(op.table, row.position);
            for (head, x) in qkv.chunks_mut(op.head_dim).take(op.heads + op.kv_heads).enumerate() {
                for i in 0..half {
                    let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                    let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
                    let (c, s) = (f64::from(cos[i]), f64::from(sin[i]));
                    x[a] = (xa * c - xb * s) as f32;
                    x[b] = (xb * c + xa * s) as f32;
                }
                if head < op.heads {
                    x.iter_mut().for_each(|v| *v *= op.scale);
                }
            }
        }
        Ok(())
    }

    fn scale(&mut self, op: &units::Scale) -> Result<(), UnitError> {
        let width = self.at.store.width(op.x);
        for row in self.at.store.get_mut(op.x).chunks_mut(width) {
            row[..op.width.unwrap_or(width)].iter_mut().for_each(|v| *v *= op.scale);
        }
        Ok(())
    }

    fn matvec(&mut self, op: &units::Matvec) -> Result<(), UnitError> {
        let cols = self.tensors[op.weight.index()].cols;
        self.widen(op.x, cols);
        let weight = &self.tensors[op.weight.index()].values;
        let bias = op.bias.map(|b| plain(&self.tensors, b));
        let width = self.at.store.width(op.y);
        let out = self.at.store.get_mut(op.y);
        let product = Product { weight, cols, x: &self.wide, bias, offset: op.offset, linear: self.linear };
        product.run(&mut self.team, out, width);
        self.counters.matrix(weight.len(), size_of::<f32>() * weight.len(), self.at.rows.len(), op.head);
        Ok(())
    }

    fn cache_append(&mut self, op: &units::CacheAppend) -> Result<(), UnitError> {
        let width = self.at.store.width(op.qkv);
        for (row, qkv) in self.at.rows.iter().zip(self.at.store.get(op.qkv).chunks(width)) {
            self.states.get_mut(row.sequence).layers[op.layer].append(op, qkv);
        }
        Ok(())
    }

    fn attend(&mut self, op: &units::Attend) -> Result<(), UnitError> {
        let (width, out_width) = (self.at.store.width(op.qkv), self.at.store.width(op.out));
        let ([qkv], out) = self.at.store.split([op.qkv], op.out);
        let (rows, states) = (&self.at.rows, &self.states);
        for (index, row) in rows.iter().enumerate() {
            if !states.get(row.sequence).layers[op.layer].holds(op, row.position) {
                return Err(UnitError::value(
                    op.qkv,
                    index,
                    &"the cache does not hold the positions that the row sees",
                ));
            }
        }
        let seen: usize = rows.iter().map(|row| row.position + 1).sum();
        self.team.chunks(seen * out_width * 2, out, out_width, &|i, out| {
            let layer = &states.get(rows[i].sequence).layers[op.layer];
            layer.attend(op, rows[i].position, &qkv[i * width..][..width], out);
        });
        Ok(())
    }

    fn gate(&mut self, op: &units::Gate) -> Result<(), UnitError> {
        let (width, gates) = (self.at.store.width(op.x), self.at.store.width(op.gate));
        let ([x, gate], out) = self.at.store.split([op.x, op.gate], op.out);
        for ((x, gate), out) in x.chunks(width).zip(gate.chunks(gates)).zip(out.chunks_mut(width)) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = (f64::from(x[i]) * sigmoid(gate[i / op.group].into())) as f32;
            }
        }
        Ok(())
    }

    fn conv(&mut self, op: &units::Conv) -> Result<(), UnitError> {
        let (width, out_width) = (self.at.store.width(op.x), self.at.store.width(op.out));
        let weight = plain(&self.tensors, op.weight);
        let bias = op.bias.map(|b| plain(&self.tensors, b));
        let ([x], out) = self.at.store.split([op.x], op.out);
        for ((row, x), out) in self.at.rows.iter().zip(x.chunks(width)).zip(out.chunks_mut(out_width)) {
            self.states.get_mut(row.sequence).layers[op.layer].conv(op, weight, bias, x, out);
        }
        Ok(())
    }

    fn l2_norm(&mut self, op: &units::L2Norm) -> Result<(), UnitError> {
        let width = self.at.store.width(op.x);
        for row in self.at.store.get_mut(op.x).chunks_mut(width) {
            for x in row.chunks_mut(op.head_dim).take(op.heads) {
                let square: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
                let factor = 1.0 / (square + f64::from(op.eps)).sqrt();
                x.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
            }
        }
        Ok(())
    }

    fn delta_gate(&mut self, op: &units::DeltaGate) -> Result<(), UnitError> {
        let (width, out_width) = (self.at.store.width(op.ba), self.at.store.width(op.gb));
        let (a_log, dt_bias) = (plain(&self.tensors, op.a_log), plain(&self.tensors, op.dt_bias));
        let ([ba], gb) = self.at.store.split([op.ba], op.gb);
        for (ba, gb) in ba.chunks(width).zip(gb.chunks_mut(out_width)) {
            for head in 0..op.heads {
                let (b, a) = (f64::from(ba[head]), f64::from(ba[op.heads + head]));
                let rate = libm::exp(a_log[head].into()) * softplus(a + f64::from(dt_bias[head]));
                gb[head] = libm::exp(-rate) as f32;
                gb[op.heads + head] = sigmoid(b) as f32;
            }
        }
        Ok(())
    }

    fn delta(&mut self, op: &units::Delta) -> Result<(), UnitError> {
        let store = &mut self.at.store;
        let (width, gates, out_width) = (store.width(op.qkv), store.width(op.gb), store.width(op.out));
        let ([qkv, gb], out) = store.split([op.qkv, op.gb], op.out);
        let rows = self.at.rows.iter().zip(qkv.chunks(width)).zip(gb.chunks(gates)).zip(out.chunks_mut(out_width));
        for (((row, qkv), gb), out) in rows {
            self.states.get_mut(row.sequence).layers[op.layer].delta(op, qkv, gb, out);
        }
        Ok(())
    }

    fn gated_norm(&mut self, op: &units::GatedNorm) -> Result<(), UnitError> {
        let width = self.at.store.width(op.x);
        let weight = plain(&self.tensors, op.weight);
        let ([x, gate], out) = self.at.store.split([op.x, op.gate], op.out);
        out.copy_from_slice(x);
        for (gate, out) in gate.chunks(width).zip(out.chunks_mut(width)) {
            for (gate, out) in gate.chunks(op.head_dim).zip(out.chunks_mut(op.head_dim)).take(op.heads) {
                rms_norm(out, op.eps, |i| f64::from(weight[i]) * activate(op.act, gate[i].into()));
            }
        }
        Ok(())
    }

    fn act(&mut self, op: &units::Act) -> Result<(), UnitError> {
        let inner = self.at.store.width(op.out) / op.groups;
        let ([x], out) = self.at.store.split([op.x], op.out);
        // Groups lie one after the other in a row, and so do rows.
        let group = if op.gated { 2 * inner } else { inner };
        for (x, out) in x.chunks(group).zip(out.chunks_mut(inner)) {
            for (i, out) in out.iter_mut().enumerate() {
                let up = if op.gated { f64::from(x[inner + i]) } else { 1.0 };
                *out = (activate(op.kind, x[i].into()) * up) as f32;
            }
        }
        Ok(())
    }

    fn add(&mut self, op: &units::Add) -> Result<(), UnitError> {
        let ([x, y], out) = self.at.store.split([op.x, op.y], op.out);
        for ((x, y), out) in x.iter().zip(y).zip(out) {
            *out = (f64::from(*x) + f64::from(*y) * f64::from(op.scale)) as f32;
        }
        Ok(())
    }

    fn soft_cap(&mut self, op: &units::SoftCap) -> Result<(), UnitError> {
        let cap = f64::from(op.cap);
        for x in self.at.store.get_mut(op.x) {
            *x = (cap * libm::tanh(f64::from(*x) / cap)) as f32;
        }
        Ok(())
    }

    fn top_k(&mut self, op: &units::TopK) -> Result<(), UnitError> {
        self.pick(op)
    }

    fn routed_matvec(&mut self, op: &units::RoutedMatvec) -> Result<(), UnitError> {
        self.routed(op)
    }
}
