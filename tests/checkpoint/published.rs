//! Configs with the keys and sizes that published models have, over weight headers made for them: every key is
//! understood.

use super::support::names;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use wordline::checkpoint::arch::{ArchError, Loaded, TensorIndex, load};
use wordline_ir::spec::{Ffn, Mixer, RopeScaling};

/// Weight headers without a file behind them.
#[derive(Default)]
struct Headers(BTreeMap<String, Vec<usize>>);

impl TensorIndex for Headers {
    fn get(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.0.get(name).map(|shape| (Dtype::BF16, shape.as_slice()))
    }
    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
    fn same_values(&self, _: &str, _: &str) -> Option<bool> {
        None
    }
}

impl Headers {
    fn add(&mut self, name: String, shape: &[usize]) {
        assert!(self.0.insert(name, shape.to_vec()).is_none());
    }
}

/// Sizes of a rotary model.
struct Rotary {
    prefix: &'static str,
    hidden: usize,
    layers: usize,
    vocab: usize,
    heads: usize,
    kv: usize,
    dim: usize,
    inter: usize,
    head: bool,
}

impl Rotary {
    /// Headers with separate projections; `norms` are the names of a layer's norms over the residual stream.
    fn headers(&self, norms: &[&str], bias: bool, head_norms: bool) -> Headers {
        let mut headers = self.ends();
        for layer in 0..self.layers {
            let at = format!("{}layers.{layer}.", self.prefix);
            for (name, heads) in [("q", self.heads), ("k", self.kv), ("v", self.kv)] {
                headers.add(format!("{at}self_attn.{name}_proj.weight"), &[heads * self.dim, self.hidden]);
                if bias {
                    headers.add(format!("{at}self_attn.{name}_proj.bias"), &[heads * self.dim]);
                }
                if head_norms && name != "v" {
                    headers.add(format!("{at}self_attn.{name}_norm.weight"), &[self.dim]);
                }
            }
            headers.add(format!("{at}self_attn.o_proj.weight"), &[self.hidden, self.heads * self.dim]);
            headers.add(format!("{at}mlp.gate_proj.weight"), &[self.inter, self.hidden]);
            headers.add(format!("{at}mlp.up_proj.weight"), &[self.inter, self.hidden]);
            headers.add(format!("{at}mlp.down_proj.weight"), &[self.hidden, self.inter]);
            for norm in norms {
                headers.add(format!("{at}{norm}.weight"), &[self.hidden]);
            }
        }
        headers
    }

    fn ends(&self) -> Headers {
        let mut headers = Headers::default();
        headers.add(format!("{}embed_tokens.weight", self.prefix), &[self.vocab, self.hidden]);
        headers.add(format!("{}norm.weight", self.prefix), &[self.hidden]);
        if self.head {
            headers.add("lm_head.weight".to_owned(), &[self.vocab, self.hidden]);
        }
        headers
    }
}

const NORMS: &[&str] = &["input_layernorm", "post_attention_layernorm"];

fn read(config: &Value, headers: &Headers) -> Loaded {
    load(config, headers).unwrap_or_else(|error: ArchError| panic!("{error}"))
}

fn llama_70b() -> (Value, Headers) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 8192,
        "initializer_range": 0.02, "intermediate_size": 28672, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256
    });
    let sizes = Rotary {
        prefix: "model.",
        hidden: 8192,
        layers: 80,
        vocab: 128256,
        heads: 64,
        kv: 8,
        dim: 128,
        inter: 28672,
        head: true,
    };
    (config, sizes.headers(NORMS, false, false))
}

#[test]
fn llama_of_80_layers() {
    let (config, headers) = llama_70b();
    let spec = read(&config, &headers).spec;
    assert_eq!((spec.layers.len(), spec.tie, spec.max_pos), (80, false, 131_072));
}

#[test]
fn llama_with_keys_of_another_trainer() {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0,
        "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
        "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "transformers_version": "4.40.1",
        "use_cache": true, "vocab_size": 49152
    });
    let sizes = Rotary {
        prefix: "model.",
        hidden: 576,
        layers: 30,
        vocab: 49152,
        heads: 9,
        kv: 3,
        dim: 64,
        inter: 1536,
        head: false,
    };
    assert!(read(&config, &sizes.headers(NORMS, false, false)).spec.tie);
}

#[test]
fn mistral_with_a_window() {
    let config = json!({
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000
    });
    let sizes = Rotary {
        prefix: "model.",
        hidden: 4096,
        layers: 32,
        vocab: 32000,
        heads: 32,
        kv: 8,
        dim: 128,
        inter: 14336,
        head: true,
    };
    let spec = read(&config, &sizes.headers(NORMS, false, false)).spec;
    let Mixer::Attention(attention) = &spec.layers[31].mixer else { panic!() };
    assert_eq!((attention.window, attention.head_dim), (Some(4096), 128));
}

