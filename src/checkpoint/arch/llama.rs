//! llama: rotary attention with grouped key heads, gated silu network.

use super::attention::Heads;
use super::decoder::{Decoder, Defaults, Given};
use super::error::ArchError;
use super::inert::{COMMON, FIXED, LLAMA, LLAMA_FIXED};
use super::rope::{self, Style};
use super::tensors::SKIP_ROTARY;
use wordline_ir::Spec;
use wordline_ir::spec::Mixer;

const DEFAULTS: Defaults = Defaults { max_pos: 2048, ..Defaults::USUAL };

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &DEFAULTS)?;
    let heads = Heads { eps: model.eps, ..Heads::read(model.keys, &model.tensors, 0, &model.hidden, None)? };
    let recipe = rope::read(model.keys, &Style::PLAIN, &heads.head_dim, model.max_pos)?;
    let inter = model.inter()?;
    let layers = model.collect("", |layer| {
        let mixer = heads.layer(&model.tensors, layer, recipe.rope.clone(), None)?;
        model.layer(layer, Mixer::Attention(mixer), model.dense(layer, &inter)?)
    })?;
    let spec = model.spec("llama", layers, &recipe, None)?;
    model.finish(&[FIXED, LLAMA_FIXED], &[COMMON, LLAMA], &[SKIP_ROTARY])?;
    Ok(spec)
}
