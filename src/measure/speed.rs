//! `measure`: how fast an engine decodes and takes prompts in, beside the limits of the device it runs on.
//!
//! Everything is measured in turns: a pass of the limit, then some steps, batch by batch, round after round, so that a
//! busy moment of a shared machine meets both. Medians are reported, and the quartiles beside them.
//!
//! A step cannot be faster than its **bound**: the time in which the device reads the bytes that the step must move
//! (each matrix once, whatever the number of rows; what the rows see of their caches; states read and written), or in
//! which the array unit does its multiply-accumulates at the rate it has on operands in its first cache, whichever is
//! longer.

use super::limit::{LimitError, Limits};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;
use wordline_engine::units::{Counters, DeviceTime};
use wordline_engine::{EngineModel, Row, SeqId, StepError};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rows of a decode step, each of a sequence of its own; one entry a measurement.
    pub batches: Vec<usize>,
    /// Positions that a decode step sees, on average over the rounds.
    pub ctx: usize,
    /// Rows of the prompt that is taken in.
    pub prefill: usize,
    /// Rounds: pairs of a pass of the limit and steps, for each batch.
    pub pairs: usize,
}

/// Microseconds by kind of command.
pub type Micros = BTreeMap<String, f64>;

/// Steps shorter than this, together, are too short to time alone.
const LEAST_NANOS: u64 = 20_000_000;
/// Most steps that are timed together.
const MOST_STEPS: usize = 8;
/// Steps that are timed command by command, after the rounds.
const TIMED: usize = 8;
/// How long a graphics device reads before anything is timed.
const RAISED: u64 = 2_000_000_000;
/// Prompts taken in over the rounds.
const PROMPTS: usize = 5;

impl Plan {
    /// Positions that a sequence must have room for.
    #[must_use]
    pub fn positions(&self) -> usize {
        let decoded = self.warm() + (self.pairs * MOST_STEPS).max(1) + TIMED;
        (self.ctx + decoded).max(self.prefill)
    }

    /// Sequences that are open at once.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.batches.iter().sum::<usize>() + 1
    }

    fn warm(&self) -> usize {
        2
    }
}

/// A median and the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the samples are not larger.
    pub median: f64,
    /// A quarter of the samples is not larger.
    pub lower: f64,
    /// Three quarters of the samples are not larger.
    pub upper: f64,
}

impl Spread {
    /// Of samples, by rank; all zero when there are none.
    #[must_use]
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let rank = |share: f64| match samples.len() {
            0 => 0.0,
            len => {
                let at = share * (len - 1) as f64;
                let (low, part) = (at.floor() as usize, at.fract());
                let high = (low + 1).min(len - 1);
                samples[low] + (samples[high] - samples[low]) * part
            }
        };
        Self { median: rank(0.5), lower: rank(0.25), upper: rank(0.75) }
    }
}

/// Which limit is the longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BoundBy {
    /// Reading the bytes.
    Memory,
    /// Multiplying.
    Array,
}

/// What a step must move and multiply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Owed {
    /// Bytes of matrices, each once.
    pub weight_bytes: u64,
    /// Bytes of attention caches.
    pub cache_bytes: u64,
    /// Bytes of rings and memories.
    pub state_bytes: u64,
    /// Multiply-accumulates of matrices with rows.
    pub macs: u64,
}

impl Owed {
    fn between(before: &Counters, after: &Counters) -> Self {
        Self {
            weight_bytes: after.weight_bytes - before.weight_bytes,
            cache_bytes: after.cache_bytes - before.cache_bytes,
            state_bytes: after.state_bytes - before.state_bytes,
            macs: after.macs - before.macs,
        }
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            cache_bytes: self.cache_bytes + other.cache_bytes,
            state_bytes: self.state_bytes + other.state_bytes,
            macs: self.macs + other.macs,
        }
    }

    /// What one of `steps` steps owes on average.
    fn each(&self, steps: usize) -> Self {
        let each = |all: u64| all / steps.max(1) as u64;
        Self {
            weight_bytes: each(self.weight_bytes),
            cache_bytes: each(self.cache_bytes),
            state_bytes: each(self.state_bytes),
            macs: each(self.macs),
        }
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.cache_bytes + self.state_bytes
    }
}

