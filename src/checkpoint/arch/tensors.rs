//! `Tensors`: the weight file as evidence. A tensor is asked for by name, held to the shape that the config gives, and
//! counted as used; at the end nothing may be left over.

use super::error::ArchError;
use crate::checkpoint::weights::Weights;
use crate::checkpoint::widen::widens;
use safetensors::Dtype;
use std::cell::RefCell;
use std::collections::HashSet;
use wordline_ir::spec::{Linear, Norm, NormKind, Part, RowRange, View};

/// The tensor names, types and shapes of a checkpoint.
pub trait TensorIndex {
    /// A tensor's type and shape.
    fn get(&self, name: &str) -> Option<(Dtype, &[usize])>;
    /// Every name.
    fn names(&self) -> Vec<&str>;
    /// Whether a tensor of 4-bit floats has its scales, so that it holds values.
    fn scaled(&self, _name: &str) -> bool {
        false
    }
    /// Whether two tensors of one type and shape hold the same values; `None` when only headers are at hand.
    fn same_values(&self, first: &str, second: &str) -> Option<bool>;
}

impl TensorIndex for Weights {
    fn get(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.tensor(name).map(|tensor| (tensor.dtype, tensor.shape))
    }

    fn names(&self) -> Vec<&str> {
        Weights::names(self).collect()
    }

    fn scaled(&self, name: &str) -> bool {
        self.tensor(name).is_some_and(|tensor| tensor.is_scaled())
    }

    fn same_values(&self, first: &str, second: &str) -> Option<bool> {
        // A model on the Hub is judged by headers alone, wherever its bytes are: the same everywhere.
        if !self.is_local() {
            return None;
        }
        let [first, second] = [self.tensor(first)?, self.tensor(second)?];
        Some(first.bytes().ok()? == second.bytes().ok()? && first.scales().ok()? == second.scales().ok()?)
    }
}

/// A size and the keys that it comes from.
#[derive(Clone, Debug)]
pub(super) struct Dim {
    pub(super) size: usize,
    pub(super) from: String,
}

impl Dim {
    pub(super) fn new(size: usize, from: impl Into<String>) -> Self {
        Self { size, from: from.into() }
    }

    /// The product of this size and another. Sizes are capped, so that two of them multiply without overflow.
    pub(super) fn times(&self, other: &Dim) -> Self {
        Self::new(self.size.saturating_mul(other.size), format!("{} * {}", self.from, other.from))
    }

    /// A whole multiple of this size.
    pub(super) fn scaled(&self, factor: usize) -> Self {
        Self::new(self.size.saturating_mul(factor), format!("{factor} * {}", self.from))
    }

    /// The sum of this size and another.
    pub(super) fn plus(&self, other: &Dim) -> Self {
        Self::new(self.size.saturating_add(other.size), format!("{} + {}", self.from, other.from))
    }
}

/// Tensor names under one prefix, with an account of those used.
pub(super) struct Tensors<'a> {
    index: &'a dyn TensorIndex,
    /// In front of every layer's and the embedding's name: "model." in most families.
    prefix: String,
    used: RefCell<HashSet<String>>,
}

/// How a family stores its matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    /// (out, in).
    OutIn,
    /// (in, out).
    InOut,
}

impl<'a> Tensors<'a> {
    /// The tensors under the one of `prefixes` that `probe` (the embedding) is found under.
    pub(super) fn under(index: &'a dyn TensorIndex, prefixes: &[&str], probe: &str) -> Result<Self, ArchError> {
        let name = |prefix: &str| format!("{prefix}{probe}");
        let mut held = prefixes.iter().filter(|prefix| index.get(&name(prefix)).is_some());
        let Some(prefix) = held.next() else {
            let others: Vec<String> = prefixes[1..].iter().map(|prefix| format!("'{}'", name(prefix))).collect();
            let purpose = format!("the token embedding (nor is {} there)", others.join(" or "));
            return Err(ArchError::MissingTensor { tensor: name(prefixes[0]), purpose });
        };
        if let Some(other) = held.next() {
            let hint = format!(": '{}' is the token embedding too", name(prefix));
            return Err(ArchError::Unused { tensor: name(other), hint });
        }
        Ok(Self { index, prefix: (*prefix).to_owned(), used: RefCell::default() })
    }

    /// A name under the prefix.
    pub(super) fn name(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// The shape of a tensor under the prefix, without counting it as used.
    pub(super) fn shape(&self, rest: &str) -> Option<&'a [usize]> {
        self.index.get(&self.name(rest)).map(|(_, shape)| shape)
    }

    /// True when a tensor of this full name is held.
    pub(super) fn holds(&self, full: &str) -> bool {
        self.index.get(full).is_some()
    }

