//! `wordline inspect`: what a checkpoint is, by evidence of its weights.

use super::args::{JsonArg, ModelArg};
use super::failure::Failure;
use super::out;
use clap::Args as ClapArgs;
use serde::Serialize;
use wordline_ir::Spec;
use wordline_ir::spec::{Activation, Attention, Ffn, Layer, Mixer, NormKind, RopeScaling, WeightLayout};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Also list the config keys that change nothing, with reasons
    #[arg(long)]
    notes: bool,
    /// The whole Spec as JSON, with every weight's place in the checkpoint
    #[arg(long)]
    spec: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// What `--json` reports. Where layers differ, the single figures are the first layer's that has them.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    family: &'a str,
    layers: usize,
    hidden: usize,
    heads: Option<usize>,
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    inter: Option<usize>,
    vocab: usize,
    max_pos: usize,
    norm: NormKind,
    norm_eps: f32,
    act: Option<Activation>,
    gated: Option<bool>,
    rope: Option<&'a RopeScaling>,
    rope_theta: Option<f64>,
    tie: bool,
    qkv_fused: bool,
    bias: bool,
    weight_layout: WeightLayout,
    layer_kinds: Vec<Kind>,
    weights: WeightsReport,
    spec_digest: String,
    notes: Vec<Note<'a>>,
}

/// Layers of one kind.
#[derive(Serialize)]
struct Kind {
    kind: String,
    layers: Vec<usize>,
}

#[derive(Serialize)]
struct WeightsReport {
    files: usize,
    tensors: usize,
    parameters: u64,
    stored_bytes: u64,
    index_digest: String,
}

#[derive(Serialize)]
struct Note<'a> {
    key: &'a str,
    reason: &'a str,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let model = args.model.open()?;
    let checkpoint = &model.checkpoint;
    if args.spec {
        return out::json(&checkpoint.spec);
    }
    let report = report(&args.model.model, checkpoint);
    if args.json.json { out::json(&report) } else { print(&report, args.notes) }
}

fn report<'a>(name: &'a str, checkpoint: &'a crate::checkpoint::Checkpoint) -> Report<'a> {
    let spec = &checkpoint.spec;
    let attention = spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(attention),
        Mixer::DeltaNet(_) => None,
    });
    let (inter, act, gated) = spec.layers.first().map_or((None, None, None), |layer| match &layer.ffn {
        Ffn::Dense(mlp) => (Some(mlp.inter), Some(mlp.act), Some(mlp.gate.is_some())),
        Ffn::Moe(moe) => (Some(moe.inter), Some(moe.act), Some(true)),
    });
    let rope = attention.and_then(|a| a.rope.as_ref());
    Report {
        model: name,
        family: &spec.family,
        layers: spec.layers.len(),
        hidden: spec.hidden,
        heads: attention.map(|a| a.heads),
        kv_heads: attention.map(|a| a.kv_heads),
        head_dim: attention.map(|a| a.head_dim),
        inter,
        vocab: spec.vocab,
        max_pos: spec.max_pos,
        norm: spec.final_norm.kind,
        norm_eps: spec.final_norm.eps,
        act,
        gated,
        rope: rope.map(|r| &r.scaling),
        rope_theta: rope.map(|r| r.theta),
        tie: spec.tie,
        qkv_fused: spec.qkv_fused,
        bias: attention.is_some_and(|a| a.q.bias.is_some()),
        weight_layout: spec.weight_layout,
        layer_kinds: kinds(spec),
        weights: weights(checkpoint),
        spec_digest: wordline_ir::spec_digest(spec),
        notes: checkpoint.notes.iter().map(|n| Note { key: &n.key, reason: &n.reason }).collect(),
    }
}

fn weights(checkpoint: &crate::checkpoint::Checkpoint) -> WeightsReport {
    let weights = &checkpoint.weights;
    let mut files: Vec<&str> = weights.entries().map(|(file, _)| file).collect();
    files.sort_unstable();
    files.dedup();
    WeightsReport {
        files: files.len(),
        tensors: weights.entries().count(),
        parameters: weights.entries().map(|(_, e)| e.shape.iter().map(|d| *d as u64).product::<u64>()).sum(),
        stored_bytes: weights.stored_bytes(),
        index_digest: weights.index_digest(),
    }
}

