//! Wordline: a compiler, bit-exact engine and cycle model for LLM decode hardware.
//!
//! This crate is the product: all input and output, and what joins the rooms. [`checkpoint`] reads a model's facts and
//! weights, `wordline_lowering` makes its decode step a program of words, `wordline_engine` runs the words, [`generate`]
//! writes text with them, [`measure`] holds them to golden values, and [`cli`] is the command line.
//!
//! **Invariants**: nothing but this crate touches disk, standard streams or the clock. Family names appear in
//! [`checkpoint::arch`] alone. An engine is given what `lower` or a program file holds, never the oracle's program.

pub mod backends;
pub mod checkpoint;
pub mod cli;
pub mod engines;
pub mod generate;
pub mod image_cache;
pub mod image_memory;
pub mod measure;
pub mod model;
pub mod pipeline;
mod quiet;
pub mod random_weights;
pub mod shapes;
pub mod tokenizer;

// Used by nothing here: named, so that their features are the same in every build (docs/dependencies.md).
use hyper_util as _;
use num_traits as _;
use serde_core as _;
use tower as _;
