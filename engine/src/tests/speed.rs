//! How fast a decode step streams its weights, on a model of SmolLM2-135M's shape. Run by hand:
//! `cargo test --release -p wordline-engine speed -- --ignored --nocapture`.

use super::kernels;
use super::programs::{Ffn, Mixer, Rng, Shape};
use crate::image::build_into;
use crate::team::Team;
use crate::{Capacity, EngineModel, Image, ImageLayout, Row, Sequencer, SourceError, WeightSource};
use std::ops::Range;
use std::time::Instant;
use wordline_ir::{Tensor, TensorKind};

/// Weights made up row by row.
struct MadeUp;

impl WeightSource for MadeUp {
    fn read_rows(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        let mut rng = Rng(rows.start as u64);
        let scale = if tensor.kind == TensorKind::Plain { 1.0 } else { 1.7 / (tensor.cols as f32).sqrt() };
        out.iter_mut().for_each(|v| *v = scale * rng.unit());
        Ok(())
    }
}

/// Seconds in which the threads read `bytes` bytes, the best of some passes.
fn plain_read(bytes: &[u8], threads: usize) -> f64 {
    let mut team = Team::eager(threads);
    let part = bytes.len().div_ceil(64 * threads);
    let parts = bytes.len().div_ceil(part);
    let pass = |team: &mut Team| {
        let start = Instant::now();
        team.run(usize::MAX, parts, &|i| {
            let (words, _) = bytes[i * part..((i + 1) * part).min(bytes.len())].as_chunks::<64>();
            let mut sums = [0_u8; 64];
            for word in words {
                sums.iter_mut().zip(word).for_each(|(sum, b)| *sum = sum.wrapping_add(*b));
            }
            std::hint::black_box(sums);
        });
        start.elapsed().as_secs_f64()
    };
    (0..7).map(|_| pass(&mut team)).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "measures; takes a gigabyte and half a minute"]
fn speed_of_decode() {
    let program = Shape {
        layers: vec![(Mixer::Attention(0), Ffn::Dense); 30],
        hidden: 576,
        inter: 1536,
        vocab: 49152,
        max_pos: 8192,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        v_dim: 64,
        learned_positions: false,
    }
    .program();
    let layout = ImageLayout::of(&program).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    let start = Instant::now();
    build_into(&program, &layout, &MadeUp, [0; 32], &mut bytes, &mut Team::new(2), &|_, _| true).unwrap();
    println!("image: {} MB built in {:.2} s", bytes.len() >> 20, start.elapsed().as_secs_f64());
    for threads in [1, 2] {
        let read = plain_read(&bytes, threads);
        let image = Image::open(&program, bytes.clone(), None).unwrap();
        let start = Instant::now();
        image.check_all().unwrap();
        let checked = start.elapsed().as_secs_f64();
        let sequencer = Sequencer::new(&program).unwrap();
        let mut model = EngineModel::int8(sequencer, Capacity::default(), image, kernels(), threads).unwrap();
        for context in [1, 512] {
            let seq = model.open();
            let start = Instant::now();
            model.prefill(seq, &vec![3; context]).unwrap();
            let prefill = start.elapsed().as_secs_f64();
            let before = model.counters().weight_bytes;
            let mut best = f64::INFINITY;
            let steps = 24;
            for _ in 0..steps {
                let start = Instant::now();
                model.step(&[Row { seq, token: 7, logits: true }]).unwrap();
                best = best.min(start.elapsed().as_secs_f64());
            }
            let streamed = (model.counters().weight_bytes - before) as f64 / f64::from(steps);
            println!(
                "{threads} threads, context {context}: step {:.2} ms, {:.2} GB/s of {:.2} GB/s plain: {:.0} %; \
                 prefill {:.0} tokens/s; check {checked:.2} s",
                best * 1e3,
                streamed / best / 1e9,
                bytes.len() as f64 / read / 1e9,
                100.0 * streamed / best * read / bytes.len() as f64,
                context as f64 / prefill,
            );
            model.release(seq);
        }
    }
}
