//! `Int8Units`: the commands on the gated kernels, over a weight image.
//!
//! Every product of a matrix, of a query with keys and of softmax terms with values goes through the array unit; there
//! is no other multiplication of weights. Everything else is the vector unit's.

mod array;
mod audit;
mod state;

use crate::image::Image;
use crate::model::ModelError;
use crate::ropes::RopeTables;
use crate::sequencer::Sequencer;
use crate::state::{Capacity, States};
use crate::store::RowStore;
use crate::team::{Columns, Team};
use crate::units::{self, Counters, Rows, StepRow, UnitError, Units};
use audit::Auditor;
use state::{Layout, Sequence};
use std::sync::{Arc, Mutex, PoisonError};
use wordline_ir::spec::{Activation, NormKind};
use wordline_ir::state::state_layout;
use wordline_ir::{ActFormat, Command, Program, Slot, TensorId};
use wordline_kernels::attend::{Queries, Scratch};
use wordline_kernels::conv::ConvWeights;
use wordline_kernels::delta::DeltaRow;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gate::UnitsError;
use wordline_kernels::math::Function;
use wordline_kernels::matvec::Acts;
use wordline_kernels::vector::{HeadNorm, Norm, Rope, VectorUnit};
use wordline_kernels::{attend, gate};

/// Elementary operations that an elementwise element counts for: a function is about this many.
const ELEMENT: usize = 8;

/// The kernels of this device that have passed their init gates.
#[derive(Clone, Debug)]
pub struct Kernels {
    /// Array and attention.
    pub array: Arc<gate::Units>,
    /// Vector, conv and delta.
    pub vector: VectorUnit,
}

impl Kernels {
    /// The fastest forms of this device that pass.
    ///
    /// # Errors
    /// The table of products is not whole, or no form of the array unit passes: the device does not compute.
    pub fn new() -> Result<Self, UnitsError> {
        Ok(Self { array: Arc::new(gate::Units::new()?), vector: VectorUnit::new() })
    }

    /// The scalar mirrors, which define the bits.
    ///
    /// # Errors
    /// As [`Kernels::new`].
    pub fn mirror() -> Result<Self, UnitsError> {
        let array = Arc::new(gate::Units::up_to(gate::Form::Mirror)?);
        Ok(Self { array, vector: VectorUnit::mirror() })
    }
}

/// The int8 units.
pub struct Int8Units {
    image: Arc<Image>,
    kernels: Kernels,
    formats: Formats,
    layout: Layout,
    /// Taps of each layer's convolution.
    convs: Vec<Option<ConvWeights>>,
    ropes: RopeTables,
    at: Rows,
    states: States<Sequence>,
    team: Team,
    counters: Counters,
    audit: Auditor,
    /// Rows as they enter the array.
    acts: Acts,
    /// What each member of the team works in.
    scratch: Vec<Scratch>,
    /// A row of a matrix, or results that are still to be summed.
    values: Vec<f32>,
}

/// How a program's numerics read to the kernels.
#[derive(Clone, Copy, Debug)]
struct Formats {
    acts: Limbs,
    queries: Limbs,
    probs: Limbs,
    lanes: Lanes,
}

impl Formats {
    fn of(program: &Program) -> Result<Self, ModelError> {
        let numerics = program.identity.numerics;
        let limbs = |format| match format {
            ActFormat::OneLimb => Limbs::One,
            ActFormat::TwoLimbs => Limbs::Two,
        };
        Ok(Self {
            acts: limbs(numerics.acts),
            queries: limbs(numerics.queries),
            probs: limbs(numerics.probs),
            lanes: Lanes::new(numerics.lanes).ok_or(ModelError::Lanes { given: numerics.lanes })?,
        })
    }
}

