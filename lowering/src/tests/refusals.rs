//! What cannot be lowered is refused by name, by cause, and with the figures.

use crate::author::{Step, Value};
use crate::testing::{
    HIDDEN, VOCAB, attention, biased, delta, gpt2, layer, linear, llama, mlp, moe, qwen3, qwen3_5, qwen3_next, rms,
    rope, spec,
};
use crate::{Shim, author, fuse, hand_lowering, lift, lower, lower_graph};
use wordline_ir::graph::Prim;
use wordline_ir::spec::{Activation, Attention, DeltaNet, Ffn, Linear, Mixer, NormKind, RopeScaling, RowRange, View};
use wordline_ir::{Numerics, ProgramError, Spec};

fn refused(spec: &Spec) -> ProgramError {
    lower(spec, &Numerics::default(), 16).expect_err("refused")
}

fn with_attention(mut spec: Spec, change: impl FnOnce(&mut Attention)) -> Spec {
    let first = spec.layers.iter_mut().find_map(|layer| match &mut layer.mixer {
        Mixer::Attention(a) => Some(a),
        Mixer::DeltaNet(_) => None,
    });
    change(first.expect("an attention layer"));
    spec
}

fn with_delta(mut spec: Spec, change: impl FnOnce(&mut DeltaNet)) -> Spec {
    match &mut spec.layers[0].mixer {
        Mixer::DeltaNet(d) => change(d),
        Mixer::Attention(_) => panic!("a delta net first"),
    }
    spec
}

fn with(mut spec: Spec, change: impl FnOnce(&mut Spec)) -> Spec {
    change(&mut spec);
    spec
}

#[test]
fn facts_that_contradict_one_another_are_the_authors() {
    let moved = |start, end| View::rows_of("q", &[24, HIDDEN], false, vec![RowRange { start, end }]);
    let longrope = RopeScaling::LongRope { short: vec![1.0], long: vec![1.0], original: 8, attention_factor: 1.0 };
    let cases: Vec<(Spec, &str)> = vec![
        (with(llama(), |s| s.hidden = 0), "hidden is 0"),
        (with(llama(), |s| s.layers.clear()), "no layers"),
        (with(llama(), |s| s.max_pos = 0), "0 positions"),
        (with(llama(), |s| s.vocab = 41), "embedding: [40, 24] where [41, 24]"),
        (with(llama(), |s| s.embed_scale = 0.0), "embedding scale is 0"),
        (with(llama(), |s| s.embed_scale = f32::NAN), "embedding scale is NaN"),
        (with(llama(), |s| s.logit_scale = f32::INFINITY), "logit scale is inf"),
        (with(llama(), |s| s.logit_cap = Some(-1.0)), "logit cap is -1"),
        (with(llama(), |s| s.head = linear("other", VOCAB, HIDDEN)), "tied to the embedding"),
        (with(llama(), |s| (s.head, s.tie) = (linear("other", 7, HIDDEN), false)), "head has 7 rows"),
        (with(gpt2(), |s| s.positions = Some(View::whole("wpe", &[255, HIDDEN]))), "learned positions: [255, 24]"),
        (with(llama(), |s| s.layers[1].pre_ffn.eps = f32::NAN), "layer 1, norm before the ffn: eps is NaN"),
        (with(llama(), |s| s.layers[1].pre_ffn.bias = Some(View::whole("b", &[24]))), "an rms norm has no bias"),
        (with_attention(llama(), |a| a.kv_heads = 3), "4 query heads cannot share 3 key heads"),
        (with_attention(llama(), |a| a.kv_heads = 0), "cannot share 0 key heads"),
        (with_attention(llama(), |a| a.head_dim = 0), "4 query heads of 0 dimensions"),
        (with_attention(llama(), |a| a.head_dim = usize::MAX), "query heads of"),
        (with_attention(llama(), |a| a.scale = 0.0), "score scale is 0"),
        (with_attention(llama(), |a| a.window = Some(0)), "a window of 0 positions"),
        (with_attention(llama(), |a| a.soft_cap = Some(0.0)), "soft cap is 0"),
        (with_attention(llama(), |a| a.rope = Some(rope(5))), "5 rotated dimensions of a head of 6"),
        (with_attention(llama(), |a| a.rope = Some(rope(8))), "8 rotated dimensions of a head of 6"),
        (with_attention(llama(), |a| a.rope.as_mut().unwrap().theta = 0.0), "rotary base 0"),
        (with_attention(llama(), |a| a.rope.as_mut().unwrap().scaling = longrope), "longrope lists hold 1 and 1"),
        (
            with_attention(llama(), |a| a.rope.as_mut().unwrap().scaling = RopeScaling::Linear { factor: f64::NAN }),
            "a rotary scaling number is not positive",
        ),
        (with_attention(llama(), |a| a.q.weight = moved(8, 40)), "'q' holds 24 rows"),
        (with_attention(llama(), |a| a.q.weight = moved(9, 9)), "'q' holds 24 rows"),
        (with_attention(llama(), |a| a.q.weight.parts.clear()), "layer 0, attention: q: no values"),
        (with_attention(llama(), |a| a.q.bias = Some(View::whole("b", &[24, 2]))), "rows of 2 elements where a vector"),
        (with_delta(qwen3_5(), |d| d.value_heads = 3), "3 value heads cannot share 2 key heads"),
        (with_delta(qwen3_5(), |d| d.conv_taps = 0), "a convolution of 0 taps"),
        (with_delta(qwen3_5(), |d| d.l2_eps = -1.0), "l2 eps is -1"),
        (with_delta(qwen3_5(), |d| d.key_dim = usize::MAX / 2), "key heads of"),
        (with_moe(|m| m.top_k = 9), "9 experts picked of 8"),
        (with_moe(|m| m.top_k = 0), "0 experts picked of 8"),
        (with_moe(|m| m.inter = 5), "gate_up has 96 rows"),
        (with_mlp(|m| m.inter = 31), "up has 32 rows, the inner width is 31"),
    ];
    for (spec, needle) in cases {
        match refused(&spec) {
            ProgramError::Author { what } => assert!(what.contains(needle), "'{needle}' is not in '{what}'"),
            other => panic!("'{needle}': {other:?}"),
        }
    }
    let error = lower(&llama(), &Numerics::default(), 0).expect_err("refused");
    assert_eq!(error.to_string(), "cannot write the step: a cache of 0 positions");
}

