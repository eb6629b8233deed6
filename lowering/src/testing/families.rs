//! Specs of every family's shape, of what no family has, and of large models.

use super::{
    HIDDEN, VOCAB, attention, biased, delta, dense, layer, layer_norm, layers, linear, mlp, moe, rms, rms_plus_one,
    rope, rows, spec, untied,
};
use wordline_ir::Spec;
use wordline_ir::spec::{
    Activation, Attention, Ffn, Layer, Linear, Mixer, Mlp, Rope, RopeScaling, RowRange, View, WeightLayout,
};

pub(crate) fn llama() -> Spec {
    let make = |_: usize, name: &str| {
        let mut a = attention(name, 4, 2, 6);
        if let Some(rope) = &mut a.rope {
            rope.scaling =
                RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 64 };
        }
        layer(name, Mixer::Attention(a), dense(name))
    };
    spec("llama", layers(2, make))
}

pub(crate) fn mistral() -> Spec {
    let make = |_: usize, name: &str| {
        let a = Attention { window: Some(8), ..attention(name, 4, 2, 6) };
        layer(name, Mixer::Attention(a), dense(name))
    };
    untied(spec("mistral", layers(2, make)))
}

pub(crate) fn qwen2() -> Spec {
    let make = |_: usize, name: &str| {
        let mut a = attention(name, 4, 2, 6);
        for (linear, label, out) in [(&mut a.q, "q", 24), (&mut a.k, "k", 12), (&mut a.v, "v", 12)] {
            *linear = biased(&format!("{name}.{label}"), out, HIDDEN);
        }
        layer(name, Mixer::Attention(a), dense(name))
    };
    spec("qwen2", layers(2, make))
}

pub(crate) fn qwen3() -> Spec {
    let make = |_: usize, name: &str| {
        let a = Attention {
            q_norm: Some(rms(&format!("{name}.q_norm"), 8, 1e-6)),
            k_norm: Some(rms(&format!("{name}.k_norm"), 8, 1e-6)),
            ..attention(name, 4, 1, 8)
        };
        layer(name, Mixer::Attention(a), dense(name))
    };
    untied(spec("qwen3", layers(2, make)))
}

/// Delta nets and gated attentions with partial rotary, in turn.
fn hybrid(count: usize, ffn: impl Fn(&str) -> Ffn) -> Vec<Layer> {
    layers(count, |i, name| {
        let mixer = if i % 2 == 1 {
            // The stored q projection holds each head's query rows, then its gate's.
            let runs = |first: usize| (0..2).map(move |h| RowRange { start: h * 16 + first, end: h * 16 + first + 8 });
            let half = |first: usize| View::rows_of(format!("{name}.q"), &[32, HIDDEN], false, runs(first).collect());
            let mut a = attention(name, 2, 1, 8);
            a.q = Linear { weight: half(0), bias: None };
            a.gate = Some(Linear { weight: half(8), bias: None });
            a.q_norm = Some(rms_plus_one(&format!("{name}.q_norm"), 8));
            a.k_norm = Some(rms_plus_one(&format!("{name}.k_norm"), 8));
            a.rope = Some(rope(2));
            Mixer::Attention(a)
        } else {
            Mixer::DeltaNet(delta(name, 2, 4, 4, 6))
        };
        let made = layer(name, mixer, ffn(name));
        let (pre_mixer, pre_ffn) =
            (rms_plus_one(&format!("{name}.n1"), HIDDEN), rms_plus_one(&format!("{name}.n2"), HIDDEN));
        Layer { pre_mixer, pre_ffn, ..made }
    })
}

pub(crate) fn qwen3_5() -> Spec {
    spec("qwen3_5", hybrid(2, dense))
}

pub(crate) fn qwen3_next() -> Spec {
    untied(spec("qwen3_next", hybrid(2, |name| Ffn::Moe(moe(&format!("{name}.moe"), 8, 3, true)))))
}

