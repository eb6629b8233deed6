//! One method examined: every test, in order, and the probe last, which must be the pinned one.

use super::bits::floats;
use super::gated::{GATED, gated};
use super::products::{SHAPES, matvec, product, sources, taken};
use super::quantised::quantised;
use super::routed::{ROUTES, routed};
use crate::format::{Lanes, Limbs, Weights};
use crate::gate::cases::{self, FILLS};
use crate::gpu::Method;
use crate::gpu::device::Gpu;
use crate::gpu::matvec::{Array, MatvecRun};
use crate::gpu::outcome::{Failed, Passed};
use crate::gpu::quantise::{DeviceActs, QuantiseRun};
use crate::gpu::record::{self, Dispatch};
use crate::gpu::region::Region;
use crate::gpu::weights::DeviceMatrix;
use crate::gpu::wgsl::{StepRowWords, step_words};
use crate::matvec::MatrixLayout;
use crate::probe::{self, Operands, Probe, Seed};

/// One method's gate, over a table of products that is whole.
///
/// # Errors
/// The test that it fails, or the device's failure.
pub(in crate::gpu) fn one(gpu: &Gpu, table: &Region, method: Method, lanes: Lanes) -> Result<Passed, Failed> {
    let probe = examine(gpu, &Array { method, table: Some(table), lanes, plan: None })?;
    Ok(Passed { tests: tests(), probe })
}

/// The same of products with weights of a 4-bit format.
///
/// # Errors
/// As [`one`].
pub(in crate::gpu) fn coded(
    gpu: &Gpu,
    table: &Region,
    method: Method,
    lanes: Lanes,
    weights: Weights,
) -> Result<Passed, Failed> {
    let array = &Array { method, table: Some(table), lanes, plan: None };
    let step = gpu.upload("the step's words", bytemuck::cast_slice(&step_words(&[StepRowWords::default()])))?;
    gpu.prepare("the gate", &sources(gpu, array, weights)?);
    let mut tests = 0;
    for limbs in [Limbs::Two, Limbs::One] {
        for s in taken(limbs) {
            let (cols, rows, tokens) = SHAPES[s];
            let name = || format!("matvec {rows}x{cols}, {weights:?}, {tokens} rows, {} limbs", limbs.count());
            let seed = &mut Seed::new(5000 + s as u64);
            let layout = MatrixLayout::of(weights, rows, cols).map_err(|e| Failed::Test(e.to_string()))?;
            let (bytes, acts) = cases::coded_operands(seed, &layout, tokens, limbs, s % 3 == 2);
            product(gpu, array, &step, s, seed, (layout, &bytes), &acts, &name)?;
            tests += 1;
        }
    }
    routed(gpu, array, &step, ROUTES[1], weights, 17)?;
    gated(gpu, array, &step, weights)?;
    let probe = probed(gpu, array, weights)?;
    Ok(Passed { tests: tests + 2 + GATED.len(), probe })
}

/// How many tests there are.
pub(super) fn tests() -> usize {
    let shapes = [Limbs::One, Limbs::Two].map(|limbs| taken(limbs).count()).iter().sum::<usize>();
    FILLS.len() / 2 * shapes + 2 * cases::QUANTISED + ROUTES.len() + GATED.len() + 1
}

/// Every test, and the probe.
pub(super) fn examine(gpu: &Gpu, array: &Array<'_>) -> Result<Probe, Failed> {
    let step = gpu.upload("the step's words", bytemuck::cast_slice(&step_words(&[StepRowWords::default()])))?;
    gpu.prepare("the gate", &sources(gpu, array, Weights::Int8)?);
    for (l, limbs) in [Limbs::Two, Limbs::One].into_iter().enumerate() {
        quantised(gpu, &step, limbs)?;
        for s in taken(limbs) {
            // A shape meets half of the fills with two limbs, the other half with one.
            for f in (0..FILLS.len()).filter(|f| (s + f + l) % 2 == 0) {
                matvec(gpu, array, &step, s, f, limbs)?;
            }
        }
    }
    for (number, route) in ROUTES.into_iter().enumerate() {
        routed(gpu, array, &step, route, Weights::Int8, number as u64)?;
    }
    gated(gpu, array, &step, Weights::Int8)?;
    probed(gpu, array, Weights::Int8)
}

/// The probe of a format, which must be the pinned one.
fn probed(gpu: &Gpu, array: &Array<'_>, weights: Weights) -> Result<Probe, Failed> {
    let Some((dispatches, y)) = probe_dispatches(gpu, array, weights)? else {
        return Err(Failed::Test("probe: it has no operands".to_owned()));
    };
    let (probe, pinned) = (probe::hash(&floats(&record::run(gpu, &dispatches, &y)?)), probe::pinned(weights));
    if probe == pinned { Ok(probe) } else { Err(Failed::Test(format!("probe: {probe}, pinned {pinned}"))) }
}

/// The probe's quantiser, then its product; and where the results lie.
pub(super) fn probe_dispatches(
    gpu: &Gpu,
    array: &Array<'_>,
    weights: Weights,
) -> Result<Option<(Vec<Dispatch>, Region)>, Failed> {
    let Some(operands) = Operands::of(weights) else { return Ok(None) };
    let Some(matrix) = operands.matrix() else { return Ok(None) };
    let array = &Array { lanes: Lanes::default(), ..*array };
    let (rows, cols) = (operands.layout.rows(), operands.layout.cols());
    let tokens = operands.values.len() / cols;
    let step = gpu.upload("the step's words", bytemuck::cast_slice(&step_words(&[StepRowWords::default()])))?;
    let x = gpu.upload("rows", bytemuck::cast_slice(&operands.values))?;
    let y = gpu.region("results", (tokens * rows * 4) as u64)?;
    let acts = DeviceActs::new(gpu, tokens, cols, Limbs::Two)?;
    let matrix = DeviceMatrix::matrix(gpu, "the probe's matrix", matrix)?;
    let mut jobs = vec![QuantiseRun { command: 0, x: &x, offset: 0, stride: cols, acts: &acts }.job(gpu)];
    let run = MatvecRun {
        command: 1,
        matrix: &matrix,
        acts: &acts,
        y: &y,
        offset: 0,
        stride: rows,
        bias: None,
        residual: None,
    };
    jobs.extend(array.matvec(gpu, &run)?);
    let dispatches = jobs.iter().map(|job| job.dispatch(gpu, &step)).collect::<Result<_, _>>()?;
    Ok(Some((dispatches, y)))
}
