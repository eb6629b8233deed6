//! Programs with one fault each, by what is faulty.

use super::samples;
use crate::program::TensorKind;
use crate::spec::{RopeScaling, RowRange};
use crate::verify::limits;
use crate::{Command, Const, LayerId, Offset, Program, RopeId, Slot, SlotInfo, TensorId};

/// One fault: what it is, the sample that it is made in, the change.
pub(crate) type Fault = (&'static str, fn() -> Program, fn(&mut Program));

/// The `n`-th command of a mnemonic.
pub(crate) fn nth<'a>(program: &'a mut Program, mnemonic: &str, n: usize) -> &'a mut Command {
    program.commands.iter_mut().filter(|c| c.info().mnemonic == mnemonic).nth(n).expect(mnemonic)
}

/// Index of the first command of a mnemonic.
fn at(program: &Program, mnemonic: &str) -> usize {
    program.commands.iter().position(|c| c.info().mnemonic == mnemonic).expect(mnemonic)
}

/// Set fields of the `n`-th command of a variant.
macro_rules! set {
    ($program:expr, $mnemonic:literal $n:literal, $variant:ident { $($field:ident = $value:expr),+ }) => {
        if let crate::Command::$variant { $($field,)+ .. } = crate::tests::faults::nth($program, $mnemonic, $n) {
            $(*$field = $value;)+
        }
    };
}
pub(crate) use set;

fn tensor<'a>(program: &'a mut Program, name: &str) -> &'a mut crate::Tensor {
    program.tensors.iter_mut().find(|t| t.name == name).expect(name)
}

/// Make a tensor another size, its view with it.
fn resize(program: &mut Program, name: &str, rows: usize, cols: usize) {
    let tensor = tensor(program, name);
    (tensor.rows, tensor.cols) = (rows, cols);
    let part = &mut tensor.view.parts[0];
    part.shape = if part.transpose { vec![cols, rows] } else { vec![rows, cols] };
    part.rows = vec![RowRange { start: 0, end: rows }];
}

fn width(program: &mut Program, slot: Slot, width: usize) {
    program.slots.iter_mut().find(|s| s.slot == slot).expect("a slot of the program").width = width;
}

/// Rotated dimensions of every command and table.
fn rotate(program: &mut Program, n: u16) {
    program.ropes.iter_mut().for_each(|rope| rope.rot = n.into());
    for command in &mut program.commands {
        if let Command::Rope { rot, .. } = command {
            *rot = n;
        }
    }
}

const TABLES: &[Fault] = &[
    ("no commands", samples::dense, |p| p.commands.clear()),
    ("no positions", samples::dense, |p| p.max_pos = 0),
    ("too many positions", samples::dense, |p| p.max_pos = limits::POSITIONS as usize + 1),
    ("lanes not a power of two", samples::dense, |p| p.identity.numerics.lanes = 12),
    ("no lanes", samples::dense, |p| p.identity.numerics.lanes = 0),
    ("a cut backwards", samples::dense, |p| p.identity.cut.first_layer = 3),
    ("a cut without end", samples::dense, |p| p.identity.cut.last_layer = usize::MAX),
    ("a slot twice", samples::dense, |p| p.slots.push(SlotInfo { slot: Slot::X, width: 64 })),
    ("a slot without width", samples::dense, |p| p.slots.push(SlotInfo { slot: Slot::Router, width: 0 })),
    ("a slot too wide", samples::dense, |p| p.slots.push(SlotInfo { slot: Slot::Router, width: usize::MAX })),
    ("a tensor that nothing uses", samples::dense, |p| {
        let spare = p.tensors[1].clone();
        p.tensors.push(crate::Tensor { name: "spare".into(), ..spare });
    }),
    ("a rotary table that nothing uses", samples::dense, |p| p.ropes.push(p.ropes[0].clone())),
    ("a name twice", samples::dense, |p| p.tensors[2].name = p.tensors[1].name.clone()),
    ("a name with a blank", samples::dense, |p| p.tensors[2].name = "a b".into()),
    ("no name", samples::dense, |p| p.tensors[2].name = String::new()),
    ("a tensor without rows", samples::dense, |p| p.tensors[2].rows = 0),
    ("a tensor beyond all memory", samples::dense, |p| p.tensors[2].rows = usize::MAX),
    ("an empty view", samples::dense, |p| p.tensors[2].view.parts.clear()),
    ("a view too long", samples::dense, |p| {
        let part = p.tensors[2].view.parts[0].clone();
        p.tensors[2].view.parts.push(part);
    }),
    ("rows past the stored tensor", samples::dense, |p| p.tensors[2].view.parts[0].rows[0].end += 1),
    ("rows backwards", samples::dense, |p| p.tensors[2].view.parts[1].rows[0] = RowRange { start: 2, end: 1 }),
    ("endless rows", samples::dense, |p| {
        p.tensors[2].view.parts[0].shape[0] = usize::MAX;
        p.tensors[2].view.parts[0].rows = vec![RowRange { start: 0, end: usize::MAX }; 9];
    }),
    ("a stored row that overflows", samples::dense, |p| {
        p.tensors[2].view.parts[0].shape = vec![64, usize::MAX, usize::MAX, usize::MAX];
    }),
    ("other columns", samples::dense, |p| p.tensors[2].view.parts[0].shape[1] = 63),
    ("a scalar", samples::dense, |p| p.tensors[2].view.parts[0].shape.clear()),
    ("a vector read transposed", samples::dense, |p| p.tensors[1].view.parts[0].transpose = true),
    ("a matrix no longer read transposed", samples::classic, |p| tensor(p, "c_fc").view.parts[0].transpose = false),
    ("a stored tensor without name", samples::dense, |p| p.tensors[2].view.parts[0].tensor.clear()),
    ("a stack of unequal matrices", samples::moe, |p| {
        tensor(p, "l0.experts.gate_up").kind = TensorKind::Stack { experts: 7 };
    }),
    ("a stack of nothing", samples::moe, |p| {
        tensor(p, "l0.experts.gate_up").kind = TensorKind::Stack { experts: 0 };
    }),
];

