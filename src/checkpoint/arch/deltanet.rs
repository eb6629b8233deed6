//! Gated DeltaNet: projections split by kind, or fused and grouped by key head, brought to rows by kind.

use super::error::ArchError;
use super::keys::Keys;
use super::tensors::{Dim, Store, Tensors};
use wordline_ir::spec::{Activation, DeltaNet, Linear, RowRange, View};

/// Added under the root of the L2 norms of q and k: a constant of the framework's delta rule, in no config.
const L2_EPS: f32 = 1e-6;

/// What the config says of a family's DeltaNet, the same for all layers.
pub(super) struct Delta {
    hidden: Dim,
    key_heads: Dim,
    value_heads: Dim,
    key_dim: Dim,
    value_dim: Dim,
    taps: Dim,
    act: Activation,
    eps: f32,
}

/// q|k|v, z, b and a projections.
struct Projections {
    qkv: Linear,
    z: Linear,
    b: Linear,
    a: Linear,
}

impl Delta {
    /// Sizes from the `linear_*` keys. `act` is the model's activation, which the convolution shares.
    pub(super) fn read(keys: &Keys<'_>, hidden: &Dim, act: Activation, eps: f32) -> Result<Self, ArchError> {
        let size = |key: &str, default: usize| -> Result<Dim, ArchError> {
            Ok(Dim::new(keys.size(key)?.unwrap_or(default), key))
        };
        let (key_heads, value_heads) = (size("linear_num_key_heads", 16)?, size("linear_num_value_heads", 32)?);
        if !value_heads.size.is_multiple_of(key_heads.size) {
            let reason = format!("{} value heads cannot share {} key heads evenly", value_heads.size, key_heads.size);
            let other = keys.name("linear_num_key_heads");
            return Err(keys.conflict("linear_num_value_heads", other, reason));
        }
        Ok(Self {
            hidden: hidden.clone(),
            key_heads,
            value_heads,
            key_dim: size("linear_key_head_dim", 128)?,
            value_dim: size("linear_value_head_dim", 128)?,
            taps: size("linear_conv_kernel_dim", 4)?,
            act,
            eps,
        })
    }

    /// The mixer of layer `layer`.
    pub(super) fn layer(&self, tensors: &Tensors<'_>, layer: usize) -> Result<DeltaNet, ArchError> {
        let at = format!("layers.{layer}.linear_attn");
        let of = format!("of layer {layer}'s DeltaNet");
        let channels = self.keys_wide().scaled(2).plus(&self.values_wide());
        let Projections { qkv, z, b, a } = if tensors.shape(&format!("{at}.in_proj_qkvz.weight")).is_some() {
            self.grouped(tensors, &at, &of)?
        } else {
            self.split(tensors, &at, &of, &channels)?
        };
        let one = Dim::new(1, "one input channel a group");
        let weight = tensors.whole(
            &format!("{at}.conv1d.weight"),
            &format!("convolution {of}"),
            &[&channels, &one, &self.taps],
        )?;
        let bias = format!("{at}.conv1d.bias");
        let bias = match tensors.shape(&bias) {
            Some(_) => Some(tensors.whole(&bias, &format!("bias of the convolution {of}"), &[&channels])?),
            None => None,
        };
        let a_head = |rest: &str, purpose: &str| -> Result<View, ArchError> {
            tensors.whole(&format!("{at}.{rest}"), &format!("{purpose} {of}"), &[&self.value_heads])
        };
        let (o, purpose) = (format!("{at}.out_proj"), format!("output projection {of}"));
        Ok(DeltaNet {
            key_heads: self.key_heads.size,
            value_heads: self.value_heads.size,
            key_dim: self.key_dim.size,
            value_dim: self.value_dim.size,
            conv_taps: self.taps.size,
            conv_act: self.act,
            q_scale: (1.0 / (self.key_dim.size as f64).sqrt()) as f32,
            l2_eps: L2_EPS,
            qkv,
            z,
            b,
            a,
            conv: Linear { weight, bias },
            a_log: a_head("A_log", "decay rate")?,
            dt_bias: a_head("dt_bias", "decay bias")?,
            // This norm stores its weight as it is, also in families whose other norms store w - 1.
            norm: tensors.rms(&format!("{at}.norm"), &format!("gated norm {of}"), &self.value_dim, self.eps, false)?,
            o: tensors.linear(&o, &purpose, &self.hidden, &self.values_wide())?,
        })
    }

    fn keys_wide(&self) -> Dim {
        self.key_heads.times(&self.key_dim)
    }

    fn values_wide(&self) -> Dim {
        self.value_heads.times(&self.value_dim)
    }

    /// in_proj_qkv, in_proj_z, in_proj_b and in_proj_a: rows by kind already.
    fn split(&self, tensors: &Tensors<'_>, at: &str, of: &str, channels: &Dim) -> Result<Projections, ArchError> {
        let read = |rest: &str, what: &str, rows: &Dim| {
            tensors.linear(&format!("{at}.{rest}"), &format!("{what} projection {of}"), rows, &self.hidden)
        };
        Ok(Projections {
            qkv: read("in_proj_qkv", "query, key and value", channels)?,
            z: read("in_proj_z", "output gate", &self.values_wide())?,
            b: read("in_proj_b", "write strength", &self.value_heads)?,
            a: read("in_proj_a", "decay", &self.value_heads)?,
        })
    }

    /// in_proj_qkvz and in_proj_ba: for each key head its q, k, v and z rows, and its b and a rows, where v, z, b and a
    /// are those of the value heads that share it.
    fn grouped(&self, tensors: &Tensors<'_>, at: &str, of: &str) -> Result<Projections, ArchError> {
        let qkvz = self.keys_wide().scaled(2).plus(&self.values_wide().scaled(2));
        let ba = self.value_heads.scaled(2);
        let (qkvz_at, ba_at) = (format!("{at}.in_proj_qkvz"), format!("{at}.in_proj_ba"));
        let (qkvz_for, ba_for) = (format!("fused q, k, v, z projection {of}"), format!("fused b, a projection {of}"));
        // Hold the stored shapes to the config before the rows are listed: the lists are as long as the config says.
        tensors.take(&tensors.name(&format!("{qkvz_at}.weight")), &qkvz_for, &[&qkvz, &self.hidden])?;
        tensors.take(&tensors.name(&format!("{ba_at}.weight")), &ba_for, &[&ba, &self.hidden])?;
        let share = self.value_heads.size / self.key_heads.size;
        let (key, value) = (self.key_dim.size, share * self.value_dim.size);
        let group = 2 * key + 2 * value;
        let pick = |group: usize, offset: usize, length: usize| -> Vec<RowRange> {
            let starts = (0..self.key_heads.size).map(|head| head * group + offset);
            starts.map(|start| RowRange { start, end: start + length }).collect()
        };
        let qkv = [pick(group, 0, key), pick(group, key, key), pick(group, 2 * key, value)].concat();
        let read = |rows| tensors.rows_of(&qkvz_at, &qkvz_for, Store::OutIn, &qkvz, &self.hidden, rows);
        let read_ba = |rows| tensors.rows_of(&ba_at, &ba_for, Store::OutIn, &ba, &self.hidden, rows);
        Ok(Projections {
            qkv: read(qkv)?,
            z: read(pick(group, 2 * key + value, value))?,
            b: read_ba(pick(2 * share, 0, share))?,
            a: read_ba(pick(2 * share, share, share))?,
        })
    }
}
