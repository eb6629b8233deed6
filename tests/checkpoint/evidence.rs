//! What the weight file holds decides: biases, tying, head norms, fused projections, head dimension, prefixes.

use super::support::{Draft, Stored, names, repository, values};
use safetensors::Dtype;
use serde_json::json;
use wordline::checkpoint::Checkpoint;
use wordline_ir::spec::{Attention, Ffn, Mixer, Mlp, Moe};

fn attention(checkpoint: &Checkpoint, layer: usize) -> &Attention {
    match &checkpoint.spec.layers[layer].mixer {
        Mixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

fn dense(checkpoint: &Checkpoint, layer: usize) -> &Mlp {
    match &checkpoint.spec.layers[layer].ffn {
        Ffn::Dense(mlp) => mlp,
        other => panic!("{other:?}"),
    }
}

fn moe(checkpoint: &Checkpoint, layer: usize) -> &Moe {
    match &checkpoint.spec.layers[layer].ffn {
        Ffn::Moe(moe) => moe,
        other => panic!("{other:?}"),
    }
}

/// Values of an attention layer's projections and a dense network's.
fn projections(checkpoint: &Checkpoint, layer: usize) -> Vec<Vec<f32>> {
    let (a, m) = (attention(checkpoint, layer), dense(checkpoint, layer));
    let linears = [&a.q, &a.k, &a.v, &a.o, m.gate.as_ref().unwrap(), &m.up, &m.down];
    linears.iter().map(|linear| values(checkpoint, &linear.weight)).collect()
}

#[test]
fn biases_are_there_when_the_file_holds_them() {
    for (flag, bias) in [(false, true), (true, false), (true, true), (false, false)] {
        let mut draft = Draft::given("qwen2").with("attention_bias", flag);
        if !bias {
            draft.tensors.retain(|name, _| !name.ends_with(".bias"));
        }
        let checkpoint = draft.open().unwrap();
        assert_eq!(attention(&checkpoint, 1).k.bias.is_some(), bias, "config says {flag}");
    }
    let bias = Stored::f32(&[64], &[0.5; 64]);
    let checkpoint = Draft::given("llama").tensor("model.layers.1.self_attn.o_proj.bias", bias).open().unwrap();
    assert_eq!(values(&checkpoint, attention(&checkpoint, 1).o.bias.as_ref().unwrap()), [0.5; 64]);
    assert!(attention(&checkpoint, 0).o.bias.is_none());
}

#[test]
fn a_bias_of_the_wrong_length_is_refused() {
    let bias = Stored::f32(&[63], &[0.5; 63]);
    let message = Draft::given("llama").tensor("model.layers.1.self_attn.o_proj.bias", bias).refusal();
    names(&message, &["model.layers.1.self_attn.o_proj.bias", "hidden_size", "[63]"]);
}

#[test]
fn the_head_is_tied_when_the_file_holds_none_or_an_equal_one() {
    let tied = Draft::given("llama");
    assert!(tied.open().unwrap().spec.tie);
    assert!(tied.clone().without("tie_word_embeddings").open().unwrap().spec.tie);
    let message = tied.clone().with("tie_word_embeddings", false).refusal();
    names(&message, &["lm_head.weight", "tie_word_embeddings"]);
    let embed = tied.tensors["model.embed_tokens.weight"].clone();
    for flag in [true, false] {
        let draft = tied.clone().with("tie_word_embeddings", flag).tensor("lm_head.weight", embed.clone());
        assert!(draft.open().unwrap().spec.tie);
        let mut other = embed.clone();
        other.bytes[7] ^= 1;
        let checkpoint = draft.tensor("lm_head.weight", other).open().unwrap();
        assert!(!checkpoint.spec.tie);
        assert_eq!(checkpoint.spec.head.weight.parts[0].tensor, "lm_head.weight");
    }
    let wide = Stored::stack(&[&embed, &embed.rows(0, 1)]);
    names(&tied.tensor("lm_head.weight", wide).refusal(), &["lm_head.weight", "vocab_size"]);
}

#[test]
fn head_norms_are_there_when_the_file_holds_them() {
    let norm = Stored::f32(&[16], &[1.5; 16]);
    let checkpoint = Draft::given("llama").tensor("model.layers.0.self_attn.q_norm.weight", norm).open().unwrap();
    let layer = attention(&checkpoint, 0);
    assert!(layer.q_norm.as_ref().is_some_and(|norm| norm.eps == 1e-5) && layer.k_norm.is_none());
    let mut lacking = Draft::given("qwen3");
    lacking.take("model.layers.2.self_attn.k_norm.weight");
    names(&lacking.refusal(), &["model.layers.2.self_attn.k_norm.weight", "key norm"]);
}

#[test]
fn fused_and_separate_projections_are_one_model() {
    let separate = Draft::given("mistral");
    let mut fused = separate.clone();
    for layer in 0..3 {
        let at = |rest: &str| format!("model.layers.{layer}.{rest}.weight");
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|p| fused.take(&at(&format!("self_attn.{p}"))));
        let gate_up = ["gate_proj", "up_proj"].map(|p| fused.take(&at(&format!("mlp.{p}"))));
        fused = fused.tensor(&at("self_attn.qkv_proj"), Stored::stack(&qkv.each_ref()));
        fused = fused.tensor(&at("mlp.gate_up_proj"), Stored::stack(&gate_up.each_ref()));
    }
    let (a, b) = (separate.open().unwrap(), fused.open().unwrap());
    assert!(!a.spec.qkv_fused && b.spec.qkv_fused);
    for layer in 0..3 {
        assert_eq!(projections(&a, layer), projections(&b, layer));
    }
    let both = fused
        .tensor("model.layers.0.mlp.up_proj.weight", separate.tensors["model.layers.0.mlp.up_proj.weight"].clone());
    names(&both.refusal(), &["model.layers.0.mlp.up_proj.weight", "used by nothing"]);
}

#[test]
fn the_head_dimension_is_the_key_projection_over_its_heads() {
    let checkpoint = Draft::given("qwen3").without("head_dim").open().unwrap();
    assert_eq!(attention(&checkpoint, 0).head_dim, 32);
    let message = Draft::given("qwen3").with("head_dim", 16).refusal();
    names(&message, &["'head_dim'", "16", "model.layers.0.self_attn.k_proj.weight"]);
    let message = Draft::given("qwen2").with("num_key_value_heads", 4).refusal();
    names(&message, &["num_key_value_heads", "model.layers.0.self_attn.q_proj.weight"]);
    let message = Draft::given("phi3").with("num_key_value_heads", 1).refusal();
    names(&message, &["num_key_value_heads", "model.layers.0.self_attn.qkv_proj.weight"]);
}

#[test]
fn a_tensor_that_nothing_uses_is_refused_by_name() {
    let extra = Stored::f32(&[1], &[0.0]);
    let message = Draft::given("llama").tensor("model.layers.0.self_attn.sinks", extra.clone()).refusal();
    names(&message, &["model.layers.0.self_attn.sinks", "used by nothing"]);
    let message = Draft::given("llama").with("num_hidden_layers", 2).refusal();
    names(&message, &["model.layers.2.", "num_hidden_layers", "2 layers"]);
    let message = Draft::given("gpt2").with("n_layer", 2).refusal();
    names(&message, &["h.2.", "n_layer"]);
    let message = Draft::given("qwen3_next").tensor("model.layers.1.mlp.experts.0.up_proj.bias", extra).refusal();
    names(&message, &["model.layers.1.mlp.experts.0.up_proj.bias"]);
}

#[test]
fn tensors_on_the_skip_list_change_nothing() {
    let frequencies = Stored::f32(&[8], &[1.0; 8]);
    let plain = Draft::given("llama");
    let with = plain.clone().tensor("model.layers.0.self_attn.rotary_emb.inv_freq", frequencies.clone());
    assert_eq!(plain.open().unwrap().spec, with.open().unwrap().spec);
    let plain = Draft::given("qwen3_next");
    let with = plain.clone().tensor("mtp.layers.0.mlp.gate_proj.weight", frequencies.clone());
    assert_eq!(plain.open().unwrap().spec, with.open().unwrap().spec);
    let message = Draft::given("llama").tensor("mtp.layers.0.mlp.gate_proj.weight", frequencies).refusal();
    names(&message, &["mtp.layers.0.mlp.gate_proj.weight"]);
}

#[test]
fn a_missing_tensor_is_named_with_its_purpose() {
    for (fixture, tensor, purpose) in [
        ("llama", "model.embed_tokens.weight", "token embedding"),
        ("llama", "model.layers.1.mlp.down_proj.weight", "down projection of layer 1's network"),
        ("llama", "model.norm.weight", "norm before the LM head"),
        ("qwen3", "lm_head.weight", "LM head"),
        ("gpt2", "wpe.weight", "learned positions"),
        ("gpt2", "h.1.attn.c_attn.weight", "query, key and value projection of layer 1"),
        ("qwen3_next", "model.layers.2.mlp.experts.5.up_proj.weight", "expert 5"),
        ("qwen3_next", "model.layers.0.linear_attn.in_proj_ba.weight", "b, a projection"),
        ("qwen3_next", "model.layers.2.mlp.shared_expert_gate.weight", "shared expert"),
        ("qwen3_5", "model.layers.0.linear_attn.A_log", "decay rate"),
        ("qwen3_5", "model.layers.0.linear_attn.conv1d.weight", "convolution"),
        ("gemma3", "model.layers.3.post_feedforward_layernorm.weight", "norm after"),
    ] {
        let mut draft = Draft::given(fixture);
        draft.take(tensor);
        names(&draft.refusal(), &[tensor, purpose]);
    }
}

#[test]
fn every_shape_is_held_to_the_config() {
    for name in ["llama", "gpt2", "qwen3_next", "qwen3_5", "gemma3", "phi3", "qwen2"] {
        let draft = Draft::given(name);
        for (tensor, stored) in &draft.tensors {
            let last = stored.shape.len() - 1;
            for dim in 0..=last {
                // One row more, by repeating what is there.
                let mut shape = stored.shape.clone();
                shape[dim] += 1;
                let size = stored.bytes.len() / stored.shape.iter().product::<usize>();
                let bytes = vec![0; shape.iter().product::<usize>() * size];
                let message = draft.clone().tensor(tensor, Stored { shape, bytes, ..stored.clone() }).refusal();
                let by_evidence = tensor.contains("k_proj") || tensor.contains("qkv_proj.weight");
                assert!(message.contains(tensor.as_str()) || by_evidence, "{name} {tensor}: {message}");
            }
        }
    }
}

#[test]
fn a_weight_of_no_weights_type_is_refused() {
    let mut draft = Draft::given("llama");
    let norm = draft.take("model.norm.weight");
    let stored = Stored { dtype: Dtype::I16, ..norm };
    names(&draft.tensor("model.norm.weight", stored).refusal(), &["model.norm.weight", "I16"]);
}

#[test]
fn prefixes_change_nothing_but_names() {
    let plain = Draft::given("gpt2");
    let prefixed = plain.clone().renamed(|name| format!("transformer.{name}"));
    let (a, b) = (plain.open().unwrap(), prefixed.open().unwrap());
    let text = |checkpoint: &Checkpoint| serde_json::to_string(&checkpoint.spec).unwrap();
    assert_eq!(text(&a), text(&b).replace("transformer.", ""));
    let bare = Draft::given("llama").renamed(|name| name.trim_start_matches("model.").to_owned());
    assert!(bare.open().unwrap().spec.tie);
    let mut both = plain.clone();
    both = both.tensor("transformer.wte.weight", plain.tensors["wte.weight"].clone());
    names(&both.refusal(), &["wte.weight", "token embedding"]);
}

#[test]
fn a_nested_config_is_the_text_model_alone() {
    let nested = Draft::of(&repository("tests/fixtures/extra/qwen3_5-nested"));
    let mut plain = Draft { config: nested.config["text_config"].clone(), ..nested.clone() };
    plain.config["architectures"] = json!(["Qwen3_5ForCausalLM"]);
    plain.tensors.retain(|name, _| !name.starts_with("model.visual.") && !name.starts_with("mtp."));
    let plain = plain.renamed(|name| name.replace("model.language_model.", "model."));
    let (a, b) = (nested.open().unwrap(), plain.open().unwrap());
    let text = serde_json::to_string(&a.spec).unwrap().replace("model.language_model.", "model.");
    assert_eq!(text, serde_json::to_string(&b.spec).unwrap());
    assert!(a.notes.iter().any(|note| note.key == "vision_config"));
    let older = nested.renamed(|name| name.replace("model.language_model.", "language_model.model."));
    assert!(older.open().is_ok());
}

#[test]
fn a_gemma_beside_a_vision_tower_is_read_with_the_frameworks_defaults() {
    let plain = Draft::given("gemma3");
    let mut text = plain.config.clone();
    text.as_object_mut().unwrap().shift_remove("architectures");
    let config = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text,
        "vision_config": {"hidden_size": 8}, "mm_tokens_per_image": 4, "boi_token_index": 1, "image_token_index": 2,
    });
    let nested = Draft { config, ..plain.clone() }
        .renamed(|name| format!("language_model.{name}"))
        .tensor("vision_tower.x.weight", Stored::f32(&[1], &[0.0]))
        .tensor("multi_modal_projector.y", Stored::f32(&[1], &[0.0]));
    let (a, b) = (nested.open().unwrap(), plain.open().unwrap());
    let text = serde_json::to_string(&a.spec).unwrap().replace("language_model.model.", "model.");
    assert_eq!(text, serde_json::to_string(&b.spec).unwrap());
    // What a nested config may leave out is what the framework takes for absent keys.
    let mut short = plain.clone();
    for key in ["num_attention_heads", "num_key_value_heads", "vocab_size", "query_pre_attn_scalar"] {
        let message = short.clone().without(key).open().err().map(|error| error.to_string());
        if key != "query_pre_attn_scalar" && key != "num_attention_heads" {
            assert!(message.is_some_and(|m| m.contains(key)), "{key}");
        }
    }
    short = short.without("query_pre_attn_scalar");
    assert_eq!(attention(&short.open().unwrap(), 0).scale, 0.0625);
}

