//! What qwen3_next and qwen3_5 have in common: Gated DeltaNet layers with a gated attention layer every few.

use super::attention::Heads;
use super::decoder::Decoder;
use super::deltanet::Delta;
use super::error::ArchError;
use super::layers::{Kind, every, given_types};
use super::rope::{self, Recipe, Style};
use wordline_ir::spec::{Ffn, Layer, Mixer};

/// Every fourth layer attends when no key says otherwise.
const INTERVAL: usize = 4;

/// Rotary keys of both families; a quarter of each head turns unless a key says otherwise.
const STYLE: Style = Style { partial: Some(0.25), ..Style::PLAIN };
/// The same where image axes may be given.
const STYLE_IMAGES: Style = Style { image_axes: true, ..STYLE };

/// The layers and the rotary recipe of a hybrid whose layer i has the network `ffn(i)`.
pub(super) fn layers(
    model: &Decoder<'_>,
    kv_default: usize,
    image_axes: bool,
    ffn: impl Fn(usize) -> Result<Ffn, ArchError>,
) -> Result<(Vec<Layer>, Recipe), ArchError> {
    let keys = model.keys;
    let interval = keys.size("full_attention_interval")?.unwrap_or(INTERVAL);
    let kinds = match given_types(keys, model.layers, &[Kind::Full, Kind::Linear])? {
        Some(kinds) => {
            keys.note("full_attention_interval", "layer_types says which layers attend");
            kinds
        }
        None => every(model.layers, interval, Kind::Linear, Kind::Full),
    };
    let Some(first) = kinds.iter().position(|kind| *kind == Kind::Full) else {
        let key = keys.spelling("full_attention_interval", "layer_types");
        return Err(keys.unsupported(
            key,
            format!("none of num_hidden_layers ({}) attends, and such a stack is not known", model.layers),
        ));
    };
    let ruling = if keys.value("layer_types").is_some() { "layer_types" } else { "full_attention_interval" };
    let heads = Heads::read(keys, &model.tensors, first, &model.hidden, Some(kv_default));
    let heads = heads.map_err(|error| error.because(ruling))?;
    let heads = Heads { eps: model.eps, norms: true, centred: true, gated: true, ..heads };
    let style = if image_axes { &STYLE_IMAGES } else { &STYLE };
    let recipe = rope::read(keys, style, &heads.head_dim, model.max_pos)?;
    let delta = Delta::read(keys, &model.hidden, model.act, model.eps)?;
    let layers = model.collect(&format!(" and {ruling}"), |layer| {
        let mixer = match kinds[layer] {
            Kind::Linear => Mixer::DeltaNet(delta.layer(&model.tensors, layer)?),
            _ => Mixer::Attention(heads.layer(&model.tensors, layer, recipe.rope.clone(), None)?),
        };
        model.layer(layer, mixer, ffn(layer)?)
    })?;
    Ok((layers, recipe))
}
