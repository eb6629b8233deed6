//! `EngineModel`: a verified program on its units, and the sequences it advances.

mod error;
mod times;

pub use error::StepError;
pub use times::{Clock, CommandTime};

use crate::error::ModelError;
use crate::image::Image;
use crate::int8::{Int8Units, Kernels};
use crate::reference::{Linear, ReferenceUnits};
use crate::sequencer::{Sequencer, issue};
use crate::source::WeightSource;
use crate::state::Capacity;
use crate::team::Team;
use crate::units::{Counters, DeviceTimes, StepRow, UnitError, Units};
use std::sync::Arc;
use times::CommandTimes;
use wordline_ir::{Command, Ends, Program, Slot};

/// A sequence of one engine, from [`EngineModel::open`] to [`EngineModel::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId {
    index: u32,
    /// Tells the id from those that had the index before.
    generation: u32,
}

/// One row of a step. Its position is the number of rows its sequence had before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Sequence that the row extends.
    pub seq: SeqId,
    /// Token.
    pub token: u32,
    /// The row runs the final norm and the head.
    pub logits: bool,
}

/// What the rows of a step that wanted logits got, in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logits<'a> {
    values: &'a [f32],
    vocab: usize,
}

impl<'a> Logits<'a> {
    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.vocab).unwrap_or(0)
    }

    /// No row wanted logits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Elements in a row.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The logits of the `i`-th row that wanted them.
    #[must_use]
    pub fn row(&self, i: usize) -> Option<&'a [f32]> {
        self.values.chunks_exact(self.vocab.max(1)).nth(i)
    }

    /// All rows, `[rows, vocab]`.
    #[must_use]
    pub fn values(&self) -> &'a [f32] {
        self.values
    }
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    generation: u32,
    open: bool,
    poisoned: bool,
    length: usize,
    /// Rows of the step being checked or run.
    pending: usize,
}

/// A verified program on its units.
///
/// ```text
/// words -> decode -> verify -> Sequencer -> issue: one match over Command -> Units (int8 | reference)
/// ```
pub struct EngineModel {
    sequencer: Sequencer,
    capacity: Capacity,
    units: Box<dyn Units>,
    sequences: Vec<Sequence>,
    rows: Vec<StepRow>,
    wanted: Vec<usize>,
    /// Rows of the embedding; none when hidden states come in.
    vocab: Option<usize>,
    /// The program ends in logits.
    reads_out: bool,
    times: CommandTimes,
}

impl std::fmt::Debug for EngineModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineModel")
            .field("commands", &self.sequencer.program().commands.len())
            .field("capacity", &self.capacity)
            .field("sequences", &self.sequences.iter().filter(|s| s.open).count())
            .finish_non_exhaustive()
    }
}

impl EngineModel {
    /// An engine on reference units: f32 weights, f64 sums, nothing quantised (but see [`Linear::Q8`]).
    ///
    /// # Errors
    /// The program is not sound, the capacity is none, or the source does not give a weight.
    pub fn reference(
        sequencer: Sequencer,
        capacity: Capacity,
        source: &dyn WeightSource,
        linear: Linear,
        threads: usize,
    ) -> Result<Self, ModelError> {
        check(&sequencer, capacity)?;
        let units = ReferenceUnits::new(&sequencer, source, linear, Team::new(threads))?;
        Self::on(sequencer, capacity, Box::new(units))
    }

    /// An engine on the int8 units and a weight image.
    ///
    /// # Errors
    /// The program is not sound, the capacity is none, the image does not hold what the commands use, or the kernels
    /// have no form of the program's numerics.
    pub fn int8(
        sequencer: Sequencer,
        capacity: Capacity,
        image: impl Into<Arc<Image>>,
        kernels: Kernels,
        threads: usize,
    ) -> Result<Self, ModelError> {
        check(&sequencer, capacity)?;
        let units = Int8Units::new(&sequencer, capacity, image.into(), kernels, Team::new(threads))?;
        Self::on(sequencer, capacity, Box::new(units))
    }

