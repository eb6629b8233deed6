//! The units of the decode engine: what each one computes, to the bit, and the forms that compute it.
//!
//! A unit has one definition of its bits, a plain scalar mirror, and forms of it for the instruction sets of a device.
//! A form runs only after the init gate has held it to the mirror on this very device.
//!
//! | module | holds |
//! |---|---|
//! | [`mod@format`] | block-scaled int8: the quantiser, scale codes, limbs |
//! | [`tables`] | the table of int8 products, checked whole before anything computes |
//! | [`matvec`] | the array unit: matrices in tiles of 16 rows, quantised rows in, f32 rows out |
//! | [`attend`] | the attention unit: the int8 cache of keys and values, three-pass softmax |
//! | [`flush`], [`math`] | the float operation `r(op)` and the functions built from it |
//! | [`vector`] | micro-programs and their interpreter |
//! | [`conv`], [`delta`] | the units of a gated delta network: ring and memory |
//! | [`rope`], [`topk`] | rotary rows, the router's choice |
//! | [`ahead`] | prefetch hints |
//! | [`gate`], [`probe`], [`audit`] | what keeps a wrong form from computing |
//! | `gpu` | the units in WGSL, with the feature of that name |
//!
//! # Invariants
//! - A result is a function of its operands alone: no thread count, batch, chunking, capacity or instruction set shows
//!   in a bit of it.
//! - Nothing here knows a program, a model or a file; there is no I/O.
//! - Array and attention compute only through [`gate::Units`], which nothing but a passed table check and a passed
//!   init gate can make. There is no float path beside it.
//! - No fused multiply-add, no platform math library, no change of the floating-point control word.

pub mod ahead;
pub mod attend;
pub mod audit;
pub mod conv;
mod cpu;
pub mod delta;
pub mod flush;
pub mod format;
pub mod gate;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod math;
pub mod matvec;
pub mod probe;
pub mod rope;
pub mod tables;
pub mod topk;
pub mod vector;
