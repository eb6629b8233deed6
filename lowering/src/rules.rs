//! The rule table: every rule by name, in phases, read top to bottom.

mod activations;
mod attention;
mod delta;
mod ends;
mod linear;
mod moe;
mod norms;
mod packs;
mod pattern;
mod rotary;

use crate::fuse::{Phase, Rule};

macro_rules! rules {
    ($($module:ident :: $name:ident = $doc:literal,)+) => {
        &[$(Rule { name: stringify!($name), doc: $doc, apply: $module::$name },)+]
    };
}

/// The table. A rule sees what the rules above it made.
pub const PHASES: &[Phase] = &[
    Phase {
        name: "parts: what larger blocks are made of",
        rules: rules! {
            // Before rms_norm, which a centred vector would satisfy too.
            norms::layer_norm = "(x - mean) * rsqrt(mean((x - mean)^2) + eps) * w (+ b) -> layer_norm",
            norms::rms_norm = "x * rsqrt(mean(x^2) + eps) * w -> rms_norm",
            norms::l2 = "x * rsqrt(sum(x^2) + eps) -> l2",
            activations::silu = "x * sigmoid(x) -> silu",
            activations::gelu_erf = "(0.5 x) * (erf(x / sqrt 2) + 1) -> gelu_erf",
            activations::gelu_tanh = "(0.5 x) * (tanh(sqrt(2/pi) (x + 0.044715 x^3)) + 1) -> gelu_tanh",
            activations::relu = "max(x, 0) -> relu",
            activations::soft_cap = "tanh(x / cap) * cap -> soft_cap",
            activations::softmax = "exp(x - max) / sum -> softmax",
            rotary::rotate_halves = "x * cos + (-second half | first half) * sin -> rotate",
            rotary::rotate_pairs = "x * cos + (-second | first of each pair) * sin -> rotate",
            rotary::rotate_part = "rotate(first dimensions) | the others -> rotate",
        },
    },
    Phase {
        name: "attention: cache, scores, softmax and context; then what happens to q | k | v before it",
        rules: rules! {
            attention::attend = "append k and v, softmax(mask(cap(scale q k^T))) v -> pack, cache_append, attend",
            attention::rope = "pack(scale(rotate q), rotate k, v) -> rope of pack",
            attention::scale_q = "pack(scale q, k, v) -> scale_first of pack",
            attention::head_norm = "pack(rms_norm q, rms_norm k, v) -> head_norm of pack",
        },
    },
    Phase {
        name: "gated delta net: convolution, recurrence, and what happens around it",
        rules: rules! {
            delta::conv = "activation(sum of ring * taps (+ b)) -> conv",
            delta::delta = "load, fade, find, correct, store, read -> packs, delta",
            delta::l2_norm = "pack(l2 q, l2 k, v) -> l2_norm of pack",
            delta::delta_gate = "pack(exp(-exp(a_log) softplus(a + dt_bias)), sigmoid b) -> delta_gate of pack",
            delta::gated_norm = "rms_norm(x) * activation(z) -> gated_norm",
        },
    },
    Phase {
        name: "feed-forward networks and gates",
        rules: rules! {
            moe::top_k = "softmax, picks, their probabilities (/ their sum) -> top_k, pick_weights",
            moe::routed_spread = "x through picked matrices -> routed_spread",
            moe::routed_gather = "sum of weight * (each pick's vector through its matrix) -> routed_gather",
            activations::gated_act = "activation(gate) * up -> act of gate | up",
            activations::act = "activation(x) -> act",
            activations::gate = "x * sigmoid(g) -> gate",
        },
    },
    Phase {
        // After the delta net's gates: the bias that they add to a projection is theirs.
        name: "linear layers; what lies side by side is made side by side",
        rules: rules! {
            linear::linear = "x W^T (+ b) -> linear",
            packs::pack_of_slices = "pack(slices of x, in order) -> x",
            packs::pack_of_linears = "pack(linears of x) -> one linear of x",
        },
    },
    Phase {
        name: "both ends, and sums",
        rules: rules! {
            ends::embed = "scale * row of token (+ row of position) -> embed",
            ends::logit_scale = "linear * constant -> scale",
            ends::residual = "x + y -> residual",
        },
    },
];

/// A rule by its name.
#[must_use]
pub fn rule(name: &str) -> Option<&'static Rule> {
    PHASES.iter().flat_map(|phase| phase.rules).find(|rule| rule.name == name)
}