#[test]
fn qwen2_with_a_window_that_is_off() {
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
        "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2",
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
        "vocab_size": 152064
    });
    let sizes = Rotary {
        prefix: "model.",
        hidden: 3584,
        layers: 28,
        vocab: 152064,
        heads: 28,
        kv: 4,
        dim: 128,
        inter: 18944,
        head: true,
    };
    let spec = read(&config, &sizes.headers(NORMS, true, false)).spec;
    let Mixer::Attention(attention) = &spec.layers[0].mixer else { panic!() };
    assert!(attention.window.is_none() && attention.q.bias.is_some() && attention.o.bias.is_none());
}

#[test]
fn qwen3_whose_heads_are_wider_than_its_stream() {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936
    });
    let sizes = Rotary {
        prefix: "model.",
        hidden: 1024,
        layers: 28,
        vocab: 151936,
        heads: 16,
        kv: 8,
        dim: 128,
        inter: 3072,
        head: true,
    };
    // This one ships its head although it is tied; headers alone cannot tell, so the stored one is used.
    let spec = read(&config, &sizes.headers(NORMS, false, true)).spec;
    assert!(!spec.tie && spec.layers.len() == 28);
}

#[test]
fn qwen3_next_of_512_experts() {
    let config = json!({
        "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4,
        "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next",
        "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512,
        "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": false,
        "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.57.0.dev0", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936
    });
    let sizes = Rotary {
        prefix: "model.",
        hidden: 2048,
        layers: 48,
        vocab: 151936,
        heads: 16,
        kv: 2,
        dim: 256,
        inter: 5120,
        head: true,
    };
    let mut headers = sizes.ends();
    for layer in 0..48 {
        let at = format!("model.layers.{layer}.");
        for norm in NORMS {
            headers.add(format!("{at}{norm}.weight"), &[2048]);
        }
        if (layer + 1) % 4 == 0 {
            headers.add(format!("{at}self_attn.q_proj.weight"), &[16 * 2 * 256, 2048]);
            headers.add(format!("{at}self_attn.k_proj.weight"), &[2 * 256, 2048]);
            headers.add(format!("{at}self_attn.v_proj.weight"), &[2 * 256, 2048]);
            headers.add(format!("{at}self_attn.o_proj.weight"), &[2048, 16 * 256]);
            headers.add(format!("{at}self_attn.q_norm.weight"), &[256]);
            headers.add(format!("{at}self_attn.k_norm.weight"), &[256]);
        } else {
            headers.add(format!("{at}linear_attn.in_proj_qkvz.weight"), &[2 * 16 * 128 + 2 * 32 * 128, 2048]);
            headers.add(format!("{at}linear_attn.in_proj_ba.weight"), &[64, 2048]);
            headers.add(format!("{at}linear_attn.conv1d.weight"), &[2 * 16 * 128 + 32 * 128, 1, 4]);
            headers.add(format!("{at}linear_attn.A_log"), &[32]);
            headers.add(format!("{at}linear_attn.dt_bias"), &[32]);
            headers.add(format!("{at}linear_attn.norm.weight"), &[128]);
            headers.add(format!("{at}linear_attn.out_proj.weight"), &[2048, 32 * 128]);
        }
        headers.add(format!("{at}mlp.gate.weight"), &[512, 2048]);
        headers.add(format!("{at}mlp.shared_expert_gate.weight"), &[1, 2048]);
        let experts = (0..512).map(|expert| format!("experts.{expert}")).chain(["shared_expert".to_owned()]);
        for expert in experts {
            headers.add(format!("{at}mlp.{expert}.gate_proj.weight"), &[512, 2048]);
            headers.add(format!("{at}mlp.{expert}.up_proj.weight"), &[512, 2048]);
            headers.add(format!("{at}mlp.{expert}.down_proj.weight"), &[2048, 512]);
        }
    }
    headers.add("mtp.norm.weight".to_owned(), &[2048]);
    let spec = read(&config, &headers).spec;
    assert!(matches!(&spec.layers[47].ffn, Ffn::Moe(moe) if moe.gate_up.rows() == 512 * 1024));
    assert_eq!(spec.layers.iter().filter(|layer| matches!(layer.mixer, Mixer::Attention(_))).count(), 12);
}