/// A time against its bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The longer of the two times, in microseconds.
    pub bound_us: f64,
    /// Which limit it is of.
    pub bound_by: BoundBy,
    /// The time over its bound: 1 is the limit of the device.
    pub times_bound: f64,
}

impl Bound {
    fn of(seconds: f64, owed: &Owed, read: f64, array: Option<f64>, limbs: u64) -> Self {
        let memory = owed.bytes() as f64 / read;
        let multiply = array.map_or(0.0, |rate| (owed.macs * limbs) as f64 / rate);
        let (bound, bound_by) = if multiply > memory { (multiply, BoundBy::Array) } else { (memory, BoundBy::Memory) };
        Self { bound_us: 1e6 * bound, bound_by, times_bound: seconds / bound }
    }
}

/// Decoding at one batch.
#[derive(Clone, Debug, Serialize)]
pub struct Decode {
    /// Rows of a step.
    pub batch: usize,
    /// Rows a second.
    pub tokens_per_s: f64,
    /// A step, in microseconds.
    pub step_us: Spread,
    /// Bytes that a step must move.
    pub bytes_per_step: u64,
    /// The same by kind, and the multiply-accumulates.
    #[serde(flatten)]
    pub owed: Owed,
    /// Bytes a second over those of plain reads.
    pub share_of_limit: f64,
    /// The step against its bound.
    #[serde(flatten)]
    pub bound: Bound,
    /// Pairs of a pass of the limit and steps.
    pub pairs: usize,
    /// Steps timed together in a pair.
    pub steps_a_pair: usize,
    /// A step's time by kind of command, in microseconds, timed command by command in steps of their own; of a device by
    /// kind of kernel, and none where it has no timestamps.
    pub us_by_command: Option<Micros>,
    /// What starting work costs the step; none where its commands start nothing.
    pub launches: Option<Launches>,
}

/// What starting work on a device costs a step, whatever the work is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Launches {
    /// Kernels of a step; none where the engine does not say.
    pub kernels: Option<u64>,
    /// A kernel that does nothing and waits for the one before it, in microseconds.
    pub us_each: f64,
    /// A submission of one such kernel until the host has its result, in microseconds.
    pub submission_us: f64,
    /// The step's share that this makes together: what is left when nothing were computed.
    pub share_of_step: Option<f64>,
}

/// Taking a prompt in.
#[derive(Clone, Debug, Serialize)]
pub struct Prefill {
    /// Rows of the prompt.
    pub rows: usize,
    /// Rows a second.
    pub rows_per_s: f64,
    /// The prompt, in microseconds.
    pub prompt_us: Spread,
    /// Bytes that it must move.
    pub bytes: u64,
    /// Multiply-accumulates of matrices with rows.
    pub macs: u64,
    /// The prompt against its bound.
    #[serde(flatten)]
    pub bound: Bound,
    /// Prompts timed.
    pub prompts: usize,
}

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Bytes a second of plain reads.
    pub limit_bytes_per_s: f64,
    /// The same with its quartiles.
    pub limit: Spread,
    /// Multiply-accumulates a second of the array unit, each counted once a limb.
    pub array_macs_per_s: Option<f64>,
    /// By batch.
    pub decode: Vec<Decode>,
    /// A prompt.
    pub prefill: Prefill,
}

/// Sequences that decode together, and what their steps took.
struct Batch {
    rows: Vec<Row>,
    steps: usize,
    seconds: Vec<f64>,
    /// Of all timed steps together.
    owed: Owed,
}

/// Tokens spread over a vocabulary: which ones they are decides no time.
struct Tokens {
    next: u64,
    vocab: u64,
}

impl Tokens {
    fn take(&mut self) -> u32 {
        self.next += 1;
        (self.next * 7919 % self.vocab) as u32
    }
}

