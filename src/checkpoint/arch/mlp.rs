//! Dense feed-forward networks, with separate or fused gate and up rows.

use super::error::ArchError;
use super::keys::Keys;
use super::tensors::{Dim, Store, Tensors};
use wordline_ir::spec::{Activation, Mlp, RowRange};

/// The activation that a key names.
pub(super) fn activation(keys: &Keys<'_>, key: &str, default: &str) -> Result<Activation, ArchError> {
    let name = keys.or(key, default.to_owned())?;
    match name.as_str() {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::GeluErf),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        _ => Err(keys.unsupported(key, "known are silu, swish, gelu, gelu_new, gelu_pytorch_tanh, relu")),
    }
}

/// A gated network at `at`: gate_proj and up_proj, or gate_up_proj with the gate rows first; then down_proj.
pub(super) fn gated(
    tensors: &Tensors<'_>,
    at: &str,
    of: &str,
    hidden: &Dim,
    inter: &Dim,
    act: Activation,
) -> Result<Mlp, ArchError> {
    let fused = format!("{at}.gate_up_proj");
    let (gate, up) = if tensors.shape(&format!("{fused}.weight")).is_some() {
        let all = inter.scaled(2);
        let read = |start: usize, end: usize| {
            let purpose = format!("gate and up projection of {of}");
            tensors.rows_of(&fused, &purpose, Store::OutIn, &all, hidden, vec![RowRange { start, end }])
        };
        (read(0, inter.size)?, read(inter.size, all.size)?)
    } else {
        let read = |rest: &str, what: &str| {
            tensors.linear(&format!("{at}.{rest}"), &format!("{what} projection of {of}"), inter, hidden)
        };
        (read("gate_proj", "gate")?, read("up_proj", "up")?)
    };
    let down = tensors.linear(&format!("{at}.down_proj"), &format!("down projection of {of}"), hidden, inter)?;
    Ok(Mlp { inter: inter.size, act, gate: Some(gate), up, down })
}