fn with_moe(change: impl FnOnce(&mut wordline_ir::spec::Moe)) -> Spec {
    with(qwen3_next(), |s| match &mut s.layers[1].ffn {
        Ffn::Moe(m) => change(m),
        Ffn::Dense(_) => panic!("a mixture"),
    })
}

fn with_mlp(change: impl FnOnce(&mut wordline_ir::spec::Mlp)) -> Spec {
    with(llama(), |s| match &mut s.layers[1].ffn {
        Ffn::Dense(m) => change(m),
        Ffn::Moe(_) => panic!("dense"),
    })
}

#[test]
fn shapes_that_do_not_fit_are_lifts_and_name_the_operation() {
    let cases: Vec<(Spec, &str, &str)> = vec![
        (with_attention(llama(), |a| a.k = linear("k", 13, HIDDEN)), "reshape 'layers.0.attn.k.heads'", "[13]"),
        (with_attention(llama(), |a| a.v = linear("v", 12, 23)), "matmul 'layers.0.attn.v.matmul'", "24 elements"),
        (with_attention(llama(), |a| a.o = linear("o", 23, 24)), "add 'layers.0.residual.mixer.sum'", "broadcast"),
        (with_attention(llama(), |a| a.q.bias = Some(View::whole("b", &[5]))), "add 'layers.0.attn.q.biased'", "[5]"),
        (with_attention(qwen3(), |a| a.q_norm = Some(rms("n", 3, 1e-6))), "'layers.0.attn.q_norm.weighted'", "[3]"),
        (with_delta(qwen3_5(), |d| d.conv.weight = View::whole("c", &[39, 4])), "'layers.0.delta.conv.products'", "39"),
        (with_delta(qwen3_5(), |d| d.z = linear("z", 23, HIDDEN)), "reshape 'layers.0.delta.z.heads'", "[23]"),
        (with_delta(qwen3_5(), |d| d.a_log = View::whole("a", &[3])), "mul 'layers.0.delta.decay.exponent'", "[3]"),
        (with_moe(|m| m.router = linear("r", 2, HIDDEN)), "top_k_indices 'layers.1.moe.picks'", "[[2]]"),
        (with(llama(), |s| s.final_norm = rms("n", 12, 1e-5)), "mul 'norm.final.weighted'", "[12]"),
        (with_mlp(|m| m.down = linear("d", HIDDEN, 30)), "matmul 'layers.1.mlp.down.matmul'", "32 elements"),
    ];
    for (spec, name, needle) in cases {
        match refused(&spec) {
            ProgramError::Lift { op, what } => {
                assert!(op.contains(name) && what.contains(needle), "'{name}' '{needle}': op {op}: {what}");
            }
            other => panic!("'{name}': {other:?}"),
        }
        assert!(hand_lowering(&spec, &Numerics::default()).is_err(), "the oracle takes '{name}'");
    }
}