/// Nanoseconds since the first call.
pub(crate) fn nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A limit could not be measured.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Measure an engine that has room for the plan's sequences and positions.
///
/// # Errors
/// The engine's, or those of a limit.
pub fn measure(
    engine: &mut EngineModel,
    vocab: usize,
    plan: &Plan,
    limits: &mut Limits<'_>,
) -> Result<Speed, SpeedError> {
    let mut tokens = Tokens { next: 0, vocab: vocab.max(1) as u64 };
    let mut batches = Vec::with_capacity(plan.batches.len());
    for rows in &plan.batches {
        batches.push(Batch::begin(engine, *rows, plan, &mut tokens)?);
    }
    let prompt: Vec<u32> = (0..plan.prefill).map(|_| tokens.take()).collect();
    let seq = engine.open();
    // The first one meets memory that nobody has touched.
    engine.prefill(seq, &prompt)?;
    let (mut reads, mut rates, mut prompts, mut prompt_owed) = (Vec::new(), Vec::new(), Vec::new(), Owed::default());
    let mut launches = Vec::new();
    // A device that was idle has slow clocks for its first second of work and more.
    if limits.launch.is_some() {
        let start = nanos();
        while nanos() - start < RAISED {
            limits.read.pass()?;
        }
    }
    for round in 0..plan.pairs {
        for batch in &mut batches {
            reads.push(limits.read.pass()?);
            batch.round(engine, &mut tokens)?;
            if let Some(array) = &mut limits.array {
                rates.push(array.pass()?);
            }
        }
        if let Some(launch) = &mut limits.launch {
            launches.push((launch.kernel.pass()?, launch.submission.pass()?));
        }
        if round * PROMPTS / plan.pairs != (round + 1) * PROMPTS / plan.pairs {
            reads.push(limits.read.pass()?);
            engine.reset(seq);
            let (before, start) = (engine.counters(), nanos());
            engine.prefill(seq, &prompt)?;
            prompts.push(seconds(nanos() - start));
            prompt_owed = Owed::between(&before, &engine.counters());
        }
    }
    engine.release(seq);
    let limit = Spread::of(reads);
    let array = (!rates.is_empty()).then(|| Spread::of(rates).median);
    let (read, limbs) = (limit.median, limits.limbs);
    let launches = (!launches.is_empty()).then(|| Launches::of(&launches));
    let mut decode = Vec::with_capacity(batches.len());
    for batch in batches {
        decode.push(batch.end(engine, &mut tokens, read, array, limbs, launches)?);
    }
    let prefill = Prefill::of(plan.prefill, prompts, &prompt_owed, read, array, limbs);
    Ok(Speed { limit_bytes_per_s: read, limit, array_macs_per_s: array, decode, prefill })
}

fn seconds(nanos: u64) -> f64 {
    nanos.max(1) as f64 / 1e9
}

impl Batch {
    /// Sequences that stand so far in that they see `plan.ctx` positions halfway through the rounds.
    fn begin(engine: &mut EngineModel, rows: usize, plan: &Plan, tokens: &mut Tokens) -> Result<Self, StepError> {
        let sequences: Vec<SeqId> = (0..rows).map(|_| engine.open()).collect();
        let rows: Vec<Row> = sequences.iter().map(|seq| Row { seq: *seq, token: 0, logits: true }).collect();
        let mut batch = Self { rows, steps: 1, seconds: Vec::new(), owed: Owed::default() };
        // A sequence's first steps tell how many are to be timed together.
        batch.step(engine, tokens)?;
        let start = nanos();
        batch.step(engine, tokens)?;
        let step = (nanos() - start).max(1);
        batch.steps = usize::try_from(LEAST_NANOS.div_ceil(step)).unwrap_or(MOST_STEPS).clamp(1, MOST_STEPS);
        let half = plan.pairs * batch.steps / 2 + plan.warm();
        let before: Vec<u32> = (half..plan.ctx).map(|_| tokens.take()).collect();
        for seq in sequences {
            engine.prefill(seq, &before)?;
        }
        Ok(batch)
    }

    fn step(&mut self, engine: &mut EngineModel, tokens: &mut Tokens) -> Result<(), StepError> {
        self.rows.iter_mut().for_each(|row| row.token = tokens.take());
        engine.step(&self.rows).map(|_| ())
    }

