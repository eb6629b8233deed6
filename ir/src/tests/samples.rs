//! Valid programs, written command by command: one a kind of model, as small as the kind allows.

use crate::program::{Cut, Identity, Program, SlotInfo, Tensor, TensorId, TensorKind};
use crate::spec::{Activation, NormKind, Part, Rope, RopeScaling, RowRange, View};
use crate::{Command, Const, LayerId, Numerics, Offset, RopeId, Slot};

pub(crate) const OUT: LayerId = LayerId::OUTSIDE;

/// Every sample with its name.
pub(crate) fn all() -> Vec<(&'static str, Program)> {
    vec![("dense", dense()), ("classic", classic()), ("windowed", windowed()), ("hybrid", hybrid()), ("moe", moe())]
}

fn c(value: f32) -> Const {
    Const::new(value)
}

pub(crate) struct Build {
    pub(crate) program: Program,
}

impl Build {
    fn new(family: &str, layers: usize, max_pos: usize, slots: &[(Slot, usize)]) -> Self {
        let identity = Identity {
            family: family.to_owned(),
            spec: "0123456789abcdef".repeat(4),
            numerics: Numerics::default(),
            cut: Cut { ctx: 16, first_layer: 0, last_layer: layers },
        };
        let slots = slots.iter().map(|(slot, width)| SlotInfo { slot: *slot, width: *width }).collect();
        let program = Program { identity, max_pos, slots, tensors: vec![], ropes: vec![], commands: vec![] };
        Self { program }
    }

    fn add(&mut self, name: &str, kind: TensorKind, rows: usize, cols: usize, view: View) -> TensorId {
        let id = TensorId::new(self.program.tensors.len()).expect("samples are small");
        self.program.tensors.push(Tensor { name: name.to_owned(), kind, rows, cols, view });
        id
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> TensorId {
        let view = View::whole(format!("model.{name}.weight"), &[rows, cols]);
        self.add(name, TensorKind::Matrix, rows, cols, view)
    }

    fn plain(&mut self, name: &str, rows: usize) -> TensorId {
        let view = View::whole(format!("model.{name}"), &[rows]);
        self.add(name, TensorKind::Plain, rows, 1, view)
    }

    fn push(&mut self, command: Command) {
        self.program.commands.push(command);
    }

    fn norm(&mut self, layer: LayerId, x: Slot, out: Slot, name: &str) {
        let weight = self.plain(name, 64);
        let (kind, eps) = (NormKind::Rms, c(1e-5));
        self.push(Command::Norm { layer, x, out, weight, bias: None, kind, eps });
    }

    fn matvec(&mut self, layer: LayerId, x: Slot, y: Slot, weight: TensorId) {
        self.push(Command::Matvec { layer, x, y, weight, bias: None, offset: Offset(0) });
    }

    fn residual(&mut self, layer: LayerId) {
        self.push(Command::Add { layer, x: Slot::X, y: Slot::Mix, out: Slot::X, scale: c(1.0) });
    }

    fn cache_append(&mut self, layer: LayerId) {
        self.push(Command::CacheAppend { layer, qkv: Slot::Qkv, heads: 4, kv_heads: 2, head_dim: 16, v_dim: 16 });
    }

    fn attend(&mut self, layer: LayerId, window: u16) {
        let (qkv, out, cap) = (Slot::Qkv, Slot::Attn, c(0.0));
        self.push(Command::Attend { layer, qkv, out, heads: 4, kv_heads: 2, head_dim: 16, window, cap });
    }

    fn rope(&mut self, layer: LayerId, table: u8) {
        let rot = self.program.ropes[usize::from(table)].rot as u16;
        let (qkv, table, scale) = (Slot::Qkv, RopeId(table), c(0.25));
        self.push(Command::Rope { layer, qkv, heads: 4, kv_heads: 2, head_dim: 16, rot, table, scale });
    }

    /// Dense FFN: normed, gate | up, activation, down, residual.
    fn ffn(&mut self, layer: LayerId, kind: Activation) {
        let l = layer.0;
        self.norm(layer, Slot::X, Slot::H, &format!("l{l}.pre_ffn"));
        let gate_up = self.matrix(&format!("l{l}.gate_up"), 192, 64);
        self.matvec(layer, Slot::H, Slot::GateUp, gate_up);
        self.push(Command::Act { layer, x: Slot::GateUp, out: Slot::Inner, kind, gated: true, groups: 1 });
        let down = self.matrix(&format!("l{l}.down"), 64, 96);
        self.matvec(layer, Slot::Inner, Slot::Mix, down);
    }

    fn readout(&mut self, head: TensorId) {
        self.norm(OUT, Slot::X, Slot::H, "final_norm");
        self.matvec(OUT, Slot::H, Slot::Logits, head);
    }
}

const DENSE_SLOTS: &[(Slot, usize)] = &[
    (Slot::X, 64),
    (Slot::H, 64),
    (Slot::Qkv, 128),
    (Slot::Attn, 64),
    (Slot::Mix, 64),
    (Slot::GateUp, 192),
    (Slot::Inner, 96),
    (Slot::Logits, 320),
];

/// Two layers of grouped-query attention with q, k and v in one entry, a gated FFN, a tied head.
pub(crate) fn dense() -> Program {
    let mut b = Build::new("dense", 2, 256, DENSE_SLOTS);
    let scaling = RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 64 };
    b.program.ropes.push(Rope { theta: 500_000.0, rot: 16, interleaved: false, scaling });
    let table = b.matrix("embed", 320, 64);
    b.push(Command::Embed { layer: OUT, out: Slot::X, table, positions: None, scale: c(1.0) });
    for l in 0..2 {
        let layer = LayerId(l);
        b.norm(layer, Slot::X, Slot::H, &format!("l{l}.pre_mixer"));
        let parts =
            [("q", 64), ("k", 32), ("v", 32)].map(|(n, rows)| View::whole(format!("model.l{l}.{n}"), &[rows, 64]));
        let [q, k, v] = &parts;
        let qkv = View::concat(&[q, k, v]).expect("equal columns");
        let qkv = b.add(&format!("l{l}.qkv"), TensorKind::Matrix, 128, 64, qkv);
        b.matvec(layer, Slot::H, Slot::Qkv, qkv);
        b.rope(layer, 0);
        b.cache_append(layer);
        b.attend(layer, 0);
        let o = b.matrix(&format!("l{l}.o"), 64, 64);
        b.matvec(layer, Slot::Attn, Slot::Mix, o);
        b.residual(layer);
        b.ffn(layer, Activation::Silu);
        b.residual(layer);
    }
    b.readout(table);
    b.program
}

