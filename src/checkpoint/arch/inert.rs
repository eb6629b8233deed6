//! The config keys that change no logit, each with its reason, and those that are accepted with one value only.
//!
//! A key that is on neither list and that the family does not read is refused. The tables are printed into
//! docs/checkpoint.md.

use serde_json::Value;

/// A key that changes no logit, whatever its value.
#[derive(Clone, Copy, Debug)]
pub struct Inert {
    /// The key.
    pub key: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// A key that is accepted with one value only, because any other would change the arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    /// The key.
    pub key: &'static str,
    /// The accepted value, for people.
    pub shown: &'static str,
    /// What another value would mean.
    pub reason: &'static str,
    /// Whether a value is the accepted one.
    pub accepts: fn(&Value) -> bool,
}

const fn inert(key: &'static str, reason: &'static str) -> Inert {
    Inert { key, reason }
}

/// Values and scales are two tensors of names that say so, and both are read.
fn mxfp4(value: &Value) -> bool {
    value.is_null() || value.get("quant_method").and_then(Value::as_str) == Some("mxfp4")
}

fn off(value: &Value) -> bool {
    value.is_null() || *value == Value::Bool(false)
}

fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn empty(value: &Value) -> bool {
    value.is_null()
        || value.as_object().is_some_and(|map| map.is_empty())
        || value.as_array().is_some_and(Vec::is_empty)
}

const STORED: &str = "weights are widened from the type in which the file stores them";
const SAVED: &str = "says which program saved the model, and from where";
const IDS: &str = "a token id: the tokenizer and the sampler read it, no logit depends on it";
const TRAINING: &str = "used in training only";
const OUTPUTS: &str = "says what the framework's call returns besides logits";
const CACHE: &str = "how the framework keeps its cache; the engine's cache is its own and changes no logit";
const BACKEND: &str = "which of the framework's equivalent kernels runs";
const CLASSIFIER: &str = "belongs to a classification head, which a language model does not have";
const SAMPLING: &str = "a sampling default; generation_config.json rules";
const EVIDENCE: &str = "the weight file decides which projections have a bias";
const LOADING: &str = "tells the framework how to load code or a tokenizer";
const CHUNKS: &str = "splits a product into pieces with the same sum";

/// Inert for every family.
pub const COMMON: &[Inert] = &[
    inert("dtype", STORED),
    inert("torch_dtype", STORED),
    inert("transformers_version", SAVED),
    inert("_name_or_path", SAVED),
    inert("name_or_path", SAVED),
    inert("_model_name_or_path", SAVED),
    inert("_commit_hash", SAVED),
    inert("unsloth_version", SAVED),
    inert("unsloth_fixed", SAVED),
    inert("transformers.js_config", "settings of another runtime"),
    inert("bos_token_id", IDS),
    inert("eos_token_id", IDS),
    inert("pad_token_id", IDS),
    inert("unk_token_id", IDS),
    inert("sep_token_id", IDS),
    inert("cls_token_id", IDS),
    inert("mask_token_id", IDS),
    inert("decoder_start_token_id", IDS),
    inert("forced_bos_token_id", IDS),
    inert("forced_eos_token_id", IDS),
    inert("initializer_range", TRAINING),
    inert("initializer_factor", TRAINING),
    inert("attention_dropout", TRAINING),
    inert("hidden_dropout", TRAINING),
    inert("classifier_dropout", CLASSIFIER),
    inert("gradient_checkpointing", TRAINING),
    inert("neftune_noise_alpha", TRAINING),
    inert("use_cache", CACHE),
    inert("cache_implementation", CACHE),
    inert("attn_implementation", BACKEND),
    inert("_attn_implementation", BACKEND),
    inert("_attn_implementation_autoset", BACKEND),
    inert("experts_implementation", BACKEND),
    inert("_experts_implementation", BACKEND),
    inert("output_attentions", OUTPUTS),
    inert("output_hidden_states", OUTPUTS),
    inert("return_dict", OUTPUTS),
    inert("use_return_dict", OUTPUTS),
    inert("torchscript", OUTPUTS),
    inert("is_decoder", "marks the decoder of a pair; a language model is one by itself"),
    inert("tie_encoder_decoder", "speaks of an encoder, which is not there"),
    inert("chunk_size_feed_forward", CHUNKS),
    inert("pretraining_tp", CHUNKS),
    inert("attention_bias", EVIDENCE),
    inert("mlp_bias", EVIDENCE),
    inert("qkv_bias", EVIDENCE),
    inert("id2label", CLASSIFIER),
    inert("label2id", CLASSIFIER),
    inert("num_labels", CLASSIFIER),
    inert("problem_type", CLASSIFIER),
    inert("finetuning_task", CLASSIFIER),
    inert("task_specific_params", SAMPLING),
    inert("prefix", SAMPLING),
    inert("auto_map", LOADING),
    inert("custom_pipelines", LOADING),
    inert("tokenizer_class", LOADING),
    inert("max_length", SAMPLING),
    inert("min_length", SAMPLING),
    inert("do_sample", SAMPLING),
    inert("temperature", SAMPLING),
    inert("top_k", SAMPLING),
    inert("top_p", SAMPLING),
    inert("typical_p", SAMPLING),
    inert("repetition_penalty", SAMPLING),
    inert("length_penalty", SAMPLING),
    inert("no_repeat_ngram_size", SAMPLING),
    inert("encoder_no_repeat_ngram_size", SAMPLING),
    inert("num_beams", SAMPLING),
    inert("num_beam_groups", SAMPLING),
    inert("num_return_sequences", SAMPLING),
    inert("early_stopping", SAMPLING),
    inert("diversity_penalty", SAMPLING),
    inert("bad_words_ids", SAMPLING),
    inert("suppress_tokens", SAMPLING),
    inert("begin_suppress_tokens", SAMPLING),
    inert("exponential_decay_length_penalty", SAMPLING),
    inert("remove_invalid_values", SAMPLING),
    inert("return_dict_in_generate", SAMPLING),
    inert("output_scores", SAMPLING),
];

