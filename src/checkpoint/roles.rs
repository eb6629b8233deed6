//! What each stored tensor is for: the part of the model that reads it, and the layer.
//!
//! A stage of a pipeline fetches [`tensors_of`] its layers; the head stage also what stands at the model's two ends.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wordline_ir::Spec;
use wordline_ir::spec::{Attention, DeltaNet, Ffn, Layer, Linear, Mixer, Mlp, Moe, Norm, SharedExpert, View};

/// The part of a model that reads a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embedding and learned positions; the LM head too, where it is tied.
    Embedding,
    /// Projections and head norms of softmax attention.
    Attention,
    /// Projections, convolution, decay and output norm of a Gated DeltaNet.
    DeltaNet,
    /// Dense feed-forward networks, and the router and shared expert of a mixture.
    Mlp,
    /// The experts of a mixture.
    Experts,
    /// Norms between the parts.
    Norms,
    /// The LM head's own matrix and bias.
    Head,
    /// Held by the weight file, read by no part.
    Skipped,
}

impl Role {
    /// Every role, in the order of reports.
    pub const ALL: [Role; 8] = [
        Role::Embedding,
        Role::Attention,
        Role::DeltaNet,
        Role::Mlp,
        Role::Experts,
        Role::Norms,
        Role::Head,
        Role::Skipped,
    ];
}

/// One tensor's use. A tensor that several parts read has the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The part.
    pub role: Role,
    /// The layer; none at the model's two ends.
    pub layer: Option<usize>,
}

/// Every stored tensor that the Spec reads, by name.
#[must_use]
pub fn uses(spec: &Spec) -> BTreeMap<String, Use> {
    let mut uses = BTreeMap::new();
    visit(spec, &mut |role, layer, view| {
        for part in &view.parts {
            uses.entry(part.tensor.clone()).or_insert(Use { role, layer });
        }
    });
    uses
}

/// Names of the stored tensors that layers `layers` read; with `ends` also embedding, positions, final norm and LM head.
#[must_use]
pub fn tensors_of(spec: &Spec, layers: &Range<usize>, ends: bool) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    visit(spec, &mut |_, layer, view| {
        if layer.map_or(ends, |layer| layers.contains(&layer)) {
            names.extend(view.parts.iter().map(|part| part.tensor.clone()));
        }
    });
    names
}

type Visit<'a> = &'a mut dyn FnMut(Role, Option<usize>, &View);

/// Every view of a Spec. Fields are named one by one, so that a new one cannot be passed over.
fn visit(spec: &Spec, see: Visit<'_>) {
    let Spec { embed, positions, layers, final_norm, head, .. } = spec;
    see(Role::Embedding, None, embed);
    positions.iter().for_each(|view| see(Role::Embedding, None, view));
    for (number, layer) in layers.iter().enumerate() {
        let Layer { pre_mixer, mixer, post_mixer, pre_ffn, ffn, post_ffn } = layer;
        let at = Some(number);
        let norms = [Some(pre_mixer), post_mixer.as_ref(), Some(pre_ffn), post_ffn.as_ref()];
        norms.into_iter().flatten().for_each(|n| norm(n, Role::Norms, at, see));
        match mixer {
            Mixer::Attention(attention) => visit_attention(attention, at, see),
            Mixer::DeltaNet(net) => visit_delta_net(net, at, see),
        }
        match ffn {
            Ffn::Dense(dense) => mlp(dense, at, see),
            Ffn::Moe(moe) => visit_moe(moe, at, see),
        }
    }
    norm(final_norm, Role::Norms, None, see);
    linear(head, Role::Head, None, see);
}

fn visit_attention(attention: &Attention, at: Option<usize>, see: Visit<'_>) {
    let Attention {
        heads: _,
        kv_heads: _,
        head_dim: _,
        v_dim: _,
        scale: _,
        window: _,
        soft_cap: _,
        rope: _,
        q,
        k,
        v,
        gate,
        q_norm,
        k_norm,
        o,
    } = attention;
    let projections = [Some(q), Some(k), Some(v), gate.as_ref(), Some(o)];
    projections.into_iter().flatten().for_each(|l| linear(l, Role::Attention, at, see));
    [q_norm, k_norm].into_iter().flatten().for_each(|n| norm(n, Role::Attention, at, see));
}

fn visit_delta_net(net: &DeltaNet, at: Option<usize>, see: Visit<'_>) {
    let DeltaNet {
        key_heads: _,
        value_heads: _,
        key_dim: _,
        value_dim: _,
        conv_taps: _,
        conv_act: _,
        q_scale: _,
        l2_eps: _,
        qkv,
        z,
        b,
        a,
        conv,
        a_log,
        dt_bias,
        norm: output,
        o,
    } = net;
    [qkv, z, b, a, conv, o].into_iter().for_each(|l| linear(l, Role::DeltaNet, at, see));
    [a_log, dt_bias].into_iter().for_each(|view| see(Role::DeltaNet, at, view));
    norm(output, Role::DeltaNet, at, see);
}

fn visit_moe(moe: &Moe, at: Option<usize>, see: Visit<'_>) {
    let Moe { experts: _, top_k: _, renormalise: _, router, inter: _, act: _, gate_up, down, shared } = moe;
    linear(router, Role::Mlp, at, see);
    [gate_up, down].into_iter().for_each(|view| see(Role::Experts, at, view));
    if let Some(SharedExpert { mlp: shared, gate }) = shared {
        mlp(shared, at, see);
        gate.iter().for_each(|l| linear(l, Role::Mlp, at, see));
    }
}

fn mlp(mlp: &Mlp, at: Option<usize>, see: Visit<'_>) {
    let Mlp { inter: _, act: _, gate, up, down } = mlp;
    [gate.as_ref(), Some(up), Some(down)].into_iter().flatten().for_each(|l| linear(l, Role::Mlp, at, see));
}

fn linear(linear: &Linear, role: Role, at: Option<usize>, see: Visit<'_>) {
    let Linear { weight, bias } = linear;
    see(role, at, weight);
    bias.iter().for_each(|view| see(role, at, view));
}

fn norm(norm: &Norm, role: Role, at: Option<usize>, see: Visit<'_>) {
    let Norm { kind: _, weight, bias, eps: _ } = norm;
    see(role, at, weight);
    bias.iter().for_each(|view| see(role, at, view));
}
