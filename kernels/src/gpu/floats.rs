//! The init gate of the float units on a device: functions, micro-programs, conv, delta, top-k, cache and attention, each
//! held to the mirror by bits. All cases are recorded first and run as one step.

mod fused;

use super::Method;
use super::attend::{AttendActs, AttendRun, LongMemory};
use super::cache::{Append, Bank};
use super::conv::Conv;
use super::delta::Delta;
use super::device::{Gpu, GpuError};
use super::gate as array_gate;
use super::job::Job;
use super::record::{Dispatch, ReadBack, Region, Staging, encode, submit};
use super::rows::{Largest, keep};
use super::vector::{Bound, MicroRun, map_job};
use super::wgsl::{StepRowWords, step_words};
use crate::attend::{Attend, Cache, CacheLayout, Queries, Scratch};
use crate::conv::{ConvWeights, Ring};
use crate::delta::{DeltaRow, Memory};
use crate::format::{Lanes, Limbs, Weights};
use crate::gate;
use crate::math::Function;
use crate::probe::{self, Probe};
use crate::tables::MulTable;
use crate::vector::{Form, Micro, Values, VectorUnit, check_micros, check_with, interpret, micro::Access, run::Run};
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// Bytes of all operands of the gate's cases.
const ROOM: usize = 24 << 20;

/// What a case must give.
struct Expected {
    name: String,
    region: Region,
    words: Vec<u32>,
    /// The words are bytes of a cache and no floats.
    bytes: bool,
}

impl Expected {
    /// A NaN is a NaN: its sign and payload are outside the contract, and devices give other ones.
    fn is(&self, got: u32, want: u32) -> bool {
        let nan = |word: u32| !self.bytes && f32::from_bits(word).is_nan();
        got == want || (nan(got) && nan(want))
    }
}

/// Cases recorded and not yet run.
struct Cases<'a> {
    gpu: &'a Gpu,
    /// Memory that kernels read, and memory that they write.
    given: Arena,
    made: Arena,
    dispatches: Vec<Dispatch>,
    expected: Vec<Expected>,
    /// The step's words of one row at position 0.
    step: Region,
}

struct Arena {
    region: Region,
    words: Vec<u32>,
    align: usize,
}

impl Arena {
    fn new(gpu: &Gpu, what: &str) -> Result<Self, GpuError> {
        Ok(Self { region: gpu.region(what, ROOM as u64)?, words: Vec::new(), align: gpu.align(1) as usize / 4 })
    }

    /// Room with these words in it.
    fn put(&mut self, words: &[u32]) -> Result<Region, GpuError> {
        let at = self.words.len().next_multiple_of(self.align);
        let region = self.region.part(4 * at as u64, 4 * words.len().max(1) as u64)?;
        self.words.resize(at, 0);
        self.words.extend_from_slice(words);
        if words.is_empty() {
            self.words.push(0);
        }
        Ok(region)
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

impl<'a> Cases<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self, GpuError> {
        let mut given = Arena::new(gpu, "operands of the gate")?;
        let row = StepRowWords { next: u32::MAX, first: true, ..StepRowWords::default() };
        // A kernel writes the step's words, so they lie apart from what kernels read.
        let step = gpu.upload("the gate's step", bytemuck::cast_slice(&step_words(&[row])))?;
        given.words.reserve(ROOM / 4);
        Ok(Self {
            gpu,
            given,
            made: Arena::new(gpu, "results of the gate")?,
            dispatches: Vec::new(),
            expected: Vec::new(),
            step,
        })
    }

    fn input(&mut self, values: &[f32]) -> Result<Region, GpuError> {
        self.given.put(&bits(values))
    }

    fn output(&mut self, words: &[u32]) -> Result<Region, GpuError> {
        self.made.put(words)
    }

    /// Memory that some kernels read and others write, so in a buffer of its own.
    fn own(&self, words: usize) -> Result<Region, GpuError> {
        self.gpu.region("memory of the gate", 4 * words as u64)
    }