/// Accepted with one value only, for every family.
pub const FIXED: &[Fixed] = &[
    Fixed { key: "is_encoder_decoder", shown: "false", reason: "an encoder would feed the decoder", accepts: off },
    Fixed { key: "add_cross_attention", shown: "false", reason: "an encoder would feed the decoder", accepts: off },
    Fixed {
        key: "cross_attention_hidden_size",
        shown: "null",
        reason: "an encoder would feed the decoder",
        accepts: Value::is_null,
    },
    Fixed {
        key: "quantization_config",
        shown: "null, or the method mxfp4",
        reason: "the stored values would need scales that lie in other tensors; save the model unquantised",
        accepts: mxfp4,
    },
    Fixed {
        key: "compression_config",
        shown: "null",
        reason: "the stored values would need scales that lie in other tensors; save the model unquantised",
        accepts: Value::is_null,
    },
    Fixed { key: "per_layer_config", shown: "null", reason: "layers would differ in their sizes", accepts: empty },
    Fixed { key: "pruned_heads", shown: "empty", reason: "heads would be missing from some layers", accepts: empty },
];

/// Inert for mixtures of experts.
pub const MIXTURE: &[Inert] = &[inert("output_router_logits", OUTPUTS), inert("router_aux_loss_coef", TRAINING)];

/// Inert for the llama family.
pub const LLAMA: &[Inert] = &[inert("is_llama_config", SAVED)];

/// Accepted with one value only in the llama family.
pub const LLAMA_FIXED: &[Fixed] = &[
    Fixed {
        key: "rope_interleaved",
        shown: "false",
        reason: "the framework's llama rotates the two halves of a head, never neighbours",
        accepts: off,
    },
    Fixed {
        key: "sliding_window",
        shown: "null",
        reason: "this family attends to every position",
        accepts: Value::is_null,
    },
];

/// Inert for the gpt2 family.
pub const GPT2: &[Inert] = &[
    inert("attn_pdrop", TRAINING),
    inert("embd_pdrop", TRAINING),
    inert("resid_pdrop", TRAINING),
    inert("summary_activation", CLASSIFIER),
    inert("summary_first_dropout", CLASSIFIER),
    inert("summary_proj_to_labels", CLASSIFIER),
    inert("summary_type", CLASSIFIER),
    inert("summary_use_proj", CLASSIFIER),
    inert("n_ctx", "the old name of n_positions, which rules"),
    inert("reorder_and_upcast_attn", "changes the order of roundings in half precision; here all is f32 or exact"),
];

/// Inert for the phi3 family.
pub const PHI3: &[Inert] =
    &[inert("embd_pdrop", TRAINING), inert("resid_pdrop", TRAINING), inert("lm_head_bias", EVIDENCE)];

/// Accepted with one value only in the phi3 family.
pub const PHI3_FIXED: &[Fixed] = &[
    Fixed { key: "full_attn_mod", shown: "1", reason: "only some layers would see all positions", accepts: one },
    Fixed { key: "interpolate_factor", shown: "1", reason: "positions would be stretched", accepts: one },
];

/// Accepted with one value only in the qwen2 family.
pub const QWEN2_FIXED: &[Fixed] = &[Fixed {
    key: "use_mrope",
    shown: "false",
    reason: "positions on several axes would turn different bands of a head",
    accepts: off,
}];

/// Inert for families without a window.
pub const UNWINDOWED: &[Inert] = &[
    inert("sliding_window", "no layer of this family slides"),
    inert("max_window_layers", "no layer of this family slides"),
];

/// Accepted with one value only in families without a window.
pub const UNWINDOWED_FIXED: &[Fixed] = &[Fixed {
    key: "use_sliding_window",
    shown: "false",
    reason: "attention would see a window only, which the family has no code for",
    accepts: off,
}];

/// Inert for the qwen3_5 family.
pub const QWEN3_5: &[Inert] = &[
    inert("mtp_num_hidden_layers", "the extra layers that predict several tokens ahead are skipped"),
    inert("mtp_use_dedicated_embeddings", "the extra layers that predict several tokens ahead are skipped"),
    inert("mamba_ssm_dtype", "the type in which the framework keeps the memory; here it is f32"),
    inert("mlp_only_layers", "every layer's network is dense"),
];

/// Inert for the gemma3 family.
pub const GEMMA3: &[Inert] = &[inert(
    "attn_logit_softcapping",
    "the family normalises queries and keys instead: its attention applies no cap, in the reference framework either",
)];

/// Accepted with one value only in the gemma3 family.
pub const GEMMA3_FIXED: &[Fixed] = &[Fixed {
    key: "use_bidirectional_attention",
    shown: "false",
    reason: "rows would see later positions",
    accepts: off,
}];

/// Inert beside a nested `text_config`.
pub const NESTED: &[Inert] = &[
    inert("vision_config", "the vision tower is skipped: input is text"),
    inert("image_token_id", IDS),
    inert("image_token_index", IDS),
    inert("video_token_id", IDS),
    inert("vision_start_token_id", IDS),
    inert("vision_end_token_id", IDS),
    inert("boi_token_id", IDS),
    inert("boi_token_index", IDS),
    inert("eoi_token_id", IDS),
    inert("eoi_token_index", IDS),
    inert("mm_tokens_per_image", "the vision tower is skipped: input is text"),
    inert("language_model_only", "the vision tower is skipped: input is text"),
];
