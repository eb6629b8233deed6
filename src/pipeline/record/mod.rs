//! The flight recorder: what a run's hops were, as lines of JSON, and their replay on one machine.
//!
//! The first line says of which model and how; each that follows is a plan, a sequence, a hop with the digests of its rows, a
//! token, or a loss; the last one counts them, so that a record that lacks some is known. A record holds token ids (a replay
//! needs them) and no weight, no hidden value and no credential.

mod replay;
#[cfg(test)]
mod tests;

use super::load::LoadError;
use super::session::{Ask, Entry};
use super::worker::WorkError;
use crate::generate::sampler::{Draw, Sampling};
pub use replay::Replayed;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use wordline_ir::digest::hex;

/// Version of the format.
pub const FORMAT: u32 = 2;

/// The first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub wordline_record: u32,
    /// The model as the command line named it.
    pub model: String,
    /// Digest of its tensor index, in hex.
    pub index: String,
    /// Digest of its spec.
    pub spec: String,
    /// The numerics.
    pub numerics: wordline_ir::Numerics,
    /// Positions of a sequence.
    pub ctx: u32,
    /// Rows of a step.
    pub step_rows: u32,
    /// Laps that begin anew with the last tokens.
    pub stateless: bool,
    /// The answers: prompt, and how tokens are picked.
    pub answers: Vec<Asked>,
}

/// One answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Where the draws start.
    pub seed: u64,
    /// Settings of a draw; none: the largest logit.
    pub draw: Option<[f32; 5]>,
}

impl Asked {
    /// What a record keeps of an ask.
    #[must_use]
    pub fn of(ask: &Ask) -> Self {
        let draw = match ask.sampling {
            Sampling::Greedy => None,
            Sampling::Draw(d) => Some([d.repetition_penalty, d.temperature, d.top_k as f32, d.top_p, d.min_p]),
        };
        Self { prompt: ask.prompt.clone(), seed: ask.seed, draw }
    }

    fn sampling(&self) -> Sampling {
        self.draw.map_or(Sampling::Greedy, |[repetition_penalty, temperature, top_k, top_p, min_p]| {
            Sampling::Draw(Draw { repetition_penalty, temperature, top_k: top_k as usize, top_p, min_p })
        })
    }
}

/// One line after the first.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "line")]
pub enum Line {
    /// A plan begins to work.
    Plan {
        /// The assignment's number.
        epoch: u32,
        /// Key and layers of each stage.
        stages: Vec<(String, [u32; 2])>,
    },
    /// An answer's sequence number.
    Sequence {
        /// The assignment's number.
        epoch: u32,
        /// Answer.
        answer: usize,
        /// Sequence.
        sequence: u32,
    },
    /// A hop.
    Hop {
        /// Answer.
        answer: usize,
        /// Sequence.
        sequence: u32,
        /// Lap.
        lap: u32,
        /// Stage.
        stage: u32,
        /// First position.
        position: u32,
        /// Microseconds of computing, and of waiting for it.
        us: [u32; 2],
        /// Digest of each row as it came and as it went, in hex; as it came is 0 on the head, which embeds.
        rows: Vec<[String; 2]>,
    },
    /// A token.
    Token {
        /// Answer.
        answer: usize,
        /// Index among those written.
        index: u32,
        /// Token.
        token: u32,
    },
    /// A loss.
    Lost {
        /// Key.
        key: String,
        /// Why.
        why: String,
    },
    /// The end; a record without it is not whole.
    End {
        /// Hops written.
        hops: usize,
        /// Tokens written.
        tokens: usize,
    },
}

impl Line {
    fn of(entry: &Entry) -> Self {
        match entry {
            Entry::Plan { epoch, plan } => {
                let stage = |stage: usize| {
                    let layers = &plan.stages[stage].layers;
                    (hex(&plan.key(stage).unwrap_or_default()), [layers.start, layers.end])
                };
                Line::Plan { epoch: *epoch, stages: (0..plan.stages.len()).map(stage).collect() }
            }
            Entry::Sequence { epoch, answer, sequence } => {
                Line::Sequence { epoch: *epoch, answer: *answer, sequence: *sequence }
            }
            Entry::Hop { answer, trace } => Line::Hop {
                answer: *answer,
                sequence: trace.sequence,
                lap: trace.lap,
                stage: trace.stage,
                position: trace.position,
                us: [trace.compute_us, trace.queue_us],
                rows: trace.rows.iter().map(|(came, went)| [format!("{came:016x}"), format!("{went:016x}")]).collect(),
            },
            Entry::Token { answer, index, token } => Line::Token { answer: *answer, index: *index, token: *token },
            Entry::Lost { key, why } => Line::Lost { key: hex(key), why: why.clone() },
        }
    }
}

