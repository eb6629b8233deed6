//! `Published`: the tensors that a family's published checkpoints of a config hold, from the config alone.
//!
//! It stands where a weight file would, so that a config alone gives a `Spec` through the same reader. What a weight
//! file would show by holding a tensor or not, the config's own keys say here: `attention_bias`, `mlp_bias` and
//! `tie_word_embeddings`, with the defaults of the reference framework. A weight file may say otherwise, and rules.

use super::error::ArchError;
use super::keys::Keys;
use super::tensors::TensorIndex;
use super::{Family, family};
use safetensors::Dtype;
use serde_json::Value;
use std::collections::BTreeMap;

/// Most tensors that a config may ask for. A program holds no more either.
const TENSORS: usize = 1 << 20;

/// Tensor names and shapes of a published checkpoint.
#[derive(Debug, Default)]
pub struct Published(BTreeMap<String, Vec<usize>>);

impl TensorIndex for Published {
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

/// How the published checkpoints of a family are laid out.
pub(super) enum Layout {
    /// Rotary layers.
    Rotary(Rotary),
    /// Learned positions, q, k and v in one matrix, everything with a bias.
    Learned,
}

/// What tells one rotary family's files from another's.
pub(super) struct Rotary {
    /// Prefix of names beside a nested `text_config`.
    nested: &'static str,
    /// Query, key and value projections have biases whatever the keys say.
    qkv_bias: bool,
    /// Query, key and value rows, and gate and up rows, lie in one tensor.
    fused: bool,
    /// Each query and key head has a norm.
    head_norms: bool,
    /// Head dimension when the key is absent; `None`: hidden_size / num_attention_heads.
    head_dim: Option<usize>,
    /// Query and key heads when their keys are absent.
    heads: (Option<usize>, Option<usize>),
    /// `vocab_size` when the key is absent.
    vocab: Option<usize>,
    /// Norms before and after the network, beside the one before it.
    around: &'static [&'static str],
    /// The head is the embedding when no key says otherwise.
    tied: bool,
    /// DeltaNet layers between the attention layers.
    delta: Option<Fusion>,
    /// Networks are mixtures.
    mixture: bool,
    /// Each mixture has an expert that every row takes.
    shared: bool,
}

/// Whether a DeltaNet's projections are stored by kind, or in two tensors grouped by key head.
pub(super) enum Fusion {
    Split,
    Grouped,
}

impl Rotary {
    const PLAIN: Rotary = Rotary {
        nested: "model.",
        qkv_bias: false,
        fused: false,
        head_norms: false,
        head_dim: None,
        heads: (None, None),
        vocab: None,
        around: &[],
        tied: false,
        delta: None,
        mixture: false,
        shared: false,
    };
}

pub(super) const PLAIN: Layout = Layout::Rotary(Rotary::PLAIN);
pub(super) const QKV_BIAS: Layout = Layout::Rotary(Rotary { qkv_bias: true, heads: (None, Some(32)), ..Rotary::PLAIN });
pub(super) const GROUPED_HEADS: Layout = Layout::Rotary(Rotary { heads: (None, Some(8)), ..Rotary::PLAIN });
pub(super) const FUSED: Layout = Layout::Rotary(Rotary { fused: true, ..Rotary::PLAIN });
const HEAD_NORMS: Rotary = Rotary { head_norms: true, head_dim: Some(128), heads: (None, Some(32)), ..Rotary::PLAIN };
pub(super) const NORMED_HEADS: Layout = Layout::Rotary(HEAD_NORMS);
pub(super) const MIXTURES: Layout =
    Layout::Rotary(Rotary { mixture: true, head_dim: None, heads: (None, Some(4)), ..HEAD_NORMS });
