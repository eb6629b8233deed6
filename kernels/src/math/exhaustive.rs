//! Sweeps: a function held to its f64 reference over a range of inputs, up to all 2^32 of them.

use super::Function;
use super::ops::NAN;
use crate::vector::Form;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Inputs hashed together; the digest of a sweep is that of its chunks' digests in order.
pub const CHUNK: usize = 1 << 16;

/// Every input there is.
pub const ALL_INPUTS: Range<u64> = 0..1 << 32;

/// What a sweep found.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The largest error, in units in the last place of the reference value rounded to f32.
    pub worst_ulp: f64,
    /// Bits of the input where it occurs, the lowest such.
    pub at: u32,
    /// SHA-256 over the SHA-256 of each chunk's output bits (little endian), in the order of inputs.
    pub sha256: [u8; 32],
}

impl Sweep {
    /// The digest in hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        self.sha256.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Runs `function` in a form on each input whose bits are in `range`, on `threads` threads.
///
/// The result does not depend on the number of threads. A full sweep takes minutes.
#[must_use]
pub fn exhaustive(function: Function, form: Form, range: Range<u64>, threads: usize) -> Sweep {
    let (range, chunks) = chunks_of(range);
    sweep(function, form, chunks, threads, |chunk| inputs_of(&range, chunk))
}

/// The digest alone, without the f64 reference: what holds one form to another.
#[must_use]
pub fn digest(function: Function, form: Form, range: Range<u64>, threads: usize) -> [u8; 32] {
    digest_of(range, threads, |from, to| form.map(function, from, to))
}

/// The digest of whatever maps inputs to outputs.
pub(crate) fn digest_of(range: Range<u64>, threads: usize, map: impl Fn(&[f32], &mut [f32]) + Sync) -> [u8; 32] {
    let (range, chunks) = chunks_of(range);
    let digests = in_order(chunks, threads, |chunk| outputs(&map, &inputs_of(&range, chunk)).1);
    let mut hash = Sha256::new();
    digests.iter().for_each(|digest| hash.update(digest));
    hash.finalize().into()
}

/// The same over a sample: every `stride`-th input, and [`borders`].
#[must_use]
pub fn sample(function: Function, form: Form, stride: usize) -> Sweep {
    let mut inputs: Vec<f32> = (0..=u32::MAX).step_by(stride.max(1)).map(f32::from_bits).collect();
    inputs.extend(borders());
    let chunks = inputs.len().div_ceil(CHUNK) as u64;
    sweep(function, form, chunks, 1, |chunk| {
        let start = chunk as usize * CHUNK;
        inputs[start..inputs.len().min(start + CHUNK)].to_vec()
    })
}

/// Inputs where something changes: each exponent's first and last values, and values around every bound in the
/// functions' code, both signs, with their neighbours.
#[must_use]
pub fn borders() -> Vec<f32> {
    let bounds = [
        0.0, 0.35, 0.5, 1.0, 2.0, 3.0, 4.0, 9.01, 10.0, 13.2, 14.0, 16.64, 20.0, 83.17, 83.18, 87.33, 88.0, 88.722_83,
        88.722_84, 103.97, 126.0, 127.0, 128.0,
    ];
    let steps = (0..=255u32).map(|field| f32::from_bits(field << 23));
    // Half a multiple of ln 2: where the exponent of e^x changes.
    let halves = (0..=260u32).map(|n| (f64::from(n) * 0.5 * std::f64::consts::LN_2) as f32);
    let mut all = Vec::new();
    for value in bounds.into_iter().chain(steps).chain(halves) {
        for bits in value.to_bits().saturating_sub(3)..=value.to_bits() + 3 {
            all.extend([f32::from_bits(bits), f32::from_bits(bits | 1 << 31)]);
        }
    }
    all.extend([f32::NAN, f32::from_bits(0xffc0_0001), f32::from_bits(0x7f80_0001), f32::MAX, f32::MIN]);
    all
}

/// The function in f64, by the pure-Rust math library.
#[must_use]
pub fn reference(function: Function, x: f32) -> f64 {
    let x = if x.abs() < SMALLEST { 0.0 } else { f64::from(x) };
    match function {
        Function::Exp => libm::exp(x),
        Function::Sigmoid => sigmoid(x),
        Function::Silu if x == f64::NEG_INFINITY => 0.0,
        Function::Silu => x * sigmoid(x),
        Function::GeluTanh | Function::GeluErf if x == f64::NEG_INFINITY => 0.0,
        Function::GeluTanh => {
            let c = 2.0 * libm::sqrt(2.0 / std::f64::consts::PI);
            x * sigmoid(c * (x + 0.044_715 * x * x * x))
        }
        Function::GeluErf => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Function::Softplus => x.max(0.0) + libm::log1p(libm::exp(-x.abs())) + if x.is_nan() { x } else { 0.0 },
        Function::Recip => 1.0 / x,
        Function::Rsqrt => 1.0 / libm::sqrt(x),
        Function::Tanh => libm::tanh(x),
        Function::Relu if x.is_nan() => x,
        Function::Relu => x.max(0.0),
    }
}

fn sigmoid(x: f64) -> f64 {
    if x < 0.0 {
        let e = libm::exp(x);
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + libm::exp(-x))
    }
}

