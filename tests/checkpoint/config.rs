//! Configs that lie, contradict themselves or ask for what is not known: refused by the key's name, never a panic.

use super::support::{Draft, fixtures, names};
use proptest::prelude::*;
use serde_json::{Value, json};

const GIVEN: [&str; 9] = ["gemma3", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_5", "qwen3_next"];

#[test]
fn unknown_architectures_are_refused_by_name_with_the_known_ones() {
    let cases = [
        ("BertModel", "bert"),
        ("LlamaForSequenceClassification", "llama"),
        ("Qwen2MoeForCausalLM", "qwen2_moe"),
        ("Gemma2ForCausalLM", "gemma2"),
    ];
    for (class, kind) in cases {
        let draft = Draft::given("llama").with("architectures", json!([class])).with("model_type", kind);
        names(&draft.refusal(), &[class, kind, "LlamaForCausalLM", "Qwen3NextForCausalLM"]);
        names(&draft.without("architectures").with("model_type", "mamba").refusal(), &["mamba"]);
    }
    names(&Draft::given("llama").without("architectures").without("model_type").refusal(), &["none", "known are"]);
    names(&Draft::given("llama").with("model_type", "qwen2").refusal(), &["model_type", "architectures"]);
    let two = json!(["LlamaForCausalLM", "MistralForCausalLM"]);
    names(&Draft::given("llama").with("architectures", two).refusal(), &["LlamaForCausalLM", "MistralForCausalLM"]);
    assert!(Draft::given("llama").without("architectures").open().is_ok());
    assert!(Draft::given("llama").without("model_type").open().is_ok());
}

#[test]
fn a_key_that_is_on_no_list_is_refused_by_name() {
    for name in GIVEN {
        for value in [json!(3), json!(null), json!(false), json!({"a": 1})] {
            names(&Draft::given(name).with("flux_capacity", value).refusal(), &["'flux_capacity'", "not understood"]);
        }
    }
    let mut draft = Draft::given("llama");
    draft.key("rope_scaling")["flux_capacity"] = json!(1);
    names(&draft.refusal(), &["'rope_scaling.flux_capacity'"]);
    // Keys of other families mean something there and are not read here.
    for key in ["logits_scaling", "residual_multiplier", "embedding_multiplier", "attention_chunk_size", "use_qk_norm"]
    {
        names(&Draft::given("llama").with(key, 2).refusal(), &[key]);
    }
}

#[test]
fn a_config_that_is_no_object_or_repeats_a_key() {
    let folder = Draft::given("llama").write();
    for text in ["", "[]", "3", "{\"a\":", "{\"vocab_size\": 1, \"vocab_size\": 400}"] {
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let message = wordline::checkpoint::Checkpoint::open(folder.path()).unwrap_err().to_string();
        names(&message, &["config.json"]);
    }
    names(
        &wordline::checkpoint::Checkpoint::open(folder.path()).unwrap_err().to_string(),
        &["'vocab_size' stands twice"],
    );
}

#[test]
fn sizes_that_no_model_has_are_refused_by_name() {
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "max_position_embeddings",
        "head_dim",
    ];
    let values = [
        json!(0),
        json!(-1),
        json!(1.5),
        json!(64.0),
        json!(1e30),
        json!(u64::MAX),
        json!(1u64 << 40),
        json!("64"),
        json!([64]),
        json!(true),
    ];
    for key in sizes {
        for value in &values {
            names(&Draft::given("llama").with(key, value.clone()).refusal(), &[&format!("'{key}'")]);
        }
    }
    // Possible sizes that the file contradicts.
    for key in &sizes[..6] {
        names(&Draft::given("llama").with(key, 1 << 28).refusal(), &[key]);
    }
    names(&Draft::given("llama").without("hidden_size").refusal(), &["'hidden_size'", "missing"]);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let cases: &[(&str, &str, Value)] = &[
        ("llama", "rms_norm_eps", json!(0)),
        ("llama", "rms_norm_eps", json!(-1e-6)),
        ("llama", "rms_norm_eps", json!(1e-300)),
        ("llama", "rms_norm_eps", json!("1e-6")),
        ("llama", "rope_theta", json!(0)),
        ("llama", "rope_theta", json!("big")),
        ("llama", "hidden_act", json!("mish")),
        ("llama", "hidden_act", json!(1)),
        ("llama", "tie_word_embeddings", json!("yes")),
        ("llama", "num_key_value_heads", json!(3)),
        ("llama", "sliding_window", json!(4)),
        ("llama", "partial_rotary_factor", json!(0.5)),
        ("llama", "partial_rotary_factor", json!(1.5)),
        ("llama", "rope_scaling", json!([1])),
        ("llama", "rope_interleaved", json!(true)),
        ("llama", "quantization_config", json!({"quant_method": "fp8"})),
        ("llama", "per_layer_config", json!({"0": {"rms_norm_eps": 1.0}})),
        ("llama", "pruned_heads", json!({"0": [1]})),
        ("llama", "is_encoder_decoder", json!(true)),
        ("mistral", "sliding_window", json!(0)),
        ("mistral", "sliding_window", json!(1)),
        ("mistral", "sliding_window", json!(8.5)),
        ("mistral", "layer_types", json!(["full_attention", "full_attention", "full_attention"])),
        ("qwen2", "layer_types", json!(["sliding_attention", "full_attention", "full_attention"])),
        ("qwen2", "layer_types", json!(["full_attention"])),
        ("qwen2", "layer_types", json!(["full_attention", "full_attention", "linear_attention"])),
        ("phi3", "partial_rotary_factor", json!(0.5)),
        ("phi3", "original_max_position_embeddings", json!(32)),
        ("gpt2", "n_head", json!(3)),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt2", "num_attention_heads", json!(2)),
        ("gpt2", "n_inner", json!(255)),
        ("gemma3", "use_bidirectional_attention", json!(true)),
        ("gemma3", "sliding_window", json!(null)),
        ("gemma3", "hidden_act", json!("relu")),
        ("gemma3", "query_pre_attn_scalar", json!(-24)),
        ("gemma3", "final_logit_softcapping", json!(0)),
        ("qwen3_next", "num_experts_per_tok", json!(0)),
        ("qwen3_next", "num_experts_per_tok", json!(7)),
        ("qwen3_next", "num_experts", json!(7)),
        ("qwen3_next", "num_experts", json!(5)),
        ("qwen3_next", "mlp_only_layers", json!([1])),
        ("qwen3_next", "mlp_only_layers", json!([9])),
        ("qwen3_next", "decoder_sparse_step", json!(2)),
        ("qwen3_next", "decoder_sparse_step", json!(0)),
        ("qwen3_next", "full_attention_interval", json!(2)),
        ("qwen3_next", "full_attention_interval", json!(9)),
        ("qwen3_next", "linear_num_key_heads", json!(3)),
        ("qwen3_next", "linear_num_key_heads", json!(4)),
        ("qwen3_next", "linear_conv_kernel_dim", json!(3)),
        ("qwen3_5", "attn_output_gate", json!(false)),
        ("qwen3_5", "layer_types", json!(["full_attention", "linear_attention", "linear_attention", "full_attention"])),
        ("qwen3_5", "linear_value_head_dim", json!(8)),
    ];
    for (fixture, key, value) in cases {
        names(&Draft::given(fixture).with(key, value.clone()).refusal(), &[key]);
    }
}

