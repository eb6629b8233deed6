//! `Slot`: the vectors that each token-row of a step carries.

use serde::{Deserialize, Serialize};

macro_rules! slots {
    ($(#[doc = $doc:literal] $name:ident = $code:literal $text:literal,)+) => {
        /// A vector each token-row of a step carries, one of the token-row store's slots. Its width is the program's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum Slot { $(#[doc = $doc] $name = $code,)+ }

        impl Slot {
            /// Every slot, by code.
            pub const ALL: &[Slot] = &[$(Slot::$name,)+];

            /// The slot of a 5-bit code; `None` when no slot has it.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Slot> {
                match code { $($code => Some(Slot::$name),)+ _ => None }
            }

            /// The name used in program text.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Slot::$name => $text,)+ }
            }

            /// What it holds.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Slot::$name => $doc.trim(),)+ }
            }
        }
    };
}

slots! {
    /// Residual stream, hidden wide.
    X = 0 "x",
    /// Normed residual: input of a mixer, an FFN or the head.
    H = 1 "h",
    /// q heads | k heads | v heads.
    Qkv = 2 "qkv",
    /// Attention's output gate.
    Gate = 3 "gate",
    /// Attention's output, heads * value dim.
    Attn = 4 "attn",
    /// What a mixer or an FFN adds to the residual.
    Mix = 5 "mix",
    /// A dense FFN's gate | up, or up alone.
    GateUp = 6 "gate_up",
    /// A dense FFN's inner vector.
    Inner = 7 "inner",
    /// DeltaNet's projected q | k | v, before the convolution.
    DeltaIn = 8 "delta_in",
    /// DeltaNet's q | k | v after the convolution.
    DeltaQkv = 9 "delta_qkv",
    /// DeltaNet's output gate z.
    DeltaZ = 10 "delta_z",
    /// DeltaNet's projected b | a, one each a value head.
    DeltaBa = 11 "delta_ba",
    /// DeltaNet's decay | beta, one each a value head.
    DeltaGb = 12 "delta_gb",
    /// DeltaNet's output, value heads * value dim.
    DeltaOut = 13 "delta_out",
    /// Router logits, one an expert.
    Router = 14 "router",
    /// Picked experts, as whole numbers.
    Picks = 15 "picks",
    /// Weights of the picked experts.
    PickWeights = 16 "pick_weights",
    /// Picked experts' gate | up, one pair a pick.
    ExpertGateUp = 17 "expert_gate_up",
    /// Picked experts' inner vectors.
    ExpertInner = 18 "expert_inner",
    /// The shared expert's gate | up.
    SharedGateUp = 19 "shared_gate_up",
    /// The shared expert's inner vector.
    SharedInner = 20 "shared_inner",
    /// The shared expert's output.
    SharedOut = 21 "shared_out",
    /// The shared expert's gate logit.
    SharedGate = 22 "shared_gate",
    /// Logits over the vocabulary.
    Logits = 23 "logits",
}

impl Slot {
    /// The 5-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The slot of a name in program text.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Slot> {
        Slot::ALL.iter().copied().find(|s| s.name() == name)
    }
}