/// LayerNorm with biases, learned positions, matrices stored (in, out), no rotary table, an FFN without gate.
pub(crate) fn classic() -> Program {
    let slots: Vec<(Slot, usize)> = DENSE_SLOTS
        .iter()
        .map(|(slot, width)| match slot {
            Slot::Qkv => (*slot, 192),
            Slot::GateUp => (*slot, 96),
            _ => (*slot, *width),
        })
        .collect();
    let mut b = Build::new("classic", 1, 64, &slots);
    let (layer, heads, kv_heads, head_dim) = (LayerId(0), 4, 4, 16);
    let table = b.matrix("wte", 320, 64);
    let positions = b.add("wpe", TensorKind::Plain, 64, 64, View::whole("wpe.weight", &[64, 64]));
    b.push(Command::Embed { layer: OUT, out: Slot::X, table, positions: Some(positions), scale: c(1.0) });
    let norm = |b: &mut Build, layer, name: &str| {
        let (weight, bias) = (b.plain(&format!("{name}.w"), 64), b.plain(&format!("{name}.b"), 64));
        let (x, out, kind, eps) = (Slot::X, Slot::H, NormKind::Ln, c(1e-5));
        b.push(Command::Norm { layer, x, out, weight, bias: Some(bias), kind, eps });
    };
    let linear = |b: &mut Build, x, y, name: &str, rows: usize, cols: usize| {
        let view = View::transposed(format!("h.0.{name}.weight"), &[cols, rows]);
        let weight = b.add(name, TensorKind::Matrix, rows, cols, view);
        let bias = b.plain(&format!("{name}.bias"), rows);
        b.push(Command::Matvec { layer, x, y, weight, bias: Some(bias), offset: Offset(0) });
    };
    norm(&mut b, layer, "ln_1");
    linear(&mut b, Slot::H, Slot::Qkv, "c_attn", 192, 64);
    b.push(Command::Scale { layer, x: Slot::Qkv, width: 64, scale: c(0.25) });
    b.push(Command::CacheAppend { layer, qkv: Slot::Qkv, heads, kv_heads, head_dim, v_dim: 16 });
    let (qkv, out) = (Slot::Qkv, Slot::Attn);
    b.push(Command::Attend { layer, qkv, out, heads, kv_heads, head_dim, window: 0, cap: c(0.0) });
    linear(&mut b, Slot::Attn, Slot::Mix, "c_proj", 64, 64);
    b.residual(layer);
    norm(&mut b, layer, "ln_2");
    linear(&mut b, Slot::H, Slot::GateUp, "c_fc", 96, 64);
    let kind = Activation::GeluTanh;
    b.push(Command::Act { layer, x: Slot::GateUp, out: Slot::Inner, kind, gated: false, groups: 1 });
    linear(&mut b, Slot::Inner, Slot::Mix, "mlp.c_proj", 64, 96);
    b.residual(layer);
    norm(&mut b, OUT, "ln_f");
    b.matvec(OUT, Slot::H, Slot::Logits, table);
    b.program
}

