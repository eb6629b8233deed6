//! `Program`: one step of a checkpoint as the commands its units run, in order, with the tables they index.

use crate::spec::{Rope, View};
use crate::{Command, LayerId, Numerics, Slot};
use serde::{Deserialize, Serialize};

/// Index of a tensor in `Program::tensors`, the weight image's order; at most 20 bits, all-ones excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct TensorId(u32);

impl From<TensorId> for u32 {
    fn from(id: TensorId) -> u32 {
        id.0
    }
}

/// A tensor index that the word's 20 bits cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor {0} is out of range: a program holds at most {limit} tensors", limit = TensorId::LIMIT)]
pub struct TensorIdError(pub u32);

impl TryFrom<u32> for TensorId {
    type Error = TensorIdError;

    fn try_from(index: u32) -> Result<Self, TensorIdError> {
        TensorId::new(index as usize).ok_or(TensorIdError(index))
    }
}

impl TensorId {
    /// Tensors a program can hold.
    pub const LIMIT: usize = 0xf_ffff;

    /// The index, or `None` when it does not fit the word.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        (index < Self::LIMIT).then_some(Self(index as u32))
    }

    /// The index as the word holds it.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The index into `Program::tensors`.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a tensor is held in the weight image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TensorKind {
    /// A matrix (out, in) in the array's block format.
    Matrix,
    /// `experts` matrices of `rows / experts` rows each, in the array's block format.
    Stack {
        /// Experts.
        experts: usize,
    },
    /// f32 values, row-major.
    Plain,
}

/// One tensor of a program: an ordered view of checkpoint tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Name in program text: unique, without white space.
    pub name: String,
    /// How it is held.
    pub kind: TensorKind,
    /// Rows (all experts' rows for a stack; elements for a vector).
    pub rows: usize,
    /// Elements in a row (1 for a vector).
    pub cols: usize,
    /// Where its values come from.
    pub view: View,
}

/// A slot that a program uses, with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotInfo {
    /// Slot.
    pub slot: Slot,
    /// Elements each token-row holds in it.
    pub width: usize,
}

/// The cut of the model's one program that a program was read off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cut {
    /// Cache positions of the authored step.
    pub ctx: usize,
    /// First layer.
    pub first_layer: usize,
    /// One past the last layer.
    pub last_layer: usize,
}

impl Cut {
    /// The cut of a program that was read off none.
    pub const NONE: Cut = Cut { ctx: 0, first_layer: 0, last_layer: 0 };
}

/// What a program is the program of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Family label, for people.
    pub family: String,
    /// SHA-256 of the Spec's canonical JSON, in hex.
    pub spec: String,
    /// The knobs that decide values.
    pub numerics: Numerics,
    /// The cut read.
    pub cut: Cut,
}

/// One step of a checkpoint at a knob point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// What it is the program of.
    pub identity: Identity,
    /// Positions the model can take.
    pub max_pos: usize,
    /// Slots used, by code.
    pub slots: Vec<SlotInfo>,
    /// Tensors, in the weight image's order: the order of first use.
    pub tensors: Vec<Tensor>,
    /// Rotary recipes, in order of first use.
    pub ropes: Vec<Rope>,
    /// The commands.
    pub commands: Vec<Command>,
}

/// A program and the cut of the model's one program it was read off.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The program.
    pub program: Program,
    /// The cut.
    pub cut: Cut,
}

impl Program {
    /// Width of a slot; `None` when the program does not use it.
    #[must_use]
    pub fn width(&self, slot: Slot) -> Option<usize> {
        self.slots.iter().find(|s| s.slot == slot).map(|s| s.width)
    }

    /// A tensor by its index.
    #[must_use]
    pub fn tensor(&self, id: crate::TensorId) -> Option<&Tensor> {
        self.tensors.get(id.index())
    }

    /// Number of layers that have commands.
    #[must_use]
    pub fn layers(&self) -> usize {
        let mut layers: Vec<u8> =
            self.commands.iter().map(Command::layer).filter(|l| *l != LayerId::OUTSIDE).map(|l| l.0).collect();
        layers.dedup();
        layers.len()
    }
}
