//! Rotary rows against formulas in f64.

use super::*;
use proptest::prelude::*;

fn rotary(theta: f64, rot: usize, scaling: Scaling) -> Rotary {
    Rotary::new(Recipe { theta, rot, scaling }).unwrap()
}

fn close(a: f32, b: f64) -> bool {
    (f64::from(a) - b).abs() <= 4e-7 * b.abs()
}

#[test]
fn plain_rows_are_cosines_of_the_rounded_angle() {
    let table = rotary(10_000.0, 8, Scaling::Default);
    assert_eq!(table.frequencies(3).to_vec(), [1.0, 0.1, 0.01, 0.001]);
    let (mut cos, mut sin) = ([9.0; 4], [9.0; 4]);
    table.row(0, &mut cos, &mut sin);
    assert_eq!((cos, sin), ([1.0; 4], [0.0; 4]));
    table.row(100_003, &mut cos, &mut sin);
    for (pair, frequency) in [1.0f32, 0.1, 0.01, 0.001].into_iter().enumerate() {
        let angle = f64::from(100_003.0f32 * frequency);
        assert!(close(cos[pair], angle.cos()) && close(sin[pair], angle.sin()));
    }
}

#[test]
fn linear_divides() {
    assert_eq!(rotary(10_000.0, 4, Scaling::Linear { factor: 4.0 }).frequencies(7).to_vec(), [0.25, 0.0025]);
}

#[test]
fn dynamic_starts_past_the_trained_length_and_depends_on_the_position() {
    let table = rotary(10_000.0, 16, Scaling::Dynamic { factor: 2.0, original: 32 });
    let plain = rotary(10_000.0, 16, Scaling::Default).frequencies(0).to_vec();
    assert_eq!(table.frequencies(31).to_vec(), plain, "length 32");
    for position in [32usize, 40, 1000] {
        let length = position as f64 + 1.0;
        let base = 10_000.0 * (2.0 * length / 32.0 - 1.0f64).powf(16.0 / 14.0);
        let got = table.frequencies(position).to_vec();
        assert_eq!(got[0], 1.0);
        for (i, f) in got.iter().enumerate() {
            assert!((f64::from(*f) / base.powf(-(i as f64) / 8.0) - 1.0).abs() < 1e-6, "{position} {i}");
        }
    }
}

#[test]
fn llama3_keeps_divides_and_blends() {
    let scaling = Scaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 8192 };
    let table = rotary(500_000.0, 128, scaling);
    let got = table.frequencies(0).to_vec();
    let mut kinds = [0; 3];
    for (i, f) in got.iter().enumerate() {
        let plain = 500_000f64.powf(-(i as f64) / 64.0);
        let wavelength = std::f64::consts::TAU / plain;
        let (kind, expected) = if wavelength > 8192.0 {
            (0, plain / 8.0)
        } else if wavelength < 2048.0 {
            (1, plain)
        } else {
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            (2, (1.0 - smooth) * plain / 8.0 + smooth * plain)
        };
        kinds[kind] += 1;
        assert!((f64::from(*f) / expected - 1.0).abs() < 1e-6, "{i}");
    }
    assert!(kinds.iter().all(|n| *n > 3), "{kinds:?}");
}

#[test]
fn yarn_blends_by_the_ramp() {
    for truncate in [true, false] {
        let scaling = Scaling::Yarn {
            factor: 4.0,
            original: 32_768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate,
            attention_factor: 1.25,
        };
        let table = rotary(1e6, 128, scaling);
        let dimension = |r: f64| 128.0 * (32_768.0 / (r * std::f64::consts::TAU)).ln() / (2.0 * 1e6f64.ln());
        let (mut low, mut high) = (dimension(32.0), dimension(1.0));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        for (i, f) in table.frequencies(5).to_vec().iter().enumerate() {
            let plain = 1e6f64.powf(-(i as f64) / 64.0);
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let expected = plain / 4.0 * ramp + plain * (1.0 - ramp);
            assert!((f64::from(*f) / expected - 1.0).abs() < 1e-6, "{i}");
        }
        let (mut cos, mut sin) = ([0.0; 64], [0.0; 64]);
        table.row(0, &mut cos, &mut sin);
        assert_eq!(cos, [1.25; 64], "the attention factor multiplies");
    }
}

#[test]
fn longrope_changes_lists_at_the_trained_length() {
    let scaling =
        Scaling::LongRope { short: vec![1.0, 2.0], long: vec![4.0, 8.0], original: 10, attention_factor: 1.5 };
    let table = rotary(100.0, 4, scaling);
    assert_eq!(table.frequencies(9).to_vec(), [1.0, 0.05]);
    assert_eq!(table.frequencies(10).to_vec(), [0.25, 0.0125]);
    let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
    table.row(10, &mut cos, &mut sin);
    assert_eq!(cos[0], 2.5f64.cos() as f32 * 1.5);
    assert_eq!(sin[1], f64::from(10.0 * 0.0125f32).sin() as f32 * 1.5);
}

#[test]
fn recipes_that_mean_nothing_are_refused() {
    let error = |theta, rot, scaling| Rotary::new(Recipe { theta, rot, scaling }).unwrap_err();
    assert_eq!(error(1e4, 0, Scaling::Default), RecipeError::Rot(0));
    assert_eq!(error(1e4, 7, Scaling::Default), RecipeError::Rot(7));
    assert!(matches!(error(0.0, 8, Scaling::Default), RecipeError::Number { name: "theta", .. }));
    assert!(matches!(error(f64::NAN, 8, Scaling::Default), RecipeError::Number { name: "theta", .. }));
    assert!(matches!(error(1e4, 8, Scaling::Linear { factor: 0.0 }), RecipeError::Number { name: "factor", .. }));
    let dynamic = Scaling::Dynamic { factor: 2.0, original: 8 };
    assert!(matches!(error(1e4, 2, dynamic), RecipeError::Number { name: "rotated dimensions", .. }));
    let llama3 = Scaling::Llama3 { factor: 8.0, low_freq_factor: 4.0, high_freq_factor: 4.0, original: 8192 };
    assert!(matches!(error(1e4, 8, llama3), RecipeError::Number { name: "high_freq_factor", .. }));
    let long = |short: usize| Scaling::LongRope {
        short: vec![1.0; short],
        long: vec![1.0; 4],
        original: 8,
        attention_factor: 1.0,
    };
    assert_eq!(error(1e4, 8, long(3)), RecipeError::List { name: "short_factor", given: 3, wanted: 4 });
    assert!(Rotary::new(Recipe { theta: 1e4, rot: 8, scaling: long(4) }).is_ok());
    assert!(matches!(error(1e-300, 8, Scaling::Default), RecipeError::Frequency { pair: 1, .. }));
}

proptest! {
    #[test]
    fn rows_lie_on_the_circle(position in 0usize..1 << 20, half in 1usize..64, theta in 10.0f64..1e7) {
        let table = rotary(theta, 2 * half, Scaling::Default);
        let (mut cos, mut sin) = (vec![0.0; half], vec![0.0; half]);
        table.row(position, &mut cos, &mut sin);
        for (c, s) in cos.iter().zip(&sin) {
            prop_assert!((c * c + s * s - 1.0).abs() < 1e-6);
        }
    }
}
