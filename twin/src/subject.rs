//! `Subject`: a program as the twin prices it: its words, decoded one after the other, each as one of a few shapes.
//!
//! Commands of equal shape cost the same, so a model of eighty layers is a dozen prices. What a command does comes from
//! [`Command::work`](wordline_ir::Command::work) and the program's tables; what the whole owes is counted apart, from
//! the tensor table and [`state_layout`](wordline_ir::state_layout()), and the prices are held to it.

use crate::format::Formats;
use crate::{Load, TwinError};
use std::collections::HashMap;
use wordline_ir::command::{Role, Unit};
use wordline_ir::state::LayerState;
use wordline_ir::work::Work;
use wordline_ir::{ActFormat, Command, LayerId, Program, Slot, TensorKind, Word, state_layout};

/// How the devices of a tensor-parallel group share a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Split {
    /// Each does all of it.
    Whole,
    /// Each does its share.
    Shared,
}

/// Micro-operations of a command on the vector unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Micro {
    /// Elements a row.
    pub elements: u64,
    /// Micro-operations an element, in one pass.
    pub ops: u64,
    /// Of them, exp, tanh, sigmoid or root.
    pub exps: u64,
    /// It is a norm: its first pass is repeated `vector.norm_passes - 1` times.
    pub norm: bool,
    /// No element meets another of its row: a row may be spread over the whole unit.
    pub spread: bool,
}

/// Whether a command may be part of the kernel that makes what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rides {
    /// It is a kernel of its own.
    Alone,
    /// It is a sum with a product, or appends what was rotated.
    Along,
    /// It is the activation of a product's halves.
    Gated,
}

/// All that the price of a command depends on, but the machine and the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub op: u8,
    pub unit: Unit,
    /// Runs for rows with logits alone.
    pub tail: bool,
    pub work: Work,
    /// Outputs and inputs of the matrix, or of one expert's.
    pub outputs: u64,
    pub inputs: u64,
    /// Experts of a stack, and how many a row picks.
    pub experts: u64,
    pub picks: u64,
    /// Bytes of the matrix, or of one expert's.
    pub matrix_bytes: u64,
    /// Bits of the operands of its products; those that weights are widened to, 0 for none.
    pub operand_bits: u32,
    pub widened_to: u32,
    /// Scales of the matrix, or of one expert's.
    pub scales: u64,
    /// Bytes of plain tensors, and those that a row looks up.
    pub plain_bytes: u64,
    pub row_bytes: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub value_dim: u64,
    /// Positions seen; 0: all.
    pub window: u64,
    pub micro: Micro,
    pub split: Split,
    /// Elements a row that a group's devices add up before it, and that they hand each other after it.
    pub reduced: u64,
    pub gathered: u64,
    /// It decides which weights come next: nothing of them is prefetched before it.
    pub decides: bool,
    pub rides: Rides,
    /// Bits of queries and of softmax terms.
    pub query_bits: u32,
    pub prob_bits: u32,
}

/// One command of the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub shape: u32,
    pub layer: LayerId,
}

/// What a step owes, counted from the tables and not from the commands' work.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Owed {
    /// Bytes of matrices, once for each command that streams one.
    pub matrices: u64,
    /// Bytes of all stacks, once for each command that routes into one.
    pub stacks: u64,
    /// What each layer keeps.
    pub layers: Vec<LayerState>,
}

/// A program to be priced, in given formats.
#[derive(Clone, Debug)]
pub struct Subject {
    commands: Vec<Command>,
    names: Vec<String>,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) items: Vec<Item>,
    pub(crate) owed: Owed,
    pub(crate) formats: Formats,
    pub(crate) image_bytes: u64,
    /// Bytes of the tensors of each layer, and of those outside.
    pub(crate) layer_bytes: Vec<u64>,
    pub(crate) outside_bytes: u64,
    pub(crate) hidden: u64,
    max_pos: usize,
    first_layer: usize,
    layers: usize,
}

