//! The quantiser against an independent definition by exact rational comparison.

use super::*;
use proptest::prelude::*;

/// `|x| * 2^149 * 2^k` as an integer is out of reach; compare `|x|` and `a * 2^e` exactly by aligning both in i128
/// windows: f64 holds either exactly, and so does their ratio's comparison.
fn le(x: f32, a: u32, e: i32) -> bool {
    // Both sides are below 2^53 significant bits, so f64 is exact.
    f64::from(x.abs()) <= f64::from(a) * 2f64.powi(e)
}

/// Round half to even of `x / (m * 2^e)` by searching for the integer whose distance is smallest.
fn nearest(x: f32, m: u32, e: i32) -> i32 {
    let step = f64::from(m) * 2f64.powi(e);
    let guess = (f64::from(x) / step).floor() as i64;
    let mut best = (f64::INFINITY, 0_i64);
    for q in guess - 2..=guess + 2 {
        // q * step and its difference from x are exact: at most 24 + 16 significant bits each.
        let distance = (f64::from(x) - q as f64 * step).abs();
        if distance < best.0 || (distance == best.0 && q % 2 == 0) {
            best = (distance, q);
        }
    }
    best.1 as i32
}

/// The smallest weight scale by walking up from the smallest of all.
fn walk_scale(max: f32, base: i32) -> Option<(i32, u32)> {
    (base..=EXP_MAX).flat_map(|e| (8..16).map(move |m| (e, m))).find(|&(e, m)| le(max, WEIGHT_MAX * m, e))
}

fn walk_pow2(max: f32, limbs: Limbs) -> Option<i32> {
    (EXP_MIN..=EXP_MAX).find(|&e| le(max, limbs.max(), e))
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m, v| v.abs().max(m))
}

/// Values of every exponent, ties, borders of the scales among them.
fn value() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite()),
        4 => (-1000_i32..1000, -70_i32..50).prop_map(|(q, e)| (q as f32 * 0.5) * 2f32.powi(e)),
        2 => -2.0_f32..2.0,
        1 => Just(0.0),
        1 => Just(-0.0),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn weights_follow_the_definition(row in prop::collection::vec(value(), 1..100)) {
        let blocks: Vec<&[f32]> = row.chunks(BLOCK).collect();
        let mut codes = vec![0; blocks.len()];
        let mut elements = vec![[0; BLOCK]; blocks.len()];
        let result = quantise_weights(&row, |b, code, q| (codes[b], elements[b]) = (code, *q));
        let scales: Vec<_> = blocks.iter().map(|b| walk_scale(largest(b), EXP_MIN)).collect();
        let first_bad = scales.iter().position(Option::is_none);
        let Ok(base) = result else {
            let (block, cause) = result.unwrap_err();
            prop_assert_eq!(Some(block), first_bad);
            prop_assert!(matches!(cause, Cause::TooLarge { .. }), "{:?}", cause);
            return Ok(());
        };
        prop_assert_eq!(first_bad, None);
        let top = scales.iter().flatten().map(|s| s.0).max().unwrap();
        prop_assert_eq!(i32::from(base), (top - 31).max(EXP_MIN));
        for (b, values) in blocks.iter().enumerate() {
            let (e, m) = walk_scale(largest(values), base.into()).unwrap();
            prop_assert_eq!(scale_value(base, codes[b]), m as f32 * 2f32.powi(e));
            for (i, element) in elements[b].iter().enumerate() {
                let want = values.get(i).map_or(0, |v| nearest(*v, m, e));
                prop_assert_eq!(i32::from(*element), want, "block {} element {}", b, i);
            }
            if elements[b] == [0; BLOCK] {
                prop_assert_eq!(codes[b], 0);
            }
            prop_assert!(!elements[b].contains(&-128));
        }
    }

    #[test]
    fn activations_follow_the_definition(values in prop::collection::vec(value(), 1..=BLOCK), two in any::<bool>()) {
        let limbs = if two { Limbs::Two } else { Limbs::One };
        let want = walk_pow2(largest(&values), limbs);
        let e = pow2_exponent(max_bits(&values).unwrap(), limbs);
        let Ok(e) = e else {
            prop_assert_eq!(want, None);
            return Ok(());
        };
        prop_assert_eq!(Some(e), want);
        for v in values {
            let q = quantise_pow2(v, e);
            prop_assert_eq!(q, nearest(v, 1, e));
            prop_assert!(q.unsigned_abs() <= limbs.max());
            let (hi, lo) = limbs_of(q);
            prop_assert_eq!(256 * i32::from(hi) + i32::from(lo), q);
            prop_assert!(hi > -128);
            if !two {
                prop_assert_eq!(hi, 0);
            }
        }
    }
}

#[test]
fn every_two_limb_integer_splits_and_joins() {
    for q in -(TWO_LIMB_MAX as i32)..=TWO_LIMB_MAX as i32 {
        let (hi, lo) = limbs_of(q);
        assert_eq!(256 * i32::from(hi) + i32::from(lo), q);
        assert!(hi > -128);
    }
}

#[test]
fn every_scale_code_decodes_to_its_scale() {
    for base in EXP_MIN..=EXP_MAX - EXP_SPAN {
        for e in base..=base + EXP_SPAN {
            for m in 8..16 {
                let code = Scale { e, m }.code(base);
                assert_eq!(f64::from(scale_value(base as i8, code)), f64::from(m) * 2f64.powi(e));
            }
        }
    }
}

#[test]
fn ties_round_to_even_at_every_scale() {
    for m in 8..16_u32 {
        let scale = Scale { e: -7, m };
        for half in (1..254_i32).step_by(2) {
            let value = half as f32 * m as f32 * 2f32.powi(-8);
            let even = if half % 4 == 1 { half / 2 } else { half / 2 + 1 };
            assert_eq!(i32::from(scale.quantise(value)), even);
            assert_eq!(i32::from(scale.quantise(-value)), -even);
            // The next values on both sides leave the tie.
            assert_eq!(i32::from(scale.quantise(value.next_up())), half / 2 + 1);
            assert_eq!(i32::from(scale.quantise(value.next_down())), half / 2);
        }
    }
}

#[test]
fn what_is_not_finite_or_too_large_is_refused_by_block() {
    let mut row = vec![1.0; 70];
    row[65] = f32::NAN;
    let error = quantise_weights(&row, |_, _, _| ()).unwrap_err();
    assert_eq!(error.0, 2);
    assert!(matches!(error.1, Cause::NotFinite(v) if v.is_nan()));
    row[65] = f32::NEG_INFINITY;
    assert_eq!(quantise_weights(&row, |_, _, _| ()), Err((2, Cause::NotFinite(f32::NEG_INFINITY))));

    let limit = (WEIGHT_MAX * 15) as f32 * 2f32.powi(EXP_MAX);
    row[65] = limit;
    assert!(quantise_weights(&row, |_, _, _| ()).is_ok());
    row[65] = limit.next_up();
    let given = limit.next_up();
    assert_eq!(quantise_weights(&row, |_, _, _| ()), Err((2, Cause::TooLarge { given, limit })));

    for limbs in [Limbs::One, Limbs::Two] {
        let limit = limbs.max() as f32 * 2f32.powi(EXP_MAX);
        assert_eq!(pow2_exponent(limit.to_bits(), limbs), Ok(EXP_MAX));
        let given = limit.next_up();
        assert_eq!(pow2_exponent(given.to_bits(), limbs), Err(Cause::TooLarge { given, limit }));
    }
}
