//! `Plan`: the commands of a step as dispatches over slots in device memory, made once and run again while the step's
//! shape stays.
//!
//! Slots are buffers of their own. A command that reads a slot and writes it whole writes the slot's other side, so it
//! reads what was there before; from then on the other side is the slot.
//!
//! Neighbours are one kernel where that changes no bit, and every slot still holds what its command makes of it: an output
//! that the next command quantises is quantised where it is made, a product is added to the residual where it is made,
//! keys are appended where they are rotated. Only the very next command is looked at: a command in between that fails would
//! have to fail first.

mod array;
mod states;
mod vector;

use super::device::Device;
use super::recorded::Recorded;
use super::weights::Weight;
use crate::units::UnitError;
use std::collections::HashMap;
use wordline_ir::{Slot, TensorId};
use wordline_kernels::gpu::job::Job;
use wordline_kernels::gpu::matvec::RunError;
use wordline_kernels::gpu::rows::keep;
use wordline_kernels::gpu::vector::{Bound, MicroRun};
use wordline_kernels::gpu::{Dispatch, GpuError, Region};
use wordline_kernels::math::Function;
use wordline_kernels::vector::Micro;

/// What a plan is made for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    /// The step's commands.
    pub(super) ops: Vec<Recorded>,
    /// Commands before the rows are picked for the tail.
    pub(super) body: usize,
    pub(super) rows: usize,
    /// Rows of the tail; `None`: no tail runs.
    pub(super) kept: Option<usize>,
    /// Positions that scores have room for; 0: every view fits workgroup memory.
    pub(super) positions: usize,
    /// The caller fills X.
    pub(super) hidden: bool,
}

/// Where the operand of a command that may fail lies.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) region: Region,
    pub(super) rows: usize,
    /// Picks of a routed command.
    pub(super) picks: Option<Region>,
}

/// Dispatches of a step.
pub(super) struct Plan {
    pub(super) key: Key,
    pub(super) dispatches: Vec<Dispatch>,
    /// Slots that are read before all of them is written: zero at the step's start.
    pub(super) clears: Vec<Region>,
    /// Where each slot lies at the end, and its rows.
    pub(super) slots: HashMap<Slot, (Region, usize)>,
    pub(super) operands: HashMap<usize, Operand>,
    /// Where each command stands among the dispatches.
    pub(super) marks: Vec<Mark>,
}

/// A command among a plan's dispatches; two that are one kernel have one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) dispatches: std::ops::Range<usize>,
    /// By a slot's code, the side that it has before the command and after it.
    before: u64,
    after: u64,
}

impl Mark {
    /// A slot's rows as the command finds them.
    pub(super) fn before<'a>(&self, device: &'a Device, slot: Slot) -> &'a Region {
        device.side(slot, (self.before >> slot.code() & 1) as usize)
    }

    /// A slot's rows as the command leaves them.
    pub(super) fn after<'a>(&self, device: &'a Device, slot: Slot) -> &'a Region {
        device.side(slot, (self.after >> slot.code() & 1) as usize)
    }
}

/// Why a step has no plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("{0}")]
    Unit(#[from] UnitError),
}

/// A plan being made.
pub(super) struct Maker<'a> {
    device: &'a Device,
    rows: usize,
    jobs: Vec<Job>,
    sides: HashMap<Slot, usize>,
    /// Elements written so far, from the first on.
    written: HashMap<Slot, usize>,
    clears: Vec<Region>,
    /// The slot whose quantised rows the array's operand memory holds, with their shape.
    quantised: Option<(Slot, usize, usize)>,
    /// Which memory that is.
    acts: usize,
    operands: HashMap<usize, Operand>,
    positions: usize,
    /// The command after the one at hand, if rows do not move in between; it is part of this one's kernel.
    next: Option<Recorded>,
    merged: bool,
    /// The command after the next, on the same terms.
    after: Option<Recorded>,
}

