//! Commands that read or change what a sequence keeps: cache, ring, memory; and the rotation that goes before an append.

use super::{Maker, Operand, PlanError};
use crate::gpu::device::Device;
use crate::gpu::recorded::Recorded;
use crate::units::{self, UnitError};
use wordline_kernels::attend::Attend;
use wordline_kernels::gpu::attend::{AttendActs, AttendRun, LongMemory, SHORT};
use wordline_kernels::gpu::cache::{Append, Bank};
use wordline_kernels::gpu::conv::Conv;
use wordline_kernels::gpu::delta::Delta;
use wordline_kernels::gpu::rotate_append::RotateAppend;
use wordline_kernels::gpu::vector::Bound;
use wordline_kernels::vector::table;

/// Bytes of scores that one attention holds at a time; more rows take several runs.
const SCORES: usize = 64 << 20;

impl Maker<'_> {
    /// The cache's one bank, if it has all key heads and every state.
    fn one_bank(&self, layer: usize) -> Option<Bank<'_>> {
        let cache = self.device.states.layers[layer].cache.as_ref()?;
        let mut banks = cache.banks();
        banks.next().filter(|_| banks.next().is_none())
    }

    pub(super) fn rotate(&mut self, index: u32, op: &units::Rotate) -> Result<(), PlanError> {
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

    pub(super) fn append(&mut self, index: u32, op: &units::CacheAppend) -> Result<(), PlanError> {
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

    pub(super) fn attend(&mut self, index: u32, op: &units::Attend) -> Result<(), PlanError> {
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

    pub(super) fn conv(&mut self, op: &units::Conv) -> Result<(), PlanError> {
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

    pub(super) fn delta(&mut self, op: &units::Delta) -> Result<(), PlanError> {
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
}
