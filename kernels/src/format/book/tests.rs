//! The search against every scale that a row could have, in f64; what must be stored exactly; and pinned bytes.

use super::*;
use proptest::prelude::*;

type Row = (i8, Vec<(u8, [u8; HALF])>);

fn quantise(book: &'static Book, row: &[f32]) -> Result<Row, (usize, Cause)> {
    let mut blocks = Vec::new();
    let base = book.quantise(row, |block, byte, codes| {
        assert_eq!(block, blocks.len());
        blocks.push((byte, *codes));
    })?;
    Ok((base, blocks))
}

fn values(book: &Book, (base, blocks): &Row) -> Vec<f32> {
    let value = |(byte, codes): &(u8, [u8; HALF])| {
        let scale = book.scale(*base, *byte);
        codes.map(|code| f32::from(book.levels[usize::from(code)]) * scale)
    };
    blocks.iter().flat_map(value).collect()
}

/// The least sum of squares that a scale `s` leaves.
fn least(book: &Book, block: &[f32], s: f64) -> f64 {
    let distance = |v: &f32| {
        let all = book.levels.iter().map(|level| (f64::from(*v) - f64::from(*level) * s).powi(2));
        all.fold(f64::INFINITY, f64::min)
    };
    block.iter().map(distance).sum()
}

/// Scales over a base, by the documentation's words.
fn scales(book: &Book, base: i32) -> Vec<f64> {
    let m = 1 << book.mantissa..2 << book.mantissa;
    let sizes = (0..=book.span()).flat_map(|e| m.clone().map(move |m| f64::from(m) * 2f64.powi(base + e)));
    let signs = if book.sign == 1 { vec![1.0, -1.0] } else { vec![1.0] };
    sizes.flat_map(|s| signs.iter().map(move |sign| s * sign)).collect()
}

fn row() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        6 => -1.0_f32..1.0,
        2 => (-20_i32..20, -8_i32..4).prop_map(|(q, e)| q as f32 * 2f32.powi(e)),
        1 => Just(0.0),
    ];
    (prop::collection::vec(value, 1..80), -40_i32..30).prop_map(|(mut row, e)| {
        row.iter_mut().for_each(|v| *v *= 2f32.powi(e));
        row
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Rounding `u` to 13 bits may pick a neighbour of the window's best scale, never one that is worse by more than that.
    #[test]
    fn no_scale_of_the_window_is_better(row in row()) {
        for book in [&CODE4, &E2M1] {
            let stored = quantise(book, &row).unwrap();
            let all = scales(book, stored.0.into());
            let given = values(book, &stored);
            for ((block, given), (byte, _)) in row.chunks(HALF).zip(given.chunks(HALF)).zip(&stored.1) {
                let scale = f64::from(book.scale(stored.0, *byte));
                prop_assert!(all.contains(&scale), "{scale:e} is no scale over {}", stored.0);
                let left: f64 = block.iter().zip(given).map(|(v, g)| (f64::from(*v) - f64::from(*g)).powi(2)).sum();
                let max = block.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
                let window = (f64::from(book.low) * 1.01 * max / 16.0)..(f64::from(book.high) * 0.99 * max / 16.0);
                let inside = all.iter().filter(|s| window.contains(&(s.abs() * f64::from(book.top()))));
                let best = inside.map(|s| least(book, block, *s)).fold(f64::INFINITY, f64::min);
                prop_assert!(left <= best * 1.02 + 1e-5 * max * max, "{left:e} is left where {best:e} could be");
            }
        }
    }

    /// OCP's own blocks come back bit for bit, halves that hold no largest element among them.
    #[test]
    fn e2m1_blocks_are_stored_exactly(
        codes in prop::collection::vec(0_usize..15, 1..100),
        scales in prop::collection::vec(0_i32..20, 4),
        e in -50_i32..20,
    ) {
        let row: Vec<f32> = codes.iter().enumerate().map(|(i, code)| {
            let value = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0][*code];
            value * 2f32.powi(e + scales[i / 32])
        }).collect();
        let stored = values(&E2M1, &quantise(&E2M1, &row).unwrap());
        prop_assert_eq!(&stored[..row.len()], &row[..]);
    }
}

#[test]
fn zeros_and_what_is_too_small_are_zero() {
    for book in [&CODE4, &E2M1] {
        let tiny = [1e-30_f32; HALF];
        for row in [vec![0.0; 20], vec![-0.0; 20], vec![1e-42; 20], tiny.to_vec()] {
            let (base, blocks) = quantise(book, &row).unwrap();
            assert_eq!(i32::from(base), EXP_MIN);
            assert!(blocks.iter().all(|(byte, codes)| *byte == 0 && *codes == [book.zero(); HALF]));
        }
        assert_eq!(book.levels[usize::from(book.zero())], 0);
        // A block far below its row's largest is zero there, and the row's largest is near.
        let mut row = vec![1e-9; 2 * HALF];
        row[HALF..].fill(1.0);
        let row = quantise(book, &row).unwrap();
        let row = values(book, &row);
        assert!(row[HALF..].iter().all(|v| (v - 1.0).abs() < 0.05), "{row:?}");
        assert!(row[..HALF].iter().all(|v| v.abs() < 1e-2), "{row:?}");
    }
}

#[test]
fn what_has_no_form_is_refused_by_its_block() {
    for book in [&CODE4, &E2M1] {
        let mut row = vec![0.5; 40];
        row[35] = f32::NAN;
        assert!(matches!(quantise(book, &row), Err((2, Cause::NotFinite(_)))));
        row[35] = 1e30;
        assert!(matches!(quantise(book, &row), Err((2, Cause::TooLarge { given: 1e30, .. }))));
        row[35] = 2f32.powi(44);
        assert!(quantise(book, &row).is_ok());
    }
}

/// A sum of 16 products with an activation limb, times m, is an integer that f32 holds.
#[test]
fn the_budget_holds() {
    for book in [&CODE4, &E2M1] {
        let sum = HALF as i32 * book.top() * 128;
        assert!(sum * ((2 << book.mantissa) - 1) < 1 << 24);
        assert!(book.levels.is_sorted());
    }
}

#[test]
fn the_bytes_are_pinned() {
    let row: Vec<f32> = (0..40).map(|i| ((i * 29 % 41) as f32 - 17.0) * 0.03).collect();
    let lines = [&CODE4, &E2M1].map(|book| {
        let (base, blocks) = quantise(book, &row).unwrap();
        blocks.iter().fold(base.to_string(), |line, (byte, codes)| format!("{line} {byte:02x}:{}", hex(codes)))
    });
    let code4 = "-19 ea:1d83ea5fc72e94fb ed:ae37c15a038d26b0 e6:c61e93fb88888888";
    let e2m1 = "-38 fa:2c73da4ec62d94eb fb:62c83da5ec73d94e f9:c62d93eb77777777";
    assert_eq!(lines, [code4, e2m1]);
}

fn hex(codes: &[u8; HALF]) -> String {
    codes.iter().map(|code| format!("{code:x}")).collect()
}
