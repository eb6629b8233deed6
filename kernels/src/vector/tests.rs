//! Bits of the forms against the mirror, and values against arithmetic by hand and in f64.

use super::micro::{Access, Level, MOST_STEPS, Step, level, micro_text};
use super::run::{Operand, Run};
use super::*;
use crate::cpu::vector::tiles::{LONGEST_PASS, MOST_REDUCTIONS};
use crate::math::Function;
use crate::vector::Values;
use proptest::prelude::*;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The forms under test. The gate has its own tests; here every form computes, passed or not.
fn fast_forms() -> Vec<VectorUnit> {
    let forms = Form::ALL.into_iter().filter(|f| f.is_available() && *f != Form::Mirror);
    forms.map(VectorUnit::ungated).collect()
}

/// Runs a command on every form and holds what it wrote to the mirror's bits; returns the mirror's values.
fn same_on_all(units: &[VectorUnit], what: &str, command: impl Fn(&VectorUnit) -> Vec<f32>) -> Vec<f32> {
    let expected = command(&VectorUnit::mirror());
    for unit in units {
        let got = command(unit);
        let differs = bits(&got).iter().zip(bits(&expected)).position(|(a, b)| *a != b);
        assert_eq!(differs, None, "{what} on {}", unit.form());
    }
    expected
}

/// Every command over a row of `n` elements.
fn every_command(units: &[VectorUnit], n: usize, values: Values, seed: u32) {
    let make = |n: usize, salt: u32| values.make(n, seed.wrapping_mul(31).wrapping_add(salt));
    let (x, y, w, b) = (make(n, 1), make(n, 2), make(n, 3), make(n, 4));
    let what = |name: &str| format!("{name} of {n} {values:?} values, seed {seed}");
    let written = |f: &dyn Fn(&mut [f32])| {
        let mut out = vec![7.0; n];
        f(&mut out);
        out
    };
    for kind in [Norm::Rms, Norm::Ln] {
        same_on_all(units, &what("norm"), |u| written(&|o| u.norm(kind, &x, &w, None, 1e-6, o)));
    }
    same_on_all(units, &what("norm with bias"), |u| written(&|o| u.norm(Norm::Ln, &x, &w, Some(&b), 0.0, o)));
    same_on_all(units, &what("embed"), |u| written(&|o| u.embed(&x, None, 1.5, o)));
    same_on_all(units, &what("embed at positions"), |u| written(&|o| u.embed(&x, Some(&y), 0.7, o)));
    same_on_all(units, &what("add"), |u| written(&|o| u.add(&x, &y, -0.3, o)));
    same_on_all(units, &what("gate"), |u| written(&|o| u.gate(&x, &y, 1, o)));
    same_on_all(units, &what("gate of the row"), |u| written(&|o| u.gate(&x, &y[..1], n, o)));
    same_on_all(units, &what("softmax"), |u| written(&|o| u.softmax(&x, o)));
    for act in [Function::Silu, Function::GeluErf, Function::GeluTanh, Function::Relu] {
        same_on_all(units, &what(act.name()), |u| written(&|o| u.act(&x, act, o)));
    }
    let both = [x.as_slice(), &y].concat();
    same_on_all(units, &what("gated act"), |u| written(&|o| u.act_gated(&both, Function::Silu, 1, o)));
    let two = both.repeat(2);
    same_on_all(units, &what("gated act of two groups"), |u| {
        let mut out = vec![7.0; 2 * n];
        u.act_gated(&two, Function::GeluTanh, 2, &mut out);
        out
    });
    same_on_all(units, &what("delta_gate"), |u| {
        let mut out = vec![7.0; 2 * n];
        u.delta_gate(&both, &w, &b, &mut out);
        out
    });
    let updated = |f: &dyn Fn(&mut [f32])| {
        let mut row = two.clone();
        f(&mut row);
        row
    };
    same_on_all(units, &what("scale"), |u| updated(&|x| u.scale(&mut x[..n], 0.3)));
    same_on_all(units, &what("soft_cap"), |u| updated(&|x| u.soft_cap(&mut x[..n], 30.0)));
    same_on_all(units, &what("l2_norm"), |u| updated(&|x| u.l2_norm(x, 3, n, 1e-6)));
    same_on_all(units, &what("renormalise"), |u| updated(&|x| u.renormalise(&mut x[..n])));
    same_on_all(units, &what("sums"), |u| updated(&|x| u.divide_by_sums(&mut x[..3 * n], &[3.0, -0.1, 7e9])));
    same_on_all(units, &what("softmax terms"), |u| {
        let mut row = x.clone();
        let sum = u.softmax_terms(&mut row, seed as usize);
        row.push(sum);
        row
    });
    let shape = HeadNorm { heads: 2, kv_heads: 1, head_dim: n, eps: 1e-5 };
    same_on_all(units, &what("head_norm"), |u| updated(&|x| u.head_norm(x, Some(&w), Some(&b), &shape)));
    same_on_all(units, &what("gated_norm"), |u| {
        let mut out = vec![7.0; 2 * n];
        u.gated_norm(&both, &two[n..3 * n], &w, Function::Silu, 1e-6, &mut out);
        out
    });
    for interleaved in [false, true] {
        let rot = n - n % 2;
        let rope = Rope { heads: 2, kv_heads: 1, head_dim: n, rot, interleaved, scale: 0.125 };
        same_on_all(units, &what("rope"), |u| updated(&|x| u.rope(x, &w, &b, &rope)));
    }
}