const ROPES: &[Fault] = &[
    ("odd", samples::dense, |p| rotate(p, 15)),
    ("past the head", samples::dense, |p| rotate(p, 18)),
    ("nothing rotated", samples::dense, |p| rotate(p, 0)),
    ("a command of another rotation", samples::dense, |p| set!(p, "rope" 0, Rope { rot = 14 })),
    ("theta 1", samples::dense, |p| p.ropes[0].theta = 1.0),
    ("theta infinite", samples::dense, |p| p.ropes[0].theta = f64::INFINITY),
    ("factor 0", samples::windowed, |p| p.ropes[1].scaling = RopeScaling::Linear { factor: 0.0 }),
    ("dynamic over one frequency", samples::dense, |p| {
        rotate(p, 2);
        p.ropes[0].scaling = RopeScaling::Dynamic { factor: 2.0, original: 0 };
    }),
    ("blend ends that meet", samples::dense, |p| {
        let (low_freq_factor, high_freq_factor) = (4.0, 4.0);
        p.ropes[0].scaling = RopeScaling::Llama3 { factor: 8.0, low_freq_factor, high_freq_factor, original: 64 };
    }),
    ("a divisor missing", samples::hybrid, |p| {
        if let RopeScaling::LongRope { short, .. } = &mut p.ropes[0].scaling {
            short.pop();
        }
    }),
    ("a divisor that is no number", samples::hybrid, |p| {
        if let RopeScaling::LongRope { long, .. } = &mut p.ropes[0].scaling {
            long[1] = f64::NAN;
        }
    }),
    ("no trained length", samples::moe, |p| {
        if let RopeScaling::Yarn { original, .. } = &mut p.ropes[0].scaling {
            *original = 0;
        }
    }),
    ("no such table", samples::dense, |p| set!(p, "rope" 1, Rope { table = RopeId(1) })),
    ("the table that stands for none", samples::dense, |p| set!(p, "rope" 1, Rope { table = RopeId(255) })),
];

const OPERANDS: &[Fault] = &[
    ("a slot without entry", samples::hybrid, |p| p.slots.retain(|s| s.slot != Slot::DeltaZ)),
    ("a tensor past the table", samples::dense, |p| {
        set!(p, "matvec" 0, Matvec { weight = TensorId::new(99).expect("in range") });
    }),
    ("a plain tensor as matrix", samples::windowed, |p| tensor(p, "l0.o").kind = TensorKind::Plain),
    ("a matrix as vector", samples::dense, |p| tensor(p, "l0.pre_ffn").kind = TensorKind::Matrix),
    ("a matrix as stack", samples::moe, |p| tensor(p, "l0.experts.down").kind = TensorKind::Matrix),
    ("scale not a number", samples::dense, |p| set!(p, "add" 0, Add { scale = Const::new(f32::NAN) })),
    ("eps infinite", samples::dense, |p| set!(p, "norm" 0, Norm { eps = Const::new(f32::INFINITY) })),
    ("eps below 0", samples::dense, |p| set!(p, "norm" 0, Norm { eps = Const::new(-1e-9) })),
    ("attend cap below 0", samples::windowed, |p| set!(p, "attend" 0, Attend { cap = Const::new(-1.0) })),
    ("a cap that is flushed", samples::windowed, |p| set!(p, "soft_cap" 0, SoftCap { cap = Const::new(1e-37) })),
    ("a cap of 0", samples::windowed, |p| set!(p, "soft_cap" 0, SoftCap { cap = Const::new(0.0) })),
    ("no taps", samples::hybrid, |p| set!(p, "conv" 0, Conv { taps = 0 })),
    ("no groups", samples::hybrid, |p| set!(p, "act" 0, Act { groups = 0 })),
    ("no key heads", samples::dense, |p| set!(p, "rope" 0, Rope { kv_heads = 0 })),
    ("an offset past its field", samples::windowed, |p| set!(p, "matvec" 0, Matvec { offset = Offset(1 << 20) })),
    ("conv onto itself", samples::hybrid, |p| set!(p, "conv" 0, Conv { out = Slot::DeltaIn })),
    ("act onto itself", samples::classic, |p| set!(p, "act" 0, Act { out = Slot::GateUp })),
    ("picks and weights in one slot", samples::moe, |p| set!(p, "top_k" 0, TopK { weights = Slot::Picks })),
];