impl Int8Units {
    /// Units for a sequencer's program.
    ///
    /// # Errors
    /// The image does not hold what the commands use, a cache has no layout, a rotary recipe gives no table, or the
    /// kernels have no form of the program's numerics.
    pub fn new(
        sequencer: &Sequencer,
        capacity: Capacity,
        image: Arc<Image>,
        kernels: Kernels,
        team: Team,
    ) -> Result<Self, ModelError> {
        let program = sequencer.program();
        image.serves(program)?;
        let layers = state_layout(program);
        let mut convs = vec![None; layers.len()];
        for command in &program.commands {
            if let Command::Conv { layer, weight, bias, taps, act, .. } = *command
                && let Some(conv) = convs.get_mut(usize::from(layer.0))
            {
                let bias = bias.map(|b| image.plain(b));
                *conv = Some(ConvWeights::new(image.plain(weight), bias, taps.into(), function(act)));
            }
        }
        Ok(Self {
            formats: Formats::of(program)?,
            layout: Layout::new(&layers, capacity)?,
            convs,
            ropes: RopeTables::new(&program.ropes)?,
            at: Rows { store: RowStore::new(&program.slots), rows: Vec::new() },
            states: States::new(),
            counters: Counters::default(),
            audit: Auditor::new(),
            acts: Acts::new(),
            scratch: (0..team.members()).map(|_| Scratch::default()).collect(),
            values: Vec::new(),
            team,
            image,
            kernels,
        })
    }

    /// Run `job` over the rows of the slots read, each with its row of the slot written whole.
    fn rows<const N: usize>(
        &mut self,
        reads: [Slot; N],
        out: Slot,
        job: impl Fn(&VectorUnit, &Image, [&[f32]; N], &mut [f32]) + Sync,
    ) {
        let widths = reads.map(|slot| self.at.store.width(slot));
        let width = self.at.store.width(out);
        let (reads, out) = self.at.store.split(reads, out);
        let (vector, image) = (&self.kernels.vector, &*self.image);
        self.team.chunks(ELEMENT * out.len(), out, width, &|row, out| {
            let inputs = std::array::from_fn(|i| &reads[i][row * widths[i]..][..widths[i]]);
            job(vector, image, inputs, out);
        });
    }

    /// Run `job` over the rows of a slot changed in place.
    fn update(&mut self, x: Slot, job: impl Fn(&VectorUnit, &Image, &mut [f32]) + Sync) {
        let width = self.at.store.width(x);
        let x = self.at.store.get_mut(x);
        let (vector, image) = (&self.kernels.vector, &*self.image);
        self.team.chunks(ELEMENT * x.len(), x, width, &|_, x| job(vector, image, x));
    }
}

/// The function of an activation.
fn function(act: Activation) -> Function {
    match act {
        Activation::Silu => Function::Silu,
        Activation::GeluErf => Function::GeluErf,
        Activation::GeluTanh => Function::GeluTanh,
        Activation::Relu => Function::Relu,
    }
}

/// The first error of several threads.
#[derive(Default)]
struct FirstError(Mutex<Option<UnitError>>);

