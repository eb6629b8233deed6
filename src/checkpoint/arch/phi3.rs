//! phi3: llama's layers with fused projections, partly rotated heads and longrope.

use super::attention::Heads;
use super::decoder::{Decoder, Defaults, Given};
use super::error::ArchError;
use super::inert::{COMMON, FIXED, PHI3, PHI3_FIXED};
use super::layers::one_window;
use super::rope::{self, Style};
use super::tensors::SKIP_ROTARY;
use wordline_ir::Spec;
use wordline_ir::spec::Mixer;

const DEFAULTS: Defaults = Defaults { max_pos: 4096, eps: 1e-5, ..Defaults::USUAL };

const STYLE: Style =
    Style { partial: Some(1.0), theta: 10_000.0, image_axes: false, types: &["longrope"], original: Some(4096) };

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &DEFAULTS)?;
    let heads = Heads { eps: model.eps, ..Heads::read(model.keys, &model.tensors, 0, &model.hidden, None)? };
    let recipe = rope::read(model.keys, &STYLE, &heads.head_dim, model.max_pos)?;
    let window = one_window(model.keys, model.layers, None)?;
    let inter = model.inter()?;
    let layers = model.collect("", |layer| {
        let mixer = heads.layer(&model.tensors, layer, recipe.rope.clone(), window)?;
        model.layer(layer, Mixer::Attention(mixer), model.dense(layer, &inter)?)
    })?;
    let spec = model.spec("phi3", layers, &recipe, None)?;
    model.finish(&[FIXED, PHI3_FIXED], &[COMMON, PHI3], &[SKIP_ROTARY])?;
    Ok(spec)
}
