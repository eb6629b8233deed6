//! Any bytes, to every decoder.
#![no_main]

mod pipeline;
#[allow(dead_code, reason = "a target runs one of them")]
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::bytes(bytes));