/// Windowed and full layers in turn with a rotary table each, query and key norms, norms behind mixer and FFN, caps.
pub(crate) fn windowed() -> Program {
    let mut b = Build::new("windowed", 2, 128, DENSE_SLOTS);
    b.program.ropes.push(Rope { theta: 10_000.0, rot: 16, interleaved: false, scaling: RopeScaling::Default });
    let scaling = RopeScaling::Linear { factor: 8.0 };
    b.program.ropes.push(Rope { theta: 1e6, rot: 16, interleaved: true, scaling });
    let table = b.matrix("embed", 320, 64);
    b.push(Command::Embed { layer: OUT, out: Slot::X, table, positions: None, scale: c(8.0) });
    for l in 0..2_u8 {
        let layer = LayerId(l);
        b.norm(layer, Slot::X, Slot::H, &format!("l{l}.pre_mixer"));
        for (name, rows, offset) in [("q", 64, 0), ("k", 32, 64), ("v", 32, 96)] {
            let weight = b.matrix(&format!("l{l}.{name}"), rows, 64);
            let (x, y, bias, offset) = (Slot::H, Slot::Qkv, None, Offset(offset));
            b.push(Command::Matvec { layer, x, y, weight, bias, offset });
        }
        let [q_weight, k_weight] = ["q_norm", "k_norm"].map(|n| {
            let view = View::whole(format!("model.l{l}.{n}"), &[16]).plus_one();
            Some(b.add(&format!("l{l}.{n}"), TensorKind::Plain, 16, 1, view))
        });
        let (qkv, heads, kv_heads, head_dim, eps) = (Slot::Qkv, 4, 2, 16, c(1e-6));
        b.push(Command::HeadNorm { layer, qkv, q_weight, k_weight, heads, kv_heads, head_dim, eps });
        b.rope(layer, l);
        b.cache_append(layer);
        let (out, window, cap) = (Slot::Attn, if l == 0 { 32 } else { 0 }, c(50.0));
        b.push(Command::Attend { layer, qkv, out, heads, kv_heads, head_dim, window, cap });
        let o = b.matrix(&format!("l{l}.o"), 64, 64);
        b.matvec(layer, Slot::Attn, Slot::Mix, o);
        b.norm(layer, Slot::Mix, Slot::Mix, &format!("l{l}.post_mixer"));
        b.residual(layer);
        b.ffn(layer, Activation::GeluTanh);
        b.norm(layer, Slot::Mix, Slot::Mix, &format!("l{l}.post_ffn"));
        b.residual(layer);
    }
    b.readout(table);
    b.push(Command::SoftCap { layer: OUT, x: Slot::Logits, cap: c(30.0) });
    b.program
}

const HYBRID_SLOTS: &[(Slot, usize)] = &[
    (Slot::X, 64),
    (Slot::H, 64),
    (Slot::Qkv, 128),
    (Slot::Gate, 64),
    (Slot::Attn, 64),
    (Slot::Mix, 64),
    (Slot::GateUp, 192),
    (Slot::Inner, 96),
    (Slot::DeltaIn, 96),
    (Slot::DeltaQkv, 96),
    (Slot::DeltaZ, 64),
    (Slot::DeltaBa, 8),
    (Slot::DeltaGb, 8),
    (Slot::DeltaOut, 64),
    (Slot::Logits, 320),
];