    /// An engine on a graphics device and a weight image, by the first of these methods that passes its gate there; on
    /// the processor's kernels where none does, and [`EngineModel::notices`] says so.
    ///
    /// # Errors
    /// As [`EngineModel::int8`].
    #[cfg(feature = "gpu")]
    pub fn gpu(
        sequencer: Sequencer,
        capacity: Capacity,
        image: impl Into<Arc<Image>>,
        (gpu, methods): (wordline_kernels::gpu::Gpu, &[wordline_kernels::gpu::Method]),
        kernels: Kernels,
        threads: usize,
    ) -> Result<Self, ModelError> {
        check(&sequencer, capacity)?;
        let units = crate::gpu::GpuUnits::new(&sequencer, capacity, image.into(), gpu, methods, kernels, threads)?;
        Self::on(sequencer, capacity, Box::new(units))
    }

    /// An engine on units that were made for this sequencer's program and this capacity.
    ///
    /// # Errors
    /// The capacity is none.
    pub fn on(sequencer: Sequencer, capacity: Capacity, units: Box<dyn Units>) -> Result<Self, ModelError> {
        check(&sequencer, capacity)?;
        let program = sequencer.program();
        let vocab = embedded(program).map(|(table, _)| table).min();
        let reads_out = Ends::of(program).reads_out;
        let (sequences, rows, wanted) = (Vec::new(), Vec::new(), Vec::new());
        let times = CommandTimes::default();
        Ok(Self { sequencer, capacity, units, sequences, rows, wanted, vocab, reads_out, times })
    }

    /// The program that runs.
    #[must_use]
    pub fn program(&self) -> &Program {
        self.sequencer.program()
    }

    /// Room for sequences.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Begin a sequence: no positions, ring and memory zero.
    pub fn open(&mut self) -> SeqId {
        let index = match self.sequences.iter().position(|s| !s.open) {
            Some(index) => index,
            None => {
                self.sequences.push(Sequence::default());
                self.sequences.len() - 1
            }
        };
        self.units.open(index);
        let generation = self.sequences[index].generation.wrapping_add(1);
        self.sequences[index] = Sequence { generation, open: true, ..Sequence::default() };
        SeqId { index: index as u32, generation }
    }

    /// Bring a sequence back to its beginning, poisoned or not. False when the id names no open sequence.
    pub fn reset(&mut self, seq: SeqId) -> bool {
        let Some(sequence) = self.find(seq) else { return false };
        (sequence.length, sequence.poisoned) = (0, false);
        self.units.open(seq.index as usize);
        true
    }

    /// End a sequence and free its state. False when the id names no open sequence.
    pub fn release(&mut self, seq: SeqId) -> bool {
        let Some(sequence) = self.find(seq) else { return false };
        sequence.open = false;
        self.units.release(seq.index as usize);
        true
    }

    /// Positions a sequence holds.
    #[must_use]
    pub fn length(&self, seq: SeqId) -> Option<usize> {
        let sequence = self.sequences.get(seq.index as usize)?;
        (sequence.open && sequence.generation == seq.generation).then_some(sequence.length)
    }

    /// Everything that a sequence keeps between steps, as bits in a fixed order: equal states give equal lists.
    #[must_use]
    pub fn state_bits(&self, seq: SeqId) -> Option<Vec<u64>> {
        self.length(seq).map(|_| self.units.state_bits(seq.index as usize))
    }

