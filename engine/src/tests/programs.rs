//! Programs for the engine's tests, written by hand, with random weights.

use crate::MemorySource;
use std::collections::BTreeMap;
use wordline_ir::spec::{Activation, NormKind, Rope, RopeScaling, View};
use wordline_ir::{
    Command, Const, Cut, Identity, LayerId, Numerics, Offset, Program, RopeId, Slot, SlotInfo, Tensor, TensorId,
    TensorKind,
};

/// What mixes rows in a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mixer {
    /// Attention; the window, 0 for none.
    Attention(u16),
    /// Attention with head norms, an output gate, a soft cap and half of each head rotated.
    Rich(u16),
    Delta,
}

/// A layer's feed-forward network.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ffn {
    Dense,
    /// Ungated gelu with biases.
    Plain,
    Moe,
}

/// Sizes of a test model. Odd ones on purpose: no width but the head's is a multiple of the block.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: Vec<(Mixer, Ffn)>,
    pub(crate) hidden: usize,
    pub(crate) inter: usize,
    pub(crate) vocab: usize,
    pub(crate) max_pos: usize,
    pub(crate) heads: u16,
    pub(crate) kv_heads: u16,
    pub(crate) head_dim: u16,
    pub(crate) v_dim: u16,
    pub(crate) learned_positions: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            layers: Vec::new(),
            hidden: 40,
            inter: 56,
            vocab: 75,
            max_pos: 8192,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            v_dim: 16,
            learned_positions: false,
        }
    }
}

pub(crate) fn dense() -> Program {
    Shape { layers: vec![(Mixer::Attention(0), Ffn::Dense); 2], ..Shape::default() }.program()
}

pub(crate) fn windowed() -> Program {
    let layers = vec![(Mixer::Rich(24), Ffn::Dense), (Mixer::Rich(0), Ffn::Dense), (Mixer::Attention(7), Ffn::Dense)];
    Shape { layers, head_dim: 24, v_dim: 20, ..Shape::default() }.program()
}

pub(crate) fn hybrid() -> Program {
    let layers = vec![(Mixer::Delta, Ffn::Dense), (Mixer::Rich(0), Ffn::Dense), (Mixer::Delta, Ffn::Dense)];
    Shape { layers, ..Shape::default() }.program()
}

pub(crate) fn moe() -> Program {
    Shape { layers: vec![(Mixer::Delta, Ffn::Moe), (Mixer::Attention(0), Ffn::Moe)], ..Shape::default() }.program()
}

pub(crate) fn learned() -> Program {
    let layers = vec![(Mixer::Attention(0), Ffn::Plain)];
    Shape { layers, max_pos: 300, learned_positions: true, ..Shape::default() }.program()
}

/// Every kind of program, by name.
pub(crate) fn all() -> Vec<(&'static str, Program)> {
    vec![("dense", dense()), ("windowed", windowed()), ("hybrid", hybrid()), ("moe", moe()), ("learned", learned())]
}

/// Large, so that its last bit is seen in a result.
const EPS: Const = Const::new(0.3);

struct Maker {
    shape: Shape,
    layer: LayerId,
    slots: BTreeMap<Slot, usize>,
    tensors: Vec<Tensor>,
    ropes: Vec<Rope>,
    commands: Vec<Command>,
}

impl Shape {
    pub(crate) fn program(self) -> Program {
        let cut = Cut { ctx: 64, first_layer: 0, last_layer: self.layers.len() };
        let max_pos = self.max_pos;
        let mut maker = Maker {
            shape: self,
            layer: LayerId::OUTSIDE,
            slots: BTreeMap::new(),
            tensors: Vec::new(),
            ropes: Vec::new(),
            commands: Vec::new(),
        };
        maker.all();
        let numerics = Numerics::default();
        Program {
            identity: Identity { family: "test".into(), spec: "00".repeat(32), numerics, cut },
            max_pos,
            slots: maker.slots.into_iter().map(|(slot, width)| SlotInfo { slot, width }).collect(),
            tensors: maker.tensors,
            ropes: maker.ropes,
            commands: maker.commands,
        }
    }
}

