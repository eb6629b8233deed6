//! From config.json and the weight headers to a `Spec`, by evidence.
//!
//! **Invariants**: family names appear in this folder only. Every config key is read, or accepted with one value only,
//! or on a list of inert keys with the reason, or the model is refused by that key's name; so is it for a tensor that
//! nothing uses. Biases, tying, head norms, fused projections and head dimension come from what the weight file holds.
//! Formulas, defaults and key names are those of the reference framework.

mod attention;
mod decoder;
mod deltanet;
mod error;
mod gemma3;
mod gpt2;
mod head;
mod hybrid;
pub mod inert;
mod keys;
mod layers;
mod llama;
mod mistral;
mod mixture;
mod mlp;
mod phi3;
mod print;
mod published;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod rope;
mod tensors;

pub use error::ArchError;
pub use keys::Note;
pub use print::tables;
pub use published::Published;
pub use tensors::{SKIP_AHEAD, SKIP_GPT2, SKIP_ROTARY, SKIP_VISION, Skip, TensorIndex};

use decoder::Given;
use inert::{COMMON, FIXED, NESTED};
use keys::Keys;
use published::Layout;
use serde_json::Value;
use wordline_ir::Spec;

/// A family of models and the reader of its configs.
struct Family {
    name: &'static str,
    /// `model_type` of a config that holds the text model's keys itself.
    types: &'static [&'static str],
    /// `model_type` of a config that nests them in `text_config`.
    nested: &'static [&'static str],
    /// Class names under `architectures`.
    classes: &'static [&'static str],
    read: fn(&Given<'_>) -> Result<Spec, ArchError>,
    /// How its published checkpoints are laid out.
    files: Layout,
}

const FAMILIES: &[Family] = &[
    Family {
        name: "gemma3",
        types: &["gemma3_text"],
        nested: &["gemma3"],
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        read: gemma3::read,
        files: published::FOUR_NORMS,
    },
    Family {
        name: "gpt2",
        types: &["gpt2"],
        nested: &[],
        classes: &["GPT2LMHeadModel"],
        read: gpt2::read,
        files: Layout::Learned,
    },
    Family {
        name: "llama",
        types: &["llama"],
        nested: &[],
        classes: &["LlamaForCausalLM"],
        read: llama::read,
        files: published::PLAIN,
    },
    Family {
        name: "mistral",
        types: &["mistral"],
        nested: &[],
        classes: &["MistralForCausalLM"],
        read: mistral::read,
        files: published::GROUPED_HEADS,
    },
    Family {
        name: "phi3",
        types: &["phi3"],
        nested: &[],
        classes: &["Phi3ForCausalLM"],
        read: phi3::read,
        files: published::FUSED,
    },
    Family {
        name: "qwen2",
        types: &["qwen2"],
        nested: &[],
        classes: &["Qwen2ForCausalLM"],
        read: qwen2::read,
        files: published::QKV_BIAS,
    },
    Family {
        name: "qwen3",
        types: &["qwen3"],
        nested: &[],
        classes: &["Qwen3ForCausalLM"],
        read: qwen3::read,
        files: published::NORMED_HEADS,
    },
    Family {
        name: "qwen3_5",
        types: &["qwen3_5_text"],
        nested: &["qwen3_5"],
        classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
        read: qwen3_5::read,
        files: published::HYBRID_DENSE,
    },
    Family {
        name: "qwen3_moe",
        types: &["qwen3_moe"],
        nested: &[],
        classes: &["Qwen3MoeForCausalLM"],
        read: qwen3_moe::read,
        files: published::MIXTURES,
    },
    Family {
        name: "qwen3_next",
        types: &["qwen3_next"],
        nested: &[],
        classes: &["Qwen3NextForCausalLM"],
        read: qwen3_next::read,
        files: published::HYBRID_MIXTURES,
    },
];

