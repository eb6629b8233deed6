//! `Runner`: a step run on a device in one submission: the plan of its shape, what is read back, times and the audit.

use super::audit::{Auditor, Rows};
use super::device::Device;
use super::plan::{Key, Plan, PlanError};
use super::recorded::Recorded;
use super::state::read;
use super::step::{OperandValues, Step, StepFault};
use std::collections::HashMap;
use std::ops::Range;
use wordline_ir::Slot;
use wordline_kernels::gpu::attend::SHORT;
use wordline_kernels::gpu::profile::Profile;
use wordline_kernels::gpu::record::{ReadBack, encode_cleared};
use wordline_kernels::gpu::wgsl::NO_FAULT;
use wordline_kernels::gpu::{GpuError, Region, Staging};

/// Plans that are kept.
const PLANS: usize = 8;

/// A program on a device, and the plans of its steps.
pub(super) struct Runner {
    pub(super) device: Device,
    /// With what was recorded ahead of the next step of the plan's shape.
    plans: Vec<(Plan, Option<wgpu::CommandBuffer>)>,
    staging: Option<Staging>,
    /// The program ends in logits.
    reads_out: bool,
    /// Where the time of steps goes, while it is asked for.
    pub(super) profile: Option<Profile>,
    /// Commands of the run held to the mirror; taken out while it looks.
    auditor: Option<Auditor>,
    /// A failure where no error could be returned.
    broken: Option<GpuError>,
}

impl Runner {
    pub(super) fn new(device: Device, auditor: Auditor, reads_out: bool) -> Self {
        let (plans, staging, profile, broken) = (Vec::new(), None, None, None);
        Self { device, plans, staging, reads_out, profile, auditor: Some(auditor), broken }
    }

    pub(super) fn open(&mut self, sequence: usize) {
        match self.device.open(sequence) {
            Ok(moved) => self.moved(moved),
            Err(error) => {
                self.broken.get_or_insert(error);
            }
        }
    }

