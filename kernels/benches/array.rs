//! The array unit against the memory it streams from.
//!
//! First the streaming table: each form, interleaved with a plain read loop over the same bytes, best of several
//! rounds, so that a noisy machine slows both alike. Then criterion's own runs.

mod plain;

use criterion::{BenchmarkId, Criterion, Throughput};
use plain::read;
use std::hint::black_box;
use std::time::{Duration, Instant};
use wordline_kernels::attend::{Attend, Cache, CacheLayout, Scratch};
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gate::{Form, Units};
use wordline_kernels::matvec::{Acts, Matrix, MatrixLayout, Matvec, OutTiles};
use wordline_kernels::vector::VectorUnit;

/// Larger than any last-level cache.
const STREAM: (usize, usize) = (65_536, 4_096);
const ROUNDS: usize = 12;

/// Bytes from an address that is a multiple of 64.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    /// Any bytes are a matrix's elements and scale bytes.
    fn random(len: usize) -> Self {
        let mut bytes = vec![0; len + 64];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for chunk in bytes.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        let offset = bytes.as_ptr().align_offset(64);
        Self(bytes, offset)
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self.0[self.1..][..len]
    }
}

struct Bench {
    layout: MatrixLayout,
    bytes: Aligned,
}

impl Bench {
    fn new((rows, cols): (usize, usize)) -> Self {
        let layout = MatrixLayout::new(rows, cols).expect("a shape");
        let mut bytes = Aligned::random(layout.bytes());
        let start = bytes.1;
        for tile in bytes.0[start..].chunks_exact_mut(layout.tile_bytes()) {
            // A real row's exponent base: with a random one the results would leave the range of f32.
            tile[..16].fill(-30_i8 as u8);
        }
        Self { bytes, layout }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.bytes(self.layout.bytes())
    }

    /// Quantised rows for it.
    fn acts(&self, units: &Units, tokens: usize, limbs: Limbs) -> Acts {
        let cols = self.layout.cols();
        let x: Vec<f32> = (0..tokens * cols).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let mut acts = Acts::new();
        acts.quantise(units, &x, cols, tokens, cols, limbs).expect("finite values");
        acts
    }

    fn run(&self, units: &Units, acts: &Acts, lanes: Lanes, y: &mut Vec<f32>) {
        let (rows, tokens) = (self.layout.rows(), acts.rows());
        let matrix = Matrix::new(self.layout, self.bytes()).expect("the layout's length");
        y.resize(tokens * rows, 0.0);
        let mut out = OutTiles::new(y, &self.layout, tokens, 0, rows).expect("room");
        let call = Matvec::new(matrix, acts, None, lanes).expect("the matrix's columns");
        call.run(units, &mut out).expect("the output's shape");
        black_box(&y);
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn lanes(count: u8) -> Lanes {
    Lanes::new(count).expect("a lane count")
}

/// Each form's share of a plain read of the same bytes, one thread, one token-row.
fn streaming() {
    let bench = Bench::new(STREAM);
    let gigabytes = bench.layout.bytes() as f64 / 1e9;
    let cases = [(Limbs::Two, 8), (Limbs::Two, 32), (Limbs::One, 8), (Limbs::Two, 16)];
    for form in Form::ALL {
        let units = Units::up_to(form).expect("a form passes");
        if units.active() != form || form == Form::Mirror {
            continue;
        }
        let acts = cases.map(|(limbs, _)| bench.acts(&units, 1, limbs));
        let mut best = [Duration::MAX; 5];
        let mut y = Vec::new();
        for _ in 0..ROUNDS {
            best[4] = best[4].min(timed(|| {
                black_box(read(black_box(bench.bytes())));
            }));
            for (best, ((_, l), acts)) in best.iter_mut().zip(cases.into_iter().zip(&acts)) {
                *best = (*best).min(timed(|| bench.run(&units, acts, lanes(l), &mut y)));
            }
        }
        let rate = |time: Duration| gigabytes / time.as_secs_f64();
        let plain = rate(best[4]);
        println!("{form}: plain read {plain:.1} GB/s");
        for (time, (limbs, l)) in best.into_iter().zip(cases) {
            let share = 100.0 * rate(time) / plain;
            println!("  {} limbs, L = {l}: {:.1} GB/s, {share:.0} % of it", limbs.count(), rate(time));
        }
    }
}

fn criterion_runs(c: &mut Criterion) {
    let units = Units::new().expect("a form passes");
    let mut y = Vec::new();
    // Stays in the second-level cache: what the arithmetic alone costs.
    let small = Bench::new((128, 1_536));
    let mut group = c.benchmark_group("matvec in cache");
    for tokens in [1, 2, 4, 16, 64] {
        group.throughput(Throughput::Elements((128 * 1_536 * tokens) as u64));
        for (limbs, l) in [(Limbs::Two, 8), (Limbs::Two, 32), (Limbs::One, 8)] {
            let name = format!("{} limbs, L = {l}", limbs.count());
            let acts = small.acts(&units, tokens, limbs);
            group.bench_function(BenchmarkId::new(name, tokens), |b| {
                b.iter(|| small.run(&units, &acts, lanes(l), &mut y));
            });
        }
    }
    group.finish();
    let x: Vec<f32> = (0..4_096).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let mut acts = Acts::new();
    let mut group = c.benchmark_group("quantise a row");
    group.throughput(Throughput::Elements(4_096));
    for limbs in [Limbs::One, Limbs::Two] {
        group.bench_function(format!("{} limbs", limbs.count()), |b| {
            b.iter(|| acts.quantise(&units, black_box(&x), 4_096, 1, 4_096, limbs));
        });
    }
    group.finish();
    attend(c, &units);
    let tile = MatrixLayout::new(16, 4_096).expect("a shape");
    let (values, mut out) = ([&x[..]; 16].concat(), vec![0; tile.tile_bytes()]);
    let mut group = c.benchmark_group("pack a tile");
    group.throughput(Throughput::Elements(16 * 4_096));
    group.bench_function("16 x 4096", |b| b.iter(|| tile.pack_tile(0, black_box(&values), &mut out)));
    group.finish();
}

/// One row's query heads over one key head.
fn attend(c: &mut Criterion, units: &Units) {
    let vector = VectorUnit::new();
    let mut group = c.benchmark_group("attend");
    for (heads, dim) in [(3, 64), (8, 128)] {
        let mut cache = Cache::new(CacheLayout::new(1, dim, dim, None).expect("a shape"));
        let x: Vec<f32> = (0..heads.max(2) * dim).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        for context in [128, 1_024] {
            while cache.len() < context {
                let at = cache.len() % dim;
                cache.append(&x[at..at + dim], &x[dim - at..2 * dim - at]).expect("finite values");
            }
            let (queries, probs) = (Limbs::Two, Limbs::Two);
            let call = Attend { window: None, cap: None, queries, probs, lanes: lanes(8) };
            let (mut out, mut scratch) = (vec![0.0; heads * dim], Scratch::default());
            group.throughput(Throughput::Elements((heads * context) as u64));
            group.bench_function(format!("{heads} heads of {dim}, {context} positions"), |b| {
                b.iter(|| {
                    let q = black_box(&x[..heads * dim]);
                    call.group(units, &vector, &cache, 0, context - 1, q, &mut out, &mut scratch)
                });
            });
        }
    }
    group.finish();
}

fn main() {
    streaming();
    let mut criterion = Criterion::default().configure_from_args();
    criterion_runs(&mut criterion);
    criterion.final_summary();
}
