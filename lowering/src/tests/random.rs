//! Any mixture of a Spec's options: the path and the oracle agree on a program, or both refuse.

use super::oracle::assert_equal;
use crate::testing::{HIDDEN, attention, biased, delta, layer, linear, mlp, moe, rms, rope, spec};
use crate::{hand_lowering, lower};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use wordline_ir::spec::{
    Activation, Attention, DeltaNet, Ffn, Layer, Mixer, Mlp, Moe, Norm, NormKind, Rope, RopeScaling, View,
};
use wordline_ir::{Numerics, Spec, verify};

/// A source of small choices; zeros choose the plainest of everything.
struct Choices(u64);

impl Choices {
    fn of(&mut self, n: u64) -> usize {
        let choice = self.0 % n;
        self.0 /= n;
        choice as usize
    }

    fn yes(&mut self) -> bool {
        self.of(2) == 1
    }
}

fn act(c: &mut Choices) -> Activation {
    [Activation::Silu, Activation::GeluErf, Activation::GeluTanh, Activation::Relu][c.of(4)]
}

fn norm(c: &mut Choices, name: &str) -> Norm {
    let norm = rms(name, HIDDEN, [1e-5, 1e-6][c.of(2)]);
    match c.of(4) {
        1 => Norm { weight: norm.weight.clone().plus_one(), ..norm },
        2 => Norm { kind: NormKind::Ln, ..norm },
        3 => Norm { kind: NormKind::Ln, bias: Some(View::whole(format!("{name}.b"), &[HIDDEN])), ..norm },
        _ => norm,
    }
}

fn any_rope(c: &mut Choices, head_dim: usize) -> Option<Rope> {
    let rot = [head_dim, head_dim / 2 * 2 - 2][c.of(2)].max(2);
    let interleaved = c.yes();
    let scaling = [RopeScaling::Default, RopeScaling::Linear { factor: 4.0 }][c.of(2)].clone();
    let theta = [10_000.0, 1_000_000.0][c.of(2)];
    (c.of(4) != 3).then(|| Rope { theta, interleaved, scaling, ..rope(rot) })
}

fn any_attention(c: &mut Choices, name: &str, [heads, kv, dim, v_dim]: [usize; 4]) -> Attention {
    let mut a = attention(name, heads, kv, dim);
    a.v_dim = v_dim;
    a.v = linear(&format!("{name}.v"), kv * v_dim, HIDDEN);
    a.o = linear(&format!("{name}.o"), HIDDEN, heads * v_dim);
    a.rope = any_rope(c, dim);
    a.window = [None, Some(5), Some(255), Some(256), Some(9999)][c.of(5)];
    a.soft_cap = c.yes().then_some(50.0);
    if c.yes() {
        a.scale = 1.0;
    }
    if c.yes() {
        a.q = biased(&format!("{name}.q"), heads * dim, HIDDEN);
    }
    if c.yes() {
        a.k = biased(&format!("{name}.k"), kv * dim, HIDDEN);
    }
    if c.yes() {
        a.v = biased(&format!("{name}.v"), kv * v_dim, HIDDEN);
    }
    if c.yes() {
        a.k.weight = a.k.weight.plus_one();
    }
    if c.yes() {
        a.o = biased(&format!("{name}.o"), HIDDEN, heads * v_dim);
    }
    if c.yes() {
        a.gate = Some(linear(&format!("{name}.gate"), heads * v_dim, HIDDEN));
    }
    if c.yes() {
        a.q_norm = Some(rms(&format!("{name}.qn"), dim, 1e-6));
    }
    if c.yes() {
        a.k_norm = Some(rms(&format!("{name}.kn"), dim, [1e-6, 1e-5][c.of(8) / 7]));
    }
    a
}

fn any_delta(c: &mut Choices, name: &str, [key_heads, value_heads, dk, dv]: [usize; 4]) -> DeltaNet {
    let mut d = delta(name, key_heads, value_heads, dk, dv);
    d.conv_act = act(c);
    if c.yes() {
        d.conv.bias = Some(View::whole(format!("{name}.conv.b"), &[d.qkv.weight.rows()]));
    }
    if c.yes() {
        d.b = biased(&format!("{name}.b"), value_heads, HIDDEN);
    }
    if c.yes() {
        d.a = biased(&format!("{name}.a"), value_heads, HIDDEN);
    }
    if c.yes() {
        d.q_scale = 1.0;
    }
    if c.yes() {
        d.norm.weight = d.norm.weight.plus_one();
    }
    d
}

fn any_mlp(c: &mut Choices, name: &str, gated: bool) -> Mlp {
    let mut mlp = mlp(name, 16, act(c), gated);
    if c.yes() {
        mlp.up = biased(&format!("{name}.up"), 16, HIDDEN);
    }
    if c.yes() {
        mlp.gate = mlp.gate.map(|_| biased(&format!("{name}.gate"), 16, HIDDEN));
    }
    if c.yes() {
        mlp.down = biased(&format!("{name}.down"), HIDDEN, 16);
    }
    mlp
}

