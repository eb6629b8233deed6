//! `RawWord` and `Field`: a word's fields as plain numbers, and the types that fill them.

use crate::command::{Const, Offset, RopeId};
use crate::spec::{Activation, NormKind};
use crate::{Slot, TensorId};

/// The word's fields before they are packed; `u8`/`u32` index fields hold all-ones for "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawWord {
    /// Opcode.
    pub opcode: u8,
    /// Layer.
    pub layer: u8,
    /// Slots, 5 bits each.
    pub slots: [u8; 7],
    /// Tensors, 20 bits each.
    pub tensors: [u32; 2],
    /// Counts.
    pub counts: [u16; 4],
    /// Element offset, 20 bits.
    pub offset: u32,
    /// Rotary table.
    pub rope: u8,
    /// f32 constant by bits.
    pub constant: u32,
}

impl RawWord {
    /// "No slot".
    pub const NO_SLOT: u8 = 0x1f;
    /// "No tensor".
    pub const NO_TENSOR: u32 = 0xf_ffff;
    /// "No rotary table".
    pub const NO_ROPE: u8 = 0xff;

    /// A word of this opcode and layer with every other field unused.
    #[must_use]
    pub const fn unused(opcode: u8, layer: u8) -> Self {
        Self {
            opcode,
            layer,
            slots: [Self::NO_SLOT; 7],
            tensors: [Self::NO_TENSOR; 2],
            counts: [0; 4],
            offset: 0,
            rope: Self::NO_ROPE,
            constant: 0,
        }
    }
}

/// Where one field lies in a [`RawWord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Slot 0..=6.
    Slot(usize),
    /// Tensor 0..=1.
    Tensor(usize),
    /// Count 0..=3.
    Count(usize),
    /// The element offset.
    Offset,
    /// The rotary table.
    Table,
    /// The constant.
    Constant,
}

impl Place {
    /// The bits that stand for "none" in an optional field of this kind; `None` when the kind has no such value.
    #[must_use]
    pub const fn none(self) -> Option<u32> {
        match self {
            Place::Slot(_) => Some(RawWord::NO_SLOT as u32),
            Place::Tensor(_) => Some(RawWord::NO_TENSOR),
            Place::Table => Some(RawWord::NO_ROPE as u32),
            Place::Count(_) | Place::Offset | Place::Constant => None,
        }
    }

    /// The largest value the field's bits hold.
    #[must_use]
    pub fn limit(self) -> u32 {
        self.bits().all_ones()
    }
}

impl RawWord {
    /// The bits of one field.
    #[must_use]
    pub fn get(&self, place: Place) -> u32 {
        match place {
            Place::Slot(i) => self.slots[i].into(),
            Place::Tensor(i) => self.tensors[i],
            Place::Count(i) => self.counts[i].into(),
            Place::Offset => self.offset,
            Place::Table => self.rope.into(),
            Place::Constant => self.constant,
        }
    }

    /// Set one field; a value wider than the field is refused and nothing changes.
    ///
    /// # Errors
    /// The value does not fit the field.
    pub fn set(&mut self, place: Place, value: u32) -> Result<(), FieldError> {
        if value > place.limit() {
            return Err(FieldError { what: "value of the field's width", given: value });
        }
        // Checked against the field's limit above, so that no conversion loses a bit.
        match place {
            Place::Slot(i) => self.slots[i] = value as u8,
            Place::Tensor(i) => self.tensors[i] = value,
            Place::Count(i) => self.counts[i] = value as u16,
            Place::Offset => self.offset = value,
            Place::Table => self.rope = value as u8,
            Place::Constant => self.constant = value,
        }
        Ok(())
    }
}

/// Where the next field of each kind lies in the word while a command is packed or unpacked in table order.
#[derive(Default)]
pub struct Cursor {
    slot: usize,
    tensor: usize,
    count: usize,
}

/// Why a field's bits are not a value of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} is not a {what}")]
pub struct FieldError {
    /// What the field should hold.
    pub what: &'static str,
    /// The bits found.
    pub given: u32,
}

/// A type that fills one field of a word.
pub trait Field: Copy {
    /// The field may hold "none".
    const OPTIONAL: bool = false;
    /// (code, name in program text) of every value, for a count that holds one of a few named choices.
    const CHOICES: &'static [(u16, &'static str)] = &[];
    /// Write into the next field of this kind.
    fn put(self, raw: &mut RawWord, at: &mut Cursor);
    /// Read the next field of this kind.
    ///
    /// # Errors
    /// The bits are no value of this type.
    fn take(raw: &RawWord, at: &mut Cursor) -> Result<Self, FieldError>;
}

impl Field for Slot {
    fn put(self, raw: &mut RawWord, at: &mut Cursor) {
        raw.slots[at.slot] = self.code();
        at.slot += 1;
    }
    fn take(raw: &RawWord, at: &mut Cursor) -> Result<Self, FieldError> {
        let code = raw.slots[at.slot];
        at.slot += 1;
        Slot::from_code(code).ok_or(FieldError { what: "slot", given: code.into() })
    }
}