pub(crate) fn gpt2() -> Spec {
    let make = |_: usize, name: &str| {
        let stored = format!("{name}.c_attn");
        let part = |i: usize| Linear {
            weight: rows(&stored, &[HIDDEN, 3 * HIDDEN], i * HIDDEN, (i + 1) * HIDDEN, true),
            bias: Some(rows(&format!("{name}.c_attn.bias"), &[3 * HIDDEN], i * HIDDEN, (i + 1) * HIDDEN, false)),
        };
        let conv1d = |label: &str, out: usize, input: usize| Linear {
            weight: View::transposed(format!("{name}.{label}"), &[input, out]),
            bias: Some(View::whole(format!("{name}.{label}.bias"), &[out])),
        };
        let a = Attention {
            rope: None,
            q: part(0),
            k: part(1),
            v: part(2),
            o: conv1d("c_proj", HIDDEN, HIDDEN),
            ..attention(name, 4, 4, 6)
        };
        let mlp = Mlp {
            inter: 96,
            act: Activation::GeluTanh,
            gate: None,
            up: conv1d("c_fc", 96, HIDDEN),
            down: conv1d("c_proj2", HIDDEN, 96),
        };
        Layer {
            pre_mixer: layer_norm(&format!("{name}.ln_1"), HIDDEN),
            mixer: Mixer::Attention(a),
            post_mixer: None,
            pre_ffn: layer_norm(&format!("{name}.ln_2"), HIDDEN),
            ffn: Ffn::Dense(mlp),
            post_ffn: None,
        }
    };
    Spec {
        positions: Some(View::whole("wpe", &[256, HIDDEN])),
        final_norm: layer_norm("ln_f", HIDDEN),
        qkv_fused: true,
        weight_layout: WeightLayout::InOut,
        ..spec("gpt2", layers(2, make))
    }
}

pub(crate) fn phi3() -> Spec {
    let make = |_: usize, name: &str| {
        let stored = format!("{name}.qkv");
        let (q, kv) = (24, 12);
        let shape = [q + 2 * kv, HIDDEN];
        let part =
            |start: usize, len: usize| Linear { weight: rows(&stored, &shape, start, start + len, false), bias: None };
        let scaling = RopeScaling::LongRope {
            short: vec![1.0, 1.25],
            long: vec![2.0, 4.0],
            original: 64,
            attention_factor: 1.19,
        };
        let a = Attention {
            rope: Some(Rope { scaling, ..rope(4) }),
            q: part(0, q),
            k: part(q, kv),
            v: part(q + kv, kv),
            ..attention(name, 4, 2, 6)
        };
        let stored = format!("{name}.gate_up");
        let half = |i: usize| Linear { weight: rows(&stored, &[64, HIDDEN], i * 32, (i + 1) * 32, false), bias: None };
        let mlp = Mlp { gate: Some(half(0)), up: half(1), ..mlp(name, 32, Activation::Silu, true) };
        layer(name, Mixer::Attention(a), Ffn::Dense(mlp))
    };
    Spec { qkv_fused: true, ..untied(spec("phi3", layers(2, make))) }
}

pub(crate) fn gemma3() -> Spec {
    let make = |i: usize, name: &str| {
        let local = i.is_multiple_of(2);
        let a = Attention {
            window: local.then_some(8),
            rope: Some(Rope { theta: if local { 10_000.0 } else { 1_000_000.0 }, ..rope(8) }),
            q_norm: Some(rms_plus_one(&format!("{name}.q_norm"), 8)),
            k_norm: Some(rms_plus_one(&format!("{name}.k_norm"), 8)),
            soft_cap: Some(50.0),
            ..attention(name, 2, 1, 8)
        };
        Layer {
            pre_mixer: rms_plus_one(&format!("{name}.n1"), HIDDEN),
            mixer: Mixer::Attention(a),
            post_mixer: Some(rms_plus_one(&format!("{name}.n2"), HIDDEN)),
            pre_ffn: rms_plus_one(&format!("{name}.n3"), HIDDEN),
            ffn: Ffn::Dense(mlp(name, 32, Activation::GeluTanh, true)),
            post_ffn: Some(rms_plus_one(&format!("{name}.n4"), HIDDEN)),
        }
    };
    Spec { embed_scale: 4.898_979_5, logit_cap: Some(30.0), ..spec("gemma3", layers(2, make)) }
}

