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

use super::device::Device;
use super::recorded::Recorded;
use super::weights::Weight;
use crate::units::{self, UnitError};
use std::collections::HashMap;
use wordline_ir::spec::NormKind;
use wordline_ir::{Slot, TensorId};
use wordline_kernels::attend::Attend;
use wordline_kernels::gpu::attend::{AttendActs, AttendRun, LongMemory, SHORT};
use wordline_kernels::gpu::cache::{Append, Bank};
use wordline_kernels::gpu::conv::Conv;
use wordline_kernels::gpu::delta::Delta;
use wordline_kernels::gpu::job::Job;
use wordline_kernels::gpu::matvec::{Array, GatedRun, GatherRun, MatvecRun, Residual, RoutedRun, RunError};
use wordline_kernels::gpu::quantise::{DeviceActs, QuantiseRun};
use wordline_kernels::gpu::rotate_append::RotateAppend;
use wordline_kernels::gpu::rows::{Largest, keep};
use wordline_kernels::gpu::vector::{Bound, MicroRun};
use wordline_kernels::gpu::weights::DeviceMatrix;
use wordline_kernels::gpu::{Dispatch, GpuError, Region};
use wordline_kernels::math::Function;
use wordline_kernels::vector::{Micro, table};

/// Bytes of scores that one attention holds at a time; more rows take several runs.
const SCORES: usize = 64 << 20;

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
            Recorded::Scale(op) => {
                let (width, x) = (self.width(op.x), self.update(op.x));
                self.micro(&table::SCALE, 1, op.width.unwrap_or(width), &[op.scale], &[Bound::rows(&x, width, 0)]);
            }
            Recorded::Matvec(op) => self.matvec(index, op)?,
            Recorded::CacheAppend(op) => self.append(index, op)?,
            Recorded::Attend(op) => self.attend(index, op)?,
            Recorded::Gate(op) => {
                let width = self.width(op.x);
                let (x, gate) = (self.read(op.x), self.read(op.gate));
                let out = self.write(op.out, &[op.x, op.gate]);
                let (micro, head, gate_head) =
                    if op.group == 1 { (&table::GATE, 0, 0) } else { (&table::GATE_GROUP, op.group, 1) };
                let (heads, of) = if op.group == 1 { (1, width) } else { (width / op.group, op.group) };
                let gates = Bound::rows(&gate, self.width(op.gate), gate_head);
                let bound = [Bound::rows(&x, width, head), gates, Bound::rows(&out, width, head)];
                let run = self.run(micro, heads, of, &[]);
                self.micro_into((index, op.out), &run, &bound)?;
            }
            Recorded::Conv(op) => self.conv(op)?,
            Recorded::L2Norm(op) => {
                let (width, x) = (self.width(op.x), self.update(op.x));
                let bound = [Bound::rows(&x, width, op.head_dim)];
                self.micro(&table::L2_NORM, op.heads, op.head_dim, &[op.eps], &bound);
            }
            Recorded::DeltaGate(op) => {
                let (width, gates) = (self.width(op.ba), self.width(op.gb));
                let ba = self.read(op.ba);
                let gb = self.write(op.gb, &[op.ba]);
                let (a_log, dt_bias) = (self.plain(op.a_log)?.clone(), self.plain(op.dt_bias)?.clone());
                let (b, g) = (Bound::rows(&ba, width, 0), Bound::rows(&gb, gates, 0));
                let (l, t) = (Bound::shared(&a_log), Bound::shared(&dt_bias));
                self.micro(&table::DELTA_GATE, 1, op.heads, &[], &[b, b.from(op.heads), l, t, g, g.from(op.heads)]);
            }
            Recorded::Delta(op) => self.delta(op)?,
            Recorded::GatedNorm(op) => {
                let width = self.width(op.x);
                let (x, gate, weight) = (self.read(op.x), self.read(op.gate), self.plain(op.weight)?.clone());
                let out = self.write(op.out, &[op.x, op.gate]);
                let rows = |region| Bound::rows(region, width, op.head_dim);
                let params = [inverse_of(op.head_dim), op.eps];
                let bound = [rows(&x), rows(&gate), Bound::shared(&weight), rows(&out)];
                let act = crate::int8::function(op.act);
                let run = self.run(&table::GATED_NORM, width / op.head_dim, op.head_dim, &params);
                self.micro_into((index, op.out), &MicroRun { act, ..run }, &bound)?;
            }
            Recorded::Act(op) => {
                let (width, out_width) = (self.width(op.x), self.width(op.out));
                let x = self.read(op.x);
                let out = self.write(op.out, &[op.x]);
                let act = crate::int8::function(op.kind);
                if op.gated {
                    let inner = width / (2 * op.groups);
                    let bound = [Bound::rows(&x, width, 2 * inner), Bound::rows(&out, out_width, inner)];
                    let run = self.run(&table::ACT_GATED, op.groups, inner, &[]);
                    self.micro_into((index, op.out), &MicroRun { act, ..run }, &bound)?;
                } else {
                    let bound = [Bound::rows(&x, width, 0), Bound::rows(&out, out_width, 0)];
                    let run = self.run(&table::ACT, 1, width, &[]);
                    self.micro_into((index, op.out), &MicroRun { act, ..run }, &bound)?;
                }
            }
            Recorded::Add(op) => {
                let width = self.width(op.out);
                let (x, y) = (self.read(op.x), self.read(op.y));
                let out = self.write(op.out, &[op.x, op.y]);
                let bound = [&x, &y, &out].map(|region| Bound::rows(region, width, 0));
                self.micro(&table::ADD, 1, width, &[op.scale], &bound);
            }
            Recorded::SoftCap(op) => {
                let (width, x) = (self.width(op.x), self.update(op.x));
                self.micro(&table::SOFT_CAP, 1, width, &[op.cap], &[Bound::rows(&x, width, 0)]);
            }
            Recorded::TopK(op) => self.top_k(op)?,
            Recorded::RoutedMatvec(op) => self.routed(index, op)?,
        }
        Ok(())
    }

    fn embed(&mut self, op: &units::Embed) -> Result<(), PlanError> {
        let width = self.width(op.out);
        let out = self.write(op.out, &[]);
        let row = self.device.embedded(op.table)?;
        let (row, out) = (Bound::rows(&row, width, 0), Bound::rows(&out, width, 0));
        match op.positions {
            None => self.micro(&table::EMBED, 1, width, &[op.scale], &[row, out]),
            Some(id) => {
                let positions = self.plain(id)?.clone();
                let position = Bound::by_position(&positions, width);
                self.micro(&table::EMBED_POSITIONS, 1, width, &[op.scale], &[row, position, out]);
            }
        }
        Ok(())
    }

    fn norm(&mut self, index: u32, op: &units::Norm) -> Result<(), PlanError> {
        let width = self.width(op.x);
        let (x, weight) = (self.read(op.x), self.plain(op.weight)?.clone());
        let bias = op.bias.map(|id| self.plain(id).cloned()).transpose()?;
        let out = self.write(op.out, &[op.x]);
        let (x, weight, out) = (Bound::rows(&x, width, 0), Bound::shared(&weight), Bound::rows(&out, width, 0));
        let params = [inverse_of(width), op.eps];
        let (micro, bound) = match (op.kind, &bias) {
            (NormKind::Rms, _) => (&table::NORM_RMS, vec![x, weight, out]),
            (NormKind::Ln, None) => (&table::NORM_LN, vec![x, weight, out]),
            (NormKind::Ln, Some(bias)) => (&table::NORM_LN_BIAS, vec![x, weight, Bound::shared(bias), out]),
        };
        let run = self.run(micro, 1, width, &params);
        self.micro_into((index, op.out), &run, &bound)
    }

    fn head_norm(&mut self, op: &units::HeadNorm) -> Result<(), PlanError> {
        let (width, qkv) = (self.width(op.qkv), self.update(op.qkv));
        let params = [inverse_of(op.head_dim), op.eps];
        let parts = [(op.q_weight, 0, op.heads), (op.k_weight, op.heads * op.head_dim, op.kv_heads)];
        for (weight, from, heads) in parts {
            if let Some(id) = weight {
                let weight = self.plain(id)?.clone();
                let bound = [Bound::rows(&qkv, width, op.head_dim).from(from), Bound::shared(&weight)];
                self.micro(&table::HEAD_NORM, heads, op.head_dim, &params, &bound);
            }
        }
        Ok(())
    }

    /// The cache's one bank, if it has all key heads and every state.
    fn one_bank(&self, layer: usize) -> Option<Bank<'_>> {
        let cache = self.device.states.layers[layer].cache.as_ref()?;
        let mut banks = cache.banks();
        banks.next().filter(|_| banks.next().is_none())
    }

    fn rotate(&mut self, index: u32, op: &units::Rotate) -> Result<(), PlanError> {
        if let Some(Recorded::CacheAppend(next)) = self.next
            && (next.qkv, next.heads, next.kv_heads, next.head_dim) == (op.qkv, op.heads, op.kv_heads, op.head_dim)
            && self.one_bank(next.layer).is_some()
        {
            let (width, qkv) = (self.width(op.qkv), self.update(op.qkv));
            let Some(bank) = self.one_bank(next.layer) else { return Ok(()) };
            let keys_at = op.heads * op.head_dim;
            let append = Append { rows: self.rows, command: index + 1, qkv: &qkv, width, keys_at, bank };
            let (cos, sin) = self.device.rope(op.table);
            let interleaved = self.device.interleaved(op.table);
            let (heads, rot, scale) = (op.heads, op.rot, op.scale);
            let job = RotateAppend { append, heads, rot, interleaved, scale, cos, sin }.job()?;
            self.jobs.push(job);
            self.operands.insert(index as usize + 1, Operand { region: qkv, rows: self.rows, picks: None });
            self.merged = true;
            return Ok(());
        }
        let (width, qkv) = (self.width(op.qkv), self.update(op.qkv));
        let pairs = op.rot / 2;
        let (cos, sin) = self.device.rope(op.table);
        let (query, key) = if self.device.interleaved(op.table) {
            (&table::ROPE_PAIRS_QUERY, &table::ROPE_PAIRS_KEY)
        } else {
            (&table::ROPE_HALF_QUERY, &table::ROPE_HALF_KEY)
        };
        let x = Bound::rows(&qkv, width, op.head_dim);
        let (cos, sin) = (Bound::by_position(cos, pairs), Bound::by_position(sin, pairs));
        self.micro(query, op.heads, pairs, &[op.scale], &[x, cos, sin]);
        self.micro(key, op.kv_heads, pairs, &[], &[x.from(op.heads * op.head_dim), cos, sin]);
        if op.rot < op.head_dim {
            self.micro(&table::SCALE, op.heads, op.head_dim - op.rot, &[op.scale], &[x.from(op.rot)]);
        }
        Ok(())
    }

    fn array(&self) -> Array<'_> {
        let Device { method, table, formats, .. } = self.device;
        Array { method: *method, table: table.as_ref(), lanes: formats.lanes, plan: None }
    }

    /// A slot's vectors, each `cols` long and `vectors` a row, as the array takes them.
    fn quantise(&mut self, index: u32, slot: Slot, vectors: usize, cols: usize) -> Result<DeviceActs, PlanError> {
        let region = self.read(slot);
        let rows = self.rows * vectors;
        let acts = self.device.acts[self.acts].shaped(rows, cols, self.device.formats.acts)?;
        if self.quantised != Some((slot, rows, cols)) {
            let run = QuantiseRun { command: index, x: &region, offset: 0, stride: cols, acts: &acts };
            self.jobs.push(run.job(&self.device.gpu));
            self.quantised = Some((slot, rows, cols));
        }
        self.operands.insert(index as usize, Operand { region, rows: self.rows, picks: None });
        Ok(acts)
    }

    fn matvec(&mut self, index: u32, op: &units::Matvec) -> Result<(), PlanError> {
        let Some(Weight::Matrix(matrix)) = self.device.weight(op.weight) else {
            return Err(UnitError::tensor(op.weight, &"is no matrix in device memory").into());
        };
        let layout = matrix.layout();
        let acts = self.quantise(index, op.x, 1, layout.cols())?;
        let bias = op.bias.map(|id| self.plain(id).cloned()).transpose()?;
        let width = self.width(op.y);
        let written = self.written.entry(op.y).or_insert(0);
        if op.offset <= *written {
            *written = (*written).max(op.offset + layout.rows());
        }
        self.touched(op.y);
        let y = self.at(op.y);
        let whole = op.offset == 0 && layout.rows() == width;
        if whole && self.gated(index, op, (matrix, &acts, &y, bias.as_ref()))? {
            return Ok(());
        }
        let add = match self.next {
            // The product's slot keeps the product; a sum that goes elsewhere than to its first operand is rare.
            Some(Recorded::Add(add)) if whole && add.y == op.y && add.x == add.out && add.x != op.y => Some(add),
            _ => None,
        };
        let stream = add.map(|add| self.update(add.out));
        self.merged = add.is_some();
        let residual = add.zip(stream.as_ref()).map(|(add, stream)| Residual {
            x: stream,
            out: stream,
            offset: 0,
            stride: width,
            scale: add.scale,
        });
        let run = MatvecRun {
            command: index,
            matrix,
            acts: &acts,
            y: &y,
            offset: op.offset,
            stride: width,
            bias: bias.as_ref(),
            residual,
        };
        let jobs = self.array().matvec(&self.device.gpu, &run)?;
        self.jobs.extend(jobs);
        Ok(())
    }

    /// A product of one row with the activation that follows it, if what that makes is the next product's operand.
    fn gated(
        &mut self,
        index: u32,
        op: &units::Matvec,
        (matrix, acts, y, bias): (&DeviceMatrix, &DeviceActs, &Region, Option<&Region>),
    ) -> Result<bool, PlanError> {
        let (Some(Recorded::Act(act)), Some(Recorded::Matvec(after))) = (self.next, self.after) else {
            return Ok(false);
        };
        let half = matrix.layout().rows() / 2;
        let fits = act.gated && act.groups == 1 && act.x == op.y && after.x == act.out && self.width(act.out) == half;
        let cols = match self.device.weight(after.weight) {
            Some(Weight::Matrix(next)) => next.layout().cols(),
            _ => 0,
        };
        if !fits || self.rows != 1 || act.out == act.x || act.out == op.x || cols != half {
            return Ok(false);
        }
        let made = self.device.acts[1 - self.acts].shaped(1, half, self.device.formats.acts)?;
        let out = self.device.side(act.out, self.sides.get(&act.out).copied().unwrap_or(0)).clone();
        let run = MatvecRun { command: index, matrix, acts, y, offset: 0, stride: 2 * half, bias, residual: None };
        let of = GatedRun { act: crate::int8::function(act.kind), out: &out, acts: &made, command: index + 2 };
        let Some(job) = self.array().gated(&self.device.gpu, &run, &of)? else { return Ok(false) };
        self.jobs.push(job);
        self.write(act.out, &[]);
        self.acts = 1 - self.acts;
        self.quantised = Some((act.out, 1, half));
        self.merged = true;
        Ok(true)
    }

    fn routed(&mut self, index: u32, op: &units::RoutedMatvec) -> Result<(), PlanError> {
        let Some(Weight::Matrix(stack)) = self.device.weight(op.stack) else {
            return Err(UnitError::tensor(op.stack, &"is no stack in device memory").into());
        };
        let layout = stack.layout();
        let vectors = if op.weights.is_some() { op.k } else { 1 };
        let acts = self.quantise(index, op.x, vectors, layout.cols())?;
        let picks = self.read(op.picks);
        if let Some(operand) = self.operands.get_mut(&(index as usize)) {
            operand.picks = Some(picks.clone());
        }
        let weights = op.weights.map(|slot| self.read(slot));
        let reads: Vec<Slot> = [op.x, op.picks].into_iter().chain(op.weights).collect();
        let y = self.write(op.y, &reads);
        let results = match &weights {
            None => y.clone(),
            Some(_) => self.device.scratch("picked results", self.rows * op.k * layout.rows())?,
        };
        let (tokens, k) = (self.rows, op.k);
        let run = RoutedRun { command: index, stack, acts: &acts, picks: &picks, tokens, k, vectors, y: &results };
        let jobs = self.array().routed(&self.device.gpu, &run)?;
        self.jobs.extend(jobs);
        if let Some(weights) = &weights {
            let gather = GatherRun { results: &results, weights, tokens, k, rows: layout.rows(), y: &y };
            self.jobs.push(gather.job());
        }
        Ok(())
    }

    fn append(&mut self, index: u32, op: &units::CacheAppend) -> Result<(), PlanError> {
        let (width, qkv) = (self.width(op.qkv), self.read(op.qkv));
        self.operands.insert(index as usize, Operand { region: qkv.clone(), rows: self.rows, picks: None });
        let Some(cache) = &self.device.states.layers[op.layer].cache else {
            return Err(UnitError::value(op.qkv, 0, &"the layer has no cache").into());
        };
        for bank in cache.banks() {
            let keys_at = op.heads * op.head_dim;
            let append = Append { rows: self.rows, command: index, qkv: &qkv, width, keys_at, bank };
            self.jobs.push(append.job()?);
        }
        Ok(())
    }

    fn attend(&mut self, index: u32, op: &units::Attend) -> Result<(), PlanError> {
        let (width, qkv) = (self.width(op.qkv), self.read(op.qkv));
        self.operands.insert(index as usize, Operand { region: qkv.clone(), rows: self.rows, picks: None });
        let out = self.write(op.out, &[op.qkv]);
        let wanted = self.wanted(op.out);
        let Device { method, table, formats, gpu, .. } = self.device;
        let Some(cache) = &self.device.states.layers[op.layer].cache else {
            return Err(UnitError::value(op.qkv, 0, &"the layer has no cache").into());
        };
        let (queries, probs, lanes) = (formats.queries, formats.probs, formats.lanes);
        let attend = Attend { window: op.window, cap: op.cap, queries, probs, lanes };
        // A view of w positions lies in at most this many pages.
        let seen = op.window.map_or(self.positions, |w| self.positions.min((w + 62) / 32 * 32));
        let v_dim = cache.layout.v_dim();
        let (each, memory) = if seen <= SHORT {
            (self.rows, None)
        } else {
            let of_row = 4 * op.heads * seen.max(lanes.count() * v_dim);
            let each = (SCORES / of_row).clamp(1, self.rows);
            let memory = (
                self.device.scratch("scores", each * op.heads * seen)?,
                self.device.scratch("sums of scores", each * op.heads)?,
                self.device.scratch("lanes of values", each * op.heads * lanes.count() * v_dim)?,
            );
            (each, Some(memory))
        };
        let acts = wanted.map(|cols| self.device.acts[self.acts].shaped(self.rows, cols, formats.acts)).transpose()?;
        let acts = acts.filter(|acts| memory.is_none() && acts.cols() == op.heads * v_dim);
        let quantised = acts.as_ref().and_then(|acts| AttendActs::of(gpu, &cache.layout, index + 1, acts));
        let long = memory.as_ref().map(|(scores, sums, lanes)| LongMemory { scores, sums, lanes, positions: seen });
        for first_row in (0..self.rows).step_by(each.max(1)) {
            for bank in cache.banks() {
                let run = AttendRun {
                    method: *method,
                    table: table.as_ref(),
                    attend,
                    first_row,
                    rows: each.min(self.rows - first_row),
                    command: index,
                    heads: op.heads,
                    qkv: &qkv,
                    width,
                    out: &out,
                    bank,
                    long,
                    quantised,
                };
                self.jobs.extend(run.jobs()?);
            }
        }
        if quantised.is_some() {
            self.quantised = Some((op.out, self.rows, op.heads * v_dim));
        }
        Ok(())
    }

    fn conv(&mut self, op: &units::Conv) -> Result<(), PlanError> {
        let (x, weight) = (self.read(op.x), self.plain(op.weight)?.clone());
        let bias = op.bias.map(|id| self.plain(id).cloned()).transpose()?;
        let out = self.write(op.out, &[op.x]);
        let Some(ring) = &self.device.states.layers[op.layer].ring else {
            return Err(UnitError::value(op.x, 0, &"the layer has no ring").into());
        };
        let conv = Conv {
            rows: self.rows,
            channels: op.channels,
            taps: op.taps,
            act: crate::int8::function(op.act),
            x: &x,
            weight: &weight,
            bias: bias.as_ref(),
            ring,
            out: &out,
        };
        self.jobs.push(conv.job());
        Ok(())
    }

    fn delta(&mut self, op: &units::Delta) -> Result<(), PlanError> {
        let (qkv, gb) = (self.read(op.qkv), self.read(op.gb));
        let out = self.write(op.out, &[op.qkv, op.gb]);
        let Some(memory) = &self.device.states.layers[op.layer].memory else {
            return Err(UnitError::value(op.qkv, 0, &"the layer has no memory").into());
        };
        let delta = Delta {
            rows: self.rows,
            key_heads: op.key_heads,
            value_heads: op.value_heads,
            key_dim: op.key_dim,
            value_dim: op.value_dim,
            share: op.share,
            scale: op.scale,
            qkv: &qkv,
            qkv_width: self.width(op.qkv),
            gb: &gb,
            memory,
            out: &out,
        };
        self.jobs.push(delta.job());
        Ok(())
    }

    fn top_k(&mut self, op: &units::TopK) -> Result<(), PlanError> {
        let (width, logits) = (self.width(op.logits), self.read(op.logits));
        let probabilities = self.device.scratch("probabilities", self.rows * op.experts)?;
        let (picks, weights) = (self.write(op.picks, &[op.logits]), self.write(op.weights, &[op.logits]));
        let out = Bound::rows(&probabilities, op.experts, 0);
        self.micro(&table::TOP_K_SOFTMAX, 1, op.experts, &[], &[Bound::rows(&logits, width, 0), out]);
        let (rows, experts, k) = (self.rows, op.experts, op.k);
        let largest = Largest { rows, experts, k, values: &probabilities, picks: &picks, weights: &weights };
        self.jobs.push(largest.job());
        if op.renormalise {
            self.micro(&table::TOP_K_RENORMALISE, 1, op.k, &[], &[Bound::rows(&weights, op.k, 0)]);
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

/// recip(width), the factor that makes a mean of a sum.
fn inverse_of(width: usize) -> f32 {
    Function::Recip.eval(width as f32)
}
