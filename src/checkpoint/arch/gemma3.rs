//! gemma3: windowed and full layers with a rotary base each, norms before and after mixer and network, and a scaled
//! embedding.

use super::attention::Heads;
use super::decoder::{Decoder, Defaults, Given, NESTED_HEADS, NESTED_PREFIXES};
use super::error::ArchError;
use super::inert::{COMMON, FIXED, GEMMA3, GEMMA3_FIXED};
use super::keys::Keys;
use super::layers::{Kind, WINDOW, every, given_types, window};
use super::rope::{Recipe, Style, read_for_kind};
use super::tensors::{Dim, SKIP_ROTARY, SKIP_VISION};
use wordline_ir::Spec;
use wordline_ir::spec::{Layer, Mixer};

const DEFAULTS: Defaults = Defaults {
    prefixes: NESTED_PREFIXES,
    heads: NESTED_HEADS,
    act: ("hidden_activation", "gelu_pytorch_tanh"),
    max_pos: 131_072,
    eps: 1e-6,
    centred: true,
};

/// What the framework takes for absent keys; nested configs leave these out.
const HEADS: usize = 8;
const KV_HEADS: usize = 4;
const VOCAB: usize = 262_208;
const SCORE_SCALAR: f64 = 256.0;
const PATTERN: usize = 6;

/// Rotary styles of full and of windowed layers.
const FULL: Style = Style { theta: 1_000_000.0, ..Style::PLAIN };
const SLIDING: Style = Style { theta: 10_000.0, ..Style::PLAIN };

pub(super) fn read(given: &Given<'_>) -> Result<Spec, ArchError> {
    let model = Decoder::read(given, &DEFAULTS)?;
    let (keys, tensors) = (model.keys, &model.tensors);
    let count = keys.size("num_attention_heads")?.unwrap_or(HEADS);
    let heads = Heads::with_counts(keys, tensors, 0, &model.hidden, count, Some(KV_HEADS))?;
    let scale = keys.positive("query_pre_attn_scalar")?.unwrap_or(SCORE_SCALAR);
    let scale = (1.0 / scale.sqrt()) as f32;
    let heads = Heads { eps: model.eps, norms: true, centred: true, scale, ..heads };
    other_activation(keys)?;
    let kinds = kinds(keys, model.layers)?;
    let window = sliding_window(keys, &kinds)?;
    let (full, sliding) = recipes(keys, &heads.head_dim, model.max_pos, &kinds)?;
    let inter = model.inter()?;
    let layers = model.collect("", |layer| {
        let (recipe, window) = if kinds[layer] == Kind::Sliding { (&sliding, window) } else { (&full, None) };
        let mixer = heads.layer(tensors, layer, recipe.rope.clone(), window)?;
        let at = format!("layers.{layer}");
        let norm = |rest: &str, place: &str| {
            model.norm(&format!("{at}.{rest}"), &format!("norm {place} layer {layer}'s network or mixer"))
        };
        Ok(Layer {
            pre_mixer: norm("input_layernorm", "before")?,
            mixer: Mixer::Attention(mixer),
            post_mixer: Some(norm("post_attention_layernorm", "after")?),
            pre_ffn: norm("pre_feedforward_layernorm", "before")?,
            ffn: model.dense(layer, &inter)?,
            post_ffn: Some(norm("post_feedforward_layernorm", "after")?),
        })
    })?;
    let positions = if kinds.contains(&Kind::Full) { full.positions } else { sliding.positions };
    let from_positions = full.from_positions || sliding.from_positions;
    let recipe = Recipe { rope: full.rope, positions, from_positions };
    let cap = keys.positive("final_logit_softcapping")?;
    let spec = Spec {
        // The root of the width in f64, rounded once: the framework's constant when weights are widened to f32.
        embed_scale: (model.hidden.size as f64).sqrt() as f32,
        logit_cap: cap.map(|cap| cap as f32),
        ..model.spec("gemma3", layers, &recipe, Some(VOCAB))?
    };
    model.finish(&[FIXED, GEMMA3_FIXED], &[COMMON, GEMMA3], &[SKIP_ROTARY, SKIP_VISION])?;
    Ok(spec)
}