    /// Some steps, timed together.
    fn round(&mut self, engine: &mut EngineModel, tokens: &mut Tokens) -> Result<(), StepError> {
        let (before, start) = (engine.counters(), nanos());
        for _ in 0..self.steps {
            self.step(engine, tokens)?;
        }
        self.seconds.push(seconds(nanos() - start) / self.steps as f64);
        self.owed = self.owed.plus(&Owed::between(&before, &engine.counters()));
        Ok(())
    }

    fn end(
        mut self,
        engine: &mut EngineModel,
        tokens: &mut Tokens,
        read: f64,
        array: Option<f64>,
        limbs: u64,
        launches: Option<Launches>,
    ) -> Result<Decode, StepError> {
        let (us_by_command, kernels) = match &launches {
            None => (Some(self.command_times(engine, tokens)?), None),
            Some(launches) => self.kernel_times(engine, tokens, launches.submission_us)?,
        };
        let launches = launches.map(|launches| Launches { kernels, ..launches });
        for row in &self.rows {
            engine.release(row.seq);
        }
        let (batch, owed) = (self.rows.len(), self.owed.each(self.steps * self.seconds.len()));
        let decode = Decode::of(batch, self.steps, self.seconds, owed, read, array, limbs);
        let launches = launches.map(|launches| launches.in_step(decode.step_us.median));
        Ok(Decode { us_by_command, launches, ..decode })
    }

    /// Steps timed command by command.
    fn command_times(&mut self, engine: &mut EngineModel, tokens: &mut Tokens) -> Result<Micros, StepError> {
        engine.time_commands(Some(nanos));
        for _ in 0..TIMED {
            self.step(engine, tokens)?;
        }
        let micros = |nanos: u64| nanos as f64 / 1e3 / TIMED as f64;
        let times = engine.command_times().map(|kind| (kind.mnemonic.to_owned(), micros(kind.nanos))).collect();
        engine.time_commands(None);
        Ok(times)
    }

    /// Steps timed by the device, kernel by kernel, where it has timestamps; and the kernels of a step.
    ///
    /// A timestamp after each kernel costs time of its own, about as much as the kernel where that is small: what the kernels
    /// take together beyond a step without timestamps is taken off all of them alike.
    fn kernel_times(
        &mut self,
        engine: &mut EngineModel,
        tokens: &mut Tokens,
        submission_us: f64,
    ) -> Result<(Option<Micros>, Option<u64>), StepError> {
        engine.profile(true);
        for _ in 0..TIMED {
            self.step(engine, tokens)?;
        }
        let found = engine.device_times();
        engine.profile(false);
        let Some(found) = found else { return Ok((None, None)) };
        let step = 1e6 * Spread::of(self.seconds.clone()).median - submission_us;
        let sum = |of: fn(&DeviceTime) -> f64| found.kinds.iter().map(of).sum::<f64>();
        let stamp = (sum(|kind| kind.microseconds) - step).max(0.0) / sum(|kind| kind.dispatches).max(1.0);
        let alone = |kind: &DeviceTime| (kind.microseconds - stamp * kind.dispatches).max(0.0);
        let times = found.kinds.iter().map(|kind| (kind.kind.clone(), alone(kind))).collect();
        Ok(((found.steps > 0).then_some(times), Some(found.dispatches as u64)))
    }
}

impl Decode {
    fn of(
        batch: usize,
        steps_a_pair: usize,
        seconds: Vec<f64>,
        owed: Owed,
        read: f64,
        array: Option<f64>,
        limbs: u64,
    ) -> Self {
        let pairs = seconds.len();
        let spread = Spread::of(seconds);
        let (step, bytes) = (spread.median, owed.bytes());
        Self {
            batch,
            tokens_per_s: batch as f64 / step,
            step_us: spread.scaled(1e6),
            bytes_per_step: bytes,
            owed,
            share_of_limit: bytes as f64 / step / read,
            bound: Bound::of(step, &owed, read, array, limbs),
            pairs,
            steps_a_pair,
            us_by_command: None,
            launches: None,
        }
    }
}

