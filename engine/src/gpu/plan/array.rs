//! Commands of the array unit: products, what they are fused with, and the quantised rows that they take.

use super::{Maker, Operand, PlanError};
use crate::gpu::device::Device;
use crate::gpu::recorded::Recorded;
use crate::gpu::weights::Weight;
use crate::units::{self, UnitError};
use wordline_ir::Slot;
use wordline_kernels::gpu::Region;
use wordline_kernels::gpu::matvec::{Array, GatedRun, GatherRun, MatvecRun, Residual, RoutedRun};
use wordline_kernels::gpu::quantise::{DeviceActs, QuantiseRun};
use wordline_kernels::gpu::weights::DeviceMatrix;

impl Maker<'_> {
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

    pub(super) fn matvec(&mut self, index: u32, op: &units::Matvec) -> Result<(), PlanError> {
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

    pub(super) fn routed(&mut self, index: u32, op: &units::RoutedMatvec) -> Result<(), PlanError> {
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
}
