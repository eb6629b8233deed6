//! The limits of a graphics device: how fast it moves memory, how fast its array unit multiplies, what starting work costs.

use super::array_rate::Gemm;
use super::bandwidth::{LEAST, ReadLoop};
use super::limit::{Limit, LimitError};
use super::speed::nanos;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gate::Units;
use wordline_kernels::gpu::clock::{Clock, READ_GROUP, nothing, plain_copy, plain_read};
use wordline_kernels::gpu::matvec::{Array, MatvecRun};
use wordline_kernels::gpu::quantise::DeviceActs;
use wordline_kernels::gpu::weights::DeviceMatrix;
use wordline_kernels::gpu::wgsl::{StepRowWords, step_words};
use wordline_kernels::gpu::{Dispatch, Gpu, Kind, Method, Region, Staging, record};
use wordline_kernels::matvec::{Acts, Matrix, MatrixLayout};

/// The most bytes of a buffer to read: far more than a device's caches hold.
const MOST: u64 = 2 << 30;
/// Passes of each way that choose between them.
const TRIALS: usize = 4;

fn failed(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> LimitError {
    move |reason| LimitError { what, reason: reason.to_string() }
}

/// A device's clock and dispatches that it times.
struct Timed {
    gpu: Gpu,
    clock: Clock,
    what: &'static str,
    dispatches: Vec<Dispatch>,
    /// Units of all dispatches together.
    units: f64,
}

impl Timed {
    fn rate(&self) -> Result<f64, LimitError> {
        let time = self.clock.time(&self.gpu, &self.dispatches).map_err(|e| failed(self.what)(&e))?;
        Ok(self.units / time.as_secs_f64().max(1e-9))
    }
}

impl std::fmt::Debug for Timed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timed").field("what", &self.what).finish_non_exhaustive()
    }
}

/// How fast a device's memory is read, or copied where that is faster.
#[derive(Debug)]
pub struct DeviceReads {
    timed: Timed,
    name: &'static str,
    buffer_bytes: u64,
}

impl DeviceReads {
    /// Over a buffer of `bytes` bytes, within the device's limits, at least 256 MiB where it has them; the faster of a
    /// kernel that reads and one that copies, whose bytes count twice, is kept.
    ///
    /// # Errors
    /// The device has no memory left, or fails.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self, LimitError> {
        const WHAT: &str = "the device's read bandwidth";
        let fail = failed(WHAT);
        let facts = gpu.facts();
        let most =
            facts.binding_limit.min(facts.buffer_limit).min(u64::from(facts.groups_limit) * READ_GROUP).min(MOST);
        let bytes = (bytes as u64).max(LEAST as u64).min(most) / READ_GROUP * READ_GROUP;
        let region = |what, size| gpu.region(what, size).map_err(|e| fail(&e));
        let (from, to, word) =
            (region("memory to read", bytes)?, region("memory to copy to", bytes)?, region("a sum", 16)?);
        // A device in software is slow enough to be timed over one.
        let times = if facts.kind == Kind::Software { 1 } else { 4 };
        let read = plain_read(gpu, &from, &word).map_err(|e| fail(&e))?;
        let copy = plain_copy(gpu, &from, &to).map_err(|e| fail(&e))?;
        let timed = |dispatch, moved: u64| -> Result<Timed, LimitError> {
            let clock = Clock::new(gpu, nanos).map_err(|e| fail(&e))?;
            let units = (moved * times as u64) as f64;
            Ok(Timed { gpu: gpu.clone(), clock, what: WHAT, dispatches: vec![dispatch; times], units })
        };
        let ways = [("a kernel that reads", timed(read, bytes)?), ("a kernel that copies", timed(copy, 2 * bytes)?)];
        let mut best = [0.0_f64; 2];
        for _ in 0..TRIALS {
            for (best, (_, way)) in best.iter_mut().zip(&ways) {
                *best = best.max(way.rate()?);
            }
        }
        let [read, copy] = ways;
        let (name, timed) = if best[1] > best[0] { copy } else { read };
        Ok(Self { timed, name, buffer_bytes: bytes })
    }

    /// The kernel, and the buffer it reads.
    #[must_use]
    pub fn describe(&self) -> ReadLoop {
        ReadLoop { name: self.name.to_owned(), buffer_bytes: self.buffer_bytes as usize }
    }
}

