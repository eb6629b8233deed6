//! Cases of the gate, whatever unit they are of: operands in memory that all share, what each must give, and how what a
//! device gave is compared with it. They are run at once, for a submission costs more than most cases.

use crate::cpu::matvec::quantise_row;
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::job::Job;
use crate::gpu::outcome::Failed;
use crate::gpu::quantise::DeviceActs;
use crate::gpu::record::{self, Dispatch, ReadBack, Staging, encode, submit};
use crate::gpu::region::Region;
use crate::gpu::wgsl::{StepRowWords, step_words};
use crate::matvec::Acts;

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
pub(super) struct Cases<'a> {
    pub(super) gpu: &'a Gpu,
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

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

impl<'a> Cases<'a> {
    pub(super) fn new(gpu: &'a Gpu) -> Result<Self, GpuError> {
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

    pub(super) fn input(&mut self, values: &[f32]) -> Result<Region, GpuError> {
        self.given.put(&bits(values))
    }

    pub(super) fn output(&mut self, words: &[u32]) -> Result<Region, GpuError> {
        self.made.put(words)
    }

    /// Memory that some kernels read and others write, so in a buffer of its own.
    pub(super) fn own(&self, words: usize) -> Result<Region, GpuError> {
        self.gpu.region("memory of the gate", 4 * words as u64)
    }

    pub(super) fn job(&mut self, job: &Job) -> Result<(), GpuError> {
        let step = self.step.clone();
        self.job_on(job, &step)
    }

    pub(super) fn job_on(&mut self, job: &Job, step: &Region) -> Result<(), GpuError> {
        let constants = self.given.put(&job.constants)?;
        self.dispatches.push(job.bind(self.gpu, step, &constants)?);
        Ok(())
    }

    /// The floats that a region must hold from word `from` on.
    pub(super) fn expect(
        &mut self,
        name: String,
        region: &Region,
        from: usize,
        words: Vec<u32>,
    ) -> Result<(), GpuError> {
        self.expect_words(name, region, from, words, false)
    }

    /// The same of bytes.
    pub(super) fn expect_bytes(
        &mut self,
        name: String,
        region: &Region,
        from: usize,
        words: Vec<u32>,
    ) -> Result<(), GpuError> {
        self.expect_words(name, region, from, words, true)
    }

    fn expect_words(
        &mut self,
        name: String,
        region: &Region,
        from: usize,
        words: Vec<u32>,
        bytes: bool,
    ) -> Result<(), GpuError> {
        if !words.is_empty() {
            let region = region.part(4 * from as u64, 4 * words.len() as u64)?;
            self.expected.push(Expected { name, region, words, bytes });
        }
        Ok(())
    }

    /// What quantised rows must be.
    pub(super) fn expect_acts(&mut self, name: &str, acts: &DeviceActs, rows: &[f32]) -> Result<(), GpuError> {
        let (cols, limbs) = (acts.cols(), acts.format());
        let mut want = Acts::new();
        let mut places = want.shape(acts.rows(), cols, limbs);
        for (row, values) in rows.chunks_exact(cols).enumerate() {
            // What a case makes is finite.
            let _ = quantise_row(values, limbs, &mut places.space(row));
        }
        let want = DeviceActs::upload(self.gpu, &want)?;
        let n = acts.rows() * cols.div_ceil(32);
        for (what, region, want, words) in [
            ("limbs", acts.limbs(), want.limbs(), n * 8 * limbs.count()),
            ("block scales", acts.scales(), want.scales(), n),
        ] {
            let want = record::run(self.gpu, &[], want)?;
            let want: Vec<u32> = bytemuck::pod_collect_to_vec(&want[..4 * words]);
            self.expect_bytes(format!("{name}: {what}"), region, 0, want)?;
        }
        Ok(())
    }

    /// Run everything; the number of cases.
    pub(super) fn finish(self) -> Result<usize, Failed> {
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

/// Words of a step of `n` rows of one sequence, the first at `position`; `state` is where its state lies.
pub(super) fn sequence(n: usize, position: usize, state: usize) -> Vec<StepRowWords> {
    let row = |i: usize| StepRowWords {
        position: (position + i) as u32,
        state: state as u32,
        next: if i + 1 < n { i as u32 + 1 } else { u32::MAX },
        first: i == 0,
        source: (n - 1 - i) as u32,
    };
    (0..n).map(row).collect()
}

pub(super) fn step_of(cases: &Cases<'_>, rows: &[StepRowWords]) -> Result<Region, GpuError> {
    cases.gpu.upload("the gate's step", bytemuck::cast_slice(&step_words(rows)))
}