    fn job(&mut self, job: &Job) -> Result<(), GpuError> {
        let step = self.step.clone();
        self.job_on(job, &step)
    }

    fn job_on(&mut self, job: &Job, step: &Region) -> Result<(), GpuError> {
        let constants = self.given.put(&job.constants)?;
        self.dispatches.push(job.bind(self.gpu, step, &constants)?);
        Ok(())
    }

    /// The words that a region must hold from word `from` on.
    fn expect(&mut self, name: String, region: &Region, from: usize, words: Vec<u32>) -> Result<(), GpuError> {
        if !words.is_empty() {
            let region = region.part(4 * from as u64, 4 * words.len() as u64)?;
            self.expected.push(Expected { name, region, words, bytes: false });
        }
        Ok(())
    }

    /// Run everything; the number of cases.
    fn finish(self) -> Result<usize, Failed> {
        self.gpu.write(&self.given.region, 0, bytemuck::cast_slice(&self.given.words))?;
        self.gpu.write(&self.made.region, 0, bytemuck::cast_slice(&self.made.words))?;
        let mut bytes = 0;
        let staging = Staging::new(self.gpu, self.expected.iter().map(|case| case.region.size()).sum())?;
        let reads: Vec<ReadBack<'_>> = self
            .expected
            .iter()
            .map(|case| {
                let offset = bytes;
                bytes += case.region.size();
                ReadBack { from: &case.region, to: &staging, offset }
            })
            .collect();
        let commands = encode(self.gpu, &self.dispatches, &reads)?;
        submit(self.gpu, commands)?;
        let words: Vec<u32> = staging.read(self.gpu, bytes, bytemuck::pod_collect_to_vec)?;
        let mut rest = words.as_slice();
        for case in &self.expected {
            let (got, after) = rest.split_at(case.words.len());
            rest = after;
            if let Some(i) = (0..got.len()).find(|i| !case.is(got[*i], case.words[*i])) {
                let (got, want) = (got[i], case.words[i]);
                return Err(Failed::Test(format!("{}: word {i} is {got:08x}, the mirror gives {want:08x}", case.name)));
            }
        }
        Ok(self.expected.len())
    }
}

/// Why the gate does not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// A test whose bits are not the mirror's.
    #[error("{0}")]
    Test(String),
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// Hold the float units of a device to the mirror: all that multiply no int8. Returns how many cases passed.
///
/// # Errors
/// The first case whose bits differ, or what the device refused.
pub fn check(gpu: &Gpu) -> Result<usize, Failed> {
    let n = micro_programs(gpu)?;
    let mut cases = Cases::new(gpu)?;
    conv(&mut cases)?;
    delta(&mut cases)?;
    rows(&mut cases)?;
    fused::quantised(&mut cases)?;
    fused::rotated(&mut cases)?;
    Ok(n + cases.finish()?)
}

/// Hold cache and attention to the mirror, by one method of int8 products.
///
/// # Errors
/// As [`check`].
pub fn check_attention(gpu: &Gpu, method: Method, table: Option<&Region>) -> Result<usize, Failed> {
    let mut cases = Cases::new(gpu)?;
    attention(&mut cases, method, table)?;
    cases.finish()
}

/// What a method that passed all its gates has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Tests, those of the array unit among them.
    pub tests: usize,
    /// The array unit's probe.
    pub probe: Probe,
}

/// How products are made.
type Way = (Method, Lanes, Weights);

/// What a device's gates have found: by method and lanes, and first the units that multiply no int8.
#[derive(Default)]
struct Found {
    floats: Vec<(Gpu, Result<usize, Failed>)>,
    methods: Vec<(Gpu, Way, Result<Passed, Failed>)>,
}

