//! The init gate of the array unit on a device: a method computes only after its shaders have matched the mirror here.
//!
//! [`DeviceArray::new`] checks the table of products whole, then takes the methods from the fastest down. One that fails a
//! test, or that the driver does not compile, is demoted: the next is taken and the report says which test failed. With
//! none left the device does not compute, and its caller falls back to the processor.

mod gated;

use super::Method;
use super::clock::HostClock;
use super::device::{Facts, Gpu, GpuError};
use super::floats::{Failed, Passed};
use super::matvec::{Array, GatherRun, MatvecRun, Residual, RoutedRun, RunError};
use super::matvec_text::Place;
use super::quantise::{DeviceActs, QuantiseRun};
use super::record::{self, Dispatch, Region};
use super::weights::{DeviceMatrix, UploadError};
use super::wgsl::{NO_FAULT, StepRowWords, step_words};
use crate::cpu::matvec::{GROUP, Mirror};
use crate::flush::{add, mul};
use crate::format::{Lanes, Limbs, Weights};
use crate::gate::Verdict;
use crate::gate::cases::{self, FILLS, Fill};
use crate::matvec::{Acts, Group, Matrix, MatrixLayout, Matvec, Space, Stack, StackLayout};
use crate::probe::{self, Operands, Probe, Seed};
use crate::tables::{self, MulTable, TableError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The shapes of every backend, and one row so long that a thread asks for several blocks ahead and ends in the middle.
const SHAPES: [(usize, usize, usize); cases::SHAPES.len() + 1] = {
    let mut shapes = [(8224, 5, 1); cases::SHAPES.len() + 1];
    let mut s = 0;
    while s < cases::SHAPES.len() {
        shapes[s] = cases::SHAPES[s];
        s += 1;
    }
    shapes
};

/// One method's line in the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodReport {
    /// Method.
    pub method: Method,
    /// What became of it.
    pub verdict: Verdict,
}

/// What the gate found on a device, and what computes now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Backend, adapter, driver.
    pub facts: Facts,
    /// Every method that was looked at, the fastest first.
    pub methods: Vec<MethodReport>,
    /// The method that computes.
    pub active: Option<Method>,
    /// Tests that a method has to pass.
    pub tests: usize,
}

/// Why a device does not compute.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceArrayError {
    /// The table of products is not whole.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The device fails.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// No method passed the gate.
    #[error(
        "no method of the array unit passed the init gate on this device; the last one to fail, {method}, failed '{test}'"
    )]
    NoMethod {
        /// The last method.
        method: Method,
        /// The test that it failed.
        test: String,
    },
}

/// Proof that the table is whole and that a method of the array unit has passed the init gate on this device.
#[derive(Debug)]
pub struct DeviceArray {
    gpu: Gpu,
    table: Region,
    lanes: Lanes,
    passed: Vec<Method>,
    active: AtomicUsize,
    verdicts: Mutex<Vec<MethodReport>>,
}

impl DeviceArray {
    /// The fastest method of this device that passes with these lanes, none faster than `best`.
    ///
    /// # Errors
    /// The table is not whole, the device fails, or no method passes.
    pub fn new(gpu: &Gpu, best: Method, lanes: Lanes) -> Result<Self, DeviceArrayError> {
        Self::over(gpu, tables::EMBEDDED, best, lanes)
    }

    /// The same over these bytes as the table of products.
    ///
    /// # Errors
    /// As [`DeviceArray::new`].
    pub fn over(gpu: &Gpu, table: &[u8], best: Method, lanes: Lanes) -> Result<Self, DeviceArrayError> {
        let table = gpu.upload("the table of products", MulTable::check(table)?.bytes())?;
        let (mut passed, mut verdicts) = (Vec::new(), Vec::new());
        for method in Method::ALL.into_iter().filter(|m| *m <= best) {
            let verdict = match examine(gpu, &Array { method, table: Some(&table), lanes, plan: None }) {
                Ok(probe) => {
                    passed.push(method);
                    Verdict::Passed(probe)
                }
                Err(Failure::Test(test)) => Verdict::Failed(test),
                Err(Failure::Gpu(error @ (GpuError::Refused { .. } | GpuError::TooLarge { .. }))) => {
                    Verdict::Failed(error.to_string())
                }
                Err(Failure::Gpu(error)) => return Err(error.into()),
            };
            verdicts.push(MethodReport { method, verdict });
        }
        if passed.is_empty() {
            let last = verdicts.iter().rev().find_map(|report| match &report.verdict {
                Verdict::Failed(test) => Some((report.method, test.clone())),
                _ => None,
            });
            let (method, test) = last.unwrap_or((Method::Lut, "no method was given".to_owned()));
            return Err(DeviceArrayError::NoMethod { method, test });
        }
        let (active, verdicts) = (AtomicUsize::new(0), Mutex::new(verdicts));
        Ok(Self { gpu: gpu.clone(), table, lanes, passed, active, verdicts })
    }

    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The method that computes.
    #[must_use]
    pub fn active(&self) -> Method {
        self.passed[self.active.load(Ordering::Relaxed)]
    }