impl Subject {
    /// The subject of a program's words.
    ///
    /// # Errors
    /// A word that is no command, a program without commands, or an exception of `formats` that names no tensor.
    pub fn new(program: &Program, formats: &Formats) -> Result<Subject, TwinError> {
        let words = program.words().map_err(|e| TwinError::Program(e.to_string()))?;
        Subject::of_words(program, &words, formats)
    }

    /// The subject of words over a program's tables; the program's own commands are not looked at.
    ///
    /// # Errors
    /// As [`Subject::new`].
    pub fn of_words(tables: &Program, words: &[Word], formats: &Formats) -> Result<Subject, TwinError> {
        let commands = words
            .iter()
            .enumerate()
            .map(|(index, word)| word.decode().map_err(|e| TwinError::Program(format!("word {index}: {e}"))))
            .collect::<Result<Vec<_>, _>>()?;
        if commands.is_empty() {
            return Err(TwinError::Program("there are no commands to price".into()));
        }
        for part in formats.exceptions() {
            if !tables.tensors.iter().any(|t| t.name.contains(part)) {
                return Err(TwinError::Exception { given: format!("{part}=") });
            }
        }
        let program = Program { commands, ..tables.clone() };
        Ok(read(&program, formats))
    }

    /// The commands, in the order of their words.
    #[must_use]
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Name of the tensor that a command streams or reads first; empty when it has none.
    #[must_use]
    pub fn tensor_of(&self, command: usize) -> &str {
        self.names.get(command).map_or("", String::as_str)
    }

    /// Different shapes among the commands.
    #[must_use]
    pub fn shapes(&self) -> usize {
        self.shapes.len()
    }

    /// Positions that the model can take.
    #[must_use]
    pub fn max_pos(&self) -> usize {
        self.max_pos
    }

    /// Bytes of the weight image in the subject's formats.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// The layers that have commands.
    #[must_use]
    pub fn layers(&self) -> std::ops::Range<usize> {
        self.first_layer..self.first_layer + self.layers
    }

    /// The formats it is stored in.
    #[must_use]
    pub fn formats(&self) -> &Formats {
        &self.formats
    }

    /// Bytes of the caches after a step, and of memories and rings, of the layers `of`.
    pub(crate) fn kept(&self, load: &Load, of: std::ops::Range<usize>) -> (u64, u64) {
        let (mut kv, mut state) = (0_u64, 0_u64);
        let end = of.end.min(self.owed.layers.len());
        for layer in &self.owed.layers[of.start.min(end)..end] {
            if let Some(c) = layer.cache {
                let held = load.held(c.window.unwrap_or(0) as u64);
                kv = kv.saturating_add(self.formats.kv.cache_bytes(
                    c.kv_heads as u64,
                    c.head_dim as u64,
                    c.v_dim as u64,
                    held,
                ));
            }
            let elements = state_elements(layer).saturating_mul(load.sequences());
            state = state.saturating_add(self.formats.state.flat_bytes(elements));
        }
        (kv, state)
    }
}

/// Elements of ring and memory of a layer.
pub(crate) fn state_elements(layer: &LayerState) -> u64 {
    let ring = layer.ring.map_or(0, |r| r.channels as u64 * (r.taps as u64).saturating_sub(1));
    let memory = layer.memory.map_or(0, |m| (m.heads * m.key_dim * m.value_dim) as u64);
    ring + memory
}

