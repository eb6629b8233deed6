//! qwen2: llama's layers, usually with query, key and value biases, the later layers with a window where asked for.

use super::attention::Heads;
use super::decoder::{Decoder, Defaults, Given};
use super::error::ArchError;
use super::inert::{COMMON, FIXED, QWEN2_FIXED};
use super::layers::late_windows;
use super::rope::{self, Style};
use super::tensors::SKIP_ROTARY;
use wordline_ir::Spec;
use wordline_ir::spec::Mixer;

/// The framework's key heads when the key is absent.
const KV_HEADS: usize = 32;

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    read_as(given, "qwen2", false)
}

/// qwen2 and qwen3, which has a norm of each query and key head in every layer.
pub(super) fn read_as(given: &Given<'_>, family: &str, norms: bool) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &Defaults::USUAL)?;
    let heads = Heads::read(model.keys, &model.tensors, 0, &model.hidden, Some(KV_HEADS))?;
    let heads = Heads { eps: model.eps, norms, ..heads };
    let recipe = rope::read(model.keys, &Style::PLAIN, &heads.head_dim, model.max_pos)?;
    let windows = late_windows(model.keys, model.layers)?;
    let inter = model.inter()?;
    let layers = model.collect("", |layer| {
        let mixer = heads.layer(&model.tensors, layer, recipe.rope.clone(), windows[layer])?;
        model.layer(layer, Mixer::Attention(mixer), model.dense(layer, &inter)?)
    })?;
    let spec = model.spec(family, layers, &recipe, None)?;
    model.finish(&[FIXED, QWEN2_FIXED], &[COMMON], &[SKIP_ROTARY])?;
    Ok(spec)
}