impl Plan {
    pub(super) fn new(device: &Device, key: Key) -> Result<Self, PlanError> {
        let mut maker = Maker {
            device,
            rows: key.rows,
            jobs: Vec::new(),
            sides: HashMap::new(),
            written: HashMap::new(),
            clears: Vec::new(),
            quantised: None,
            acts: 0,
            operands: HashMap::new(),
            positions: key.positions,
            next: None,
            merged: false,
            after: None,
        };
        if key.hidden {
            maker.written.insert(Slot::X, usize::MAX);
        }
        let mut marks = Vec::with_capacity(key.ops.len());
        for (index, op) in key.ops.iter().enumerate() {
            if index == key.body {
                maker.pick(&key)?;
            }
            if std::mem::take(&mut maker.merged) {
                // Its kernel is that of the command before it.
                let before: Option<&Mark> = marks.last();
                marks.extend(before.cloned());
                continue;
            }
            maker.next = key.ops.get(index + 1).filter(|_| index + 1 != key.body).copied();
            maker.after = key.ops.get(index + 2).filter(|_| maker.next.is_some() && index + 2 != key.body).copied();
            let (first, before) = (maker.jobs.len(), maker.all_sides());
            maker.op(index as u32, op)?;
            marks.push(Mark { dispatches: first..maker.jobs.len(), before, after: maker.all_sides() });
        }
        let Maker { jobs, sides, clears, operands, written, .. } = maker;
        let dispatches = jobs.iter().map(|job| job.dispatch(&device.gpu, &device.step)).collect::<Result<_, _>>()?;
        let rows = key.kept.unwrap_or(key.rows);
        let slot = |slot: &Slot| (*slot, (device.side(*slot, sides.get(slot).copied().unwrap_or(0)).clone(), rows));
        let slots = written.keys().map(slot).collect();
        Ok(Self { key, dispatches, clears, slots, operands, marks })
    }
}

