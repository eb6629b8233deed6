//! `Command`: one unit's job over every row of a step, and the one table that defines the whole set.
//!
//! The table at the end of this file is the only place where a command is described. The enum, the word codec, the
//! assembler, the disassembler, the verifier's slot accesses and the printed ISA reference all derive from it.

pub use crate::field::{Cursor, Field, FieldError, Place, RawWord};
use crate::spec::{Activation, NormKind};
pub use crate::value::{Const, LayerId, Offset, RopeId};
use crate::{Slot, TensorId};
use serde::{Deserialize, Serialize};

/// The unit that runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// The int8 array and its block-scale lanes.
    Array,
    /// The vector unit: micro-programs.
    Vector,
    /// The convolution unit and its rings.
    Conv,
    /// The delta unit and its memories.
    Delta,
    /// The cache and attention unit.
    Attend,
}

/// How a command touches a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Slot read.
    Read,
    /// Slot written whole.
    Write,
    /// Slot read and written in place.
    Update,
    /// Slot written from an element offset on; other elements stay.
    Part,
    /// Matrix in the array's block format.
    Matrix,
    /// Plain f32 tensor.
    Plain,
    /// 16-bit count.
    Count,
    /// 20-bit element offset.
    Offset,
    /// Rotary table.
    Table,
    /// f32 constant.
    Constant,
}

impl Role {
    /// The command writes the slot, or some of it.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Role::Write | Role::Update | Role::Part)
    }

    /// The command reads the slot, or some of it.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Role::Read | Role::Update)
    }
}

/// One field of a command as the table describes it.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// Name in program text.
    pub name: &'static str,
    /// How it is used.
    pub role: Role,
    /// The field may hold "none".
    pub optional: bool,
    /// (code, name in program text) of every value of a count that holds a choice; empty for a number.
    pub choices: &'static [(u16, &'static str)],
    /// What it means.
    pub meaning: &'static str,
}

/// One command kind as the table describes it.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// Opcode, bits 7:0 of the word.
    pub code: u8,
    /// Mnemonic in program text.
    pub mnemonic: &'static str,
    /// Unit that runs it.
    pub unit: Unit,
    /// What it does.
    pub doc: &'static str,
    /// Fields, in the order in which they fill the word's slots, tensors, counts, …
    pub fields: &'static [FieldInfo],
}

impl OpInfo {
    /// The table's row of a mnemonic.
    #[must_use]
    pub fn named(mnemonic: &str) -> Option<&'static OpInfo> {
        OPS.iter().find(|op| op.mnemonic == mnemonic)
    }

    /// The fields with their places in the word: fields of one kind fill the word's in table order.
    pub fn places(&self) -> impl Iterator<Item = (&'static FieldInfo, Place)> + use<> {
        let (mut slots, mut tensors, mut counts) = (0, 0, 0);
        let next = |of: &mut usize| {
            *of += 1;
            *of - 1
        };
        self.fields.iter().map(move |field| {
            let place = match field.role {
                Role::Read | Role::Write | Role::Update | Role::Part => Place::Slot(next(&mut slots)),
                Role::Matrix | Role::Plain => Place::Tensor(next(&mut tensors)),
                Role::Count => Place::Count(next(&mut counts)),
                Role::Offset => Place::Offset,
                Role::Table => Place::Table,
                Role::Constant => Place::Constant,
            };
            (field, place)
        })
    }
}

impl Command {
    /// The slots it touches, with how; an optional slot that holds none is left out.
    pub fn slots(&self) -> impl Iterator<Item = (&'static FieldInfo, Slot)> + use<> {
        let raw = self.to_raw();
        self.info().places().filter_map(move |(field, place)| match place {
            Place::Slot(i) => Slot::from_code(raw.slots[i]).map(|slot| (field, slot)),
            _ => None,
        })
    }

