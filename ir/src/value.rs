//! The values of a command's fields that are neither slots nor tensors.

use serde::{Deserialize, Serialize};

/// Layer of a command: 0..=254, or [`LayerId::OUTSIDE`] for the embedding, the final norm and the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerId(pub u8);

impl LayerId {
    /// Layer code of commands that belong to no layer.
    pub const OUTSIDE: LayerId = LayerId(255);
}

/// Index of a rotary recipe in `Program::ropes`, 0..=254.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RopeId(pub u8);

/// A 20-bit element offset into a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(pub u32);

/// An f32 constant, kept and compared by bits.
///
/// In JSON a finite constant is a number (its exact value) and any other is its bits as a string, `"0x7f800000"`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "ConstText", try_from = "ConstText")]
pub struct Const(pub u32);

/// How a constant stands in JSON. Every f32 is an f64 exactly, so neither form loses a bit.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ConstText {
    Value(f64),
    Bits(String),
}

impl From<Const> for ConstText {
    fn from(c: Const) -> Self {
        if c.get().is_finite() { Self::Value(c.get().into()) } else { Self::Bits(format!("{:#010x}", c.0)) }
    }
}

impl TryFrom<ConstText> for Const {
    type Error = String;

    fn try_from(text: ConstText) -> Result<Self, String> {
        match text {
            // The comparison refuses a number that no f32 holds, so that nothing is rounded in silence.
            ConstText::Value(value) if f64::from(value as f32) == value => Ok(Const::new(value as f32)),
            ConstText::Value(value) => Err(format!("{value} is no f32: write the exact value or its bits \"0x…\"")),
            ConstText::Bits(text) => (text.strip_prefix("0x").filter(|digits| digits.len() == 8))
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .map(Const)
                .ok_or_else(|| format!("{text:?} is no constant: write a number or its bits \"0x…\"")),
        }
    }
}

impl Const {
    /// The constant with this value's bits.
    #[must_use]
    pub const fn new(value: f32) -> Self {
        Self(value.to_bits())
    }

    /// The value.
    #[must_use]
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl std::fmt::Debug for Const {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get())
    }
}