    /// How many tensors there are.
    pub(super) fn count(&self) -> usize {
        self.index.names().len()
    }

    /// Whether two tensors, by full name, are one: same type, shape and values.
    pub(super) fn same(&self, first: &str, second: &str) -> bool {
        self.index.get(first).is_some()
            && self.index.get(first) == self.index.get(second)
            && self.index.same_values(first, second) == Some(true)
    }

    /// Count a tensor, by full name, as used.
    pub(super) fn mark(&self, full: &str) {
        self.used.borrow_mut().insert(full.to_owned());
    }

    /// A tensor by full name with its shape held to `dims`; marked as used.
    pub(super) fn take(&self, full: &str, purpose: &str, dims: &[&Dim]) -> Result<Part, ArchError> {
        let Some((dtype, shape)) = self.index.get(full) else {
            return Err(ArchError::MissingTensor { tensor: full.to_owned(), purpose: purpose.to_owned() });
        };
        if shape.len() != dims.len() || shape.iter().zip(dims).any(|(found, dim)| *found != dim.size) {
            let expected: Vec<String> = dims.iter().map(|dim| format!("{} ({})", dim.size, dim.from)).collect();
            return Err(ArchError::Shape {
                tensor: full.to_owned(),
                purpose: purpose.to_owned(),
                found: shape.to_vec(),
                expected: format!("[{}]", expected.join(", ")),
            });
        }
        if !widens(dtype) && !self.index.scaled(full) {
            return Err(ArchError::Dtype { tensor: full.to_owned(), purpose: purpose.to_owned(), dtype });
        }
        self.mark(full);
        Ok(Part { tensor: full.to_owned(), shape: shape.to_vec(), rows: Vec::new(), transpose: false })
    }

    /// All of a vector, or of a tensor whose first dimension is its rows.
    pub(super) fn whole(&self, rest: &str, purpose: &str, dims: &[&Dim]) -> Result<View, ArchError> {
        let part = self.take(&self.name(rest), purpose, dims)?;
        Ok(View::whole(part.tensor, &part.shape))
    }

    /// Chosen rows of the projection `rest`.weight, and of `rest`.bias where the file holds one. `out` are all its
    /// rows.
    pub(super) fn rows_of(
        &self,
        rest: &str,
        purpose: &str,
        store: Store,
        out: &Dim,
        inner: &Dim,
        rows: Vec<RowRange>,
    ) -> Result<Linear, ArchError> {
        let dims = if store == Store::OutIn { [out, inner] } else { [inner, out] };
        let weight = self.take(&self.name(&format!("{rest}.weight")), purpose, &dims)?;
        let bias = self.name(&format!("{rest}.bias"));
        let bias = if self.holds(&bias) {
            let bias = self.take(&bias, &format!("bias of the {purpose}"), &[out])?;
            Some(View::rows_of(bias.tensor, &bias.shape, false, rows.clone()))
        } else {
            None
        };
        let weight = View::rows_of(weight.tensor, &weight.shape, store == Store::InOut, rows);
        Ok(Linear { weight, bias })
    }

    /// The whole projection `rest`, (out, in), with its bias where the file holds one.
    pub(super) fn linear(&self, rest: &str, purpose: &str, out: &Dim, inner: &Dim) -> Result<Linear, ArchError> {
        self.stored_linear(rest, purpose, Store::OutIn, out, inner)
    }

    /// The whole projection `rest` as the family stores it, with its bias where the file holds one.
    pub(super) fn stored_linear(
        &self,
        rest: &str,
        purpose: &str,
        store: Store,
        out: &Dim,
        inner: &Dim,
    ) -> Result<Linear, ArchError> {
        self.rows_of(rest, purpose, store, out, inner, vec![RowRange { start: 0, end: out.size }])
    }

    /// An RMS norm; `centred` ones store w - 1.
    pub(super) fn rms(
        &self,
        rest: &str,
        purpose: &str,
        width: &Dim,
        eps: f32,
        centred: bool,
    ) -> Result<Norm, ArchError> {
        let weight = self.whole(&format!("{rest}.weight"), purpose, &[width])?;
        let weight = if centred { weight.plus_one() } else { weight };
        Ok(Norm { kind: NormKind::Rms, weight, bias: None, eps })
    }

    /// A LayerNorm, with its bias where the file holds one.
    pub(super) fn layer_norm(&self, rest: &str, purpose: &str, width: &Dim, eps: f32) -> Result<Norm, ArchError> {
        let weight = self.whole(&format!("{rest}.weight"), purpose, &[width])?;
        let bias = format!("{rest}.bias");
        let bias = match self.shape(&bias) {
            Some(_) => Some(self.whole(&bias, &format!("bias of the {purpose}"), &[width])?),
            None => None,
        };
        Ok(Norm { kind: NormKind::Ln, weight, bias, eps })
    }

