//! `Word`: a command as the sequencer reads it, 256 bits, least significant bit first.
//!
//! [`FIELDS`] is the only description of the layout. Packing and unpacking walk it; what a field means to a command is
//! the command table's business ([`OPS`](crate::command::OPS)).

use crate::command::{Command, DecodeError, Place, RawWord};
use crate::{LayerId, Program, ProgramError};
use bitvec::field::BitField;
use bitvec::prelude::{BitArray, Lsb0};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One field of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldBits {
    /// Name.
    pub name: &'static str,
    /// First (least significant) bit.
    pub first: usize,
    /// Width in bits.
    pub width: usize,
}

impl FieldBits {
    /// The largest value the field holds; also "none" in an index field.
    #[must_use]
    pub const fn all_ones(&self) -> u32 {
        u32::MAX >> (32 - self.width)
    }
}

macro_rules! fields {
    ($($first:literal $width:literal $name:literal)+) => {
        /// The word's fields, from bit 0 on without a gap.
        pub const FIELDS: &[FieldBits] = &[$(FieldBits { name: $name, first: $first, width: $width },)+];
    };
}

fields! {
      0  8 "command"
      8  8 "layer"
     16  5 "slot0"
     21  5 "slot1"
     26  5 "slot2"
     31  5 "slot3"
     36  5 "slot4"
     41  5 "slot5"
     46  5 "slot6"
     51 20 "tensor0"
     71 20 "tensor1"
     91 16 "count0"
    107 16 "count1"
    123 16 "count2"
    139 16 "count3"
    155 20 "offset"
    175  8 "table"
    183 32 "constant"
}

impl Place {
    /// The word's field at this place.
    #[must_use]
    pub fn bits(self) -> &'static FieldBits {
        let index = match self {
            Place::Slot(i) => 2 + i.min(6),
            Place::Tensor(i) => 9 + i.min(1),
            Place::Count(i) => 11 + i.min(3),
            Place::Offset => 15,
            Place::Table => 16,
            Place::Constant => 17,
        };
        &FIELDS[index]
    }
}

/// Bits that fields use; the rest are spare.
pub const USED_BITS: usize = 215;

/// Bits of a word.
pub const WORD_BITS: usize = 256;

impl RawWord {
    /// The fields' values in the order of [`FIELDS`].
    #[must_use]
    pub fn values(&self) -> [u32; 18] {
        let [s0, s1, s2, s3, s4, s5, s6] = self.slots.map(u32::from);
        let [t0, t1] = self.tensors;
        let [c0, c1, c2, c3] = self.counts.map(u32::from);
        let (command, layer, table) = (self.opcode.into(), self.layer.into(), self.rope.into());
        [command, layer, s0, s1, s2, s3, s4, s5, s6, t0, t1, c0, c1, c2, c3, self.offset, table, self.constant]
    }

    /// The word's fields from values in the order of [`FIELDS`], each no wider than its field.
    fn from_values(v: [u32; 18]) -> Self {
        Self {
            opcode: v[0] as u8,
            layer: v[1] as u8,
            slots: [v[2] as u8, v[3] as u8, v[4] as u8, v[5] as u8, v[6] as u8, v[7] as u8, v[8] as u8],
            tensors: [v[9], v[10]],
            counts: [v[11] as u16, v[12] as u16, v[13] as u16, v[14] as u16],
            offset: v[15],
            rope: v[16] as u8,
            constant: v[17],
        }
    }
}

/// A value is wider than its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field '{field}' holds at most {limit}, given {given}")]
pub struct Overflow {
    /// Field.
    pub field: &'static str,
    /// The value.
    pub given: u32,
    /// The largest value that fits.
    pub limit: u32,
}

/// A command as the sequencer reads it: `[7:0]` the command, `[15:8]` its layer, seven 5-bit slots from bit 16, two
/// 20-bit tensors from bit 51, four 16-bit counts from bit 91, a 20-bit element offset from bit 155, an 8-bit rotary
/// table from bit 175, a 32-bit f32 constant from bit 183, and 41 spare bits, zero, from bit 215.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Word(BitArray<[u8; 32], Lsb0>);