/// The layers by kind, kinds in order of their first layer.
fn kinds(spec: &Spec) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for (number, layer) in spec.layers.iter().enumerate() {
        let kind = describe(layer);
        match kinds.iter_mut().find(|k| k.kind == kind) {
            Some(known) => known.layers.push(number),
            None => kinds.push(Kind { kind, layers: vec![number] }),
        }
    }
    kinds
}

/// What a layer is, in a line.
fn describe(layer: &Layer) -> String {
    let mixer = match &layer.mixer {
        Mixer::Attention(attention) => describe_attention(attention),
        Mixer::DeltaNet(d) => format!(
            "gated delta net, {} key and {} value heads of {} and {}, convolution of {}",
            d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.conv_taps
        ),
    };
    let ffn = match &layer.ffn {
        Ffn::Dense(mlp) => format!("{}mlp of {}", if mlp.gate.is_some() { "gated " } else { "" }, mlp.inter),
        Ffn::Moe(moe) => {
            let shared = moe.shared.as_ref().map(|s| format!(" and one shared of {}", s.mlp.inter)).unwrap_or_default();
            format!("{} of {} experts of {}{shared}", moe.top_k, moe.experts, moe.inter)
        }
    };
    format!("{mixer}; {ffn}")
}

fn describe_attention(a: &Attention) -> String {
    let mut text = format!("attention, {} heads on {} of {}", a.heads, a.kv_heads, a.head_dim);
    if let Some(window) = a.window {
        text += &format!(", window {window}");
    }
    if let Some(rope) = &a.rope {
        text += &format!(", rotary over {} by {}", rope.rot, rope.theta);
    }
    for (has, what) in [
        (a.gate.is_some(), "output gate"),
        (a.q_norm.is_some() || a.k_norm.is_some(), "head norms"),
        (a.q.bias.is_some(), "biases"),
        (a.soft_cap.is_some(), "soft cap"),
    ] {
        if has {
            text += &format!(", {what}");
        }
    }
    text
}

fn print(report: &Report<'_>, notes: bool) -> Result<(), Failure> {
    out::line(format_args!("{}: {}", report.model, report.family))?;
    let rows = [
        ("layers", report.layers.to_string()),
        ("hidden", report.hidden.to_string()),
        ("vocabulary", report.vocab.to_string()),
        ("positions", report.max_pos.to_string()),
        ("norm", format!("{}, eps {}", name(&report.norm), report.norm_eps)),
        ("activation", report.act.map_or_else(|| "none".to_owned(), |a| name(&a))),
        ("rotary", report.rope.map_or_else(|| "none".to_owned(), name)),
        ("head", if report.tie { "tied to the embedding" } else { "its own matrix" }.to_owned()),
        ("q, k, v", if report.qkv_fused { "stored as one tensor" } else { "stored apart" }.to_owned()),
        ("matrices", format!("stored {}", name(&report.weight_layout))),
        (
            "weights",
            format!(
                "{} parameters in {} tensors, {} bytes in {} file{}",
                report.weights.parameters,
                report.weights.tensors,
                report.weights.stored_bytes,
                report.weights.files,
                if report.weights.files == 1 { "" } else { "s" }
            ),
        ),
        ("spec", report.spec_digest.clone()),
    ];
    for (what, value) in rows {
        out::line(format_args!("  {what:<12} {value}"))?;
    }
    for kind in &report.layer_kinds {
        out::line(format_args!("  layers {}: {}", ranges(&kind.layers), kind.kind))?;
    }
    if notes {
        for note in &report.notes {
            out::line(format_args!("  config key '{}': {}", note.key, note.reason))?;
        }
    }
    Ok(())
}

/// Rising numbers as `0-2, 5`.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let text = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// A value by the name that it has in JSON.
fn name(value: &impl Serialize) -> String {
    let json = serde_json::to_value(value).unwrap_or_default();
    json.as_str().map_or_else(|| json.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_joined_to_ranges() {
        assert_eq!(super::ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(super::ranges(&[]), "");
    }
}
