//! What the engine promises, shown on small programs with random weights.

mod bits;
mod exact;
mod fuzz;
#[cfg(feature = "gpu")]
mod gpu;
mod image;
pub(crate) mod programs;
mod sequences;
mod sound;

use crate::image::build_into;
use crate::team::Team;
use crate::{Capacity, EngineModel, Image, ImageLayout, Kernels, Linear, MemorySource, Row, SeqId, Sequencer};
use std::sync::LazyLock;
use wordline_ir::Program;

/// How an engine under test is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reference,
    Baseline,
    Int8,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Reference, Kind::Baseline, Kind::Int8];

pub(crate) const SEED: u64 = 11;

pub(crate) fn capacity(ctx: usize) -> Capacity {
    Capacity { ctx, step_rows: 64 }
}

/// The device's kernels, gated once for all tests.
pub(crate) fn kernels() -> Kernels {
    static KERNELS: LazyLock<Kernels> = LazyLock::new(|| Kernels::new().unwrap());
    KERNELS.clone()
}

/// The weight image of a program.
pub(crate) fn open(program: &Program, source: &MemorySource) -> Image {
    Image::open(program, image_bytes(program, source), None).unwrap()
}

pub(crate) fn image_bytes(program: &Program, source: &MemorySource) -> Vec<u8> {
    let layout = ImageLayout::of(program).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    build_into(program, &layout, source, [7; 32], &mut bytes, &mut Team::new(2), &|_, _| true).unwrap();
    bytes
}

/// An engine on a program's random weights.
pub(crate) fn engine(kind: Kind, program: &Program, capacity: Capacity, threads: usize) -> EngineModel {
    engine_of(kind, Sequencer::new(program).unwrap(), capacity, threads)
}

pub(crate) fn engine_of(kind: Kind, sequencer: Sequencer, capacity: Capacity, threads: usize) -> EngineModel {
    let source = programs::weights(sequencer.program(), SEED);
    match kind {
        Kind::Reference => EngineModel::reference(sequencer, capacity, &source, Linear::Exact, threads).unwrap(),
        Kind::Baseline => EngineModel::reference(sequencer, capacity, &source, Linear::Q8, threads).unwrap(),
        Kind::Int8 => {
            let image = open(sequencer.program(), &source);
            EngineModel::int8(sequencer, capacity, image, kernels(), threads).unwrap()
        }
    }
}

/// Bits of results, compared whole and printed as a hash.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Bits(pub(crate) Vec<u64>);

impl Bits {
    pub(crate) fn extend(&mut self, values: &[f32]) {
        self.0.extend(values.iter().map(|v| u64::from(v.to_bits())));
    }
}

impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hash = self.0.iter().fold(0, |hash: u64, v| (hash.rotate_left(5) ^ v).wrapping_mul(0x517c_c1b7_2722_0a95));
        write!(f, "{} values, {hash:016x}", self.0.len())
    }
}

/// The bits of the logits of every token of one sequence, taken in steps of these sizes (over and over).
pub(crate) fn run(model: &mut EngineModel, seq: SeqId, tokens: &[u32], steps: &[usize]) -> Bits {
    let mut bits = Bits::default();
    let (mut rest, mut sizes) = (tokens, steps.iter().cycle());
    while !rest.is_empty() {
        let (now, later) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        let rows: Vec<Row> = now.iter().map(|token| Row { seq, token: *token, logits: true }).collect();
        bits.extend(model.step(&rows).unwrap().values());
        rest = later;
    }
    bits
}
