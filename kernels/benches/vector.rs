//! The vector, conv and delta units: one token-row of each command, on the fastest form and on the mirror.

use criterion::{BenchmarkId, Criterion, Throughput};
use std::hint::black_box;
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

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    commands(&mut criterion, &VectorUnit::new());
    commands(&mut criterion, &VectorUnit::mirror());
    criterion.final_summary();
}
