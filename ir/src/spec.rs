//! `Spec`: the facts of one checkpoint, gathered by evidence, that everything downstream works from.
//!
//! A `Spec` says what a model *is*: sizes, which mixer and which feed-forward network each layer has, and where each
//! weight lies in the checkpoint ([`View`]). It holds facts only: nothing here returns a command, a graph node or an
//! order of blocks. The family's name is a label for people; nothing reads it.

use serde::{Deserialize, Serialize};

/// A run of consecutive rows `start..end` of a stored matrix (or of elements of a stored vector).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowRange {
    /// First row.
    pub start: usize,
    /// One past the last row.
    pub end: usize,
}

impl RowRange {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// True when the run holds no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Rows taken from one checkpoint tensor, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Tensor name as the checkpoint has it.
    pub tensor: String,
    /// Shape as stored (before `transpose`).
    pub shape: Vec<usize>,
    /// Rows to take, counted after `transpose`, in this order. Rank-1 tensors have one element a row.
    pub rows: Vec<RowRange>,
    /// The stored matrix is (in, out): rows are its columns.
    pub transpose: bool,
}

/// Where a logical tensor's values lie in the checkpoint: parts laid one after the other along the rows.
///
/// A matrix is (out, in) once read through its view; stacked experts are `[E * out, in]` in expert order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// The parts, in order.
    pub parts: Vec<Part>,
    /// Add 1 to every value (zero-centred norms store w - 1).
    pub add_one: bool,
}

impl View {
    /// All rows of one tensor as it is stored.
    #[must_use]
    pub fn whole(tensor: impl Into<String>, shape: &[usize]) -> Self {
        Self::rows_of(tensor, shape, false, vec![RowRange { start: 0, end: shape.first().copied().unwrap_or(0) }])
    }

    /// All rows of a tensor stored (in, out): each stored column is a row of the view.
    #[must_use]
    pub fn transposed(tensor: impl Into<String>, shape: &[usize]) -> Self {
        Self::rows_of(tensor, shape, true, vec![RowRange { start: 0, end: shape.get(1).copied().unwrap_or(0) }])
    }

    /// Chosen rows of one tensor, counted after `transpose`.
    #[must_use]
    pub fn rows_of(tensor: impl Into<String>, shape: &[usize], transpose: bool, rows: Vec<RowRange>) -> Self {
        Self { parts: vec![Part { tensor: tensor.into(), shape: shape.to_vec(), rows, transpose }], add_one: false }
    }

    /// The same view with 1 added to every value.
    #[must_use]
    pub fn plus_one(mut self) -> Self {
        self.add_one = true;
        self
    }

    /// Number of rows of the view.
    #[must_use]
    pub fn rows(&self) -> usize {
        // Saturating: a view may come from an edited program file.
        self.parts.iter().flat_map(|p| &p.rows).map(RowRange::len).fold(0, usize::saturating_add)
    }

    /// Elements in each row: 1 for a vector, the product of the remaining dimensions otherwise. 0 when no part is held.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.parts.first().map_or(0, Part::cols)
    }

    /// The views' rows one after the other; `None` when their columns or `add_one` differ or the list is empty.
    #[must_use]
    pub fn concat(views: &[&View]) -> Option<View> {
        let first = views.first()?;
        if views.iter().any(|v| v.cols() != first.cols() || v.add_one != first.add_one) {
            return None;
        }
        Some(View { parts: views.iter().flat_map(|v| v.parts.iter().cloned()).collect(), add_one: first.add_one })
    }
}

impl Part {
    /// Elements in each row after `transpose`.
    #[must_use]
    pub fn cols(&self) -> usize {
        match (self.transpose, self.shape.as_slice()) {
            (true, [input, _]) => *input,
            (_, [_, rest @ ..]) => rest.iter().copied().fold(1, usize::saturating_mul),
            (_, []) => 0,
        }
    }
}

/// A linear projection: weight (out, in) and, where the checkpoint holds one, bias (out).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Linear {
    /// The weight.
    pub weight: View,
    /// The bias.
    pub bias: Option<View>,
}

/// Which mean and variance a norm takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// x * rsqrt(mean(x^2) + eps) * w.
    Rms,
    /// (x - mean) * rsqrt(mean((x - mean)^2) + eps) * w + b.
    Ln,
}

