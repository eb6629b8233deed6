//! 4-bit codes: every form against the mirror, and the mirror against sums of the stored values in f64.

use super::*;
use crate::format::{HALF, Weights};

const CODED: [Weights; 2] = [Weights::Code4, Weights::E2m1];

fn coded(weights: Weights, seed: &mut Seed, rows: usize, cols: usize) -> (MatrixLayout, Vec<u8>) {
    let layout = MatrixLayout::of(weights, rows, cols).unwrap();
    (layout, pack(&layout, &values(seed, rows, cols)))
}

#[test]
fn every_form_gives_the_mirrors_bits_over_codes() {
    let all = all_units();
    let (mirror, forms) = all.split_last().unwrap();
    for i in 0..240 {
        let (cols, rows, tokens) = (i * 7 % 300 + 1, (i * 29) % 70 + 1, (i * 5 + i / 17) % 17 + 1);
        let limbs = if i % 3 == 0 { Limbs::One } else { Limbs::Two };
        let lanes = Lanes::new(LANES[i / 2 % 4]).unwrap();
        let seed = &mut Seed::new(500 + i as u64);
        let (layout, bytes) = coded(CODED[i % 2], seed, rows, cols);
        let x = values(seed, tokens, cols);
        let run = |units: &Units| {
            let mut acts = Acts::new();
            acts.quantise(units, &x, cols, tokens, cols, limbs).unwrap();
            let call = Matvec::new(Matrix::new(layout, &bytes).unwrap(), &acts, None, lanes).unwrap();
            product(units, &layout, tokens, call)
        };
        let want = run(mirror);
        for units in forms {
            let form = units.active();
            assert!(run(units) == want, "{form}: {:?} {rows}x{cols}, {tokens} rows, {limbs:?}", CODED[i % 2]);
        }
    }
}

/// The lanes by the documentation's words over what `unpack_row` gives: sums of 16 products in f64, where they are
/// exact, one rounding to f32, and one an addition.
fn define(w: &[f32], x: &[f32], limbs: Limbs, lanes: usize) -> f32 {
    let mut lane = vec![0.0_f32; lanes];
    for (b, (w, x)) in w.chunks(BLOCK).zip(x.chunks(BLOCK)).enumerate() {
        let largest = x.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
        let t = (-60..=40).map(|e| 2f64.powi(e)).find(|t| f64::from(limbs.max()) * t >= largest).unwrap();
        for (w, x) in w.chunks(HALF).zip(x.chunks(HALF)) {
            let q = x.iter().map(|x| (f64::from(*x) / t).round_ties_even());
            let low = |q: f64| (q + 128.0).rem_euclid(256.0) - 128.0;
            let (mut hi, mut lo) = (0.0, 0.0);
            for (w, q) in w.iter().zip(q) {
                hi += f64::from(*w) * (q - low(q)) * t;
                lo += f64::from(*w) * low(q) * t;
            }
            for part in [hi, lo] {
                assert_eq!(f64::from(part as f32), part, "a limb's product with a block is exact in f32");
            }
            lane[b % lanes] += (hi + lo) as f32;
        }
    }
    while lane.len() > 1 {
        let high = lane.split_off(lane.len() / 2);
        lane.iter_mut().zip(high).for_each(|(a, b)| *a += b);
    }
    lane[0]
}

#[test]
fn the_mirror_computes_sums_of_the_stored_values() {
    let mirror = &Units::up_to(Form::Mirror).unwrap();
    for (i, (cols, rows, tokens)) in [(1, 1, 1), (40, 17, 2), (300, 20, 3), (1100, 3, 2)].into_iter().enumerate() {
        for (weights, limbs) in CODED.into_iter().flat_map(|w| [(w, Limbs::One), (w, Limbs::Two)]) {
            let seed = &mut Seed::new(90 + i as u64);
            let (layout, bytes) = coded(weights, seed, rows, cols);
            let matrix = Matrix::new(layout, &bytes).unwrap();
            let x = values(seed, tokens, cols);
            let mut acts = Acts::new();
            acts.quantise(mirror, &x, cols, tokens, cols, limbs).unwrap();
            for lanes in LANES {
                let call = Matvec::new(matrix, &acts, None, Lanes::new(lanes).unwrap()).unwrap();
                let y = product(mirror, &layout, tokens, call);
                let mut w = vec![0.0; cols];
                for row in 0..rows {
                    matrix.unpack_row(row, &mut w).unwrap();
                    for token in 0..tokens {
                        let want = define(&w, &x[token * cols..][..cols], limbs, lanes.into());
                        let got = y[token * rows + row];
                        assert_eq!(got, want.to_bits(), "{weights:?} {cols} {limbs:?} L = {lanes} row {row} {token}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_coded_row_unpacks_to_values_near_those_it_was_made_of() {
    for weights in CODED {
        let layout = MatrixLayout::of(weights, 20, 70).unwrap();
        let mut rows: Vec<f32> = (0..20 * 70).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        rows[3 * 70..4 * 70].fill(0.0);
        let bytes = pack(&layout, &rows);
        let matrix = Matrix::new(layout, &bytes).unwrap();
        let mut row = vec![1.0; 70];
        for (r, want) in rows.chunks(70).enumerate() {
            matrix.unpack_row(r, &mut row).unwrap();
            let square = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            let error: Vec<f32> = row.iter().zip(want).map(|(a, b)| a - b).collect();
            assert!(square(&error) <= 0.02 * square(want), "{weights:?} row {r}: {row:?} for {want:?}");
        }
    }
}

#[test]
fn four_bit_tiles_are_half_of_int8_tiles() {
    for weights in CODED {
        let (layout, int8) = (MatrixLayout::of(weights, 64, 4096).unwrap(), MatrixLayout::new(64, 4096).unwrap());
        assert_eq!(layout.tile_bytes() % 64, 0);
        assert_eq!(layout.tile_bytes(), (16_usize + 32 * 128).next_multiple_of(64) + 256 * 128);
        assert!(layout.bytes() * 100 < int8.bytes() * 55);
        let mut values = vec![0.0; 16 * 4096];
        values[2 * 4096 + 35] = f32::INFINITY;
        let error = layout.pack_tile(1, &values, &mut vec![0; layout.tile_bytes()]).unwrap_err();
        assert_eq!(error.to_string(), "row 18, block 1 (columns 32 to 63): inf is not a finite number");
    }
}
