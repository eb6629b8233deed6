//! qwen3_next: a hybrid whose networks are mixtures of experts, save the layers that keys name as dense.

use super::decoder::{Decoder, Defaults, Given};
use super::error::ArchError;
use super::hybrid;
use super::inert::{COMMON, FIXED, MIXTURE, UNWINDOWED, UNWINDOWED_FIXED};
use super::mixture::{MixtureDefaults, Networks};
use super::tensors::{SKIP_AHEAD, SKIP_ROTARY};
use wordline_ir::Spec;

const DEFAULTS: Defaults = Defaults { centred: true, ..Defaults::USUAL };

/// The framework's key heads when the key is absent.
const KV_HEADS: usize = 2;

/// What the framework takes for absent keys of the mixture.
const MIXTURE_DEFAULTS: MixtureDefaults =
    MixtureDefaults { experts: 512, top_k: 10, inter: 512, shared: Some(512), renormalise: true };

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &DEFAULTS)?;
    let networks = Networks::read(&model, &MIXTURE_DEFAULTS)?;
    let (layers, recipe) = hybrid::layers(&model, KV_HEADS, false, |layer| networks.layer(&model, layer))?;
    let spec = model.spec("qwen3_next", layers, &recipe, None)?;
    model.finish(&[FIXED, UNWINDOWED_FIXED], &[COMMON, UNWINDOWED, MIXTURE], &[SKIP_ROTARY, SKIP_AHEAD])?;
    Ok(spec)
}