impl Maker {
    fn all(&mut self) {
        let Shape { hidden, vocab, max_pos, .. } = self.shape;
        let table = self.matrix("embed", vocab, hidden);
        let positions = self.shape.learned_positions.then(|| self.plain("positions", max_pos, hidden));
        let out = self.slot(Slot::X, hidden);
        self.push(Command::Embed { layer: self.layer, out, table, positions, scale: Const::new(1.5) });
        for (index, (mixer, ffn)) in self.shape.layers.clone().into_iter().enumerate() {
            self.layer = LayerId(index as u8);
            self.norm("pre_mixer", Slot::H, NormKind::Rms);
            match mixer {
                Mixer::Attention(window) => self.attention(window, false),
                Mixer::Rich(window) => self.attention(window, true),
                Mixer::Delta => self.delta(),
            }
            self.add(Slot::Mix);
            let kind = if matches!(ffn, Ffn::Plain) { NormKind::Ln } else { NormKind::Rms };
            self.norm("pre_ffn", Slot::H, kind);
            match ffn {
                Ffn::Dense => self.dense(Activation::Silu, true),
                Ffn::Plain => self.dense(Activation::GeluTanh, false),
                Ffn::Moe => self.moe(),
            }
            self.add(Slot::Mix);
        }
        self.layer = LayerId::OUTSIDE;
        self.norm("final", Slot::H, NormKind::Rms);
        let y = self.slot(Slot::Logits, vocab);
        self.push(Command::Matvec { layer: self.layer, x: Slot::H, y, weight: table, bias: None, offset: Offset(0) });
        self.push(Command::Scale { layer: self.layer, x: y, width: 0, scale: Const::new(0.75) });
        self.push(Command::SoftCap { layer: self.layer, x: y, cap: Const::new(30.0) });
    }

    fn push(&mut self, command: Command) {
        self.commands.push(command);
    }

    fn slot(&mut self, slot: Slot, width: usize) -> Slot {
        assert_eq!(*self.slots.entry(slot).or_insert(width), width, "{slot:?} has one width");
        slot
    }