#[test]
fn every_length_gives_the_mirror_bits() {
    let units = fast_forms();
    for n in 1..=300 {
        // Each length meets each kind of values in turn; the gate meets all kinds at the lengths that matter.
        every_command(&units, n, Values::ALL[n % 4], n as u32);
    }
    for (n, values) in [(4096, Values::Cancelling), (14_336, Values::Tiny), (4097, Values::Plain)] {
        every_command(&units, n, values, 5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_row_gives_the_mirror_bits(n in 1usize..700, kind in 0usize..4, seed: u32) {
        every_command(&fast_forms()[..1], n, Values::ALL[kind], seed);
    }
}

fn all(command: impl Fn(&VectorUnit, &mut [f32]), n: usize) -> Vec<f32> {
    same_on_all(&fast_forms(), "by hand", |unit| {
        let mut out = vec![0.0; n];
        command(unit, &mut out);
        out
    })
}

fn assert_close(got: &[f32], expected: &[f64], relative: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*a) - b).abs();
        assert!(error <= relative * b.abs().max(1e-30), "element {i}: {a} for {b}");
    }
}

#[test]
fn norms_by_hand() {
    // The mean of squares of 3, 4, 3, 4 and so on is 12.5.
    let x = [3.0, -4.0, -3.0, 4.0, 3.0, 4.0, 3.0, 4.0];
    let w = [1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0];
    let got = all(|u, o| u.norm(Norm::Rms, &x, &w, None, 3.5, o), 8);
    assert_eq!(got, [0.75, -2.0, -0.75, 1.0, 0.75, 1.0, 0.75, 0.0], "rsqrt(12.5 + 3.5) is 1/4");
    // Mean 5, deviations -3, -1, 1, 3: variance 5.
    let got = all(|u, o| u.norm(Norm::Ln, &[2.0, 4.0, 6.0, 8.0], &[1.0; 4], Some(&[0.5, 0.0, 0.0, 0.0]), 11.0, o), 4);
    assert_eq!(got, [-0.25, -0.25, 0.25, 0.75]);
    let shape = HeadNorm { heads: 1, kv_heads: 1, head_dim: 2, eps: 3.5 };
    let heads = |q: bool, k: bool| {
        let row = [3.0, 4.0, -4.0, 3.0, 9.0, 9.0];
        all(
            |u, o| {
                o.copy_from_slice(&row);
                u.head_norm(o, q.then_some(&[1.0, 2.0][..]), k.then_some(&[4.0, 4.0][..]), &shape);
            },
            6,
        )
    };
    assert_eq!(heads(true, true), [0.75, 2.0, -4.0, 3.0, 9.0, 9.0]);
    assert_eq!(heads(true, false), [0.75, 2.0, -4.0, 3.0, 9.0, 9.0]);
    assert_eq!(heads(false, true)[..2], [3.0, 4.0]);
    let got = all(|u, o| (o.copy_from_slice(&[3.0, 4.0, 0.0, 0.0, 5.0]), u.l2_norm(o, 2, 2, 11.0)).1, 5);
    assert_close(&got, &[0.5, 4.0 / 6.0, 0.0, 0.0, 5.0], 1e-7);
}

