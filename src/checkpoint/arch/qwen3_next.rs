//! qwen3_next: a hybrid whose networks are mixtures of experts, save the layers that keys name as dense.

use super::decoder::{Decoder, Defaults, Given};
use super::error::ArchError;
use super::hybrid;
use super::inert::{COMMON, FIXED, HYBRID, HYBRID_FIXED, MIXTURE};
use super::keys::Keys;
use super::mlp::Mixture;
use super::tensors::{Dim, SKIP_AHEAD, SKIP_ROTARY};
use wordline_ir::Spec;
use wordline_ir::spec::{Activation, Ffn};

const DEFAULTS: Defaults = Defaults { centred: true, ..Defaults::USUAL };

/// The framework's key heads when the key is absent.
const KV_HEADS: usize = 2;

/// The keys that say which layers are dense.
const RULING: &str = "decoder_sparse_step, mlp_only_layers and num_experts";

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &DEFAULTS)?;
    let keys = model.keys;
    let mixture = mixture(keys, &model.hidden, model.act)?;
    let dense = dense_layers(keys, model.layers, mixture.is_some())?;
    let inter = if dense.contains(&true) { Some(model.inter()?) } else { None };
    let (layers, recipe) = hybrid::layers(&model, KV_HEADS, false, |layer| match (&inter, &mixture) {
        (Some(inter), _) if dense[layer] => model.dense(layer, inter).map_err(|error| error.because(RULING)),
        (_, Some(mixture)) => {
            let (at, of) = (format!("layers.{layer}.mlp"), format!("layer {layer}'s mixture"));
            mixture.layer(&model.tensors, &at, &of).map(Ffn::Moe).map_err(|error| error.because(RULING))
        }
        (_, None) => Err(keys.bad("num_experts", "a size of at least 1, as decoder_sparse_step needs")),
    })?;
    if inter.is_none() {
        keys.note("intermediate_size", "every layer's network is a mixture");
    }
    let spec = model.spec("qwen3_next", layers, &recipe, None)?;
    model.finish(&[FIXED, HYBRID_FIXED], &[COMMON, HYBRID, MIXTURE], &[SKIP_ROTARY, SKIP_AHEAD])?;
    Ok(spec)
}

/// The mixture's sizes; `None` when `num_experts` is 0.
fn mixture(keys: &Keys<'_>, hidden: &Dim, act: Activation) -> Result<Option<Mixture>, ArchError> {
    let size =
        |key: &str, default: usize| -> Result<Dim, ArchError> { Ok(Dim::new(keys.size(key)?.unwrap_or(default), key)) };
    let experts = keys.or("num_experts", 512usize)?;
    let top_k = keys.size("num_experts_per_tok")?.unwrap_or(10);
    let mixture = Mixture {
        hidden: hidden.clone(),
        experts: Dim::new(experts, "num_experts"),
        inter: size("moe_intermediate_size", 512)?,
        shared: size("shared_expert_intermediate_size", 512)?,
        top_k,
        renormalise: keys.or("norm_topk_prob", true)?,
        act,
    };
    if experts == 0 {
        return Ok(None);
    }
    if top_k > experts {
        let reason = format!("{top_k} experts cannot be picked from {experts}");
        return Err(keys.conflict("num_experts_per_tok", keys.name("num_experts"), reason));
    }
    Ok(Some(mixture))
}

/// For each layer whether its network is dense: named by `mlp_only_layers`, or no multiple of `decoder_sparse_step`.
fn dense_layers(keys: &Keys<'_>, layers: usize, experts: bool) -> Result<Vec<bool>, ArchError> {
    let only = keys.or("mlp_only_layers", Vec::<usize>::new())?;
    let step = keys.size("decoder_sparse_step")?.unwrap_or(1);
    if let Some(layer) = only.iter().find(|layer| **layer >= layers) {
        return Err(
            keys.bad("mlp_only_layers", format!("a list of layers below num_hidden_layers, {layers} ({layer} is not)"))
        );
    }
    Ok((0..layers).map(|layer| !experts || only.contains(&layer) || (layer + 1) % step != 0).collect())
}
