//! Lowering an 80-layer model of 70 billion parameters, against parsing the header of its weights.

#[path = "../tests/large/sizes.rs"]
mod sizes;

use criterion::Criterion;
use sizes::LARGE;
use std::hint::black_box;
use std::time::{Duration, Instant};
use wordline::checkpoint::Checkpoint;
use wordline::checkpoint::header::Header;
use wordline_ir::Numerics;
use wordline_lowering::lower;

fn main() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    LARGE.write(folder.path()).expect("room for a header");
    let spec = Checkpoint::open(folder.path()).expect("a checkpoint").spec;
    let (json, data) = LARGE.header();
    let length = 8 + json.len() as u64 + data;
    let parse = || Header::parse(black_box(&json), length).expect("a header");
    let lower = || lower(black_box(&spec), &Numerics::default(), 4096).expect("a program");

    let mut criterion = Criterion::default().configure_from_args();
    criterion.bench_function("parse the header", |b| b.iter(parse));
    criterion.bench_function("lower", |b| b.iter(lower));
    criterion.final_summary();
    // In turns, so that both see the same machine.
    let pairs: Vec<(Duration, Duration)> = (0..20).map(|_| (time(parse), time(lower))).collect();
    let (parsed, lowered) = (best(pairs.iter().map(|p| p.0)), best(pairs.iter().map(|p| p.1)));
    let ratio = lowered.as_secs_f64() / parsed.as_secs_f64();
    println!("lowering takes {ratio:.2} times as long as parsing the header: {lowered:?}, {parsed:?}");
}

fn time<T>(work: impl Fn() -> T) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

fn best(times: impl Iterator<Item = Duration>) -> Duration {
    times.min().unwrap_or_default()
}
