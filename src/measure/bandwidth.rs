//! `Reads`: how fast this machine reads memory when it does nothing else, the limit of everything that streams weights.
//!
//! A pass reads every byte of a buffer once, with the same number of threads as the engine has, from large pages. No
//! one loop is the fastest on every machine, so there are several: the widest loads there are and narrower ones, one
//! stream of addresses a thread or more, long pieces or short. The fastest of them is the limit.

use super::limit::{Limit, LimitError};
use crate::image_memory::zeroed;
use memmap2::MmapMut;
use serde::Serialize;
use std::hint::black_box;
use std::io;
use std::time::Instant;
use wordline_engine::team::Team;

/// The least buffer: far more than a processor's caches hold.
pub const LEAST: usize = 256 << 20;

/// Passes of each loop that choose between them.
const TRIALS: usize = 4;

/// Width of a loop's loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loads {
    /// 64 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 32 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the compiler makes of a sum.
    Plain,
}

impl Loads {
    const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        Self::Plain,
    ];

    fn present(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Plain => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            Self::Plain => "plain",
        }
    }

    /// The exclusive or of all 8-byte words.
    fn xor(self, bytes: &[u8]) -> u64 {
        match self {
            // SAFETY: only loads that are present are made into a loop.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { xor_avx512(bytes) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { xor_avx2(bytes) },
            Self::Plain => xor_plain(bytes),
        }
    }
}

/// One way to read a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loop {
    loads: Loads,
    /// Addresses that a thread reads from in turn.
    streams: usize,
    /// Bytes that a thread takes at a time; none: its share of the whole.
    piece: Option<usize>,
}

impl Loop {
    fn all() -> Vec<Loop> {
        let present = Loads::ALL.iter().copied().filter(|loads| loads.present());
        let ways = [(1, None), (2, None), (4, None), (1, Some(1 << 20)), (4, Some(4 << 20))];
        present.take(2).flat_map(|loads| ways.map(|(streams, piece)| Loop { loads, streams, piece })).collect()
    }

    fn name(&self) -> String {
        let pieces = match self.piece {
            Some(bytes) => format!("pieces of {} MiB", bytes >> 20),
            None => "one piece a thread".to_owned(),
        };
        let streams = if self.streams == 1 { "1 stream".to_owned() } else { format!("{} streams", self.streams) };
        format!("{} loads, {streams}, {pieces}", self.loads.name())
    }

    /// Read a piece, its streams a block each in turn.
    fn read(&self, bytes: &[u8]) -> u64 {
        /// Bytes of one stream before the next one's turn.
        const TURN: usize = 1024;
        let stream = (bytes.len() / self.streams) / TURN * TURN;
        if self.streams == 1 || stream == 0 {
            return self.loads.xor(bytes);
        }
        let mut sum = 0;
        for at in (0..stream).step_by(TURN) {
            for first in (0..self.streams).map(|i| i * stream + at) {
                sum ^= self.loads.xor(&bytes[first..first + TURN]);
            }
        }
        sum ^ self.loads.xor(&bytes[stream * self.streams..])
    }

    /// Read all bytes once; their exclusive or.
    fn pass(&self, team: &mut Team, bytes: &[u8]) -> u64 {
        let share = bytes.len().div_ceil(team.members()).next_multiple_of(64);
        let piece = self.piece.unwrap_or(share).max(64);
        let mut sums = vec![0_u64; bytes.len().div_ceil(piece)];
        team.chunks(usize::MAX, &mut sums, 1, &|part, sum| {
            let end = bytes.len().min((part + 1) * piece);
            sum[0] = self.read(&bytes[part * piece..end]);
        });
        sums.into_iter().fold(0, |a, b| a ^ b)
    }
}

/// What the limit of reading was found with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadLoop {
    /// The loop, in words.
    pub name: String,
    /// Bytes of the buffer.
    pub buffer_bytes: usize,
}

/// A buffer to read and the fastest loop over it.
pub struct Reads {
    buffer: MmapMut,
    team: Team,
    best: Loop,
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reads").field("loop", &self.best.name()).finish_non_exhaustive()
    }
}