    /// The table of products.
    #[must_use]
    pub fn table(&self) -> &Region {
        &self.table
    }

    /// The array unit.
    #[must_use]
    pub fn array(&self) -> Array<'_> {
        Array { method: self.active(), table: Some(&self.table), lanes: self.lanes, plan: None }
    }

    /// What the gate found.
    #[must_use]
    pub fn report(&self) -> Report {
        let methods = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Report { facts: self.gpu.facts().clone(), methods, active: Some(self.active()), tests: tests() }
    }

    /// A method was found wrong in a run: use the next one from now on. Returns what computes now.
    ///
    /// # Errors
    /// No method is left.
    pub fn demote(&self, method: Method, test: &str) -> Result<Method, DeviceArrayError> {
        {
            let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(report) = verdicts.iter_mut().find(|r| r.method == method) {
                report.verdict = Verdict::Failed(test.to_owned());
            }
        }
        let Some(at) = self.passed.iter().position(|m| *m == method) else { return Ok(self.active()) };
        if at + 1 == self.passed.len() {
            return Err(DeviceArrayError::NoMethod { method, test: test.to_owned() });
        }
        self.active.fetch_max(at + 1, Ordering::SeqCst);
        Ok(self.active())
    }

    /// Products of the probe's matrix with its rows that the device makes in a second, submission and all.
    ///
    /// # Errors
    /// The device fails.
    pub fn gemms_per_second(&self, now: HostClock) -> Result<f64, RunError> {
        const BATCH: usize = 256;
        let (gpu, array) = (&self.gpu, self.array());
        let Some((dispatches, y)) = probe_dispatches(gpu, &array, Weights::Int8).map_err(RunError::from)? else {
            return Ok(0.0);
        };
        let product = &dispatches[1..];
        let batch: Vec<Dispatch> = product.iter().cycle().take(BATCH * product.len()).cloned().collect();
        record::run(gpu, &dispatches, &y)?;
        let start = now();
        record::run(gpu, &batch, &y)?;
        Ok(BATCH as f64 * 1e9 / now().saturating_sub(start).max(1) as f64)
    }
}

/// One method's gate, over a table of products that is whole.
///
/// # Errors
/// The test that it fails, or the device's failure.
pub(super) fn one(gpu: &Gpu, table: &Region, method: Method, lanes: Lanes) -> Result<Passed, Failed> {
    let probe = examine(gpu, &Array { method, table: Some(table), lanes, plan: None })?;
    Ok(Passed { tests: tests(), probe })
}

/// The same of products with weights of a 4-bit format.
///
/// # Errors
/// As [`one`].
pub(super) fn coded(
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
    gated::gated(gpu, array, &step, weights)?;
    let probe = probed(gpu, array, weights)?;
    Ok(Passed { tests: tests + 2 + gated::GATED.len(), probe })
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Test(test) => Self::Test(test),
            Failure::Gpu(error) => error.into(),
        }
    }
}

/// Why an examination ends early.
#[derive(Debug)]
enum Failure {
    Test(String),
    Gpu(GpuError),
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Gpu(error) => Self::Gpu(error),
            other => Self::Test(other.to_string()),
        }
    }
}

impl From<UploadError> for Failure {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Gpu(error) => Self::Gpu(error),
            error @ UploadError::Layout(_) => Self::Test(error.to_string()),
        }
    }
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Gpu(error) => error.into(),
            Failure::Test(reason) => GpuError::Refused { what: "the probe".to_owned(), reason }.into(),
        }
    }
}

