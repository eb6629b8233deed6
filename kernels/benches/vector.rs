//! The vector, conv and delta units: one token-row of each command, on the fastest form and on the mirror.
//!
//! First what they move beside a plain read: bytes read and written a second, over those of a read of as many bytes in
//! turn with them, all in the processor's caches. Then criterion's own runs.

mod plain;

use criterion::{BenchmarkId, Criterion, Throughput};
use std::hint::black_box;
use std::time::Instant;
use wordline_kernels::conv::{ConvWeights, Ring};
use wordline_kernels::delta::DeltaRow;
use wordline_kernels::math::Function;
use wordline_kernels::vector::{Norm, Rope, VectorUnit};

/// Width of a row.
const WIDTH: usize = 4096;
/// Dimension of a head.
const HEAD: usize = 128;

fn row(n: usize, salt: u32) -> Vec<f32> {
    (0..n as u32).map(|i| ((i * 37 + salt * 101) % 1009) as f32 / 250.0 - 2.0).collect()
}

fn commands(c: &mut Criterion, unit: &VectorUnit) {
    let (x, y, both) = (row(WIDTH, 1), row(WIDTH, 2), row(2 * WIDTH, 3));
    let mut out = vec![0.0; WIDTH];
    let mut group = c.benchmark_group(format!("row of {WIDTH} on {}", unit.form()));
    group.throughput(Throughput::Elements(WIDTH as u64));
    group.bench_function("norm rms", |b| b.iter(|| unit.norm(Norm::Rms, black_box(&x), &y, None, 1e-6, &mut out)));
    group.bench_function("norm ln", |b| b.iter(|| unit.norm(Norm::Ln, black_box(&x), &y, None, 1e-6, &mut out)));
    group.bench_function("add", |b| b.iter(|| unit.add(black_box(&x), &y, 1.0, &mut out)));
    group.bench_function("gate", |b| b.iter(|| unit.gate(black_box(&x), &y, 1, &mut out)));
    for act in [Function::Silu, Function::GeluTanh, Function::GeluErf] {
        group.bench_function(BenchmarkId::new("act gated", act.name()), |b| {
            b.iter(|| unit.act_gated(black_box(&both), act, 1, &mut out));
        });
    }
    let weight = row(HEAD, 4);
    group.bench_function("gated_norm", |b| {
        b.iter(|| unit.gated_norm(black_box(&x), &y, &weight, Function::Silu, 1e-6, &mut out));
    });
    let (cos, sin) = (row(HEAD / 2, 5), row(HEAD / 2, 6));
    let rope = Rope { heads: WIDTH / HEAD, kv_heads: 0, head_dim: HEAD, rot: HEAD, interleaved: false, scale: 0.088 };
    group.bench_function("rope", |b| {
        b.iter(|| {
            out.copy_from_slice(&x);
            unit.rope(black_box(&mut out), &cos, &sin, &rope);
        });
    });
    group.bench_function("softmax terms", |b| {
        b.iter(|| {
            out.copy_from_slice(&x);
            unit.softmax_terms(black_box(&mut out), 0)
        });
    });
    let taps = ConvWeights::new(&row(4 * WIDTH, 7), None, 4, Function::Silu);
    let mut ring = Ring::new(WIDTH, 4);
    group.bench_function("conv of 4 taps", |b| b.iter(|| unit.conv(&taps, &mut ring, black_box(&x), &mut out)));
    let mut memory = row(HEAD * HEAD, 8);
    let (q, k, v) = (row(HEAD, 9), row(HEAD, 10), row(HEAD, 11));
    let delta = DeltaRow { q: &q, k: &k, v: &v, decay: 0.9, beta: 0.0, scale: 0.1 };
    group.throughput(Throughput::Elements((HEAD * HEAD) as u64));
    group
        .bench_function("delta, one head", |b| b.iter(|| unit.delta(black_box(&delta), &mut memory, &mut out[..HEAD])));
    group.finish();
}

/// Rounds of a unit and a read, and calls in each.
const ROUNDS: usize = 20;
const CALLS: usize = 500;

/// Seconds of one call, of the fastest round; the other work has its turn between.
fn fastest(mut unit: impl FnMut(), mut read: impl FnMut()) -> (f64, f64) {
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| work());
        start.elapsed().as_secs_f64() / CALLS as f64
    };
    let rounds = (0..ROUNDS).map(|_| (timed(&mut unit), timed(&mut read)));
    rounds.fold((f64::MAX, f64::MAX), |best, round| (best.0.min(round.0), best.1.min(round.1)))
}

/// Each unit's bytes a second, and their share of a plain read's.
fn beside_reads(unit: &VectorUnit) {
    let (x, y, mut out) = (row(WIDTH, 1), row(WIDTH, 2), vec![0.0; WIDTH]);
    let both = row(2 * WIDTH, 3);
    let bytes = row(HEAD * HEAD * 8, 12).into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let report = |name: &str, floats: usize, call: &mut dyn FnMut()| {
        let moved = floats * size_of::<f32>();
        let read = || {
            black_box(plain::read(black_box(&bytes[..moved])));
        };
        let (time, read) = fastest(call, read);
        let (rate, share) = (moved as f64 / time / 1e9, 100.0 * read / time);
        println!("{}: {name}: {moved} bytes, {rate:.1} GB/s, {share:.0} % of a plain read", unit.form());
    };
    report("norm rms", 3 * WIDTH, &mut || unit.norm(Norm::Rms, black_box(&x), &y, None, 1e-6, &mut out));
    report("add", 3 * WIDTH, &mut || unit.add(black_box(&x), &y, 1.0, &mut out));
    report("act gated silu", 3 * WIDTH, &mut || unit.act_gated(black_box(&both), Function::Silu, 1, &mut out));
    let taps = ConvWeights::new(&row(4 * WIDTH, 7), None, 4, Function::Silu);
    let mut ring = Ring::new(WIDTH, 4);
    // Taps, past inputs and the row's own; the output and the input that the ring takes in.
    report("conv of 4 taps", 10 * WIDTH, &mut || unit.conv(&taps, &mut ring, black_box(&x), &mut out));
    let mut memory = row(HEAD * HEAD, 8);
    let (q, k, v) = (row(HEAD, 9), row(HEAD, 10), row(HEAD, 11));
    let delta = DeltaRow { q: &q, k: &k, v: &v, decay: 0.9, beta: 0.0, scale: 0.1 };
    // The memory is read and written by the fade and by the write.
    let moved = 4 * HEAD * HEAD + 4 * HEAD;
    report("delta, one head", moved, &mut || unit.delta(black_box(&delta), &mut memory, &mut out[..HEAD]));
}

fn main() {
    beside_reads(&VectorUnit::new());
    let mut criterion = Criterion::default().configure_from_args();
    commands(&mut criterion, &VectorUnit::new());
    commands(&mut criterion, &VectorUnit::mirror());
    criterion.final_summary();
}
