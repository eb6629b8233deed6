//! `Int8Units`: the commands on the gated kernels, over a weight image.
//!
//! Every product of a matrix, of a query with keys and of softmax terms with values goes through the array unit; there
//! is no other multiplication of weights. Everything else is the vector unit's.

mod array;
mod audit;
mod carry;
mod kernels;
mod state;

pub use kernels::Kernels;
#[cfg(feature = "gpu")]
pub(crate) use state::{LayerContent, cache_layout};

use crate::error::ModelError;
use crate::image::Image;
use crate::ropes::RopeTables;
use crate::sequencer::Sequencer;
use crate::state::{Capacity, States};
use crate::store::RowStore;
use crate::team::{Parts, Team};
use crate::units::{self, Counters, Rows, StepRow, UnitError, Units};
use array::Routing;
use audit::Auditor;
pub(crate) use kernels::{Formats, function};
use state::{Layout, Sequence};
use std::sync::{Arc, Mutex, PoisonError};
use wordline_ir::spec::NormKind;
use wordline_ir::state::state_layout;
use wordline_ir::{Command, Program, Slot, TensorId};
use wordline_kernels::attend::Scratch;
use wordline_kernels::conv::ConvWeights;
use wordline_kernels::matvec::{Acts, Space};
use wordline_kernels::vector::{HeadNorm, Norm, Rope, VectorUnit};

/// Positions that room is made for when a sequence begins; where there are more, memory grows as they come.
const AT_ONCE: usize = 4096;
/// Elementary operations that an elementwise element counts for: a function is about this many.
const ELEMENT: usize = 8;

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
    spaces: Vec<Space>,
    /// For a matrix, the one that is streamed after it.
    next: Vec<Option<TensorId>>,
    /// What commands of a mixture of experts work in.
    routing: Routing,
    /// The memories of the step's sequences, for one command.
    memories: Vec<(usize, Parts<f32>)>,
    /// A row of a matrix, or results that are still to be summed.
    values: Vec<f32>,
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
        let formats = Formats::of(program)?;
        let layout = Layout::new(&layers, capacity)?;
        let positions = capacity.ctx.min(AT_ONCE);
        let mut ropes = RopeTables::new(&program.ropes)?;
        ropes.reserve(positions);
        let mut scratch: Vec<_> = (0..team.members()).map(|_| Scratch::default()).collect();
        for command in &program.commands {
            if let Command::Attend { layer, heads, kv_heads, .. } = *command
                && let Some(cache) = layout.cache(layer.0.into())
            {
                let attend = formats.attend(None, None);
                let heads = usize::from(heads).div_ceil(usize::from(kv_heads).max(1));
                scratch.iter_mut().for_each(|scratch| scratch.reserve(heads, positions, cache, &attend));
            }
        }
        Ok(Self {
            formats,
            layout,
            convs,
            ropes,
            at: Rows { store: RowStore::new(&program.slots), rows: Vec::new() },
            states: States::new(),
            counters: Counters::default(),
            audit: Auditor::new(),
            acts: Acts::new(),
            scratch,
            routing: Routing::default(),
            memories: Vec::new(),
            spaces: vec![Space::default(); team.members()],
            next: following(program),
            values: Vec::new(),
            team,
            image,
            kernels,
        })
    }

    /// What a layer keeps of an open sequence.
    #[cfg(feature = "gpu")]
    pub(crate) fn layer(&self, sequence: usize, layer: usize) -> LayerContent {
        self.states.get(sequence).layers.get(layer).map(state::Layer::content).unwrap_or_default()
    }

    /// Make a layer of an open sequence what some content says.
    #[cfg(feature = "gpu")]
    pub(crate) fn set_layer(&mut self, sequence: usize, layer: usize, content: &LayerContent) {
        if let Some(layer) = self.states.get_mut(sequence).layers.get_mut(layer) {
            layer.set(content);
        }
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

/// For each tensor that a matvec streams, the matrix of the matvec after it; after the last the first, of the next step.
fn following(program: &Program) -> Vec<Option<TensorId>> {
    let matrix = |command: &Command| match command {
        Command::Matvec { weight, .. } => Some(*weight),
        _ => None,
    };
    let matrices = program.commands.iter().filter_map(matrix);
    let mut next = vec![None; program.tensors.len()];
    for (now, then) in matrices.clone().zip(matrices.clone().skip(1).chain(matrices.take(1))) {
        if let Some(next) = next.get_mut(now.index()) {
            *next = Some(then);
        }
    }
    next
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
        self.states.open(sequence, self.layout.sequence(AT_ONCE));
    }

    fn release(&mut self, sequence: usize) {
        self.states.release(sequence);
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn form(&self) -> &'static str {
        self.kernels.array.active().name()
    }

    fn notices(&mut self) -> Vec<String> {
        let mut found = self.audit.take();
        found.extend(self.kernels.vector.findings());
        found
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
        self.append(op)
    }

    fn attend(&mut self, op: &units::Attend) -> Result<(), UnitError> {
        self.attention(op)
    }

    fn gate(&mut self, op: &units::Gate) -> Result<(), UnitError> {
        self.rows([op.x, op.gate], op.out, |vector, _, [x, gate], out| vector.gate(x, gate, op.group, out));
        Ok(())
    }

    fn conv(&mut self, op: &units::Conv) -> Result<(), UnitError> {
        self.convolution(op)
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
        self.recurrence(op)
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
        self.choose(op);
        Ok(())
    }

    fn routed_matvec(&mut self, op: &units::RoutedMatvec) -> Result<(), UnitError> {
        self.routed(op)
    }
}
