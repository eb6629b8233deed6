//! The fuzz targets as a program that needs no fuzzer: `cargo run --release --example fuzz [-- FILE…]`. What a fuzzer has found is
//! repeated so; without a file every target gets seeded noise. It is built with the tests, so that no target stops compiling
//! unnoticed.

#![allow(clippy::duplicate_mod, reason = "each target is a crate of its own to the fuzzer, with the same modules")]

// The targets name the fuzzer's crate. Here that is this one.
extern crate self as libfuzzer_sys;

#[path = "fuzz_targets/fragments.rs"]
#[expect(unused_attributes, reason = "it is a crate of its own to the fuzzer")]
mod fragments;
#[path = "fuzz_targets/wire.rs"]
#[expect(unused_attributes, reason = "it is a crate of its own to the fuzzer")]
mod wire;

/// The fuzzer's macro: a target as a function.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $kind:ty| $body:expr) => {
        pub(crate) fn run($input: $kind) {
            $body
        }
    };
}

/// Inputs of noise for each target.
const NOISE: u64 = 200_000;

fn main() -> std::io::Result<()> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    for file in &files {
        wire::run(&std::fs::read(file)?);
        println!("{file}: decoded or refused");
    }
    if files.is_empty() {
        let mut state = 0_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % below
        };
        for _ in 0..NOISE {
            let bytes: Vec<u8> = (0..draw(200)).map(|_| draw(256) as u8).collect();
            wire::run(&bytes);
            let mut frame = || (draw(2) == 0, draw(4) as u8, draw(6) as u8, draw(6) as u8, draw(1 << 16) as u16);
            let frames = [(); 6].map(|()| frame());
            fragments::run(frames.to_vec());
        }
        println!("{NOISE} inputs of noise for each target");
    }
    Ok(())
}