    /// Plans name memory that may have moved.
    fn moved(&mut self, moved: bool) {
        if moved {
            self.plans.clear();
        }
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
        let pass = self.device.pass();
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
        let bytes = read(&self.device.gpu, &region.part(0, 4 * (rows * self.device.width(slot)) as u64)?)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// The operand of a command of the last pass.
    fn operand(&self, command: usize) -> Result<Option<OperandValues>, GpuError> {
        let Some(operand) = self.plans.last().and_then(|(plan, _)| plan.operands.get(&command)) else {
            return Ok(None);
        };
        let values = bytemuck::pod_collect_to_vec(&read(&self.device.gpu, &operand.region)?);
        let picks =
            operand.picks.as_ref().map(|region| read(&self.device.gpu, region)).transpose()?.unwrap_or_default();
        Ok(Some(OperandValues { values, rows: operand.rows, picks: bytemuck::pod_collect_to_vec(&picks) }))
    }

    fn run_rows(
        &mut self,
        step: &Step,
        range: Range<usize>,
        several: bool,
        old: &mut HashMap<Slot, Vec<f32>>,
        found: &mut HashMap<Slot, Vec<f32>>,
    ) -> Result<Option<usize>, StepFault> {
        let rows = &step.rows[range.clone()];
        let furthest = rows.iter().map(|row| row.position).max().unwrap_or(0);
        let moved = self.device.room(rows.len())? | self.device.reach(furthest)?;
        self.moved(moved);
        for row in rows {
            self.device.states.reached(row.sequence, row.position + 1);
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
        self.device.write_step(rows, if moves { &picked } else { &[] })?;
        self.device.embed(rows).map_err(|e| StepFault::Device(e.to_string()))?;
        if let Some(values) = &step.hidden {
            let width = self.device.width(Slot::X);
            let values = &values[range.start * width..range.end * width];
            self.device.gpu.write(self.device.side(Slot::X, 0), 0, bytemuck::cast_slice(values))?;
        }

        let (plan, _) = &self.plans[at];
        let wanted = [(Slot::Logits, kept.is_some() && self.reads_out), (Slot::X, several || !self.reads_out)];
        let mut reads = Vec::new();
        let mut offset = 256;
        for (slot, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
            if let Some((region, rows)) = plan.slots.get(&slot) {
                let size = 4 * (rows * self.device.width(slot)) as u64;
                reads.push((slot, region.part(0, size)?, offset));
                offset += size;
            }
        }
        if self.staging.as_ref().is_none_or(|staging| staging.size() < offset) {
            // What was recorded ahead reads back to the memory that is replaced.
            self.plans.iter_mut().for_each(|(_, ahead)| *ahead = None);
            self.staging = Some(Staging::new(&self.device.gpu, offset.next_power_of_two())?);
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
            self.device.gpu.scope("a step", |_| self.device.gpu.queue().submit([commands]))?;
        }
        // While the device runs this step the next one of this shape is recorded: only the step's words will differ.
        if !profiles {
            self.plans[at].1 = Some(self.record(at, &reads, &staging)?);
        }
        let fault = staging.read(&self.device.gpu, offset, |bytes| {
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
            profile.take(&self.device.gpu, &self.plans[at].0.dispatches)?;
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
        let fault = self.device.step.part(0, 4)?;
        let commands =
            profile.encode(&self.device.gpu, &plan.clears, &plan.dispatches, &back(&fault, reads, staging))?;
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
        range: Range<usize>,
        picked: &[usize],
    ) -> Result<bool, StepFault> {
        let Some(mut auditor) = self.auditor.take() else { return Ok(false) };
        let key = &self.plans[at].0.key;
        let chosen = auditor.choose(&self.device, key);
        let ran = match chosen.as_slice() {
            [] => Ok(false),
            chosen => {
                let kept = key.kept.unwrap_or(0);
                let tail = if picked.is_empty() { (0..kept).collect() } else { picked.to_vec() };
                let of = Rows { rows: &step.rows[range], tail, body: key.body };
                let submit = |part: Range<usize>, last: bool| self.submit_part(at, part, reads, staging, last);
                auditor.run(&self.device, &self.plans[at].0, chosen, &of, &submit).map(|()| true)
            }
        };
        self.auditor = Some(auditor);
        ran
    }

    /// Submit some of a plan's dispatches; with the first what is cleared, with the last what is read back.
    fn submit_part(
        &self,
        at: usize,
        part: Range<usize>,
        reads: &[(Slot, Region, u64)],
        staging: &Staging,
        last: bool,
    ) -> Result<(), GpuError> {
        let (plan, _) = &self.plans[at];
        let clears = if part.start == 0 { plan.clears.as_slice() } else { &[] };
        let fault = self.device.step.part(0, 4)?;
        let all = if last { back(&fault, reads, staging) } else { Vec::new() };
        let commands = encode_cleared(&self.device.gpu, clears, &plan.dispatches[part], &all)?;
        self.device.gpu.scope("a part of a step", |_| self.device.gpu.queue().submit([commands]))?;
        Ok(())
    }

    fn record(
        &self,
        at: usize,
        reads: &[(Slot, Region, u64)],
        staging: &Staging,
    ) -> Result<wgpu::CommandBuffer, GpuError> {
        let (plan, _) = &self.plans[at];
        let fault = self.device.step.part(0, 4)?;
        encode_cleared(&self.device.gpu, &plan.clears, &plan.dispatches, &back(&fault, reads, staging))
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
                (Plan::new(&self.device, Key { ops: ops.to_vec(), body, rows, kept, positions, hidden })?, None)
            }
        };
        self.plans.push(plan);
        Ok(self.plans.len() - 1)
    }
}

impl From<PlanError> for StepFault {
    fn from(error: PlanError) -> Self {
        StepFault::Device(error.to_string())
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
