//! The tile interpreter: the steps of a pass run over a tile of elements before the next tile is begun.
//!
//! It runs any micro-program of the table on any instruction set, with the mirror's bits: elements are independent
//! within a pass, and each lane of a reduction still adds its elements in ascending order.

use super::{Job, Map, Simd};
use crate::flush;
use crate::math::ops::{Ops, Scalar};
use crate::vector::micro::{MOST_STEPS, Micro, Place, Step, Value};
use crate::vector::run::{Data, LANES, Operand, Run};
use std::ops::Range;

/// Elements of a tile; a multiple of [`LANES`], so that an element's lane is its place in the tile mod 32.
const TILE: usize = 128;
/// Steps of the longest pass of the table.
pub(crate) const LONGEST_PASS: usize = 16;
/// Reductions in one pass.
pub(crate) const MOST_REDUCTIONS: usize = 2;

/// A micro-program and what it runs on; the run has been checked against it.
pub(crate) struct Interpret<'a, 'r, 'd> {
    pub(crate) micro: &'a Micro,
    pub(crate) run: &'a mut Run<'r, 'd>,
}

/// Where the elements of a step's value are, for the present tile.
#[derive(Clone, Copy)]
enum Source {
    /// In the tile of this step of the pass.
    Tile(usize),
    /// Where an operand keeps them.
    Memory { operand: usize, start: usize },
    /// Nowhere: all are this.
    Same(f32),
}

type Tiles = [[f32; TILE]; LONGEST_PASS];

impl Job for Interpret<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<O: Simd>(self, o: O) {
        let Interpret { micro, run } = self;
        let mut tiles: Tiles = [[0.0; TILE]; LONGEST_PASS];
        for head in 0..run.heads {
            let mut scalars = [0.0; MOST_STEPS];
            let mut at = 0;
            while at < micro.steps.len() {
                let number = micro.passes[at];
                if number == 0 {
                    scalars[at] = head_step(micro.steps[at], head, &scalars, run);
                    at += 1;
                } else {
                    let length = micro.passes[at..].iter().take_while(|p| **p == number).count();
                    pass(o, micro, run, head, at..at + length, &mut scalars, &mut tiles);
                    at += length;
                }
            }
        }
    }
}

/// A step whose value is one for the head.
fn head_step(step: Step, head: usize, scalars: &[f32; MOST_STEPS], run: &mut Run<'_, '_>) -> f32 {
    let of = |v: Value| scalars[usize::from(v)];
    match step {
        Step::LoadHead(operand) => {
            let operand = &run.operands[usize::from(operand)];
            operand.data()[head * operand.stride]
        }
        Step::StoreHead(operand, v) => {
            let operand = &mut run.operands[usize::from(operand)];
            let at = head * operand.stride;
            operand.data_mut()[at] = of(v);
            of(v)
        }
        Step::Number(n) => n,
        Step::Param(p) => run.params[usize::from(p)],
        Step::Add(a, b) => flush::add(of(a), of(b)),
        Step::Sub(a, b) => flush::sub(of(a), of(b)),
        Step::Mul(a, b) => flush::mul(of(a), of(b)),
        Step::Map(function, a) => function.eval(of(a)),
        Step::Act(a) => run.act.eval(of(a)),
        // Steps of a pass; a pass gives reductions their values.
        Step::Load(_) | Step::Store(..) | Step::Spread(_) | Step::Sum(_) | Step::Max(_) => 0.0,
    }
}