    fn tensor(&mut self, name: &str, kind: TensorKind, rows: usize, cols: usize) -> TensorId {
        let name = if self.layer == LayerId::OUTSIDE { name.into() } else { format!("l{}.{name}", self.layer.0) };
        let shape: &[usize] = if cols == 1 { &[rows] } else { &[rows, cols] };
        let view = View::whole(name.clone(), shape);
        self.tensors.push(Tensor { name, kind, rows, cols, view });
        TensorId::new(self.tensors.len() - 1).unwrap()
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> TensorId {
        self.tensor(name, TensorKind::Matrix, rows, cols)
    }

    fn plain(&mut self, name: &str, rows: usize, cols: usize) -> TensorId {
        self.tensor(name, TensorKind::Plain, rows, cols)
    }

    fn norm(&mut self, name: &str, out: Slot, kind: NormKind) {
        let hidden = self.shape.hidden;
        let weight = self.plain(&format!("{name}.norm"), hidden, 1);
        let bias = (kind == NormKind::Ln).then(|| self.plain(&format!("{name}.norm_bias"), hidden, 1));
        let out = self.slot(out, hidden);
        self.push(Command::Norm { layer: self.layer, x: Slot::X, out, weight, bias, kind, eps: EPS });
    }

    fn add(&mut self, y: Slot) {
        self.push(Command::Add { layer: self.layer, x: Slot::X, y, out: Slot::X, scale: Const::new(1.25) });
    }

    /// A matrix of `rows` outputs from slot `x` into slot `y`.
    fn linear(&mut self, name: &str, x: Slot, y: Slot, rows: usize, bias: bool) {
        let cols = self.slots[&x];
        let weight = self.matrix(name, rows, cols);
        let bias = bias.then(|| self.plain(&format!("{name}.bias"), rows, 1));
        let y = self.slot(y, rows);
        self.push(Command::Matvec { layer: self.layer, x, y, weight, bias, offset: Offset(0) });
    }

    fn attention(&mut self, window: u16, rich: bool) {
        let Shape { hidden, heads, kv_heads, head_dim, v_dim, .. } = self.shape;
        let layer = self.layer;
        let q = usize::from(heads * head_dim);
        let kv = usize::from(kv_heads * (head_dim + v_dim));
        let qkv = self.slot(Slot::Qkv, q + kv);
        // Two matrices into parts of one slot: the second one from an offset on.
        let weight = self.matrix("q", q, hidden);
        self.push(Command::Matvec { layer, x: Slot::H, y: qkv, weight, bias: None, offset: Offset(0) });
        let weight = self.matrix("kv", kv, hidden);
        let bias = Some(self.plain("kv.bias", kv, 1));
        self.push(Command::Matvec { layer, x: Slot::H, y: qkv, weight, bias, offset: Offset(q as u32) });
        if rich {
            let q_weight = Some(self.plain("q_norm", head_dim.into(), 1));
            let k_weight = Some(self.plain("k_norm", head_dim.into(), 1));
            let eps = EPS;
            self.push(Command::HeadNorm { layer, qkv, q_weight, k_weight, heads, kv_heads, head_dim, eps });
        }
        let scale = Const::new(1.0 / f32::from(head_dim).sqrt());
        if self.shape.learned_positions {
            self.push(Command::Scale { layer, x: qkv, width: heads * head_dim, scale });
        } else {
            let rot = if rich { head_dim / 2 } else { head_dim };
            let recipe = Rope {
                theta: if rich { 500.0 } else { 10000.0 },
                rot: rot.into(),
                interleaved: rich,
                scaling: if rich { long_rope(rot) } else { RopeScaling::Default },
            };
            let at = self.ropes.iter().position(|r| *r == recipe).unwrap_or_else(|| {
                self.ropes.push(recipe);
                self.ropes.len() - 1
            });
            let table = RopeId(at as u8);
            self.push(Command::Rope { layer, qkv, heads, kv_heads, head_dim, rot, table, scale });
        }
        self.push(Command::CacheAppend { layer, qkv, heads, kv_heads, head_dim, v_dim });
        let width = usize::from(heads * v_dim);
        let out = self.slot(Slot::Attn, width);
        let cap = Const::new(if rich { 8.0 } else { 0.0 });
        self.push(Command::Attend { layer, qkv, out, heads, kv_heads, head_dim, window, cap });
        if rich {
            self.linear("gate", Slot::H, Slot::Gate, usize::from(heads), false);
            let group = v_dim;
            self.push(Command::Gate { layer, x: out, gate: Slot::Gate, out, group });
        }
        self.linear("o", Slot::Attn, Slot::Mix, hidden, false);
    }

    fn delta(&mut self) {
        let layer = self.layer;
        let (key_heads, value_heads, key_dim, value_dim, taps) = (2_u16, 4_u16, 12_u16, 20_u16, 4_u16);
        let (keys, values) = (usize::from(key_heads * key_dim), usize::from(value_heads * value_dim));
        let channels = 2 * keys + values;
        self.linear("delta_in", Slot::H, Slot::DeltaIn, channels, false);
        let weight = self.plain("conv", channels, taps.into());
        let bias = Some(self.plain("conv.bias", channels, 1));
        let qkv = self.slot(Slot::DeltaQkv, channels);
        let (channels, act) = (channels as u16, Activation::Silu);
        self.push(Command::Conv { layer, x: Slot::DeltaIn, out: qkv, weight, bias, channels, taps, act });
        let eps = EPS;
        self.push(Command::L2Norm { layer, x: qkv, heads: 2 * key_heads, head_dim: key_dim, eps });
        self.linear("delta_z", Slot::H, Slot::DeltaZ, values, false);
        self.linear("delta_ba", Slot::H, Slot::DeltaBa, usize::from(2 * value_heads), false);
        let gb = self.slot(Slot::DeltaGb, usize::from(2 * value_heads));
        let a_log = self.plain("a_log", value_heads.into(), 1);
        let dt_bias = self.plain("dt_bias", value_heads.into(), 1);
        self.push(Command::DeltaGate { layer, ba: Slot::DeltaBa, gb, a_log, dt_bias, heads: value_heads });
        let out = self.slot(Slot::DeltaOut, values);
        self.push(Command::Delta {
            layer,
            qkv,
            gb,
            out,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            share: Offset(2),
            scale: Const::new(1.0 / f32::from(key_dim).sqrt()),
        });
        let weight = self.plain("delta_norm", value_dim.into(), 1);
        let (heads, head_dim, gate) = (value_heads, value_dim, Slot::DeltaZ);
        self.push(Command::GatedNorm { layer, x: out, gate, out, weight, heads, head_dim, act, eps });
        self.linear("delta_o", Slot::DeltaOut, Slot::Mix, self.shape.hidden, false);
    }

    fn dense(&mut self, kind: Activation, gated: bool) {
        let (layer, inter) = (self.layer, self.shape.inter);
        let width = if gated { 2 * inter } else { inter };
        self.linear("gate_up", Slot::H, Slot::GateUp, width, !gated);
        let out = self.slot(Slot::Inner, inter);
        self.push(Command::Act { layer, x: Slot::GateUp, out, kind, gated, groups: 1 });
        self.linear("down", Slot::Inner, Slot::Mix, self.shape.hidden, !gated);
    }

    fn moe(&mut self) {
        let (layer, hidden) = (self.layer, self.shape.hidden);
        let (experts, k, inter) = (6_u16, 3_u16, 24_usize);
        let held = TensorKind::Stack { experts: experts.into() };
        self.linear("router", Slot::H, Slot::Router, experts.into(), false);
        let picks = self.slot(Slot::Picks, k.into());
        let weights = self.slot(Slot::PickWeights, k.into());
        let renormalise = layer.0 == 0;
        self.push(Command::TopK { layer, logits: Slot::Router, picks, weights, experts, k, renormalise });
        let stack = self.tensor("experts.gate_up", held, usize::from(experts) * 2 * inter, hidden);
        let y = self.slot(Slot::ExpertGateUp, usize::from(k) * 2 * inter);
        self.push(Command::RoutedMatvec { layer, x: Slot::H, picks, weights: None, y, stack, k });
        let out = self.slot(Slot::ExpertInner, usize::from(k) * inter);
        let kind = Activation::Silu;
        self.push(Command::Act { layer, x: y, out, kind, gated: true, groups: k });
        let stack = self.tensor("experts.down", held, usize::from(experts) * hidden, inter);
        let y = self.slot(Slot::Mix, hidden);
        self.push(Command::RoutedMatvec { layer, x: out, picks, weights: Some(weights), y, stack, k });
        self.linear("shared.gate_up", Slot::H, Slot::SharedGateUp, 2 * inter, false);
        let out = self.slot(Slot::SharedInner, inter);
        self.push(Command::Act { layer, x: Slot::SharedGateUp, out, kind, gated: true, groups: 1 });
        self.linear("shared.down", Slot::SharedInner, Slot::SharedOut, hidden, false);
        self.linear("shared.gate", Slot::H, Slot::SharedGate, 1, false);
        let (x, gate) = (Slot::SharedOut, Slot::SharedGate);
        self.push(Command::Gate { layer, x, gate, out: x, group: hidden as u16 });
        self.push(Command::Add { layer, x: Slot::Mix, y: x, out: Slot::Mix, scale: Const::new(1.0) });
    }
}

/// Another list of divisors from position 50 on, so that long runs cross the trained length.
fn long_rope(rot: u16) -> RopeScaling {
    let divisors = |step: f64| (0..rot / 2).map(|i| 1.0 + step * f64::from(i)).collect();
    RopeScaling::LongRope { short: divisors(0.1), long: divisors(0.7), original: 50, attention_factor: 1.1 }
}

/// A generator of random numbers (splitmix64), so that every run of the tests sees the same.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// In -1.0 .. 1.0.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    pub(crate) fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }
}

/// Random weights for a program: matrices that keep a row's size, norms around one.
pub(crate) fn weights(program: &Program, seed: u64) -> MemorySource {
    let mut source = MemorySource::new();
    let mut rng = Rng(seed);
    for tensor in &program.tensors {
        let (centre, spread) = match tensor.kind {
            TensorKind::Plain if tensor.name.ends_with("norm") => (1.0, 0.3),
            TensorKind::Plain => (0.0, 0.5),
            TensorKind::Matrix if tensor.name == "embed" => (0.0, 1.0),
            TensorKind::Matrix | TensorKind::Stack { .. } => (0.0, 1.7 / (tensor.cols as f32).sqrt()),
        };
        let values = (0..tensor.rows * tensor.cols).map(|_| centre + spread * rng.unit()).collect();
        source.insert(&tensor.name, values);
    }
    source
}
