//! The array unit: every form against the mirror over all small shapes, the mirror against the definition written out,
//! and what must not show in a bit or in the bytes streamed.

mod codes;

use super::*;
use crate::format::{BLOCK, Cause, Limbs, QuantError, pow2};
use crate::gate::Form;
use crate::probe::Seed;

const LANES: [u8; 4] = [4, 8, 16, 32];

/// Values of everyday and of extreme size, by blocks: zeros, one spike, both ends of the scales, what rounds to zero.
fn values(seed: &mut Seed, rows: usize, cols: usize) -> Vec<f32> {
    let mut all = Vec::with_capacity(rows * cols);
    for _ in 0..rows {
        let mut row: Vec<f32> = (0..cols).map(|_| seed.value()).collect();
        for block in row.chunks_mut(BLOCK) {
            let spike = seed.below(block.len() as u64) as usize;
            match seed.below(12) {
                0 => block.fill(0.0),
                1 => {
                    block.fill(0.0);
                    block[spike] = -1.5;
                }
                2 => block.iter_mut().for_each(|v| *v *= 1e12),
                3 => block.iter_mut().for_each(|v| *v *= 1e-17),
                4 => block.iter_mut().for_each(|v| *v *= 1e-40),
                5 => block[spike] = 1.3e14,
                6 => block.iter_mut().for_each(|v| *v = v.signum() * 3.0),
                7 => block[spike] = -0.0,
                _ => (),
            }
        }
        all.extend(row);
    }
    all
}

fn pack(layout: &MatrixLayout, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0x55; layout.bytes()];
    for (tile, out) in bytes.chunks_exact_mut(layout.tile_bytes()).enumerate() {
        let rows = layout.tile_rows(tile);
        let values = &values[rows.start * layout.cols()..rows.end * layout.cols()];
        layout.pack_tile(tile, values, out).unwrap();
    }
    bytes
}

/// A matrix, quantised rows and a bias.
struct Case {
    layout: MatrixLayout,
    bytes: Vec<u8>,
    acts: Acts,
    bias: Vec<f32>,
    weights: Vec<f32>,
    x: Vec<f32>,
}

impl Case {
    fn new(units: &Units, seed: &mut Seed, (cols, rows, tokens): (usize, usize, usize), limbs: Limbs) -> Self {
        let layout = MatrixLayout::new(rows, cols).unwrap();
        let (weights, x, bias) = (values(seed, rows, cols), values(seed, tokens, cols), values(seed, 1, rows));
        let mut acts = Acts::new();
        acts.quantise(units, &x, cols, tokens, cols, limbs).unwrap();
        Self { layout, bytes: pack(&layout, &weights), acts, bias, weights, x }
    }

    fn call(&self, lanes: Lanes, bias: bool) -> Matvec<'_> {
        let matrix = Matrix::new(self.layout, &self.bytes).unwrap();
        Matvec::new(matrix, &self.acts, bias.then_some(&self.bias[..]), lanes).unwrap()
    }

    fn run(&self, units: &Units, lanes: Lanes, bias: bool) -> Vec<u32> {
        product(units, &self.layout, self.acts.rows(), self.call(lanes, bias))
    }
}

