//! Checks that a Spec's facts agree well enough to write its step; whether shapes fit is lift's to say.

use wordline_ir::spec::{
    Attention, DeltaNet, Ffn, Layer, Linear, Mixer, Mlp, Moe, Norm, NormKind, Part, Rope, RopeScaling, View,
};
use wordline_ir::{ProgramError, Spec};

type Check = Result<(), ProgramError>;

/// Refuse `unless` holds.
fn need(holds: bool, what: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(ProgramError::Author { what: what() }) }
}

/// All facts of `spec`, and the cache's length.
pub(super) fn check(spec: &Spec, ctx: usize) -> Check {
    need(ctx > 0, || "a cache of 0 positions".to_owned())?;
    need(spec.hidden > 0, || "hidden is 0".to_owned())?;
    need(spec.max_pos > 0, || "the model takes 0 positions".to_owned())?;
    need(!spec.layers.is_empty(), || "the model has no layers".to_owned())?;
    table("embedding", &spec.embed, spec.vocab, spec.hidden)?;
    if let Some(positions) = &spec.positions {
        table("learned positions", positions, spec.max_pos, spec.hidden)?;
    }
    factor("embedding scale", spec.embed_scale)?;
    factor("logit scale", spec.logit_scale)?;
    spec.logit_cap.map_or(Ok(()), |cap| positive("logit cap", cap))?;
    for (index, layer) in spec.layers.iter().enumerate() {
        check_layer(&format!("layer {index}"), layer, spec.hidden)?;
    }
    norm("final norm", &spec.final_norm)?;
    linear("head", &spec.head)?;
    need(spec.head.weight.rows() == spec.vocab, || {
        format!("head has {} rows, the vocabulary {}", spec.head.weight.rows(), spec.vocab)
    })?;
    need(!spec.tie || spec.head.weight == spec.embed, || {
        "head: tied to the embedding, but its values come from elsewhere".to_owned()
    })
}

fn check_layer(at: &str, layer: &Layer, hidden: usize) -> Check {
    norm(&format!("{at}, norm before the mixer"), &layer.pre_mixer)?;
    match &layer.mixer {
        Mixer::Attention(attention) => check_attention(&format!("{at}, attention"), attention)?,
        Mixer::DeltaNet(delta) => check_delta(&format!("{at}, delta net"), delta)?,
    }
    optional_norm(&format!("{at}, norm after the mixer"), layer.post_mixer.as_ref())?;
    norm(&format!("{at}, norm before the ffn"), &layer.pre_ffn)?;
    match &layer.ffn {
        Ffn::Dense(mlp) => check_mlp(&format!("{at}, ffn"), mlp)?,
        Ffn::Moe(moe) => check_moe(&format!("{at}, mixture of experts"), moe, hidden)?,
    }
    optional_norm(&format!("{at}, norm after the ffn"), layer.post_ffn.as_ref())
}

fn check_attention(at: &str, a: &Attention) -> Check {
    need(a.heads > 0 && a.kv_heads > 0 && a.heads.is_multiple_of(a.kv_heads), || {
        format!("{at}: {} query heads cannot share {} key heads evenly", a.heads, a.kv_heads)
    })?;
    heads(at, "query", a.heads, a.head_dim)?;
    heads(at, "value", a.heads, a.v_dim)?;
    positive(&format!("{at}: score scale"), a.scale)?;
    need(a.window != Some(0), || format!("{at}: a window of 0 positions sees nothing"))?;
    a.soft_cap.map_or(Ok(()), |cap| positive(&format!("{at}: soft cap"), cap))?;
    a.rope.as_ref().map_or(Ok(()), |rope| check_rope(at, rope, a.head_dim))?;
    for (name, part) in [("q", Some(&a.q)), ("k", Some(&a.k)), ("v", Some(&a.v)), ("gate", a.gate.as_ref())] {
        part.map_or(Ok(()), |part| linear(&format!("{at}: {name}"), part))?;
    }
    optional_norm(&format!("{at}: q norm"), a.q_norm.as_ref())?;
    optional_norm(&format!("{at}: k norm"), a.k_norm.as_ref())?;
    linear(&format!("{at}: o"), &a.o)
}

