//! What a stage tells its head: `Ready` (-22), the `Trace` of a hop (-30), and a `Fault` (-31), which a head tells too.

use super::bytes::{Reader, Writer};
use super::{ERROR, READY, TRACE, WireError, all_or, or_all};

const CODE_CAP: usize = 64;
const TEXT_CAP: usize = 4096;
/// Rows of a trace.
const TRACE_ROWS: usize = 1 << 20;

/// A stage has loaded its layers (-22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The assignment's number.
    pub epoch: u32,
    /// Stage.
    pub stage: u32,
    /// SHA-256 of the stage's program file.
    pub program: [u8; 32],
    /// SHA-256 over the digests of its tensors.
    pub image: [u8; 32],
    /// Bytes read for them.
    pub bytes: u64,
    /// Reads made for them.
    pub requests: u32,
}

/// What a stage made of a hop (-30).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Sequence.
    pub sequence: u32,
    /// Lap.
    pub lap: u32,
    /// Stage.
    pub stage: u32,
    /// First position.
    pub position: u32,
    /// Microseconds of computing.
    pub compute_us: u32,
    /// Microseconds between arrival and computing.
    pub queue_us: u32,
    /// Each row's digest as it came and as it went.
    pub rows: Vec<(u64, u64)>,
}

/// An error by name (-31).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The assignment's number.
    pub epoch: u32,
    /// Sequence that it is about; none: all.
    pub sequence: Option<u32>,
    /// Name, for programs.
    pub code: String,
    /// What happened, for people.
    pub text: String,
}

impl Ready {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(READY);
        out.u32(self.epoch).u32(self.stage).bytes(&self.program).bytes(&self.image);
        out.u64(self.bytes).u32(self.requests);
        out.0
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            epoch: r.u32("epoch")?,
            stage: r.u32("stage")?,
            program: r.array("program")?,
            image: r.array("image")?,
            bytes: r.u64("bytes")?,
            requests: r.u32("requests")?,
        })
    }
}

impl Trace {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(TRACE);
        out.u32(self.sequence).u32(self.lap).u32(self.stage).u32(self.position);
        out.u32(self.compute_us).u32(self.queue_us).u32(self.rows.len() as u32);
        self.rows.iter().for_each(|(came, went)| {
            out.u64(*came).u64(*went);
        });
        out.0
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (sequence, lap, stage, position) = (r.u32("seq")?, r.u32("tokenIdx")?, r.u32("stage")?, r.u32("position")?);
        let (compute_us, queue_us) = (r.u32("compute")?, r.u32("queue")?);
        let count = r.u32("rows")? as usize;
        r.within("rows", count, TRACE_ROWS)?;
        let mut digests = Reader::new("trace", r.take("digests", 16 * count)?);
        let rows =
            (0..count).map(|_| Ok((digests.u64("came")?, digests.u64("went")?))).collect::<Result<_, WireError>>()?;
        Ok(Self { sequence, lap, stage, position, compute_us, queue_us, rows })
    }
}

impl Fault {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(ERROR);
        out.u32(self.epoch).i32(or_all(self.sequence));
        out.text(&self.code, CODE_CAP).text(&self.text, TEXT_CAP);
        out.0
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            epoch: r.u32("epoch")?,
            sequence: all_or(r, "error")?,
            code: r.text("code", CODE_CAP)?,
            text: r.text("text", TEXT_CAP)?,
        })
    }
}
