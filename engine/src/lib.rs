//! The decode engine: a program of words, a weight image, and the sequences that the two advance.
//!
//! ```text
//! words  --decode, verify-->  Sequencer  --one match over Command-->  Units
//!                                                                    int8: the gated kernels on the weight image
//!                                                                    reference: f64 on unquantised weights
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | `EngineModel`: steps over rows of sequences |
//! | [`sequencer`] | words to commands to unit jobs: the one dispatch |
//! | [`units`] | `Units`, one method a command, and the ops they take |
//! | [`int8`] | units on the gated kernels and a weight image |
//! | `gpu` | units on a graphics device, with the feature of that name |
//! | [`reference`](mod@reference) | units in f64, nothing quantised |
//! | [`image`] | the weight image: layout, build, open |
//! | [`store`] | the token-row store |
//! | [`state`] | what sequences keep: cache, ring, memory |
//! | [`source`] | where weights come from |
//! | [`team`] | the threads |
//!
//! # Invariants
//! - Nothing here knows a Spec or a family, and there is no I/O: weights come through [`source::WeightSource`].
//! - The program is the model: a step runs its commands, all of them, in order, and there is no other forward pass.
//! - A result is a function of program, weights and tokens. Threads, batch, chunks and context length change no bit.

mod error;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod image;
pub mod int8;
pub mod model;
pub mod reference;
mod ropes;
pub mod sequencer;
pub mod source;
pub mod state;
pub mod store;
pub mod team;
#[cfg(test)]
mod tests;
pub mod units;

pub use error::ModelError;
pub use image::{Image, ImageError, ImageLayout};
pub use int8::Kernels;
pub use model::{Clock, CommandTime, EngineModel, Logits, Row, SeqId, StepError};
pub use reference::Linear;
pub use sequencer::{Sequencer, WordsError};
pub use source::{MemorySource, SourceError, WeightSource};
pub use state::Capacity;
pub use units::{Counters, DeviceTime, DeviceTimes};
