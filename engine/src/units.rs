//! `Units`: what runs the commands, one method a command, each over every row of the step.
//!
//! The sequencer is the only caller. Units own the token-row store and the state of the sequences, because where they
//! lie (host memory, a device) is theirs to choose. Everything an op names was checked when the model was made: slots
//! have widths, tensors exist and have the shape the op needs.

use crate::image::ImageError;
use crate::store::RowStore;
use wordline_ir::spec::{Activation, NormKind};
use wordline_ir::{RopeId, Slot, TensorId};
use wordline_kernels::gate::UnitsError;

/// One token-row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRow {
    /// Index of the row's sequence among the states.
    pub sequence: usize,
    /// Token to embed.
    pub token: u32,
    /// Position in its sequence, from 0.
    pub position: usize,
}

/// What the units have moved and multiplied since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Bytes of matrices streamed: a matrix counts once a command, whatever the number of rows.
    pub weight_bytes: u64,
    /// Multiply-accumulates of matrices with rows.
    pub macs: u64,
    /// Rows through all commands with a matrix.
    pub matrix_rows: u64,
    /// Rows through the LM head's matrices, that is through commands outside any layer that read one.
    pub head_rows: u64,
}

impl Counters {
    /// Count a matrix command: the matrix's elements, the bytes that were streamed, the rows it met.
    pub(crate) fn matrix(&mut self, elements: usize, bytes: usize, rows: usize, head: bool) {
        self.weight_bytes += bytes as u64;
        self.macs += (elements * rows) as u64;
        self.matrix_rows += rows as u64;
        self.head_rows += if head { rows as u64 } else { 0 };
    }

    /// Count a routed command: the elements of all picks, the bytes that were streamed, the rows.
    pub(crate) fn routed(&mut self, macs: usize, bytes: usize, rows: usize) {
        self.weight_bytes += bytes as u64;
        self.macs += macs as u64;
        self.matrix_rows += rows as u64;
    }
}

/// Why a unit could not finish a command.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UnitError {
    /// A value that cannot be quantised.
    #[error("slot '{slot}', row {row}: {reason}")]
    Value {
        /// The slot that holds it.
        slot: &'static str,
        /// Row of the step.
        row: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The weight image cannot be read on.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// No form of a unit is left that computes rightly.
    #[error(transparent)]
    Device(#[from] UnitsError),
    /// A tensor is not what the command takes: a program ran that was not verified.
    #[error("tensor {index}: {reason}")]
    Tensor {
        /// Its index.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
}

impl UnitError {
    /// An error about a row of a slot.
    pub(crate) fn value(slot: Slot, row: usize, reason: &dyn std::fmt::Display) -> Self {
        Self::Value { slot: slot.name(), row, reason: reason.to_string() }
    }

    /// An error about a tensor.
    pub(crate) fn tensor(id: TensorId, reason: &dyn std::fmt::Display) -> Self {
        Self::Tensor { index: id.index(), reason: reason.to_string() }
    }
}

/// `out = scale * table[token] (+ positions[position])`.
#[derive(Clone, Copy, Debug)]
pub struct Embed {
    /// Written.
    pub out: Slot,
    /// Token embedding [vocab, width].
    pub table: TensorId,
    /// Learned positions [max positions, width].
    pub positions: Option<TensorId>,
    /// Multiplies the token's row.
    pub scale: f32,
}

/// `out = norm(x) * weight (+ bias)`.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Read.
    pub x: Slot,
    /// Written.
    pub out: Slot,
    /// Weight [width].
    pub weight: TensorId,
    /// Bias [width].
    pub bias: Option<TensorId>,
    /// Which mean and variance.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
}

/// RMS norm of each query and key head, in place.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm {
    /// Changed in place.
    pub qkv: Slot,
    /// Query weight [head_dim]; none: query heads stay.
    pub q_weight: Option<TensorId>,
    /// Key weight [head_dim]; none: key heads stay.
    pub k_weight: Option<TensorId>,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Added under the root.
    pub eps: f32,
}

/// Rotate query and key heads by the row's position, then scale the query heads, in place.
#[derive(Clone, Copy, Debug)]
pub struct Rotate {
    /// Changed in place.
    pub qkv: Slot,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Rotated dimensions, from a head's first on.
    pub rot: usize,
    /// Rotary table.
    pub table: RopeId,
    /// Multiplies the query heads.
    pub scale: f32,
}

/// Multiply the first `width` elements by a constant, in place.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Changed in place.
    pub x: Slot,
    /// Elements of a row that are multiplied; none: all.
    pub width: Option<usize>,
    /// Factor.
    pub scale: f32,
}

