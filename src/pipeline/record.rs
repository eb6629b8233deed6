//! The flight recorder: what a run's hops were, as lines of JSON, and their replay on one machine.
//!
//! The first line says of which model and how; each that follows is a plan, a sequence, a hop with the digests of its rows, a
//! token, or a loss. A record holds token ids (a replay needs them) and no weight, no hidden value and no credential.

use super::load::{LoadError, Maker, index_of};
use super::plan::Room;
use super::session::{Ask, Entry};
use super::wire::row_digest;
use super::worker::{Input, Job, WorkError};
use crate::generate::sampler::{Draw, Sampler, Sampling};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use wordline_ir::Program;
use wordline_ir::digest::hex;

/// Version of the format.
pub const FORMAT: u32 = 1;

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
pub struct Recorder<W: Write>(W);

impl<W: Write> Recorder<W> {
    /// A record that begins with this header.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut out: W, header: &Header) -> std::io::Result<Self> {
        writeln!(out, "{}", serde_json::to_string(header)?)?;
        Ok(Self(out))
    }

    /// One more line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, entry: &Entry) -> std::io::Result<()> {
        writeln!(self.0, "{}", serde_json::to_string(&Line::of(entry))?)
    }

    /// The end of it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.0.flush()
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
    /// Nothing in it.
    #[error("the record is empty")]
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
    /// The others.
    pub lines: Vec<Line>,
}

impl Record {
    /// Read a record.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn read(input: impl BufRead) -> Result<Self, RecordError> {
        let mut lines = input.lines();
        let first = lines.next().ok_or(RecordError::Empty)??;
        let header: Header = serde_json::from_str(&first).map_err(|source| RecordError::Line { line: 1, source })?;
        if header.wordline_record != FORMAT {
            return Err(RecordError::Format { given: header.wordline_record });
        }
        let line = |(i, text): (usize, std::io::Result<String>)| {
            serde_json::from_str(&text?).map_err(|source| RecordError::Line { line: i + 2, source })
        };
        let lines = lines.enumerate().map(line).collect::<Result<Vec<Line>, RecordError>>()?;
        Ok(Self { header, lines })
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