/// A norm's parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// Kind.
    pub kind: NormKind,
    /// Weight, one a channel.
    pub weight: View,
    /// Bias (LayerNorm only).
    pub bias: Option<View>,
    /// Added under the square root.
    pub eps: f32,
}

/// Elementwise activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// x * Phi(x) by erf.
    GeluErf,
    /// The tanh form of gelu.
    GeluTanh,
    /// max(x, 0).
    Relu,
}

/// How the angles of a rotary table come from positions. Formulas: the reference framework's rope initialisers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum RopeScaling {
    /// `inv_freq[i] = theta^(-2i/rot)`.
    Default,
    /// inv_freq / factor.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// NTK base change once the length passes `original`: at position p the length is p + 1.
    Dynamic {
        /// Factor.
        factor: f64,
        /// Trained length.
        original: usize,
    },
    /// YaRN: interpolated and extrapolated frequencies blended by a ramp.
    Yarn {
        /// Factor.
        factor: f64,
        /// Trained length.
        original: usize,
        /// Ramp start.
        beta_fast: f64,
        /// Ramp end.
        beta_slow: f64,
        /// Round the ramp's ends to whole dimensions.
        truncate: bool,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
    /// Llama 3: low frequencies divided, middle ones blended.
    Llama3 {
        /// Factor.
        factor: f64,
        /// Wavelengths above original/low are divided.
        low_freq_factor: f64,
        /// Wavelengths below original/high are kept.
        high_freq_factor: f64,
        /// Trained length.
        original: usize,
    },
    /// LongRoPE: per-frequency divisors, the short list for positions below `original`, the long list from there on.
    LongRope {
        /// Divisors for p < original; rot/2 of them.
        short: Vec<f64>,
        /// Divisors for p >= original; rot/2 of them.
        long: Vec<f64>,
        /// Trained length.
        original: usize,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
}

/// One rotary recipe; layers with equal recipes share one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base.
    pub theta: f64,
    /// Rotated dimensions of a head, even, from its first dimension on.
    pub rot: usize,
    /// Pairs are (2i, 2i+1) when true, (i, i + rot/2) when false.
    pub interleaved: bool,
    /// Frequency scaling.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Every number of the recipe is finite.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        let all = |values: &[f64]| values.iter().all(|v| v.is_finite());
        self.theta.is_finite()
            && match &self.scaling {
                RopeScaling::Default => true,
                RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor, original: _ } => factor.is_finite(),
                RopeScaling::Yarn { factor, original: _, beta_fast, beta_slow, truncate: _, attention_factor } => {
                    all(&[*factor, *beta_fast, *beta_slow, *attention_factor])
                }
                RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original: _ } => {
                    all(&[*factor, *low_freq_factor, *high_freq_factor])
                }
                RopeScaling::LongRope { short, long, original: _, attention_factor } => {
                    all(short) && all(long) && attention_factor.is_finite()
                }
            }
    }
}

/// Softmax attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads key head h / (heads / kv_heads).
    pub kv_heads: usize,
    /// Dimension of a query or key head.
    pub head_dim: usize,
    /// Dimension of a value head.
    pub v_dim: usize,
    /// Scores are multiplied by this; applied to q.
    pub scale: f32,
    /// A row sees its own position and the window - 1 before it; `None`: all.
    pub window: Option<usize>,
    /// Scores become cap * tanh(score / cap).
    pub soft_cap: Option<f32>,
    /// Rotary recipe.
    pub rope: Option<Rope>,
    /// Query, key and value projections.
    pub q: Linear,
    /// See `q`.
    pub k: Linear,
    /// See `q`.
    pub v: Linear,
    /// Output gate, heads * v_dim: output * sigmoid(gate), before `o`.
    pub gate: Option<Linear>,
    /// RMS norm of each query head.
    pub q_norm: Option<Norm>,
    /// RMS norm of each key head.
    pub k_norm: Option<Norm>,
    /// Output projection.
    pub o: Linear,
}

