//! Any bytes, to every decoder.
#![no_main]

mod pipeline;
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::bytes(bytes));
