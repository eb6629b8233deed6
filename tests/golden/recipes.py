"""The tiny checkpoints that `make_golden.py extra` builds: one entry a checkpoint, geometry chosen to be awkward.

Fields of an entry:
  cls      the framework's class                      config   arguments of its config class
  dtype    what the weight file stores                style    "v5" as the framework writes it, "v4" the older key names
  special  what the checkpoint is there to show       shard    largest shard in bytes, None for one file
  without  list of config changes, each taking one special thing away (written into config.json, same weights): the
           logits must move by at least FELT for each, so that an engine which overlooks the thing cannot pass
  inert    config changes that must NOT move the logits (the framework stores the key and does not use it)
  edit     name of a function in tiny.py that edits the written files (tensor names, stray tensors, mixed types)
  shared   how many first positions a whole-prompt prefill computes as single steps do; None for all. Tables that
           depend on the current length make a longer prefill differ by construction.
"""

FELT = 1e-2  # smallest change of a logit that counts as the special thing being felt


def llama(**kw):
    base = dict(vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    return base | kw


def qwen(**kw):
    return llama(bos_token_id=None, eos_token_id=255, rms_norm_eps=1e-6, **kw)


def rope(kind, theta, **kw):
    return dict(rope_type=kind, rope_theta=theta, **kw)


SHORT = [1.0, 1.05, 1.1, 1.2, 1.35, 1.5]
LONG = [1.2, 2.0, 3.0, 4.5, 6.0, 8.0]
YARN = rope("yarn", 500.0, factor=8.0, original_max_position_embeddings=32, beta_fast=3.0, beta_slow=0.5, mscale=1.5,
            mscale_all_dim=0.5, truncate=False)

RECIPES = {
    "llama-linear": dict(
        cls="LlamaForCausalLM", dtype="bfloat16", style="v4",
        config=llama(tie_word_embeddings=True, rope_parameters=rope("linear", 10000.0, factor=4.0)),
        special="linear rope scaling, factor 4, spelled with the old key `type`; head_dim 12, tied",
        edit="spell_type", without=[dict(rope_scaling=None)]),
    "llama-yarn": dict(
        cls="LlamaForCausalLM", dtype="bfloat16", style="v4",
        config=llama(hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True,
                     rope_parameters=rope("yarn", 500.0, factor=4.0, original_max_position_embeddings=32, beta_fast=2.5)),
        special="yarn, ramp from frequency 1 to 5 of 16, attention factor from the scale, beta_slow left to its default, "
                "multi-query (1 key head)",
        without=[dict(rope_scaling=dict(rope_type="linear", factor=4.0)), dict(rope_theta=400.0),
                 dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32))]),
    "llama-yarn-mscale": dict(
        cls="LlamaForCausalLM", dtype="float16", style="v5",
        config=llama(hidden_size=64, num_attention_heads=2, num_key_value_heads=2, head_dim=32, num_hidden_layers=2,
                     rope_parameters=YARN),
        special="yarn with mscale and mscale_all_dim (attention factor 1.1884), both betas, range not truncated; float16, untied",
        without=[dict(rope_parameters=YARN | dict(mscale=None)), dict(rope_parameters=YARN | dict(truncate=True)),
                 dict(rope_parameters=YARN | dict(beta_slow=1.0)), dict(rope_parameters=YARN | dict(beta_fast=32.0))]),
    "llama-llama3-v5": dict(
        cls="LlamaForCausalLM", dtype="bfloat16", style="v5",
        config=llama(head_dim=16, tie_word_embeddings=True,
                     rope_parameters=rope("llama3", 500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                          original_max_position_embeddings=32)),
        special="llama3 rope in the newer style (everything in rope_parameters), all three frequency bands; "
                "heads x head_dim 64 > hidden 48",
        without=[dict(rope_parameters=rope("default", 500.0))]),
    "llama-dynamic": dict(
        cls="LlamaForCausalLM", dtype="bfloat16", style="v4", shared=16,
        config=llama(head_dim=16, max_position_embeddings=16, rope_parameters=rope("dynamic", 10000.0, factor=3.0)),
        special="dynamic NTK past its length: max_position_embeddings 16, 28 positions. One token a step, position p is "
                "rotated with the base of length max(p + 1, 16); keys in the cache keep the rotation of their own step. "
                "The prefill noise is taken over the first 16 positions (a longer prefill turns all rows by its last length)",
        without=[dict(rope_scaling=None)]),
    "llama-bias": dict(
        cls="LlamaForCausalLM", dtype="float16", style="v4", shard=60_000,
        config=llama(attention_bias=True, mlp_bias=True, num_key_value_heads=1),
        special="biases on q, k, v, o, gate, up and down; float16, several shards, multi-query",
        without=[dict(attention_bias=False), dict(mlp_bias=False)]),
    "llama-wide-heads": dict(
        cls="LlamaForCausalLM", dtype="float32", style="v4",
        config=llama(head_dim=20, num_key_value_heads=4, num_hidden_layers=2),
        special="float32, untied, head_dim 20 while hidden / heads is 12, as many key heads as heads",
        without=[dict(rope_theta=500.0)]),
    "mistral-no-window": dict(
        cls="MistralForCausalLM", dtype="bfloat16", style="v5",
        config=llama(hidden_size=96, intermediate_size=112, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
                     sliding_window=None, rope_parameters=rope("default", 1e6)),
        special="sliding_window null, newer style, 6 heads on 3",
        without=[dict(sliding_window=9)]),
    "mistral-tied": dict(
        cls="MistralForCausalLM", dtype="bfloat16", style="v4",
        config=llama(num_hidden_layers=3, head_dim=20, sliding_window=6, tie_word_embeddings=True),
        special="window 6, tied embeddings, head_dim 20",
        without=[dict(sliding_window=7)]),
    "qwen2-window": dict(
        cls="Qwen2ForCausalLM", dtype="bfloat16", style="v4",
        config=qwen(num_hidden_layers=4, use_sliding_window=True, sliding_window=7, max_window_layers=2,
                    tie_word_embeddings=True, rope_parameters=rope("default", 1e6)),
        special="use_sliding_window with max_window_layers 2 of 4 and no layer_types: layers 0 and 1 see all, 2 and 3 a window of 7",
        edit="drop_layer_types", without=[dict(max_window_layers=1), dict(use_sliding_window=False), dict(sliding_window=8)]),
    "qwen2-layer-types": dict(
        cls="Qwen2ForCausalLM", dtype="bfloat16", style="v5",
        config=qwen(num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=3,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                    rope_parameters=rope("default", 1e6)),
        special="layer_types alternate against max_window_layers (layer_types win), window 5, untied",
        without=[dict(layer_types=["full_attention"] * 3), dict(sliding_window=6)], inert=[dict(max_window_layers=0)]),
    "qwen3-tied": dict(
        cls="Qwen3ForCausalLM", dtype="bfloat16", style="v4",
        config=qwen(head_dim=20, attention_bias=True, tie_word_embeddings=True,
                    rope_parameters=rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=32, attention_factor=1.25)),
        special="tied, biases on q, k, v, o before the head norms, yarn with an explicit attention_factor, head_dim 20",
        without=[dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
                 dict(attention_bias=False)]),
    "qwen3_5-nested": dict(
        cls="Qwen3_5ForConditionalGeneration", dtype="bfloat16", style="v5", edit="qwen3_5_extras",
        config=dict(
            text_config=qwen(num_hidden_layers=4, head_dim=24, intermediate_size=72, linear_num_key_heads=2,
                             linear_num_value_heads=6, linear_key_head_dim=12, linear_value_head_dim=8,
                             tie_word_embeddings=True,
                             rope_parameters=rope("default", 1e6, partial_rotary_factor=0.5, mrope_section=[2, 2, 2],
                                                  mrope_interleaved=True)),
            vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4,
                               out_hidden_size=48, num_position_embeddings=16),
            image_token_id=250, video_token_id=251, vision_start_token_id=252, vision_end_token_id=253,
            tie_word_embeddings=True),
        special="nested config (text_config, vision_config), tensors under model.language_model., a vision tower and "
                "mtp. tensors to skip, A_log and the gated norm's weight in float32 among bfloat16, 3 value heads a key head",
        without=[]),
    "qwen3_next-mixed": dict(
        cls="Qwen3NextForCausalLM", dtype="bfloat16", style="v4",
        config=qwen(num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, head_dim=16, intermediate_size=56,
                    layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
                    linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=12, linear_value_head_dim=20,
                    linear_conv_kernel_dim=3, decoder_sparse_step=2, mlp_only_layers=[3], num_experts=5,
                    num_experts_per_tok=3, norm_topk_prob=False, moe_intermediate_size=24,
                    shared_expert_intermediate_size=20, rope_parameters=rope("default", 1e6, partial_rotary_factor=0.5)),
        special="counts that are no powers of two, dense layers 0, 2 (decoder_sparse_step 2) and 3 (mlp_only_layers), "
                "MoE layer 1 with 3 of 5 experts not renormalised, conv of 3 taps, partial rotary 0.5, full_attention_interval 2",
        edit="interval_2", without=[dict(norm_topk_prob=True), dict(num_experts_per_tok=2), dict(partial_rotary_factor=0.25)]),
    "qwen3_next-square": dict(
        cls="Qwen3NextForCausalLM", dtype="bfloat16", style="v5",
        config=qwen(num_hidden_layers=2, head_dim=16, tie_word_embeddings=True, attention_bias=True,
                    layer_types=["full_attention", "linear_attention"], linear_num_key_heads=3, linear_num_value_heads=3,
                    linear_key_head_dim=16, linear_value_head_dim=16, num_experts=7, num_experts_per_tok=2,
                    moe_intermediate_size=16, shared_expert_intermediate_size=12,
                    rope_parameters=rope("default", 1e4, partial_rotary_factor=1.0)),
        special="attention layer first, as many value heads as key heads, every layer MoE, tied, attention biases, "
                "full rotary, newer style",
        without=[dict(num_experts_per_tok=3), dict(norm_topk_prob=False), dict(attention_bias=False)]),
    "qwen3_moe-mixed": dict(
        cls="Qwen3MoeForCausalLM", dtype="bfloat16", style="v4",
        config=qwen(num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=12, intermediate_size=40,
                    mlp_only_layers=[1], num_experts=5, num_experts_per_tok=2, norm_topk_prob=True,
                    moe_intermediate_size=24, rope_parameters=rope("default", 1e6)),
        special="a mixture without a shared expert, 2 of 5 experts renormalised, layer 1 dense, heads x head_dim 72 > hidden 48",
        without=[dict(norm_topk_prob=False), dict(num_experts_per_tok=3), dict(rope_theta=1e4)]),
    "qwen3_moe-bias": dict(
        cls="Qwen3MoeForCausalLM", dtype="float16", style="v5",
        config=qwen(num_hidden_layers=2, head_dim=20, attention_bias=True, num_experts=6,
                    num_experts_per_tok=3, moe_intermediate_size=20, rope_parameters=rope("default", 500.0)),
        special="3 of 6 experts, not renormalised, every layer a mixture, biases on q, k, v and o, float16, newer style",
        without=[dict(num_experts_per_tok=2), dict(attention_bias=False)]),
    "gpt2-prefix": dict(
        cls="GPT2LMHeadModel", dtype="bfloat16", style="v4",
        config=dict(vocab_size=256, n_positions=40, n_embd=48, n_layer=3, n_head=3, bos_token_id=255, eos_token_id=255,
                    scale_attn_by_inverse_layer_idx=True),
        special="tensor names with the `transformer.` prefix, scores scaled by 1 / (layer + 1), 3 heads",
        without=[dict(scale_attn_by_inverse_layer_idx=False)]),
    "gpt2-buffers": dict(
        cls="GPT2LMHeadModel", dtype="float32", style="v4", edit="gpt2_legacy",
        config=dict(vocab_size=200, n_positions=32, n_embd=40, n_layer=2, n_head=2, bos_token_id=199, eos_token_id=199,
                    activation_function="relu", scale_attn_weights=False),
        special="no prefix, old attn.bias and attn.masked_bias buffers to skip, relu, scale_attn_weights false",
        without=[dict(scale_attn_weights=True), dict(activation_function="gelu_new")]),
    "gpt2-gelu": dict(
        cls="GPT2LMHeadModel", dtype="float16", style="v5",
        config=dict(vocab_size=256, n_positions=64, n_embd=48, n_layer=2, n_head=4, n_inner=80, activation_function="gelu",
                    tie_word_embeddings=False, bos_token_id=255, eos_token_id=255, layer_norm_epsilon=1e-3),
        special="n_inner 80 (not 4 x 48), erf gelu, untied head, epsilon 1e-3",
        without=[dict(activation_function="relu"), dict(layer_norm_epsilon=1e-5)]),
    "phi3-long": dict(
        cls="Phi3ForCausalLM", dtype="float16", style="v4", shared=16, edit="spell_type",
        config=llama(pad_token_id=0, num_key_value_heads=2, max_position_embeddings=64,
                     original_max_position_embeddings=16,
                     rope_parameters=rope("longrope", 10000.0, original_max_position_embeddings=16,
                                          short_factor=SHORT, long_factor=LONG)),
        special="longrope past its original length 16, 28 positions. The framework rebuilds the table each step from the current "
                "length: position p < 16 takes the short factors, p >= 16 the long ones, and the keys of the first 16 "
                "positions keep their short-factor rotation in the cache. The attention factor 1.2247 applies throughout. "
                "The prefill noise is taken over the first 16 positions (a longer prefill turns all rows by the long factors)",
        without=[dict(rope_scaling=dict(rope_type="longrope", short_factor=SHORT, long_factor=SHORT)),
                 dict(rope_scaling=dict(rope_type="longrope", short_factor=LONG, long_factor=LONG)),
                 dict(rope_scaling=dict(rope_type="longrope", short_factor=SHORT, long_factor=LONG, attention_factor=1.0))]),
    "phi3-window": dict(
        cls="Phi3ForCausalLM", dtype="bfloat16", style="v4",
        config=llama(pad_token_id=0, num_hidden_layers=3, sliding_window=6, tie_word_embeddings=True),
        special="sliding window 6 in every layer, no rope scaling, tied",
        without=[dict(sliding_window=None)]),
    "phi3-plain": dict(
        cls="Phi3ForCausalLM", dtype="bfloat16", style="v5",
        config=llama(pad_token_id=0, hidden_size=64, num_key_value_heads=1,
                     rope_parameters=rope("default", 1e4, partial_rotary_factor=0.5)),
        special="no rope scaling, partial rotary 0.5, 4 heads on 1, newer style",
        without=[dict(rope_parameters=rope("default", 1e4, partial_rotary_factor=1.0))]),
    "gemma3-softcap": dict(
        cls="Gemma3ForCausalLM", dtype="bfloat16", style="v5",
        config=llama(hidden_size=40, num_attention_heads=2, num_key_value_heads=1, head_dim=20, num_hidden_layers=3,
                     rms_norm_eps=1e-6, bos_token_id=2, eos_token_id=1, pad_token_id=0, sliding_window=5,
                     query_pre_attn_scalar=50, final_logit_softcapping=10.0, attn_logit_softcapping=2.0,
                     layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        special="final_logit_softcapping 10, query_pre_attn_scalar 50 with head_dim 20, window 5. attn_logit_softcapping is "
                "set to 2 and this class of the framework does not use it: the logits are those without it",
        without=[dict(final_logit_softcapping=None), dict(query_pre_attn_scalar=20), dict(sliding_window=6)], inert=[dict(attn_logit_softcapping=None)]),
    "gemma3-v4": dict(
        cls="Gemma3ForCausalLM", dtype="bfloat16", style="v4", edit="gemma3_v4",
        config=llama(num_attention_heads=6, num_key_value_heads=2, head_dim=12, num_hidden_layers=4, rms_norm_eps=1e-6,
                     bos_token_id=2, eos_token_id=1, pad_token_id=0, sliding_window=7, query_pre_attn_scalar=12,
                     layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
                     rope_parameters=dict(full_attention=rope("linear", 50000.0, factor=8.0),
                                          sliding_attention=rope("default", 2000.0))),
        special="older style: rope_theta, rope_local_base_freq, rope_scaling linear factor 8 (global layers only), "
                "sliding_window_pattern 3, no layer_types; attention layers s s f s",
        without=[dict(rope_scaling=None), dict(rope_theta=1e6), dict(rope_local_base_freq=1e4),
                 dict(sliding_window_pattern=2), dict(sliding_window=6)]),
    "gemma3-untied": dict(
        cls="Gemma3ForCausalLM", dtype="bfloat16", style="v5",
        config=llama(num_attention_heads=3, num_key_value_heads=3, head_dim=24, num_hidden_layers=2, rms_norm_eps=1e-6,
                     bos_token_id=2, eos_token_id=1, pad_token_id=0, sliding_window=4096, query_pre_attn_scalar=24,
                     hidden_activation="silu", attention_bias=True, tie_word_embeddings=False,
                     layer_types=["full_attention", "sliding_attention"],
                     rope_parameters=dict(full_attention=rope("default", 1e5), sliding_attention=rope("default", 1e3))),
        special="untied, attention biases, silu instead of gelu, window far beyond the context, global layer first",
        without=[dict(hidden_activation="gelu_pytorch_tanh"), dict(attention_bias=False)]),
}