    /// The tensors it reads, with how; an optional tensor that holds none is left out.
    pub fn tensors(&self) -> impl Iterator<Item = (&'static FieldInfo, TensorId)> + use<> {
        let raw = self.to_raw();
        self.info().places().filter_map(move |(field, place)| match place {
            Place::Tensor(i) => TensorId::new(raw.tensors[i] as usize).map(|id| (field, id)),
            _ => None,
        })
    }
}

/// Why a raw word is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No command has this opcode.
    #[error("opcode {0} is no command")]
    Opcode(u8),
    /// A used field holds no value of its type.
    #[error("{op}: field '{field}': {source}")]
    Field {
        /// Mnemonic.
        op: &'static str,
        /// Field name.
        field: &'static str,
        /// Why.
        source: FieldError,
    },
    /// A field that the command does not use is set.
    #[error("{op}: a field that the command does not use is set")]
    Unused {
        /// Mnemonic.
        op: &'static str,
    },
    /// One of bits 255:215 is set.
    #[error("spare bits 255:215 are set")]
    Spare,
}

macro_rules! commands {
    ($($code:literal $name:ident $mnemonic:literal $unit:ident $doc:literal {
        $($field:ident: $ty:ty = $role:ident $meaning:literal;)*
    })+) => {
        /// One command of a step: one unit's job over every row of the step, in the step's row order, finished before
        /// the next command starts.
        #[expect(rustdoc::broken_intra_doc_links, reason = "the table's texts are data: their brackets are shapes")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "op")]
        pub enum Command {
            $(
                #[doc = $doc]
                $name {
                    /// Layer, or [`LayerId::OUTSIDE`].
                    layer: LayerId,
                    $(#[doc = $meaning] $field: $ty,)*
                },
            )+
        }

        /// Every command kind, by opcode.
        pub const OPS: &[OpInfo] = &[$(
            OpInfo {
                code: $code,
                mnemonic: $mnemonic,
                unit: Unit::$unit,
                doc: $doc,
                fields: &[$(FieldInfo {
                    name: stringify!($field),
                    role: Role::$role,
                    optional: <$ty as Field>::OPTIONAL,
                    choices: <$ty as Field>::CHOICES,
                    meaning: $meaning,
                },)*],
            },
        )+];

        impl Command {
            /// The table's row for this command.
            #[must_use]
            pub fn info(&self) -> &'static OpInfo {
                let code: u8 = match self { $(Command::$name { .. } => $code,)+ };
                // The table lists every variant once, in the enum's order.
                OPS.iter().find(|op| op.code == code).unwrap_or(&OPS[0])
            }

            /// The layer the command belongs to.
            #[must_use]
            pub fn layer(&self) -> LayerId {
                match self { $(Command::$name { layer, .. } => *layer,)+ }
            }

            /// The word's fields.
            #[must_use]
            pub fn to_raw(&self) -> RawWord {
                match *self { $(
                    Command::$name { layer, $($field,)* } => {
                        let mut raw = RawWord::unused($code, layer.0);
                        #[allow(unused_mut, unused_variables, reason = "a command may have no field of a kind")]
                        let mut at = Cursor::default();
                        $(Field::put($field, &mut raw, &mut at);)*
                        raw
                    }
                )+ }
            }

            /// The command of a word's fields.
            ///
            /// # Errors
            /// Unknown opcode, a used field without a value of its type, or an unused field that is set.
            pub fn from_raw(raw: &RawWord) -> Result<Command, DecodeError> {
                #[allow(unused_mut, unused_variables, reason = "a command may have no field of a kind")]
                let mut at = Cursor::default();
                let command = match raw.opcode {
                    $($code => Command::$name {
                        layer: LayerId(raw.layer),
                        $($field: <$ty as Field>::take(raw, &mut at).map_err(|source| DecodeError::Field {
                            op: $mnemonic, field: stringify!($field), source,
                        })?,)*
                    },)+
                    other => return Err(DecodeError::Opcode(other)),
                };
                if command.to_raw() == *raw { Ok(command) } else { Err(DecodeError::Unused { op: command.info().mnemonic }) }
            }
        }
    };
}