/// Gated DeltaNet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaNet {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads; value head h uses key head h / (value_heads / key_heads).
    pub value_heads: usize,
    /// Dimension of a key head.
    pub key_dim: usize,
    /// Dimension of a value head.
    pub value_dim: usize,
    /// Convolution taps (present input included).
    pub conv_taps: usize,
    /// Activation after the convolution.
    pub conv_act: Activation,
    /// Multiplies the normalised q.
    pub q_scale: f32,
    /// Added under the root of the L2 norms of q and k.
    pub l2_eps: f32,
    /// q heads | k heads | v heads.
    pub qkv: Linear,
    /// Output gate z, value_heads * value_dim.
    pub z: Linear,
    /// beta = sigmoid(b), one a value head.
    pub b: Linear,
    /// decay input a, one a value head.
    pub a: Linear,
    /// Depthwise convolution over the channels of `qkv`: [channels, taps], taps oldest first.
    pub conv: Linear,
    /// One a value head: g = exp(-exp(a_log) * softplus(a + dt_bias)).
    pub a_log: View,
    /// See `a_log`.
    pub dt_bias: View,
    /// RMS norm over each value head's output, gated by silu(z).
    pub norm: Norm,
    /// Output projection.
    pub o: Linear,
}

/// What mixes token-rows in a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Mixer {
    /// Softmax attention.
    Attention(Attention),
    /// Gated DeltaNet.
    DeltaNet(DeltaNet),
}

/// One feed-forward network: down(act(gate(x)) * up(x)), or down(act(up(x))) when there is no gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mlp {
    /// Inner width.
    pub inter: usize,
    /// Activation.
    pub act: Activation,
    /// Gate projection.
    pub gate: Option<Linear>,
    /// Up projection.
    pub up: Linear,
    /// Down projection.
    pub down: Linear,
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moe {
    /// Experts held.
    pub experts: usize,
    /// Experts picked for a row: the largest router probabilities, ties to the lower index.
    pub top_k: usize,
    /// Divide the picked probabilities by their sum.
    pub renormalise: bool,
    /// Router: logits over experts, softmax over all of them.
    pub router: Linear,
    /// Inner width of an expert.
    pub inter: usize,
    /// Activation.
    pub act: Activation,
    /// Stacked gate and up rows, expert by expert: [experts * 2 * inter, hidden], gate rows before up rows.
    pub gate_up: View,
    /// Stacked down rows: [experts * hidden, inter].
    pub down: View,
    /// An expert every row takes.
    pub shared: Option<SharedExpert>,
}

/// The expert of a mixture that every row takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Its network.
    pub mlp: Mlp,
    /// One logit a row: the output is multiplied by its sigmoid.
    pub gate: Option<Linear>,
}

/// A layer's feed-forward network.
#[expect(clippy::large_enum_variant, reason = "one a layer, made once: a box would only hide the facts")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Ffn {
    /// Dense.
    Dense(Mlp),
    /// Mixture of experts.
    Moe(Moe),
}

/// One layer: x += post_mixer(mixer(pre_mixer(x))), then x += post_ffn(ffn(pre_ffn(x))).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Norm before the mixer.
    pub pre_mixer: Norm,
    /// Mixer.
    pub mixer: Mixer,
    /// Norm of the mixer's output, before the residual add.
    pub post_mixer: Option<Norm>,
    /// Norm before the FFN.
    pub pre_ffn: Norm,
    /// FFN.
    pub ffn: Ffn,
    /// Norm of the FFN's output, before the residual add.
    pub post_ffn: Option<Norm>,
}

/// How matrices are stored in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightLayout {
    /// (in, out): GPT-2's Conv1D.
    InOut,
    /// (out, in): Linear.
    OutIn,
}

/// The facts of one checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Family label, for people.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the LM head.
    pub vocab: usize,
    /// Positions the model can take.
    pub max_pos: usize,
    /// Token embedding [vocab, hidden].
    pub embed: View,
    /// Learned positions [max_pos, hidden].
    pub positions: Option<View>,
    /// Multiplies the token embedding.
    pub embed_scale: f32,
    /// The layers, in order.
    pub layers: Vec<Layer>,
    /// Norm before the head.
    pub final_norm: Norm,
    /// LM head [vocab, hidden]; equal to `embed` when tied.
    pub head: Linear,
    /// The head is the embedding table.
    pub tie: bool,
    /// Logits become cap * tanh(logits / cap).
    pub logit_cap: Option<f32>,
    /// Logits are multiplied by this before the cap.
    pub logit_scale: f32,
    /// q, k and v are one stored tensor.
    pub qkv_fused: bool,
    /// How matrices are stored.
    pub weight_layout: WeightLayout,
}
