//! The softmax attention of every rotary family: separate or fused projections, biases, head norms and output gate as
//! the weight file holds them.

use super::error::ArchError;
use super::keys::Keys;
use super::tensors::{Dim, Store, Tensors};
use wordline_ir::spec::{Attention, Linear, Norm, Rope, RowRange};

/// What the config says of a family's attention, the same for all layers.
pub(super) struct Heads {
    /// Width of the residual stream.
    pub(super) hidden: Dim,
    /// Query heads.
    pub(super) heads: Dim,
    /// Key and value heads.
    pub(super) kv_heads: Dim,
    /// Dimension of a head.
    pub(super) head_dim: Dim,
    /// Scores are multiplied by this.
    pub(super) scale: f32,
    /// Epsilon of the head norms.
    pub(super) eps: f32,
    /// The family has head norms in every layer; the others have them where the file holds them.
    pub(super) norms: bool,
    /// Head norms store w - 1.
    pub(super) centred: bool,
    /// The query projection holds, head by head, query rows and then output gate rows.
    pub(super) gated: bool,
}

impl Heads {
    /// Head counts and head dimension. The dimension is the key projection's rows over `num_key_value_heads`, or a
    /// fused projection's over all heads; the key `head_dim`, where given, must agree.
    pub(super) fn read(
        keys: &Keys<'_>,
        tensors: &Tensors<'_>,
        layer: usize,
        hidden: &Dim,
        kv_default: Option<usize>,
    ) -> Result<Self, ArchError> {
        let heads = keys.need("num_attention_heads")?;
        Self::with_counts(keys, tensors, layer, hidden, heads, kv_default)
    }

    /// The same with the number of query heads known.
    pub(super) fn with_counts(
        keys: &Keys<'_>,
        tensors: &Tensors<'_>,
        layer: usize,
        hidden: &Dim,
        heads: usize,
        kv_default: Option<usize>,
    ) -> Result<Self, ArchError> {
        let kv_heads = keys.size("num_key_value_heads")?.or(kv_default).unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let reason = format!("{heads} query heads cannot share {kv_heads} key heads evenly");
            return Err(keys.conflict("num_attention_heads", keys.name("num_key_value_heads"), reason));
        }
        let (heads, kv_heads) = (Dim::new(heads, "num_attention_heads"), Dim::new(kv_heads, "num_key_value_heads"));
        let head_dim = head_dim(keys, tensors, &format!("layers.{layer}.self_attn"), &heads, &kv_heads)?;
        let scale = (1.0 / (head_dim.size as f64).sqrt()) as f32;
        let hidden = hidden.clone();
        Ok(Self { hidden, heads, kv_heads, head_dim, scale, eps: 0.0, norms: false, centred: false, gated: false })
    }

    /// The attention of layer `layer`.
    pub(super) fn layer(
        &self,
        tensors: &Tensors<'_>,
        layer: usize,
        rope: Rope,
        window: Option<usize>,
    ) -> Result<Attention, ArchError> {
        let at = format!("layers.{layer}.self_attn");
        let of = format!("of layer {layer}'s attention");
        let (q_rows, kv_rows) = (self.heads.times(&self.head_dim), self.kv_heads.times(&self.head_dim));
        let (q, k, v, gate) = if tensors.shape(&format!("{at}.qkv_proj.weight")).is_some() {
            let (q, k, v) = fused(tensors, &format!("{at}.qkv_proj"), &of, &q_rows, &kv_rows, &self.hidden)?;
            (q, k, v, None)
        } else {
            let (q, gate) = self.query(tensors, &at, &of)?;
            let linear = |rest: &str, what: &str| {
                tensors.linear(&format!("{at}.{rest}"), &format!("{what} projection {of}"), &kv_rows, &self.hidden)
            };
            (q, linear("k_proj", "key")?, linear("v_proj", "value")?, gate)
        };
        let o = tensors.linear(&format!("{at}.o_proj"), &format!("output projection {of}"), &self.hidden, &q_rows)?;
        Ok(Attention {
            heads: self.heads.size,
            kv_heads: self.kv_heads.size,
            head_dim: self.head_dim.size,
            v_dim: self.head_dim.size,
            scale: self.scale,
            window,
            soft_cap: None,
            rope: Some(rope),
            q,
            k,
            v,
            gate,
            q_norm: self.head_norm(tensors, &format!("{at}.q_norm"), &format!("query norm {of}"))?,
            k_norm: self.head_norm(tensors, &format!("{at}.k_norm"), &format!("key norm {of}"))?,
            o,
        })
    }

    /// The query projection and, in gated families, the output gate's, which lies between the query heads' rows.
    fn query(&self, tensors: &Tensors<'_>, at: &str, of: &str) -> Result<(Linear, Option<Linear>), ArchError> {
        let (rest, purpose) = (format!("{at}.q_proj"), format!("query projection {of}"));
        let rows = self.heads.times(&self.head_dim);
        if !self.gated {
            return Ok((tensors.linear(&rest, &purpose, &rows, &self.hidden)?, None));
        }
        let (all, dim) = (rows.scaled(2), self.head_dim.size);
        let pick = |offset: usize| -> Vec<RowRange> {
            let starts = (0..self.heads.size).map(|head| 2 * head * dim + offset);
            starts.map(|start| RowRange { start, end: start + dim }).collect()
        };
        // Hold the stored shape to the config before the rows are listed: the list is as long as the config says.
        tensors.take(&tensors.name(&format!("{rest}.weight")), &purpose, &[&all, &self.hidden])?;
        let read = |rows| tensors.rows_of(&rest, &purpose, Store::OutIn, &all, &self.hidden, rows);
        Ok((read(pick(0))?, Some(read(pick(dim))?)))
    }

    fn head_norm(&self, tensors: &Tensors<'_>, rest: &str, purpose: &str) -> Result<Option<Norm>, ArchError> {
        if !self.norms && tensors.shape(&format!("{rest}.weight")).is_none() {
            return Ok(None);
        }
        tensors.rms(rest, purpose, &self.head_dim, self.eps, self.centred).map(Some)
    }
}

