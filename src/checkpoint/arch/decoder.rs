//! What every rotary family has in common: sizes, pre-norm layers, both ends.

use super::error::ArchError;
use super::head::{Ends, ends};
use super::inert::{Fixed, Inert};
use super::keys::Keys;
use super::mlp::activation;
use super::rope::Recipe;
use super::tensors::{Dim, Skip, TensorIndex, Tensors};
use wordline_ir::Spec;
use wordline_ir::spec::{Activation, Ffn, Layer, Linear, Mixer, Norm, WeightLayout};

/// A checkpoint as a family's reader is given it.
pub(super) struct Given<'a> {
    /// The text model's keys.
    pub(super) keys: Keys<'a>,
    /// The keys around a nested `text_config`.
    pub(super) outer: Option<Keys<'a>>,
    /// The weight file.
    pub(super) index: &'a dyn TensorIndex,
}

/// What a family does not read from its config.
pub(super) struct Defaults {
    /// Prefixes of tensor names, most usual first.
    pub(super) prefixes: &'static [&'static str],
    /// Full names of the head.
    pub(super) heads: &'static [&'static str],
    /// Key of the activation, and its value when absent.
    pub(super) act: (&'static str, &'static str),
    /// `max_position_embeddings` when absent.
    pub(super) max_pos: usize,
    /// `rms_norm_eps` when absent.
    pub(super) eps: f64,
    /// Norms store w - 1.
    pub(super) centred: bool,
}

impl Defaults {
    /// What most families share.
    pub(super) const USUAL: Defaults = Defaults {
        prefixes: &["model.", ""],
        heads: &["lm_head"],
        act: ("hidden_act", "silu"),
        max_pos: 32768,
        eps: 1e-6,
        centred: false,
    };
}

/// Prefixes and head names where a text model may stand beside a vision tower.
pub(super) const NESTED_PREFIXES: &[&str] = &["model.", "model.language_model.", "language_model.model.", ""];
pub(super) const NESTED_HEADS: &[&str] = &["lm_head", "language_model.lm_head"];

/// A rotary model while it is read.
pub(super) struct Decoder<'a> {
    pub(super) keys: &'a Keys<'a>,
    outer: Option<&'a Keys<'a>>,
    pub(super) tensors: Tensors<'a>,
    defaults: &'static Defaults,
    pub(super) hidden: Dim,
    pub(super) layers: usize,
    pub(super) max_pos: usize,
    pub(super) eps: f32,
    pub(super) act: Activation,
}

/// The widening of a norm's epsilon to what the engine holds.
pub(super) fn epsilon(keys: &Keys<'_>, key: &str, default: f64) -> Result<f32, ArchError> {
    let eps = keys.positive(key)?.unwrap_or(default) as f32;
    if eps > 0.0 && eps.is_finite() { Ok(eps) } else { Err(keys.bad(key, "a number above 0 that f32 can hold")) }
}

impl<'a> Decoder<'a> {
    /// The sizes and constants of a family with these defaults.
    pub(super) fn read(given: &'a Given<'a>, defaults: &'static Defaults) -> Result<Self, ArchError> {
        let keys = &given.keys;
        let tensors = Tensors::under(given.index, defaults.prefixes, "embed_tokens.weight")?;
        Ok(Self {
            keys,
            outer: given.outer.as_ref(),
            defaults,
            hidden: Dim::new(keys.need("hidden_size")?, "hidden_size"),
            layers: super::layers::count(keys, "num_hidden_layers", &tensors)?,
            max_pos: keys.size("max_position_embeddings")?.unwrap_or(defaults.max_pos),
            eps: epsilon(keys, "rms_norm_eps", defaults.eps)?,
            act: activation(keys, defaults.act.0, defaults.act.1)?,
            tensors,
        })
    }

    /// The inner width of a dense network.
    pub(super) fn inter(&self) -> Result<Dim, ArchError> {
        let key = "intermediate_size";
        Ok(Dim::new(self.keys.need(key)?, key))
    }

    /// A norm over the residual stream.
    pub(super) fn norm(&self, rest: &str, purpose: &str) -> Result<Norm, ArchError> {
        self.tensors.rms(rest, purpose, &self.hidden, self.eps, self.defaults.centred)
    }

    /// A layer with a norm before its mixer and one before its network.
    pub(super) fn layer(&self, layer: usize, mixer: Mixer, ffn: Ffn) -> Result<Layer, ArchError> {
        let at = format!("layers.{layer}");
        let mixer_norm = format!("norm before layer {layer}'s mixer");
        let ffn_norm = format!("norm before layer {layer}'s network");
        Ok(Layer {
            pre_mixer: self.norm(&format!("{at}.input_layernorm"), &mixer_norm)?,
            mixer,
            post_mixer: None,
            pre_ffn: self.norm(&format!("{at}.post_attention_layernorm"), &ffn_norm)?,
            ffn,
            post_ffn: None,
        })
    }

    /// Every layer in order; a tensor that one of them lacks is said to be asked for by the number of layers and by
    /// `also`, the keys that say what the layers are.
    pub(super) fn collect(
        &self,
        also: &str,
        layer: impl Fn(usize) -> Result<Layer, ArchError>,
    ) -> Result<Vec<Layer>, ArchError> {
        let because = |error: ArchError| error.because(&format!("num_hidden_layers ({}){also}", self.layers));
        (0..self.layers).map(|number| layer(number).map_err(because)).collect()
    }

    /// The dense network of a layer.
    pub(super) fn dense(&self, layer: usize, inter: &Dim) -> Result<Ffn, ArchError> {
        let (at, of) = (format!("layers.{layer}.mlp"), format!("layer {layer}'s network"));
        super::mlp::gated(&self.tensors, &at, &of, &self.hidden, inter, self.act).map(Ffn::Dense)
    }

    /// The whole, once the layers are read.
    pub(super) fn spec(
        &self,
        family: &str,
        layers: Vec<Layer>,
        recipe: &Recipe,
        vocab: Option<usize>,
    ) -> Result<Spec, ArchError> {
        if !recipe.from_positions {
            self.keys.note("max_position_embeddings", "a limit on positions; no logit depends on it");
        }
        let (embed, heads) = ("embed_tokens.weight", self.defaults.heads);
        let Ends { embed, head, tie, vocab } =
            ends(self.keys, self.outer, &self.tensors, embed, heads, &self.hidden, vocab)?;
        Ok(Spec {
            family: family.to_owned(),
            hidden: self.hidden.size,
            vocab,
            max_pos: recipe.positions,
            embed,
            positions: None,
            embed_scale: 1.0,
            qkv_fused: layers.iter().any(qkv_fused),
            layers,
            final_norm: self.norm("norm", "norm before the LM head")?,
            head,
            tie,
            logit_cap: None,
            logit_scale: 1.0,
            weight_layout: WeightLayout::OutIn,
        })
    }

    /// Account for every key and tensor.
    pub(super) fn finish(&self, fixed: &[&[Fixed]], inert: &[&[Inert]], skipped: &[&[Skip]]) -> Result<(), ArchError> {
        self.keys.finish(fixed, inert)?;
        self.tensors.finish(skipped, "num_hidden_layers", self.layers)
    }
}

/// True when an attention layer's three projections are rows of one stored tensor.
fn qkv_fused(layer: &Layer) -> bool {
    let Mixer::Attention(attention) = &layer.mixer else { return false };
    let stored = |linear: &Linear| linear.weight.parts.first().map(|part| part.tensor.clone());
    stored(&attention.q) == stored(&attention.k)
}