const SHAPES: &[Fault] = &[
    ("positions of another width", samples::classic, |p| resize(p, "wpe", 64, 32)),
    ("too few positions", samples::classic, |p| p.max_pos = 65),
    ("a table of another width", samples::hybrid, |p| resize(p, "embed", 320, 32)),
    ("a norm too short", samples::dense, |p| resize(p, "l0.pre_ffn", 63, 1)),
    ("a norm of two columns", samples::dense, |p| resize(p, "l0.pre_ffn", 32, 2)),
    (
        "norms without weights",
        samples::windowed,
        |p| set!(p, "head_norm" 0, HeadNorm { q_weight = None, k_weight = None }),
    ),
    ("a head norm too short", samples::windowed, |p| resize(p, "l0.k_norm", 15, 1)),
    ("heads that do not share", samples::dense, |p| set!(p, "cache_append" 0, CacheAppend { heads = 5 })),
    ("a value dim too large", samples::dense, |p| set!(p, "cache_append" 0, CacheAppend { v_dim = 17 })),
    ("an output too narrow", samples::dense, |p| {
        width(p, Slot::Attn, 32);
        resize(p, "l0.o", 64, 32);
        resize(p, "l1.o", 64, 32);
    }),
    ("a window of all positions", samples::windowed, |p| set!(p, "attend" 1, Attend { window = 128 })),
    ("a matrix of other columns", samples::dense, |p| resize(p, "l1.down", 64, 95)),
    ("a matvec past the slot", samples::windowed, |p| set!(p, "matvec" 2, Matvec { offset = Offset(97) })),
    ("a scale past the slot", samples::classic, |p| set!(p, "scale" 0, Scale { width = 193 })),
    ("a bias too long", samples::classic, |p| resize(p, "c_fc.bias", 97, 1)),
    ("a gate of another group", samples::moe, |p| set!(p, "gate" 0, Gate { group = 32 })),
    ("taps of another weight", samples::hybrid, |p| set!(p, "conv" 0, Conv { taps = 3 })),
    ("channels of another slot", samples::hybrid, |p| set!(p, "conv" 0, Conv { channels = 95 })),
    ("an l2 norm past the slot", samples::hybrid, |p| set!(p, "l2_norm" 0, L2Norm { heads = 13 })),
    ("decays of more heads", samples::hybrid, |p| set!(p, "delta_gate" 0, DeltaGate { heads = 5 })),
    ("delta heads shared otherwise", samples::hybrid, |p| set!(p, "delta" 0, Delta { share = Offset(1) })),
    ("delta heads not shared", samples::hybrid, |p| set!(p, "delta" 0, Delta { share = Offset(0) })),
    ("a key dim of another memory", samples::hybrid, |p| set!(p, "delta" 0, Delta { key_dim = 9 })),
    ("a gated norm of more heads", samples::hybrid, |p| set!(p, "gated_norm" 0, GatedNorm { heads = 5 })),
    ("groups that do not divide", samples::moe, |p| set!(p, "act" 0, Act { groups = 3 })),
    ("gate | up read as one", samples::moe, |p| set!(p, "act" 0, Act { gated = false })),
    ("adding another width", samples::moe, |p| set!(p, "add" 0, Add { y = Slot::Attn, x = Slot::Router })),
    ("more picks than experts", samples::moe, |p| {
        set!(p, "top_k" 0, TopK { k = 9 });
        width(p, Slot::Picks, 9);
        width(p, Slot::PickWeights, 9);
    }),
    ("a stack of other columns", samples::moe, |p| tensor(p, "l0.experts.down").cols = 8),
    (
        "gather into a spread",
        samples::moe,
        |p| set!(p, "routed_matvec" 0, RoutedMatvec { weights = Some(Slot::PickWeights) }),
    ),
    ("logits of another vocabulary", samples::hybrid, |p| {
        width(p, Slot::Logits, 319);
        resize(p, "head", 319, 64);
    }),
];