impl Maker<'_> {
    fn width(&self, slot: Slot) -> usize {
        self.device.width(slot)
    }

    fn at(&self, slot: Slot) -> Region {
        self.device.side(slot, self.sides.get(&slot).copied().unwrap_or(0)).clone()
    }

    /// The side of each slot, by its code.
    fn all_sides(&self) -> u64 {
        self.sides.iter().fold(0, |all, (slot, side)| all | (*side as u64) << slot.code())
    }

    /// A slot's rows, to be read.
    fn read(&mut self, slot: Slot) -> Region {
        let region = self.at(slot);
        let written = self.written.entry(slot).or_insert(0);
        if *written < self.device.width(slot) {
            *written = usize::MAX;
            self.clears.push(region.clone());
        }
        region
    }

    /// A slot's rows, all of which are written by a command that reads these.
    fn write(&mut self, slot: Slot, reads: &[Slot]) -> Region {
        if reads.contains(&slot) {
            let side = self.sides.entry(slot).or_insert(0);
            *side = 1 - *side;
        }
        self.written.insert(slot, usize::MAX);
        self.touched(slot);
        self.at(slot)
    }

    /// A slot's rows, changed in place.
    fn update(&mut self, slot: Slot) -> Region {
        let region = self.read(slot);
        self.touched(slot);
        region
    }

    fn touched(&mut self, slot: Slot) {
        if self.quantised.is_some_and(|(of, ..)| of == slot) {
            self.quantised = None;
        }
    }

    /// Rows that the tail runs on move together; slots that it does not read stay as they are.
    fn pick(&mut self, key: &Key) -> Result<(), PlanError> {
        let Some(kept) = key.kept else { return Ok(()) };
        self.quantised = None;
        if kept < key.rows {
            let mut slots: Vec<Slot> = self.written.keys().copied().collect();
            slots.sort_by_key(|slot| slot.code());
            for slot in slots.into_iter().filter(|slot| *slot == Slot::X || tail_reads(&key.ops[key.body..], *slot)) {
                let from = self.read(slot);
                let to = self.write(slot, &[slot]);
                self.jobs.push(keep(kept, self.width(slot), &from, &to));
            }
        }
        self.rows = kept;
        Ok(())
    }

    fn plain(&self, id: TensorId) -> Result<&Region, UnitError> {
        match self.device.weight(id) {
            Some(Weight::Plain(region)) => Ok(region),
            _ => Err(UnitError::tensor(id, &"is not in device memory")),
        }
    }

    fn run<'m>(&self, micro: &'m Micro, heads: usize, width: usize, params: &'m [f32]) -> MicroRun<'m> {
        MicroRun { micro, rows: self.rows, heads, width, params, act: Function::Relu, first_lane: 0 }
    }

    fn micro(&mut self, micro: &Micro, heads: usize, width: usize, params: &[f32], operands: &[Bound<'_>]) {
        if heads * width > 0 {
            self.jobs.push(self.run(micro, heads, width, params).job(operands));
        }
    }

    /// The matrix of the next command and its columns, if that quantises rows of this slot.
    fn wanted(&self, out: Slot) -> Option<usize> {
        let Some(Recorded::Matvec(next)) = self.next.filter(|_| self.rows > 0) else { return None };
        let Some(Weight::Matrix(matrix)) = self.device.weight(next.weight) else { return None };
        (next.x == out).then(|| matrix.layout().cols())
    }

    /// A micro-program into a slot, quantised besides where the next command, number `index + 1`, wants that.
    fn micro_into(
        &mut self,
        (index, out): (u32, Slot),
        run: &MicroRun<'_>,
        operands: &[Bound<'_>],
    ) -> Result<(), PlanError> {
        if run.heads * run.width == 0 {
            return Ok(());
        }
        if let Some(cols) = self.wanted(out) {
            let acts = self.device.acts[self.acts].shaped(self.rows, cols, self.device.formats.acts)?;
            if let Some(job) = run.quantised(&self.device.gpu, operands, index + 1, &acts) {
                self.jobs.push(job);
                self.quantised = Some((out, self.rows, cols));
                return Ok(());
            }
        }
        self.jobs.push(run.job(operands));
        Ok(())
    }

    fn op(&mut self, index: u32, op: &Recorded) -> Result<(), PlanError> {
        match op {
            Recorded::Embed(op) => self.embed(op)?,
            Recorded::Norm(op) => self.norm(index, op)?,
            Recorded::HeadNorm(op) => self.head_norm(op)?,
            Recorded::Rotate(op) => self.rotate(index, op)?,
            Recorded::Scale(op) => self.scale(op),
            Recorded::Matvec(op) => self.matvec(index, op)?,
            Recorded::CacheAppend(op) => self.append(index, op)?,
            Recorded::Attend(op) => self.attend(index, op)?,
            Recorded::Gate(op) => self.gate(index, op)?,
            Recorded::Conv(op) => self.conv(op)?,
            Recorded::L2Norm(op) => self.l2_norm(op),
            Recorded::DeltaGate(op) => self.delta_gate(op)?,
            Recorded::Delta(op) => self.delta(op)?,
            Recorded::GatedNorm(op) => self.gated_norm(index, op)?,
            Recorded::Act(op) => self.act(index, op)?,
            Recorded::Add(op) => self.add(op),
            Recorded::SoftCap(op) => self.soft_cap(op),
            Recorded::TopK(op) => self.top_k(op)?,
            Recorded::RoutedMatvec(op) => self.routed(index, op)?,
        }
        Ok(())
    }
}

/// The tail reads a slot before a command of it has written the slot whole.
fn tail_reads(tail: &[Recorded], slot: Slot) -> bool {
    for op in tail {
        if op.reads().contains(&slot) {
            return true;
        }
        // A product writes a part of its slot: what it leaves may be read later.
        if !matches!(op, Recorded::Matvec(_)) && op.writes().contains(&slot) {
            return false;
        }
    }
    false
}