/// All gates that a method passes before it computes on a device with weights of a format: the array unit's, and the two
/// checks here. Each runs once for a device in a process. The probe is that of the format.
///
/// # Errors
/// As [`check`].
pub fn gated(
    gpu: &Gpu,
    method: Method,
    lanes: Lanes,
    weights: Weights,
    products: MulTable<'_>,
) -> Result<Passed, Failed> {
    static FOUND: Mutex<Found> = Mutex::new(Found { floats: Vec::new(), methods: Vec::new() });
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let floats = match found.floats.iter().find(|(of, _)| of.is(gpu)) {
        Some((_, result)) => result.clone(),
        None => {
            let result = check(gpu);
            found.floats.push((gpu.clone(), result.clone()));
            result
        }
    }?;
    let mut passed = Passed { tests: floats, probe: probe::ARRAY };
    // Attention multiplies int8, whatever the weights are.
    let formats = [Weights::Int8, weights];
    for format in &formats[..if weights == Weights::Int8 { 1 } else { 2 }] {
        let way = (method, lanes, *format);
        let known = found.methods.iter().find(|(of, by, _)| of.is(gpu) && *by == way);
        let result = match known {
            Some((.., result)) => result.clone(),
            None => {
                let result = products_of(gpu, method, lanes, *format, products);
                found.methods.push((gpu.clone(), way, result.clone()));
                result
            }
        }?;
        passed = Passed { tests: passed.tests + result.tests, probe: result.probe };
    }
    Ok(passed)
}

/// The array unit's gate with weights of a format; with that of int8 attention's.
fn products_of(
    gpu: &Gpu,
    method: Method,
    lanes: Lanes,
    weights: Weights,
    products: MulTable<'_>,
) -> Result<Passed, Failed> {
    let table = gpu.upload("the table of products", products.bytes())?;
    if weights != Weights::Int8 {
        return array_gate::coded(gpu, &table, method, lanes, weights);
    }
    let array = array_gate::one(gpu, &table, method, lanes)?;
    let attention = check_attention(gpu, method, Some(&table))?;
    Ok(Passed { tests: array.tests + attention, ..array })
}

fn micro_programs(gpu: &Gpu) -> Result<usize, Failed> {
    let cases = RefCell::new(Cases::new(gpu)?);
    let failed = RefCell::new(None);
    let keep = |result: Result<(), GpuError>| {
        if let Err(e) = result {
            failed.borrow_mut().get_or_insert(e);
        }
    };
    let interpreter = |micro: &Micro, run: Run<'_, '_>| keep(one_micro(&mut cases.borrow_mut(), micro, run));
    let map = |f: Function, x: &[f32], y: &mut [f32]| {
        Form::Mirror.map(f, x, y);
        keep(one_map(&mut cases.borrow_mut(), f, x, y));
    };
    // The mirror is what runs, so what is checked here is right; the cases are what the device has to give.
    check_with(interpreter, map).map_err(Failed::Test)?;
    check_micros(&[513, 2048, 2081, 4130], interpreter).map_err(Failed::Test)?;
    if let Some(e) = failed.into_inner() {
        return Err(e.into());
    }
    cases.into_inner().finish()
}

fn one_map(cases: &mut Cases<'_>, f: Function, x: &[f32], y: &[f32]) -> Result<(), GpuError> {
    let from = cases.input(x)?;
    let to = cases.output(&vec![0; x.len()])?;
    cases.job(&map_job(f, &from, &to, x.len()))?;
    cases.expect(format!("function {}", f.name()), &to, 0, bits(y))
}