/// Writes a record line by line.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    out: W,
    hops: usize,
    tokens: usize,
}

impl<W: Write> Recorder<W> {
    /// A record that begins with this header.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut out: W, header: &Header) -> std::io::Result<Self> {
        writeln!(out, "{}", serde_json::to_string(header)?)?;
        Ok(Self { out, hops: 0, tokens: 0 })
    }

    /// One more line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, entry: &Entry) -> std::io::Result<()> {
        self.hops += usize::from(matches!(entry, Entry::Hop { .. }));
        self.tokens += usize::from(matches!(entry, Entry::Token { .. }));
        self.line(&Line::of(entry))
    }

    /// The end of it: the line without which it is not whole.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.line(&Line::End { hops: self.hops, tokens: self.tokens })?;
        self.out.flush()
    }

    fn line(&mut self, line: &Line) -> std::io::Result<()> {
        writeln!(self.out, "{}", serde_json::to_string(line)?)
    }
}

/// Why a record cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line is none.
    #[error("line {line}: {source}")]
    Line {
        /// Number, from 1.
        line: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Another format.
    #[error("a record of format {given}; this program replays {FORMAT}")]
    Format {
        /// Its format.
        given: u32,
    },
    /// No hop in it.
    #[error("the record holds no hop: there is nothing to compare")]
    Empty,
    /// A line that contradicts the others.
    #[error("line {line}: {what}")]
    Contradiction {
        /// Number, from 1.
        line: usize,
        /// What.
        what: String,
    },
    /// The model here is another one.
    #[error("the record is of a model with the tensor index {needed}, this one has {given}")]
    Model {
        /// Digest of this model's index.
        given: String,
        /// The record's.
        needed: String,
    },
    /// The model here is read otherwise.
    #[error("the record is of a model with the spec {needed}, this one has {given}")]
    Spec {
        /// Digest of this model's spec.
        given: String,
        /// The record's.
        needed: String,
    },
    /// The model has no such stages.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The engine refused a step.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// A record, read.
#[derive(Clone, Debug)]
pub struct Record {
    /// The first line.
    pub header: Header,
    /// The others, but for the end.
    pub lines: Vec<Line>,
    /// The line at which it stops without an end: whoever wrote it was killed, or the end was cut off.
    pub stops: Option<usize>,
}

impl Record {
    /// Read a record. One that stops without an end is read as far as it goes.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn read(input: impl BufRead) -> Result<Self, RecordError> {
        let mut texts = input.lines();
        let first = texts.next().ok_or(RecordError::Empty)??;
        let header: Header = serde_json::from_str(&first).map_err(|source| RecordError::Line { line: 1, source })?;
        if header.wordline_record != FORMAT {
            return Err(RecordError::Format { given: header.wordline_record });
        }
        let texts = texts.collect::<std::io::Result<Vec<String>>>()?;
        let mut lines = Vec::with_capacity(texts.len());
        for (i, text) in texts.iter().enumerate() {
            match serde_json::from_str::<Line>(text) {
                Ok(line) => lines.push(line),
                // Cut off in the middle.
                Err(source) if i + 1 == texts.len() && source.is_eof() => {}
                Err(source) => return Err(RecordError::Line { line: i + 2, source }),
            }
        }
        let count = |is: fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count();
        let here = (count(|l| matches!(l, Line::Hop { .. })), count(|l| matches!(l, Line::Token { .. })));
        let last = lines.len() + 1;
        let Some(&Line::End { hops, tokens }) = lines.last() else {
            return Ok(Self { header, lines, stops: Some(last) });
        };
        if here != (hops, tokens) {
            let what = format!("written were {hops} hops and {tokens} tokens, here are {} and {}", here.0, here.1);
            return Err(RecordError::Contradiction { line: last, what: format!("{what}: the record is not whole") });
        }
        lines.pop();
        Ok(Self { header, lines, stops: None })
    }

    /// The answers' ids as recorded.
    #[must_use]
    pub fn ids(&self) -> Vec<Vec<u32>> {
        let mut ids = vec![Vec::new(); self.header.answers.len()];
        for line in &self.lines {
            if let Line::Token { answer, token, .. } = line
                && let Some(ids) = ids.get_mut(*answer)
            {
                ids.push(*token);
            }
        }
        ids
    }
}