#[test]
fn gates_and_sums_by_hand() {
    assert_eq!(all(|u, o| u.add(&[1.0, 2.0], &[10.0, 20.0], 0.5, o), 2), [6.0, 12.0]);
    assert_eq!(all(|u, o| u.embed(&[1.0, 2.0], None, 3.0, o), 2), [3.0, 6.0]);
    assert_eq!(all(|u, o| u.embed(&[1.0, 2.0], Some(&[0.5, 0.25]), 3.0, o), 2), [3.5, 6.25]);
    assert_eq!(all(|u, o| u.gate(&[2.0, 4.0], &[0.0, 0.0], 1, o), 2), [1.0, 2.0]);
    // sigmoid(-100) is below 2^-120.
    assert_eq!(all(|u, o| u.gate(&[2.0, 4.0, 6.0, 8.0], &[0.0, -100.0], 2, o), 4), [1.0, 2.0, 0.0, 0.0]);
    assert_eq!(all(|u, o| u.act(&[-2.0, 3.0], Function::Relu, o), 2), [0.0, 3.0]);
    let gate_up = [-1.0, 2.0, 5.0, 7.0, 1.0, 0.0, 0.5, 0.25];
    assert_eq!(all(|u, o| u.act_gated(&gate_up, Function::Relu, 2, o), 4), [0.0, 14.0, 0.5, 0.0]);
    let got = all(|u, o| u.gated_norm(&[3.0, 4.0], &[2.0, 8.0], &[1.0, 0.5], Function::Relu, 3.5, o), 2);
    assert_eq!(got, [1.5, 4.0]);
    let got = all(|u, o| u.delta_gate(&[0.0, 100.0, 0.5, -0.25], &[0.0, 1.0], &[-0.5, 0.25], o), 4);
    let ln2 = std::f64::consts::LN_2;
    assert_close(&got, &[(-ln2).exp(), (-1f64.exp() * ln2).exp(), 0.5, 1.0], 2e-7);
}