fn one_micro(cases: &mut Cases<'_>, micro: &Micro, run: Run<'_, '_>) -> Result<(), GpuError> {
    let Run { heads, width, params, act, first_lane, operands } = run;
    let mut regions = Vec::new();
    for (operand, info) in operands.iter().zip(micro.operands) {
        regions.push(match info.access {
            Access::In => cases.input(operand.data())?,
            Access::Out | Access::Update => cases.output(&bits(operand.data()))?,
        });
    }
    let bound: Vec<Bound<'_>> =
        regions.iter().zip(&*operands).map(|(region, o)| Bound::rows(region, 0, o.stride)).collect();
    cases.job(&MicroRun { micro, rows: 1, heads, width, params, act, first_lane }.job(&bound))?;
    interpret(Form::Mirror, micro, Run { heads, width, params, act, first_lane, operands: &mut *operands });
    for ((region, operand), info) in regions.iter().zip(&*operands).zip(micro.operands) {
        if info.access != Access::In {
            let name = format!("{} of heads of {width}, '{}'", micro.name, info.name);
            cases.expect(name, region, 0, bits(operand.data()))?;
        }
    }
    Ok(())
}

/// Words of a step of `n` rows of one sequence, the first at `position`; `state` is where its state lies.
fn sequence(n: usize, position: usize, state: usize) -> Vec<StepRowWords> {
    let row = |i: usize| StepRowWords {
        position: (position + i) as u32,
        state: state as u32,
        next: if i + 1 < n { i as u32 + 1 } else { u32::MAX },
        first: i == 0,
        source: (n - 1 - i) as u32,
    };
    (0..n).map(row).collect()
}

fn step_of(cases: &Cases<'_>, rows: &[StepRowWords]) -> Result<Region, GpuError> {
    cases.gpu.upload("the gate's step", bytemuck::cast_slice(&step_words(rows)))
}

fn conv(cases: &mut Cases<'_>) -> Result<(), GpuError> {
    let unit = VectorUnit::mirror();
    for (seed, values) in Values::ALL.into_iter().enumerate() {
        for (channels, taps, with_bias) in [(1, 1, true), (33, 2, false), (65, 4, false), (130, 4, true), (7, 3, true)]
        {
            let seed = seed as u32;
            let (weight, bias) = (values.make(channels * taps, seed + 1), values.make(channels, seed + 2));
            let weights = ConvWeights::new(&weight, with_bias.then_some(&bias), taps, Function::Silu);
            let rows = taps + 2;
            let x = values.make(rows * channels, seed + 10);
            let mut ring = Ring::new(channels, taps);
            let mut want = vec![0.0; rows * channels];
            for (x, out) in x.chunks_exact(channels).zip(want.chunks_exact_mut(channels)) {
                unit.conv(&weights, &mut ring, x, out);
            }
            let step = step_of(cases, &sequence(rows, 0, 1))?;
            let (x, weight, bias) = (cases.input(&x)?, cases.input(&weight)?, cases.input(&bias)?);
            let past = (taps - 1) * channels;
            let ring_memory = cases.output(&vec![0; 2 * past])?;
            let out = cases.output(&vec![0; rows * channels])?;
            let job = Conv {
                rows,
                channels,
                taps,
                act: Function::Silu,
                x: &x,
                weight: &weight,
                bias: with_bias.then_some(&bias),
                ring: &ring_memory,
                out: &out,
            };
            cases.job_on(&job.job(), &step)?;
            let name = format!("conv of {channels} channels, {taps} taps, {values:?} values");
            cases.expect(name.clone(), &out, 0, bits(&want))?;
            // Position p lies in row p mod (taps - 1); the oldest is that of the next position.
            for (i, past_row) in ring.rows().enumerate() {
                let row = (rows + i) % (taps - 1);
                cases.expect(format!("{name}: ring"), &ring_memory, past + row * channels, bits(past_row))?;
            }
        }
    }
    Ok(())
}