impl Field for Option<Slot> {
    const OPTIONAL: bool = true;
    fn put(self, raw: &mut RawWord, at: &mut Cursor) {
        raw.slots[at.slot] = self.map_or(RawWord::NO_SLOT, Slot::code);
        at.slot += 1;
    }
    fn take(raw: &RawWord, at: &mut Cursor) -> Result<Self, FieldError> {
        if raw.slots[at.slot] == RawWord::NO_SLOT {
            at.slot += 1;
            return Ok(None);
        }
        Slot::take(raw, at).map(Some)
    }
}

impl Field for TensorId {
    fn put(self, raw: &mut RawWord, at: &mut Cursor) {
        raw.tensors[at.tensor] = self.get();
        at.tensor += 1;
    }
    fn take(raw: &RawWord, at: &mut Cursor) -> Result<Self, FieldError> {
        let index = raw.tensors[at.tensor];
        at.tensor += 1;
        TensorId::new(index as usize).ok_or(FieldError { what: "tensor", given: index })
    }
}

impl Field for Option<TensorId> {
    const OPTIONAL: bool = true;
    fn put(self, raw: &mut RawWord, at: &mut Cursor) {
        raw.tensors[at.tensor] = self.map_or(RawWord::NO_TENSOR, TensorId::get);
        at.tensor += 1;
    }
    fn take(raw: &RawWord, at: &mut Cursor) -> Result<Self, FieldError> {
        if raw.tensors[at.tensor] == RawWord::NO_TENSOR {
            at.tensor += 1;
            return Ok(None);
        }
        TensorId::take(raw, at).map(Some)
    }
}

impl Field for u16 {
    fn put(self, raw: &mut RawWord, at: &mut Cursor) {
        raw.counts[at.count] = self;
        at.count += 1;
    }
    fn take(raw: &RawWord, at: &mut Cursor) -> Result<Self, FieldError> {
        at.count += 1;
        Ok(raw.counts[at.count - 1])
    }
}

/// A field that holds one of a few named choices in a count; the codes start at 1, so that a zeroed count is refused.
macro_rules! choice_field {
    ($ty:ty, $what:literal, $($code:literal = $value:path, $text:literal;)+) => {
        impl Field for $ty {
            const CHOICES: &'static [(u16, &'static str)] = &[$(($code, $text),)+];
            fn put(self, raw: &mut RawWord, at: &mut Cursor) {
                let code: u16 = match self { $($value => $code,)+ };
                code.put(raw, at);
            }
            fn take(raw: &RawWord, at: &mut Cursor) -> Result<Self, FieldError> {
                match u16::take(raw, at)? {
                    $($code => Ok($value),)+
                    given => Err(FieldError { what: $what, given: given.into() }),
                }
            }
        }
    };
}

choice_field! { Activation, "activation",
    1 = Activation::Silu, "silu";
    2 = Activation::GeluErf, "gelu_erf";
    3 = Activation::GeluTanh, "gelu_tanh";
    4 = Activation::Relu, "relu";
}
choice_field! { NormKind, "norm kind",
    1 = NormKind::Rms, "rms";
    2 = NormKind::Ln, "ln";
}
impl Field for bool {
    const CHOICES: &'static [(u16, &'static str)] = &[(1, "no"), (2, "yes")];
    fn put(self, raw: &mut RawWord, at: &mut Cursor) {
        let code: u16 = if self { 2 } else { 1 };
        code.put(raw, at);
    }
    fn take(raw: &RawWord, at: &mut Cursor) -> Result<Self, FieldError> {
        match u16::take(raw, at)? {
            1 => Ok(false),
            2 => Ok(true),
            given => Err(FieldError { what: "yes or no", given: given.into() }),
        }
    }
}

impl Field for Offset {
    fn put(self, raw: &mut RawWord, _: &mut Cursor) {
        raw.offset = self.0;
    }
    fn take(raw: &RawWord, _: &mut Cursor) -> Result<Self, FieldError> {
        Ok(Offset(raw.offset))
    }
}

impl Field for RopeId {
    fn put(self, raw: &mut RawWord, _: &mut Cursor) {
        raw.rope = self.0;
    }
    fn take(raw: &RawWord, _: &mut Cursor) -> Result<Self, FieldError> {
        if raw.rope == RawWord::NO_ROPE {
            return Err(FieldError { what: "rotary table", given: raw.rope.into() });
        }
        Ok(RopeId(raw.rope))
    }
}

impl Field for Const {
    fn put(self, raw: &mut RawWord, _: &mut Cursor) {
        raw.constant = self.0;
    }
    fn take(raw: &RawWord, _: &mut Cursor) -> Result<Self, FieldError> {
        Ok(Const(raw.constant))
    }
}