/// A `Spec` and the config keys that were there and changed nothing in it.
#[derive(Debug)]
pub struct Loaded {
    /// The facts.
    pub spec: Spec,
    /// Keys without effect, with reasons.
    pub notes: Vec<Note>,
}

/// The `Spec` of a parsed config.json over a weight file.
///
/// # Errors
/// See [`ArchError`]; every message names the key or the tensor.
pub fn load(config: &Value, index: &dyn TensorIndex) -> Result<Loaded, ArchError> {
    let map = config.as_object().ok_or(ArchError::NotAnObject { source: None })?;
    let keys = Keys::new("", map);
    let (family, nested) = family(&keys)?;
    let mut given = Given { keys, outer: None, index };
    if nested {
        let text = given.keys.object("text_config")?;
        let text = text.ok_or_else(|| ArchError::MissingKey { key: "text_config".to_owned() })?;
        text_type(family, &text)?;
        given.outer = Some(std::mem::replace(&mut given.keys, text));
    }
    let spec = (family.read)(&given)?;
    let mut notes = given.keys.take_notes();
    if let Some(outer) = &given.outer {
        outer.finish(&[FIXED], &[COMMON, NESTED])?;
        notes.extend(outer.take_notes());
    }
    Ok(Loaded { spec, notes })
}

/// The `Spec` of a config alone, as its published checkpoints would give it: see [`Published`].
///
/// # Errors
/// See [`ArchError`].
pub fn load_config(config: &Value) -> Result<Loaded, ArchError> {
    load(config, &Published::of(config)?)
}

/// The family that `model_type` and `architectures` agree on, and whether the text model's keys are nested.
fn family(keys: &Keys<'_>) -> Result<(&'static Family, bool), ArchError> {
    let kind = keys.get::<String>("model_type")?;
    let classes = keys.get::<Vec<String>>("architectures")?.unwrap_or_default();
    let unknown = || {
        let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.classes).copied().collect();
        let (classes, kind) = (classes.join(", "), kind.as_deref().unwrap_or("none"));
        let classes = if classes.is_empty() { "none" } else { &classes };
        ArchError::Unknown {
            found: format!("{classes} (key 'architectures') of type {kind} (key 'model_type')"),
            known: known.join(", "),
        }
    };
    let by_class = match classes.as_slice() {
        [] => None,
        [class] => {
            let family = FAMILIES.iter().find(|family| family.classes.contains(&class.as_str()));
            Some(family.ok_or_else(unknown)?)
        }
        _ => return Err(unknown()),
    };
    let Some(kind) = &kind else {
        // Without a model_type only a class can tell the family, and the nesting tells itself.
        return by_class
            .map(|family| (family, !family.nested.is_empty() && keys.value("text_config").is_some()))
            .ok_or_else(unknown);
    };
    let holds = |list: &[&str]| list.contains(&kind.as_str());
    let by_type = FAMILIES.iter().find(|family| holds(family.types) || holds(family.nested)).ok_or_else(unknown)?;
    if by_class.is_some_and(|family| family.name != by_type.name) {
        return Err(keys.conflict("model_type", keys.name("architectures"), "they name different families"));
    }
    Ok((by_type, holds(by_type.nested)))
}

/// The nested keys may repeat the family's type, and their class.
fn text_type(family: &Family, text: &Keys<'_>) -> Result<(), ArchError> {
    if text.get::<String>("model_type")?.is_some_and(|kind| !family.types.contains(&kind.as_str())) {
        return Err(text
            .unsupported("model_type", format!("the text part of {} is {}", family.name, family.types.join(" or "))));
    }
    let classes = text.get::<Vec<String>>("architectures")?.unwrap_or_default();
    if classes.iter().any(|class| !family.classes.contains(&class.as_str())) {
        return Err(text.unsupported(
            "architectures",
            format!("the text part of {} is {}", family.name, family.classes.join(" or ")),
        ));
    }
    Ok(())
}