/// The step of a Spec, with one operation changed.
fn changed(spec: &Spec, change: impl FnOnce(&mut Step)) -> ProgramError {
    let mut step = author(spec, 16).expect("authored");
    change(&mut step);
    lift(&step).expect_err("refused")
}

fn at(step: &mut Step, name: &str) -> usize {
    step.ops.iter().position(|op| op.name == name).unwrap_or_else(|| panic!("no operation '{name}'"))
}

#[test]
fn steps_that_are_no_graph_are_lifts() {
    let sum = |s: &mut Step| at(s, "layers.0.norm.mixer.shifted");
    let cases: Vec<(ProgramError, &str)> = vec![
        (changed(&llama(), |s| s.result = Value(usize::MAX)), "op result: nothing makes"),
        (
            changed(&llama(), |s| {
                let (i, last) = (sum(s), s.ops.len() - 1);
                s.ops[i].inputs[1] = Value(last);
            }),
            "nothing before it makes",
        ),
        (changed(&llama(), |s| s.ops[5].name = s.ops[4].name.clone()), "another operation has this name"),
        (changed(&llama(), |s| s.ops[5].value = s.ops[4].value), "is made twice"),
        (
            changed(&llama(), |s| {
                let i = sum(s);
                s.ops[i].inputs.pop();
            }),
            "1 operands, 2 are needed",
        ),
        (
            changed(&llama(), |s| {
                let mut twin = s.ops[2].clone();
                (twin.value, twin.name) = (Value(usize::MAX), "twin".to_owned());
                s.ops.push(twin);
            }),
            "nothing reads its value",
        ),
        (
            changed(&llama(), |s| {
                let i = at(s, "layers.0.attn.v.cache");
                s.ops[i].prim = Prim::Append { state: "layers.0.attn.k_cache".to_owned(), ctx: 16 };
            }),
            "another operation advances this state",
        ),
        (
            changed(&llama(), |s| {
                let i = at(s, "layers.0.attn.v.cache");
                s.ops[i].prim = Prim::Append { state: "other".to_owned(), ctx: 17 };
            }),
            "17 positions in a step over 16",
        ),
        (
            changed(&qwen3_5(), |s| {
                let i = at(s, "layers.0.delta.memory.store");
                s.ops.remove(i);
            }),
            "memory 'layers.0.delta.memory' is read and never stored",
        ),
        (
            changed(&qwen3_5(), |s| {
                let i = at(s, "layers.0.delta.memory.store");
                s.ops[i].prim = Prim::Store { state: "other".to_owned() };
            }),
            "is read and never stored",
        ),
        (
            changed(&llama(), |s| {
                let i = at(s, "embed.row");
                s.ops[i].inputs.swap(0, 1);
            }),
            "holds indices where values are needed",
        ),
    ];
    for (error, needle) in cases {
        assert!(matches!(error, ProgramError::Lift { .. }), "{error:?}");
        assert!(error.to_string().contains(needle), "'{needle}' is not in '{error}'");
    }
}