fn delta(cases: &mut Cases<'_>) -> Result<(), GpuError> {
    let unit = VectorUnit::mirror();
    for (seed, values) in Values::ALL.into_iter().enumerate() {
        for (dk, dv, key_heads, share) in [(1, 1, 1, 1), (31, 8, 2, 1), (33, 64, 1, 2), (64, 65, 1, 1), (128, 40, 1, 2)]
        {
            let (heads, rows, seed) = (key_heads * share, 3, seed as u32 * 100);
            let width = 2 * key_heads * dk + heads * dv;
            let qkv = values.make(rows * width, seed + 1);
            // Decays that take a memory through the flush within a few rows.
            let decays = [0.9, 1e-9, 1e-30];
            let gb: Vec<f32> =
                (0..rows).flat_map(|t| (0..2 * heads).map(move |i| if i < heads { decays[t] } else { 0.7 })).collect();
            let mut memory = Memory::new(heads, dk, dv);
            let start = values.make(heads * dk * dv, seed + 5);
            for head in 0..heads {
                memory.head_mut(head).copy_from_slice(&start[head * dk * dv..][..dk * dv]);
            }
            let mut want = vec![0.0; rows * heads * dv];
            for t in 0..rows {
                let row = &qkv[t * width..][..width];
                for head in 0..heads {
                    let key = head / share * dk;
                    let line = DeltaRow {
                        q: &row[key..][..dk],
                        k: &row[key_heads * dk + key..][..dk],
                        v: &row[2 * key_heads * dk + head * dv..][..dv],
                        decay: gb[t * 2 * heads + head],
                        beta: gb[t * 2 * heads + heads + head],
                        scale: 0.25,
                    };
                    unit.delta(&line, memory.head_mut(head), &mut want[(t * heads + head) * dv..][..dv]);
                }
            }
            let step = step_of(cases, &sequence(rows, 0, 0))?;
            let (qkv, gb) = (cases.input(&qkv)?, cases.input(&gb)?);
            let state = cases.output(&bits(&start))?;
            let out = cases.output(&vec![0; want.len()])?;
            let job = Delta {
                rows,
                key_heads,
                value_heads: heads,
                key_dim: dk,
                value_dim: dv,
                share,
                scale: 0.25,
                qkv: &qkv,
                qkv_width: width,
                gb: &gb,
                memory: &state,
                out: &out,
            };
            cases.job_on(&job.job(), &step)?;
            let name = format!("delta of {heads} heads of {dk} by {dv}, {values:?} values");
            cases.expect(name.clone(), &out, 0, bits(&want))?;
            cases.expect(format!("{name}: memory"), &state, 0, bits(memory.state()))?;
        }
    }
    Ok(())
}

fn rows(cases: &mut Cases<'_>) -> Result<(), GpuError> {
    for (experts, k) in [(1, 1), (5, 5), (64, 8), (65, 3), (200, 10)] {
        let rows = 2;
        // Few different values, so that there are ties.
        let values: Vec<f32> = (0..rows * experts).map(|i| (i * 7919 % 13) as f32 / 16.0).collect();
        let (mut picks, mut weights) = (Vec::new(), Vec::new());
        for row in values.chunks_exact(experts) {
            let mut chosen = vec![0; k];
            crate::topk::largest(row, &mut chosen);
            picks.extend(chosen.iter().map(|i| *i as f32));
            weights.extend(chosen.iter().map(|i| row[*i]));
        }
        let step = step_of(cases, &sequence(rows, 0, 0))?;
        let values = cases.input(&values)?;
        let picked = cases.output(&vec![0; rows * k])?;
        let weighed = cases.output(&vec![0; rows * k])?;
        let job = Largest { rows, experts, k, values: &values, picks: &picked, weights: &weighed };
        cases.job_on(&job.job(), &step)?;
        cases.expect(format!("the {k} largest of {experts}"), &picked, 0, bits(&picks))?;
        cases.expect(format!("the {k} largest of {experts}: their values"), &weighed, 0, bits(&weights))?;
    }
    let (rows, width) = (5, 67);
    let values: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
    let step = step_of(cases, &sequence(rows, 0, 0))?;
    let x = cases.input(&values)?;
    let out = cases.output(&vec![0; rows * width])?;
    cases.job_on(&keep(rows, width, &x, &out), &step)?;
    let want: Vec<f32> = values.chunks_exact(width).rev().flatten().copied().collect();
    cases.expect("rows kept".to_owned(), &out, 0, bits(&want))
}