impl FirstError {
    fn set(&self, error: UnitError) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn take(self) -> Result<(), UnitError> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl Units for Int8Units {
    fn begin(&mut self, rows: &[StepRow]) {
        self.at.begin(rows);
        self.ropes.reach(rows.iter().map(|r| r.position).max().unwrap_or(0));
    }

    fn keep(&mut self, rows: &[usize]) {
        self.at.keep(rows);
    }

    fn slot(&mut self, slot: Slot) -> &[f32] {
        self.at.store.get(slot)
    }

    fn slot_mut(&mut self, slot: Slot) -> &mut [f32] {
        self.at.store.get_mut(slot)
    }

    fn open(&mut self, sequence: usize) {
        self.states.open(sequence, self.layout.sequence());
    }

    fn release(&mut self, sequence: usize) {
        self.states.release(sequence);
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn notices(&mut self) -> Vec<String> {
        self.audit.take()
    }

    fn state_bits(&self, sequence: usize) -> Vec<u64> {
        self.states.get(sequence).bits()
    }

    fn embed(&mut self, op: &units::Embed) -> Result<(), UnitError> {
        let Self { image, at, kernels, values, .. } = self;
        let Some(matrix) = image.matrix(op.table) else { return Err(UnitError::tensor(op.table, &"is no matrix")) };
        let width = matrix.layout().cols();
        values.resize(width, 0.0);
        let out = at.store.get_mut(op.out);
        for (row, out) in at.rows.iter().zip(out.chunks_mut(width)) {
            let token = row.token as usize;
            let tile = token / wordline_kernels::matvec::TILE_ROWS;
            image.touch(op.table, tile..tile + 1)?;
            matrix.unpack_row(token, values).map_err(|e| UnitError::tensor(op.table, &e))?;
            let position = op.positions.map(|p| &image.plain(p)[row.position * width..][..width]);
            kernels.vector.embed(values, position, op.scale, out);
        }
        Ok(())
    }

    fn norm(&mut self, op: &units::Norm) -> Result<(), UnitError> {
        let kind = match op.kind {
            NormKind::Rms => Norm::Rms,
            NormKind::Ln => Norm::Ln,
        };
        self.rows([op.x], op.out, |vector, image, [x], out| {
            vector.norm(kind, x, image.plain(op.weight), op.bias.map(|b| image.plain(b)), op.eps, out);
        });
        Ok(())
    }

    fn head_norm(&mut self, op: &units::HeadNorm) -> Result<(), UnitError> {
        let units::HeadNorm { heads, kv_heads, head_dim, eps, .. } = *op;
        self.update(op.qkv, |vector, image, qkv| {
            let weight = |id: Option<TensorId>| id.map(|id| image.plain(id));
            let shape = HeadNorm { heads, kv_heads, head_dim, eps };
            vector.head_norm(qkv, weight(op.q_weight), weight(op.k_weight), &shape);
        });
        Ok(())
    }

    fn rotate(&mut self, op: &units::Rotate) -> Result<(), UnitError> {
        let units::Rotate { heads, kv_heads, head_dim, rot, scale, .. } = *op;
        let shape = Rope { heads, kv_heads, head_dim, rot, interleaved: self.ropes.interleaved(op.table), scale };
        let width = self.at.store.width(op.qkv);
        let Self { at, ropes, kernels, team, .. } = self;
        let qkv = at.store.get_mut(op.qkv);
        team.chunks(ELEMENT * qkv.len(), qkv, width, &|row, qkv| {
            let (cos, sin) = ropes.row(op.table, at.rows[row].position);
            kernels.vector.rope(qkv, cos, sin, &shape);
        });
        Ok(())
    }

    fn scale(&mut self, op: &units::Scale) -> Result<(), UnitError> {
        self.update(op.x, |vector, _, x| {
            let width = op.width.unwrap_or(x.len());
            vector.scale(&mut x[..width], op.scale);
        });
        Ok(())
    }

    fn matvec(&mut self, op: &units::Matvec) -> Result<(), UnitError> {
        self.product(op)
    }

    fn cache_append(&mut self, op: &units::CacheAppend) -> Result<(), UnitError> {
        let width = self.at.store.width(op.qkv);
        let keys = op.heads * op.head_dim;
        let values = keys + op.kv_heads * op.head_dim;
        for (index, (row, qkv)) in self.at.rows.iter().zip(self.at.store.get(op.qkv).chunks(width)).enumerate() {
            let Some(cache) = &mut self.states.get_mut(row.sequence).layers[op.layer].cache else {
                return Err(UnitError::value(op.qkv, index, &"the layer has no cache"));
            };
            let value = &qkv[values..values + op.kv_heads * op.v_dim];
            cache.append(&qkv[keys..values], value).map_err(|e| UnitError::value(op.qkv, index, &e))?;
        }
        Ok(())
    }

    fn attend(&mut self, op: &units::Attend) -> Result<(), UnitError> {
        let (width, out_width) = (self.at.store.width(op.qkv), self.at.store.width(op.out));
        let Formats { queries, probs, lanes, .. } = self.formats;
        let attend = attend::Attend { window: op.window, cap: op.cap, queries, probs, lanes };
        let Self { at, kernels, states, team, scratch, audit, .. } = self;
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
        audit.run(&kernels.array, |audit| {
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
                if let Err(mismatch) = audit.attend(array, &attend, cache, queries, out, scratch) {
                    wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(mismatch);
                }
            });
            error.take()?;
            Ok(((), wrong.into_inner().unwrap_or_else(PoisonError::into_inner)))
        })
    }

