//! `Device`: a program's weights, slots and states in device memory, and a step run there in one submission.

use super::audit::{Auditor, Rows};
use super::plan::{Key, Plan, PlanError};
use super::recorded::Recorded;
use super::state::{StateError, States, read};
use super::weights::{Weight, check, upload};
use crate::image::{Image, ImageError};
use crate::int8::Formats;
use crate::model::ModelError;
use crate::ropes::RopeTables;
use crate::sequencer::Sequencer;
use crate::state::Capacity;
use crate::units::{Failure, StepRow, UnitError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use wordline_ir::command::Role;
use wordline_ir::state::state_layout;
use wordline_ir::{Command, RopeId, Slot, TensorId};
use wordline_kernels::gate::UnitsError;
use wordline_kernels::gpu::attend::SHORT;
use wordline_kernels::gpu::profile::Profile;
use wordline_kernels::gpu::quantise::DeviceActs;
use wordline_kernels::gpu::record::{ReadBack, encode_cleared};
use wordline_kernels::gpu::weights::UploadError;
use wordline_kernels::gpu::wgsl::{NO_FAULT, STEP_HEADER, STEP_ROW, StepRowWords, step_words};
use wordline_kernels::gpu::{Gpu, GpuError, Method, Region, Staging};
use wordline_kernels::tables::MulTable;

/// Most rows that run together; a step of more rows takes several passes, which changes no bit.
const PASS: usize = 64;
/// Plans that are kept.
const PLANS: usize = 8;
/// Positions that rotary tables begin with.
const ROTARY: usize = 512;

/// A program on a device.
pub(super) struct Device {
    pub(super) gpu: Gpu,
    pub(super) method: Method,
    pub(super) table: Option<Region>,
    pub(super) formats: Formats,
    weights: HashMap<TensorId, Weight>,
    image: Arc<Image>,
    widths: Vec<usize>,
    ropes: RopeTables,
    /// (cos, sin) of each table, and the positions they reach.
    rotary: Vec<(Region, Region)>,
    reached: usize,
    pub(super) states: States,
    pub(super) step: Region,
    /// Both sides of each slot.
    slots: Vec<[Region; 2]>,
    /// What enters the array; a kernel that makes the next of it while it reads this takes the other.
    pub(super) acts: [DeviceActs; 2],
    /// Rows of embeddings, by table.
    embedded: Vec<(TensorId, Region)>,
    /// Vectors a row and columns of what enters the array.
    arrays: Vec<(usize, usize)>,
    scratch: RefCell<HashMap<&'static str, Region>>,
    rows: usize,
    plans: Vec<(Plan, Option<wgpu::CommandBuffer>)>,
    staging: Option<Staging>,
    reads_out: bool,
    /// Where the time of steps goes, while it is asked for.
    pub(super) profile: Option<Profile>,
    /// Commands of the run held to the mirror; taken out while it looks.
    auditor: Option<Auditor>,
    /// A failure where no error could be returned.
    broken: Option<GpuError>,
}

/// Why a program is not on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device fails, or has no room.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A weight cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A weight cannot be brought there.
    #[error(transparent)]
    Upload(#[from] UploadError),
    /// The program cannot be run by any units.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The mirror, which the device is held to, does not compute.
    #[error(transparent)]
    Units(#[from] UnitsError),
}

impl From<StateError> for DeviceError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Cache(e) => DeviceError::Model(e.into()),
            StateError::Gpu(e) => DeviceError::Gpu(e),
        }
    }
}

/// Why a step did not end as it should.
#[derive(Debug)]
pub(super) enum StepFault {
    /// A command found an operand that it cannot take.
    Command {
        command: usize,
        /// The step's row that the operand's first is.
        first_row: usize,
        operand: Option<OperandValues>,
    },
    /// A command failed on the processor.
    Unit(Failure),
    /// The device failed: another backend has to run the step.
    Device(String),
}

impl From<GpuError> for StepFault {
    fn from(error: GpuError) -> Self {
        StepFault::Device(error.to_string())
    }
}

impl From<PlanError> for StepFault {
    fn from(error: PlanError) -> Self {
        StepFault::Device(error.to_string())
    }
}