/// A Gated DeltaNet layer: 2 key heads of 8, 4 value heads of 16.
fn delta_net(b: &mut Build, layer: LayerId) {
    let l = layer.0;
    b.norm(layer, Slot::X, Slot::H, &format!("l{l}.pre_mixer"));
    for (name, y, rows) in [("in_qkv", Slot::DeltaIn, 96), ("in_z", Slot::DeltaZ, 64), ("in_ba", Slot::DeltaBa, 8)] {
        let weight = b.matrix(&format!("l{l}.{name}"), rows, 64);
        b.matvec(layer, Slot::H, y, weight);
    }
    // Stored as the framework does, [channels, 1, taps].
    let view = View::whole(format!("model.l{l}.conv.weight"), &[96, 1, 4]);
    let weight = b.add(&format!("l{l}.conv"), TensorKind::Plain, 96, 4, view);
    let (x, out, act) = (Slot::DeltaIn, Slot::DeltaQkv, Activation::Silu);
    b.push(Command::Conv { layer, x, out, weight, bias: None, channels: 96, taps: 4, act });
    b.push(Command::L2Norm { layer, x: Slot::DeltaQkv, heads: 4, head_dim: 8, eps: c(1e-6) });
    let (a_log, dt_bias) = (b.plain(&format!("l{l}.a_log"), 4), b.plain(&format!("l{l}.dt_bias"), 4));
    b.push(Command::DeltaGate { layer, ba: Slot::DeltaBa, gb: Slot::DeltaGb, a_log, dt_bias, heads: 4 });
    b.push(Command::Delta {
        layer,
        qkv: Slot::DeltaQkv,
        gb: Slot::DeltaGb,
        out: Slot::DeltaOut,
        key_heads: 2,
        value_heads: 4,
        key_dim: 8,
        value_dim: 16,
        share: Offset(2),
        scale: c(0.353_553_4),
    });
    let weight = b.plain(&format!("l{l}.delta_norm"), 16);
    let (x, gate, out, act, eps) = (Slot::DeltaOut, Slot::DeltaZ, Slot::DeltaOut, Activation::Silu, c(1e-6));
    b.push(Command::GatedNorm { layer, x, gate, out, weight, heads: 4, head_dim: 16, act, eps });
    let o = b.matrix(&format!("l{l}.delta_o"), 64, 64);
    b.matvec(layer, Slot::DeltaOut, Slot::Mix, o);
    b.residual(layer);
}

/// An attention layer whose output gate and queries share one stored tensor, head by head, with partial rotation.
fn gated_attention(b: &mut Build, layer: LayerId) {
    let l = layer.0;
    b.norm(layer, Slot::X, Slot::H, &format!("l{l}.pre_mixer"));
    let stored = format!("model.l{l}.q_proj.weight");
    let every = |start: usize| (0..4).map(|h| RowRange { start: h * 32 + start, end: h * 32 + start + 16 }).collect();
    let view = View::rows_of(&stored, &[128, 64], false, every(0));
    let q = Part { ..view.parts[0].clone() };
    let [k, v] = ["k", "v"].map(|n| View::whole(format!("model.l{l}.{n}_proj.weight"), &[32, 64]).parts[0].clone());
    let view = View { parts: vec![q, k, v], add_one: false };
    let weight = b.add(&format!("l{l}.qkv"), TensorKind::Matrix, 128, 64, view);
    b.matvec(layer, Slot::H, Slot::Qkv, weight);
    let view = View::rows_of(&stored, &[128, 64], false, every(16));
    let gate = b.add(&format!("l{l}.gate"), TensorKind::Matrix, 64, 64, view);
    b.matvec(layer, Slot::H, Slot::Gate, gate);
    b.rope(layer, 0);
    b.cache_append(layer);
    b.attend(layer, 0);
    b.push(Command::Gate { layer, x: Slot::Attn, gate: Slot::Gate, out: Slot::Attn, group: 1 });
    let o = b.matrix(&format!("l{l}.o"), 64, 64);
    b.matvec(layer, Slot::Attn, Slot::Mix, o);
    b.residual(layer);
}

/// Gated DeltaNet and gated attention in turn.
pub(crate) fn hybrid() -> Program {
    let mut b = Build::new("hybrid", 2, 512, HYBRID_SLOTS);
    let (short, long) = (vec![1.0, 1.25], vec![1.5, 4.125]);
    let scaling = RopeScaling::LongRope { short, long, original: 64, attention_factor: 1.190_238_071_190_357 };
    b.program.ropes.push(Rope { theta: 10_000.0, rot: 4, interleaved: false, scaling });
    let table = b.matrix("embed", 320, 64);
    b.push(Command::Embed { layer: OUT, out: Slot::X, table, positions: None, scale: c(1.0) });
    for l in 0..2 {
        if l == 0 {
            delta_net(&mut b, LayerId(l))
        } else {
            gated_attention(&mut b, LayerId(l))
        }
        b.ffn(LayerId(l), Activation::Silu);
        b.residual(LayerId(l));
    }
    let head = b.matrix("head", 320, 64);
    b.readout(head);
    b.program
}