#[test]
fn blocks_without_a_unit_are_refused_by_name() {
    let eps = |a: &mut Attention| a.k_norm.as_mut().unwrap().eps = 1e-5;
    let ln = |a: &mut Attention| a.q_norm.as_mut().unwrap().kind = NormKind::Ln;
    let wide = |a: &mut Attention| {
        *a = Attention { rope: Some(rope(4)), ..attention("wide", 4, 2, 4) };
    };
    let delta_ln = |d: &mut DeltaNet| d.norm.kind = NormKind::Ln;
    let cases: Vec<(Spec, &str, &str)> = vec![
        (with_attention(qwen3(), eps), "rms_norm", "query and key heads have eps 0.000001 and 0.00001"),
        (with_attention(qwen3(), ln), "layer_norm", "heads are normed by rms alone"),
        (with_delta(qwen3_5(), delta_ln), "layer_norm", "heads are normed by rms alone"),
        (with_attention(llama(), wide), "linear", "slot 'qkv' would be 48 wide here, and is 32 elsewhere"),
    ];
    for (spec, name, needle) in cases {
        match refused(&spec) {
            ProgramError::Block { block, site, what } => {
                assert!(block == name && what.contains(needle), "'{name}' '{needle}': {block} ({site}): {what}");
                assert!(site.contains("layer "), "{site}");
            }
            other => panic!("'{name}': {other:?}"),
        }
        let hand = hand_lowering(&spec, &Numerics::default());
        assert!(matches!(hand, Err(ProgramError::Block { .. })), "the oracle: {:?}", hand.err());
    }
}

#[test]
fn a_slot_that_was_overwritten_is_named() {
    // The second layer's attention norms what the first layer's FFN read, by then another value.
    let mut step = author(&llama(), 16).expect("authored");
    let (from, to) = (at(&mut step, "layers.0.norm.mixer.weighted"), at(&mut step, "layers.0.mlp.up.matmul"));
    let old = step.ops[from].value;
    step.ops[to].inputs[0] = old;
    let mut graph = lift(&step).expect("it is a graph");
    fuse(&mut graph, &Shim::engine());
    let error = lower_graph(&graph).expect_err("refused").to_string();
    assert!(error.contains("slot 'h' holds 'layers.0.norm.ffn.weighted' by now"), "{error}");
    assert!(error.contains("'layers.0.norm.mixer.weighted'"), "{error}");
}

/// A one-layer model of this attention.
fn one(a: Attention) -> Spec {
    spec("one", vec![layer("l0", Mixer::Attention(a), Ffn::Dense(mlp("m", 8, Activation::Silu, true)))])
}

fn delta_one(d: DeltaNet) -> Spec {
    spec("one", vec![layer("l0", Mixer::DeltaNet(d), Ffn::Dense(mlp("m", 8, Activation::Silu, true)))])
}

fn moe_one(experts: usize, top_k: usize) -> Spec {
    let a = attention("a", 2, 1, 4);
    spec("one", vec![layer("l0", Mixer::Attention(a), Ffn::Moe(moe("m", experts, top_k, true)))])
}

