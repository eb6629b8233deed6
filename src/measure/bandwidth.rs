//! Plain-read bandwidth: how fast the same threads read the same number of bytes when they do nothing else.

use std::hint::black_box;
use std::time::Instant;

/// Bytes a second at which `threads` threads read a buffer of `bytes` bytes, the best of `repeats` passes.
///
/// The buffer is at least `floor` bytes, so that a small model is not compared with reads from the processor's cache
/// when its own weights would not come from there either.
#[must_use]
pub fn plain_read(bytes: usize, floor: usize, threads: usize, repeats: usize) -> f64 {
    let words = bytes.max(floor).div_ceil(8).max(1);
    // Not zero: pages of zeros may all be one physical page.
    let buffer: Vec<u64> = (0..words as u64).collect();
    let threads = threads.max(1);
    let part = words.div_ceil(threads);
    let mut best = f64::INFINITY;
    for _ in 0..repeats.max(1) {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for words in buffer.chunks(part) {
                scope.spawn(move || black_box(sum(words)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (words * 8) as f64 / best
}

/// A sum in independent lanes, so that adding never waits for adding.
fn sum(words: &[u64]) -> u64 {
    let (blocks, rest) = words.as_chunks::<32>();
    let mut lanes = [0_u64; 32];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (0..1000).map(|i| i * i).collect();
        assert_eq!(sum(&words), words.iter().sum::<u64>());
        assert!(plain_read(1 << 16, 0, 3, 2).is_finite());
        assert!(plain_read(0, 0, 0, 0) > 0.0);
    }
}