#[test]
fn gpt2_as_first_published() {
    let config = json!({
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257
    });
    let mut headers = Headers::default();
    headers.add("wte.weight".to_owned(), &[50257, 768]);
    headers.add("wpe.weight".to_owned(), &[1024, 768]);
    for norm in ["ln_f"]
        .iter()
        .map(|norm| (*norm).to_owned())
        .chain((0..12).flat_map(|layer| [format!("h.{layer}.ln_1"), format!("h.{layer}.ln_2")]))
    {
        headers.add(format!("{norm}.weight"), &[768]);
        headers.add(format!("{norm}.bias"), &[768]);
    }
    for layer in 0..12 {
        for (name, rows, cols) in
            [("attn.c_attn", 768, 2304), ("attn.c_proj", 768, 768), ("mlp.c_fc", 768, 3072), ("mlp.c_proj", 3072, 768)]
        {
            headers.add(format!("h.{layer}.{name}.weight"), &[rows, cols]);
            headers.add(format!("h.{layer}.{name}.bias"), &[cols]);
        }
        headers.add(format!("h.{layer}.attn.bias"), &[1, 1, 1024, 1024]);
    }
    let spec = read(&config, &headers).spec;
    assert!(spec.tie && spec.layers.len() == 12 && spec.max_pos == 1024);
}

fn phi3_headers(sizes: &Rotary) -> Headers {
    let mut headers = sizes.ends();
    for layer in 0..sizes.layers {
        let at = format!("model.layers.{layer}.");
        let rows = (sizes.heads + 2 * sizes.kv) * sizes.dim;
        headers.add(format!("{at}self_attn.qkv_proj.weight"), &[rows, sizes.hidden]);
        headers.add(format!("{at}self_attn.o_proj.weight"), &[sizes.hidden, sizes.heads * sizes.dim]);
        headers.add(format!("{at}mlp.gate_up_proj.weight"), &[2 * sizes.inter, sizes.hidden]);
        headers.add(format!("{at}mlp.down_proj.weight"), &[sizes.hidden, sizes.inter]);
        for norm in NORMS {
            headers.add(format!("{at}{norm}.weight"), &[sizes.hidden]);
        }
    }
    headers
}

#[test]
fn phi3_of_long_context_and_its_successor() {
    let factors = |pairs: usize| vec![1.5; pairs];
    let mut config = json!({
        "_name_or_path": "somewhere", "architectures": ["Phi3ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 1,
        "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
        "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": factors(48), "short_factor": factors(48), "type": "longrope"},
        "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.40.2", "use_cache": true, "vocab_size": 32064
    });
    let sizes = Rotary {
        prefix: "model.",
        hidden: 3072,
        layers: 32,
        vocab: 32064,
        heads: 32,
        kv: 32,
        dim: 96,
        inter: 8192,
        head: true,
    };
    let spec = read(&config, &phi3_headers(&sizes)).spec;
    let Mixer::Attention(attention) = &spec.layers[0].mixer else { panic!() };
    let RopeScaling::LongRope { attention_factor, .. } = attention.rope.as_ref().unwrap().scaling else { panic!() };
    // sqrt(1 + ln 32 / ln 4096).
    assert!((attention_factor - 1.190_238).abs() < 1e-6, "{attention_factor}");
    for (key, value) in [
        ("partial_rotary_factor", json!(0.75)),
        ("full_attn_mod", json!(1)),
        ("interpolate_factor", json!(1)),
        ("lm_head_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("num_attention_heads", json!(24)),
        ("num_key_value_heads", json!(8)),
        ("vocab_size", json!(200_064)),
        ("tie_word_embeddings", json!(true)),
    ] {
        config[key] = value;
    }
    let sizes = Rotary { vocab: 200_064, heads: 24, kv: 8, dim: 128, head: false, ..sizes };
    let spec = read(&config, &phi3_headers(&sizes)).spec;
    let Mixer::Attention(attention) = &spec.layers[0].mixer else { panic!() };
    assert_eq!(attention.rope.as_ref().unwrap().rot, 96);
    config["full_attn_mod"] = json!(2);
    names(&load(&config, &phi3_headers(&sizes)).unwrap_err().to_string(), &["full_attn_mod"]);
}

const FOUR_NORMS: &[&str] =
    &["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"];

#[test]
fn gemma3_of_one_billion() {
    let config = json!({
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
        "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": true, "vocab_size": 262144
    });
    let sizes = Rotary {
        prefix: "model.",
        hidden: 1152,
        layers: 26,
        vocab: 262144,
        heads: 4,
        kv: 1,
        dim: 256,
        inter: 6912,
        head: false,
    };
    let spec = read(&config, &sizes.headers(FOUR_NORMS, false, true)).spec;
    assert_eq!(spec.embed_scale, 33.941_125);
    let full = |layer: &wordline_ir::spec::Layer| matches!(&layer.mixer, Mixer::Attention(a) if a.window.is_none());
    assert_eq!(spec.layers.iter().filter(|layer| full(layer)).count(), 4);
}

#[test]
fn gemma3_beside_a_vision_tower() {
    let config = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
        "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
        "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"}
    });
    let sizes = Rotary {
        prefix: "language_model.model.",
        hidden: 2560,
        layers: 34,
        vocab: 262208,
        heads: 8,
        kv: 4,
        dim: 256,
        inter: 10240,
        head: false,
    };
    let mut headers = sizes.headers(FOUR_NORMS, false, true);
    headers.add("vision_tower.vision_model.embeddings.patch_embedding.weight".to_owned(), &[1152, 3, 14, 14]);
    headers.add("multi_modal_projector.mm_input_projection_weight".to_owned(), &[1152, 2560]);
    let spec = read(&config, &headers).spec;
    let recipe = |layer: usize| match &spec.layers[layer].mixer {
        Mixer::Attention(attention) => (attention.window, attention.rope.clone().unwrap()),
        other => panic!("{other:?}"),
    };
    assert_eq!((recipe(0).0, recipe(0).1.theta), (Some(1024), 10_000.0));
    assert_eq!((recipe(5).0, recipe(5).1.scaling), (None, RopeScaling::Linear { factor: 8.0 }));
}