/// What a command that failed has read.
#[derive(Clone, Debug)]
pub(super) struct OperandValues {
    /// `[rows, width]`.
    pub(super) values: Vec<f32>,
    pub(super) rows: usize,
    /// Picks of a routed command.
    pub(super) picks: Vec<f32>,
}

/// A step to run.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) rows: Vec<StepRow>,
    pub(super) ops: Vec<Recorded>,
    /// Commands before the rows were picked.
    pub(super) body: usize,
    /// The rows picked; `None`: the tail does not run.
    pub(super) kept: Option<Vec<usize>>,
    /// What the caller has filled X with.
    pub(super) hidden: Option<Vec<f32>>,
}

impl Device {
    /// A program's weights on a device, no state yet.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(super) fn new(
        gpu: Gpu,
        method: Method,
        sequencer: &Sequencer,
        image: Arc<Image>,
        capacity: Capacity,
        products: MulTable<'static>,
    ) -> Result<Self, DeviceError> {
        let program = sequencer.program();
        image.serves(program).map_err(ModelError::from)?;
        let mut weights = HashMap::new();
        let (mut arrays, mut tables) = (Vec::new(), Vec::new());
        for command in &program.commands {
            match *command {
                Command::Embed { table, .. } if !tables.contains(&table) => tables.push(table),
                Command::Matvec { weight, .. } => {
                    arrays.push((1, program.tensor(weight).map_or(0, |t| t.cols)));
                }
                Command::RoutedMatvec { stack, k, weights, .. } => {
                    let vectors = if weights.is_some() { usize::from(k) } else { 1 };
                    arrays.push((vectors, program.tensor(stack).map_or(0, |t| t.cols)));
                }
                _ => {}
            }
            let embeds = matches!(command, Command::Embed { .. });
            for (field, id) in command.tensors() {
                if weights.contains_key(&id) {
                    continue;
                }
                if embeds && field.role == Role::Matrix {
                    check(&image, id)?;
                    continue;
                }
                weights.insert(id, upload(&gpu, &image, id, field.role)?);
            }
        }
        arrays.sort_unstable();
        arrays.dedup();
        let table = match method {
            Method::Dp4a => None,
            Method::Lut => Some(gpu.upload("the table of products", products.bytes())?),
        };
        let mut widths = vec![0; Slot::ALL.len()];
        program.slots.iter().for_each(|info| widths[usize::from(info.slot.code())] = info.width);
        let states = States::new(&gpu, state_layout(program), capacity)?;
        let nothing = gpu.region("no rows yet", 4)?;
        let acts = DeviceActs::new(&gpu, 1, 1, Formats::of(program)?.acts)?;
        let mut device = Self {
            formats: Formats::of(program)?,
            widths,
            ropes: RopeTables::new(&program.ropes).map_err(ModelError::from)?,
            rotary: Vec::new(),
            reached: 0,
            states,
            step: nothing.clone(),
            slots: Vec::new(),
            acts: [acts.clone(), acts],
            embedded: tables.into_iter().map(|table| (table, nothing.clone())).collect(),
            arrays,
            scratch: RefCell::default(),
            rows: 0,
            plans: Vec::new(),
            staging: None,
            reads_out: wordline_ir::Ends::of(program).reads_out,
            profile: None,
            auditor: Some(Auditor::new(sequencer, capacity, &image)?),
            broken: None,
            gpu,
            method,
            table,
            weights,
            image,
        };
        device.reach(ROTARY.min(capacity.ctx) - 1)?;
        device.room(1)?;
        Ok(device)
    }

    pub(super) fn width(&self, slot: Slot) -> usize {
        self.widths[usize::from(slot.code())]
    }

    pub(super) fn side(&self, slot: Slot, side: usize) -> &Region {
        &self.slots[usize::from(slot.code())][side]
    }

    pub(super) fn weight(&self, id: TensorId) -> Option<&Weight> {
        self.weights.get(&id)
    }

    pub(super) fn rope(&self, id: RopeId) -> (&Region, &Region) {
        let (cos, sin) = &self.rotary[usize::from(id.0)];
        (cos, sin)
    }

    pub(super) fn interleaved(&self, id: RopeId) -> bool {
        self.ropes.interleaved(id)
    }

    pub(super) fn embedded(&self, table: TensorId) -> Result<Region, UnitError> {
        let found = self.embedded.iter().find(|(id, _)| *id == table);
        found.map(|(_, region)| region.clone()).ok_or_else(|| UnitError::tensor(table, &"is no embedding"))
    }

    /// Memory that no command leaves anything in for another.
    pub(super) fn scratch(&self, what: &'static str, floats: usize) -> Result<Region, GpuError> {
        let size = 4 * floats.max(1) as u64;
        let mut scratch = self.scratch.borrow_mut();
        if let Some(region) = scratch.get(what).filter(|region| region.size() >= size) {
            return Ok(region.clone());
        }
        let region = self.gpu.region(what, size)?;
        scratch.insert(what, region.clone());
        Ok(region)
    }

    /// Rows that run together.
    fn pass(&self) -> usize {
        let widest = self.widths.iter().copied().max().unwrap_or(1).max(1) as u64;
        let facts = self.gpu.facts();
        let limit = facts.binding_limit.min(facts.buffer_limit) / (4 * widest);
        PASS.min(limit as usize).max(1)
    }

    /// Make room for this many rows.
    fn room(&mut self, rows: usize) -> Result<(), GpuError> {
        if rows <= self.rows {
            return Ok(());
        }
        let rows = rows.next_power_of_two();
        self.plans.clear();
        self.step = self.gpu.region("the step's words", (STEP_HEADER + rows * STEP_ROW) as u64)?;
        let mut slots = Vec::with_capacity(self.widths.len());
        for width in &self.widths {
            let side = || self.gpu.region("a slot", 4 * (rows * width).max(1) as u64);
            // The other side is needed only where a command reads and writes one slot, or rows are picked.
            slots.push([side()?, side()?]);
        }
        self.slots = slots;
        for (table, region) in &mut self.embedded {
            let width = self.image.matrix(*table).map_or(1, |m| m.layout().cols());
            *region = self.gpu.region("embedded rows", 4 * (rows * width) as u64)?;
        }
        let blocks = |(vectors, cols): &(usize, usize)| (rows * vectors).next_multiple_of(16) * cols.div_ceil(32);
        let blocks = self.arrays.iter().map(blocks).max().unwrap_or(1);
        let acts = || DeviceActs::new(&self.gpu, 16, blocks.div_ceil(16) * 32, self.formats.acts);
        self.acts = [acts()?, acts()?];
        self.rows = rows;
        Ok(())
    }

    /// Make rotary rows up to this position.
    fn reach(&mut self, position: usize) -> Result<(), GpuError> {
        if position < self.reached {
            return Ok(());
        }
        let positions = (position + 1).next_power_of_two();
        self.ropes.reach(positions - 1);
        self.rotary.clear();
        for id in 0..self.ropes.count() {
            let (cos, sin, _) = self.ropes.all(RopeId(id as u8));
            let upload = |values: &[f32]| self.gpu.upload("a rotary table", bytemuck::cast_slice(values));
            self.rotary.push((upload(cos)?, upload(sin)?));
        }
        self.plans.clear();
        self.reached = positions;
        Ok(())
    }

    pub(super) fn open(&mut self, sequence: usize) {
        match self.states.open(&self.gpu, sequence) {
            Ok(moved) => {
                if moved {
                    self.plans.clear();
                }
            }
            Err(error) => {
                self.broken.get_or_insert(error);
            }
        }
    }

    /// Everything that a sequence's state holds.
    pub(super) fn state_bits(&self, sequence: usize) -> Result<Vec<u64>, GpuError> {
        self.states.bits(&self.gpu, sequence)
    }

    /// Run a step; the slots that are read back, with the rows that they hold in the end. `old` is what an earlier step
    /// gave: its memory is used again.
    pub(super) fn run(
        &mut self,
        step: &Step,
        mut old: HashMap<Slot, Vec<f32>>,
    ) -> Result<HashMap<Slot, Vec<f32>>, StepFault> {
        if let Some(error) = self.broken.take() {
            return Err(error.into());
        }
        let mut found = HashMap::new();
        let mut fault: Option<(usize, usize, Option<OperandValues>)> = None;
        let pass = self.pass();
        let several = step.rows.len() > pass;
        for start in (0..step.rows.len()).step_by(pass) {
            let rows = start..(start + pass).min(step.rows.len());
            let failed = self.run_rows(step, rows, several, &mut old, &mut found)?;
            // All rows run a command before the next one begins, so the first that fails is that of all passes.
            if let Some(command) = failed.filter(|c| fault.as_ref().is_none_or(|(first, ..)| c < first)) {
                let tail = command >= step.body;
                let before = step.kept.iter().flatten().filter(|row| **row < start).count();
                fault = Some((command, if tail { before } else { start }, self.operand(command)?));
            }
        }
        match fault {
            Some((command, first_row, operand)) => Err(StepFault::Command { command, first_row, operand }),
            None => Ok(found),
        }
    }

    /// The slot's rows as they are on the device after a step of one pass.
    pub(super) fn slot(&self, slot: Slot) -> Result<Vec<f32>, GpuError> {
        let Some((region, rows)) = self.plans.last().and_then(|(plan, _)| plan.slots.get(&slot)) else {
            return Ok(Vec::new());
        };
        let bytes = read(&self.gpu, &region.part(0, 4 * (rows * self.width(slot)) as u64)?)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// The operand of a command of the last pass.
    fn operand(&self, command: usize) -> Result<Option<OperandValues>, GpuError> {
        let Some(operand) = self.plans.last().and_then(|(plan, _)| plan.operands.get(&command)) else {
            return Ok(None);
        };
        let values = bytemuck::pod_collect_to_vec(&read(&self.gpu, &operand.region)?);
        let picks = operand.picks.as_ref().map(|region| read(&self.gpu, region)).transpose()?.unwrap_or_default();
        Ok(Some(OperandValues { values, rows: operand.rows, picks: bytemuck::pod_collect_to_vec(&picks) }))
    }

    fn run_rows(
        &mut self,
        step: &Step,
        range: std::ops::Range<usize>,
        several: bool,
        old: &mut HashMap<Slot, Vec<f32>>,
        found: &mut HashMap<Slot, Vec<f32>>,
    ) -> Result<Option<usize>, StepFault> {
        let rows = &step.rows[range.clone()];
        let furthest = rows.iter().map(|row| row.position).max().unwrap_or(0);
        self.room(rows.len())?;
        self.reach(furthest)?;
        for row in rows {
            self.states.reached(row.sequence, row.position + 1);
        }
        // What depends on positions cannot run on rows that have moved: then the tail takes all rows.
        let moves = !step.ops[step.body..].iter().any(|op| {
            use Recorded::{Attend, CacheAppend, Conv, Delta, Embed, Rotate};
            matches!(op, Embed(_) | Rotate(_) | CacheAppend(_) | Attend(_) | Conv(_) | Delta(_))
        });
        let picked: Vec<usize> =
            step.kept.iter().flatten().filter(|row| range.contains(row)).map(|r| r - range.start).collect();
        let kept = match picked.len() {
            0 => None,
            _ if !moves => Some(rows.len()),
            n => Some(n),
        };
        let ops = if kept.is_some() { &step.ops[..] } else { &step.ops[..step.body] };
        let positions = if furthest < SHORT { 0 } else { (furthest + 1).next_power_of_two() };
        let hidden = step.hidden.is_some();
        let at = self.plan(ops, step.body, rows.len(), kept, positions, hidden)?;
        let words = words(rows, if moves { &picked } else { &[] });
        self.gpu.write(&self.step, 0, bytemuck::cast_slice(&step_words(&words)))?;
        self.embed(rows).map_err(|e| StepFault::Device(e.to_string()))?;
        if let Some(values) = &step.hidden {
            let width = self.width(Slot::X);
            let values = &values[range.start * width..range.end * width];
            self.gpu.write(self.side(Slot::X, 0), 0, bytemuck::cast_slice(values))?;
        }

        let (plan, _) = &self.plans[at];
        let wanted = [(Slot::Logits, kept.is_some() && self.reads_out), (Slot::X, several || !self.reads_out)];
        let mut reads = Vec::new();
        let mut offset = 256;
        for (slot, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
            if let Some((region, rows)) = plan.slots.get(&slot) {
                let size = 4 * (rows * self.width(slot)) as u64;
                reads.push((slot, region.part(0, size)?, offset));
                offset += size;
            }
        }
        if self.staging.as_ref().is_none_or(|staging| staging.size() < offset) {
            // What was recorded ahead reads back to the memory that is replaced.
            self.plans.iter_mut().for_each(|(_, ahead)| *ahead = None);
            self.staging = Some(Staging::new(&self.gpu, offset.next_power_of_two())?);
        }
        let Some(staging) = self.staging.clone() else { return Ok(None) };
        let audited = self.audited(at, &reads, &staging, step, range.clone(), if moves { &picked } else { &[] })?;
        let profiled = if audited { None } else { self.profiled(at, &reads, &staging)? };
        let profiles = profiled.is_some();
        let ahead = if profiles || audited { None } else { self.plans[at].1.take() };
        let commands = match profiled.or(ahead) {
            None if !audited => Some(self.record(at, &reads, &staging)?),
            commands => commands,
        };
        if let Some(commands) = commands {
            self.gpu.scope("a step", |_| self.gpu.queue().submit([commands]))?;
        }
        // While the device runs this step the next one of this shape is recorded: only the step's words will differ.
        if !profiles {
            self.plans[at].1 = Some(self.record(at, &reads, &staging)?);
        }
        let fault = staging.read(&self.gpu, offset, |bytes| {
            for (slot, region, offset) in &reads {
                let bytes = &bytes[*offset as usize..][..region.size() as usize];
                // Mapped memory begins at a multiple of any element's size; were it not so, a copy would.
                let copied: Vec<f32>;
                let values: &[f32] = match bytemuck::try_cast_slice(bytes) {
                    Ok(values) => values,
                    Err(_) => {
                        copied = bytemuck::pod_collect_to_vec(bytes);
                        &copied
                    }
                };
                let width = values.len() / plan_rows(kept, rows.len()).max(1);
                let to = found.entry(*slot).or_insert_with(|| {
                    let mut memory = old.remove(slot).unwrap_or_default();
                    memory.clear();
                    memory
                });
                if moves || kept.is_none() {
                    to.extend_from_slice(values);
                } else {
                    picked.iter().for_each(|row| to.extend_from_slice(&values[row * width..][..width]));
                }
            }
            bytes.first_chunk().map_or(NO_FAULT, |word| u32::from_le_bytes(*word))
        })?;
        if let (true, Some(profile)) = (profiles, &mut self.profile) {
            profile.take(&self.gpu, &self.plans[at].0.dispatches)?;
        }
        Ok((fault != NO_FAULT).then_some(fault as usize))
    }

    /// The step with a timestamp after each dispatch, where times are asked for and the device has any.
    fn profiled(
        &mut self,
        at: usize,
        reads: &[(Slot, Region, u64)],
        staging: &Staging,
    ) -> Result<Option<wgpu::CommandBuffer>, GpuError> {
        let Some(mut profile) = self.profile.take() else { return Ok(None) };
        let (plan, _) = &self.plans[at];
        let fault = self.step.part(0, 4)?;
        let commands = profile.encode(&self.gpu, &plan.clears, &plan.dispatches, &back(&fault, reads, staging))?;
        self.profile = Some(profile);
        Ok(commands)
    }

    /// Dispatches of the last pass.
    pub(super) fn dispatches(&self) -> usize {
        self.plans.last().map_or(0, |(plan, _)| plan.dispatches.len())
    }

    /// Run a pass with some of its commands held to the mirror, where it is time for that; whether it was.
    fn audited(
        &mut self,
        at: usize,
        reads: &[(Slot, Region, u64)],
        staging: &Staging,
        step: &Step,
        range: std::ops::Range<usize>,
        picked: &[usize],
    ) -> Result<bool, StepFault> {
        let Some(mut auditor) = self.auditor.take() else { return Ok(false) };
        let key = &self.plans[at].0.key;
        let chosen = auditor.choose(self, key);
        let ran = match chosen.as_slice() {
            [] => Ok(false),
            chosen => {
                let kept = key.kept.unwrap_or(0);
                let tail = if picked.is_empty() { (0..kept).collect() } else { picked.to_vec() };
                let of = Rows { rows: &step.rows[range], tail, body: key.body };
                let submit =
                    |part: std::ops::Range<usize>, last: bool| self.submit_part(at, part, reads, staging, last);
                self.run_audited(&mut auditor, at, chosen, &of, &submit).map(|()| true)
            }
        };
        self.auditor = Some(auditor);
        ran
    }

    /// Submit some of a plan's dispatches; with the first what is cleared, with the last what is read back.
    fn submit_part(
        &self,
        at: usize,
        part: std::ops::Range<usize>,
        reads: &[(Slot, Region, u64)],
        staging: &Staging,
        last: bool,
    ) -> Result<(), GpuError> {
        let (plan, _) = &self.plans[at];
        let clears = if part.start == 0 { plan.clears.as_slice() } else { &[] };
        let fault = self.step.part(0, 4)?;
        let all = if last { back(&fault, reads, staging) } else { Vec::new() };
        let commands = encode_cleared(&self.gpu, clears, &plan.dispatches[part], &all)?;
        self.gpu.scope("a part of a step", |_| self.gpu.queue().submit([commands]))?;
        Ok(())
    }

    pub(super) fn plan_at(&self, at: usize) -> &Plan {
        &self.plans[at].0
    }

    /// A command of the pass that runs has failed.
    pub(super) fn faulted(&self) -> Result<bool, GpuError> {
        let word = read(&self.gpu, &self.step.part(0, 4)?)?;
        Ok(word.first_chunk().is_some_and(|word| u32::from_le_bytes(*word) != NO_FAULT))
    }

    fn record(
        &self,
        at: usize,
        reads: &[(Slot, Region, u64)],
        staging: &Staging,
    ) -> Result<wgpu::CommandBuffer, GpuError> {
        let (plan, _) = &self.plans[at];
        let fault = self.step.part(0, 4)?;
        encode_cleared(&self.gpu, &plan.clears, &plan.dispatches, &back(&fault, reads, staging))
    }

    /// The plan of a step's shape: the last of the list.
    fn plan(
        &mut self,
        ops: &[Recorded],
        body: usize,
        rows: usize,
        kept: Option<usize>,
        positions: usize,
        hidden: bool,
    ) -> Result<usize, PlanError> {
        let fits = |key: &Key| {
            (key.body, key.rows, key.kept, key.positions, key.hidden) == (body, rows, kept, positions, hidden)
                && key.ops == ops
        };
        let plan = match self.plans.iter().position(|(plan, _)| fits(&plan.key)) {
            Some(at) => self.plans.remove(at),
            None => {
                if self.plans.len() == PLANS {
                    self.plans.remove(0);
                }
                (Plan::new(self, Key { ops: ops.to_vec(), body, rows, kept, positions, hidden })?, None)
            }
        };
        self.plans.push(plan);
        Ok(self.plans.len() - 1)
    }

    /// The rows' embeddings, as the image has them.
    fn embed(&self, rows: &[StepRow]) -> Result<(), DeviceError> {
        for (table, region) in &self.embedded {
            let Some(matrix) = self.image.matrix(*table) else { continue };
            let width = matrix.layout().cols();
            let mut values = vec![0.0; rows.len() * width];
            for (row, out) in rows.iter().zip(values.chunks_exact_mut(width)) {
                matrix.unpack_row(row.token as usize, out).map_err(UploadError::from)?;
            }
            self.gpu.write(region, 0, bytemuck::cast_slice(&values))?;
        }
        Ok(())
    }
}

/// What is read back: the word that says whether a command failed, and slots.
fn back<'a>(fault: &'a Region, reads: &'a [(Slot, Region, u64)], to: &'a Staging) -> Vec<ReadBack<'a>> {
    let slots = reads.iter().map(|(_, from, offset)| ReadBack { from, to, offset: *offset });
    std::iter::once(ReadBack { from: fault, to, offset: 0 }).chain(slots).collect()
}

fn plan_rows(kept: Option<usize>, rows: usize) -> usize {
    kept.unwrap_or(rows)
}

fn words(rows: &[StepRow], picked: &[usize]) -> Vec<StepRowWords> {
    let mut words: Vec<StepRowWords> = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate() {
        let before = rows[..i].iter().rposition(|r| r.sequence == row.sequence);
        if let Some(before) = before {
            words[before].next = i as u32;
        }
        words.push(StepRowWords {
            position: row.position as u32,
            state: row.sequence as u32,
            next: u32::MAX,
            first: before.is_none(),
            source: picked.get(i).copied().unwrap_or(0) as u32,
        });
    }
    words
}
