//! Every fixture opens, its Spec says what is special about it, and its views use every stored row exactly once.

use super::support::{fixtures, parts, repository};
use std::collections::BTreeMap;
use std::path::Path;
use wordline::checkpoint::Checkpoint;
use wordline_ir::Spec;
use wordline_ir::spec::{Activation, Attention, DeltaNet, Ffn, Mixer, NormKind, RopeScaling, WeightLayout};

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn given(name: &str) -> Spec {
    open(&repository("tests/fixtures/given").join(name)).spec
}

fn extra(name: &str) -> Spec {
    open(&repository("tests/fixtures/extra").join(name)).spec
}

fn attention(spec: &Spec, layer: usize) -> &Attention {
    match &spec.layers[layer].mixer {
        Mixer::Attention(attention) => attention,
        other => panic!("layer {layer} is {other:?}"),
    }
}

fn delta(spec: &Spec, layer: usize) -> &DeltaNet {
    match &spec.layers[layer].mixer {
        Mixer::DeltaNet(delta) => delta,
        other => panic!("layer {layer} is {other:?}"),
    }
}

fn windows(spec: &Spec) -> Vec<Option<usize>> {
    (0..spec.layers.len()).map(|layer| attention(spec, layer).window).collect()
}

fn scaling(spec: &Spec) -> &RopeScaling {
    &attention(spec, 0).rope.as_ref().unwrap().scaling
}

/// Every tensor that a Spec uses is used whole, no row of it twice, and nothing else is left but what is skipped.
#[test]
fn every_stored_row_is_used_exactly_once() {
    const SKIPPED: &[&str] = &["model.visual.", "mtp.", ".attn.bias", ".attn.masked_bias"];
    for path in fixtures() {
        let checkpoint = open(&path);
        let mut spec = checkpoint.spec.clone();
        if spec.tie {
            assert_eq!(spec.head.weight, spec.embed, "{}", path.display());
            spec.head.weight.parts.clear();
        }
        let mut used: BTreeMap<String, Vec<(usize, usize)>> = BTreeMap::new();
        for part in parts(&spec) {
            let tensor = checkpoint.weights.tensor(&part.tensor).unwrap();
            let rows = if part.transpose { part.shape[1] } else { part.shape[0] };
            assert_eq!(tensor.shape.iter().product::<usize>(), part.cols() * rows, "{}", part.tensor);
            let ranges = used.entry(part.tensor).or_default();
            ranges.extend(part.rows.iter().map(|range| (range.start, range.end)));
            ranges.sort_unstable();
            let ends = ranges.iter().map(|range| range.1);
            assert!(ranges.iter().skip(1).zip(ends).all(|(range, end)| range.0 >= end), "{ranges:?}");
            assert!(ranges.last().unwrap().1 <= rows);
        }
        for (_, entry) in checkpoint.weights.entries() {
            if SKIPPED.iter().any(|skip| entry.name.starts_with(skip) || entry.name.ends_with(skip)) {
                assert!(!used.contains_key(&entry.name), "{}", entry.name);
                continue;
            }
            let ranges = used.get(&entry.name).unwrap_or_else(|| panic!("{} is unused", entry.name));
            let taken: usize = ranges.iter().map(|range| range.1 - range.0).sum();
            let transposed = spec.weight_layout == WeightLayout::InOut
                && entry.shape.len() == 2
                && !entry.name.ends_with("wte.weight")
                && !entry.name.ends_with("wpe.weight")
                && entry.name != "lm_head.weight";
            // A one-dimensional tensor, an embedding and a Linear are taken by their first dimension.
            let rows = if transposed { entry.shape[1] } else { entry.shape[0] };
            assert_eq!(taken, rows, "rows of {}", entry.name);
        }
    }
}

