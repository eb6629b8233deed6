//! Any frames: reassembly stays within its bound, whatever comes.
#![no_main]

mod pipeline;

use libfuzzer_sys::fuzz_target;
use pipeline::wire::{MAX_MESSAGE, Reassembly};

fuzz_target!(|frames: Vec<(bool, u8, u8, u8, u16)>| {
    let mut reassembly = Reassembly::new();
    for (full, id, index, total, length) in frames {
        let length = if full { 49_136 } else { usize::from(length) };
        let figures = [-5, i32::from(id % 4), i32::from(index), i32::from(total)];
        let mut frame: Vec<u8> = figures.iter().flat_map(|f| f.to_le_bytes()).collect();
        frame.resize(16 + length, id);
        let _ = reassembly.take(frame);
        assert!(reassembly.held() <= MAX_MESSAGE);
    }
});