/// Attention and a mixture of 8 experts, 2 a row, with a gated shared expert.
pub(crate) fn moe() -> Program {
    let mut slots = DENSE_SLOTS.to_vec();
    slots.retain(|(slot, _)| !matches!(slot, Slot::GateUp | Slot::Inner));
    slots.extend([
        (Slot::Router, 8),
        (Slot::Picks, 2),
        (Slot::PickWeights, 2),
        (Slot::ExpertGateUp, 64),
        (Slot::ExpertInner, 32),
        (Slot::SharedGateUp, 48),
        (Slot::SharedInner, 24),
        (Slot::SharedOut, 64),
        (Slot::SharedGate, 1),
    ]);
    let mut b = Build::new("moe", 1, 128, &slots);
    let scaling = RopeScaling::Yarn {
        factor: 4.0,
        original: 32,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: 1.138_629_436_111_989,
    };
    b.program.ropes.push(Rope { theta: 10_000.0, rot: 16, interleaved: false, scaling });
    let layer = LayerId(0);
    let table = b.matrix("embed", 320, 64);
    b.push(Command::Embed { layer: OUT, out: Slot::X, table, positions: None, scale: c(1.0) });
    b.norm(layer, Slot::X, Slot::H, "l0.pre_mixer");
    let qkv = b.matrix("l0.qkv", 128, 64);
    b.matvec(layer, Slot::H, Slot::Qkv, qkv);
    b.rope(layer, 0);
    b.cache_append(layer);
    b.attend(layer, 0);
    let o = b.matrix("l0.o", 64, 64);
    b.matvec(layer, Slot::Attn, Slot::Mix, o);
    b.residual(layer);
    b.norm(layer, Slot::X, Slot::H, "l0.pre_ffn");
    let router = b.matrix("l0.router", 8, 64);
    b.matvec(layer, Slot::H, Slot::Router, router);
    let (logits, picks, weights) = (Slot::Router, Slot::Picks, Slot::PickWeights);
    b.push(Command::TopK { layer, logits, picks, weights, experts: 8, k: 2, renormalise: true });
    let stack = |b: &mut Build, name: &str, rows: usize, cols: usize| {
        let part = |e: usize| View::whole(format!("experts.{e}.{name}"), &[rows, cols]).parts[0].clone();
        let view = View { parts: (0..8).map(part).collect(), add_one: false };
        b.add(&format!("l0.{name}"), TensorKind::Stack { experts: 8 }, 8 * rows, cols, view)
    };
    let gate_up = stack(&mut b, "experts.gate_up", 32, 64);
    let (x, y, weights) = (Slot::H, Slot::ExpertGateUp, None);
    b.push(Command::RoutedMatvec { layer, x, picks, weights, y, stack: gate_up, k: 2 });
    let kind = Activation::Silu;
    b.push(Command::Act { layer, x: y, out: Slot::ExpertInner, kind, gated: true, groups: 2 });
    let down = stack(&mut b, "experts.down", 64, 16);
    let (x, y, weights) = (Slot::ExpertInner, Slot::Mix, Some(Slot::PickWeights));
    b.push(Command::RoutedMatvec { layer, x, picks, weights, y, stack: down, k: 2 });
    let shared_gate_up = b.matrix("l0.shared.gate_up", 48, 64);
    b.matvec(layer, Slot::H, Slot::SharedGateUp, shared_gate_up);
    let (x, out) = (Slot::SharedGateUp, Slot::SharedInner);
    b.push(Command::Act { layer, x, out, kind, gated: true, groups: 1 });
    let shared_down = b.matrix("l0.shared.down", 64, 24);
    b.matvec(layer, Slot::SharedInner, Slot::SharedOut, shared_down);
    let shared_gate = b.matrix("l0.shared.gate", 1, 64);
    b.matvec(layer, Slot::H, Slot::SharedGate, shared_gate);
    let (x, gate) = (Slot::SharedOut, Slot::SharedGate);
    b.push(Command::Gate { layer, x, gate, out: x, group: 64 });
    b.push(Command::Add { layer, x: Slot::Mix, y: Slot::SharedOut, out: Slot::Mix, scale: c(1.0) });
    b.residual(layer);
    b.readout(table);
    b.program
}