impl Limit for DeviceReads {
    /// Bytes a second of one pass of the faster kernel.
    fn pass(&mut self) -> Result<f64, LimitError> {
        self.timed.rate()
    }
}

/// The array unit of a device on a matrix that its caches hold.
#[derive(Debug)]
pub struct DeviceArrayRate(Timed);

impl DeviceArrayRate {
    /// The product that is made: it fits the caches, and has rows enough to fill the device.
    #[must_use]
    pub fn gemm(gpu: &Gpu) -> Gemm {
        match gpu.facts().kind {
            Kind::Discrete => Gemm { rows: 8192, cols: 2048, tokens: 64 },
            Kind::Software => Gemm { rows: 256, cols: 256, tokens: 16 },
            _ => Gemm { rows: 1024, cols: 1024, tokens: 64 },
        }
    }

    /// By a method that has passed its gate; `units` quantise the rows.
    ///
    /// # Errors
    /// The device has no memory left, or fails.
    pub fn new(
        gpu: &Gpu,
        method: Method,
        units: &Units,
        gemm: Gemm,
        lanes: Lanes,
        limbs: Limbs,
    ) -> Result<Self, LimitError> {
        const WHAT: &str = "the device's array unit";
        /// Products of a pass.
        const TIMES: usize = 8;
        let fail = failed(WHAT);
        let Gemm { rows, cols, tokens } = gemm;
        let layout = MatrixLayout::new(rows, cols).map_err(|e| fail(&e))?;
        let values: Vec<f32> = (0..rows.max(tokens) * cols).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let mut bytes = vec![0; layout.bytes()];
        for (tile, out) in bytes.chunks_exact_mut(layout.tile_bytes()).enumerate() {
            let of = layout.tile_rows(tile);
            layout.pack_tile(tile, &values[of.start * cols..of.end * cols], out).map_err(|e| fail(&e))?;
        }
        let matrix = Matrix::new(layout, &bytes).map_err(|e| fail(&e))?;
        let mut acts = Acts::new();
        acts.quantise(units, &values[..tokens * cols], cols, tokens, cols, limbs).map_err(|e| fail(&e))?;
        let matrix = DeviceMatrix::matrix(gpu, "a matrix to measure", matrix).map_err(|e| fail(&e))?;
        let acts = DeviceActs::upload(gpu, &acts).map_err(|e| fail(&e))?;
        let upload = |what, bytes: &[u8]| gpu.upload(what, bytes).map_err(|e| fail(&e));
        let step = upload("the step's words", words(&step_words(&[StepRowWords::default()])).as_slice())?;
        let table = match method {
            Method::Dp4a => None,
            Method::Lut => Some(upload("the table of products", units.table().bytes())?),
        };
        let y = gpu.region("results", (tokens * rows * 4) as u64).map_err(|e| fail(&e))?;
        let array = Array { method, table: table.as_ref(), lanes, plan: None };
        let run = MatvecRun {
            command: 0,
            matrix: &matrix,
            acts: &acts,
            y: &y,
            offset: 0,
            stride: rows,
            bias: None,
            residual: None,
        };
        let jobs = array.matvec(gpu, &run).map_err(|e| fail(&e))?;
        let one =
            jobs.iter().map(|job| job.dispatch(gpu, &step)).collect::<Result<Vec<_>, _>>().map_err(|e| fail(&e))?;
        let dispatches = one.iter().cycle().take(TIMES * one.len()).cloned().collect();
        let clock = Clock::new(gpu, nanos).map_err(|e| fail(&e))?;
        let timed = Timed {
            gpu: gpu.clone(),
            clock,
            what: WHAT,
            dispatches,
            units: (TIMES * gemm.macs() * limbs.count()) as f64,
        };
        // The first pass meets memory and clocks that are cold.
        timed.rate()?;
        Ok(Self(timed))
    }
}

