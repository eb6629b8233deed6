//! The gate's cases of products whose matrix a pick names: the picks' results, their weighted sums, and picks that must be
//! refused.

use super::bits::{floats, mirror};
use crate::flush::{add, mul};
use crate::format::{Limbs, Weights};
use crate::gate::cases::{self, Fill};
use crate::gpu::device::Gpu;
use crate::gpu::matvec::{Array, GatherRun, RoutedRun};
use crate::gpu::outcome::Failed;
use crate::gpu::quantise::DeviceActs;
use crate::gpu::record;
use crate::gpu::region::Region;
use crate::gpu::weights::DeviceMatrix;
use crate::gpu::wgsl::NO_FAULT;
use crate::matvec::{Matvec, Stack, StackLayout};
use crate::probe::Seed;

/// Experts, rows, columns, token-rows, picks, and whether each pick has a vector of its own.
pub(super) const ROUTES: [(usize, usize, usize, usize, usize, bool); 2] =
    [(5, 17, 96, 3, 2, false), (3, 33, 65, 2, 3, true)];

/// Products of picked experts, and their weighted sums; then a pick that is no expert's number.
pub(super) fn routed(
    gpu: &Gpu,
    array: &Array<'_>,
    step: &Region,
    (experts, rows, cols, tokens, k, each): (usize, usize, usize, usize, usize, bool),
    weights_format: Weights,
    number: u64,
) -> Result<(), Failed> {
    let name = format!("routed {experts} of {rows}x{cols}, {weights_format:?}, {tokens} rows, {k} picks");
    let unfit = |e: &dyn std::fmt::Display| Failed::Test(format!("{name}: {e}"));
    let seed = &mut Seed::new(3000 + number);
    let vectors = if each { k } else { 1 };
    let layout = StackLayout::of(weights_format, experts, rows, cols).map_err(|e| unfit(&e))?;
    let expert = |seed: &mut Seed| match weights_format {
        Weights::Int8 => cases::matrix(seed, Fill::Random, &layout.matrix()),
        Weights::Code4 | Weights::E2m1 => cases::coded_operands(seed, &layout.matrix(), 1, Limbs::Two, false).0,
    };
    let bytes: Vec<u8> = (0..experts).flat_map(|_| expert(seed)).collect();
    let stack = Stack::new(layout, &bytes).map_err(|e| unfit(&e))?;
    let acts = cases::acts(seed, Fill::Random, tokens * vectors, cols, Limbs::Two);
    let mut picks: Vec<f32> = (0..tokens * k).map(|_| seed.below(experts as u64) as f32).collect();
    let weights: Vec<f32> = (0..tokens * k).map(|_| seed.value()).collect();
    let mut want = Vec::new();
    for (pick, expert) in picks.iter().enumerate() {
        let source = [pick / k * vectors + pick % k % vectors];
        let matrix = stack.expert(*expert as usize).map_err(|e| unfit(&e))?;
        let call = Matvec::new(matrix, &acts, None, array.lanes).and_then(|call| call.picked(&source));
        want.extend(call.map(|call| mirror(&call)).map_err(|e| unfit(&e))?);
    }
    let mut sums = vec![0.0; tokens * rows];
    for (pick, (weight, results)) in weights.iter().zip(want.chunks_exact(rows)).enumerate() {
        let sums = &mut sums[pick / k * rows..][..rows];
        sums.iter_mut().zip(results).for_each(|(y, v)| *y = add(*y, mul(*weight, *v)));
    }

    let stack = DeviceMatrix::stack(gpu, "a stack of the gate", stack)?;
    let acts = DeviceActs::upload(gpu, &acts)?;
    let (y, sum) = (gpu.region("results", (want.len() * 4) as u64)?, gpu.region("sums", (sums.len() * 4) as u64)?);
    let weights = gpu.upload("weights", bytemuck::cast_slice(&weights))?;
    let place = gpu.upload("picks", bytemuck::cast_slice(&picks))?;
    let run = RoutedRun { command: 3, stack: &stack, acts: &acts, picks: &place, tokens, k, vectors, y: &y };
    let mut jobs = array.routed(gpu, &run)?;
    jobs.push(GatherRun { results: &y, weights: &weights, tokens, k, rows, y: &sum }.job());
    let dispatches = jobs.iter().map(|job| job.dispatch(gpu, step)).collect::<Result<Vec<_>, _>>()?;
    let got = floats(&record::run(gpu, &dispatches, &y)?);
    if !cases::same(&want, &got) {
        return Err(Failed::Test(name));
    }
    if !cases::same(&sums, &floats(&record::run(gpu, &[], &sum)?)) {
        return Err(Failed::Test(format!("{name}, weighted sum")));
    }
    for wrong in [experts as f32, 0.5, -1.0, f32::NAN] {
        picks[tokens * k - 1] = wrong;
        gpu.write(&place, 0, bytemuck::cast_slice(&picks))?;
        let words = record::run(gpu, &dispatches, step)?;
        gpu.write(step, 0, &NO_FAULT.to_le_bytes())?;
        if words[..4] != 3_u32.to_le_bytes() {
            return Err(Failed::Test(format!("{name}: expert {wrong} is not refused")));
        }
    }
    Ok(())
}