/// 2^-120: smaller results are flushed.
const SMALLEST: f32 = f32::from_bits(7 << 23);

/// The error of `got` in units in the last place of the reference.
///
/// A reference below 2^-119 in size may be met by +0.0, for it lies within reach of the flush. A NaN must be met by the
/// one NaN, an infinity (or a value that rounds to one) by that infinity; anything else there is an infinite error.
#[must_use]
pub fn error_in_ulp(got: f32, reference: f64) -> f64 {
    if reference.is_nan() {
        return if got.to_bits() == NAN as u32 { 0.0 } else { f64::INFINITY };
    }
    let rounded = reference as f32;
    if got.is_nan() || (got == 0.0 && got.is_sign_negative()) {
        return f64::INFINITY;
    }
    if rounded.is_infinite() || got.is_infinite() {
        return if got == rounded { 0.0 } else { f64::INFINITY };
    }
    if got == 0.0 && reference.abs() < 2.0 * f64::from(SMALLEST) {
        return 0.0;
    }
    if got != 0.0 && got.abs() < SMALLEST {
        return f64::INFINITY;
    }
    let field = (rounded.to_bits() >> 23 & 255).max(7);
    // 2^(field - 127 - 23), by its bits as an f64.
    let ulp = f64::from_bits((u64::from(field) + 1023 - 150) << 52);
    (f64::from(got) - reference).abs() / ulp
}

/// The part of a range that holds inputs, and its chunks.
fn chunks_of(range: Range<u64>) -> (Range<u64>, u64) {
    let range = range.start.min(ALL_INPUTS.end)..range.end.min(ALL_INPUTS.end);
    let chunks = range.end.saturating_sub(range.start).div_ceil(CHUNK as u64);
    (range, chunks)
}

fn inputs_of(range: &Range<u64>, chunk: u64) -> Vec<f32> {
    let start = range.start + chunk * CHUNK as u64;
    (start..range.end.min(start + CHUNK as u64)).map(|bits| f32::from_bits(bits as u32)).collect()
}

/// What the inputs are mapped to, and the digest of its bits.
fn outputs(map: impl Fn(&[f32], &mut [f32]), inputs: &[f32]) -> (Vec<f32>, [u8; 32]) {
    let mut outputs = vec![0.0; inputs.len()];
    map(inputs, &mut outputs);
    let bytes: Vec<u8> = outputs.iter().flat_map(|y| y.to_le_bytes()).collect();
    (outputs, Sha256::digest(&bytes).into())
}

fn sweep<F: Fn(u64) -> Vec<f32> + Sync>(f: Function, form: Form, chunks: u64, threads: usize, inputs: F) -> Sweep {
    let results = in_order(chunks, threads, |chunk| {
        let inputs = inputs(chunk);
        let (outputs, digest) = outputs(|from, to| form.map(f, from, to), &inputs);
        let (mut worst, mut at) = (0.0, 0);
        for (x, y) in inputs.iter().zip(&outputs) {
            let error = error_in_ulp(*y, reference(f, *x));
            if error > worst {
                (worst, at) = (error, x.to_bits());
            }
        }
        (digest, worst, at)
    });
    let mut hash = Sha256::new();
    let (mut worst_ulp, mut at) = (0.0, 0);
    for (digest, worst, input) in results {
        hash.update(digest);
        if worst > worst_ulp {
            (worst_ulp, at) = (worst, input);
        }
    }
    Sweep { worst_ulp, at, sha256: hash.finalize().into() }
}

/// The work of each chunk, on some threads; the results in the order of chunks.
fn in_order<T: Send>(chunks: u64, threads: usize, work: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(0);
    let mut results: Vec<(u64, T)> = std::thread::scope(|scope| {
        let worker = || {
            let mut mine = Vec::new();
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= chunks {
                    return mine;
                }
                mine.push((chunk, work(chunk)));
            }
        };
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        // A panicking worker has already said why.
        workers.into_iter().flat_map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    results.sort_by_key(|(chunk, _)| *chunk);
    results.into_iter().map(|(_, result)| result).collect()
}
