//! What the rooms of Wordline share: the facts of a model ([`Spec`]), the knobs of its arithmetic ([`Numerics`]), and
//! its decode step as a [`Program`] of 256-bit words.
//!
//! **Invariant**: no I/O, no weights, no family. One table ([`command::OPS`]) defines every command; the enum, the word
//! codec, the text form and the ISA reference derive from it.

pub mod access;
pub mod command;
pub mod diff;
pub mod digest;
pub mod error;
mod field;
pub mod file;
pub mod graph;
pub mod isa;
pub mod numerics;
pub mod program;
pub mod slot;
pub mod spec;
pub mod state;
pub mod text;
mod value;
pub mod verify;
pub mod word;
pub mod work;

#[cfg(test)]
mod tests;

pub use command::{Command, Const, LayerId, Offset, RopeId};
pub use diff::{Difference, first_difference};
pub use digest::spec_digest;
pub use error::ProgramError;
pub use graph::StepGraph;
pub use isa::isa_reference;
pub use numerics::{ActFormat, Numerics, WeightFormat};
pub use program::{Cut, Identity, Lowered, Program, SlotInfo, Tensor, TensorId, TensorKind};
pub use slot::Slot;
pub use spec::Spec;
pub use state::state_layout;
pub use verify::{Defects, Ends, verify, verify_part};
pub use word::Word;