/// Query, key and value rows of one stored projection, in this order.
fn fused(
    tensors: &Tensors<'_>,
    rest: &str,
    of: &str,
    q_rows: &Dim,
    kv_rows: &Dim,
    hidden: &Dim,
) -> Result<(Linear, Linear, Linear), ArchError> {
    let all = q_rows.plus(&kv_rows.scaled(2));
    let read = |start: usize, end: usize| {
        let purpose = format!("query, key and value projection {of}");
        tensors.rows_of(rest, &purpose, Store::OutIn, &all, hidden, vec![RowRange { start, end }])
    };
    let (k, v) = (q_rows.size, q_rows.size.saturating_add(kv_rows.size));
    Ok((read(0, k)?, read(k, v)?, read(v, all.size)?))
}

fn head_dim(keys: &Keys<'_>, tensors: &Tensors<'_>, at: &str, heads: &Dim, kv_heads: &Dim) -> Result<Dim, ArchError> {
    let (k, qkv) = (format!("{at}.k_proj.weight"), format!("{at}.qkv_proj.weight"));
    let (rest, shape, parts, source) = match (tensors.shape(&k), tensors.shape(&qkv)) {
        (Some(shape), _) => (k, shape, kv_heads.size, "num_key_value_heads"),
        (None, Some(shape)) => {
            (qkv, shape, heads.size + 2 * kv_heads.size, "(num_attention_heads + 2 * num_key_value_heads)")
        }
        (None, None) => {
            let purpose = "the key projection, whose rows tell the head dimension".to_owned();
            return Err(ArchError::MissingTensor { tensor: tensors.name(&k), purpose });
        }
    };
    let tensor = tensors.name(&rest);
    let rows = shape.first().copied().unwrap_or(0);
    let evidence = |key: &str, reason: String| ArchError::Evidence {
        key: keys.name(key),
        reason,
        tensor: tensor.clone(),
        found: shape.to_vec(),
    };
    let Some(found) = rows.checked_div(parts).filter(|found| *found > 0 && rows % parts == 0) else {
        return Err(evidence(source, format!("{parts} heads do not divide the projection's {rows} rows")));
    };
    match keys.size("head_dim")? {
        None => Ok(Dim::new(found, format!("head_dim, which is the rows of '{tensor}' over {source}"))),
        Some(given) if given == found => Ok(Dim::new(found, "head_dim")),
        Some(given) => {
            let reason = format!("{given} is given, {rows} rows over {source} ({parts}) are {found} a head");
            Err(evidence("head_dim", reason))
        }
    }
}