impl Reads {
    /// A buffer of `bytes` bytes, at least 8, read by `threads` threads; every loop has tried, and the fastest is kept.
    ///
    /// # Errors
    /// There is no memory for the buffer.
    pub fn new(bytes: usize, threads: usize) -> io::Result<Self> {
        let mut buffer = zeroed(bytes.max(8).next_multiple_of(8))?;
        let mut team = Team::new(threads);
        // Written by the threads that read: pages of zeros may all be one physical page.
        team.chunks(usize::MAX, &mut buffer[..], 2 << 20, &|part, bytes| {
            for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&((part << 18) + i).to_le_bytes());
            }
        });
        let loops = Loop::all();
        let mut reads = Self { buffer, team, best: loops[0] };
        let mut fastest = 0.0;
        // The loops take turns, so that a busy moment of the machine does not meet one of them alone.
        for _ in 0..TRIALS {
            for way in &loops {
                let rate = reads.rate(way);
                if rate > fastest {
                    (fastest, reads.best) = (rate, *way);
                }
            }
        }
        Ok(reads)
    }

    /// The loop, and the buffer it reads.
    #[must_use]
    pub fn describe(&self) -> ReadLoop {
        ReadLoop { name: self.best.name(), buffer_bytes: self.buffer.len() }
    }

    fn rate(&mut self, way: &Loop) -> f64 {
        let bytes = &self.buffer[..];
        let start = Instant::now();
        black_box(way.pass(&mut self.team, bytes));
        bytes.len() as f64 / start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl Limit for Reads {
    /// Bytes a second of one pass of the fastest loop.
    fn pass(&mut self) -> Result<f64, LimitError> {
        let best = self.best;
        Ok(self.rate(&best))
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn xor_avx512(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_xor_si512};
    let (blocks, rest) = bytes.as_chunks::<512>();
    let mut lanes = [_mm512_setzero_si512(); 8];
    for block in blocks {
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: eight loads of 64 bytes are the 512 of a block.
            let x = unsafe { _mm512_loadu_si512(block.as_ptr().add(64 * i).cast()) };
            *lane = _mm512_xor_si512(*lane, x);
        }
    }
    let all = lanes.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_xor_si512(a, b));
    let mut words = [0_u64; 8];
    // SAFETY: the words take 64 bytes.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), all) };
    words.iter().fold(xor_plain(rest), |a, b| a ^ b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn xor_avx2(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256};
    let (blocks, rest) = bytes.as_chunks::<256>();
    let mut lanes = [_mm256_setzero_si256(); 8];
    for block in blocks {
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: eight loads of 32 bytes are the 256 of a block.
            let x = unsafe { _mm256_loadu_si256(block.as_ptr().add(32 * i).cast::<__m256i>()) };
            *lane = _mm256_xor_si256(*lane, x);
        }
    }
    let all = lanes.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_xor_si256(a, b));
    let mut words = [0_u64; 4];
    // SAFETY: the words take 32 bytes.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), all) };
    words.iter().fold(xor_plain(rest), |a, b| a ^ b)
}

/// Independent lanes, so that no exclusive or waits for another. A tail shorter than a word counts as padded by zeros.
fn xor_plain(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut lanes = [0_u64; 32];
    let (blocks, rest) = words.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane ^= u64::from_le_bytes(*word);
        }
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    let rest = rest.iter().fold(u64::from_le_bytes(last), |a, word| a ^ u64::from_le_bytes(*word));
    lanes.iter().fold(rest, |a, b| a ^ b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every loop reads every byte once: a bit flipped anywhere changes the exclusive or, and one flipped twice would
    /// not.
    #[test]
    fn every_loop_reads_every_byte_once() {
        for len in [8_usize, 64, 4096, 4 * 1024 * 3 + 8, (5 << 20) + 72] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * i % 251) as u8).collect();
            let expected = bytes.chunks_exact(8).fold(0, |a, w| a ^ u64::from_le_bytes(w.try_into().unwrap()));
            for way in Loop::all() {
                for threads in [1, 3] {
                    assert_eq!(way.pass(&mut Team::new(threads), &bytes), expected, "{} over {len}", way.name());
                }
            }
        }
    }

    #[test]
    fn a_pass_has_a_rate() {
        let mut reads = Reads::new(1 << 20, 2).unwrap();
        let rate = reads.pass().unwrap();
        assert!(rate > 0.0 && rate.is_finite());
        assert_eq!(reads.describe().buffer_bytes, 1 << 20);
        Reads::new(0, 1).unwrap();
    }
}
