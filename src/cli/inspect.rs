//! `wordline inspect`: what a checkpoint is, by evidence of its weights.

use super::args::{JsonArg, ModelArg};
use super::failure::Failure;
use super::out;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::roles::{Role, Use, uses};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::collections::BTreeMap;
use wordline_ir::Spec;
use wordline_ir::spec::{Activation, Attention, Ffn, Layer, Mixer, NormKind, RopeScaling, WeightLayout};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Also list the config keys that change nothing, with reasons
    #[arg(long)]
    notes: bool,
    /// List every tensor by itself; without it, like ones are counted together
    #[arg(long)]
    tensors: bool,
    /// The whole Spec as JSON, with every weight's place in the checkpoint
    #[arg(long)]
    spec: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// What `--json` reports. The facts stand beside the other keys and, once more, together under `spec`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    #[serde(flatten)]
    facts: Facts<'a>,
    layer_kinds: Vec<Kind>,
    weights: WeightsReport,
    spec_digest: String,
    notes: Vec<Note<'a>>,
    commit: Option<&'a str>,
    requests: u64,
    bytes_moved: u64,
    spec: Facts<'a>,
    /// Stored bytes by the part of the model that reads them.
    bytes: BTreeMap<Role, u64>,
    tensors: Vec<TensorRow<'a>>,
}

/// What the checkpoint is. Where layers differ, the single figures are the first layer's that has them.
#[derive(Clone, Serialize)]
struct Facts<'a> {
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
}

/// One stored tensor.
#[derive(Serialize)]
struct TensorRow<'a> {
    name: &'a str,
    dtype: String,
    shape: &'a [usize],
    file: &'a str,
    /// First byte in the file, and one past the last.
    range: [u64; 2],
    role: Role,
    layer: Option<usize>,
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
    if args.json.json { out::json(&report) } else { print(&report, args) }
}

fn report<'a>(name: &'a str, checkpoint: &'a Checkpoint) -> Report<'a> {
    let (facts, tensors) = (facts(&checkpoint.spec), tensors(checkpoint));
    let mut bytes: BTreeMap<Role, u64> = Role::ALL.map(|role| (role, 0)).into();
    for row in &tensors {
        *bytes.entry(row.role).or_default() += row.range[1] - row.range[0];
    }
    let repo = checkpoint.folder.repo();
    Report {
        model: name,
        facts: facts.clone(),
        layer_kinds: kinds(&checkpoint.spec),
        weights: weights(checkpoint),
        spec_digest: wordline_ir::spec_digest(&checkpoint.spec),
        notes: checkpoint.notes.iter().map(|n| Note { key: &n.key, reason: &n.reason }).collect(),
        commit: repo.map(|repo| repo.commit().as_str()),
        requests: repo.map_or(0, |repo| repo.meter().requests()),
        bytes_moved: repo.map_or(0, |repo| repo.meter().bytes()),
        spec: facts,
        bytes,
        tensors,
    }
}

/// Every stored tensor, file by file in the order of its bytes.
fn tensors(checkpoint: &Checkpoint) -> Vec<TensorRow<'_>> {
    let weights = &checkpoint.weights;
    let uses = uses(&checkpoint.spec);
    // Two stored tensors that are one matrix are used as it is.
    let uses: BTreeMap<&str, Use> =
        uses.iter().flat_map(|(name, used)| weights.stored_names(name).map(|stored| (stored, *used))).collect();
    let mut rows: Vec<_> = weights
        .entries()
        .map(|(file, entry)| {
            let Use { role, layer } =
                uses.get(entry.name.as_str()).copied().unwrap_or(Use { role: Role::Skipped, layer: None });
            let range = [entry.bytes.start, entry.bytes.end];
            let (name, dtype, shape) = (entry.name.as_str(), entry.dtype.to_string(), entry.shape.as_slice());
            TensorRow { name, dtype, shape, file, range, role, layer }
        })
        .collect();
    rows.sort_by_key(|row| (row.file, row.range));
    rows
}

