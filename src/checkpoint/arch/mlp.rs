//! Feed-forward networks: dense ones with separate or fused gate and up rows, and mixtures of experts.

use super::error::ArchError;
use super::keys::Keys;
use super::tensors::{Dim, Store, Tensors};
use wordline_ir::spec::{Activation, Mlp, Moe, Part, RowRange, SharedExpert, View};

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

/// What the config says of a mixture, the same for all layers.
pub(super) struct Mixture {
    pub(super) hidden: Dim,
    pub(super) experts: Dim,
    pub(super) inter: Dim,
    pub(super) shared: Dim,
    pub(super) top_k: usize,
    pub(super) renormalise: bool,
    pub(super) act: Activation,
}

impl Mixture {
    /// The mixture at `at`. Experts are stored one by one, or stacked in one tensor for gate and up and one for down.
    pub(super) fn layer(&self, tensors: &Tensors<'_>, at: &str, of: &str) -> Result<Moe, ArchError> {
        let shared = format!("the shared expert of {of}");
        let one = Dim::new(1, "one logit");
        Ok(Moe {
            experts: self.experts.size,
            top_k: self.top_k,
            renormalise: self.renormalise,
            router: tensors.linear(&format!("{at}.gate"), &format!("router of {of}"), &self.experts, &self.hidden)?,
            inter: self.inter.size,
            act: self.act,
            gate_up: self.gate_up(tensors, at, of)?,
            down: self.down(tensors, at, of)?,
            shared: Some(SharedExpert {
                mlp: gated(tensors, &format!("{at}.shared_expert"), &shared, &self.hidden, &self.shared, self.act)?,
                gate: Some(tensors.linear(
                    &format!("{at}.shared_expert_gate"),
                    &format!("gate of {shared}"),
                    &one,
                    &self.hidden,
                )?),
            }),
        })
    }

    fn gate_up(&self, tensors: &Tensors<'_>, at: &str, of: &str) -> Result<View, ArchError> {
        let (stack, purpose) = (format!("{at}.experts.gate_up_proj"), format!("gate and up projections of {of}"));
        if tensors.shape(&stack).is_some() {
            return self.stack(tensors, &stack, &purpose, &self.inter.scaled(2), &self.hidden);
        }
        self.one_by_one(tensors, at, of, &["gate_proj", "up_proj"], &self.inter, &self.hidden)
    }

    fn down(&self, tensors: &Tensors<'_>, at: &str, of: &str) -> Result<View, ArchError> {
        let (stack, purpose) = (format!("{at}.experts.down_proj"), format!("down projections of {of}"));
        if tensors.shape(&stack).is_some() {
            return self.stack(tensors, &stack, &purpose, &self.hidden, &self.inter);
        }
        self.one_by_one(tensors, at, of, &["down_proj"], &self.hidden, &self.inter)
    }

    /// A stack [experts, out, in] as the matrix [experts * out, in] that its bytes are.
    fn stack(
        &self,
        tensors: &Tensors<'_>,
        rest: &str,
        purpose: &str,
        out: &Dim,
        inner: &Dim,
    ) -> Result<View, ArchError> {
        let part = tensors.take(&tensors.name(rest), purpose, &[&self.experts, out, inner])?;
        Ok(View::whole(part.tensor, &[self.experts.times(out).size, inner.size]))
    }

    fn one_by_one(
        &self,
        tensors: &Tensors<'_>,
        at: &str,
        of: &str,
        projections: &[&str],
        out: &Dim,
        inner: &Dim,
    ) -> Result<View, ArchError> {
        let mut parts = Vec::new();
        // The first expert that the file lacks ends the loop, however many the config claims.
        for expert in 0..self.experts.size {
            for projection in projections {
                let rest = format!("{at}.experts.{expert}.{projection}.weight");
                let purpose = format!("{projection} of expert {expert} of {of} (num_experts {})", self.experts.size);
                let part = tensors.take(&tensors.name(&rest), &purpose, &[out, inner])?;
                parts.push(Part { rows: vec![RowRange { start: 0, end: out.size }], ..part });
            }
        }
        Ok(View { parts, add_one: false })
    }
}