const ORDER: &[Fault] = &[
    ("an embedding in a layer", samples::dense, |p| set!(p, "embed" 0, Embed { layer = LayerId(0) })),
    ("an embedding behind a norm", samples::dense, |p| p.commands.swap(0, 1)),
    ("a falling layer", samples::dense, |p| set!(p, "act" 1, Act { layer = LayerId(0) })),
    ("a layer behind the readout", samples::dense, |p| set!(p, "matvec" 8, Matvec { layer = LayerId(1) })),
    ("a layer past the cut", samples::dense, |p| p.identity.cut.last_layer = 1),
    ("a layer without commands", samples::dense, |p| p.identity.cut.last_layer = 3),
    ("no readout", samples::windowed, |p| {
        let last = p.commands.len() - 3;
        p.commands.truncate(last);
    }),
    ("something behind the logits", samples::dense, |p| {
        p.commands.push(Command::Scale { layer: samples::OUT, x: Slot::X, width: 0, scale: Const::new(1.0) });
    }),
    ("state outside any layer", samples::hybrid, |p| set!(p, "conv" 0, Conv { layer = samples::OUT })),
    ("attend before its cache", samples::dense, |p| {
        let i = at(p, "cache_append");
        p.commands.swap(i, i + 1);
    }),
    ("no attend", samples::dense, |p| {
        p.commands.remove(at(p, "attend"));
    }),
    ("a second cache", samples::dense, |p| {
        let i = at(p, "cache_append");
        p.commands.insert(i, p.commands[i]);
    }),
    ("a second conv", samples::hybrid, |p| {
        let i = at(p, "conv");
        p.commands.insert(i, p.commands[i]);
    }),
    ("a second delta", samples::hybrid, |p| {
        let i = at(p, "delta");
        p.commands.insert(i, p.commands[i]);
    }),
    ("heads that change", samples::dense, |p| set!(p, "attend" 0, Attend { kv_heads = 4 })),
    ("rotation behind the cache", samples::dense, |p| {
        let i = at(p, "rope");
        p.commands.swap(i, i + 1);
    }),
    ("another slot attends", samples::moe, |p| {
        width(p, Slot::Attn, 64);
        set!(p, "attend" 0, Attend { qkv = Slot::ExpertGateUp });
    }),
    ("a memory too large", samples::hybrid, |p| {
        set!(p, "delta" 0, Delta { key_dim = 20_000, value_dim = 20_000 });
        width(p, Slot::DeltaIn, 160_000);
        width(p, Slot::DeltaQkv, 160_000);
        width(p, Slot::DeltaOut, 80_000);
    }),
];

const FLOW: &[Fault] = &[
    ("a gap between parts", samples::windowed, |p| set!(p, "matvec" 1, Matvec { offset = Offset(63) })),
    ("a part over another", samples::windowed, |p| set!(p, "matvec" 2, Matvec { offset = Offset(64) })),
    ("a slot that no command has written", samples::dense, |p| set!(p, "norm" 0, Norm { x = Slot::Attn })),
    ("a slot that another layer has written", samples::dense, |p| set!(p, "norm" 2, Norm { x = Slot::Mix })),
    ("a result that nothing reads", samples::dense, |p| {
        let i = at(p, "add");
        p.commands.insert(i, p.commands[i - 1]);
    }),
    ("experts by other numbers", samples::moe, |p| {
        set!(p, "routed_matvec" 0, RoutedMatvec { picks = Slot::PickWeights });
    }),
    ("experts by changed numbers", samples::moe, |p| {
        let (layer, i) = (LayerId(0), at(p, "routed_matvec"));
        p.commands.insert(i, Command::Scale { layer, x: Slot::Picks, width: 1, scale: Const::new(1.5) });
    }),
    ("fewer experts picked among", samples::moe, |p| {
        tensor(p, "l0.experts.gate_up").kind = TensorKind::Stack { experts: 4 };
        width(p, Slot::ExpertGateUp, 128);
        width(p, Slot::ExpertInner, 64);
    }),
    ("changed weights", samples::moe, |p| {
        let (layer, i) = (LayerId(0), at(p, "routed_matvec"));
        p.commands.insert(i, Command::Scale { layer, x: Slot::PickWeights, width: 1, scale: Const::new(1.5) });
    }),
];

pub(crate) const FAULTS: &[(&str, &[Fault])] = &[
    ("tables", TABLES),
    ("ropes", ROPES),
    ("operands", OPERANDS),
    ("shapes", SHAPES),
    ("order", ORDER),
    ("flow", FLOW),
];