/// `y[offset ..] = weight * x (+ bias)`.
#[derive(Clone, Copy, Debug)]
pub struct Matvec {
    /// Read.
    pub x: Slot,
    /// Written from `offset` on.
    pub y: Slot,
    /// Matrix (out, in).
    pub weight: TensorId,
    /// Bias [out].
    pub bias: Option<TensorId>,
    /// First element of `y` written.
    pub offset: usize,
    /// The command stands outside any layer: the matrix is an LM head.
    pub head: bool,
}

/// Append each row's keys and values to its sequence's cache of a layer.
#[derive(Clone, Copy, Debug)]
pub struct CacheAppend {
    /// Layer.
    pub layer: usize,
    /// Read: q heads | k heads | v heads.
    pub qkv: Slot,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Dimension of a query or key head.
    pub head_dim: usize,
    /// Dimension of a value head.
    pub v_dim: usize,
}

/// Softmax attention of each row over its sequence's cache of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// Layer.
    pub layer: usize,
    /// Read: q heads | k heads | v heads.
    pub qkv: Slot,
    /// Written: heads * value dim.
    pub out: Slot,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Dimension of a query or key head.
    pub head_dim: usize,
    /// Positions seen, the row's own included.
    pub window: Option<usize>,
    /// Soft cap of the scores.
    pub cap: Option<f32>,
}

/// `out = x * sigmoid(gate)`, a gate element over each group of elements.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Read.
    pub x: Slot,
    /// Read.
    pub gate: Slot,
    /// Written.
    pub out: Slot,
    /// Elements of `x` that a gate element covers.
    pub group: usize,
}

/// Depthwise causal convolution over a row and its sequence's past inputs, then an activation.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    /// Layer.
    pub layer: usize,
    /// Read.
    pub x: Slot,
    /// Written.
    pub out: Slot,
    /// Taps, oldest first [channels, taps].
    pub weight: TensorId,
    /// Bias [channels].
    pub bias: Option<TensorId>,
    /// Channels.
    pub channels: usize,
    /// Taps, the row's own input included.
    pub taps: usize,
    /// Activation.
    pub act: Activation,
}

/// `x * rsqrt(sum(x^2) + eps)` of each of the slot's first heads, in place.
#[derive(Clone, Copy, Debug)]
pub struct L2Norm {
    /// Changed in place.
    pub x: Slot,
    /// Heads.
    pub heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Added under the root.
    pub eps: f32,
}

/// `decay = exp(-exp(a_log) * softplus(a + dt_bias))`, `beta = sigmoid(b)`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaGate {
    /// Read: b | a.
    pub ba: Slot,
    /// Written: decay | beta.
    pub gb: Slot,
    /// [heads].
    pub a_log: TensorId,
    /// [heads].
    pub dt_bias: TensorId,
    /// Value heads.
    pub heads: usize,
}

/// The gated delta rule over each row's sequence's memory of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Delta {
    /// Layer.
    pub layer: usize,
    /// Read: q heads | k heads | v heads.
    pub qkv: Slot,
    /// Read: decay | beta.
    pub gb: Slot,
    /// Written: value heads * value dim.
    pub out: Slot,
    /// Key and query heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Dimension of a key head.
    pub key_dim: usize,
    /// Dimension of a value head.
    pub value_dim: usize,
    /// Consecutive value heads that share one key head.
    pub share: usize,
    /// Multiplies q.
    pub scale: f32,
}

/// `out = rms_norm(x) * weight * act(gate)`, head by head.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm {
    /// Read.
    pub x: Slot,
    /// Read.
    pub gate: Slot,
    /// Written.
    pub out: Slot,
    /// Weight [head_dim].
    pub weight: TensorId,
    /// Heads.
    pub heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Activation of the gate.
    pub act: Activation,
    /// Added under the root.
    pub eps: f32,
}

/// `out = act(gate) * up` of each group, or `out = act(x)`.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    /// Read: groups of gate | up, or of x.
    pub x: Slot,
    /// Written: groups of the inner vector.
    pub out: Slot,
    /// Activation.
    pub kind: Activation,
    /// The input holds gate | up.
    pub gated: bool,
    /// Groups.
    pub groups: usize,
}

/// `out = x + scale * y`.
#[derive(Clone, Copy, Debug)]
pub struct Add {
    /// Read.
    pub x: Slot,
    /// Read.
    pub y: Slot,
    /// Written.
    pub out: Slot,
    /// Multiplies `y`.
    pub scale: f32,
}

/// `x = cap * tanh(x / cap)`, in place.
#[derive(Clone, Copy, Debug)]
pub struct SoftCap {
    /// Changed in place.
    pub x: Slot,
    /// Cap.
    pub cap: f32,
}

/// Softmax over the logits of the experts; the largest `k` are picked, in falling order.
#[derive(Clone, Copy, Debug)]
pub struct TopK {
    /// Read.
    pub logits: Slot,
    /// Written: expert numbers.
    pub picks: Slot,
    /// Written: their weights.
    pub weights: Slot,
    /// Experts.
    pub experts: usize,
    /// Picks.
    pub k: usize,
    /// Divide the weights by their sum.
    pub renormalise: bool,
}

