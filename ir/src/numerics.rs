//! `Numerics`: the knobs that decide a result's bits. Everything here is part of a program's identity.

use serde::{Deserialize, Serialize};

/// How weights are quantised when the weight image is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    /// int8 elements, blocks of 32 along the reduction dimension, block scale m * 2^e with m in 8..=15.
    Int8,
    /// 4-bit codes of 16 uneven int8 levels, blocks of 16, block scale ±m * 2^e with m in 16..=31, searched.
    Code4,
    /// 4-bit codes of OCP's E2M1 values, blocks of 16, block scale m * 2^e with m in 8..=15, searched: what is stored as
    /// MXFP4 keeps its values.
    E2m1,
}

impl WeightFormat {
    /// Every format.
    pub const ALL: &[Self] = &[Self::Int8, Self::Code4, Self::E2m1];

    /// Name in program text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Code4 => "code4",
            Self::E2m1 => "e2m1",
        }
    }
}

/// How activations are quantised as they enter the array: blocks of 32, power-of-two scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActFormat {
    /// One int8 limb, |q| <= 127.
    OneLimb,
    /// Two int8 limbs, q = 256 * hi + lo, |q| <= 32,639.
    TwoLimbs,
}

impl ActFormat {
    /// Every format.
    pub const ALL: &[Self] = &[Self::OneLimb, Self::TwoLimbs];

    /// Name in program text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneLimb => "one_limb",
            Self::TwoLimbs => "two_limbs",
        }
    }
}

/// The knobs that change values. Speed knobs live in the twin's machine and change no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Numerics {
    /// Weights.
    pub weights: WeightFormat,
    /// Activations into linear layers and the head.
    pub acts: ActFormat,
    /// Queries into q.k.
    pub queries: ActFormat,
    /// Softmax terms into p.v.
    pub probs: ActFormat,
    /// Accumulator lanes L: block b adds to lane b mod L. A power of two.
    pub lanes: u8,
}

impl Default for Numerics {
    fn default() -> Self {
        Self {
            weights: WeightFormat::Int8,
            acts: ActFormat::TwoLimbs,
            queries: ActFormat::TwoLimbs,
            probs: ActFormat::TwoLimbs,
            lanes: 8,
        }
    }
}
