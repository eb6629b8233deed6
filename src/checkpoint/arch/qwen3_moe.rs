//! qwen3_moe: qwen3's attention, and mixtures of experts without a shared one, save the layers that keys name as dense.

use super::attention::Heads;
use super::decoder::{Decoder, Defaults, Given};
use super::error::ArchError;
use super::inert::{COMMON, FIXED, MIXTURE, UNWINDOWED, UNWINDOWED_FIXED};
use super::mixture::{MixtureDefaults, Networks};
use super::rope::{self, Style};
use super::tensors::SKIP_ROTARY;
use wordline_ir::Spec;
use wordline_ir::spec::Mixer;

/// The framework's key heads when the key is absent.
const KV_HEADS: usize = 4;

/// What the framework takes for absent keys of the mixture.
const MIXTURE_DEFAULTS: MixtureDefaults =
    MixtureDefaults { experts: 128, top_k: 8, inter: 768, shared: None, renormalise: false };

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &Defaults::USUAL)?;
    let heads = Heads::read(model.keys, &model.tensors, 0, &model.hidden, Some(KV_HEADS))?;
    let heads = Heads { eps: model.eps, norms: true, ..heads };
    let recipe = rope::read(model.keys, &Style::PLAIN, &heads.head_dim, model.max_pos)?;
    let networks = Networks::read(&model, &MIXTURE_DEFAULTS)?;
    let layers = model.collect("", |layer| {
        let mixer = heads.layer(&model.tensors, layer, recipe.rope.clone(), None)?;
        model.layer(layer, Mixer::Attention(mixer), networks.layer(&model, layer)?)
    })?;
    let spec = model.spec("qwen3_moe", layers, &recipe, None)?;
    model.finish(&[FIXED, UNWINDOWED_FIXED], &[COMMON, UNWINDOWED, MIXTURE], &[SKIP_ROTARY])?;
    Ok(spec)
}
