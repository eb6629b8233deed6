//! mistral: llama's layers, all of them with one sliding window or none.

use super::attention::Heads;
use super::decoder::{Decoder, Defaults, Given};
use super::error::ArchError;
use super::inert::{COMMON, FIXED};
use super::layers::{WINDOW, one_window};
use super::rope::{self, Style};
use super::tensors::SKIP_ROTARY;
use wordline_ir::Spec;
use wordline_ir::spec::Mixer;

const DEFAULTS: Defaults = Defaults { max_pos: 131_072, ..Defaults::USUAL };

/// The framework's key heads when the key is absent.
const KV_HEADS: usize = 8;

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &DEFAULTS)?;
    let heads = Heads { eps: model.eps, ..Heads::read(model.keys, &model.tensors, 0, &model.hidden, Some(KV_HEADS))? };
    let recipe = rope::read(model.keys, &Style::PLAIN, &heads.head_dim, model.max_pos)?;
    let window = one_window(model.keys, model.layers, Some(WINDOW))?;
    let inter = model.inter()?;
    let layers = model.collect("", |layer| {
        let mixer = heads.layer(&model.tensors, layer, recipe.rope.clone(), window)?;
        model.layer(layer, Mixer::Attention(mixer), model.dense(layer, &inter)?)
    })?;
    let spec = model.spec("mistral", layers, &recipe, None)?;
    model.finish(&[FIXED], &[COMMON], &[SKIP_ROTARY])?;
    Ok(spec)
}