#[test]
fn llama() {
    let spec = given("llama");
    assert_eq!((spec.hidden, spec.vocab, spec.max_pos, spec.tie), (64, 400, 256, true));
    let attention = attention(&spec, 0);
    assert_eq!((attention.heads, attention.kv_heads, attention.head_dim), (4, 2, 16));
    assert_eq!(attention.scale, 0.25);
    assert_eq!(attention.rope.as_ref().unwrap().theta, 500_000.0);
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } = *scaling(&spec) else {
        panic!("{:?}", scaling(&spec))
    };
    assert_eq!((factor, low_freq_factor, high_freq_factor, original), (8.0, 1.0, 4.0, 16));
    assert!(attention.q.bias.is_none() && attention.q_norm.is_none() && attention.gate.is_none());
    assert_eq!(spec.layers[0].pre_mixer.eps, 1e-5);
    assert!(matches!(&spec.layers[2].ffn, Ffn::Dense(mlp) if mlp.act == Activation::Silu && mlp.inter == 160));
    let biased = extra("llama-bias");
    let Ffn::Dense(mlp) = &biased.layers[0].ffn else { panic!() };
    let linears = [&attention_linears(&biased)[..], &[mlp.gate.as_ref().unwrap(), &mlp.up, &mlp.down]].concat();
    assert!(linears.iter().all(|linear| linear.bias.is_some()));
    assert_eq!(attention_of(&extra("llama-wide-heads")).head_dim, 20);
}

fn attention_of(spec: &Spec) -> &Attention {
    attention(spec, 0)
}

fn attention_linears(spec: &Spec) -> [&wordline_ir::spec::Linear; 4] {
    let attention = attention(spec, 0);
    [&attention.q, &attention.k, &attention.v, &attention.o]
}