fn facts(spec: &Spec) -> Facts<'_> {
    let attention = spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(attention),
        Mixer::DeltaNet(_) => None,
    });
    let (inter, act, gated) = spec.layers.first().map_or((None, None, None), |layer| match &layer.ffn {
        Ffn::Dense(mlp) => (Some(mlp.inter), Some(mlp.act), Some(mlp.gate.is_some())),
        Ffn::Moe(moe) => (Some(moe.inter), Some(moe.act), Some(true)),
    });
    let rope = attention.and_then(|a| a.rope.as_ref());
    Facts {
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
    }
}

fn weights(checkpoint: &Checkpoint) -> WeightsReport {
    let weights = &checkpoint.weights;
    let mut files: Vec<&str> = weights.entries().map(|(file, _)| file).collect();
    files.sort_unstable();
    files.dedup();
    WeightsReport {
        files: files.len(),
        tensors: weights.entries().count(),
        parameters: weights.parameters(),
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

fn print(report: &Report<'_>, args: &Args) -> Result<(), Failure> {
    let facts = &report.facts;
    out::line(format_args!("{}: {}", report.model, facts.family))?;
    let rows = [
        ("layers", facts.layers.to_string()),
        ("hidden", facts.hidden.to_string()),
        ("vocabulary", facts.vocab.to_string()),
        ("positions", facts.max_pos.to_string()),
        ("norm", format!("{}, eps {}", name(&facts.norm), facts.norm_eps)),
        ("activation", facts.act.map_or_else(|| "none".to_owned(), |a| name(&a))),
        ("rotary", facts.rope.map_or_else(|| "none".to_owned(), name)),
        ("head", if facts.tie { "tied to the embedding" } else { "its own matrix" }.to_owned()),
        ("q, k, v", if facts.qkv_fused { "stored as one tensor" } else { "stored apart" }.to_owned()),
        ("matrices", format!("stored {}", name(&facts.weight_layout))),
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
    for (role, bytes) in report.bytes.iter().filter(|(_, bytes)| **bytes > 0) {
        out::line(format_args!("  {:<12} {bytes} bytes", name(role)))?;
    }
    print_tensors(&report.tensors, args.tensors)?;
    if let Some(commit) = report.commit {
        let (requests, bytes) = (report.requests, report.bytes_moved);
        out::line(format_args!("  commit {commit}: {requests} requests made, {bytes} bytes moved"))?;
    }
    if args.notes {
        for note in &report.notes {
            out::line(format_args!("  config key '{}': {}", note.key, note.reason))?;
        }
    }
    Ok(())
}

/// The tensor table. Tensors that differ only by numbers in their names are one line, unless each is wanted.
fn print_tensors(rows: &[TensorRow<'_>], each: bool) -> Result<(), Failure> {
    let mut lines: Vec<(String, String, usize, u64)> = Vec::new();
    let mut places = BTreeMap::new();
    for row in rows {
        let form = format!("{} {:?}", row.dtype, row.shape);
        let pattern = if each { row.name.to_owned() } else { pattern(row.name) };
        let place = *places.entry((pattern.clone(), form.clone())).or_insert(lines.len());
        if place == lines.len() {
            lines.push((pattern, form, 0, 0));
        }
        let (_, _, count, bytes) = &mut lines[place];
        *count += 1;
        *bytes += row.range[1] - row.range[0];
    }
    let width = lines.iter().map(|line| line.0.len()).max().unwrap_or(0).min(80);
    for (name, form, count, bytes) in &lines {
        let count = if *count == 1 { String::new() } else { format!("{count} of ") };
        out::line(format_args!("  {name:<width$}  {count}{form}, {bytes} bytes"))?;
    }
    Ok(())
}

/// A tensor's name with `*` for each part that is a number.
fn pattern(name: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*" } else { part }.to_owned();
    name.split('.').map(part).collect::<Vec<_>>().join(".")
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