/// Applies an operation to each vector of two sources.
macro_rules! each {
    ($o:ident, $op:ident, $a:expr, $b:expr, $tiles:expr, $operands:expr, $out:ident) => {
        match ($a, $b) {
            (Source::Same(x), Source::Same(y)) => $out.fill(Scalar.$op(x, y)),
            (a, Source::Same(y)) => {
                let y = $o.num(y);
                for (x, z) in
                    slice(a, $tiles, $operands, $out.len()).chunks_exact(O::LANES).zip($out.chunks_exact_mut(O::LANES))
                {
                    $o.store($o.$op($o.load(x), y), z);
                }
            }
            (Source::Same(x), b) => {
                let x = $o.num(x);
                for (y, z) in
                    slice(b, $tiles, $operands, $out.len()).chunks_exact(O::LANES).zip($out.chunks_exact_mut(O::LANES))
                {
                    $o.store($o.$op(x, $o.load(y)), z);
                }
            }
            (a, b) => {
                let (a, b) = (slice(a, $tiles, $operands, $out.len()), slice(b, $tiles, $operands, $out.len()));
                for ((x, y), z) in
                    a.chunks_exact(O::LANES).zip(b.chunks_exact(O::LANES)).zip($out.chunks_exact_mut(O::LANES))
                {
                    $o.store($o.$op($o.load(x), $o.load(y)), z);
                }
            }
        }
    };
}

/// One pass over a head's elements, tile by tile.
#[inline(always)]
fn pass<O: Simd>(
    o: O,
    micro: &Micro,
    run: &mut Run<'_, '_>,
    head: usize,
    range: Range<usize>,
    scalars: &mut [f32; MOST_STEPS],
    tiles: &mut Tiles,
) {
    let steps = &micro.steps[range.clone()];
    let mut lanes = [[0.0f32; LANES]; MOST_REDUCTIONS];
    let reductions = steps.iter().filter(|s| matches!(s, Step::Sum(_) | Step::Max(_)));
    for (lanes, step) in lanes.iter_mut().zip(reductions) {
        lanes.fill(if matches!(step, Step::Max(_)) { f32::NEG_INFINITY } else { 0.0 });
    }
    let mut sources = [Source::Same(0.0); LONGEST_PASS];
    for first in (0..run.width).step_by(TILE) {
        let n = TILE.min(run.width - first);
        // Whole vectors; what lies past n is computed and thrown away.
        let padded = n.next_multiple_of(2 * O::LANES);
        let mut reduction = 0;
        for (k, step) in steps.iter().enumerate() {
            let (done, rest) = tiles.split_at_mut(k);
            let out = &mut rest[0][..padded];
            // An element value never outlives its pass, so it is one of the pass's own steps.
            let of = |v: Value| sources[usize::from(v) - range.start];
            sources[k] = match *step {
                Step::Load(place) => load(run, head, place, first, n, out, k),
                Step::Store(place, v) => {
                    let source = of(v);
                    if let Source::Same(x) = source {
                        out.fill(x);
                    } else {
                        out.copy_from_slice(slice(source, done, run.operands, padded));
                    }
                    store(run, head, place, first, &out[..n]);
                    Source::Tile(k)
                }
                Step::Spread(v) => Source::Same(scalars[usize::from(v)]),
                Step::Add(a, b) => {
                    each!(o, add, of(a), of(b), done, run.operands, out);
                    Source::Tile(k)
                }
                Step::Sub(a, b) => {
                    each!(o, sub, of(a), of(b), done, run.operands, out);
                    Source::Tile(k)
                }
                Step::Mul(a, b) => {
                    each!(o, mul, of(a), of(b), done, run.operands, out);
                    Source::Tile(k)
                }
                Step::Map(_, v) | Step::Act(v) => {
                    let function = if let Step::Map(function, _) = *step { function } else { run.act };
                    match of(v) {
                        Source::Same(x) => Source::Same(function.eval(x)),
                        source => {
                            o.enter(Map { function, from: slice(source, done, run.operands, padded), to: out });
                            Source::Tile(k)
                        }
                    }
                }
                Step::Sum(v) | Step::Max(v) => {
                    let largest = matches!(step, Step::Max(_));
                    let from = match of(v) {
                        Source::Same(x) => {
                            out.fill(x);
                            &out[..n]
                        }
                        source => slice(source, done, run.operands, n),
                    };
                    reduce(o, from, &mut lanes[reduction], largest);
                    reduction += 1;
                    Source::Same(0.0)
                }
                Step::LoadHead(_) | Step::StoreHead(..) | Step::Number(_) | Step::Param(_) => Source::Same(0.0),
            };
        }
    }
    let mut reduction = 0;
    for (k, step) in steps.iter().enumerate() {
        match step {
            Step::Sum(_) => {
                lanes[reduction].rotate_right(run.first_lane % LANES);
                scalars[range.start + k] = tree(&mut lanes[reduction]);
            }
            Step::Max(_) => {
                let largest = lanes[reduction].iter().fold(f32::NEG_INFINITY, |m, x| if m < *x { *x } else { m });
                scalars[range.start + k] = largest;
            }
            _ => continue,
        }
        reduction += 1;
    }
}

