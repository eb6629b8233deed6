//! The gate's cases of products whose first half of rows gates the second, one kernel with what quantises the result.

use super::bits::{floats, mirror};
use crate::cpu::matvec::quantise_row;
use crate::flush::mul;
use crate::format::{Limbs, Weights};
use crate::gate::cases;
use crate::gpu::device::Gpu;
use crate::gpu::matvec::{Array, GatedRun, MatvecRun};
use crate::gpu::outcome::Failed;
use crate::gpu::quantise::DeviceActs;
use crate::gpu::record;
use crate::gpu::region::Region;
use crate::gpu::weights::DeviceMatrix;
use crate::math::Function;
use crate::matvec::{Acts, Matrix, MatrixLayout, Matvec};
use crate::probe::Seed;

/// Rows, columns, limbs, whether there is a bias.
pub(super) const GATED: [(usize, usize, Limbs, bool); 2] = [(128, 1100, Limbs::Two, true), (64, 40, Limbs::One, false)];

/// Both cases with weights of a format; a device that makes a product and its activation apart passes.
pub(super) fn gated(gpu: &Gpu, array: &Array<'_>, step: &Region, weights: Weights) -> Result<(), Failed> {
    for (number, (rows, cols, limbs, with_bias)) in GATED.into_iter().enumerate() {
        let name = format!("gated product {rows}x{cols}, {weights:?}, {} limbs", limbs.count());
        let unfit = |e: &dyn std::fmt::Display| Failed::Test(format!("{name}: {e}"));
        let seed = &mut Seed::new(4000 + number as u64);
        let layout = MatrixLayout::of(weights, rows, cols).map_err(|e| unfit(&e))?;
        // Values that end in ones that can be quantised.
        let mut bytes = vec![0; layout.bytes()];
        for (tile, out) in bytes.chunks_exact_mut(layout.tile_bytes()).enumerate() {
            let values: Vec<f32> = (0..layout.tile_rows(tile).len() * cols).map(|_| seed.value()).collect();
            layout.pack_tile(tile, &values, out).map_err(|e| unfit(&e))?;
        }
        let quantise = |values: &[f32]| {
            let mut acts = Acts::new();
            let mut places = acts.shape(1, values.len(), limbs);
            match quantise_row(values, limbs, &mut places.space(0)) {
                Ok(()) => Ok(acts),
                Err(_) => Err(unfit(&"a row has no int8 form on the mirror")),
            }
        };
        let acts = quantise(&(0..cols).map(|_| seed.value()).collect::<Vec<_>>())?;
        let matrix = Matrix::new(layout, &bytes).map_err(|e| unfit(&e))?;
        let bias: Option<Vec<f32>> = with_bias.then(|| (0..rows).map(|_| seed.value()).collect());
        let call = Matvec::new(matrix, &acts, bias.as_deref(), array.lanes).map_err(|e| unfit(&e))?;
        let want = mirror(&call);
        let (gates, ups) = want.split_at(rows / 2);
        let act = Function::Silu;
        let opened: Vec<f32> = gates.iter().zip(ups).map(|(gate, up)| mul(act.eval(*gate), *up)).collect();
        let quantised = quantise(&opened)?;

        let matrix = DeviceMatrix::matrix(gpu, "a matrix of the gate", matrix)?;
        let acts = DeviceActs::upload(gpu, &acts)?;
        let (y, out) = (gpu.region("results", 4 * rows as u64)?, gpu.region("opened", 2 * rows as u64)?);
        let bias = bias.map(|b| gpu.upload("bias", bytemuck::cast_slice(&b))).transpose()?;
        let (made, wanted) = (DeviceActs::new(gpu, 1, rows / 2, limbs)?, DeviceActs::upload(gpu, &quantised)?);
        let (matrix, bias) = (&matrix, bias.as_ref());
        let run = MatvecRun { command: 1, matrix, acts: &acts, y: &y, offset: 0, stride: rows, bias, residual: None };
        let Some(job) = array.gated(gpu, &run, &GatedRun { act, out: &out, acts: &made, command: 2 })? else {
            return Ok(());
        };
        let same = |want: &[f32], got: &Region, dispatches: &[_], what: &str| {
            let got = floats(&record::run(gpu, dispatches, got)?);
            let same = cases::same(want, &got);
            if same { Ok(()) } else { Err(Failed::Test(format!("{name}: {what}"))) }
        };
        same(&want, &y, &[job.dispatch(gpu, step)?], "the product")?;
        same(&opened, &out, &[], "the activation")?;
        let n = rows / 64;
        for (what, made, wanted, bytes) in [
            ("limbs", made.limbs(), wanted.limbs(), n * 32 * limbs.count()),
            ("block scales", made.scales(), wanted.scales(), n * 4),
        ] {
            if record::run(gpu, &[], made)?[..bytes] != record::run(gpu, &[], wanted)?[..bytes] {
                return Err(Failed::Test(format!("{name}: {what}")));
            }
        }
    }
    Ok(())
}