impl Launches {
    /// Of passes: kernels a second, and submissions a second.
    fn of(passes: &[(f64, f64)]) -> Self {
        let us = |rates: Vec<f64>| 1e6 / Spread::of(rates).median;
        let (us_each, submission_us) =
            (us(passes.iter().map(|p| p.0).collect()), us(passes.iter().map(|p| p.1).collect()));
        Self { kernels: None, us_each, submission_us, share_of_step: None }
    }

    fn in_step(self, step_us: f64) -> Self {
        let all = |kernels: u64| (kernels as f64 * self.us_each + self.submission_us) / step_us;
        Self { share_of_step: self.kernels.map(all), ..self }
    }
}

impl Prefill {
    fn of(rows: usize, seconds: Vec<f64>, owed: &Owed, read: f64, array: Option<f64>, limbs: u64) -> Self {
        let prompts = seconds.len();
        let spread = Spread::of(seconds);
        Self {
            rows,
            rows_per_s: rows as f64 / spread.median,
            prompt_us: spread.scaled(1e6),
            bytes: owed.bytes(),
            macs: owed.macs,
            bound: Bound::of(spread.median, owed, read, array, limbs),
            prompts,
        }
    }
}

impl Spread {
    fn scaled(self, factor: f64) -> Self {
        Self { median: self.median * factor, lower: self.lower * factor, upper: self.upper * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_by_rank() {
        let spread = Spread::of(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!(spread, Spread { median: 3.0, lower: 2.0, upper: 4.0 });
        assert_eq!(Spread::of(vec![1.0, 2.0]).median, 1.5);
        assert_eq!(Spread::of(vec![7.0]), Spread { median: 7.0, lower: 7.0, upper: 7.0 });
        assert_eq!(Spread::of(Vec::new()).median, 0.0);
    }

    #[test]
    fn shares_and_bounds_are_what_they_say() {
        let owed = Owed { weight_bytes: 800, cache_bytes: 150, state_bytes: 50, macs: 4000 };
        // A step of 0.25 s that must move 1000 bytes, at 5000 a second; its products, two limbs each, at 80,000.
        let decode = Decode::of(4, 2, vec![0.25, 0.2, 0.5], owed, 5000.0, Some(80_000.0), 2);
        assert_eq!((decode.tokens_per_s, decode.bytes_per_step, decode.share_of_limit), (16.0, 1000, 0.8));
        assert_eq!((decode.bound.bound_us, decode.bound.bound_by), (200_000.0, BoundBy::Memory));
        assert_eq!((decode.bound.times_bound, decode.pairs, decode.step_us.median), (1.25, 3, 250_000.0));
        // A slower array is the longer of the two.
        let bound = Bound::of(0.25, &owed, 5000.0, Some(40_000.0), 2);
        assert_eq!((bound.bound_us, bound.bound_by, bound.times_bound), (200_000.0, BoundBy::Memory, 1.25));
        let bound = Bound::of(0.5, &owed, 5000.0, Some(20_000.0), 2);
        assert_eq!((bound.bound_us, bound.bound_by, bound.times_bound), (400_000.0, BoundBy::Array, 1.25));
        let prefill = Prefill::of(64, vec![0.5], &owed, 5000.0, None, 2);
        assert_eq!((prefill.rows_per_s, prefill.bytes, prefill.bound.bound_by), (128.0, 1000, BoundBy::Memory));
    }

    #[test]
    fn what_is_owed_is_a_step_of_the_counters() {
        let before = Counters { weight_bytes: 10, ..Counters::default() };
        let after = Counters { weight_bytes: 40, cache_bytes: 6, state_bytes: 9, macs: 300, ..before };
        let owed = Owed::between(&before, &after);
        assert_eq!(owed, Owed { weight_bytes: 30, cache_bytes: 6, state_bytes: 9, macs: 300 });
        assert_eq!(owed.plus(&owed).each(6), Owed { weight_bytes: 10, cache_bytes: 2, state_bytes: 3, macs: 100 });
        assert_eq!(owed.bytes(), 45);
    }
}