/// What an attention case is made of.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    v_dim: usize,
    positions: usize,
    window: Option<usize>,
    cap: Option<f32>,
    ring: Option<usize>,
    limbs: Limbs,
    lanes: u8,
}

const SHAPES: [Shape; 7] = {
    let usual = Shape {
        kv_heads: 1,
        group: 1,
        head_dim: 64,
        v_dim: 64,
        positions: 70,
        window: None,
        cap: None,
        ring: None,
        limbs: Limbs::Two,
        lanes: 8,
    };
    [
        usual,
        Shape { kv_heads: 2, group: 3, head_dim: 128, v_dim: 128, positions: 33, ..usual },
        Shape { head_dim: 20, v_dim: 12, positions: 31, cap: Some(2.5), ..usual },
        Shape { kv_heads: 2, head_dim: 80, v_dim: 48, positions: 150, window: Some(40), ..usual },
        Shape { group: 2, head_dim: 32, v_dim: 40, positions: 200, window: Some(50), ring: Some(64), ..usual },
        Shape { head_dim: 300, v_dim: 290, positions: 97, limbs: Limbs::One, ..usual },
        Shape { head_dim: 96, v_dim: 96, positions: 300, lanes: 32, cap: Some(30.0), ..usual },
    ]
};

/// Rows of the last step of a case: they are appended before the first of them attends.
const LAST: usize = 3;

fn attention(cases: &mut Cases<'_>, method: Method, table: Option<&Region>) -> Result<(), GpuError> {
    let Ok(units) = gate::Units::up_to(gate::Form::Mirror) else { return Ok(()) };
    for (number, shape) in SHAPES.into_iter().enumerate() {
        for long in [false, true] {
            one_attention(cases, &units, method, table, shape, number as u32, long)?;
        }
    }
    Ok(())
}