/// The first `n` elements of a source that has elements.
#[inline(always)]
fn slice<'a>(source: Source, tiles: &'a [[f32; TILE]], operands: &'a [Operand<'_>], n: usize) -> &'a [f32] {
    match source {
        Source::Tile(k) => &tiles[k][..n],
        Source::Memory { operand, start } => &operands[operand].data()[start..start + n],
        Source::Same(_) => &[],
    }
}

/// Where the tile's elements of a place can be read: in memory if they lie there in a row and nobody writes there,
/// else in `out`, whose end is then zero.
#[inline(always)]
fn load(run: &Run<'_, '_>, head: usize, place: Place, first: usize, n: usize, out: &mut [f32], tile: usize) -> Source {
    let operand = &run.operands[usize::from(place.operand)];
    let start = head * operand.stride + place.at(first, run.width);
    let data = operand.data();
    if place.step == 1 {
        if matches!(operand.data, Data::In(_)) && data.len() - start >= out.len() {
            return Source::Memory { operand: usize::from(place.operand), start };
        }
        out[..n].copy_from_slice(&data[start..start + n]);
    } else {
        for (x, y) in data[start..].iter().step_by(usize::from(place.step)).zip(&mut out[..n]) {
            *y = *x;
        }
    }
    out[n..].fill(0.0);
    Source::Tile(tile)
}

#[inline(always)]
fn store(run: &mut Run<'_, '_>, head: usize, place: Place, first: usize, from: &[f32]) {
    let start = place.at(first, run.width);
    let operand = &mut run.operands[usize::from(place.operand)];
    let start = head * operand.stride + start;
    let to = &mut operand.data_mut()[start..];
    if place.step == 1 {
        to[..from.len()].copy_from_slice(from);
    } else {
        for (x, y) in from.iter().zip(to.iter_mut().step_by(usize::from(place.step))) {
            *y = *x;
        }
    }
}

/// Takes a tile's elements into the lanes: element i of the tile to lane i mod 32.
#[inline(always)]
fn reduce<O: Simd>(o: O, from: &[f32], lanes: &mut [f32; LANES], largest: bool) {
    let mut vectors = [o.num(0.0); LANES];
    let used = LANES / O::LANES;
    for (vector, lanes) in vectors[..used].iter_mut().zip(lanes.chunks_exact(O::LANES)) {
        *vector = o.load(lanes);
    }
    let groups = from.chunks_exact(LANES);
    let rest = groups.remainder();
    for group in groups {
        for (vector, x) in vectors[..used].iter_mut().zip(group.chunks_exact(O::LANES)) {
            let x = o.load(x);
            *vector = if largest { o.select(o.lt(*vector, x), x, *vector) } else { o.add(*vector, x) };
        }
    }
    for (vector, lanes) in vectors[..used].iter().zip(lanes.chunks_exact_mut(O::LANES)) {
        o.store(*vector, lanes);
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = match largest {
            true if *lane < *x => *x,
            true => *lane,
            false => flush::add(*lane, *x),
        };
    }
}

/// `lane[i] += lane[i + s]` for i < s, s = 16, 8, 4, 2, 1.
#[inline(always)]
fn tree(lanes: &mut [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes[..2 * half].split_at_mut(half);
        for (a, b) in low.iter_mut().zip(&*high) {
            *a = flush::add(*a, *b);
        }
        half /= 2;
    }
    lanes[0]
}