/// Of the gate's shapes those that meet another shader here; the odd ones with one limb too.
const TAKEN: [usize; 9] = [0, 4, 5, 7, 8, 9, 10, 11, 12];

fn taken(limbs: Limbs) -> impl Iterator<Item = usize> {
    TAKEN.into_iter().filter(move |s| limbs == Limbs::Two || s % 2 == 1)
}

/// How many tests there are.
fn tests() -> usize {
    let shapes = [Limbs::One, Limbs::Two].map(|limbs| taken(limbs).count()).iter().sum::<usize>();
    FILLS.len() / 2 * shapes + 2 * cases::QUANTISED + ROUTES.len() + gated::GATED.len() + 1
}

/// Every test, and the probe.
fn examine(gpu: &Gpu, array: &Array<'_>) -> Result<Probe, Failure> {
    let step = gpu.upload("the step's words", bytemuck::cast_slice(&step_words(&[StepRowWords::default()])))?;
    gpu.prepare("the gate", &sources(gpu, array, Weights::Int8)?);
    for (l, limbs) in [Limbs::Two, Limbs::One].into_iter().enumerate() {
        quantise(gpu, &step, limbs)?;
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
    gated::gated(gpu, array, &step, Weights::Int8)?;
    probed(gpu, array, Weights::Int8)
}

/// The probe of a format, which must be the pinned one.
fn probed(gpu: &Gpu, array: &Array<'_>, weights: Weights) -> Result<Probe, Failure> {
    let Some((dispatches, y)) = probe_dispatches(gpu, array, weights)? else {
        return Err(Failure::Test("probe: it has no operands".to_owned()));
    };
    let (probe, pinned) = (probe::hash(&floats(&record::run(gpu, &dispatches, &y)?)), probe::pinned(weights));
    if probe == pinned { Ok(probe) } else { Err(Failure::Test(format!("probe: {probe}, pinned {pinned}"))) }
}

/// The probe's quantiser, then its product; and where the results lie.
fn probe_dispatches(
    gpu: &Gpu,
    array: &Array<'_>,
    weights: Weights,
) -> Result<Option<(Vec<Dispatch>, Region)>, Failure> {
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

/// The quantiser on the rows of the gate, all that are to be taken at once, and on those that must be refused.
fn quantise(gpu: &Gpu, step: &Region, limbs: Limbs) -> Result<(), Failure> {
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
        let quantised = crate::cpu::matvec::quantise_row(values, limbs, &mut places.space(row));
        quantised.map_err(|_| Failure::Test("quantise: the mirror refuses a row".to_owned()))?;
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
        return Err(Failure::Test(format!("quantise, {count} limbs, row {}", row as u64 + REFUSED)));
    }
    for number in 0..REFUSED {
        gpu.write(&x, 0, bytemuck::cast_slice(&padded(number)))?;
        let acts = acts.shaped(1, COLS, limbs)?;
        let job = QuantiseRun { command: 7, x: &x, offset: 0, stride: COLS, acts: &acts }.job(gpu);
        let words = record::run(gpu, &[job.dispatch(gpu, step)?], step)?;
        gpu.write(step, 0, &NO_FAULT.to_le_bytes())?;
        if words[..4] != 7_u32.to_le_bytes() {
            return Err(Failure::Test(format!("quantise, {count} limbs, row {number} is not refused")));
        }
    }
    Ok(())
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
fn sources(gpu: &Gpu, array: &Array<'_>, weights: Weights) -> Result<Vec<String>, Failure> {
    let y = gpu.region("results", 4)?;
    let mut sources = Vec::new();
    for limbs in [Limbs::Two, Limbs::One] {
        for s in taken(limbs) {
            let ((cols, rows, tokens), Extras { bias, residual }) = (SHAPES[s], extras(s));
            let layout = MatrixLayout::of(weights, rows, cols).map_err(|e| Failure::Test(e.to_string()))?;
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
fn matvec(gpu: &Gpu, array: &Array<'_>, step: &Region, s: usize, f: usize, limbs: Limbs) -> Result<(), Failure> {
    let ((cols, rows, tokens), fill) = (SHAPES[s], FILLS[f]);
    let name = || format!("matvec {rows}x{cols}, {tokens} rows, {} limbs, {fill:?}", limbs.count());
    let seed = &mut Seed::new((s * FILLS.len() + f) as u64);
    let layout = MatrixLayout::new(rows, cols).map_err(|e| Failure::Test(e.to_string()))?;
    let bytes = cases::matrix(seed, fill, &layout);
    let acts = cases::acts(seed, fill, tokens, cols, limbs);
    product(gpu, array, step, s, seed, (layout, &bytes), &acts, &name)
}

/// The product of a matrix with quantised rows, beside what its shape has, against the mirror's.
#[expect(clippy::too_many_arguments, reason = "what the gates of all formats have in common")]
fn product(
    gpu: &Gpu,
    array: &Array<'_>,
    step: &Region,
    s: usize,
    seed: &mut Seed,
    (layout, bytes): (MatrixLayout, &[u8]),
    acts: &Acts,
    name: &dyn Fn() -> String,
) -> Result<(), Failure> {
    let (rows, tokens) = (layout.rows(), acts.rows());
    let matrix = Matrix::new(layout, bytes).map_err(|e| Failure::Test(e.to_string()))?;
    let mut values = |n: usize| -> Vec<f32> { (0..n).map(|_| seed.value()).collect() };
    let Extras { bias, residual } = extras(s);
    let bias = bias.then(|| values(rows));
    let (offset, stride, scale) = ends(s, rows);
    let before = values(offset + tokens * stride);
    let (added, apart) = (residual.is_some(), residual == Some(Place::Apart));

    let call = Matvec::new(matrix, acts, bias.as_deref(), array.lanes).map_err(|e| Failure::Test(e.to_string()))?;
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
        return Err(Failure::Test(name()));
    }
    if added && !cases::same(&sums, &floats(&record::run(gpu, &[], &out)?)) {
        return Err(Failure::Test(format!("{}: its sum with other rows", name())));
    }
    Ok(())
}

/// Experts, rows, columns, token-rows, picks, and whether each pick has a vector of its own.
const ROUTES: [(usize, usize, usize, usize, usize, bool); 2] = [(5, 17, 96, 3, 2, false), (3, 33, 65, 2, 3, true)];

/// Products of picked experts, and their weighted sums; then a pick that is no expert's number.
fn routed(
    gpu: &Gpu,
    array: &Array<'_>,
    step: &Region,
    (experts, rows, cols, tokens, k, each): (usize, usize, usize, usize, usize, bool),
    weights_format: Weights,
    number: u64,
) -> Result<(), Failure> {
    let name = format!("routed {experts} of {rows}x{cols}, {weights_format:?}, {tokens} rows, {k} picks");
    let unfit = |e: &dyn std::fmt::Display| Failure::Test(format!("{name}: {e}"));
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
        return Err(Failure::Test(name));
    }
    if !cases::same(&sums, &floats(&record::run(gpu, &[], &sum)?)) {
        return Err(Failure::Test(format!("{name}, weighted sum")));
    }
    for wrong in [experts as f32, 0.5, -1.0, f32::NAN] {
        picks[tokens * k - 1] = wrong;
        gpu.write(&place, 0, bytemuck::cast_slice(&picks))?;
        let words = record::run(gpu, &dispatches, step)?;
        gpu.write(step, 0, &NO_FAULT.to_le_bytes())?;
        if words[..4] != 3_u32.to_le_bytes() {
            return Err(Failure::Test(format!("{name}: expert {wrong} is not refused")));
        }
    }
    Ok(())
}

/// The mirror's results, `[tokens, rows]`.
pub(super) fn mirror(call: &Matvec<'_>) -> Vec<f32> {
    let (layout, tokens) = (call.matrix().layout(), call.tokens());
    let mut results = vec![0.0; tokens * layout.rows()];
    let mut space = Space::default();
    let mut group = Group::new(call, &Mirror, &mut space);
    for tile in 0..layout.tiles() {
        let rows = layout.tile_rows(tile);
        for first in (0..tokens).step_by(GROUP) {
            for (i, values) in group.results(tile, first, GROUP.min(tokens - first)).iter().enumerate() {
                results[(first + i) * layout.rows()..][rows.clone()].copy_from_slice(&values[..rows.len()]);
            }
        }
    }
    results
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
