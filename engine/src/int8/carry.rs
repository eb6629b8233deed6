//! Commands that carry a sequence's state: rows in order, each over its own sequence.

use super::{ELEMENT, FirstError, Int8Units};
use crate::team::{Columns, Parts};
use crate::units::{self, StepRow, UnitError};
use std::sync::{Mutex, PoisonError};
use wordline_kernels::attend::Queries;
use wordline_kernels::delta::DeltaRow;

impl Int8Units {
    /// Append each row's keys and values to its sequence's cache.
    pub(super) fn append(&mut self, op: &units::CacheAppend) -> Result<(), UnitError> {
        let width = self.at.store.width(op.qkv);
        let keys = op.heads * op.head_dim;
        let values = keys + op.kv_heads * op.head_dim;
        for (index, (row, qkv)) in self.at.rows.iter().zip(self.at.store.get(op.qkv).chunks(width)).enumerate() {
            let Some(cache) = &mut self.states.get_mut(row.sequence).layers[op.layer].cache else {
                return Err(UnitError::value(op.qkv, index, &"the layer has no cache"));
            };
            let value = &qkv[values..values + op.kv_heads * op.v_dim];
            cache.append(&qkv[keys..values], value).map_err(|e| UnitError::value(op.qkv, index, &e))?;
            self.counters.cache_bytes += cache.layout().position_bytes() as u64;
        }
        Ok(())
    }

    /// Softmax attention of each row's query heads over its sequence's cache.
    pub(super) fn attention(&mut self, op: &units::Attend) -> Result<(), UnitError> {
        let (width, out_width) = (self.at.store.width(op.qkv), self.at.store.width(op.out));
        let attend = self.formats.attend(op.window, op.cap);
        let Self { at, kernels, states, team, scratch, audit, counters, .. } = self;
        let ([qkv], out) = at.store.split([op.qkv], op.out);
        // A part is query heads of one row that share a key head: all of them, or fewer where threads would idle.
        let group = op.heads / op.kv_heads;
        let groups = at.rows.len() * op.kv_heads;
        let pieces = (2 * team.members()).div_ceil(groups.max(1)).min(group);
        let each = group.div_ceil(pieces);
        let pieces = group.div_ceil(each);
        let columns = Columns::new(out, out_width);
        let v_dim = out_width / op.heads;
        let seen: usize = at.rows.iter().map(|row| attend.view(row.position).len()).sum();
        let (rows, states) = (&at.rows, &*states);
        let read = |row: &StepRow| {
            let cache = states.get(row.sequence).layers[op.layer].cache.as_ref();
            cache.map_or(0, |cache| attend.bytes_read(cache.layout(), row.position))
        };
        counters.cache_bytes += rows.iter().map(read).sum::<usize>() as u64;
        audit.run(&kernels.array, &kernels.vector, |audit| {
            let (error, wrong) = (FirstError::default(), Mutex::new(None));
            team.run_with(2 * seen * out_width, groups * pieces, scratch, &|scratch, part| {
                let (row, kv_head) = (part / pieces / op.kv_heads, part / pieces % op.kv_heads);
                let first = kv_head * group + part % pieces * each;
                let heads = each.min((kv_head + 1) * group - first);
                let StepRow { sequence, position, .. } = rows[row];
                let Some(cache) = &states.get(sequence).layers[op.layer].cache else {
                    return error.set(UnitError::value(op.qkv, row, &"the layer has no cache"));
                };
                // SAFETY: part `part` alone writes the outputs of its heads.
                let out = unsafe { columns.segment(row, first * v_dim, heads * v_dim) };
                let q = &qkv[row * width + first * op.head_dim..][..heads * op.head_dim];
                let (array, vector) = (&*kernels.array, &kernels.vector);
                if let Err(e) = attend.group(array, vector, cache, kv_head, position, q, out, scratch) {
                    return error.set(UnitError::value(op.qkv, row, &format_args!("key head {kv_head}: {e}")));
                }
                let queries = Queries { kv_head, position, q };
                if let Err(mismatch) = audit.attend(array, vector, &attend, cache, queries, out, scratch) {
                    wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(mismatch);
                }
            });
            error.take()?;
            Ok(((), wrong.into_inner().unwrap_or_else(PoisonError::into_inner)))
        })
    }

    /// Each row through its sequence's ring.
    pub(super) fn convolution(&mut self, op: &units::Conv) -> Result<(), UnitError> {
        let (width, out_width) = (self.at.store.width(op.x), self.at.store.width(op.out));
        let Some(weights) = &self.convs[op.layer] else {
            return Err(UnitError::tensor(op.weight, &"no taps were laid out"));
        };
        let ([x], out) = self.at.store.split([op.x], op.out);
        let rows = self.at.rows.iter().zip(x.chunks(width)).zip(out.chunks_mut(out_width));
        for (index, ((row, x), out)) in rows.enumerate() {
            let Some(ring) = &mut self.states.get_mut(row.sequence).layers[op.layer].ring else {
                return Err(UnitError::value(op.x, index, &"the layer has no ring"));
            };
            self.kernels.vector.conv(weights, ring, x, out);
            self.counters.state_bytes += ring.row_bytes() as u64;
        }
        Ok(())
    }

    /// Each row through its sequence's memories, head by head.
    pub(super) fn recurrence(&mut self, op: &units::Delta) -> Result<(), UnitError> {
        let store = &mut self.at.store;
        let (width, gates, out_width) = (store.width(op.qkv), store.width(op.gb), store.width(op.out));
        let ([qkv, gb], out) = store.split([op.qkv, op.gb], op.out);
        let rows = &self.at.rows;
        let vector = &self.kernels.vector;
        let columns = Columns::new(out, out_width);
        let keys = op.key_heads * op.key_dim;
        // The memories of all sequences: a head's rows run in order, heads are independent.
        self.memories.clear();
        for (sequence, state) in self.states.iter_mut() {
            if let Some(memory) = &mut state.layers[op.layer].memory
                && rows.iter().any(|row| row.sequence == sequence)
            {
                self.memories.push((sequence, Parts::new(memory.state_mut(), op.key_dim * op.value_dim)));
            }
        }
        let memories = &self.memories;
        let memory = rows.len() * op.value_heads * op.key_dim * op.value_dim * size_of::<f32>();
        self.counters.state_bytes += 2 * memory as u64;
        let work = ELEMENT * rows.len() * op.value_heads * op.key_dim * op.value_dim;
        self.team.run(work, op.value_heads, &|head| {
            for (sequence, memory) in memories {
                // SAFETY: part `head` alone takes this head's memory, once; the states are borrowed until all have run.
                let memory = unsafe { memory.get(head) };
                for (index, _) in rows.iter().enumerate().filter(|(_, row)| row.sequence == *sequence) {
                    let qkv = &qkv[index * width..][..width];
                    let gb = &gb[index * gates..][..gates];
                    let key_head = head / op.share;
                    let row = DeltaRow {
                        q: &qkv[key_head * op.key_dim..][..op.key_dim],
                        k: &qkv[keys + key_head * op.key_dim..][..op.key_dim],
                        v: &qkv[2 * keys + head * op.value_dim..][..op.value_dim],
                        decay: gb[head],
                        beta: gb[op.value_heads + head],
                        scale: op.scale,
                    };
                    // SAFETY: the part of head `head` alone writes the head's columns.
                    let out = unsafe { columns.segment(index, head * op.value_dim, op.value_dim) };
                    vector.delta(&row, memory, out);
                }
            }
        });
        Ok(())
    }
}
