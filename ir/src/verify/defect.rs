//! `Defect`: what is wrong with a program, where, and what to do about it.

use crate::{LayerId, Program, Slot};
use std::fmt;

/// Every defect of a program, in the order of the invariants and then of the program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the program has {} defect{}:{}", .0.len(), if .0.len() == 1 { "" } else { "s" }, Lines(.0))]
pub struct Defects(pub Vec<Defect>);

struct Lines<'a>(&'a [Defect]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|defect| write!(f, "\n  {defect}"))
    }
}

/// One defect.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{at}: {kind}")]
pub struct Defect {
    /// Where.
    pub at: At,
    /// What, and what to do.
    pub kind: DefectKind,
}

/// Where a defect lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The program as a whole.
    Program,
    /// An entry of `Program::slots`.
    Slot(Slot),
    /// An entry of `Program::tensors`.
    Tensor {
        /// Its index.
        index: usize,
        /// Its name.
        name: String,
    },
    /// An entry of `Program::ropes`.
    Rope(usize),
    /// A command.
    Command {
        /// Its index in `Program::commands`.
        index: usize,
        /// Its mnemonic.
        op: &'static str,
        /// Its layer.
        layer: LayerId,
    },
}

impl At {
    /// A command's place.
    pub(super) fn command(program: &Program, index: usize) -> At {
        program.commands.get(index).map_or(At::Program, |command| At::Command {
            index,
            op: command.info().mnemonic,
            layer: command.layer(),
        })
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Program => f.write_str("program"),
            At::Slot(slot) => write!(f, "slot '{}'", slot.name()),
            At::Tensor { index, name } => write!(f, "tensor {index} '{name}'"),
            At::Rope(index) => write!(f, "rotary table {index}"),
            At::Command { index, op, layer: LayerId::OUTSIDE } => write!(f, "command {index} ({op})"),
            At::Command { index, op, layer: LayerId(layer) } => write!(f, "command {index} ({op}, layer {layer})"),
        }
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DefectKind {
    /// Something is larger than any unit addresses.
    #[error("{what} is {given}, the limit is {limit}; the model is too large for one program")]
    Limit {
        /// What.
        what: &'static str,
        /// Its size.
        given: u128,
        /// The largest allowed.
        limit: u128,
    },
    /// Something that must hold at least one element holds none.
    #[error("{what} is zero; give its size")]
    Zero {
        /// What.
        what: &'static str,
    },
    /// A table has an entry twice.
    #[error("stands in its table twice; keep one entry")]
    Twice,
    /// No command uses a table's entry.
    #[error("no command uses it; drop it from its table")]
    Unused,
    /// A tensor's name is empty or holds blanks.
    #[error("a name is one word; rename it")]
    Name,
    /// Two tensors share a name.
    #[error("tensor {other} has the same name; rename one")]
    SameName {
        /// The other tensor's index.
        other: usize,
    },
    /// A view's part does not lie in its stored tensor.
    #[error("part {part}: {what}; correct the view")]
    Part {
        /// Index in the view's parts.
        part: usize,
        /// What is wrong.
        what: String,
    },
    /// A view holds another number of elements than the tensor.
    #[error("its view holds {view} elements, its shape {rows} x {cols}; correct one of them")]
    View {
        /// Elements of the view.
        view: u128,
        /// Rows of the tensor.
        rows: usize,
        /// Columns of the tensor.
        cols: usize,
    },
    /// A stack's rows are not whole matrices.
    #[error("{rows} rows are not {experts} equal matrices; correct the number of experts")]
    Stack {
        /// Rows.
        rows: usize,
        /// Experts.
        experts: usize,
    },
    /// A field of a rotary recipe or of the identity holds a value that no unit can work with.
    #[error("{field} is {given}, it must be {need}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        given: String,
        /// What is allowed.
        need: String,
    },
    /// A command's slot is not in the slot table.
    #[error("{field}: slot '{}' has no width; add it to the slot table", .slot.name())]
    NoSlot {
        /// The field.
        field: &'static str,
        /// The slot.
        slot: Slot,
    },
    /// A slot's width does not fit the command.
    #[error("{field}: slot '{}' is {given} wide and must be {needed}, {why}; correct the width or the command", .slot.name())]
    Width {
        /// The field.
        field: &'static str,
        /// The slot.
        slot: Slot,
        /// Its width.
        given: u64,
        /// The width needed.
        needed: u64,
        /// What needs it.
        why: String,
    },
    /// A command reaches past a slot's end.
    #[error("{field}: elements {start}..{end} of slot '{}', which is {width} wide; correct the offset or the count", .slot.name())]
    Range {
        /// The field.
        field: &'static str,
        /// The slot.
        slot: Slot,
        /// First element.
        start: u64,
        /// One past the last element.
        end: u64,
        /// The slot's width.
        width: u64,
    },
    /// A command writes a slot that it may not write at once with another use of it.
    #[error("slot '{}' is '{first}' and '{second}' at once; only elementwise commands may write what they read", .slot.name())]
    Alias {
        /// The slot.
        slot: Slot,
        /// One field.
        first: &'static str,
        /// Another field.
        second: &'static str,
    },
    /// A command's tensor is not in the tensor table.
    #[error("{field}: there is no tensor {index}, the table holds {held}")]
    NoTensor {
        /// The field.
        field: &'static str,
        /// The index.
        index: usize,
        /// Tensors in the table.
        held: usize,
    },
    /// A tensor is held otherwise than the command reads it.
    #[error("{field}: tensor '{tensor}' is held as a {given}, the command reads a {needed}")]
    Kind {
        /// The field.
        field: &'static str,
        /// The tensor.
        tensor: String,
        /// How it is held.
        given: &'static str,
        /// How it must be held.
        needed: &'static str,
    },
    /// A tensor's shape does not fit the command.
    #[error(
        "{field}: tensor '{tensor}' has {given} {axis} and must have {needed}, {why}; take another tensor or correct the command"
    )]
    Shape {
        /// The field.
        field: &'static str,
        /// The tensor.
        tensor: String,
        /// Rows, columns, elements or experts.
        axis: &'static str,
        /// How many it has.
        given: u64,
        /// How many the command needs.
        needed: u64,
        /// What needs them.
        why: String,
    },
    /// A command's rotary table is not in the table.
    #[error("table: there is no rotary table {index}, the program holds {held}")]
    NoRope {
        /// The index.
        index: usize,
        /// Rotary tables held.
        held: usize,
    },
    /// A constant that no unit can work with.
    #[error("{field} is {value:?}, it must be {need}")]
    Constant {
        /// The field.
        field: &'static str,
        /// The value.
        value: f32,
        /// What is allowed.
        need: &'static str,
    },
    /// A count or an offset that does not go with the command's others.
    #[error("{field} is {given}, it must be {need}")]
    Count {
        /// The field.
        field: &'static str,
        /// The count.
        given: u64,
        /// What is allowed.
        need: String,
    },
    /// A slot is read before the step, or the layer, has written it.
    #[error("{field}: elements {start}..{end} of slot '{}' are read, but {}; write them first", .slot.name(), if *.layer { "this layer has not written them" } else { "nothing has written them" })]
    Unwritten {
        /// The field.
        field: &'static str,
        /// The slot.
        slot: Slot,
        /// First element.
        start: u64,
        /// One past the last element.
        end: u64,
        /// An earlier layer wrote the slot: only `x` passes from layer to layer.
        layer: bool,
    },
    /// A result that nothing reads.
    #[error("nothing reads elements {start}..{end} of slot '{}' that it writes; drop the command or read its result", .slot.name())]
    Unread {
        /// The slot.
        slot: Slot,
        /// First element.
        start: u64,
        /// One past the last element.
        end: u64,
    },
    /// Picks that are not those of one TopK.
    #[error("{field}: slot '{}' does not hold what {needed} writes", .slot.name())]
    Picks {
        /// The field.
        field: &'static str,
        /// The slot.
        slot: Slot,
        /// The command that must have written it.
        needed: String,
    },
    /// A command stands where its kind may not.
    #[error("{0}")]
    Order(&'static str),
    /// Layers of the cut have no command.
    #[error("the cut is layers {first}..{last}, but {layers} without commands; lower the model again")]
    NoLayer {
        /// Which ones.
        layers: String,
        /// First layer of the cut.
        first: usize,
        /// One past the last layer of the cut.
        last: usize,
    },
    /// A layer, whose first command this is, lies outside the cut.
    #[error("the cut is layers {first}..{last}; the command belongs to another program")]
    OutsideCut {
        /// First layer of the cut.
        first: usize,
        /// One past the last layer of the cut.
        last: usize,
    },
    /// A state command repeats in a layer, which holds one such state.
    #[error("command {other} holds the layer's state already; a layer has one")]
    State {
        /// The other command.
        other: usize,
    },
    /// Two commands of a layer disagree about its heads.
    #[error("its {given:?} heads, key heads and head dim are {needed:?} at command {other}; make them equal")]
    Geometry {
        /// The other command.
        other: usize,
        /// This command's heads, key heads, head dim.
        given: [u16; 3],
        /// The other command's.
        needed: [u16; 3],
    },
}