impl Limit for DeviceArrayRate {
    /// Multiply-accumulates a second, each counted once a limb.
    fn pass(&mut self) -> Result<f64, LimitError> {
        self.0.rate()
    }
}

/// Kernels that do nothing, each waiting for the one before.
#[derive(Debug)]
pub struct KernelStarts(Timed);

impl KernelStarts {
    /// On this device.
    ///
    /// # Errors
    /// The device fails.
    pub fn new(gpu: &Gpu) -> Result<Self, LimitError> {
        const WHAT: &str = "what starting a kernel costs";
        const KERNELS: usize = 512;
        let fail = failed(WHAT);
        let word = gpu.region("a word", 4).map_err(|e| fail(&e))?;
        let dispatches = vec![nothing(gpu, &word).map_err(|e| fail(&e))?; KERNELS];
        let clock = Clock::new(gpu, nanos).map_err(|e| fail(&e))?;
        Ok(Self(Timed { gpu: gpu.clone(), clock, what: WHAT, dispatches, units: KERNELS as f64 }))
    }
}

impl Limit for KernelStarts {
    /// Kernels a second.
    fn pass(&mut self) -> Result<f64, LimitError> {
        self.0.rate()
    }
}

/// Submissions of a kernel that does nothing, whose result the host waits for.
#[derive(Debug)]
pub struct Submissions {
    gpu: Gpu,
    word: Region,
    staging: Staging,
    kernel: Vec<Dispatch>,
}

impl Submissions {
    const WHAT: &str = "what a submission costs";

    /// On this device.
    ///
    /// # Errors
    /// The device fails.
    pub fn new(gpu: &Gpu) -> Result<Self, LimitError> {
        let fail = failed(Self::WHAT);
        let word = gpu.region("a word", 4).map_err(|e| fail(&e))?;
        let kernel = vec![nothing(gpu, &word).map_err(|e| fail(&e))?];
        let staging = Staging::new(gpu, 4).map_err(|e| fail(&e))?;
        Ok(Self { gpu: gpu.clone(), word, staging, kernel })
    }
}

impl Limit for Submissions {
    /// Submissions a second.
    fn pass(&mut self) -> Result<f64, LimitError> {
        const TIMES: usize = 8;
        let fail = failed(Self::WHAT);
        let (gpu, read) = (&self.gpu, record::ReadBack { from: &self.word, to: &self.staging, offset: 0 });
        let mut nanos_all = 0;
        for _ in 0..TIMES {
            // As in a step, what is submitted was recorded before.
            let commands = record::encode(gpu, &self.kernel, &[read]).map_err(|e| fail(&e))?;
            let start = nanos();
            record::submit(gpu, commands).map_err(|e| fail(&e))?;
            self.staging.read(gpu, 4, |_| ()).map_err(|e| fail(&e))?;
            nanos_all += nanos() - start;
        }
        Ok(TIMES as f64 * 1e9 / nanos_all.max(1) as f64)
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wordline_kernels::gpu::Choice;

    #[test]
    fn a_device_has_every_limit() {
        let gpu = match Gpu::open(&Choice::Best) {
            Ok(gpu) => gpu,
            Err(error) => return println!("skipped: {error}"),
        };
        let mut reads = DeviceReads::new(&gpu, 0).unwrap();
        let described = reads.describe();
        assert!(described.buffer_bytes.is_multiple_of(64 << 10) && described.buffer_bytes > 0, "{described:?}");
        let units = Units::new().unwrap();
        let gemm = Gemm { rows: 64, cols: 64, tokens: 2 };
        let lanes = Lanes::new(8).unwrap();
        let mut starts = (KernelStarts::new(&gpu).unwrap(), Submissions::new(&gpu).unwrap());
        for method in Method::ALL {
            let mut array = DeviceArrayRate::new(&gpu, method, &units, gemm, lanes, Limbs::Two).unwrap();
            assert!(array.pass().unwrap() > 0.0);
        }
        for limit in [&mut reads as &mut dyn Limit, &mut starts.0, &mut starts.1] {
            let rate = limit.pass().unwrap();
            assert!(rate > 0.0 && rate.is_finite());
        }
    }
}