    /// What the units have moved and multiplied since the engine was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.units.counters()
    }

    /// Name of the form of the array unit that multiplies now: a form of the processor's kernels, or a device's method.
    #[must_use]
    pub fn form(&self) -> &'static str {
        self.units.form()
    }

    /// Count the time of each kind of command from now on, from zero; `None` ends it. Units that run a whole step at
    /// once, as a device may, are seen here from outside: what issuing took.
    pub fn time_commands(&mut self, clock: Option<Clock>) {
        self.times.restart(clock);
    }

    /// What the commands took since [`EngineModel::time_commands`], by kind, in the order of the opcodes.
    pub fn command_times(&self) -> impl Iterator<Item = CommandTime> {
        self.times.kinds()
    }

    /// Ask a device for its own times of the steps from now on, from zero; nothing where no device computes.
    pub fn profile(&mut self, on: bool) {
        self.units.profile(on);
    }

    /// What a device says of its steps since [`EngineModel::profile`]; `None` where none computes.
    #[must_use]
    pub fn device_times(&self) -> Option<DeviceTimes> {
        self.units.device_times()
    }

    /// What the units found out about themselves since the last time, for people: forms that the audit demoted. The
    /// results are right all the same: the next form has computed them.
    pub fn notices(&mut self) -> Vec<String> {
        self.units.notices()
    }

    /// Run one step over rows of any sequences, mixed in any way; a sequence's rows stand in its own order.
    ///
    /// # Errors
    /// Refused before anything ran, and then nothing has changed; or [`StepError::Command`], and then every sequence
    /// of the step refuses further rows until it is reset.
    pub fn step(&mut self, rows: &[Row]) -> Result<Logits<'_>, StepError> {
        if self.vocab.is_none() {
            return Err(StepError::Input("the program has no embedding; give the step hidden states".into()));
        }
        self.run(rows, None)?;
        Ok(self.logits())
    }

    /// Run one step of a program that begins inside the model, over the rows' hidden states, `[rows, hidden]`. The
    /// hidden states that leave are [`EngineModel::hidden`].
    ///
    /// # Errors
    /// As [`EngineModel::step`]; and the states are not `rows` rows of the residual's width.
    pub fn step_hidden(&mut self, rows: &[Row], hidden: &[f32]) -> Result<Logits<'_>, StepError> {
        if self.vocab.is_some() {
            return Err(StepError::Input("the program has an embedding of its own; give the step tokens".into()));
        }
        let width = self.program().width(Slot::X).unwrap_or(0);
        if hidden.len() != rows.len() * width {
            let given = hidden.len();
            return Err(StepError::Input(format!("{given} values are not {} rows of {width}", rows.len())));
        }
        self.run(rows, Some(hidden))?;
        Ok(self.logits())
    }

    /// Run what follows the last layer, the final norm and the head, over hidden states that left a last layer
    /// elsewhere: how a head stage reads out what its ring gives back. `hidden` is `[rows, hidden]`, one row a sequence
    /// named; the logits are all rows', in their order. No sequence changes.
    ///
    /// # Errors
    /// A sequence is not open, the states are not one row a sequence, the program gives no logits, or a command failed;
    /// sequences stay as they are.
    pub fn read_out(&mut self, sequences: &[SeqId], hidden: &[f32]) -> Result<Logits<'_>, StepError> {
        if !self.reads_out || self.sequencer.tail().is_empty() {
            return Err(StepError::Input("the program gives no logits: it has no final norm and no head".into()));
        }
        let width = self.program().width(Slot::X).unwrap_or(0);
        if hidden.len() != sequences.len() * width {
            let given = hidden.len();
            return Err(StepError::Input(format!("{given} values are not {} rows of {width}", sequences.len())));
        }
        self.rows.clear();
        self.wanted.clear();
        for (row, seq) in sequences.iter().enumerate() {
            let length = self.length(*seq).ok_or(StepError::Unknown { row, seq: *seq })?;
            let position = length.saturating_sub(1);
            self.rows.push(StepRow { sequence: seq.index as usize, token: 0, position });
            self.wanted.push(row);
        }
        if !self.rows.is_empty() {
            self.units.begin(&self.rows);
            self.units.slot_mut(Slot::X).copy_from_slice(hidden);
            self.issue_range(self.sequencer.tail())?;
        }
        Ok(self.logits())
    }

    /// The residual stream of the last step's rows as it leaves the last layer; after a step in which rows wanted
    /// logits, of those rows.
    pub fn hidden(&mut self) -> &[f32] {
        self.units.slot(Slot::X)
    }

    /// Extend one sequence by these tokens in as few steps as its caches allow; the logits are the last token's.
    ///
    /// # Errors
    /// As [`EngineModel::step`]; rows of the steps before the failing one have been taken.
    pub fn prefill(&mut self, seq: SeqId, tokens: &[u32]) -> Result<Logits<'_>, StepError> {
        let mut chunks = tokens.chunks(self.capacity.step_rows).peekable();
        let mut rows = Vec::new();
        while let Some(chunk) = chunks.next() {
            rows.clear();
            rows.extend(chunk.iter().map(|token| Row { seq, token: *token, logits: false }));
            if chunks.peek().is_none()
                && let Some(last) = rows.last_mut()
            {
                last.logits = true;
                return self.step(&rows);
            }
            self.step(&rows)?;
        }
        Ok(Logits { values: &[], vocab: 0 })
    }

    fn find(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.sequences.get_mut(seq.index as usize).filter(|s| s.open && s.generation == seq.generation)
    }

    fn run(&mut self, rows: &[Row], hidden: Option<&[f32]>) -> Result<(), StepError> {
        self.rows.clear();
        self.wanted.clear();
        let checked = rows.iter().enumerate().try_for_each(|(i, row)| self.place(i, row));
        let ran = checked.and_then(|()| self.issue_all(hidden));
        let failed = matches!(ran, Err(StepError::Command { .. }));
        for sequence in &mut self.sequences {
            let pending = std::mem::take(&mut sequence.pending);
            if ran.is_ok() {
                sequence.length += pending;
            } else if failed && pending > 0 {
                sequence.poisoned = true;
            }
        }
        ran
    }

    /// Check a row and give it its place in its sequence.
    fn place(&mut self, i: usize, row: &Row) -> Result<(), StepError> {
        let (Capacity { ctx, step_rows }, vocab) = (self.capacity, self.vocab);
        let seq = row.seq;
        let sequence = self.find(seq).ok_or(StepError::Unknown { row: i, seq })?;
        if sequence.poisoned {
            return Err(StepError::Poisoned { row: i, seq });
        }
        let position = sequence.length + sequence.pending;
        if position >= ctx {
            return Err(StepError::Context { row: i, position, ctx });
        }
        if sequence.pending == step_rows {
            return Err(StepError::Rows { row: i, limit: step_rows });
        }
        if let Some(vocab) = vocab.filter(|vocab| row.token as usize >= *vocab) {
            return Err(StepError::Token { row: i, token: row.token, vocab });
        }
        sequence.pending += 1;
        self.rows.push(StepRow { sequence: seq.index as usize, token: row.token, position });
        if row.logits {
            self.wanted.push(i);
        }
        Ok(())
    }

    fn issue_all(&mut self, hidden: Option<&[f32]>) -> Result<(), StepError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.units.begin(&self.rows);
        if let Some(hidden) = hidden {
            self.units.slot_mut(Slot::X).copy_from_slice(hidden);
        }
        self.issue_range(self.sequencer.body())?;
        if !self.wanted.is_empty() && !self.sequencer.tail().is_empty() {
            self.units.keep(&self.wanted);
            self.issue_range(self.sequencer.tail())?;
        }
        self.units.finish().map_err(|failure| self.failed(failure.command, failure.source))
    }

    fn issue_range(&mut self, range: std::ops::Range<usize>) -> Result<(), StepError> {
        for index in range {
            let command = &self.sequencer.program().commands[index];
            let issued = self.times.of(command, || issue(&mut *self.units, command));
            issued.map_err(|source| self.failed(index, source))?;
        }
        Ok(())
    }

    /// The error of a command that failed.
    fn failed(&self, index: usize, source: UnitError) -> StepError {
        let command = &self.sequencer.program().commands[index];
        StepError::Command { index, mnemonic: command.info().mnemonic, layer: command.layer(), source }
    }

    fn logits(&mut self) -> Logits<'_> {
        let vocab = self.program().width(Slot::Logits).unwrap_or(0);
        if self.wanted.is_empty() || !self.reads_out {
            return Logits { values: &[], vocab };
        }
        Logits { values: self.units.slot(Slot::Logits), vocab }
    }
}

/// Rows of each embedding, and of its learned positions.
fn embedded(program: &Program) -> impl Iterator<Item = (usize, Option<usize>)> {
    program.commands.iter().filter_map(|command| match command {
        Command::Embed { table, positions, .. } => {
            let rows = |id| program.tensor(id).map(|t| t.rows);
            Some((rows(*table)?, positions.and_then(rows)))
        }
        _ => None,
    })
}

fn check(sequencer: &Sequencer, capacity: Capacity) -> Result<(), ModelError> {
    let program = sequencer.program();
    let positions = embedded(program).filter_map(|(_, positions)| positions);
    let limit = positions.min().map_or(program.max_pos, |rows| rows.min(program.max_pos));
    for (what, given, limit) in
        [("the context", capacity.ctx, limit), ("the rows of one sequence in a step", capacity.step_rows, limit)]
    {
        if given == 0 || (what == "the context" && given > limit) {
            return Err(ModelError::Capacity { what, given, limit });
        }
    }
    Ok(())
}