#[test]
fn rotary_objects_that_lie_are_refused_by_sub_key() {
    let yarn = |key: &str, value: Value| {
        let mut yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        yarn[key] = value;
        yarn
    };
    let llama3 = |key: &str, value: Value| {
        let mut dict = Draft::given("llama").config["rope_scaling"].clone();
        dict[key] = value;
        dict
    };
    let cases: &[(Value, &str)] = &[
        (json!({"rope_type": "linear"}), "factor"),
        (json!({"rope_type": "linear", "factor": 0}), "factor"),
        (json!({"rope_type": "linear", "factor": "2"}), "factor"),
        (json!({"rope_type": "linear", "factor": 2, "low_freq_factor": 1}), "low_freq_factor"),
        (json!({"rope_type": "linear", "type": "yarn", "factor": 2}), "rope_type"),
        (json!({"factor": 2}), "factor"),
        (json!({"rope_type": "dynamic", "factor": 0.5}), "factor"),
        (json!({"rope_type": "dynamic", "factor": 1e300}), "factor"),
        (json!({"rope_type": "mrope", "mrope_section": [1]}), "rope_type"),
        (json!({"type": "su", "factor": 2}), "type"),
        (json!({"rope_type": 3}), "rope_type"),
        (yarn("beta_fast", json!(-1)), "beta_fast"),
        (yarn("attention_factor", json!(-1)), "attention_factor"),
        (yarn("truncate", json!(1)), "truncate"),
        (yarn("original_max_position_embeddings", json!(1.5)), "original_max_position_embeddings"),
        (yarn("rope_theta", json!(77)), "rope_theta"),
        (llama3("low_freq_factor", json!(4)), "low_freq_factor"),
        (llama3("high_freq_factor", json!(null)), "high_freq_factor"),
        (json!({"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}), "short_factor"),
        (json!({"rope_type": "longrope", "long_factor": [1]}), "short_factor"),
    ];
    for (dict, sub_key) in cases {
        let message = Draft::given("llama").with("rope_scaling", dict.clone()).refusal();
        names(&message, &[sub_key]);
    }
    let long = |short: Value| json!({"type": "longrope", "short_factor": short, "long_factor": [1, 1, 1, 1, 1, 1]});
    for short in [json!([1, 1, 1, 1, 1]), json!([1, 1, 1, 1, 1, 0]), json!([1, 1, 1, 1, 1, "x"]), json!(1)] {
        names(&Draft::given("phi3").with("rope_scaling", long(short)).refusal(), &["rope_scaling.short_factor"]);
    }
    names(&Draft::given("phi3").with("rope_scaling", json!({"type": "linear", "factor": 2})).refusal(), &["type"]);
}

#[test]
fn a_value_in_two_places_must_be_one_value() {
    let both = Draft::given("llama");
    let scaling = both.config["rope_scaling"].clone();
    assert!(both.clone().with("rope_parameters", scaling.clone()).open().is_ok());
    let mut other = scaling.clone();
    other["factor"] = json!(9);
    names(&both.clone().with("rope_parameters", other).refusal(), &["rope_parameters", "rope_scaling"]);
    let mut theta = scaling.clone();
    theta["rope_theta"] = json!(500_000);
    assert!(both.clone().with("rope_scaling", theta.clone()).open().is_ok());
    theta["rope_theta"] = json!(500_001);
    names(&both.with("rope_scaling", theta).refusal(), &["rope_theta", "rope_scaling.rope_theta"]);
    let gpt2 = Draft::given("gpt2").with("hidden_size", 64).with("num_hidden_layers", 3);
    assert!(gpt2.clone().open().is_ok());
    names(&gpt2.with("hidden_size", 65).refusal(), &["n_embd", "hidden_size"]);
    // phi3: the length inside the object is lost in the reference framework when it stands there alone.
    names(
        &Draft::given("phi3").without("original_max_position_embeddings").refusal(),
        &["original_max_position_embeddings", "4096"],
    );
}

#[test]
fn both_config_styles_give_one_spec() {
    let old = Draft::given("llama");
    let mut dict = old.config["rope_scaling"].clone();
    dict["rope_theta"] = old.config["rope_theta"].clone();
    let new = old.clone().without("rope_scaling").without("rope_theta").with("rope_parameters", dict);
    assert_eq!(old.open().unwrap().spec, new.open().unwrap().spec);

    let new = Draft::given("gemma3");
    let old = new
        .clone()
        .without("rope_parameters")
        .without("layer_types")
        .without("_sliding_window_pattern")
        .with("rope_theta", 1_000_000)
        .with("rope_local_base_freq", 10_000)
        .with("rope_scaling", Value::Null)
        .with("sliding_window_pattern", 3);
    assert_eq!(old.open().unwrap().spec, new.open().unwrap().spec);
    let message = new.clone().without("layer_types").with("_sliding_window_pattern", 3).refusal();
    names(&message, &["_sliding_window_pattern", "sliding_window_pattern"]);
    let flat = json!({"rope_type": "default", "rope_theta": 9.0});
    names(&new.clone().with("rope_parameters", flat).refusal(), &["rope_parameters.rope_type"]);
    let lost = json!({"type": "linear", "factor": 8.0});
    names(&new.without("rope_parameters").with("rope_scaling", lost).refusal(), &["rope_scaling.type"]);

    let hybrid = Draft::given("qwen3_next");
    let kinds = json!(["linear_attention", "linear_attention", "linear_attention", "full_attention"]);
    let typed = hybrid.clone().without("full_attention_interval").with("layer_types", kinds);
    assert_eq!(hybrid.open().unwrap().spec, typed.open().unwrap().spec);
}

#[test]
fn windows_come_from_the_keys_that_rule() {
    let windows = |draft: &Draft| -> Vec<Option<usize>> {
        let spec = draft.open().unwrap().spec;
        let window = |layer: &wordline_ir::spec::Layer| match &layer.mixer {
            wordline_ir::spec::Mixer::Attention(attention) => attention.window,
            _ => None,
        };
        spec.layers.iter().map(window).collect()
    };
    let draft = Draft::given("qwen2").with("sliding_window", 6).with("max_window_layers", 1);
    assert_eq!(windows(&draft), [None; 3]);
    let on = draft.clone().with("use_sliding_window", true);
    assert_eq!(windows(&on), [None, Some(6), Some(6)]);
    let kinds = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    assert_eq!(windows(&on.clone().with("layer_types", kinds)), [Some(6), None, Some(6)]);
    assert_eq!(windows(&on.without("sliding_window")), [None, Some(4096), Some(4096)]);
    let absent = Draft::given("mistral").without("sliding_window");
    assert_eq!(windows(&absent), [Some(4096); 3]);
    assert_eq!(windows(&absent.with("sliding_window", Value::Null)), [None; 3]);
    let absent = Draft::given("gemma3").without("sliding_window");
    assert_eq!(windows(&absent), [Some(4096), Some(4096), None, Some(4096)]);
}

/// Values that break things.
fn nasty() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop::sample::select(vec![0i64, 1, 2, 3, 7, 64, -1, i64::MIN, 1 << 20, 1 << 28, (1 << 28) + 1, i64::MAX])
            .prop_map(Value::from),
        prop::sample::select(vec![0.0, -0.5, 0.5, 1.0, 1e-40, 1e30, f64::MAX, f64::MIN_POSITIVE]).prop_map(Value::from),
        prop::sample::select(vec!["", "silu", "yarn", "sliding_attention", "\u{0}", "é"]).prop_map(Value::from),
        prop::sample::select(vec!["[]", "[1]", "[\"full_attention\"]", "{}", "{\"rope_type\":\"yarn\"}", "[[[]]]"])
            .prop_map(|text| serde_json::from_str(text).unwrap()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// Whatever stands at any keys of any config, it is read or refused, quickly.
    #[test]
    fn no_config_panics(
        fixture in 0usize..31,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), nasty()), 1..4),
    ) {
        let all = configs();
        let (config, weights) = &all[fixture % all.len()];
        let mut config = config.clone();
        for (at, value) in edits {
            let mut paths = Vec::new();
            super::mutation::paths(&config, "", &mut paths);
            let path = &paths[at.index(paths.len())];
            *config.pointer_mut(path).unwrap() = value;
        }
        let _ = wordline::checkpoint::arch::load(&config, weights);
    }
}

/// Config and weights of every fixture, opened once.
fn configs() -> &'static [(Value, wordline::checkpoint::Weights)] {
    static ALL: std::sync::OnceLock<Vec<(Value, wordline::checkpoint::Weights)>> = std::sync::OnceLock::new();
    ALL.get_or_init(|| {
        let open = |path: std::path::PathBuf| {
            let checkpoint = wordline::checkpoint::Checkpoint::open(path).unwrap();
            (checkpoint.config, checkpoint.weights)
        };
        fixtures().into_iter().map(open).collect()
    })
}