#[test]
fn stacked_and_separate_experts_are_one_model() {
    let separate = Draft::given("qwen3_next");
    let mut stacked = separate.clone();
    for layer in 0..4 {
        let at = format!("model.layers.{layer}.mlp.experts");
        let mut gate_up = Vec::new();
        let mut down = Vec::new();
        for expert in 0..6 {
            gate_up.push(stacked.take(&format!("{at}.{expert}.gate_proj.weight")));
            gate_up.push(stacked.take(&format!("{at}.{expert}.up_proj.weight")));
            down.push(stacked.take(&format!("{at}.{expert}.down_proj.weight")));
        }
        let stack = |parts: &[Stored]| Stored::stack(&parts.iter().collect::<Vec<_>>());
        stacked = stacked
            .tensor(&format!("{at}.gate_up_proj"), stack(&gate_up).reshaped(&[6, 64, 64]))
            .tensor(&format!("{at}.down_proj"), stack(&down).reshaped(&[6, 64, 32]));
    }
    let (a, b) = (separate.open().unwrap(), stacked.open().unwrap());
    for layer in 0..4 {
        let (x, y) = (moe(&a, layer), moe(&b, layer));
        assert_eq!((x.gate_up.rows(), x.gate_up.cols()), (y.gate_up.rows(), y.gate_up.cols()));
        assert_eq!(values(&a, &x.gate_up), values(&b, &y.gate_up));
        assert_eq!(values(&a, &x.down), values(&b, &y.down));
    }
}

#[test]
fn zero_centred_norms_are_read_with_one_added() {
    let checkpoint = Draft::given("qwen3_5").open().unwrap();
    let norm = &checkpoint.spec.layers[0].pre_mixer.weight;
    let mut plain = norm.clone();
    plain.add_one = false;
    let (centred, stored) = (values(&checkpoint, norm), values(&checkpoint, &plain));
    assert!(centred.iter().zip(&stored).all(|(a, b)| *a == b + 1.0));
}
