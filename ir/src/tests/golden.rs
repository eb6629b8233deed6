//! One command of every kind with the numbers of its word.

use crate::spec::{Activation, NormKind};
use crate::{Command, Const, LayerId, Offset, RopeId, Slot, TensorId};

/// The fields of one word a command, in the layout's order, by the numbers of the ISA's tables.
///
/// Unused slots, tensors and rotary table are all ones (31, 1,048,575, 255); unused counts, offset and constant are 0.
pub(crate) fn golden() -> Vec<(Command, [u32; 18])> {
    const S: u32 = 31;
    const T: u32 = 0xf_ffff;
    let t = |i| TensorId::new(i).unwrap();
    let c = |v| Const::new(v);
    let (one, half, milli) = (0x3f80_0000, 0x3f00_0000, 0x3a83_126f);
    let layer = LayerId(3);
    let out = LayerId::OUTSIDE;
    vec![
        (
            Command::Embed { layer: out, out: Slot::X, table: t(0), positions: Some(t(1)), scale: c(1.0) },
            [1, 255, 0, S, S, S, S, S, S, 0, 1, 0, 0, 0, 0, 0, 255, one],
        ),
        (
            Command::Norm {
                layer,
                x: Slot::X,
                out: Slot::H,
                weight: t(2),
                bias: None,
                kind: NormKind::Ln,
                eps: c(0.001),
            },
            [2, 3, 0, 1, S, S, S, S, S, 2, T, 2, 0, 0, 0, 0, 255, milli],
        ),
        (
            Command::HeadNorm {
                layer,
                qkv: Slot::Qkv,
                q_weight: Some(t(3)),
                k_weight: Some(t(4)),
                heads: 9,
                kv_heads: 3,
                head_dim: 64,
                eps: c(0.001),
            },
            [3, 3, 2, S, S, S, S, S, S, 3, 4, 9, 3, 64, 0, 0, 255, milli],
        ),
        (
            Command::Rope {
                layer,
                qkv: Slot::Qkv,
                heads: 9,
                kv_heads: 3,
                head_dim: 64,
                rot: 32,
                table: RopeId(5),
                scale: c(0.5),
            },
            [4, 3, 2, S, S, S, S, S, S, T, T, 9, 3, 64, 32, 0, 5, half],
        ),
        (
            Command::Scale { layer, x: Slot::Logits, width: 0, scale: c(0.5) },
            [5, 3, 23, S, S, S, S, S, S, T, T, 0, 0, 0, 0, 0, 255, half],
        ),
        (
            Command::Matvec { layer, x: Slot::H, y: Slot::Qkv, weight: t(77), bias: Some(t(78)), offset: Offset(576) },
            [6, 3, 1, 2, S, S, S, S, S, 77, 78, 0, 0, 0, 0, 576, 255, 0],
        ),
        (
            Command::CacheAppend { layer, qkv: Slot::Qkv, heads: 9, kv_heads: 3, head_dim: 64, v_dim: 48 },
            [7, 3, 2, S, S, S, S, S, S, T, T, 9, 3, 64, 48, 0, 255, 0],
        ),
        (
            Command::Attend {
                layer,
                qkv: Slot::Qkv,
                out: Slot::Attn,
                heads: 9,
                kv_heads: 3,
                head_dim: 64,
                window: 512,
                cap: c(1.0),
            },
            [8, 3, 2, 4, S, S, S, S, S, T, T, 9, 3, 64, 512, 0, 255, one],
        ),
        (
            Command::Gate { layer, x: Slot::Attn, gate: Slot::Gate, out: Slot::Attn, group: 7 },
            [9, 3, 4, 3, 4, S, S, S, S, T, T, 7, 0, 0, 0, 0, 255, 0],
        ),
        (
            Command::Conv {
                layer,
                x: Slot::DeltaIn,
                out: Slot::DeltaQkv,
                weight: t(6),
                bias: Some(t(7)),
                channels: 8192,
                taps: 4,
                act: Activation::Silu,
            },
            [10, 3, 8, 9, S, S, S, S, S, 6, 7, 8192, 4, 1, 0, 0, 255, 0],
        ),
        (
            Command::L2Norm { layer, x: Slot::DeltaQkv, heads: 32, head_dim: 128, eps: c(0.001) },
            [11, 3, 9, S, S, S, S, S, S, T, T, 32, 128, 0, 0, 0, 255, milli],
        ),
        (
            Command::DeltaGate { layer, ba: Slot::DeltaBa, gb: Slot::DeltaGb, a_log: t(8), dt_bias: t(9), heads: 32 },
            [12, 3, 11, 12, S, S, S, S, S, 8, 9, 32, 0, 0, 0, 0, 255, 0],
        ),
        (
            Command::Delta {
                layer,
                qkv: Slot::DeltaQkv,
                gb: Slot::DeltaGb,
                out: Slot::DeltaOut,
                key_heads: 16,
                value_heads: 32,
                key_dim: 128,
                value_dim: 64,
                share: Offset(2),
                scale: c(0.5),
            },
            [13, 3, 9, 12, 13, S, S, S, S, T, T, 16, 32, 128, 64, 2, 255, half],
        ),
        (
            Command::GatedNorm {
                layer,
                x: Slot::DeltaOut,
                gate: Slot::DeltaZ,
                out: Slot::DeltaOut,
                weight: t(10),
                heads: 32,
                head_dim: 128,
                act: Activation::Silu,
                eps: c(0.001),
            },
            [14, 3, 13, 10, 13, S, S, S, S, 10, T, 32, 128, 1, 0, 0, 255, milli],
        ),
        (
            Command::Act {
                layer,
                x: Slot::GateUp,
                out: Slot::Inner,
                kind: Activation::GeluTanh,
                gated: true,
                groups: 1,
            },
            [15, 3, 6, 7, S, S, S, S, S, T, T, 3, 2, 1, 0, 0, 255, 0],
        ),
        (
            Command::Add { layer, x: Slot::X, y: Slot::Mix, out: Slot::X, scale: c(1.0) },
            [16, 3, 0, 5, 0, S, S, S, S, T, T, 0, 0, 0, 0, 0, 255, one],
        ),
        (
            Command::SoftCap { layer: out, x: Slot::Logits, cap: c(0.5) },
            [17, 255, 23, S, S, S, S, S, S, T, T, 0, 0, 0, 0, 0, 255, half],
        ),
        (
            Command::TopK {
                layer,
                logits: Slot::Router,
                picks: Slot::Picks,
                weights: Slot::PickWeights,
                experts: 512,
                k: 10,
                renormalise: false,
            },
            [18, 3, 14, 15, 16, S, S, S, S, T, T, 512, 10, 1, 0, 0, 255, 0],
        ),
        (
            Command::RoutedMatvec {
                layer,
                x: Slot::ExpertInner,
                picks: Slot::Picks,
                weights: Some(Slot::PickWeights),
                y: Slot::Mix,
                stack: t(1_048_574),
                k: 10,
            },
            [19, 3, 18, 15, 16, 5, S, S, S, 1_048_574, T, 10, 0, 0, 0, 0, 255, 0],
        ),
    ]
}
