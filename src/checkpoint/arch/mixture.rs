//! Mixtures of experts: which layers have one, its router, its experts, and the expert that every row takes.

use super::decoder::Decoder;
use super::error::ArchError;
use super::keys::Keys;
use super::mlp::gated;
use super::tensors::{Dim, Tensors};
use wordline_ir::spec::{Activation, Ffn, Moe, Part, RowRange, SharedExpert, View};

/// The keys that say which networks are dense.
const RULING: &str = "decoder_sparse_step, mlp_only_layers and num_experts";

/// What the config says of a mixture, the same for all layers.
pub(super) struct Mixture {
    hidden: Dim,
    experts: Dim,
    inter: Dim,
    shared: Option<Dim>,
    top_k: usize,
    renormalise: bool,
    act: Activation,
}

/// What a family takes for absent keys.
pub(super) struct MixtureDefaults {
    pub(super) experts: usize,
    pub(super) top_k: usize,
    pub(super) inter: usize,
    /// Width of the expert that every row takes; `None`: the family has none.
    pub(super) shared: Option<usize>,
    pub(super) renormalise: bool,
}

impl Mixture {
    /// The mixture's sizes; `None` when `num_experts` is 0.
    pub(super) fn read(
        keys: &Keys<'_>,
        hidden: &Dim,
        act: Activation,
        defaults: &MixtureDefaults,
    ) -> Result<Option<Self>, ArchError> {
        let size = |key: &str, default: usize| -> Result<Dim, ArchError> {
            Ok(Dim::new(keys.size(key)?.unwrap_or(default), key))
        };
        // The framework writes its own name of the count; published files have the other.
        let experts_key = keys.spelling("num_experts", "num_local_experts");
        let experts = keys.alias::<usize>("num_experts", "num_local_experts")?.unwrap_or(defaults.experts);
        let top_k = keys.size("num_experts_per_tok")?.unwrap_or(defaults.top_k);
        let mixture = Mixture {
            hidden: hidden.clone(),
            experts: Dim::new(experts, experts_key),
            inter: size("moe_intermediate_size", defaults.inter)?,
            shared: defaults.shared.map(|width| size("shared_expert_intermediate_size", width)).transpose()?,
            top_k,
            renormalise: keys.or("norm_topk_prob", defaults.renormalise)?,
            act,
        };
        if experts == 0 {
            return Ok(None);
        }
        if top_k > experts {
            let reason = format!("{top_k} experts cannot be picked from {experts}");
            return Err(keys.conflict("num_experts_per_tok", keys.name(experts_key), reason));
        }
        Ok(Some(mixture))
    }

    /// The mixture at `at`. Experts are stored one by one, or stacked in one tensor for gate and up and one for down.
    pub(super) fn layer(&self, tensors: &Tensors<'_>, at: &str, of: &str) -> Result<Moe, ArchError> {
        Ok(Moe {
            experts: self.experts.size,
            top_k: self.top_k,
            renormalise: self.renormalise,
            router: tensors.linear(&format!("{at}.gate"), &format!("router of {of}"), &self.experts, &self.hidden)?,
            inter: self.inter.size,
            act: self.act,
            gate_up: self.gate_up(tensors, at, of)?,
            down: self.down(tensors, at, of)?,
            shared: self.shared.as_ref().map(|width| self.shared(tensors, at, of, width)).transpose()?,
        })
    }

    fn shared(&self, tensors: &Tensors<'_>, at: &str, of: &str, width: &Dim) -> Result<SharedExpert, ArchError> {
        let (shared, one) = (format!("the shared expert of {of}"), Dim::new(1, "one logit"));
        let (gate, purpose) = (format!("{at}.shared_expert_gate"), format!("gate of {shared}"));
        Ok(SharedExpert {
            mlp: gated(tensors, &format!("{at}.shared_expert"), &shared, &self.hidden, width, self.act)?,
            gate: Some(tensors.linear(&gate, &purpose, &one, &self.hidden)?),
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

/// The networks of a model whose layers are mixtures, save those that keys name as dense.
pub(super) struct Networks {
    mixture: Option<Mixture>,
    dense: Vec<bool>,
    /// Inner width of the dense networks, where there are any.
    inter: Option<Dim>,
}

impl Networks {
    /// Which layer has which network.
    pub(super) fn read(model: &Decoder<'_>, defaults: &MixtureDefaults) -> Result<Self, ArchError> {
        let keys = model.keys;
        let mixture = Mixture::read(keys, &model.hidden, model.act, defaults)?;
        let dense = dense_layers(keys, model.layers, mixture.is_some())?;
        let inter = if dense.contains(&true) { Some(model.inter()?) } else { None };
        if inter.is_none() {
            keys.note("intermediate_size", "every layer's network is a mixture");
        }
        Ok(Self { mixture, dense, inter })
    }

    /// The network of a layer.
    pub(super) fn layer(&self, model: &Decoder<'_>, layer: usize) -> Result<Ffn, ArchError> {
        match (&self.inter, &self.mixture) {
            (Some(inter), _) if self.dense[layer] => model.dense(layer, inter).map_err(|error| error.because(RULING)),
            (_, Some(mixture)) => {
                let (at, of) = (format!("layers.{layer}.mlp"), format!("layer {layer}'s mixture"));
                mixture.layer(&model.tensors, &at, &of).map(Ffn::Moe).map_err(|error| error.because(RULING))
            }
            (_, None) => Err(model.keys.bad("num_experts", "a size of at least 1, as decoder_sparse_step needs")),
        }
    }
}

/// For each layer whether its network is dense: named by `mlp_only_layers`, or no multiple of `decoder_sparse_step`.
fn dense_layers(keys: &Keys<'_>, layers: usize, experts: bool) -> Result<Vec<bool>, ArchError> {
    let only = keys.or("mlp_only_layers", Vec::<usize>::new())?;
    let step = keys.size("decoder_sparse_step")?.unwrap_or(1);
    if let Some(layer) = only.iter().find(|layer| **layer >= layers) {
        return Err(
            keys.bad("mlp_only_layers", format!("a list of layers below num_hidden_layers, {layers} ({layer} is not)"))
        );
    }
    Ok((0..layers).map(|layer| !experts || only.contains(&layer) || (layer + 1) % step != 0).collect())
}