/// Each pick's matrix times x (spread), or the weighted sum of each pick's matrix times its vector (gather).
#[derive(Clone, Copy, Debug)]
pub struct RoutedMatvec {
    /// Read: one vector (spread) or one a pick (gather).
    pub x: Slot,
    /// Read: expert numbers.
    pub picks: Slot,
    /// Read: pick weights; present: gather.
    pub weights: Option<Slot>,
    /// Written.
    pub y: Slot,
    /// Experts' matrices.
    pub stack: TensorId,
    /// Picks.
    pub k: usize,
}

/// What runs the commands.
///
/// A method runs its command over every row of the step and has finished when it returns. Commands that carry state
/// take the rows in order, each over its own sequence.
#[expect(missing_docs, reason = "each method runs the op of its name; the ops and the command table document them")]
pub trait Units: Send {
    /// Begin a step: its rows, in order. The store's slots are zero until they are written.
    fn begin(&mut self, rows: &[StepRow]);
    /// Keep only these rows of the step (rising order) for the commands that follow.
    fn keep(&mut self, rows: &[usize]);
    /// The rows of a slot, [rows, width], valid until the next step begins.
    fn slot(&mut self, slot: Slot) -> &[f32];
    /// The rows of a slot, to be filled by the caller: the hidden states that a later stage of a pipeline receives.
    fn slot_mut(&mut self, slot: Slot) -> &mut [f32];
    /// Make the state of a sequence that begins: cache empty, ring and memory zero. Index `sequence` may be one past
    /// the last or one used before.
    fn open(&mut self, sequence: usize);
    /// Give the memory of a sequence's state back.
    fn release(&mut self, sequence: usize);
    /// What was moved and multiplied so far.
    fn counters(&self) -> Counters;
    /// What the units found out about themselves since the last time, for people: forms that were demoted.
    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// Everything that a sequence's state holds, as bits, in a fixed order: equal states give equal lists.
    fn state_bits(&self, sequence: usize) -> Vec<u64>;

    fn embed(&mut self, op: &Embed) -> Result<(), UnitError>;
    fn norm(&mut self, op: &Norm) -> Result<(), UnitError>;
    fn head_norm(&mut self, op: &HeadNorm) -> Result<(), UnitError>;
    fn rotate(&mut self, op: &Rotate) -> Result<(), UnitError>;
    fn scale(&mut self, op: &Scale) -> Result<(), UnitError>;
    fn matvec(&mut self, op: &Matvec) -> Result<(), UnitError>;
    fn cache_append(&mut self, op: &CacheAppend) -> Result<(), UnitError>;
    fn attend(&mut self, op: &Attend) -> Result<(), UnitError>;
    fn gate(&mut self, op: &Gate) -> Result<(), UnitError>;
    fn conv(&mut self, op: &Conv) -> Result<(), UnitError>;
    fn l2_norm(&mut self, op: &L2Norm) -> Result<(), UnitError>;
    fn delta_gate(&mut self, op: &DeltaGate) -> Result<(), UnitError>;
    fn delta(&mut self, op: &Delta) -> Result<(), UnitError>;
    fn gated_norm(&mut self, op: &GatedNorm) -> Result<(), UnitError>;
    fn act(&mut self, op: &Act) -> Result<(), UnitError>;
    fn add(&mut self, op: &Add) -> Result<(), UnitError>;
    fn soft_cap(&mut self, op: &SoftCap) -> Result<(), UnitError>;
    fn top_k(&mut self, op: &TopK) -> Result<(), UnitError>;
    fn routed_matvec(&mut self, op: &RoutedMatvec) -> Result<(), UnitError>;
}

/// The expert numbers that a slot holds, each checked: a program may route by any slot.
pub(crate) fn experts(picks: &[f32], slot: Slot, k: usize, experts: usize) -> Result<Vec<usize>, UnitError> {
    let check = |(i, pick): (usize, &f32)| {
        let expert = *pick as usize;
        if expert < experts && expert as f32 == *pick {
            return Ok(expert);
        }
        let reason = format!("{pick} is not the number of one of {experts} experts");
        Err(UnitError::Value { slot: slot.name(), row: i / k, reason })
    };
    picks.iter().enumerate().map(check).collect()
}

/// The rows of a step in host memory, as CPU units hold them.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) store: RowStore,
    pub(crate) rows: Vec<StepRow>,
}

impl Rows {
    pub(crate) fn begin(&mut self, rows: &[StepRow]) {
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        self.store.begin(rows.len());
    }

    pub(crate) fn keep(&mut self, rows: &[usize]) {
        for (to, from) in rows.iter().enumerate() {
            self.rows[to] = self.rows[*from];
        }
        self.rows.truncate(rows.len());
        self.store.keep(rows);
    }
}
