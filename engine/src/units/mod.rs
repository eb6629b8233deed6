//! `Units`: what runs the commands, one method a command, each over every row of the step.
//!
//! The sequencer is the only caller. Units own the token-row store and the state of the sequences, because where they
//! lie (host memory, a device) is theirs to choose. Everything an op names was checked when the model was made: slots
//! have widths, tensors exist and have the shape the op needs.

mod ops;

pub use ops::{
    Act, Add, Attend, CacheAppend, Conv, Delta, DeltaGate, Embed, Gate, GatedNorm, HeadNorm, L2Norm, Matvec, Norm,
    Rotate, RoutedMatvec, Scale, SoftCap, TopK,
};

use crate::image::ImageError;
use crate::store::RowStore;
use wordline_ir::{Slot, TensorId};
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
    /// Bytes of attention caches: the positions appended, and for each row the pages that hold what it sees, read once
    /// whatever the number of query heads. 0 on units whose cache is not the int8 one.
    pub cache_bytes: u64,
    /// Bytes of rings and memories, each read and written back once a row. 0 as above.
    pub state_bytes: u64,
    /// Multiply-accumulates of matrices with rows.
    pub macs: u64,
    /// Rows through all commands with a matrix.
    pub matrix_rows: u64,
    /// Rows through the LM head's matrices, that is through commands outside any layer that read one.
    pub head_rows: u64,
}

impl Counters {
    /// All bytes that commands must move at the least: weights, caches, rings and memories.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.cache_bytes + self.state_bytes
    }

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

/// What the steps on a device are made of.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct DeviceTimes {
    /// Dispatches of the last step; of its last pass where it took several.
    pub dispatches: usize,
    /// Steps that were profiled; a step in several passes counts each. 0 where the device has no timestamps.
    pub steps: u64,
    /// What they were made of, by name.
    pub kinds: Vec<DeviceTime>,
}

/// One kind of kernel in a step, on average.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DeviceTime {
    /// Name of the kernel.
    pub kind: String,
    /// Dispatches a step.
    pub dispatches: f64,
    /// Microseconds a step, by the device's timestamps: from the end of the dispatch before each.
    pub microseconds: f64,
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
    /// No backend is left that can run the step.
    #[error("{0}")]
    Backend(String),
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

/// A command that could not be finished, of units that run a whole step at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Number of the command among those of the step: the first that failed.
    pub command: usize,
    /// Why.
    pub source: UnitError,
}

/// What runs the commands.
///
/// A method runs its command over every row of the step and has finished when it returns, or takes note of it for
/// [`Units::finish`], which runs what was noted. Commands that carry state take the rows in order, each over its own
/// sequence.
#[expect(missing_docs, reason = "each method runs the op of its name; the ops and the command table document them")]
pub trait Units: Send {
    /// Begin a step: its rows, in order. The store's slots are zero until they are written.
    fn begin(&mut self, rows: &[StepRow]);
    /// Keep only these rows of the step (rising order) for the commands that follow.
    fn keep(&mut self, rows: &[usize]);
    /// The rows of a slot, `[rows, width]`, valid until the next step begins.
    fn slot(&mut self, slot: Slot) -> &[f32];
    /// The rows of a slot, to be filled by the caller: the hidden states that a later stage of a pipeline receives.
    fn slot_mut(&mut self, slot: Slot) -> &mut [f32];
    /// End the step: what has not run yet runs now.
    ///
    /// # Errors
    /// The first command that could not be finished.
    fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    /// Make the state of a sequence that begins: cache empty, ring and memory zero. Index `sequence` may be one past
    /// the last or one used before.
    fn open(&mut self, sequence: usize);
    /// Give the memory of a sequence's state back.
    fn release(&mut self, sequence: usize);
    /// What was moved and multiplied so far.
    fn counters(&self) -> Counters;
    /// Name of the form of the array unit that multiplies now.
    fn form(&self) -> &'static str;
    /// What the units found out about themselves since the last time, for people: forms that were demoted.
    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }
    /// Ask a device for its own times of the steps from now on, from zero; a step that is profiled is slower. Units that
    /// run on no device take no notice.
    fn profile(&mut self, _on: bool) {}
    /// What a device says of its steps; `None` where none computes.
    fn device_times(&self) -> Option<DeviceTimes> {
        None
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

/// The expert numbers that a slot holds, each checked: a program may route by any slot. They replace what is in `into`.
pub(crate) fn experts(
    picks: &[f32],
    slot: Slot,
    k: usize,
    experts: usize,
    into: &mut Vec<usize>,
) -> Result<(), UnitError> {
    into.clear();
    let check = |(i, pick): (usize, &f32)| {
        let expert = *pick as usize;
        if expert < experts && expert as f32 == *pick {
            return Ok(expert);
        }
        let reason = format!("{pick} is not the number of one of {experts} experts");
        Err(UnitError::Value { slot: slot.name(), row: i / k, reason })
    };
    picks.iter().enumerate().try_for_each(|pick| check(pick).map(|expert| into.push(expert)))
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