fn one_attention(
    cases: &mut Cases<'_>,
    units: &gate::Units,
    method: Method,
    table: Option<&Region>,
    shape: Shape,
    number: u32,
    long: bool,
) -> Result<(), GpuError> {
    let Shape { kv_heads, group, head_dim, v_dim, positions, window, cap, ring, limbs, lanes } = shape;
    let Ok(layout) = CacheLayout::new(kv_heads, head_dim, v_dim, ring) else { return Ok(()) };
    let (heads, lanes) = (kv_heads * group, Lanes::new(lanes).unwrap_or_default());
    let attend = Attend { window, cap, queries: limbs, probs: limbs, lanes };
    let width = heads * head_dim + kv_heads * (head_dim + v_dim);
    let values = Values::Plain.make(positions * width, 900 + number);
    let keys_at = heads * head_dim;
    let mut cache = Cache::new(layout);
    let pages = layout.ring().unwrap_or(positions.div_ceil(32) + 1);
    let name = format!("attention {number}{}", if long { ", long form" } else { "" });
    let memory = cases.own(2 * pages * layout.page_bytes() / 4)?;
    let bank =
        Bank { layout: &layout, first_head: 0, heads: kv_heads, pages, first_state: 4, states: 2, memory: &memory };
    let mut first = 0;
    let mut want = Vec::new();
    let unit = VectorUnit::mirror();
    // A ring takes few rows at a time; a case ends with a small step.
    for n in [7].into_iter().cycle() {
        let n = if positions - first <= LAST { positions - first } else { n.min(positions - LAST - first) };
        let rows = &values[first * width..][..n * width];
        for row in rows.chunks_exact(width) {
            let (keys, values) = row[keys_at..].split_at(kv_heads * head_dim);
            // The values are finite and small.
            let _ = cache.append(keys, values);
        }
        let input = cases.input(rows)?;
        let step = step_of(cases, &sequence(n, first, 5))?;
        let append = Append { rows: n, command: 0, qkv: &input, width, keys_at, bank };
        cases.job_on(&append.job()?, &step)?;
        first += n;
        if first == positions {
            let mut scratch = Scratch::default();
            for (i, row) in rows.chunks_exact(width).enumerate() {
                for kv_head in 0..kv_heads {
                    let q = &row[kv_head * group * head_dim..][..group * head_dim];
                    let mut out = vec![0.0; group * v_dim];
                    let queries = Queries { kv_head, position: first - n + i, q };
                    let done = attend.group_by(units.array(), &unit, &cache, queries, &mut out, &mut scratch);
                    if done.is_err() {
                        out.fill(f32::NAN);
                    }
                    want.extend(out);
                }
            }
            let out = cases.own(n * heads * v_dim)?;
            let padded = positions.next_multiple_of(32) + 32;
            let (scores, sums) = (cases.own(n * heads * padded)?, cases.own(n * heads)?);
            let lane_memory = cases.own(n * heads * v_dim * lanes.count())?;
            let memory = LongMemory { scores: &scores, sums: &sums, lanes: &lane_memory, positions: padded };
            let acts = super::quantise::DeviceActs::new(cases.gpu, n, heads * v_dim, Limbs::Two)?;
            let quantised = AttendActs::of(cases.gpu, &layout, 0, &acts).filter(|_| !long);
            let run = AttendRun {
                method,
                table,
                attend,
                first_row: 0,
                rows: n,
                command: 0,
                heads,
                qkv: &input,
                width,
                out: &out,
                bank,
                long: long.then_some(memory),
                quantised,
            };
            for job in run.jobs()? {
                cases.job_on(&job, &step)?;
            }
            cases.expect(name.clone(), &out, 0, bits(&want))?;
            if quantised.is_some() {
                cases.expect_acts(&name, &acts, &want)?;
            }
            break;
        }
    }
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(cache.content());
    cases.expect(format!("{name}: cache"), &memory, pages * layout.page_bytes() / 4, words)?;
    if let Some(case) = cases.expected.last_mut() {
        case.bytes = true;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Choice;

    #[test]
    fn the_float_units_of_this_device_pass() {
        let Ok(gpu) = Gpu::open(&Choice::Best) else { return };
        for method in Method::ALL {
            let cases = gated(&gpu, method, Lanes::default(), Weights::Int8, MulTable::embedded().unwrap());
            assert!(matches!(cases, Ok(passed) if passed.tests > 600), "{method}: {cases:?}");
        }
    }

    /// A shader's source with one place changed; the gate must name the unit that it belongs to.
    fn fault(patch: crate::gpu::device::Patch, test: &str) {
        let Ok(gpu) = Gpu::open_patched(&Choice::Best, Some(patch)) else { return };
        match gated(&gpu, Method::Dp4a, Lanes::default(), Weights::Int8, MulTable::embedded().unwrap()) {
            Err(Failed::Test(name)) => assert!(name.starts_with(test), "{name} for {test}"),
            other => panic!("a fault in {test} was not found: {other:?}"),
        }
    }

    #[test]
    fn one_wrong_bit_at_one_boundary_fails() {
        // The last element of a conv of 130 channels.
        fault(
            |s| {
                s.replace(
                    "out[row * channels + c] = f_silu(s);",
                    "out[row * channels + c] = bitcast<f32>(bitcast<u32>(f_silu(s)) ^ select(0u, 1u, c == 129u));",
                )
            },
            "conv of 130 channels",
        );
    }

    #[test]
    fn a_flush_that_is_left_out_fails() {
        fault(|s| s.replace("select(u, 0u, ", "select(u, u, "), "function");
    }

    #[test]
    fn a_wrong_order_of_positions_fails() {
        fault(|s| s.replace("let slot = position % 32u;", "let slot = (position ^ 1u) % 32u;"), "rotation");
        fault(|s| s.replace("position >= v.start && position < v.end", "position >= v.start"), "attention");
    }
}