pub(super) const FOUR_NORMS: Layout = Layout::Rotary(Rotary {
    nested: "language_model.model.",
    head_dim: Some(256),
    heads: (Some(8), Some(4)),
    vocab: Some(262_208),
    around: &["pre_feedforward_layernorm", "post_feedforward_layernorm"],
    tied: true,
    ..HEAD_NORMS
});
const HYBRID: Rotary = Rotary {
    nested: "model.language_model.",
    head_dim: Some(256),
    heads: (None, Some(4)),
    delta: Some(Fusion::Split),
    ..HEAD_NORMS
};
pub(super) const HYBRID_DENSE: Layout = Layout::Rotary(HYBRID);
pub(super) const HYBRID_MIXTURES: Layout = Layout::Rotary(Rotary {
    heads: (None, Some(2)),
    delta: Some(Fusion::Grouped),
    mixture: true,
    shared: true,
    ..HYBRID
});

impl Published {
    /// The tensors of a published checkpoint of this config.
    ///
    /// # Errors
    /// An architecture that is not known; a size that is missing or impossible, by key.
    pub fn of(config: &Value) -> Result<Self, ArchError> {
        let map = config.as_object().ok_or(ArchError::NotAnObject { source: None })?;
        let outer = Keys::new("", map);
        let (Family { files, .. }, nested) = family(&outer)?;
        let text = if nested { outer.object("text_config")? } else { None };
        let keys = match &text {
            Some(text) => text,
            None if nested => return Err(ArchError::MissingKey { key: "text_config".to_owned() }),
            None => &outer,
        };
        let mut tensors = Tensors { keys, prefix: "", held: Self::default() };
        match files {
            Layout::Learned => tensors.learned()?,
            Layout::Rotary(family) => {
                tensors.prefix = if nested { family.nested } else { "model." };
                tensors.rotary(family, &outer)?;
            }
        }
        Ok(tensors.held)
    }
}

/// The tensors while they are listed.
struct Tensors<'a> {
    keys: &'a Keys<'a>,
    prefix: &'static str,
    held: Published,
}