#[test]
fn qwen3_5_beside_a_vision_tower() {
    let kinds: Vec<&str> = (1..=8).map(|n| if n % 4 == 0 { "full_attention" } else { "linear_attention" }).collect();
    let config = json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 248056, "model_type": "qwen3_5",
        "text_config": {
            "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true, "dtype": "bfloat16",
            "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
            "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3584, "layer_types": kinds,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 16, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_5_text",
            "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false, "num_attention_heads": 8,
            "num_hidden_layers": 8, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
            "use_cache": true, "vocab_size": 248320,
            "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
                "rope_theta": 10000000, "partial_rotary_factor": 0.25}
        },
        "tie_word_embeddings": true, "transformers_version": "4.57.0.dev0", "video_token_id": 248057,
        "vision_config": {"depth": 12, "model_type": "qwen3_5"}, "vision_end_token_id": 248054,
        "vision_start_token_id": 248053
    });
    let sizes = Rotary {
        prefix: "model.language_model.",
        hidden: 1024,
        layers: 8,
        vocab: 248320,
        heads: 8,
        kv: 2,
        dim: 256,
        inter: 3584,
        head: false,
    };
    let mut headers = sizes.ends();
    for layer in 0..8 {
        let at = format!("model.language_model.layers.{layer}.");
        for norm in NORMS {
            headers.add(format!("{at}{norm}.weight"), &[1024]);
        }
        headers.add(format!("{at}mlp.gate_proj.weight"), &[3584, 1024]);
        headers.add(format!("{at}mlp.up_proj.weight"), &[3584, 1024]);
        headers.add(format!("{at}mlp.down_proj.weight"), &[1024, 3584]);
        if (layer + 1) % 4 == 0 {
            headers.add(format!("{at}self_attn.q_proj.weight"), &[8 * 2 * 256, 1024]);
            headers.add(format!("{at}self_attn.k_proj.weight"), &[512, 1024]);
            headers.add(format!("{at}self_attn.v_proj.weight"), &[512, 1024]);
            headers.add(format!("{at}self_attn.o_proj.weight"), &[1024, 2048]);
            headers.add(format!("{at}self_attn.q_norm.weight"), &[256]);
            headers.add(format!("{at}self_attn.k_norm.weight"), &[256]);
        } else {
            headers.add(format!("{at}linear_attn.in_proj_qkv.weight"), &[6144, 1024]);
            headers.add(format!("{at}linear_attn.in_proj_z.weight"), &[2048, 1024]);
            headers.add(format!("{at}linear_attn.in_proj_b.weight"), &[16, 1024]);
            headers.add(format!("{at}linear_attn.in_proj_a.weight"), &[16, 1024]);
            headers.add(format!("{at}linear_attn.conv1d.weight"), &[6144, 1, 4]);
            headers.add(format!("{at}linear_attn.A_log"), &[16]);
            headers.add(format!("{at}linear_attn.dt_bias"), &[16]);
            headers.add(format!("{at}linear_attn.norm.weight"), &[128]);
            headers.add(format!("{at}linear_attn.out_proj.weight"), &[1024, 2048]);
        }
    }
    headers.add("model.visual.blocks.0.attn.qkv.weight".to_owned(), &[3, 3]);
    headers.add("mtp.fc.weight".to_owned(), &[1024, 2048]);
    let loaded = read(&config, &headers);
    assert!(loaded.spec.tie && loaded.spec.max_pos == 262_144);
}
