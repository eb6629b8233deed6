//! Specs to price: dense, hybrid and mixture models of any size, made of their numbers alone.

use wordline_ir::spec::{
    Activation, Attention, DeltaNet, Ffn, Layer, Linear, Mixer, Mlp, Moe, Norm, NormKind, Rope, RopeScaling, View,
    WeightLayout,
};
use wordline_ir::{Numerics, Program, Spec};

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub inter: usize,
    pub vocab: usize,
    /// Every fourth layer has attention, the others a delta memory.
    pub hybrid: bool,
    /// Experts and how many a row picks; none: a dense network.
    pub experts: Option<(usize, usize)>,
    pub window: Option<usize>,
}

pub(super) const SEVEN: Sizes = Sizes {
    layers: 32,
    hidden: 4096,
    heads: 32,
    kv_heads: 32,
    head_dim: 128,
    inter: 11008,
    vocab: 32000,
    hybrid: false,
    experts: None,
    window: None,
};

pub(super) const SMALL: Sizes = Sizes {
    layers: 4,
    hidden: 256,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    inter: 704,
    vocab: 1000,
    hybrid: false,
    experts: None,
    window: None,
};

pub(super) const HYBRID: Sizes = Sizes { hybrid: true, ..SMALL };
pub(super) const MIXTURE: Sizes = Sizes { experts: Some((16, 4)), ..SMALL };
pub(super) const WINDOWED: Sizes = Sizes { window: Some(32), ..SMALL };

fn linear(name: &str, out: usize, input: usize) -> Linear {
    Linear { weight: View::whole(format!("{name}.weight"), &[out, input]), bias: None }
}

fn rms(name: &str, width: usize) -> Norm {
    Norm { kind: NormKind::Rms, weight: View::whole(format!("{name}.weight"), &[width]), bias: None, eps: 1e-6 }
}

fn attention(s: &Sizes, name: &str) -> Mixer {
    let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    Mixer::Attention(Attention {
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        v_dim: s.head_dim,
        scale: 1.0 / (s.head_dim as f32).sqrt(),
        window: s.window,
        soft_cap: None,
        rope: Some(Rope { theta: 1e4, rot: s.head_dim, interleaved: false, scaling: RopeScaling::Default }),
        q: linear(&format!("{name}.q"), q, s.hidden),
        k: linear(&format!("{name}.k"), kv, s.hidden),
        v: linear(&format!("{name}.v"), kv, s.hidden),
        gate: None,
        q_norm: None,
        k_norm: None,
        o: linear(&format!("{name}.o"), s.hidden, q),
    })
}

fn delta(s: &Sizes, name: &str) -> Mixer {
    let (heads, dim) = (s.heads, s.head_dim);
    let (values, channels) = (heads * dim, 3 * heads * dim);
    Mixer::DeltaNet(DeltaNet {
        key_heads: heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        conv_taps: 4,
        conv_act: Activation::Silu,
        q_scale: 1.0 / (dim as f32).sqrt(),
        l2_eps: 1e-6,
        qkv: linear(&format!("{name}.qkv"), channels, s.hidden),
        z: linear(&format!("{name}.z"), values, s.hidden),
        b: linear(&format!("{name}.b"), heads, s.hidden),
        a: linear(&format!("{name}.a"), heads, s.hidden),
        conv: Linear { weight: View::whole(format!("{name}.conv"), &[channels, 1, 4]), bias: None },
        a_log: View::whole(format!("{name}.a_log"), &[heads]),
        dt_bias: View::whole(format!("{name}.dt_bias"), &[heads]),
        norm: rms(&format!("{name}.norm"), dim),
        o: linear(&format!("{name}.o"), s.hidden, values),
    })
}

fn stack(name: &str, experts: usize, rows: usize, cols: usize) -> View {
    let parts: Vec<View> = (0..experts).map(|e| View::whole(format!("{name}.{e}"), &[rows, cols])).collect();
    View::concat(&parts.iter().collect::<Vec<_>>()).expect("equal columns")
}

fn ffn(s: &Sizes, name: &str) -> Ffn {
    match s.experts {
        Some((experts, top_k)) => Ffn::Moe(Moe {
            experts,
            top_k,
            renormalise: true,
            router: linear(&format!("{name}.router"), experts, s.hidden),
            inter: s.inter,
            act: Activation::Silu,
            gate_up: stack(&format!("{name}.gate_up"), experts, 2 * s.inter, s.hidden),
            down: stack(&format!("{name}.down"), experts, s.hidden, s.inter),
            shared: None,
        }),
        None => Ffn::Dense(Mlp {
            inter: s.inter,
            act: Activation::Silu,
            gate: Some(linear(&format!("{name}.gate"), s.inter, s.hidden)),
            up: linear(&format!("{name}.up"), s.inter, s.hidden),
            down: linear(&format!("{name}.down"), s.hidden, s.inter),
        }),
    }
}

impl Sizes {
    pub(super) fn spec(&self) -> Spec {
        let layer = |i: usize| {
            let name = format!("layers.{i}");
            let mixer = if self.hybrid && i % 4 != 3 { delta(self, &name) } else { attention(self, &name) };
            Layer {
                pre_mixer: rms(&format!("{name}.n1"), self.hidden),
                mixer,
                post_mixer: None,
                pre_ffn: rms(&format!("{name}.n2"), self.hidden),
                ffn: ffn(self, &name),
                post_ffn: None,
            }
        };
        Spec {
            family: "test".into(),
            hidden: self.hidden,
            vocab: self.vocab,
            max_pos: 4096,
            embed: View::whole("embed", &[self.vocab, self.hidden]),
            positions: None,
            embed_scale: 1.0,
            layers: (0..self.layers).map(layer).collect(),
            final_norm: rms("norm", self.hidden),
            head: linear("head", self.vocab, self.hidden),
            tie: false,
            logit_cap: None,
            logit_scale: 1.0,
            qkv_fused: false,
            weight_layout: WeightLayout::OutIn,
        }
    }

    pub(super) fn program(&self) -> Program {
        wordline_lowering::lower(&self.spec(), &Numerics::default(), 64).expect("it lowers").program
    }
}