    /// Refuse any tensor that was not used and that no pattern of `skipped` covers.
    pub(super) fn finish(&self, skipped: &[&[Skip]], layers_key: &str, layers: usize) -> Result<(), ArchError> {
        let used = self.used.borrow();
        let left = |name: &&&str| {
            !used.contains(**name) && !skipped.iter().copied().flatten().any(|skip| skip.covers(name, &self.prefix))
        };
        let names = self.index.names();
        let Some(tensor) = names.iter().find(left) else { return Ok(()) };
        Err(ArchError::Unused { tensor: (*tensor).to_owned(), hint: self.hint(tensor, layers_key, layers) })
    }

    fn hint(&self, tensor: &str, layers_key: &str, layers: usize) -> String {
        let rest = tensor.strip_prefix(&self.prefix).unwrap_or(tensor);
        let number = rest.split('.').nth(1).and_then(|number| number.parse::<usize>().ok());
        match number.filter(|number| *number >= layers) {
            Some(_) => format!(" (key '{layers_key}' says {layers} layers)"),
            None => String::new(),
        }
    }
}

/// Tensors that are left alone although nothing uses them.
#[derive(Clone, Copy, Debug)]
pub struct Skip {
    /// Pattern over the full name: `*` stands for any run of characters without a dot, a final `**` for all that
    /// follows, a leading `{p}` for the model's prefix.
    pub pattern: &'static str,
    /// Why they change nothing.
    pub reason: &'static str,
}

impl Skip {
    fn covers(&self, name: &str, prefix: &str) -> bool {
        let (pattern, name) = match self.pattern.strip_prefix("{p}") {
            Some(pattern) => match name.strip_prefix(prefix) {
                Some(rest) => (pattern, rest),
                None => return false,
            },
            None => (self.pattern, name),
        };
        let (mut pattern, mut name) = (pattern.split('.'), name.split('.'));
        loop {
            match (pattern.next(), name.next()) {
                (Some("**"), Some(_)) | (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(a), Some(b)) if a == b => {}
                _ => return false,
            }
        }
    }
}

const ROTARY: &str = "a rotary table's frequencies: computed from the config";
const MASK: &str = "a causal mask: a row sees its past by construction";
const AHEAD: &str = "the extra layers that predict several tokens ahead";
const VISION: &str = "the vision tower and what feeds it into the text: input is text";

/// Skipped in every rotary family.
pub const SKIP_ROTARY: &[Skip] = &[
    Skip { pattern: "{p}layers.*.self_attn.rotary_emb.inv_freq", reason: ROTARY },
    Skip { pattern: "{p}rotary_emb.inv_freq", reason: ROTARY },
];
/// Skipped in gpt2.
pub const SKIP_GPT2: &[Skip] =
    &[Skip { pattern: "{p}h.*.attn.bias", reason: MASK }, Skip { pattern: "{p}h.*.attn.masked_bias", reason: MASK }];
/// Skipped in qwen3_next and qwen3_5.
pub const SKIP_AHEAD: &[Skip] = &[Skip { pattern: "mtp.**", reason: AHEAD }];
/// Skipped beside a nested `text_config`.
pub const SKIP_VISION: &[Skip] = &[
    Skip { pattern: "model.visual.**", reason: VISION },
    Skip { pattern: "visual.**", reason: VISION },
    Skip { pattern: "model.vision_tower.**", reason: VISION },
    Skip { pattern: "vision_tower.**", reason: VISION },
    Skip { pattern: "model.multi_modal_projector.**", reason: VISION },
    Skip { pattern: "multi_modal_projector.**", reason: VISION },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_what_they_say_and_no_more() {
        let rotary = &SKIP_ROTARY[0];
        assert!(rotary.covers("model.layers.12.self_attn.rotary_emb.inv_freq", "model."));
        assert!(!rotary.covers("other.layers.12.self_attn.rotary_emb.inv_freq", "model."));
        assert!(!rotary.covers("model.layers.1.2.self_attn.rotary_emb.inv_freq", "model."));
        assert!(!rotary.covers("model.layers.12.self_attn.rotary_emb", "model."));
        assert!(SKIP_AHEAD[0].covers("mtp.layers.0.mlp.up_proj.weight", "model."));
        assert!(!SKIP_AHEAD[0].covers("mtp", "model."));
        assert!(!SKIP_AHEAD[0].covers("model.mtp.x", "model."));
        assert!(SKIP_GPT2[0].covers("h.0.attn.bias", ""));
        assert!(!SKIP_GPT2[0].covers("h.0.attn.c_attn.bias", ""));
    }
}