#[test]
fn every_field_that_overflows_is_refused_with_its_figures() {
    let unlike = |heads: usize, dim: usize| {
        let a = attention("a", heads, 1, dim);
        Attention { q: biased("a.q", heads * dim, HIDDEN), rope: None, scale: 1.0, ..a }
    };
    let v_dim = |v_dim: usize| Attention {
        v_dim,
        v: linear("a.v", 2 * v_dim, HIDDEN),
        o: linear("a.o", HIDDEN, 2 * v_dim),
        ..attention("a", 2, 2, 4)
    };
    let windowed = |window: usize, mut spec: Spec| {
        spec.max_pos = 1 << 20;
        with_attention(spec, |a| a.window = Some(window))
    };
    let taps = |taps: usize| {
        let mut d = delta("d", 1, 1, 2, 2);
        (d.conv_taps, d.conv.weight) = (taps, View::whole("c", &[6, taps]));
        d
    };
    let many = |layers: usize| with(llama(), |s| s.layers = (0..layers).map(|_| s.layers[0].clone()).collect());
    let cases: Vec<(Spec, &str, usize, usize)> = vec![
        (one(attention("a", 65_536, 1, 2)), "heads", 65_536, 65_535),
        (one(attention("a", 65_536, 65_536, 2)), "heads", 65_536, 65_535),
        (one(attention("a", 1, 1, 65_538)), "head_dim", 65_538, 65_535),
        (one(v_dim(65_536)), "v_dim", 65_536, 65_535),
        (one(Attention { rope: None, ..attention("a", 512, 1, 128) }), "width", 65_536, 65_535),
        (one(unlike(65_535, 17)), "offset", 65_535 * 17, 0xf_ffff),
        (windowed(65_536, llama()), "window", 65_536, 65_535),
        (delta_one(delta("d", 8192, 8192, 2, 4)), "channels", 65_536, 65_535),
        (delta_one(taps(65_536)), "taps", 65_536, 65_535),
        (moe_one(65_536, 2), "experts", 65_536, 65_535),
        (moe_one(65_537, 65_536), "experts", 65_537, 65_535),
        (group_too_wide(), "group", 65_536, 65_535),
        (many(256), "layer", 255, 254),
    ];
    for (spec, name, value, most) in cases {
        match refused(&spec) {
            ProgramError::Field { field, given, limit, site } => {
                assert_eq!((field, given, limit), (name, value, most), "{site}");
                assert!(site.contains("layer "), "{site}");
            }
            other => panic!("'{name}': {other:?}"),
        }
        match hand_lowering(&spec, &Numerics::default()) {
            Err(ProgramError::Field { field, given, limit, .. }) => {
                assert_eq!((field, given, limit), (name, value, most), "the oracle");
            }
            other => panic!("the oracle, '{name}': {:?}", other.map(|_| ())),
        }
    }
    // The largest that fit.
    lower(&windowed(65_535, llama()), &Numerics::default(), 16).expect("a window of 65,535");
    lower(&one(attention("a", 65_535, 1, 2)), &Numerics::default(), 16).expect("65,535 heads");
    lower(&many(255), &Numerics::default(), 16).expect("255 layers");
}

/// A shared expert's gate over a residual of 65,536 elements.
fn group_too_wide() -> Spec {
    let hidden = 65_536;
    let widen = |l: &mut Linear| {
        for part in &mut l.weight.parts {
            part.shape = part.shape.iter().map(|n| if *n == HIDDEN { hidden } else { *n }).collect();
            part.rows = vec![RowRange { start: 0, end: part.shape[0] }];
        }
    };
    let widen_view = |v: &mut View| {
        let mut l = Linear { weight: v.clone(), bias: None };
        widen(&mut l);
        *v = l.weight;
    };
    let mut spec = moe_one(2, 1);
    spec.hidden = hidden;
    widen_view(&mut spec.embed);
    spec.head.weight = spec.embed.clone();
    widen_view(&mut spec.final_norm.weight);
    let layer = &mut spec.layers[0];
    widen_view(&mut layer.pre_mixer.weight);
    widen_view(&mut layer.pre_ffn.weight);
    let (Mixer::Attention(a), Ffn::Moe(m)) = (&mut layer.mixer, &mut layer.ffn) else { panic!("as made") };
    for linear in [&mut a.q, &mut a.k, &mut a.v, &mut a.o, &mut m.router] {
        widen(linear);
    }
    for stack in [&mut m.gate_up, &mut m.down] {
        widen_view(stack);
    }
    let shared = m.shared.as_mut().expect("as made");
    let gate = shared.gate.as_mut().expect("as made");
    for linear in [&mut shared.mlp.up, &mut shared.mlp.down, gate] {
        widen(linear);
    }
    widen(shared.mlp.gate.as_mut().expect("as made"));
    spec
}
