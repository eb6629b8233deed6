//! The lists that say what changes nothing, as tables for docs/checkpoint.md.

use super::inert::{self, Fixed, Inert};
use super::tensors::{self, Skip};
use super::{FAMILIES, Family};
use std::fmt::Write;

/// Which families a list belongs to.
const INERT: &[(&str, &[Inert])] = &[
    ("all", inert::COMMON),
    ("beside text_config", inert::NESTED),
    ("gemma3", inert::GEMMA3),
    ("gpt2", inert::GPT2),
    ("llama", inert::LLAMA),
    ("phi3", inert::PHI3),
    ("qwen3_5, qwen3_moe, qwen3_next", inert::UNWINDOWED),
    ("qwen3_5", inert::QWEN3_5),
    ("qwen3_moe, qwen3_next", inert::MIXTURE),
];

const FIXED: &[(&str, &[Fixed])] = &[
    ("all", inert::FIXED),
    ("gemma3", inert::GEMMA3_FIXED),
    ("llama", inert::LLAMA_FIXED),
    ("phi3", inert::PHI3_FIXED),
    ("qwen2, qwen3", inert::QWEN2_FIXED),
    ("qwen3_5, qwen3_moe, qwen3_next", inert::UNWINDOWED_FIXED),
];

const SKIPPED: &[(&str, &[Skip])] = &[
    ("all but gpt2", tensors::SKIP_ROTARY),
    ("gpt2", tensors::SKIP_GPT2),
    ("qwen3_5, qwen3_next", tensors::SKIP_AHEAD),
    ("gemma3, qwen3_5", tensors::SKIP_VISION),
];

/// The families and the lists, in Markdown.
#[must_use]
pub fn tables() -> String {
    let mut text = String::from("### Families\n\n| family | `model_type` | `architectures` |\n|---|---|---|\n");
    for Family { name, types, nested, classes, .. } in FAMILIES {
        let types: Vec<String> = types.iter().chain(*nested).map(|kind| format!("`{kind}`")).collect();
        let classes: Vec<String> = classes.iter().map(|class| format!("`{class}`")).collect();
        row(&mut text, &[name, &types.join(", "), &classes.join(", ")]);
    }
    text += "\n### Keys accepted with one value only\n\n";
    text += "| key | families | value | another would mean |\n|---|---|---|---|\n";
    for (families, Fixed { key, shown, reason, .. }) in with_families(FIXED) {
        row(&mut text, &[&format!("`{key}`"), families, shown, reason]);
    }
    text += "\n### Inert keys\n\n| key | families | why it changes no logit |\n|---|---|---|\n";
    for (families, Inert { key, reason }) in with_families(INERT) {
        row(&mut text, &[&format!("`{key}`"), families, reason]);
    }
    text += "\n### Skipped tensors\n\n| name | families | why |\n|---|---|---|\n";
    for (families, Skip { pattern, reason }) in with_families(SKIPPED) {
        row(&mut text, &[&format!("`{pattern}`"), families, reason]);
    }
    text
}

fn with_families<T>(
    lists: &'static [(&'static str, &'static [T])],
) -> impl Iterator<Item = (&'static str, &'static T)> {
    lists.iter().flat_map(|(families, list)| list.iter().map(|entry| (*families, entry)))
}

fn row(text: &mut String, cells: &[&str]) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}
