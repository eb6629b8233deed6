//! gpt2: learned positions, LayerNorm, ungated network, matrices stored (in, out) with q, k and v in one.

use super::decoder::{Given, epsilon};
use super::error::ArchError;
use super::head::{Ends, ends};
use super::inert::{COMMON, FIXED, GPT2};
use super::keys::Keys;
use super::layers::count;
use super::mlp::activation;
use super::tensors::{Dim, SKIP_GPT2, Store, Tensors};
use wordline_ir::Spec;
use wordline_ir::spec::{Activation, Attention, Ffn, Layer, Linear, Mixer, Mlp, RowRange, WeightLayout};

/// What the keys say, the same for all layers.
struct Sizes {
    hidden: Dim,
    heads: usize,
    inter: Dim,
    eps: f32,
    act: Activation,
    /// Scores are divided by the root of the head dimension.
    scaled: bool,
    /// Scores are divided by the layer's number, from 1, as well.
    by_layer: bool,
}

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let keys = &given.keys;
    let tensors = Tensors::under(given.index, &["transformer.", ""], "wte.weight")?;
    let sizes = Sizes::read(keys)?;
    let layers_key = keys.spelling("n_layer", "num_hidden_layers");
    keys.alias::<usize>("n_layer", "num_hidden_layers")?;
    let layers = count(keys, layers_key, &tensors)?;
    let because = |error: ArchError| error.because(&format!("{layers_key} ({layers})"));
    let blocks = (0..layers).map(|layer| sizes.layer(&tensors, layer).map_err(because)).collect::<Result<_, _>>()?;
    let max_pos = Dim::new(size(keys, "n_positions", "max_position_embeddings")?, "n_positions");
    let positions = tensors.whole("wpe.weight", "learned positions", &[&max_pos, &sizes.hidden])?;
    let Ends { embed, head, tie, vocab } = ends(keys, None, &tensors, "wte.weight", &["lm_head"], &sizes.hidden, None)?;
    let spec = Spec {
        family: "gpt2".to_owned(),
        hidden: sizes.hidden.size,
        vocab,
        max_pos: max_pos.size,
        embed,
        positions: Some(positions),
        embed_scale: 1.0,
        layers: blocks,
        final_norm: tensors.layer_norm("ln_f", "norm before the LM head", &sizes.hidden, sizes.eps)?,
        head,
        tie,
        logit_cap: None,
        logit_scale: 1.0,
        qkv_fused: true,
        weight_layout: WeightLayout::InOut,
    };
    keys.finish(&[FIXED], &[COMMON, GPT2])?;
    tensors.finish(&[SKIP_GPT2], layers_key, layers)?;
    Ok(spec)
}

/// A size by its old name or its usual one.
fn size(keys: &Keys<'_>, key: &str, usual: &str) -> Result<usize, ArchError> {
    keys.size(usual)?;
    keys.size(key)?;
    keys.alias::<usize>(key, usual)?.ok_or_else(|| ArchError::MissingKey { key: keys.name(key) })
}

impl Sizes {
    fn read(keys: &Keys<'_>) -> Result<Self, ArchError> {
        let hidden = Dim::new(size(keys, "n_embd", "hidden_size")?, "n_embd");
        let heads = size(keys, "n_head", "num_attention_heads")?;
        if !hidden.size.is_multiple_of(heads) {
            let reason = format!("{heads} heads do not divide a width of {}", hidden.size);
            return Err(keys.conflict("n_head", keys.name("n_embd"), reason));
        }
        let inter = match keys.size("n_inner")? {
            Some(inter) => Dim::new(inter, "n_inner"),
            None => Dim::new(hidden.size * 4, "4 * n_embd, as n_inner is not given"),
        };
        Ok(Self {
            heads,
            inter,
            eps: epsilon(keys, "layer_norm_epsilon", 1e-5)?,
            act: activation(keys, "activation_function", "gelu_new")?,
            scaled: keys.or("scale_attn_weights", true)?,
            by_layer: keys.or("scale_attn_by_inverse_layer_idx", false)?,
            hidden,
        })
    }

    fn layer(&self, tensors: &Tensors<'_>, layer: usize) -> Result<Layer, ArchError> {
        let at = format!("h.{layer}");
        let norm = |rest: &str, what: &str| {
            let purpose = format!("norm before layer {layer}'s {what}");
            tensors.layer_norm(&format!("{at}.{rest}"), &purpose, &self.hidden, self.eps)
        };
        Ok(Layer {
            pre_mixer: norm("ln_1", "attention")?,
            mixer: Mixer::Attention(self.attention(tensors, &format!("{at}.attn"), layer)?),
            post_mixer: None,
            pre_ffn: norm("ln_2", "network")?,
            ffn: Ffn::Dense(self.network(tensors, &format!("{at}.mlp"), layer)?),
            post_ffn: None,
        })
    }

    fn attention(&self, tensors: &Tensors<'_>, at: &str, layer: usize) -> Result<Attention, ArchError> {
        let all = self.hidden.scaled(3);
        let third = |number: usize| -> Result<Linear, ArchError> {
            let purpose = format!("query, key and value projection of layer {layer}'s attention");
            let (start, end) = (number * self.hidden.size, (number + 1) * self.hidden.size);
            let rows = vec![RowRange { start, end }];
            tensors.rows_of(&format!("{at}.c_attn"), &purpose, Store::InOut, &all, &self.hidden, rows)
        };
        let head_dim = self.hidden.size / self.heads;
        let mut scale = if self.scaled { 1.0 / (head_dim as f64).sqrt() } else { 1.0 };
        if self.by_layer {
            scale /= (layer + 1) as f64;
        }
        let purpose = format!("output projection of layer {layer}'s attention");
        Ok(Attention {
            heads: self.heads,
            kv_heads: self.heads,
            head_dim,
            v_dim: head_dim,
            scale: scale as f32,
            window: None,
            soft_cap: None,
            rope: None,
            q: third(0)?,
            k: third(1)?,
            v: third(2)?,
            gate: None,
            q_norm: None,
            k_norm: None,
            o: tensors.stored_linear(&format!("{at}.c_proj"), &purpose, Store::InOut, &self.hidden, &self.hidden)?,
        })
    }

    fn network(&self, tensors: &Tensors<'_>, at: &str, layer: usize) -> Result<Mlp, ArchError> {
        let read = |rest: &str, what: &str, out: &Dim, inner: &Dim| {
            let purpose = format!("{what} projection of layer {layer}'s network");
            tensors.stored_linear(&format!("{at}.{rest}"), &purpose, Store::InOut, out, inner)
        };
        Ok(Mlp {
            inter: self.inter.size,
            act: self.act,
            gate: None,
            up: read("c_fc", "up", &self.inter, &self.hidden)?,
            down: read("c_proj", "down", &self.hidden, &self.inter)?,
        })
    }
}