fn any_moe(c: &mut Choices, name: &str) -> Moe {
    let mut m = moe(name, 6, 2, c.yes());
    m.act = act(c);
    m.renormalise = c.yes();
    if c.yes() {
        m.router = biased(&format!("{name}.router"), 6, HIDDEN);
    }
    let drop_gate = c.yes();
    if let Some(shared) = m.shared.as_mut().filter(|_| drop_gate) {
        shared.gate = None;
    }
    m
}

/// Facts that all layers share, and one number for each layer's own choices.
fn any_spec(whole: u64, mixers: &[u64], ffns: &[u64]) -> Spec {
    let mut c = Choices(whole);
    let kv = [1, 2][c.of(2)];
    let heads = [kv * [1, 2, 3][c.of(3)], kv, [2, 4, 6][c.of(3)], [2, 5, 6][c.of(3)]];
    let delta_heads = [kv, kv * [1, 2][c.of(2)], [2, 4][c.of(2)], [2, 3][c.of(2)]];
    let gated = !c.yes();
    let make = |i: usize| {
        let (m, f) = (&mut Choices(mixers[i]), &mut Choices(ffns[i % ffns.len()]));
        let name = format!("l{i}");
        let mixer = if m.of(3) == 2 {
            Mixer::DeltaNet(any_delta(m, &name, delta_heads))
        } else {
            Mixer::Attention(any_attention(m, &name, heads))
        };
        let ffn = if f.of(3) == 2 {
            Ffn::Moe(any_moe(f, &format!("{name}.moe")))
        } else {
            // Now and then a network of another width than its fellows': its slots cannot be.
            let unlike = f.of(12) == 11;
            Ffn::Dense(any_mlp(f, &format!("{name}.mlp"), gated != unlike))
        };
        let made = layer(&name, mixer, ffn);
        Layer {
            pre_mixer: norm(m, &format!("{name}.n1")),
            post_mixer: m.yes().then(|| norm(m, &format!("{name}.n2"))),
            pre_ffn: norm(f, &format!("{name}.n3")),
            post_ffn: f.yes().then(|| norm(f, &format!("{name}.n4"))),
            ..made
        }
    };
    let mut spec = spec("any", (0..mixers.len()).map(make).collect());
    if c.yes() {
        spec.positions = Some(View::whole("wpe", &[256, HIDDEN]));
    }
    spec.embed_scale = [1.0, 4.5][c.of(2)];
    spec.logit_scale = [1.0, 0.25][c.of(2)];
    spec.logit_cap = [None, Some(30.0)][c.of(2)];
    if c.yes() {
        (spec.head, spec.tie) = (biased("head", crate::testing::VOCAB, HIDDEN), false);
    }
    spec.final_norm = norm(&mut c, "norm");
    spec
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_spec_lowers_to_what_the_oracle_says(
        whole: u64,
        mixers in prop::collection::vec(any::<u64>(), 1..5),
        ffns in prop::collection::vec(any::<u64>(), 1..5),
    ) {
        let spec = any_spec(whole, &mixers, &ffns);
        let numerics = Numerics::default();
        match (lower(&spec, &numerics, 32), hand_lowering(&spec, &numerics)) {
            (Ok(lowered), Ok(hand)) => {
                assert_equal(&lowered.program, &hand, "any");
                let verified = verify(&lowered.program);
                prop_assert!(verified.is_ok(), "{verified:?}");
            }
            (Err(lowered), Err(hand)) => {
                prop_assert_eq!(std::mem::discriminant(&lowered), std::mem::discriminant(&hand), "{} / {}", lowered, hand);
            }
            (lowered, hand) => prop_assert!(false, "{:?} / {:?}", lowered.err(), hand.err()),
        }
    }
}

#[test]
fn random_specs_cover_the_commands() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut seen, mut lowered, mut refused) = (std::collections::BTreeSet::new(), 0, 0);
    for _ in 0..200 {
        let mut number = || any::<u64>().new_tree(&mut runner).expect("a number").current();
        let spec = any_spec(number(), &[number(), number(), number()], &[number(), number(), number()]);
        match lower(&spec, &Numerics::default(), 32) {
            Ok(l) => {
                lowered += 1;
                seen.extend(l.program.commands.iter().map(|c| c.info().mnemonic));
            }
            Err(_) => refused += 1,
        }
    }
    assert_eq!(seen.len(), wordline_ir::command::OPS.len(), "commands seen: {seen:?}");
    assert!(lowered > 100 && refused > 0, "{lowered} lowered, {refused} refused");
}