#[test]
fn rotary_recipes() {
    assert_eq!(*scaling(&extra("llama-linear")), RopeScaling::Linear { factor: 4.0 });
    let yarn = extra("llama-yarn-mscale");
    let RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, attention_factor } = *scaling(&yarn)
    else {
        panic!("{:?}", scaling(&yarn))
    };
    assert_eq!((factor, original, beta_fast, beta_slow, truncate), (8.0, 32, 3.0, 0.5, false));
    // (0.1 * 1.5 * ln 8 + 1) / (0.1 * 0.5 * ln 8 + 1).
    assert!((attention_factor - 1.188_36).abs() < 1e-5, "{attention_factor}");
    let RopeScaling::Yarn { attention_factor, beta_slow, truncate, .. } = *scaling(&extra("llama-yarn")) else {
        panic!()
    };
    assert_eq!((beta_slow, truncate), (1.0, true));
    assert!((attention_factor - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    let dynamic = extra("llama-dynamic");
    let RopeScaling::Dynamic { factor, original } = *scaling(&dynamic) else { panic!("{:?}", scaling(&dynamic)) };
    assert_eq!(original, 16);
    assert_eq!(dynamic.max_pos, (16.0 * factor) as usize);
    assert!(dynamic.max_pos >= 28, "the golden values run to position 27");
    let explicit = extra("qwen3-tied");
    assert!(matches!(scaling(&explicit), RopeScaling::Yarn { attention_factor, .. } if *attention_factor != 1.0));
}

#[test]
fn mistral() {
    let spec = given("mistral");
    assert!(!spec.tie);
    assert_eq!(spec.head.weight.parts[0].tensor, "lm_head.weight");
    assert_eq!(windows(&spec), [Some(8); 3]);
    assert!(windows(&extra("mistral-no-window")).iter().all(Option::is_none));
    assert!(extra("mistral-tied").tie);
}

#[test]
fn qwen2() {
    let spec = given("qwen2");
    let attention = attention(&spec, 0);
    assert!(attention.q.bias.is_some() && attention.k.bias.is_some() && attention.v.bias.is_some());
    assert!(attention.o.bias.is_none());
    assert_eq!(windows(&spec), [None; 3]);
    assert_eq!(windows(&extra("qwen2-window")), [None, None, Some(7), Some(7)]);
    let alternate = windows(&extra("qwen2-layer-types"));
    assert!(alternate.contains(&Some(5)) && alternate.contains(&None));
}

#[test]
fn qwen3() {
    let spec = given("qwen3");
    let attention = attention(&spec, 0);
    assert_eq!((attention.heads, attention.head_dim, spec.hidden), (4, 32, 64));
    let norm = attention.q_norm.as_ref().unwrap();
    assert!(!norm.weight.add_one && norm.kind == NormKind::Rms && attention.k_norm.is_some());
    assert_eq!(attention.scale, (1.0 / 32f64.sqrt()) as f32);
}

#[test]
fn gpt2() {
    let spec = given("gpt2");
    assert_eq!((spec.weight_layout, spec.qkv_fused, spec.tie, spec.max_pos), (WeightLayout::InOut, true, true, 64));
    assert!(spec.positions.is_some());
    let attention = attention(&spec, 1);
    assert!(attention.rope.is_none() && attention.q.weight.parts[0].transpose && attention.q.bias.is_some());
    let range = |linear: &wordline_ir::spec::Linear| {
        let rows = linear.weight.parts[0].rows[0];
        (rows.start, rows.end)
    };
    assert_eq!([range(&attention.q), range(&attention.k), range(&attention.v)], [(0, 64), (64, 128), (128, 192)]);
    assert!(matches!(&spec.layers[0].ffn, Ffn::Dense(mlp) if mlp.gate.is_none() && mlp.act == Activation::GeluTanh));
    assert!(spec.final_norm.kind == NormKind::Ln && spec.final_norm.bias.is_some());
    let by_layer = extra("gpt2-prefix");
    let scales: Vec<f32> = (0..by_layer.layers.len()).map(|l| self::attention(&by_layer, l).scale).collect();
    assert_eq!(scales[1], (f64::from(scales[0]) / 2.0) as f32);
    let unscaled = extra("gpt2-buffers");
    assert_eq!(self::attention(&unscaled, 0).scale, 1.0);
    let other = extra("gpt2-gelu");
    assert!(matches!(&other.layers[0].ffn, Ffn::Dense(mlp) if mlp.act == Activation::GeluErf && mlp.inter == 80));
    assert!(!other.tie);
}

#[test]
fn phi3() {
    let spec = given("phi3");
    let attention = attention(&spec, 0);
    let rope = attention.rope.as_ref().unwrap();
    assert_eq!((rope.rot, attention.head_dim, spec.qkv_fused), (12, 16, true));
    let RopeScaling::LongRope { short, long, original, attention_factor } = &rope.scaling else { panic!() };
    assert_eq!((short.len(), long[5], *original), (6, 9.0, 64));
    // sqrt(1 + ln(128 / 64) / ln 64).
    assert!((attention_factor - (1.0 + 2f64.ln() / 64f64.ln()).sqrt()).abs() < 1e-12);
    let Ffn::Dense(mlp) = &spec.layers[0].ffn else { panic!() };
    assert_eq!(mlp.gate.as_ref().unwrap().weight.parts[0].rows[0].end, 160);
    assert_eq!(mlp.up.weight.parts[0].rows[0].start, 160);
    assert!(windows(&extra("phi3-window")).iter().all(|window| *window == Some(6)));
    assert_eq!(attention_of(&extra("phi3-plain")).rope.as_ref().unwrap().scaling, RopeScaling::Default);
}

#[test]
fn gemma3() {
    let spec = given("gemma3");
    assert_eq!((spec.embed_scale, spec.tie, spec.logit_cap), (8.0, true, None));
    assert_eq!(windows(&spec), [Some(8), Some(8), None, Some(8)]);
    let theta = |layer: usize| attention(&spec, layer).rope.as_ref().unwrap().theta;
    assert_eq!([theta(0), theta(2)], [1e4, 1e6]);
    let layer = &spec.layers[0];
    assert!(layer.pre_mixer.weight.add_one && layer.post_mixer.as_ref().unwrap().weight.add_one);
    assert!(layer.pre_ffn.weight.add_one && layer.post_ffn.as_ref().unwrap().weight.add_one);
    assert!(spec.final_norm.weight.add_one && attention(&spec, 0).q_norm.as_ref().unwrap().weight.add_one);
    assert_eq!(layer.pre_ffn.weight.parts[0].tensor, "model.layers.0.pre_feedforward_layernorm.weight");
    let capped = extra("gemma3-softcap");
    assert_eq!(capped.logit_cap, Some(10.0));
    assert_eq!(attention(&capped, 0).soft_cap, None);
    assert_eq!(attention(&capped, 0).scale, (1.0 / 50f64.sqrt()) as f32);
    let old = extra("gemma3-v4");
    let recipe = |layer: usize| attention(&old, layer).rope.clone().unwrap();
    assert_eq!(windows(&old).iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, true]);
    assert_eq!(recipe(2).scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(recipe(0).scaling, RopeScaling::Default);
    assert!(!extra("gemma3-untied").tie);
}

#[test]
fn qwen3_next() {
    let spec = given("qwen3_next");
    let delta = delta(&spec, 0);
    assert_eq!((delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim), (2, 4, 16, 16));
    assert_eq!((delta.q_scale, delta.l2_eps, delta.conv_taps), (0.25, 1e-6, 4));
    // Rows by kind of the projection that is grouped by key head: [heads, q 16 | k 16 | v 2 * 16 | z 2 * 16].
    let grouped = |kind: usize, row: usize, wide: usize| (row / wide) * 96 + [0, 16, 32, 64][kind] + row % wide;
    let rows = |view: &wordline_ir::spec::View| -> Vec<usize> {
        view.parts[0].rows.iter().flat_map(|range| range.start..range.end).collect()
    };
    let q = (0..32).map(|row| grouped(0, row, 16));
    let k = (0..32).map(|row| grouped(1, row, 16));
    let v = (0..64).map(|row| grouped(2, row, 32));
    assert_eq!(rows(&delta.qkv.weight), q.chain(k).chain(v).collect::<Vec<_>>());
    assert_eq!(rows(&delta.z.weight), (0..64).map(|row| grouped(3, row, 32)).collect::<Vec<_>>());
    assert_eq!(rows(&delta.b.weight), [0, 1, 4, 5]);
    assert_eq!(rows(&delta.a.weight), [2, 3, 6, 7]);
    assert!(!delta.norm.weight.add_one && spec.layers[0].pre_mixer.weight.add_one);
    let attention = attention(&spec, 3);
    assert_eq!((attention.heads, attention.head_dim), (4, 32));
    let (q, gate) = (rows(&attention.q.weight), rows(&attention.gate.as_ref().unwrap().weight));
    assert_eq!(q, (0..4).flat_map(|head| head * 64..head * 64 + 32).collect::<Vec<_>>());
    assert_eq!(gate, (0..4).flat_map(|head| head * 64 + 32..head * 64 + 64).collect::<Vec<_>>());
    assert_eq!(attention.rope.as_ref().unwrap().rot, 8);
    let Ffn::Moe(moe) = &spec.layers[1].ffn else { panic!("{:?}", spec.layers[1].ffn) };
    assert_eq!((moe.experts, moe.top_k, moe.inter, moe.renormalise), (6, 2, 32, true));
    assert_eq!((moe.gate_up.rows(), moe.down.rows()), (6 * 2 * 32, 6 * 64));
    let order: Vec<&str> = moe.gate_up.parts.iter().map(|part| part.tensor.as_str()).take(3).collect();
    let expert = |rest: &str| format!("model.layers.1.mlp.experts.{rest}.weight");
    assert_eq!(order, [expert("0.gate_proj"), expert("0.up_proj"), expert("1.gate_proj")]);
    let shared = moe.shared.as_ref().unwrap();
    assert_eq!((shared.mlp.inter, shared.gate.as_ref().unwrap().weight.rows()), (48, 1));
    let mixed = extra("qwen3_next-mixed");
    let dense: Vec<bool> = mixed.layers.iter().map(|layer| matches!(layer.ffn, Ffn::Dense(_))).collect();
    assert_eq!(dense, [true, false, true, true]);
    assert!(matches!(&mixed.layers[1].ffn, Ffn::Moe(moe) if !moe.renormalise && moe.top_k == 3));
}

#[test]
fn qwen3_5() {
    let spec = given("qwen3_5");
    assert!(spec.tie && spec.layers.iter().all(|layer| matches!(layer.ffn, Ffn::Dense(_))));
    assert_eq!(delta(&spec, 0).qkv.weight.parts[0].tensor, "model.layers.0.linear_attn.in_proj_qkv.weight");
    assert_eq!(delta(&spec, 0).conv.weight.cols(), 4);
    assert_eq!(attention(&spec, 3).rope.as_ref().unwrap().theta, 1e7);
    let nested = extra("qwen3_5-nested");
    assert_eq!(nested.embed.parts[0].tensor, "model.language_model.embed_tokens.weight");
    assert_eq!((delta(&nested, 0).key_heads, delta(&nested, 0).value_heads), (2, 6));
    let demo = open(&repository("demo")).spec;
    let kinds: Vec<bool> = demo.layers.iter().map(|layer| matches!(layer.mixer, Mixer::Attention(_))).collect();
    assert_eq!(kinds, [false, false, false, true, false, false, false, true]);
}