/// What no given family has: interleaved rotary, gelu by erf, relu, a logit scale, q, k and v with unlike biases, a head
/// norm of q alone, value heads of another width, a mixture without a shared expert or renormalisation, an ungated shared
/// expert, post norms around a delta net and a mixture.
pub(crate) fn oddities() -> Spec {
    let mut first = attention("l0", 4, 2, 6);
    first.rope = Some(Rope { interleaved: true, ..rope(6) });
    first.q = biased("l0.q", 24, HIDDEN);
    first.q_norm = Some(rms("l0.q_norm", 6, 1e-6));
    let mut second = attention("l1", 4, 2, 6);
    second.rope = Some(Rope { interleaved: true, ..rope(4) });
    second.k.weight = second.k.weight.plus_one();
    second.k_norm = Some(rms("l1.k_norm", 6, 1e-6));
    let mut third = delta("l2", 2, 2, 4, 6);
    third.conv.bias = Some(View::whole("l2.conv.bias", &[28]));
    third.conv_act = Activation::Relu;
    third.b = biased("l2.b", 2, HIDDEN);
    third.q_scale = 1.0;
    let mut experts = moe("l1.moe", 5, 2, false);
    experts.renormalise = false;
    let mut open = moe("l2.moe", 5, 2, true);
    open.router = biased("l2.router", 5, HIDDEN);
    if let Some(shared) = &mut open.shared {
        shared.gate = None;
        shared.mlp.act = Activation::GeluErf;
    }
    let mut last = layer("l2", Mixer::DeltaNet(third), Ffn::Moe(open));
    last.post_mixer = Some(rms("l2.post1", HIDDEN, 1e-6));
    last.post_ffn = Some(rms("l2.post2", HIDDEN, 1e-6));
    let made = vec![
        layer("l0", Mixer::Attention(first), Ffn::Dense(mlp("l0", 20, Activation::Relu, false))),
        layer("l1", Mixer::Attention(second), Ffn::Moe(experts)),
        last,
    ];
    Spec { logit_scale: 0.25, head: biased("head", VOCAB, HIDDEN), tie: false, ..spec("oddities", made) }
}

/// One Spec of every family's shape, and the oddities.
pub(crate) fn families() -> Vec<Spec> {
    vec![llama(), mistral(), qwen2(), qwen3(), qwen3_5(), qwen3_next(), gpt2(), phi3(), gemma3(), oddities()]
}

/// A dense model of 70 B parameters' shape.
pub(crate) fn big(count: usize) -> Spec {
    let (hidden, inter, vocab) = (8192, 28_672, 128_256);
    let wide = |name: String, out: usize, input: usize| linear(&name, out, input);
    let make = |i: usize, _: &str| {
        let name = format!("model.layers.{i}");
        let a = Attention {
            q: wide(format!("{name}.self_attn.q_proj"), 64 * 128, hidden),
            k: wide(format!("{name}.self_attn.k_proj"), 8 * 128, hidden),
            v: wide(format!("{name}.self_attn.v_proj"), 8 * 128, hidden),
            o: wide(format!("{name}.self_attn.o_proj"), hidden, 64 * 128),
            ..attention(&name, 64, 8, 128)
        };
        let mlp = Mlp {
            inter,
            act: Activation::Silu,
            gate: Some(wide(format!("{name}.mlp.gate_proj"), inter, hidden)),
            up: wide(format!("{name}.mlp.up_proj"), inter, hidden),
            down: wide(format!("{name}.mlp.down_proj"), hidden, inter),
        };
        Layer {
            pre_mixer: rms(&format!("{name}.input_layernorm"), hidden, 1e-5),
            pre_ffn: rms(&format!("{name}.post_attention_layernorm"), hidden, 1e-5),
            ..layer(&name, Mixer::Attention(a), Ffn::Dense(mlp))
        }
    };
    Spec {
        hidden,
        vocab,
        max_pos: 131_072,
        embed: View::whole("model.embed_tokens.weight", &[vocab, hidden]),
        final_norm: rms("model.norm", hidden, 1e-5),
        head: linear("lm_head", vocab, hidden),
        tie: false,
        ..spec("llama", layers(count, make))
    }
}

/// A hybrid mixture of many experts.
pub(crate) fn mixture(count: usize, experts: usize) -> Spec {
    let mut spec =
        untied(spec("qwen3_next", hybrid(count, |name| Ffn::Moe(moe(&format!("{name}.moe"), experts, 10, true)))));
    spec.max_pos = 262_144;
    spec
}