    /// Run every answer again on one machine, cut wherever a plan was cut, and hold each recorded hop and token to it.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn replay(&self, program: &Program, maker: &Maker<'_>) -> Result<Replayed, RecordError> {
        let (given, needed) = (hex(&index_of(maker.weights)), &self.header.index);
        if given != *needed {
            return Err(RecordError::Model { given, needed: needed.clone() });
        }
        let layers = program.identity.cut.last_layer as u32;
        let borders = self.borders(layers)?;
        let starts = std::iter::once(0).chain(borders.iter().copied());
        let ranges: Vec<_> = starts.zip(borders.iter().copied()).map(|(a, b)| a as usize..b as usize).collect();
        let positions = self.ids().iter().zip(&self.header.answers).map(|(ids, a)| ids.len() + a.prompt.len()).max();
        let ctx = (positions.unwrap_or(1).max(1) as u32).max(self.header.ctx.min(program.max_pos as u32));
        let room = Room { ctx, step_rows: self.header.step_rows.max(1), sequences: 1 };
        let mut workers = maker.all(program, &ranges, room)?;
        let mut replayed = Replayed { hops: 0, rows: 0, tokens: 0, difference: None };
        for (answer, ids) in self.ids().iter().enumerate() {
            let asked = &self.header.answers[answer];
            let mut sampler = Sampler::new(asked.sampling(), asked.seed);
            let mut text = asked.prompt.clone();
            let mut digests = Digests::new();
            let mut fed = 0;
            let stateless = self.header.stateless;
            let window = self.header.step_rows.min(self.header.ctx).max(1) as usize;
            for (index, token) in ids.iter().enumerate() {
                let mut last = Vec::new();
                // A lap of the last tokens alone begins a sequence, and counts its positions from there.
                let (begin, lap) = if stateless { (text.len().saturating_sub(window), index) } else { (0, 0) };
                fed = if stateless { begin } else { fed };
                while fed < text.len() {
                    let to = text.len().min(fed + room.step_rows as usize);
                    let mut input = Input::Tokens(text[fed..to].to_vec());
                    for (made, border) in workers.iter_mut().zip(&borders) {
                        let position = (fed - begin) as u32;
                        let job = Job { sequence: answer as u32, position, anew: stateless, input };
                        let hidden = made.worker.run(&[job]).pop().unwrap_or(Ok(Vec::new()))?;
                        let width = made.worker.width().max(1);
                        for (row, position) in hidden.chunks_exact(width).zip(position..) {
                            digests.insert((*border, lap, position), row_digest(row));
                        }
                        last = hidden[hidden.len().saturating_sub(width)..].to_vec();
                        input = Input::Hidden(hidden);
                    }
                    fed = to;
                }
                let head = workers.first_mut().map(|made| made.worker.read_out(&[(answer as u32, last)]));
                let logits = head.transpose()?.and_then(|mut rows| rows.pop()).unwrap_or_default();
                let picked = sampler.pick(&logits, &text);
                replayed.tokens += 1;
                if picked != Some(*token) && replayed.difference.is_none() {
                    let what = format!("answer {answer}, token {index}: recorded {token}, replayed {picked:?}");
                    replayed.difference = Some(what);
                }
                text.push(*token);
            }
            self.compare(answer, &digests, &mut replayed)?;
            workers.iter_mut().for_each(|made| made.worker.free(None));
        }
        Ok(replayed)
    }

    /// Where any plan was cut, the end of the model included.
    fn borders(&self, layers: u32) -> Result<Vec<u32>, RecordError> {
        let mut borders = BTreeSet::from([layers]);
        for (i, line) in self.lines.iter().enumerate() {
            if let Line::Plan { stages, .. } = line {
                if stages.last().is_none_or(|(_, [_, end])| *end != layers) || stages.iter().any(|(_, [a, b])| a > b) {
                    let what = format!("a plan that does not end with the model's {layers} layers");
                    return Err(RecordError::Contradiction { line: i + 2, what });
                }
                borders.extend(stages.iter().map(|(_, [_, end])| *end));
            }
        }
        Ok(borders.into_iter().collect())
    }

    fn compare(&self, answer: usize, digests: &Digests, replayed: &mut Replayed) -> Result<(), RecordError> {
        let mut plan: &[(String, [u32; 2])] = &[];
        // Tokens written so far, and when each lap left the head: laps count anew after a loss.
        let (mut written, mut left) = (0, BTreeMap::new());
        for (i, line) in self.lines.iter().enumerate() {
            match line {
                Line::Plan { stages, .. } => plan = stages,
                Line::Token { answer: of, .. } if *of == answer => written += 1,
                Line::Hop { answer: of, lap, stage, position, rows, .. } if *of == answer => {
                    if *stage == 0 {
                        left.insert(*lap, written);
                    }
                    let at_token = if self.header.stateless { left.get(lap).copied().unwrap_or(written) } else { 0 };
                    let what = || format!("stage {stage}, which its plan does not have");
                    let contradiction = || RecordError::Contradiction { line: i + 2, what: what() };
                    let (key, [start, end]) = plan.get(*stage as usize).ok_or_else(contradiction)?;
                    replayed.hops += 1;
                    for (row, at) in rows.iter().zip(*position..) {
                        replayed.rows += 1;
                        let sides = [(*stage > 0).then_some((*start, &row[0], "came")), Some((*end, &row[1], "went"))];
                        for (border, recorded, how) in sides.into_iter().flatten() {
                            // Rows of a lap that was under way when its answer ended were never read out.
                            let Some(digest) = digests.get(&(border, at_token, at)) else { continue };
                            if format!("{digest:016x}") != *recorded && replayed.difference.is_none() {
                                let key = key.get(..10).unwrap_or(key);
                                replayed.difference = Some(format!(
                                    "answer {answer}, stage {stage} ({key}), lap {lap}, position {at}: the row as it {how} \
                                     is not what this machine computes"
                                ));
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Digest of the hidden row at a border between layers, on the lap of a token (0 where laps go on from each other), at a
/// position.
type Digests = BTreeMap<(u32, usize, u32), u64>;

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Hops compared.
    pub hops: usize,
    /// Rows of them.
    pub rows: usize,
    /// Tokens picked again.
    pub tokens: usize,
    /// The first difference, in words; none: all is equal.
    pub difference: Option<String>,
}