commands! {
    1 Embed "embed" Vector "out = scale * table[token] (+ positions[position])." {
        out: Slot = Write "embedded row";
        table: TensorId = Matrix "token embedding [vocab, hidden]";
        positions: Option<TensorId> = Plain "learned positions [max positions, hidden]";
        scale: Const = Constant "multiplies the token's row";
    }
    2 Norm "norm" Vector "out = norm(x) * weight (+ bias), over the whole slot." {
        x: Slot = Read "input";
        out: Slot = Write "normed";
        weight: TensorId = Plain "weight [width]";
        bias: Option<TensorId> = Plain "bias [width], ln only";
        kind: NormKind = Count "rms or ln";
        eps: Const = Constant "added under the root";
    }
    3 HeadNorm "head_norm" Vector "RMS norm of each query head and each key head, in place." {
        qkv: Slot = Update "q | k | v";
        q_weight: Option<TensorId> = Plain "query weight [head dim]; none: query heads stay";
        k_weight: Option<TensorId> = Plain "key weight [head dim]; none: key heads stay";
        heads: u16 = Count "query heads";
        kv_heads: u16 = Count "key heads";
        head_dim: u16 = Count "dimension of a head";
        eps: Const = Constant "added under the root";
    }
    4 Rope "rope" Vector "Rotate the first dimensions of each query and key head by the row's position, then multiply the query heads by the score scale, in place." {
        qkv: Slot = Update "q | k | v";
        heads: u16 = Count "query heads";
        kv_heads: u16 = Count "key heads";
        head_dim: u16 = Count "dimension of a head";
        rot: u16 = Count "rotated dimensions, even";
        table: RopeId = Table "rotary table";
        scale: Const = Constant "score scale";
    }
    5 Scale "scale" Vector "Multiply the slot's first elements by a constant, in place." {
        x: Slot = Update "scaled";
        width: u16 = Count "elements; 0: the whole slot";
        scale: Const = Constant "factor";
    }
    6 Matvec "matvec" Array "y[offset ..] = weight * x (+ bias); weight streams once for all rows of the step." {
        x: Slot = Read "input, the weight's columns wide";
        y: Slot = Part "output: the weight's rows, from the offset on";
        weight: TensorId = Matrix "matrix (out, in)";
        bias: Option<TensorId> = Plain "bias [out]";
        offset: Offset = Offset "first element of y written";
    }
    7 CacheAppend "cache_append" Attend "Quantise the row's k and v heads and append them to its sequence's cache of this layer." {
        qkv: Slot = Read "q | k | v";
        heads: u16 = Count "query heads";
        kv_heads: u16 = Count "key and value heads";
        head_dim: u16 = Count "dimension of a query or key head";
        v_dim: u16 = Count "dimension of a value head";
    }
    8 Attend "attend" Attend "Softmax attention of the row's query heads over its sequence's cache, up to the row's own position." {
        qkv: Slot = Read "q | k | v; q is scaled already";
        out: Slot = Write "heads * value dim";
        heads: u16 = Count "query heads";
        kv_heads: u16 = Count "key and value heads; query head h reads h / (heads / kv_heads)";
        head_dim: u16 = Count "dimension of a query or key head";
        window: u16 = Count "positions seen, the row's own included; 0: all";
        cap: Const = Constant "soft cap of the scores; 0: none";
    }
    9 Gate "gate" Vector "out = x * sigmoid(gate); each gate element covers a group of elements of x." {
        x: Slot = Read "gated";
        gate: Slot = Read "gate";
        out: Slot = Write "result";
        group: u16 = Count "elements of x a gate element covers";
    }
    10 Conv "conv" Conv "Depthwise causal convolution over the row's own and its sequence's past inputs, then an activation." {
        x: Slot = Read "input channels";
        out: Slot = Write "output channels";
        weight: TensorId = Plain "taps, oldest first [channels, taps]";
        bias: Option<TensorId> = Plain "bias [channels]";
        channels: u16 = Count "channels";
        taps: u16 = Count "taps, the row's own input included";
        act: Activation = Count "activation";
    }
    11 L2Norm "l2_norm" Vector "x * rsqrt(sum(x^2) + eps) of each of the slot's first heads, in place." {
        x: Slot = Update "normed";
        heads: u16 = Count "heads, from the slot's start";
        head_dim: u16 = Count "dimension of a head";
        eps: Const = Constant "added under the root";
    }
    12 DeltaGate "delta_gate" Vector "decay = exp(-exp(a_log) * softplus(a + dt_bias)); beta = sigmoid(b)." {
        ba: Slot = Read "b | a, one each a value head";
        gb: Slot = Write "decay | beta, one each a value head";
        a_log: TensorId = Plain "[value heads]";
        dt_bias: TensorId = Plain "[value heads]";
        heads: u16 = Count "value heads";
    }
    13 Delta "delta" Delta "Per value head: S *= decay; m = S^T k; S += k ((v - m) * beta)^T; out = S^T (q * scale)." {
        qkv: Slot = Read "q heads | k heads | v heads";
        gb: Slot = Read "decay | beta";
        out: Slot = Write "value heads * value dim";
        key_heads: u16 = Count "key (and query) heads";
        value_heads: u16 = Count "value heads";
        key_dim: u16 = Count "dimension of a key head";
        value_dim: u16 = Count "dimension of a value head";
        share: Offset = Offset "consecutive value heads that share one key head";
        scale: Const = Constant "multiplies q";
    }
    14 GatedNorm "gated_norm" Vector "out = rms_norm(x) * weight * act(gate), head by head." {
        x: Slot = Read "input";
        gate: Slot = Read "gate";
        out: Slot = Write "result";
        weight: TensorId = Plain "weight [head dim]";
        heads: u16 = Count "heads";
        head_dim: u16 = Count "dimension of a head";
        act: Activation = Count "activation of the gate";
        eps: Const = Constant "added under the root";
    }
    15 Act "act" Vector "Each group: out = act(gate) * up from gate | up, or out = act(x) when not gated." {
        x: Slot = Read "groups of gate | up, or of x";
        out: Slot = Write "groups of the inner vector";
        kind: Activation = Count "activation";
        gated: bool = Count "the input holds gate | up";
        groups: u16 = Count "groups";
    }
    16 Add "add" Vector "out = x + scale * y." {
        x: Slot = Read "first";
        y: Slot = Read "second";
        out: Slot = Write "sum";
        scale: Const = Constant "multiplies y";
    }
    17 SoftCap "soft_cap" Vector "x = cap * tanh(x / cap), in place; x / cap is x * recip(cap)." {
        x: Slot = Update "capped";
        cap: Const = Constant "cap";
    }
    18 TopK "top_k" Vector "Softmax over the router's logits; the largest are picked, ties to the lower index, in falling order." {
        logits: Slot = Read "one an expert";
        picks: Slot = Write "expert numbers";
        weights: Slot = Write "their weights";
        experts: u16 = Count "experts";
        k: u16 = Count "picks";
        renormalise: bool = Count "divide the weights by their sum";
    }
    19 RoutedMatvec "routed_matvec" Array "Spread (no weights): y[j] = stack[pick j] * x. Gather (weights): y = sum over j ascending of weight j * (stack[pick j] * x[j]). Only picked experts stream." {
        x: Slot = Read "one vector (spread) or one a pick (gather)";
        picks: Slot = Read "expert numbers";
        weights: Option<Slot> = Read "pick weights: gather";
        y: Slot = Write "one vector a pick (spread) or one (gather)";
        stack: TensorId = Matrix "experts' matrices [experts, out, in]";
        k: u16 = Count "picks";
    }
}