fn check_rope(at: &str, rope: &Rope, head_dim: usize) -> Check {
    need(rope.rot > 0 && rope.rot.is_multiple_of(2) && rope.rot <= head_dim, || {
        format!("{at}: {} rotated dimensions of a head of {head_dim}; they are even and at most the head's", rope.rot)
    })?;
    need(rope.theta.is_finite() && rope.theta > 0.0, || format!("{at}: rotary base {}", rope.theta))?;
    let numbers: &[f64] = match &rope.scaling {
        RopeScaling::Default => &[],
        RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor, .. } => &[*factor],
        RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, .. } => {
            &[*factor, *beta_fast, *beta_slow, *attention_factor]
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, .. } => {
            &[*factor, *low_freq_factor, *high_freq_factor]
        }
        RopeScaling::LongRope { short, long, attention_factor, .. } => {
            need(short.len() == rope.rot / 2 && long.len() == rope.rot / 2, || {
                format!(
                    "{at}: longrope lists hold {} and {} divisors, {} are needed",
                    short.len(),
                    long.len(),
                    rope.rot / 2
                )
            })?;
            need(short.iter().chain(long).all(|x| x.is_finite() && *x > 0.0), || {
                format!("{at}: a longrope divisor is not a positive number")
            })?;
            &[*attention_factor]
        }
    };
    need(numbers.iter().all(|x| x.is_finite() && *x > 0.0), || {
        format!("{at}: a rotary scaling number is not positive: {:?}", rope.scaling)
    })
}

fn check_delta(at: &str, d: &DeltaNet) -> Check {
    need(d.key_heads > 0 && d.value_heads > 0 && d.value_heads.is_multiple_of(d.key_heads), || {
        format!("{at}: {} value heads cannot share {} key heads evenly", d.value_heads, d.key_heads)
    })?;
    heads(at, "key", d.value_heads, d.key_dim)?;
    heads(at, "value", d.value_heads, d.value_dim)?;
    heads(at, "memory", d.value_heads, d.key_dim.saturating_mul(d.value_dim))?;
    let keys = heads(at, "key", d.key_heads, d.key_dim)?;
    let values = heads(at, "value", d.value_heads, d.value_dim)?;
    need(keys.checked_mul(2).and_then(|n| n.checked_add(values)).is_some(), || format!("{at}: too many channels"))?;
    need(d.conv_taps > 0, || format!("{at}: a convolution of 0 taps"))?;
    positive(&format!("{at}: query scale"), d.q_scale)?;
    epsilon(&format!("{at}: l2 eps"), d.l2_eps)?;
    let parts = [("qkv", &d.qkv), ("z", &d.z), ("b", &d.b), ("a", &d.a), ("conv", &d.conv), ("o", &d.o)];
    for (name, part) in parts {
        linear(&format!("{at}: {name}"), part)?;
    }
    vector(&format!("{at}: a_log"), &d.a_log)?;
    vector(&format!("{at}: dt_bias"), &d.dt_bias)?;
    norm(&format!("{at}: norm"), &d.norm)
}

fn check_mlp(at: &str, mlp: &Mlp) -> Check {
    need(mlp.inter > 0 && mlp.up.weight.rows() == mlp.inter, || {
        format!("{at}: up has {} rows, the inner width is {}", mlp.up.weight.rows(), mlp.inter)
    })?;
    mlp.gate.as_ref().map_or(Ok(()), |gate| linear(&format!("{at}: gate"), gate))?;
    linear(&format!("{at}: up"), &mlp.up)?;
    linear(&format!("{at}: down"), &mlp.down)
}

