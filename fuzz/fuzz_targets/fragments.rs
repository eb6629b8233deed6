//! Any frames, to the reassembly.
#![no_main]

mod pipeline;
mod properties;

libfuzzer_sys::fuzz_target!(|frames: Vec<(bool, u8, u8, u8, u16)>| properties::frames(&frames));