#[test]
fn rotations_by_hand() {
    // A quarter turn of the first pair, none of the second.
    let (cos, sin) = ([0.0, 1.0], [1.0, 0.0]);
    let run = |interleaved| {
        let rope = Rope { heads: 1, kv_heads: 1, head_dim: 5, rot: 4, interleaved, scale: 2.0 };
        all(
            |u, o| {
                o.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
                u.rope(o, &cos, &sin, &rope);
            },
            11,
        )
    };
    // Pairs (1, 3) and (2, 4): (a, b) becomes (-b, a).
    assert_eq!(run(false), [-6.0, 4.0, 2.0, 8.0, 10.0, -3.0, 2.0, 1.0, 4.0, 5.0, 6.0]);
    // Pairs (1, 2) and (3, 4).
    assert_eq!(run(true), [-4.0, 2.0, 6.0, 8.0, 10.0, -2.0, 1.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn softmax_pieces_by_hand() {
    let unit = VectorUnit::new();
    let ln2 = std::f32::consts::LN_2;
    let mut scores = [5.0, 5.0 - ln2, 5.0 - 2.0 * ln2, 5.0 - 200.0];
    let sum = unit.softmax_terms(&mut scores, 0);
    assert_close(&scores, &[1.0, 0.5, 0.25, 0.0], 1e-6);
    assert_eq!(scores[3].to_bits(), 0);
    assert_close(&[sum], &[1.75], 1e-6);
    let mut rows = [1.0, 2.0, 3.0, 4.0];
    unit.divide_by_sums(&mut rows, &[2.0, 4.0]);
    assert_eq!(rows, [0.5, 1.0, 0.75, 1.0]);
    let mut x = [0.0, 30.0, 1e9, -1e9];
    unit.soft_cap(&mut x, 30.0);
    assert_close(&x, &[0.0, 30.0 * 1f64.tanh(), 30.0, -30.0], 2e-7);
    let mut weights = [0.5, 0.25, 0.25, 1.0];
    unit.renormalise(&mut weights);
    assert_eq!(weights, [0.25, 0.125, 0.125, 0.5]);
}

#[test]
fn the_lane_of_a_term_is_that_of_its_position() {
    // Lane 0 holds 2^24 and then 1, which is lost; in another lane the 1 meets the -2^24 first.
    let mut row = vec![0.0; 33];
    (row[0], row[16], row[32]) = (16_777_216.0, -16_777_216.0, 1.0);
    assert_eq!(mirror::sum(&row, 0), 0.0);
    assert_eq!(mirror::sum(&row[..32], 0) + 1.0, 1.0);
    for unit in fast_forms() {
        for first in 0..64 {
            let scores: Vec<f32> = (0..100).map(|i| -((i * 7 % 13) as f32)).collect();
            let (mut a, mut b) = (scores.clone(), scores);
            let sum = unit.softmax_terms(&mut a, first);
            assert_eq!(sum.to_bits(), VectorUnit::mirror().softmax_terms(&mut b, first).to_bits(), "{first}");
            let direct = mirror::sum(&a, first);
            assert_eq!(sum.to_bits(), direct.to_bits(), "{first}");
        }
    }
}

#[test]
fn a_long_sum_keeps_f64_company() {
    let unit = VectorUnit::new();
    let x: Vec<f32> = (0..100_000).map(|i| 1.0 + (i % 17) as f32 * 0.01).collect();
    let mut out = vec![0.0; x.len()];
    unit.norm(Norm::Rms, &x, &vec![1.0; x.len()], None, 0.0, &mut out);
    let mean = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / x.len() as f64;
    let expected: Vec<f64> = x.iter().map(|x| f64::from(*x) / mean.sqrt()).collect();
    assert_close(&out, &expected, 1e-5);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn norms_agree_with_f64(n in 1usize..400, seed: u32, eps in 1e-7f32..1e-3) {
        let unit = VectorUnit::ungated(Form::Portable);
        let (x, w) = (Values::Plain.make(n, seed), Values::Plain.make(n, !seed));
        let mut out = vec![0.0; n];
        unit.norm(Norm::Rms, &x, &w, None, eps, &mut out);
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let (x64, w64) = (wide(&x), wide(&w));
        let mean = x64.iter().map(|x| x * x).sum::<f64>() / n as f64;
        for i in 0..n {
            let expected = x64[i] / (mean + f64::from(eps)).sqrt() * w64[i];
            prop_assert!((f64::from(out[i]) - expected).abs() <= 2e-6 * expected.abs());
        }
        unit.norm(Norm::Ln, &x, &w, None, eps, &mut out);
        let mean = x64.iter().sum::<f64>() / n as f64;
        let var = x64.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n as f64;
        for i in 0..n {
            let expected = (x64[i] - mean) / (var + f64::from(eps)).sqrt() * w64[i];
            // The mean's own rounding is of the size of x.
            prop_assert!((f64::from(out[i]) - expected).abs() <= 2e-6 * (expected.abs() + (w64[i] * 8.0).abs() / (var + f64::from(eps)).sqrt()));
        }
    }
}

/// What both interpreters take for granted.
#[test]
fn the_table_is_well_formed() {
    for micro in MICRO {
        let (name, steps) = (micro.name, micro.steps);
        assert!(steps.len() <= MOST_STEPS && steps.len() == micro.values.len(), "{name}");
        assert!(MICRO.iter().filter(|m| m.name == name).count() == 1, "{name} twice");
        let pass = &micro.passes;
        for (at, step) in steps.iter().enumerate() {
            for read in step.reads().into_iter().map(usize::from) {
                assert!(read < at, "{name}: {} reads a later step", micro.values[at]);
                let wanted = match step {
                    Step::Spread(_) | Step::StoreHead(..) => Level::Head,
                    Step::Sum(_) | Step::Max(_) | Step::Store(..) => Level::Element,
                    _ => level(steps, at),
                };
                assert_eq!(level(steps, read), wanted, "{name}: {} of {}", micro.values[at], micro.values[read]);
                // An element value stays in its pass; a reduction is known only after its own.
                let elements = wanted == Level::Element;
                assert_eq!(pass[read] == pass[at] && pass[at] != 0, elements, "{name}: pass of {}", micro.values[read]);
            }
            let last = at + 1 == steps.len();
            let effect = matches!(step, Step::Store(..) | Step::StoreHead(..));
            let used = steps[at + 1..].iter().any(|s| s.reads().contains(&(at as u8)));
            assert!(effect || (used && !last), "{name}: {} is dead", micro.values[at]);
            if let Step::Store(place, _) = step {
                let access = micro.operands[usize::from(place.operand)].access;
                assert_ne!(access, Access::In, "{name}");
                // In place: a tile must have read what it overwrites, and nobody reads it later in the pass.
                if access == Access::Update {
                    let same = |s: &usize| pass[*s] == pass[at] && steps[*s] == Step::Load(*place);
                    assert!((0..at).any(|s| same(&s)), "{name}: a store before its load");
                    assert!(!(at..steps.len()).any(|s| same(&s)), "{name}: a load after its store");
                }
            }
        }
        for number in 1..=pass.iter().copied().max().unwrap_or(0) {
            let of_pass: Vec<_> = (0..steps.len()).filter(|s| pass[*s] == number).collect();
            assert!(of_pass.len() <= LONGEST_PASS, "{name}: pass {number} of {} steps", of_pass.len());
            let reductions = of_pass.iter().filter(|s| matches!(steps[**s], Step::Sum(_) | Step::Max(_))).count();
            assert!(reductions <= MOST_REDUCTIONS, "{name}");
        }
    }
}

#[test]
fn counts_by_hand() {
    let count = table::NORM_RMS.count(1, 576);
    // x twice and the weight once; a square, then the root and the weight, and the mean's factor once.
    assert_eq!((count.load, count.store, count.mul, count.add), (3 * 576, 576, 3 * 576 + 1, 1));
    assert_eq!((count.sum, count.max, count.trees, count.passes), (576, 0, 1, 2));
    assert_eq!((count.map, count.act), (vec![(Function::Rsqrt, 1)], 0));
    let count = table::TOP_K_SOFTMAX.count(1, 60);
    assert_eq!((count.sum, count.max, count.passes), (60, 60, 3));
    let count = table::ACT_GATED.count(2, 100);
    assert_eq!((count.act, count.mul, count.load, count.passes), (200, 200, 400, 2));
    let count = table::DELTA_GATE.count(1, 32);
    assert_eq!(count.map, [(Function::Softplus, 32), (Function::Exp, 64), (Function::Sigmoid, 32)]);
}

#[test]
fn every_command_of_the_vector_unit_is_in_the_text() {
    let text = micro_text();
    for mnemonic in [
        "embed",
        "norm",
        "head_norm",
        "rope",
        "scale",
        "gate",
        "l2_norm",
        "delta_gate",
        "gated_norm",
        "act",
        "add",
        "soft_cap",
        "top_k",
        "attend",
    ] {
        let named = |m: &&&Micro| m.name.split('.').next() == Some(mnemonic);
        let micro = MICRO.iter().find(named).unwrap_or_else(|| panic!("{mnemonic} has no micro-program"));
        assert!(text.contains(&format!("\n{} (", micro.name)));
    }
    assert!(text.contains("    root     = map rsqrt under                   ; head"), "{text}");
}

#[test]
#[should_panic(expected = "add: 'y' holds 3 values, 4 are needed")]
fn a_short_operand_is_a_fault_with_a_name() {
    VectorUnit::mirror().add(&[0.0; 4], &[0.0; 3], 1.0, &mut [0.0; 4]);
}

#[test]
fn no_heads_and_no_elements_are_no_work() {
    for unit in fast_forms() {
        unit.add(&[], &[], 1.0, &mut []);
        unit.l2_norm(&mut [], 0, 64, 1e-6);
        let mut out: [f32; 0] = [];
        interpret(
            unit.form(),
            &table::SCALE,
            Run {
                heads: 0,
                width: 5,
                params: &[1.0],
                act: Function::Relu,
                first_lane: 0,
                operands: &mut [Operand::output(&mut out, 5)],
            },
        );
    }
}
