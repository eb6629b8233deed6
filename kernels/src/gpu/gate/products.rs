//! The gate's cases of products with one matrix. A shape's number says also what the product has beside the matrix, so
//! that the few shapes meet every way in which results end.

use super::bits::{floats, mirror};
use crate::flush::{add, mul};
use crate::format::{Limbs, Weights};
use crate::gate::cases::{self, FILLS};
use crate::gpu::device::Gpu;
use crate::gpu::matvec::{Array, MatvecRun, Residual};
use crate::gpu::matvec_text::Place;
use crate::gpu::outcome::Failed;
use crate::gpu::quantise::DeviceActs;
use crate::gpu::record;
use crate::gpu::region::Region;
use crate::gpu::weights::DeviceMatrix;
use crate::matvec::{Acts, Matrix, MatrixLayout, Matvec};
use crate::probe::Seed;

/// The shapes of every backend, and one row so long that a thread asks for several blocks ahead and ends in the middle.
pub(super) const SHAPES: [(usize, usize, usize); cases::SHAPES.len() + 1] = {
    let mut shapes = [(8224, 5, 1); cases::SHAPES.len() + 1];
    let mut s = 0;
    while s < cases::SHAPES.len() {
        shapes[s] = cases::SHAPES[s];
        s += 1;
    }
    shapes
};

/// Of the gate's shapes those that meet another shader here; the odd ones with one limb too. The seventh is a row whose
/// blocks are all taken at once: without a loop a compiler sees through most.
const TAKEN: [usize; 10] = [0, 4, 5, 6, 7, 8, 9, 10, 11, 12];

pub(super) fn taken(limbs: Limbs) -> impl Iterator<Item = usize> {
    TAKEN.into_iter().filter(move |s| limbs == Limbs::Two || s % 2 == 1)
}

/// What a shape's products have beside the matrix.
struct Extras {
    bias: bool,
    residual: Option<Place>,
}

fn extras(s: usize) -> Extras {
    Extras { bias: s % 3 == 1, residual: [None, None, Some(Place::Apart), Some(Place::InPlace)][s % 4] }
}

/// The sources of the gate's products, to be compiled at once.
pub(super) fn sources(gpu: &Gpu, array: &Array<'_>, weights: Weights) -> Result<Vec<String>, Failed> {
    let y = gpu.region("results", 4)?;
    let mut sources = Vec::new();
    for limbs in [Limbs::Two, Limbs::One] {
        for s in taken(limbs) {
            let ((cols, rows, tokens), Extras { bias, residual }) = (SHAPES[s], extras(s));
            let layout = MatrixLayout::of(weights, rows, cols).map_err(|e| Failed::Test(e.to_string()))?;
            let (matrix, acts) =
                (DeviceMatrix::blank(gpu, "blank", layout)?, DeviceActs::new(gpu, tokens, cols, limbs)?);
            let bias = if bias { Some(gpu.region("bias", 4 * rows as u64)?) } else { None };
            let (x, out) = (gpu.region("rows", 4)?, gpu.region("sums", 4)?);
            let (offset, stride, scale) = ends(s, rows);
            let residual = residual.map(|place| Residual {
                x: if place == Place::Apart { &x } else { &out },
                out: &out,
                offset,
                stride,
                scale,
            });
            let bias = bias.as_ref();
            let run = MatvecRun { command: 1, matrix: &matrix, acts: &acts, y: &y, offset, stride, bias, residual };
            sources.extend(array.matvec(gpu, &run)?.into_iter().map(|job| job.source));
        }
    }
    Ok(sources)
}

/// Where a shape's results begin, how far rows lie apart, and what multiplies them before they are added.
fn ends(s: usize, rows: usize) -> (usize, usize, f32) {
    (s % 5, rows + s % 7, [1.0, 0.375][s % 2])
}

/// One product; by shape also a bias, a sum with other rows, and rows that lie apart.
pub(super) fn matvec(
    gpu: &Gpu,
    array: &Array<'_>,
    step: &Region,
    s: usize,
    f: usize,
    limbs: Limbs,
) -> Result<(), Failed> {
    let ((cols, rows, tokens), fill) = (SHAPES[s], FILLS[f]);
    let name = || format!("matvec {rows}x{cols}, {tokens} rows, {} limbs, {fill:?}", limbs.count());
    let seed = &mut Seed::new((s * FILLS.len() + f) as u64);
    let layout = MatrixLayout::new(rows, cols).map_err(|e| Failed::Test(e.to_string()))?;
    let bytes = cases::matrix(seed, fill, &layout);
    let acts = cases::acts(seed, fill, tokens, cols, limbs);
    product(gpu, array, step, s, seed, (layout, &bytes), &acts, &name)
}

/// The product of a matrix with quantised rows, beside what its shape has, against the mirror's.
#[expect(clippy::too_many_arguments, reason = "what the gates of all formats have in common")]
pub(super) fn product(
    gpu: &Gpu,
    array: &Array<'_>,
    step: &Region,
    s: usize,
    seed: &mut Seed,
    (layout, bytes): (MatrixLayout, &[u8]),
    acts: &Acts,
    name: &dyn Fn() -> String,
) -> Result<(), Failed> {
    let (rows, tokens) = (layout.rows(), acts.rows());
    let matrix = Matrix::new(layout, bytes).map_err(|e| Failed::Test(e.to_string()))?;
    let mut values = |n: usize| -> Vec<f32> { (0..n).map(|_| seed.value()).collect() };
    let Extras { bias, residual } = extras(s);
    let bias = bias.then(|| values(rows));
    let (offset, stride, scale) = ends(s, rows);
    let before = values(offset + tokens * stride);
    let (added, apart) = (residual.is_some(), residual == Some(Place::Apart));

    let call = Matvec::new(matrix, acts, bias.as_deref(), array.lanes).map_err(|e| Failed::Test(e.to_string()))?;
    let (mut want, mut sums) = (before.clone(), before.clone());
    for (token, row) in mirror(&call).chunks_exact(rows).enumerate() {
        let at = offset + token * stride..offset + token * stride + rows;
        for ((y, sum), v) in want[at.clone()].iter_mut().zip(&mut sums[at]).zip(row) {
            (*y, *sum) = (*v, add(*sum, mul(*v, scale)));
        }
    }
    let matrix = DeviceMatrix::matrix(gpu, "a matrix of the gate", matrix)?;
    let acts = DeviceActs::upload(gpu, acts)?;
    let y = gpu.upload("results", bytemuck::cast_slice(&before))?;
    let x = gpu.upload("rows", bytemuck::cast_slice(&before))?;
    let out = gpu.upload("sums", bytemuck::cast_slice(&before))?;
    let bias = bias.map(|b| gpu.upload("bias", bytemuck::cast_slice(&b))).transpose()?;
    let from = if apart { &x } else { &out };
    let residual = added.then_some(Residual { x: from, out: &out, offset, stride, scale });
    let bias = bias.as_ref();
    let run = MatvecRun { command: 1, matrix: &matrix, acts: &acts, y: &y, offset, stride, bias, residual };
    let jobs = array.matvec(gpu, &run)?;
    let dispatches = jobs.iter().map(|job| job.dispatch(gpu, step)).collect::<Result<Vec<_>, _>>()?;
    let got = floats(&record::run(gpu, &dispatches, &y)?);
    if !cases::same(&want, &got) {
        return Err(Failed::Test(name()));
    }
    if added && !cases::same(&sums, &floats(&record::run(gpu, &[], &out)?)) {
        return Err(Failed::Test(format!("{}: its sum with other rows", name())));
    }
    Ok(())
}
