//! Any frames, to the reassembly.
#![no_main]

mod pipeline;
#[allow(dead_code, reason = "a target runs one of them")]
mod properties;

libfuzzer_sys::fuzz_target!(|frames: Vec<(bool, u8, u8, u8, u16)>| properties::frames(&frames));
