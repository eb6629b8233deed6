//! The gate's cases of the quantiser, which stands before every product.

use crate::cpu::matvec::quantise_row;
use crate::format::Limbs;
use crate::gate::cases;
use crate::gpu::device::Gpu;
use crate::gpu::outcome::Failed;
use crate::gpu::quantise::{DeviceActs, QuantiseRun};
use crate::gpu::record;
use crate::gpu::region::Region;
use crate::gpu::wgsl::NO_FAULT;
use crate::matvec::Acts;

/// The quantiser on the rows of the gate, all that are to be taken at once, and on those that must be refused.
pub(super) fn quantised(gpu: &Gpu, step: &Region, limbs: Limbs) -> Result<(), Failed> {
    const REFUSED: u64 = 3;
    const COLS: usize = 131;
    let padded = |number: u64| {
        let mut row = cases::quantiser_row(limbs, number);
        row.resize(COLS, 0.0);
        row
    };
    let (block, count) = (COLS.div_ceil(32), limbs.count());
    let values: Vec<f32> = (REFUSED..cases::QUANTISED as u64).flat_map(padded).collect();
    let rows = values.len() / COLS;
    let x = gpu.upload("rows", bytemuck::cast_slice(&values))?;
    let acts = DeviceActs::new(gpu, rows, COLS, limbs)?;
    let job = QuantiseRun { command: 7, x: &x, offset: 0, stride: COLS, acts: &acts }.job(gpu);
    let dispatch = job.dispatch(gpu, step)?;
    let made = record::run(gpu, &[dispatch], acts.limbs())?;
    let scales = record::run(gpu, &[], acts.scales())?;

    let mut want = Acts::new();
    let mut places = want.shape(rows, COLS, limbs);
    for (row, values) in values.chunks_exact(COLS).enumerate() {
        let quantised = quantise_row(values, limbs, &mut places.space(row));
        quantised.map_err(|_| Failed::Test("quantise: the mirror refuses a row".to_owned()))?;
    }
    let wanted = DeviceActs::upload(gpu, &want)?;
    let n = rows * block * 32 * count;
    let (want_limbs, want_scales) = (record::run(gpu, &[], wanted.limbs())?, record::run(gpu, &[], wanted.scales())?);
    let each = block * 32 * count;
    let differs = |row: &usize| {
        made[row * each..][..each] != want_limbs[row * each..][..each]
            || scales[row * block * 4..][..block * 4] != want_scales[row * block * 4..][..block * 4]
    };
    debug_assert!(n <= made.len());
    if let Some(row) = (0..rows).find(differs) {
        return Err(Failed::Test(format!("quantise, {count} limbs, row {}", row as u64 + REFUSED)));
    }
    for number in 0..REFUSED {
        gpu.write(&x, 0, bytemuck::cast_slice(&padded(number)))?;
        let acts = acts.shaped(1, COLS, limbs)?;
        let job = QuantiseRun { command: 7, x: &x, offset: 0, stride: COLS, acts: &acts }.job(gpu);
        let words = record::run(gpu, &[job.dispatch(gpu, step)?], step)?;
        gpu.write(step, 0, &NO_FAULT.to_le_bytes())?;
        if words[..4] != 7_u32.to_le_bytes() {
            return Err(Failed::Test(format!("quantise, {count} limbs, row {number} is not refused")));
        }
    }
    Ok(())
}