fn check_moe(at: &str, moe: &Moe, hidden: usize) -> Check {
    need(moe.top_k > 0 && moe.top_k <= moe.experts, || {
        format!("{at}: {} experts picked of {}", moe.top_k, moe.experts)
    })?;
    need(moe.inter > 0 && moe.top_k.checked_mul(moe.inter).and_then(|n| n.checked_mul(2)).is_some(), || {
        format!("{at}: inner width {}", moe.inter)
    })?;
    linear(&format!("{at}: router"), &moe.router)?;
    for (name, stack, rows) in [("gate_up", &moe.gate_up, moe.inter.checked_mul(2)), ("down", &moe.down, Some(hidden))]
    {
        view(&format!("{at}: {name}"), stack)?;
        let rows = rows.and_then(|rows| rows.checked_mul(moe.experts));
        need(Some(stack.rows()) == rows, || {
            format!("{at}: {name} has {} rows, {} experts need {rows:?}", stack.rows(), moe.experts)
        })?;
    }
    match &moe.shared {
        Some(shared) => {
            check_mlp(&format!("{at}: shared expert"), &shared.mlp)?;
            shared.gate.as_ref().map_or(Ok(()), |gate| linear(&format!("{at}: shared expert's gate"), gate))
        }
        None => Ok(()),
    }
}

fn heads(at: &str, kind: &str, count: usize, dim: usize) -> Result<usize, ProgramError> {
    let width = count.checked_mul(dim).filter(|n| *n > 0);
    width.ok_or_else(|| ProgramError::Author { what: format!("{at}: {count} {kind} heads of {dim} dimensions") })
}

fn norm(at: &str, norm: &Norm) -> Check {
    epsilon(&format!("{at}: eps"), norm.eps)?;
    vector(at, &norm.weight)?;
    need(norm.kind == NormKind::Ln || norm.bias.is_none(), || format!("{at}: an rms norm has no bias"))?;
    norm.bias.as_ref().map_or(Ok(()), |bias| vector(&format!("{at}: bias"), bias))
}

fn optional_norm(at: &str, optional: Option<&Norm>) -> Check {
    optional.map_or(Ok(()), |some| norm(at, some))
}

fn linear(at: &str, linear: &Linear) -> Check {
    view(at, &linear.weight)?;
    linear.bias.as_ref().map_or(Ok(()), |bias| vector(&format!("{at}: bias"), bias))
}

fn table(at: &str, table: &View, rows: usize, cols: usize) -> Check {
    view(at, table)?;
    need(rows > 0 && table.rows() == rows && table.cols() == cols, || {
        format!("{at}: [{}, {}] where [{rows}, {cols}] is needed", table.rows(), table.cols())
    })
}

fn vector(at: &str, vector: &View) -> Check {
    view(at, vector)?;
    need(vector.cols() == 1, || format!("{at}: rows of {} elements where a vector is needed", vector.cols()))
}

/// Every row that a view names lies in its tensor, and all rows are equally long.
fn view(at: &str, view: &View) -> Check {
    need(!view.parts.is_empty(), || format!("{at}: no values"))?;
    let cols = view.cols();
    for part in &view.parts {
        let held = stored_rows(part);
        need(part.cols() == cols && cols > 0, || {
            format!("{at}: '{}' has rows of {}, others of {cols}", part.tensor, part.cols())
        })?;
        need(part.rows.iter().all(|r| r.start < r.end && r.end <= held), || {
            format!("{at}: '{}' holds {held} rows; not all of {:?} lie among them", part.tensor, part.rows)
        })?;
    }
    let rows = view.parts.iter().flat_map(|p| &p.rows).try_fold(0usize, |sum, run| sum.checked_add(run.len()));
    need(rows.and_then(|rows| rows.checked_mul(cols)).is_some_and(|n| n > 0), || format!("{at}: too many values"))
}

/// Rows of a stored tensor once read through its part's transpose.
fn stored_rows(part: &Part) -> usize {
    let at = usize::from(part.transpose && part.shape.len() == 2);
    part.shape.get(at).copied().unwrap_or(0)
}

fn factor(at: &str, value: f32) -> Check {
    need(value.is_finite() && value != 0.0, || format!("{at} is {value}"))
}

fn positive(at: &str, value: f32) -> Check {
    need(value.is_finite() && value > 0.0, || format!("{at} is {value}"))
}

fn epsilon(at: &str, value: f32) -> Check {
    need(value.is_finite() && value >= 0.0, || format!("{at} is {value}"))
}