    fn gate(&mut self, op: &units::Gate) -> Result<(), UnitError> {
        self.rows([op.x, op.gate], op.out, |vector, _, [x, gate], out| vector.gate(x, gate, op.group, out));
        Ok(())
    }

    fn conv(&mut self, op: &units::Conv) -> Result<(), UnitError> {
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
        }
        Ok(())
    }

    fn l2_norm(&mut self, op: &units::L2Norm) -> Result<(), UnitError> {
        self.update(op.x, |vector, _, x| vector.l2_norm(x, op.heads, op.head_dim, op.eps));
        Ok(())
    }

    fn delta_gate(&mut self, op: &units::DeltaGate) -> Result<(), UnitError> {
        self.rows([op.ba], op.gb, |vector, image, [ba], gb| {
            vector.delta_gate(ba, image.plain(op.a_log), image.plain(op.dt_bias), gb);
        });
        Ok(())
    }

    fn delta(&mut self, op: &units::Delta) -> Result<(), UnitError> {
        let store = &mut self.at.store;
        let (width, gates, out_width) = (store.width(op.qkv), store.width(op.gb), store.width(op.out));
        let ([qkv, gb], out) = store.split([op.qkv, op.gb], op.out);
        let rows = &self.at.rows;
        let vector = &self.kernels.vector;
        let columns = Columns::new(out, out_width);
        let keys = op.key_heads * op.key_dim;
        // The memories of one head in all sequences: a head's rows run in order, heads are independent.
        let mut heads: Vec<Vec<(usize, &mut [f32])>> = (0..op.value_heads).map(|_| Vec::new()).collect();
        for (sequence, state) in self.states.iter_mut() {
            if let Some(memory) = &mut state.layers[op.layer].memory
                && rows.iter().any(|row| row.sequence == sequence)
            {
                for (list, memory) in heads.iter_mut().zip(memory.heads_mut()) {
                    list.push((sequence, memory));
                }
            }
        }
        let work = ELEMENT * rows.len() * op.value_heads * op.key_dim * op.value_dim;
        self.team.chunks(work, &mut heads, 1, &|head, memories| {
            for (sequence, memory) in memories.iter_mut().flatten() {
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

    fn gated_norm(&mut self, op: &units::GatedNorm) -> Result<(), UnitError> {
        self.rows([op.x, op.gate], op.out, |vector, image, [x, gate], out| {
            vector.gated_norm(x, gate, image.plain(op.weight), function(op.act), op.eps, out);
        });
        Ok(())
    }

    fn act(&mut self, op: &units::Act) -> Result<(), UnitError> {
        let act = function(op.kind);
        self.rows([op.x], op.out, |vector, _, [x], out| {
            if op.gated { vector.act_gated(x, act, op.groups, out) } else { vector.act(x, act, out) }
        });
        Ok(())
    }

    fn add(&mut self, op: &units::Add) -> Result<(), UnitError> {
        self.rows([op.x, op.y], op.out, |vector, _, [x, y], out| vector.add(x, y, op.scale, out));
        Ok(())
    }

    fn soft_cap(&mut self, op: &units::SoftCap) -> Result<(), UnitError> {
        self.update(op.x, |vector, _, x| vector.soft_cap(x, op.cap));
        Ok(())
    }

    fn top_k(&mut self, op: &units::TopK) -> Result<(), UnitError> {
        let width = self.at.store.width(op.logits);
        let (mut picks, mut weights) = (vec![0.0; op.k], vec![0.0; op.k]);
        for row in 0..self.at.rows.len() {
            let logits = &self.at.store.get(op.logits)[row * width..][..op.experts];
            self.kernels.vector.top_k(logits, op.renormalise, &mut picks, &mut weights);
            self.at.store.get_mut(op.picks)[row * op.k..][..op.k].copy_from_slice(&picks);
            self.at.store.get_mut(op.weights)[row * op.k..][..op.k].copy_from_slice(&weights);
        }
        Ok(())
    }

    fn routed_matvec(&mut self, op: &units::RoutedMatvec) -> Result<(), UnitError> {
        self.routed(op)
    }
}
