//! `Worker`: the engine of one stage, and the sequences that the ring knows by number.

use std::collections::HashMap;
use wordline_engine::{EngineModel, Row, SeqId, StepError};
use wordline_ir::Slot;

/// Rows of one sequence for one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The ring's number of the sequence.
    pub sequence: u32,
    /// Rows that the sequence has before.
    pub position: u32,
    /// Begin the sequence anew with these rows.
    pub anew: bool,
    /// The rows.
    pub input: Input,
}

/// What a stage's rows are made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Tokens, on the head.
    Tokens(Vec<u32>),
    /// Hidden rows, `[rows, hidden]`.
    Hidden(Vec<f32>),
}

/// Why a job was not done. Its sequence is as it was unless a command failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkError {
    /// The rows do not follow what the stage has.
    #[error("sequence {sequence}: rows for position {given}, the stage holds {held}")]
    Order {
        /// Sequence.
        sequence: u32,
        /// Position of the rows.
        given: u32,
        /// Rows held.
        held: usize,
    },
    /// The values are no rows of the model's width.
    #[error("sequence {sequence}: {values} values are no rows of {width}")]
    Ragged {
        /// Sequence.
        sequence: u32,
        /// Values.
        values: usize,
        /// Width.
        width: usize,
    },
    /// A sequence that the stage does not hold.
    #[error("sequence {sequence} is not held")]
    Unknown {
        /// Sequence.
        sequence: u32,
    },
    /// The engine refused or failed the step.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// The engine of one stage.
#[derive(Debug)]
pub struct Worker {
    engine: EngineModel,
    sequences: HashMap<u32, SeqId>,
    width: usize,
}

impl Worker {
    /// A worker on a stage's engine.
    #[must_use]
    pub fn new(engine: EngineModel) -> Self {
        let width = engine.program().width(Slot::X).unwrap_or(0);
        Self { engine, sequences: HashMap::new(), width }
    }

    /// Values of a hidden row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The engine.
    #[must_use]
    pub fn engine(&mut self) -> &mut EngineModel {
        &mut self.engine
    }

    /// Sequences held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.sequences.len()
    }

    /// Run a step of nothing with so many rows, and forget it: whatever a device makes at its first step of that size is made
    /// before anybody waits for it.
    ///
    /// # Errors
    /// The engine refuses or fails the step.
    pub fn warm(&mut self, rows: usize) -> Result<(), WorkError> {
        let seq = self.engine.open();
        let rows: Vec<Row> = (0..rows).map(|_| Row { seq, token: 0, logits: false }).collect();
        let ran = match self.engine.step(&rows).map(|_| ()) {
            // A program that begins inside the model takes hidden rows.
            Err(StepError::Input(_)) => self.engine.step_hidden(&rows, &vec![0.0; rows.len() * self.width]).map(|_| ()),
            ran => ran,
        };
        self.engine.release(seq);
        ran.map_err(WorkError::from)
    }

    /// Run jobs, as many in one step as may be; each job's hidden rows as they leave the stage, in the jobs' order.
    ///
    /// A matrix is streamed once for all rows of a step, and no bit of a row depends on its company.
    pub fn run(&mut self, jobs: &[Job]) -> Vec<Result<Vec<f32>, WorkError>> {
        let mut results = Vec::with_capacity(jobs.len());
        let mut rest = jobs;
        while !rest.is_empty() {
            // A sequence's second job of the batch follows in a step of its own.
            let together = (0..rest.len()).take_while(|i| rest[..*i].iter().all(|j| j.sequence != rest[*i].sequence));
            let (now, later) = rest.split_at(together.count());
            self.step(now, &mut results);
            rest = later;
        }
        results
    }

    /// The logits of one hidden row each, as the last stage gave it back.
    ///
    /// # Errors
    /// A sequence is not held, or the engine fails.
    pub fn read_out(&mut self, rows: &[(u32, Vec<f32>)]) -> Result<Vec<Vec<f32>>, WorkError> {
        let mut hidden = Vec::with_capacity(rows.len() * self.width);
        let mut sequences = Vec::with_capacity(rows.len());
        for (sequence, row) in rows {
            sequences.push(*self.sequences.get(sequence).ok_or(WorkError::Unknown { sequence: *sequence })?);
            hidden.extend_from_slice(row);
        }
        let logits = self.engine.read_out(&sequences, &hidden)?;
        Ok((0..logits.len()).filter_map(|i| logits.row(i)).map(<[f32]>::to_vec).collect())
    }

    /// End a sequence and free what is kept of it; all of them for none.
    pub fn free(&mut self, sequence: Option<u32>) {
        let gone: Vec<u32> = sequence.map_or_else(|| self.sequences.keys().copied().collect(), |s| vec![s]);
        for sequence in gone {
            if let Some(seq) = self.sequences.remove(&sequence) {
                self.engine.release(seq);
            }
        }
    }

    fn step(&mut self, jobs: &[Job], results: &mut Vec<Result<Vec<f32>, WorkError>>) {
        let first = results.len();
        let mut rows = Vec::new();
        let mut hidden = Vec::new();
        let mut counts = Vec::with_capacity(jobs.len());
        for job in jobs {
            let (before, values) = (rows.len(), hidden.len());
            results.push(self.place(job, &mut rows, &mut hidden).map(|()| Vec::new()));
            if results.last().is_some_and(Result::is_err) {
                rows.truncate(before);
                hidden.truncate(values);
            }
            counts.push(rows.len() - before);
        }
        if rows.is_empty() {
            return;
        }
        let ran = if hidden.is_empty() { self.engine.step(&rows) } else { self.engine.step_hidden(&rows, &hidden) }
            .map(|_| ());
        let width = self.width;
        let mut left = match &ran {
            Ok(()) => self.engine.hidden(),
            Err(_) => &[],
        };
        for (result, count) in results[first..].iter_mut().zip(counts).filter(|(r, _)| r.is_ok()) {
            *result = match &ran {
                Ok(()) => {
                    let (own, rest) = left.split_at(count * width);
                    left = rest;
                    Ok(own.to_vec())
                }
                Err(error) => Err(error.clone().into()),
            };
        }
    }

    /// Put a job's rows into the step.
    fn place(&mut self, job: &Job, rows: &mut Vec<Row>, hidden: &mut Vec<f32>) -> Result<(), WorkError> {
        let sequence = job.sequence;
        let count = match &job.input {
            Input::Tokens(tokens) => tokens.len(),
            Input::Hidden(values) if self.width > 0 && values.len().is_multiple_of(self.width) => {
                values.len() / self.width
            }
            Input::Hidden(values) => {
                return Err(WorkError::Ragged { sequence, values: values.len(), width: self.width });
            }
        };
        let known = self.sequences.get(&sequence).copied();
        let held = known.and_then(|seq| self.engine.length(seq)).filter(|_| !job.anew).unwrap_or(0);
        if held != job.position as usize {
            return Err(WorkError::Order { sequence, given: job.position, held });
        }
        let seq = match known {
            Some(seq) if job.anew => {
                self.engine.reset(seq);
                seq
            }
            Some(seq) => seq,
            None => {
                let seq = self.engine.open();
                self.sequences.insert(sequence, seq);
                seq
            }
        };
        let token = |i: usize| match &job.input {
            Input::Tokens(tokens) => tokens[i],
            Input::Hidden(_) => 0,
        };
        rows.extend((0..count).map(|i| Row { seq, token: token(i), logits: false }));
        if let Input::Hidden(values) = &job.input {
            hidden.extend_from_slice(values);
        }
        Ok(())
    }
}