/// `hidden_act`, which some files carry beside `hidden_activation`: the framework reads the latter only.
fn other_activation(keys: &Keys<'_>) -> Result<(), ArchError> {
    let (read, other) = (keys.value("hidden_activation"), keys.value("hidden_act"));
    match other {
        Some(other) if Some(other) != read => {
            Err(keys.conflict("hidden_act", keys.name("hidden_activation"), "the family's activation is the second"))
        }
        _ => {
            keys.note("hidden_act", "hidden_activation, which rules, says the same");
            Ok(())
        }
    }
}

/// Kinds by `layer_types`, or every n-th layer full.
fn kinds(keys: &Keys<'_>, layers: usize) -> Result<Vec<Kind>, ArchError> {
    let pattern = keys.size("sliding_window_pattern")?;
    let saved = keys.size("_sliding_window_pattern")?;
    if let Some(kinds) = given_types(keys, layers, &[Kind::Full, Kind::Sliding])? {
        keys.note("sliding_window_pattern", "layer_types says which layers slide");
        keys.note("_sliding_window_pattern", "layer_types says which layers slide");
        return Ok(kinds);
    }
    let rules = pattern.unwrap_or(PATTERN);
    if saved.is_some_and(|saved| saved != rules) {
        let other = keys.name("sliding_window_pattern");
        let reason = format!("without layer_types the second rules, {PATTERN} when absent");
        return Err(keys.conflict("_sliding_window_pattern", other, reason));
    }
    keys.note("_sliding_window_pattern", "sliding_window_pattern, which rules, says the same");
    Ok(every(layers, rules, Kind::Sliding, Kind::Full))
}

/// The window of the layers that slide.
fn sliding_window(keys: &Keys<'_>, kinds: &[Kind]) -> Result<Option<usize>, ArchError> {
    if !kinds.contains(&Kind::Sliding) {
        keys.note("sliding_window", "no layer slides");
        return Ok(None);
    }
    match window(keys, Some(WINDOW))? {
        None => Err(keys.conflict("sliding_window", keys.name("layer_types"), "layers slide, but there is no window")),
        window => Ok(window),
    }
}

/// Recipes of full and of windowed layers. The older `rope_scaling` and `rope_theta` speak of full layers only,
/// `rope_local_base_freq` of windowed ones.
fn recipes(keys: &Keys<'_>, head_dim: &Dim, max_pos: usize, kinds: &[Kind]) -> Result<(Recipe, Recipe), ArchError> {
    let (nested, old) = (keys.object("rope_parameters")?, keys.object("rope_scaling")?);
    let (mut full, mut sliding) = (None, None);
    if let Some(nested) = &nested {
        if let (Some(_), Some(_)) = (nested.value("full_attention"), &old) {
            let other = nested.name("full_attention");
            return Err(keys.conflict("rope_scaling", other, "both speak of the full layers"));
        }
        (full, sliding) = (nested.object("full_attention")?, nested.object("sliding_attention")?);
        nested.finish(&[], &[])?;
    }
    // In the older style the framework starts from "rope_type": "default" and lets the file's sub-keys replace it, so
    // the still older name of that sub-key is lost there.
    if let Some(old) = &old
        && old.value("type").is_some()
        && old.value("rope_type").is_none()
    {
        return Err(old.unsupported("type", "the reference framework reads 'rope_type' only in this family: say it so"));
    }
    let full = full.or(old);
    let full_recipe = read_for_kind(keys, full.as_ref(), "rope_theta", &FULL, head_dim, max_pos)?;
    let theta = "rope_local_base_freq";
    let sliding_recipe = read_for_kind(keys, sliding.as_ref(), theta, &SLIDING, head_dim, max_pos)?;
    for (kind, key, object) in
        [(Kind::Full, "rope_theta", "full_attention"), (Kind::Sliding, theta, "sliding_attention")]
    {
        if !kinds.contains(&kind) {
            keys.note(key, format!("no layer is '{object}'"));
            keys.note("rope_parameters", format!("no layer is '{object}', so that part changes nothing"));
        }
    }
    Ok((full_recipe, sliding_recipe))
}
