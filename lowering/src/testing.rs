//! Synthetic Specs for tests: parts to make one of, and one for each family's shape.

mod families;

pub(crate) use families::*;

use wordline_ir::Spec;
use wordline_ir::spec::{
    Activation, Attention, DeltaNet, Ffn, Layer, Linear, Mixer, Mlp, Moe, Norm, NormKind, Rope, RopeScaling, RowRange,
    SharedExpert, View, WeightLayout,
};

pub(crate) const HIDDEN: usize = 24;
pub(crate) const VOCAB: usize = 40;

pub(crate) fn linear(name: &str, out: usize, input: usize) -> Linear {
    Linear { weight: View::whole(format!("{name}.weight"), &[out, input]), bias: None }
}

pub(crate) fn biased(name: &str, out: usize, input: usize) -> Linear {
    Linear { bias: Some(View::whole(format!("{name}.bias"), &[out])), ..linear(name, out, input) }
}

/// Rows of one stored tensor.
pub(crate) fn rows(name: &str, shape: &[usize], start: usize, end: usize, transpose: bool) -> View {
    View::rows_of(name, shape, transpose, vec![RowRange { start, end }])
}

pub(crate) fn rms(name: &str, width: usize, eps: f32) -> Norm {
    Norm { kind: NormKind::Rms, weight: View::whole(format!("{name}.weight"), &[width]), bias: None, eps }
}

pub(crate) fn rms_plus_one(name: &str, width: usize) -> Norm {
    let norm = rms(name, width, 1e-6);
    Norm { weight: norm.weight.clone().plus_one(), ..norm }
}

pub(crate) fn layer_norm(name: &str, width: usize) -> Norm {
    let bias = Some(View::whole(format!("{name}.bias"), &[width]));
    Norm { kind: NormKind::Ln, bias, ..rms(name, width, 1e-5) }
}

pub(crate) fn rope(rot: usize) -> Rope {
    Rope { theta: 10_000.0, rot, interleaved: false, scaling: RopeScaling::Default }
}

pub(crate) fn attention(name: &str, heads: usize, kv_heads: usize, head_dim: usize) -> Attention {
    Attention {
        heads,
        kv_heads,
        head_dim,
        v_dim: head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: None,
        soft_cap: None,
        rope: Some(rope(head_dim)),
        q: linear(&format!("{name}.q"), heads * head_dim, HIDDEN),
        k: linear(&format!("{name}.k"), kv_heads * head_dim, HIDDEN),
        v: linear(&format!("{name}.v"), kv_heads * head_dim, HIDDEN),
        gate: None,
        q_norm: None,
        k_norm: None,
        o: linear(&format!("{name}.o"), HIDDEN, heads * head_dim),
    }
}

pub(crate) fn delta(name: &str, key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> DeltaNet {
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    let channels = 2 * keys + values;
    DeltaNet {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        conv_taps: 4,
        conv_act: Activation::Silu,
        q_scale: 1.0 / (key_dim as f32).sqrt(),
        l2_eps: 1e-6,
        qkv: linear(&format!("{name}.qkv"), channels, HIDDEN),
        z: linear(&format!("{name}.z"), values, HIDDEN),
        b: linear(&format!("{name}.b"), value_heads, HIDDEN),
        a: linear(&format!("{name}.a"), value_heads, HIDDEN),
        conv: Linear { weight: View::whole(format!("{name}.conv"), &[channels, 1, 4]), bias: None },
        a_log: View::whole(format!("{name}.a_log"), &[value_heads]),
        dt_bias: View::whole(format!("{name}.dt_bias"), &[value_heads]),
        norm: rms(&format!("{name}.norm"), value_dim, 1e-6),
        o: linear(&format!("{name}.o"), HIDDEN, values),
    }
}

pub(crate) fn mlp(name: &str, inter: usize, act: Activation, gated: bool) -> Mlp {
    Mlp {
        inter,
        act,
        gate: gated.then(|| linear(&format!("{name}.gate"), inter, HIDDEN)),
        up: linear(&format!("{name}.up"), inter, HIDDEN),
        down: linear(&format!("{name}.down"), HIDDEN, inter),
    }
}

/// A stack of experts' matrices from one stored tensor an expert.
pub(crate) fn stack(name: &str, experts: usize, rows: usize, cols: usize) -> View {
    let parts: Vec<View> = (0..experts).map(|e| View::whole(format!("{name}.{e}"), &[rows, cols])).collect();
    View::concat(&parts.iter().collect::<Vec<_>>()).expect("equal columns")
}

pub(crate) fn moe(name: &str, experts: usize, top_k: usize, shared: bool) -> Moe {
    let inter = 6;
    Moe {
        experts,
        top_k,
        renormalise: true,
        router: linear(&format!("{name}.router"), experts, HIDDEN),
        inter,
        act: Activation::Silu,
        gate_up: stack(&format!("{name}.gate_up"), experts, 2 * inter, HIDDEN),
        down: stack(&format!("{name}.down"), experts, HIDDEN, inter),
        shared: shared.then(|| SharedExpert {
            mlp: mlp(&format!("{name}.shared"), 10, Activation::Silu, true),
            gate: Some(linear(&format!("{name}.shared_gate"), 1, HIDDEN)),
        }),
    }
}

pub(crate) fn layer(name: &str, mixer: Mixer, ffn: Ffn) -> Layer {
    Layer {
        pre_mixer: rms(&format!("{name}.norm1"), HIDDEN, 1e-5),
        mixer,
        post_mixer: None,
        pre_ffn: rms(&format!("{name}.norm2"), HIDDEN, 1e-5),
        ffn,
        post_ffn: None,
    }
}

pub(crate) fn spec(family: &str, layers: Vec<Layer>) -> Spec {
    let embed = View::whole("embed.weight", &[VOCAB, HIDDEN]);
    Spec {
        family: family.to_owned(),
        hidden: HIDDEN,
        vocab: VOCAB,
        max_pos: 256,
        embed: embed.clone(),
        positions: None,
        embed_scale: 1.0,
        layers,
        final_norm: rms("norm", HIDDEN, 1e-5),
        head: Linear { weight: embed, bias: None },
        tie: true,
        logit_cap: None,
        logit_scale: 1.0,
        qkv_fused: false,
        weight_layout: WeightLayout::OutIn,
    }
}

pub(crate) fn untied(spec: Spec) -> Spec {
    Spec { head: linear("head", VOCAB, HIDDEN), tie: false, ..spec }
}

/// Layers made one by one.
pub(crate) fn layers(n: usize, make: impl Fn(usize, &str) -> Layer) -> Vec<Layer> {
    (0..n).map(|i| make(i, &format!("l{i}"))).collect()
}

pub(crate) fn dense(name: &str) -> Ffn {
    Ffn::Dense(mlp(&format!("{name}.mlp"), 32, Activation::Silu, true))
}
