//! qwen3_5: a hybrid with dense networks, alone or as the text part of a model that also sees images.

use super::decoder::{Decoder, Defaults, Given, NESTED_HEADS, NESTED_PREFIXES};
use super::error::ArchError;
use super::hybrid;
use super::inert::{COMMON, FIXED, QWEN3_5, UNWINDOWED, UNWINDOWED_FIXED};
use super::tensors::{SKIP_AHEAD, SKIP_ROTARY, SKIP_VISION};
use wordline_ir::Spec;

const DEFAULTS: Defaults =
    Defaults { prefixes: NESTED_PREFIXES, heads: NESTED_HEADS, centred: true, ..Defaults::USUAL };

/// The framework's key heads when the key is absent.
const KV_HEADS: usize = 4;

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &DEFAULTS)?;
    let inter = model.inter()?;
    let (layers, recipe) = hybrid::layers(&model, KV_HEADS, true, |layer| model.dense(layer, &inter))?;
    if model.keys.get::<bool>("attn_output_gate")? == Some(false) {
        let reason = "the query projections of the weight file hold gates";
        return Err(model.keys.unsupported("attn_output_gate", reason));
    }
    let spec = model.spec("qwen3_5", layers, &recipe, None)?;
    model.finish(
        &[FIXED, UNWINDOWED_FIXED],
        &[COMMON, UNWINDOWED, QWEN3_5],
        &[SKIP_ROTARY, SKIP_AHEAD, SKIP_VISION],
    )?;
    Ok(spec)
}
