//! Pricing a step of an 80-layer model, its whole report, and a sweep of ten thousand points of one model.

use criterion::Criterion;
use std::hint::black_box;
use std::time::Instant;
use wordline::shapes::Shape;
use wordline_ir::Numerics;
use wordline_lowering::lower;
use wordline_twin::sweep::{Axis, Base, sweep};
use wordline_twin::{Ask, Formats, Load, Machine, Report, Subject, price};

fn main() {
    let large = Shape::named("llama3.1-70b").expect("a published shape").spec;
    let program = lower(&large, &Numerics::default(), 4096).expect("a program").program;
    let formats = Formats::new("fp8", "fp8", "f32").expect("formats");
    let machine = Machine::preset("h200").expect("a machine");
    let subject = Subject::new(&program, &formats).expect("a subject");
    let load = Load::decode(4096).expect("a load");
    let mut criterion = Criterion::default().configure_from_args();
    criterion.bench_function("read the words of 80 layers", |b| b.iter(|| Subject::new(black_box(&program), &formats)));
    criterion.bench_function("price a step of 80 layers", |b| b.iter(|| price(black_box(&subject), &machine, &load)));
    criterion.bench_function("report on a step of 80 layers", |b| {
        b.iter(|| Report::of(black_box(&subject), &machine, &load, Ask::default()));
    });
    criterion.final_summary();
    let axes = [
        "weights.efficiency=0.5,0.6,0.7,0.8,0.9",
        "vector.lanes=1k..512k",
        "sequences=1..512",
        "ctx=0,1k..8k,10k,12k,14k,16k,18k,20k,22k,24k,26k,28k,30k,32k,34k,36k,38k",
    ]
    .map(|text| Axis::parse(text).expect("an axis"));
    let base = Base {
        machine,
        weights: "fp8".into(),
        kv: "fp8".into(),
        ctx: 0,
        rows: 1,
        sequences: 1,
        also: Vec::new(),
        state: "f32".into(),
        skew: 0.0,
    };
    let start = Instant::now();
    let points = sweep(&program, &base, &axes, &["tokens_per_s".into(), "joules_per_token".into()]).expect("a sweep");
    let seconds = start.elapsed().as_secs_f64();
    println!("{} points in {seconds:.3} s, {:.1} us a point", points.len(), 1e6 * seconds / points.len() as f64);
}