impl Tensors<'_> {
    fn add(&mut self, rest: &str, shape: &[usize]) {
        self.held.0.insert(format!("{}{rest}", self.prefix), shape.to_vec());
    }

    /// A projection (out, in), and its bias.
    fn linear(&mut self, rest: &str, out: usize, inner: usize, bias: bool) {
        self.add(&format!("{rest}.weight"), &[out, inner]);
        if bias {
            self.add(&format!("{rest}.bias"), &[out]);
        }
    }

    fn size(&self, key: &str, default: usize) -> Result<usize, ArchError> {
        Ok(self.keys.size(key)?.unwrap_or(default))
    }

    fn need(&self, key: &str, default: Option<usize>) -> Result<usize, ArchError> {
        match default {
            Some(default) => self.size(key, default),
            None => self.keys.need(key),
        }
    }

    /// The number of layers, of at most `each` tensors each.
    fn layers(&self, key: &str, each: usize) -> Result<usize, ArchError> {
        let layers = self.keys.need(key)?;
        if layers.saturating_mul(each) > TENSORS {
            let expected = format!("possible: its layers would hold more than {TENSORS} tensors");
            return Err(self.keys.bad(key, expected));
        }
        Ok(layers)
    }

    fn rotary(&mut self, family: &Rotary, outer: &Keys<'_>) -> Result<(), ArchError> {
        let keys = self.keys;
        let hidden = keys.need("hidden_size")?;
        let experts = if family.mixture { self.experts()? } else { 0 };
        let layers = self.layers("num_hidden_layers", 24_usize.saturating_add(experts.saturating_mul(3)))?;
        let vocab = self.need("vocab_size", family.vocab)?;
        self.add("embed_tokens.weight", &[vocab, hidden]);
        self.add("norm.weight", &[hidden]);
        let tie = "tie_word_embeddings";
        let tied = match keys.get(tie)? {
            Some(tied) => tied,
            None => outer.get(tie)?.unwrap_or(family.tied),
        };
        if !tied {
            self.held.0.insert("lm_head.weight".to_owned(), vec![vocab, hidden]);
            if keys.or("lm_head_bias", false)? {
                self.held.0.insert("lm_head.bias".to_owned(), vec![vocab]);
            }
        }
        let delta = self.delta_layers(family, layers)?;
        let only = keys.or("mlp_only_layers", Vec::<usize>::new())?;
        let step = self.size("decoder_sparse_step", 1)?;
        for layer in 0..layers {
            let at = format!("layers.{layer}");
            for norm in ["input_layernorm", "post_attention_layernorm"].iter().chain(family.around) {
                self.add(&format!("{at}.{norm}.weight"), &[hidden]);
            }
            match &family.delta {
                Some(fusion) if delta.get(layer) == Some(&true) => {
                    self.delta(&format!("{at}.linear_attn"), fusion, hidden)?
                }
                _ => self.attention(&format!("{at}.self_attn"), family, hidden)?,
            }
            let at = format!("{at}.mlp");
            if experts > 0 && !only.contains(&layer) && (layer + 1).is_multiple_of(step) {
                self.mixture(&at, experts, family.shared, hidden)?;
            } else {
                self.network(&at, keys.need("intermediate_size")?, hidden, family.fused)?;
            }
        }
        Ok(())
    }

    fn experts(&self) -> Result<usize, ArchError> {
        let experts = self.keys.alias::<usize>("num_experts", "num_local_experts")?;
        experts.ok_or_else(|| ArchError::MissingKey { key: self.keys.name("num_experts") })
    }

    /// For each layer whether it is a DeltaNet.
    fn delta_layers(&self, family: &Rotary, layers: usize) -> Result<Vec<bool>, ArchError> {
        if family.delta.is_none() {
            return Ok(Vec::new());
        }
        let kinds = self.keys.get::<Vec<String>>("layer_types")?;
        let interval = self.size("full_attention_interval", 4)?;
        let is_delta = |layer: usize| match &kinds {
            // A list of another length is refused by the reader, which names it.
            Some(kinds) => kinds.get(layer).is_some_and(|kind| kind == "linear_attention"),
            None => !(layer + 1).is_multiple_of(interval),
        };
        Ok((0..layers).map(is_delta).collect())
    }

    fn attention(&mut self, at: &str, family: &Rotary, hidden: usize) -> Result<(), ArchError> {
        let heads = self.need("num_attention_heads", family.heads.0)?;
        let kv_heads = self.size("num_key_value_heads", family.heads.1.unwrap_or(heads))?;
        let dim = match self.keys.size("head_dim")?.or(family.head_dim) {
            Some(dim) => dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let reason = format!("{heads} heads do not divide a width of {hidden}, and there is no head_dim");
                return Err(self.keys.conflict("num_attention_heads", self.keys.name("hidden_size"), reason));
            }
        };
        let bias = self.keys.or("attention_bias", false)?;
        let (q, kv) = (heads.saturating_mul(dim), kv_heads.saturating_mul(dim));
        let gated = if family.delta.is_some() { 2 } else { 1 };
        if family.fused {
            self.linear(&format!("{at}.qkv_proj"), q.saturating_add(2 * kv), hidden, false);
        } else {
            let all = bias || family.qkv_bias;
            self.linear(&format!("{at}.q_proj"), q.saturating_mul(gated), hidden, all);
            self.linear(&format!("{at}.k_proj"), kv, hidden, all);
            self.linear(&format!("{at}.v_proj"), kv, hidden, all);
        }
        self.linear(&format!("{at}.o_proj"), hidden, q, bias && !family.fused);
        if family.head_norms {
            self.add(&format!("{at}.q_norm.weight"), &[dim]);
            self.add(&format!("{at}.k_norm.weight"), &[dim]);
        }
        Ok(())
    }

    fn delta(&mut self, at: &str, fusion: &Fusion, hidden: usize) -> Result<(), ArchError> {
        let key_heads = self.size("linear_num_key_heads", 16)?;
        let value_heads = self.size("linear_num_value_heads", 32)?;
        let value_dim = self.size("linear_value_head_dim", 128)?;
        let keys = 2 * key_heads.saturating_mul(self.size("linear_key_head_dim", 128)?);
        let values = value_heads.saturating_mul(value_dim);
        let channels = keys.saturating_add(values);
        match fusion {
            Fusion::Split => {
                self.linear(&format!("{at}.in_proj_qkv"), channels, hidden, false);
                self.linear(&format!("{at}.in_proj_z"), values, hidden, false);
                self.linear(&format!("{at}.in_proj_b"), value_heads, hidden, false);
                self.linear(&format!("{at}.in_proj_a"), value_heads, hidden, false);
            }
            Fusion::Grouped => {
                self.linear(&format!("{at}.in_proj_qkvz"), channels.saturating_add(values), hidden, false);
                self.linear(&format!("{at}.in_proj_ba"), 2 * value_heads, hidden, false);
            }
        }
        self.add(&format!("{at}.conv1d.weight"), &[channels, 1, self.size("linear_conv_kernel_dim", 4)?]);
        self.add(&format!("{at}.A_log"), &[value_heads]);
        self.add(&format!("{at}.dt_bias"), &[value_heads]);
        self.add(&format!("{at}.norm.weight"), &[value_dim]);
        self.linear(&format!("{at}.out_proj"), hidden, values, false);
        Ok(())
    }

    fn network(&mut self, at: &str, inter: usize, hidden: usize, fused: bool) -> Result<(), ArchError> {
        let bias = self.keys.or("mlp_bias", false)? && !fused;
        if fused {
            self.linear(&format!("{at}.gate_up_proj"), inter.saturating_mul(2), hidden, false);
        } else {
            self.linear(&format!("{at}.gate_proj"), inter, hidden, bias);
            self.linear(&format!("{at}.up_proj"), inter, hidden, bias);
        }
        self.linear(&format!("{at}.down_proj"), hidden, inter, bias);
        Ok(())
    }

    fn mixture(&mut self, at: &str, experts: usize, shared: bool, hidden: usize) -> Result<(), ArchError> {
        let inter = self.keys.need("moe_intermediate_size")?;
        self.linear(&format!("{at}.gate"), experts, hidden, false);
        for expert in 0..experts {
            self.network(&format!("{at}.experts.{expert}"), inter, hidden, false)?;
        }
        if shared {
            let width = self.keys.need("shared_expert_intermediate_size")?;
            self.network(&format!("{at}.shared_expert"), width, hidden, false)?;
            self.linear(&format!("{at}.shared_expert_gate"), 1, hidden, false);
        }
        Ok(())
    }

    fn learned(&mut self) -> Result<(), ArchError> {
        let keys = self.keys;
        let size = |key: &str, usual: &str| -> Result<usize, ArchError> {
            keys.size(key)?;
            keys.size(usual)?;
            keys.alias::<usize>(key, usual)?.ok_or_else(|| ArchError::MissingKey { key: keys.name(key) })
        };
        let hidden = size("n_embd", "hidden_size")?;
        let layers = self.layers(keys.spelling("n_layer", "num_hidden_layers"), 12)?;
        let vocab = keys.need("vocab_size")?;
        self.add("wte.weight", &[vocab, hidden]);
        self.add("wpe.weight", &[size("n_positions", "max_position_embeddings")?, hidden]);
        if !keys.or("tie_word_embeddings", true)? {
            self.add("lm_head.weight", &[vocab, hidden]);
        }
        let inter = self.size("n_inner", hidden.saturating_mul(4))?;
        let norms = (0..layers).flat_map(|layer| [format!("h.{layer}.ln_1"), format!("h.{layer}.ln_2")]);
        for norm in norms.chain(["ln_f".to_owned()]) {
            self.add(&format!("{norm}.weight"), &[hidden]);
            self.add(&format!("{norm}.bias"), &[hidden]);
        }
        for layer in 0..layers {
            for (name, inner, out) in [
                ("attn.c_attn", hidden, hidden.saturating_mul(3)),
                ("attn.c_proj", hidden, hidden),
                ("mlp.c_fc", hidden, inter),
                ("mlp.c_proj", inter, hidden),
            ] {
                self.add(&format!("h.{layer}.{name}.weight"), &[inner, out]);
                self.add(&format!("h.{layer}.{name}.bias"), &[out]);
            }
        }
        Ok(())
    }
}