fn read(program: &Program, formats: &Formats) -> Subject {
    let commands = &program.commands;
    let inside = |c: &Command| c.layer() != LayerId::OUTSIDE;
    let tail = commands.iter().rposition(inside).map_or(commands.len(), |last| last + 1);
    let mut flow = Flow::new();
    let mut index = HashMap::new();
    let (mut shapes, mut items, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for (at, command) in commands.iter().enumerate() {
        let mut shape = shape(program, formats, command, at >= tail, &mut flow);
        if let Some(before) = at.checked_sub(1).and_then(|before| commands.get(before)) {
            shape.rides = rides(before, command);
        }
        let number = *index.entry(shape).or_insert_with(|| {
            shapes.push(shape);
            shapes.len() as u32 - 1
        });
        items.push(Item { shape: number, layer: command.layer() });
        let tensor = command.tensors().next().and_then(|(_, id)| program.tensor(id));
        names.push(tensor.map_or_else(String::new, |t| t.name.clone()));
    }
    let (owed, image_bytes, layer_bytes, outside_bytes) = owed(program, formats);
    let first = commands.iter().filter(|c| inside(c)).map(|c| usize::from(c.layer().0)).min().unwrap_or(0);
    let layers = owed.layers.len().saturating_sub(first);
    Subject {
        commands: commands.clone(),
        names,
        shapes,
        items,
        owed,
        formats: formats.clone(),
        image_bytes,
        layer_bytes,
        outside_bytes,
        hidden: program.width(Slot::X).unwrap_or(0) as u64,
        max_pos: program.max_pos,
        first_layer: first,
        layers,
    }
}

/// Bytes of a tensor, by the table alone.
fn tensor_bytes(program: &Program, formats: &Formats, index: usize) -> u64 {
    let Some(tensor) = program.tensors.get(index) else { return 0 };
    let (rows, cols) = (tensor.rows as u64, tensor.cols as u64);
    match tensor.kind {
        TensorKind::Matrix => formats.of(&tensor.name).matrix_bytes(rows, cols),
        TensorKind::Stack { experts } => {
            let experts = experts.max(1) as u64;
            formats.of(&tensor.name).matrix_bytes(rows / experts, cols).saturating_mul(experts)
        }
        TensorKind::Plain => rows.saturating_mul(cols).saturating_mul(4),
    }
}

fn owed(program: &Program, formats: &Formats) -> (Owed, u64, Vec<u64>, u64) {
    let mut owed = Owed { layers: state_layout(program), ..Owed::default() };
    let mut used = vec![false; program.tensors.len()];
    let mut layer_bytes = vec![0_u64; owed.layers.len()];
    let (mut image, mut outside) = (0_u64, 0_u64);
    for command in &program.commands {
        for (field, id) in command.tensors() {
            let bytes = tensor_bytes(program, formats, id.index());
            let looks_up = matches!(command, Command::Embed { .. });
            if field.role == Role::Matrix && !looks_up {
                match program.tensor(id).map(|t| t.kind) {
                    Some(TensorKind::Stack { .. }) => owed.stacks = owed.stacks.saturating_add(bytes),
                    _ => owed.matrices = owed.matrices.saturating_add(bytes),
                }
            }
            let Some(seen) = used.get_mut(id.index()).filter(|seen| !**seen) else { continue };
            *seen = true;
            image = image.saturating_add(bytes);
            match layer_bytes.get_mut(usize::from(command.layer().0)) {
                Some(layer) => *layer = layer.saturating_add(bytes),
                None => outside = outside.saturating_add(bytes),
            }
        }
    }
    (owed, image, layer_bytes, outside)
}

/// Where a slot's vector lies in a tensor-parallel group, and what it waits for.
#[derive(Clone, Copy, PartialEq)]
enum Lies {
    /// On every device, whole.
    Everywhere,
    /// Its elements are shared out.
    Shared,
    /// Every device holds a summand of it.
    Summands,
}

/// The tensor-parallel reading of the commands: matrices whose input is everywhere are cut by outputs, those whose
/// input is shared out by inputs, and the summands that these leave are added up where something else than a sum or a
/// gate reads them.
struct Flow([Lies; 32]);

impl Flow {
    fn new() -> Self {
        Self([Lies::Everywhere; 32])
    }

    fn at(&self, slot: Slot) -> Lies {
        self.0[usize::from(slot.code()) & 31]
    }

    fn put(&mut self, slot: Slot, lies: Lies) {
        self.0[usize::from(slot.code()) & 31] = lies;
    }

    /// How a command is shared, and the elements a row that are added up before it and handed round after it.
    fn step(&mut self, program: &Program, command: &Command) -> (Split, u64, u64) {
        let width = |slot: Slot| program.width(slot).unwrap_or(0) as u64;
        let reads: Vec<Slot> = command.slots().filter(|(f, _)| f.role.reads()).map(|(_, slot)| slot).collect();
        let writes: Vec<Slot> = command.slots().filter(|(f, _)| f.role.writes()).map(|(_, slot)| slot).collect();
        let summands: Vec<Slot> = reads.iter().copied().filter(|s| self.at(*s) == Lies::Summands).collect();
        let onward = match command {
            // A sum of summands is a summand; one that ends in the residual is wanted whole.
            Command::Add { out, .. } => *out != Slot::X,
            Command::Gate { .. } | Command::Scale { .. } => true,
            _ => false,
        };
        let mut reduced = 0;
        if !summands.is_empty() && !onward {
            reduced = summands.iter().map(|s| width(*s)).sum();
            summands.iter().for_each(|s| self.put(*s, Lies::Everywhere));
        }
        let shared = reads.iter().any(|s| self.at(*s) == Lies::Shared);
        let pending = reads.iter().any(|s| self.at(*s) == Lies::Summands);
        let array = matches!(command, Command::Matvec { .. } | Command::RoutedMatvec { .. });
        let mut gathered = 0;
        let (split, out) = if array && shared {
            (Split::Shared, Lies::Summands)
        } else if array {
            // A router's and a gate's few outputs are wanted everywhere and cost nothing to make there.
            let small = writes.iter().all(|s| matches!(s, Slot::Router | Slot::SharedGate));
            gathered = if writes.contains(&Slot::Logits) { width(Slot::Logits) } else { 0 };
            if small {
                (Split::Whole, Lies::Everywhere)
            } else {
                (Split::Shared, if gathered > 0 { Lies::Everywhere } else { Lies::Shared })
            }
        } else if shared {
            (Split::Shared, Lies::Shared)
        } else {
            (Split::Whole, if pending { Lies::Summands } else { Lies::Everywhere })
        };
        writes.iter().for_each(|s| self.put(*s, out));
        (split, reduced, gathered)
    }
}

/// By the command before it: what an engine's kernels on a graphics device merge (docs/gpu.md).
fn rides(before: &Command, command: &Command) -> Rides {
    match (before, command) {
        (Command::Matvec { .. }, Command::Add { .. }) | (Command::Rope { .. }, Command::CacheAppend { .. }) => {
            Rides::Along
        }
        (Command::Matvec { .. }, Command::Act { gated: true, .. }) => Rides::Gated,
        _ => Rides::Alone,
    }
}

fn bits(format: ActFormat) -> u32 {
    match format {
        ActFormat::OneLimb => 8,
        ActFormat::TwoLimbs => 16,
    }
}

fn shape(program: &Program, formats: &Formats, command: &Command, tail: bool, flow: &mut Flow) -> Shape {
    let numerics = &program.identity.numerics;
    let work = command.work(program);
    let (split, reduced, gathered) = flow.step(program, command);
    let own = formats.kv.runs;
    let mut shape = Shape {
        op: command.info().code,
        unit: command.info().unit,
        tail,
        work,
        outputs: 0,
        inputs: 0,
        experts: 0,
        picks: 0,
        matrix_bytes: 0,
        operand_bits: 0,
        widened_to: 0,
        scales: 0,
        plain_bytes: work.plain.saturating_mul(4),
        row_bytes: 0,
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        value_dim: 0,
        window: 0,
        micro: micro(&work, command),
        split,
        reduced,
        gathered,
        decides: matches!(command, Command::TopK { .. }),
        rides: Rides::Alone,
        query_bits: if own { bits(numerics.queries) } else { 16 },
        prob_bits: if own { bits(numerics.probs) } else { 16 },
    };
    match *command {
        Command::Embed { out, table, .. } => {
            let width = program.width(out).unwrap_or(0) as u64;
            let name = program.tensor(table).map_or("", |t| t.name.as_str());
            shape.row_bytes = formats.of(name).flat_bytes(width) + 4 * work.looked_up.saturating_sub(width);
        }
        Command::Matvec { weight, .. } | Command::RoutedMatvec { stack: weight, .. } => {
            let Some(tensor) = program.tensor(weight) else { return shape };
            let format = formats.of(&tensor.name);
            if let (TensorKind::Stack { experts }, Command::RoutedMatvec { k, .. }) = (tensor.kind, command) {
                shape.experts = experts as u64;
                shape.picks = u64::from(*k);
            }
            shape.outputs = tensor.rows as u64 / shape.experts.max(1);
            shape.inputs = tensor.cols as u64;
            shape.matrix_bytes = format.matrix_bytes(shape.outputs, shape.inputs);
            shape.operand_bits = format.operands(numerics.acts);
            shape.widened_to =
                if !format.runs && format.element_bits < shape.operand_bits { shape.operand_bits } else { 0 };
            if format.group > 0 {
                shape.scales = shape.outputs.saturating_mul(shape.inputs.div_ceil(u64::from(format.group)));
            }
        }
        Command::CacheAppend { kv_heads, head_dim, v_dim, .. } => {
            (shape.kv_heads, shape.head_dim, shape.value_dim) = (kv_heads.into(), head_dim.into(), v_dim.into());
        }
        Command::Attend { out, heads, kv_heads, head_dim, window, .. } => {
            (shape.heads, shape.kv_heads, shape.head_dim) = (heads.into(), kv_heads.into(), head_dim.into());
            shape.value_dim = (program.width(out).unwrap_or(0) as u64).checked_div(shape.heads).unwrap_or(0);
            shape.window = window.into();
        }
        _ => {}
    }
    shape
}

/// The vector unit's micro-operations: one for each element and operation, by what the command computes.
fn micro(work: &Work, command: &Command) -> Micro {
    let plain = |elements: u64, ops: u64| Micro { elements, ops, ..Micro::default() };
    let norm = |elements: u64, exps: u64| Micro { elements, ops: 2, exps, norm: true, spread: false };
    match *command {
        Command::Embed { .. } | Command::Scale { .. } | Command::Add { .. } => {
            Micro { spread: true, ..plain(work.writes, 1) }
        }
        Command::Norm { .. } | Command::HeadNorm { .. } | Command::L2Norm { .. } => norm(work.writes, 0),
        Command::GatedNorm { .. } => norm(work.writes, 1),
        // Two products and a sum an element.
        Command::Rope { .. } => plain(work.writes, 3),
        Command::Gate { .. } | Command::Act { .. } => Micro { exps: 1, ..plain(work.writes, 2) },
        Command::SoftCap { .. } => Micro { exps: 1, ..plain(work.writes, 2) },
        Command::DeltaGate { .. } => Micro { exps: 3, ..plain(work.writes, 2) },
        // Softmax, then a look at every expert for each pick.
        Command::TopK { experts, k, .. } => Micro { exps: 1, ..plain(experts.into(), 2 + u64::from(k)) },
        // Largest value, scale, round.
        Command::CacheAppend { .. } => plain(work.appended, 3),
        Command::Conv { channels, .. } => Micro { exps: 1, ..plain(channels.into(), 1) },
        Command::Matvec { .. } | Command::RoutedMatvec { .. } | Command::Attend { .. } | Command::Delta { .. } => {
            Micro::default()
        }
    }
}