impl Word {
    /// Pack the fields.
    ///
    /// # Errors
    /// A value is wider than its field.
    pub fn pack(raw: &RawWord) -> Result<Word, Overflow> {
        let mut bits = BitArray::ZERO;
        for (field, given) in FIELDS.iter().zip(raw.values()) {
            if given > field.all_ones() {
                return Err(Overflow { field: field.name, given, limit: field.all_ones() });
            }
            bits[field.first..field.first + field.width].store_le(given);
        }
        Ok(Word(bits))
    }

    /// The fields.
    ///
    /// # Errors
    /// [`DecodeError::Spare`] when a spare bit is set.
    pub fn unpack(&self) -> Result<RawWord, DecodeError> {
        if self.0[USED_BITS..].any() {
            return Err(DecodeError::Spare);
        }
        let mut values = [0; 18];
        for (field, value) in FIELDS.iter().zip(&mut values) {
            *value = self.0[field.first..field.first + field.width].load_le();
        }
        Ok(RawWord::from_values(values))
    }

    /// The word of a command.
    ///
    /// # Errors
    /// [`ProgramError::Field`] when an offset or a rotary table is wider than its field or stands for "none".
    pub fn encode(command: &Command) -> Result<Word, ProgramError> {
        let raw = command.to_raw();
        let refuse = |field, given: u32, limit: u32| ProgramError::Field {
            field,
            given: given as usize,
            limit: limit as usize,
            site: site(command),
        };
        let word = Word::pack(&raw).map_err(|e| refuse(e.field, e.given, e.limit))?;
        match Command::from_raw(&raw) {
            Ok(_) => Ok(word),
            // The only typed value whose bits read back as "none".
            Err(_) => Err(refuse("table", raw.rope.into(), u32::from(RawWord::NO_ROPE) - 1)),
        }
    }

    /// The command of a word.
    ///
    /// # Errors
    /// A spare bit or an unused field is set, no command has the opcode, or a used field holds no value of its type.
    pub fn decode(&self) -> Result<Command, DecodeError> {
        Command::from_raw(&self.unpack()?)
    }

    /// The word's bytes, bits 7:0 first.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 32] {
        self.0.into_inner()
    }

    /// The word of 32 bytes, bits 7:0 first. Any bytes make a word; [`Word::decode`] says whether it is a command.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Word {
        Word(BitArray::new(bytes))
    }
}

/// Where a command stands, for errors: its mnemonic and layer.
fn site(command: &Command) -> String {
    match command.layer() {
        LayerId::OUTSIDE => format!("{} outside any layer", command.info().mnemonic),
        LayerId(layer) => format!("{} in layer {layer}", command.info().mnemonic),
    }
}

/// 64 hexadecimal digits, bits 255:252 first, as a hardware simulator prints a number.
impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().rev().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Word({self})")
    }
}

/// Why a text is no word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HexError {
    /// Not 64 characters.
    #[error("a word is 64 hexadecimal digits, given {0} characters")]
    Length(usize),
    /// Not a hexadecimal digit.
    #[error("character {at} of the word, {found:?}, is no hexadecimal digit")]
    Digit {
        /// Character, from 1.
        at: usize,
        /// What stands there.
        found: char,
    },
}

impl FromStr for Word {
    type Err = HexError;

    fn from_str(text: &str) -> Result<Word, HexError> {
        let count = text.chars().count();
        if count != WORD_BITS / 4 {
            return Err(HexError::Length(count));
        }
        let mut bytes = [0_u8; 32];
        for (i, found) in text.chars().enumerate() {
            let digit = found.to_digit(16).ok_or(HexError::Digit { at: i + 1, found })?;
            let byte = &mut bytes[31 - i / 2];
            *byte = (*byte << 4) | digit as u8;
        }
        Ok(Word::from_bytes(bytes))
    }
}

impl From<Word> for String {
    fn from(word: Word) -> String {
        word.to_string()
    }
}

impl TryFrom<String> for Word {
    type Error = HexError;

    fn try_from(text: String) -> Result<Word, HexError> {
        text.parse()
    }
}

impl Program {
    /// The commands' words, in order: what the sequencer reads.
    ///
    /// # Errors
    /// The first command that does not fit a word.
    pub fn words(&self) -> Result<Vec<Word>, ProgramError> {
        self.commands.iter().map(Word::encode).collect()
    }
}