/// Bits of a product, [tokens, rows].
fn product(units: &Units, layout: &MatrixLayout, tokens: usize, call: Matvec<'_>) -> Vec<u32> {
    let mut y = vec![f32::NAN; tokens * layout.rows()];
    let mut out = OutTiles::new(&mut y, layout, tokens, 0, layout.rows()).unwrap();
    call.run(units, &mut out).unwrap();
    bits(&y)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The forms of this device, each as units of its own; the mirror last.
fn all_units() -> Vec<Units> {
    let units = Form::ALL.into_iter().map(|form| (form, Units::up_to(form).unwrap()));
    units.filter(|(form, units)| units.active() == *form).map(|(_, units)| units).collect()
}

#[test]
fn every_form_gives_the_mirrors_bits_for_every_small_shape() {
    let all = all_units();
    let (mirror, forms) = all.split_last().unwrap();
    assert_eq!(mirror.active(), Form::Mirror);
    // Every K of 1..=300 thrice, every row count of 1..=70 and every T of 1..=17 many times, in changing company.
    let (mut rows_seen, mut tokens_seen) = ([0; 71], [0; 18]);
    for i in 0..900 {
        let (cols, rows, tokens) = (i % 300 + 1, (i * 29 + i / 300 * 7) % 70 + 1, (i * 5 + i / 17) % 17 + 1);
        rows_seen[rows] += 1;
        tokens_seen[tokens] += 1;
        let limbs = if i % 3 == 0 { Limbs::One } else { Limbs::Two };
        let (lanes, bias) = (Lanes::new(LANES[i / 2 % 4]).unwrap(), i % 5 == 0);
        let case = Case::new(mirror, &mut Seed::new(i as u64), (cols, rows, tokens), limbs);
        let want = case.run(mirror, lanes, bias);
        for units in forms {
            let form = units.active();
            let same = Case::new(units, &mut Seed::new(i as u64), (cols, rows, tokens), limbs);
            assert!(same.run(units, lanes, bias) == want, "{form}: {rows}x{cols}, {tokens} rows, {limbs:?}, {lanes:?}");
        }
    }
    assert!(rows_seen[1..].iter().all(|n| *n >= 6) && tokens_seen[1..].iter().all(|n| *n >= 40));
}

/// An output depends on its own row of the matrix and its own token-row, so the mirror's product of the largest shape
/// holds those of all smaller ones, and every K, row count and T can be met together.
#[test]
fn every_form_gives_the_mirrors_bits_for_every_k_row_count_and_t() {
    const ROWS: usize = 70;
    const TOKENS: usize = 17;
    let all = all_units();
    let (mirror, forms) = all.split_last().unwrap();
    for cols in 1..=300 {
        let limbs = if cols % 3 == 0 { Limbs::One } else { Limbs::Two };
        let lanes = Lanes::new(if cols % 4 == 0 { LANES[cols / 4 % 4] } else { 8 }).unwrap();
        let whole = Case::new(mirror, &mut Seed::new(cols as u64), (cols, ROWS, TOKENS), limbs);
        let want = whole.run(mirror, lanes, true);
        for units in forms {
            let acts = (1..=TOKENS).map(|tokens| {
                let mut acts = Acts::new();
                acts.quantise(units, &whole.x[..tokens * cols], cols, tokens, cols, limbs).unwrap();
                acts
            });
            let acts: Vec<Acts> = acts.collect();
            for rows in 1..=ROWS {
                let layout = MatrixLayout::new(rows, cols).unwrap();
                let bytes = pack(&layout, &whole.weights[..rows * cols]);
                for acts in &acts {
                    let matrix = Matrix::new(layout, &bytes).unwrap();
                    let call = Matvec::new(matrix, acts, Some(&whole.bias[..rows]), lanes).unwrap();
                    let got = product(units, &layout, acts.rows(), call);
                    let same = got.chunks(rows).zip(want.chunks(ROWS)).all(|(got, want)| got == &want[..rows]);
                    let form = units.active();
                    assert!(same, "{form}: {rows}x{cols}, {} rows, {limbs:?}, {lanes:?}", acts.rows());
                }
            }
        }
    }
}

/// Quantises and multiplies by the documentation's words, in i64 and f64.
fn define(case: &Case, lanes: usize, limbs: Limbs, row: usize, token: usize) -> f32 {
    let cols = case.layout.cols();
    let weights = &case.weights[row * cols..][..cols];
    let x = &case.x[token * cols..][..cols];
    let largest = |block: &[f32]| block.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
    let scale = |max: f64, base: i32| {
        let mut scales = (base..=40).flat_map(|e| (8..16).map(move |m| f64::from(m) * 2f64.powi(e)));
        scales.find(|s| 127.0 * s >= max).unwrap()
    };
    // The exponent of the row's largest scale: 8 * 2^e is at most the scale.
    let top = weights.chunks(BLOCK).map(|b| scale(largest(b), -60)).fold(0.0, f64::max);
    let base = ((top / 8.0).log2().floor() as i32 - 31).max(-60);
    let mut lane = vec![0.0_f32; lanes];
    for (b, (w, x)) in weights.chunks(BLOCK).zip(x.chunks(BLOCK)).enumerate() {
        let s = scale(largest(w), base);
        let max = f64::from(limbs.max());
        let t = (-60..=40).map(|e| 2f64.powi(e)).find(|t| max * t >= largest(x)).unwrap();
        let product = |(w, x): (&f32, &f32)| {
            (f64::from(*w) / s).round_ties_even() as i64 * (f64::from(*x) / t).round_ties_even() as i64
        };
        let sum: i64 = w.iter().zip(x).map(product).sum();
        lane[b % lanes] += (sum as f64 * s * t) as f32;
    }
    while lane.len() > 1 {
        let high = lane.split_off(lane.len() / 2);
        lane.iter_mut().zip(high).for_each(|(a, b)| *a += b);
    }
    lane[0]
}

#[test]
fn the_mirror_computes_the_definition() {
    let mirror = &Units::up_to(Form::Mirror).unwrap();
    for (i, shape) in [(1, 1, 1), (40, 17, 2), (300, 20, 3), (1100, 3, 2)].into_iter().enumerate() {
        for limbs in [Limbs::One, Limbs::Two] {
            let case = Case::new(mirror, &mut Seed::new(70 + i as u64), shape, limbs);
            for lanes in LANES {
                let y = case.run(mirror, Lanes::new(lanes).unwrap(), false);
                let biased = case.run(mirror, Lanes::new(lanes).unwrap(), true);
                for (at, (y, biased)) in y.into_iter().zip(biased).enumerate() {
                    let (token, row) = (at / shape.1, at % shape.1);
                    let want = define(&case, lanes.into(), limbs, row, token);
                    assert_eq!(y, want.to_bits(), "{shape:?} {limbs:?} L = {lanes} row {row} token {token}");
                    assert_eq!(biased, add(want, case.bias[row]).to_bits());
                }
            }
        }
    }
}

#[test]
fn rows_together_are_rows_alone_and_bytes_do_not_count_rows() {
    let (units, lanes) = (&Units::new().unwrap(), Lanes::default());
    let case = Case::new(units, &mut Seed::new(9), (200, 50, 16), Limbs::Two);
    let (rows, cols) = (50, 200);
    let together = case.run(units, lanes, true);
    let streamed = |acts: &Acts| {
        let matrix = Matrix::new(case.layout, &case.bytes).unwrap();
        let call = Matvec::new(matrix, acts, Some(&case.bias), lanes).unwrap();
        let mut y = vec![0.0; acts.rows() * rows];
        let bytes = call.run(units, &mut OutTiles::new(&mut y, &case.layout, acts.rows(), 0, rows).unwrap()).unwrap();
        (bytes, bits(&y))
    };
    for token in 0..16 {
        let mut one = Acts::new();
        one.quantise(units, &case.x[token * cols..], cols, 1, cols, Limbs::Two).unwrap();
        let (bytes, y) = streamed(&one);
        assert_eq!(bytes, case.layout.bytes() as u64);
        assert_eq!(y, together[token * rows..][..rows]);
    }
    assert_eq!(streamed(&case.acts), (case.layout.bytes() as u64, together));
    let mut none = Acts::new();
    none.quantise(units, &[], cols, 0, cols, Limbs::Two).unwrap();
    assert_eq!(streamed(&none), (0, vec![]));
}

#[test]
fn pieces_written_by_threads_make_the_whole() {
    let (units, lanes) = (&Units::new().unwrap(), Lanes::default());
    let case = Case::new(units, &mut Seed::new(10), (70, 100, 5), Limbs::Two);
    let want = case.run(units, lanes, false);
    // The output lies in wider rows, from an offset on; what is around stays.
    let mut y = vec![7.0; 5 * 120 + 3];
    let out = OutTiles::new(&mut y, &case.layout, 5, 11, 120).unwrap();
    let (a, b) = out.split_at(3);
    let (b, c) = b.split_at(5);
    let call = &case.call(lanes, false);
    let bytes = std::thread::scope(|scope| {
        let threads = [a, b, c].map(|mut out| scope.spawn(move || call.run(units, &mut out).unwrap()));
        threads.map(|t| t.join().unwrap()).iter().sum::<u64>()
    });
    assert_eq!(bytes, case.layout.bytes() as u64);
    for (at, y) in y.iter().enumerate() {
        let (token, row) = (at.wrapping_sub(11) / 120, at.wrapping_sub(11) % 120);
        let inside = at >= 11 && token < 5 && row < 100;
        let want = if inside { want[token * 100 + row] } else { 7_f32.to_bits() };
        assert_eq!(y.to_bits(), want, "element {at}");
    }
}

#[test]
fn an_expert_computes_for_the_rows_that_picked_it() {
    let (units, lanes) = (&Units::new().unwrap(), Lanes::default());
    let seed = &mut Seed::new(11);
    let layout = StackLayout::new(3, 20, 40).unwrap();
    assert_eq!((layout.tiles(), layout.matrix().tiles()), (6, 2));
    let weights = values(seed, 60, 40);
    let bytes: Vec<u8> = weights.chunks(20 * 40).flat_map(|w| pack(&layout.matrix(), w)).collect();
    let stack = Stack::new(layout, &bytes).unwrap();
    let x = values(seed, 6, 40);
    let mut acts = Acts::new();
    acts.quantise(units, &x, 40, 6, 40, Limbs::Two).unwrap();
    let picked = [5, 0, 3];
    for expert in 0..3 {
        let matrix = stack.expert(expert).unwrap();
        let whole = Matvec::new(matrix, &acts, None, lanes).unwrap();
        let mut all = vec![0.0; 6 * 20];
        whole.run(units, &mut OutTiles::new(&mut all, &layout.matrix(), 6, 0, 20).unwrap()).unwrap();
        let mut y = vec![0.0; 100];
        let starts = [70, 2, 30];
        let call = whole.picked(&picked).unwrap();
        call.run(units, &mut OutTiles::at(&mut y, &layout.matrix(), &starts).unwrap()).unwrap();
        for (row, start) in picked.into_iter().zip(starts) {
            assert_eq!(bits(&y[start..start + 20]), bits(&all[row * 20..][..20]));
        }
    }
    assert!(matches!(stack.expert(3), Err(LayoutError::Index { what: "expert", given: 3, limit: 3 })));
    let call = Matvec::new(stack.expert(0).unwrap(), &acts, None, lanes).unwrap();
    assert_eq!(call.picked(&[6]).unwrap_err(), ShapeError::Row { given: 6, rows: 6 });
}

#[test]
fn a_row_unpacks_to_what_the_array_multiplies() {
    let seed = &mut Seed::new(12);
    let layout = MatrixLayout::new(20, 70).unwrap();
    let weights = values(seed, 20, 70);
    let bytes = pack(&layout, &weights);
    let matrix = Matrix::new(layout, &bytes).unwrap();
    let units = &Units::new().unwrap();
    // A one-hot row of activations reads one column of the matrix; 1 = 64 * 2^-6 exactly.
    let mut columns = vec![0.0; 70 * 70];
    (0..70).for_each(|c| columns[c * 70 + c] = 1.0);
    let mut acts = Acts::new();
    acts.quantise(units, &columns, 70, 70, 70, Limbs::One).unwrap();
    let mut y = vec![0.0; 70 * 20];
    let mut out = OutTiles::new(&mut y, &layout, 70, 0, 20).unwrap();
    Matvec::new(matrix, &acts, None, Lanes::default()).unwrap().run(units, &mut out).unwrap();
    let mut row = vec![0.0; 70];
    for r in 0..20 {
        matrix.unpack_row(r, &mut row).unwrap();
        for (c, value) in row.iter().enumerate() {
            assert_eq!(*value, y[c * 20 + r], "row {r}, column {c}");
        }
    }
    assert!(matches!(matrix.unpack_row(20, &mut row), Err(LayoutError::Index { what: "row", given: 20, limit: 20 })));
    assert!(matches!(matrix.unpack_row(0, &mut row[1..]), Err(LayoutError::Values { given: 69, expected: 70 })));
}

#[test]
fn layouts_are_aligned_and_what_does_not_fit_is_refused() {
    for cols in [1, 31, 32, 576, 4096] {
        let layout = MatrixLayout::new(33, cols).unwrap();
        assert_eq!(layout.tile_bytes() % 64, 0);
        assert_eq!((layout.tiles(), layout.tile_rows(2)), (3, 32..33));
    }
    let layout = MatrixLayout::new(20, 40).unwrap();
    let mut out = vec![0; layout.tile_bytes()];
    assert!(matches!(MatrixLayout::new(0, 4), Err(LayoutError::Empty { .. })));
    assert!(matches!(MatrixLayout::new(4, 0), Err(LayoutError::Empty { .. })));
    assert!(matches!(MatrixLayout::new(1, (1 << 20) + 1), Err(LayoutError::TooLarge { .. })));
    assert!(matches!(MatrixLayout::new(usize::MAX, 1 << 20), Err(LayoutError::TooLarge { .. })));
    assert!(matches!(StackLayout::new(usize::MAX, 9, 9), Err(LayoutError::TooLarge { .. })));
    assert!(matches!(Matrix::new(layout, &out), Err(LayoutError::Bytes { .. })));
    assert!(matches!(layout.pack_tile(2, &[], &mut out), Err(LayoutError::Index { what: "tile", .. })));
    assert!(matches!(layout.pack_tile(1, &[0.0; 161], &mut out), Err(LayoutError::Values { expected: 160, .. })));
    assert!(matches!(layout.pack_tile(1, &[0.0; 160], &mut out[1..]), Err(LayoutError::Bytes { .. })));
    let mut values = vec![0.0; 160];
    values[2 * 40 + 35] = f32::NAN;
    let error = layout.pack_tile(1, &values, &mut out).unwrap_err();
    assert!(matches!(error, LayoutError::Quant(QuantError { row: 18, block: 1, cause: Cause::NotFinite(_) })));
    assert_eq!(error.to_string(), "row 18, block 1 (columns 32 to 63): NaN is not a finite number");
}

#[test]
fn operands_that_do_not_fit_one_another_are_refused() {
    let (units, lanes) = (&Units::new().unwrap(), Lanes::default());
    let case = Case::new(units, &mut Seed::new(13), (40, 20, 3), Limbs::Two);
    let matrix = Matrix::new(case.layout, &case.bytes).unwrap();
    let mut narrow = Acts::new();
    narrow.quantise(units, &case.x, 40, 3, 39, Limbs::Two).unwrap();
    let error = Matvec::new(matrix, &narrow, None, lanes).unwrap_err();
    assert_eq!(error, ShapeError::Columns { matrix: 40, acts: 39 });
    let error = Matvec::new(matrix, &case.acts, Some(&case.bias[1..]), lanes).unwrap_err();
    assert_eq!(error, ShapeError::Bias { rows: 20, bias: 19 });
    let mut y = vec![0.0; 60];
    let mut out = OutTiles::new(&mut y, &case.layout, 2, 0, 20).unwrap();
    assert!(matches!(case.call(lanes, false).run(units, &mut out), Err(ShapeError::Output { out_tokens: 2, .. })));
    let layout = &case.layout;
    assert!(matches!(OutTiles::new(&mut y, layout, 3, 1, 20), Err(OutError::Short { token: 2, end: 61, len: 60 })));
    assert!(matches!(OutTiles::new(&mut y, layout, 3, 0, 19), Err(OutError::Overlap { .. })));
    assert!(matches!(OutTiles::new(&mut y, layout, usize::MAX, 0, 20), Err(OutError::Short { .. })));
    assert!(matches!(OutTiles::at(&mut y, layout, &[40, 5, 24]), Err(OutError::Overlap { first: 5, second: 24, .. })));
    assert!(matches!(OutTiles::at(&mut y, layout, &[41]), Err(OutError::Short { token: 0, .. })));

    let mut acts = Acts::new();
    let error = acts.quantise(units, &case.x, 41, 3, 40, Limbs::One).unwrap_err();
    assert_eq!(error, ActError::Values { rows: 3, cols: 40, stride: 41, need: 122, given: 120 });
    let mut x = vec![1.0; 120];
    x[2 * 40 + 39] = 127.0 * 2.0 * pow2(40);
    let error = acts.quantise(units, &x, 40, 3, 40, Limbs::One).unwrap_err();
    let ActError::Quant(QuantError { row: 2, block: 1, cause: Cause::TooLarge { given, limit } }) = error else {
        panic!("{error}")
    };
    assert_eq!((given, limit), (x[119], 127.0 * pow2(40)));
    // Rows quantised in parts name the row within the whole.
    let (_, tail) = acts.shape(3, 40, Limbs::One).split_at(1);
    let error = tail.quantise(units, &x[40..], 40).unwrap_err();
    assert!(matches!(error, ActError::Quant(QuantError { row: 2, block: 1, .. })));
}
