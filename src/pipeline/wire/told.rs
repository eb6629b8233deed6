//! What a stage tells its head: `Ready` (-22), the `Trace` of a hop (-30), how it reaches the next one (`Onward`, in -34), and a
//! `Fault` (-31), which a head tells too.

use super::bytes::{Reader, Writer};
use super::{BEAT, ERROR, READY, TRACE, WireError, all_or, or_all};

const CODE_CAP: usize = 64;
const TEXT_CAP: usize = 4096;
/// Rows of a trace.
const TRACE_ROWS: usize = 1 << 20;
/// In place of a token's index: none was heard.
const NONE: u32 = u32::MAX;

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
    /// When it came, in microseconds of the stage's own clock, which is set like nobody else's.
    pub came_us: u64,
    /// The index of the sequence's token that was heard last, below 2^32 - 1, and when, on the same clock.
    pub heard: Option<(u32, u64)>,
    /// Each row's digest as it came and as it went.
    pub rows: Vec<(u64, u64)>,
}

/// How well a stage reaches the next one of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Onward {
    /// Microseconds there and back.
    pub rtt_us: u32,
    /// Through a relay.
    pub relayed: bool,
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
        let (heard, heard_us) = self.heard.unwrap_or((NONE, 0));
        out.u32(self.compute_us).u32(self.queue_us).u64(self.came_us).u32(heard).u64(heard_us);
        out.u32(self.rows.len() as u32);
        self.rows.iter().for_each(|(came, went)| {
            out.u64(*came).u64(*went);
        });
        out.0
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (sequence, lap, stage, position) = (r.u32("seq")?, r.u32("tokenIdx")?, r.u32("stage")?, r.u32("position")?);
        let (compute_us, queue_us, came_us) = (r.u32("compute")?, r.u32("queue")?, r.u64("came")?);
        let heard = match (r.u32("heard")?, r.u64("heard at")?) {
            (NONE, 0) => None,
            (NONE, given) => return Err(WireError::Value { message: "trace", field: "heard at", given }),
            heard => Some(heard),
        };
        let count = r.u32("rows")? as usize;
        r.within("rows", count, TRACE_ROWS)?;
        let mut digests = Reader::new("trace", r.take("digests", 16 * count)?);
        let rows =
            (0..count).map(|_| Ok((digests.u64("came")?, digests.u64("went")?))).collect::<Result<_, WireError>>()?;
        Ok(Self { sequence, lap, stage, position, compute_us, queue_us, came_us, heard, rows })
    }
}

/// A heartbeat as bytes.
pub(super) fn encode_beat(epoch: u32, laps: u64, busy_ms: u32, onward: Option<Onward>) -> Vec<u8> {
    let mut out = Writer::new(BEAT);
    let (kind, rtt_us) = onward.map_or((0, 0), |onward| (1 + u8::from(onward.relayed), onward.rtt_us));
    out.u32(epoch).u64(laps).u32(busy_ms).u8(kind).u32(rtt_us);
    out.0
}

impl Onward {
    pub(super) fn take(r: &mut Reader<'_>) -> Result<Option<Self>, WireError> {
        match (r.u8("onward")?, r.u32("rtt")?) {
            (0, 0) => Ok(None),
            (kind @ 1..=2, rtt_us) => Ok(Some(Self { rtt_us, relayed: kind == 2 })),
            (kind, _) => Err(WireError::Value { message: "beat", field: "onward", given: kind.into() }),
        }
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
