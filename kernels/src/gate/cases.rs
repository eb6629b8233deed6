//! The tests of the init gate: operands at every border, the form against the mirror, by bits.

use crate::cpu::matvec::{ArrayForm, GROUP, Mirror, RowOut, Run, Scales};
use crate::format::{BLOCK, Lanes, Limbs, Weights};
use crate::matvec::{Acts, Group, Matrix, MatrixLayout, Matvec, Space, TILE_ROWS, ZERO};
use crate::probe::Seed;

/// How a test's integers are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    /// All of one pair.
    Constant(i8, i8),
    /// -128, -127, -1, 0, 1, 127.
    Edges,
    /// Every second weight row, and every second row of activations, is zero.
    ZeroRows,
    /// One 1 in each row of weights, at another column in each.
    OneHot,
    /// Any byte.
    Random,
    /// Magnitudes of at least 96, all of one sign: sums of more bits than an f32 holds.
    Large,
}

pub(crate) const FILLS: [Fill; 8] = [
    Fill::Constant(127, 127),
    Fill::Constant(-128, -128),
    Fill::Constant(-128, 127),
    Fill::Edges,
    Fill::ZeroRows,
    Fill::OneHot,
    Fill::Random,
    Fill::Large,
];

/// Columns, matrix rows, token-rows: around every border of block, tile, group and lane.
pub(crate) const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (3, 17, 2),
    (31, 15, 3),
    (32, 16, 4),
    (33, 18, 5),
    (64, 1, 7),
    (65, 33, 1),
    (127, 16, 8),
    (255, 5, 9),
    (257, 31, 2),
    (300, 16, 17),
    (1056, 16, 1),
];

/// The 4-bit formats.
pub(crate) const CODED: [Weights; 2] = [Weights::Code4, Weights::E2m1];

/// Rows of values that meet every branch of the quantiser.
pub(crate) const QUANTISED: usize = 64;

/// How many tests there are.
pub(super) fn count() -> usize {
    FILLS.len() * SHAPES.len() + 2 * (QUANTISED + SHAPES.len()) + 2 * CODED.len() * SHAPES.len()
}

/// Run all tests.
///
/// # Errors
/// The name of the first that fails.
pub(super) fn run(form: &dyn ArrayForm) -> Result<(), String> {
    for (l, limbs) in [Limbs::Two, Limbs::One].into_iter().enumerate() {
        for (s, shape) in SHAPES.into_iter().enumerate() {
            // Each shape meets each fill with one limb or with two.
            for f in (0..FILLS.len()).filter(|f| (s + f + l) % 2 == 0) {
                matvec(form, shape, FILLS[f], limbs, (s * FILLS.len() + f) as u64)?;
            }
            for (w, weights) in CODED.into_iter().enumerate() {
                coded(form, shape, weights, limbs, (s * 4 + w * 2 + l) as u64)?;
            }
            strided(form, shape, limbs, s as u64)?;
        }
        for seed in 0..QUANTISED as u64 {
            quantise(form, limbs, seed)?;
        }
    }
    Ok(())
}

impl Fill {
    fn weight(self, seed: &mut Seed, row: usize, col: usize) -> i8 {
        match self {
            Fill::Constant(w, _) => w,
            Fill::Edges => edge(seed),
            Fill::ZeroRows if row.is_multiple_of(2) => 0,
            Fill::OneHot => i8::from(col % 61 == (row * 7 + 3) % 61),
            Fill::Large => 96 + seed.below(32) as i8,
            Fill::ZeroRows | Fill::Random => seed.next() as i8,
        }
    }

    fn act(self, seed: &mut Seed, row: usize) -> i8 {
        match self {
            Fill::Constant(_, x) => x,
            Fill::Edges => edge(seed),
            Fill::ZeroRows if !row.is_multiple_of(2) => 0,
            Fill::Large => 96 + seed.below(32) as i8,
            Fill::ZeroRows | Fill::OneHot | Fill::Random => seed.next() as i8,
        }
    }
}

fn edge(seed: &mut Seed) -> i8 {
    [-128, -127, -1, 0, 1, 127][seed.below(6) as usize]
}

/// Quantised rows by their integers; what lies past the columns is zero, as the quantiser leaves it, and of two limbs the
/// high one is above -128: joined they fit 16 bits.
pub(crate) fn acts(seed: &mut Seed, fill: Fill, rows: usize, cols: usize, limbs: Limbs) -> Acts {
    let blocks = cols.div_ceil(BLOCK);
    let (mut q, mut scale) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for block in 0..blocks {
            for place in 0..limbs.count() {
                let least = if place + 1 < limbs.count() { -127 } else { -128 };
                let mut limb = [0; BLOCK];
                for x in limb.iter_mut().take(cols - block * BLOCK) {
                    *x = fill.act(seed, row).max(least);
                }
                q.push(limb);
            }
            scale.push(crate::format::pow2(seed.below(40) as i32 - 20));
        }
    }
    Acts::from_limbs(rows, cols, limbs.count(), &q, &scale)
}

/// A matrix by its integers, with bases and scale bytes of every kind.
pub(crate) fn matrix(seed: &mut Seed, fill: Fill, layout: &MatrixLayout) -> Vec<u8> {
    let mut bytes = Vec::new();
    for tile in 0..layout.tiles() {
        let scales = layout.tile_bytes() - layout.blocks() * BLOCK * TILE_ROWS;
        bytes.extend((0..TILE_ROWS).map(|_| (seed.below(24) as i8 - 30) as u8));
        bytes.extend((TILE_ROWS..scales).map(|_| seed.next() as u8));
        for block in 0..layout.blocks() {
            for i in 0..BLOCK * TILE_ROWS {
                let (quad, r, k) = (i / 64, i / 4 % 16, i % 4);
                let (row, col) = (tile * TILE_ROWS + r, block * BLOCK + quad * 4 + k);
                let inside = row < layout.rows() && col < layout.cols();
                bytes.push(if inside { fill.weight(seed, row, col) as u8 ^ ZERO } else { ZERO });
            }
        }
    }
    bytes
}

fn matvec(
    form: &dyn ArrayForm,
    (cols, rows, tokens): (usize, usize, usize),
    fill: Fill,
    limbs: Limbs,
    number: u64,
) -> Result<(), String> {
    let name = || format!("matvec {rows}x{cols}, {tokens} rows, {} limbs, {fill:?}", limbs.count());
    let seed = &mut Seed::new(number);
    let layout = MatrixLayout::new(rows, cols).map_err(|e| e.to_string())?;
    let bytes = matrix(seed, fill, &layout);
    let acts = acts(seed, fill, tokens, cols, limbs);
    product(form, layout, &bytes, &acts, number, name)
}

/// A matrix of 4-bit codes: any codes and scale bytes, or the levels of largest magnitude against large activations.
fn coded(
    form: &dyn ArrayForm,
    (cols, rows, tokens): (usize, usize, usize),
    weights: Weights,
    limbs: Limbs,
    number: u64,
) -> Result<(), String> {
    let name = || format!("matvec {rows}x{cols}, {weights:?}, {tokens} rows, {} limbs, {number}", limbs.count());
    let seed = &mut Seed::new(3000 + number);
    let layout = MatrixLayout::of(weights, rows, cols).map_err(|e| e.to_string())?;
    let (bytes, acts) = coded_operands(seed, &layout, tokens, limbs, number % 4 == 3);
    product(form, layout, &bytes, &acts, number, name)
}

/// A matrix of any codes and scale bytes with any rows, or one of the levels of largest magnitude with rows of large values.
pub(crate) fn coded_operands(
    seed: &mut Seed,
    layout: &MatrixLayout,
    tokens: usize,
    limbs: Limbs,
    largest: bool,
) -> (Vec<u8>, Acts) {
    let mut bytes = Vec::with_capacity(layout.bytes());
    for _ in 0..layout.tiles() {
        let scales = layout.tile_bytes() - layout.blocks() * layout.block_bytes();
        bytes.extend((0..TILE_ROWS).map(|_| (seed.below(24) as i8 - 30) as u8));
        bytes.extend((TILE_ROWS..scales).map(|_| seed.next() as u8));
        bytes.extend((scales..layout.tile_bytes()).map(|_| if largest { 0 } else { seed.next() as u8 }));
    }
    let fill = if largest { Fill::Large } else { Fill::Random };
    let acts = acts(seed, fill, tokens, layout.cols(), limbs);
    (bytes, acts)
}

/// The form's product against the mirror's.
fn product(
    form: &dyn ArrayForm,
    layout: MatrixLayout,
    bytes: &[u8],
    acts: &Acts,
    number: u64,
    name: impl Fn() -> String,
) -> Result<(), String> {
    let tokens = acts.rows();
    let matrix = Matrix::new(layout, bytes).map_err(|e| e.to_string())?;
    let lanes = [8, 32, 4, 16].map(Lanes::new)[number as usize / 2 % 4].unwrap_or_default();
    let call = Matvec::new(matrix, acts, None, lanes).map_err(|e| e.to_string())?;
    let mut spaces = [Space::default(), Space::default()];
    let [one, other] = &mut spaces;
    let (mut mirror, mut form) = (Group::new(&call, &Mirror, one), Group::new(&call, form, other));
    for tile in 0..layout.tiles() {
        for first in (0..tokens).step_by(GROUP) {
            let n = GROUP.min(tokens - first);
            let mut pairs = mirror.results(tile, first, n).iter().zip(form.results(tile, first, n));
            if !pairs.all(|(want, got)| same(want, got)) {
                return Err(name());
            }
        }
    }
    Ok(())
}

/// Blocks that lie apart, start anywhere in the rows and at any lane, add to lanes that hold something, and have no
/// scales: what the attention unit asks of the array.
fn strided(
    form: &dyn ArrayForm,
    (cols, _, tokens): (usize, usize, usize),
    limbs: Limbs,
    number: u64,
) -> Result<(), String> {
    let seed = &mut Seed::new(1000 + number);
    let acts = acts(seed, Fill::Random, tokens, cols, limbs);
    let first_act = number as usize % acts.blocks();
    let (blocks, stride) = (acts.blocks() - first_act, BLOCK * TILE_ROWS + 64 * (number as usize % 3));
    let elements: Vec<u8> = (0..blocks * stride).map(|_| seed.next() as u8).collect();
    let rows: Vec<usize> = (0..tokens.min(GROUP)).rev().collect();
    let lanes = 8;
    let start: Vec<[f32; TILE_ROWS]> =
        (0..rows.len() * lanes).map(|_| std::array::from_fn(|_| seed.below(1 << 20) as f32)).collect();
    let scales = Scales::Unit;
    let run =
        Run { elements: &elements, stride, blocks, scales, acts: &acts, first_act, first_lane: number as usize, lanes };
    let (mut want, mut got) = (start.clone(), start);
    Mirror.accumulate(&run, &rows, &mut want);
    form.accumulate(&run, &rows, &mut got);
    if same(want.as_flattened(), got.as_flattened()) {
        return Ok(());
    }
    Err(format!("run of {blocks} blocks from block {first_act}, stride {stride}, {} limbs", limbs.count()))
}

/// A row of at most 130 values of many sizes, ties and zeros; rows 0, 1 and 2 must be refused.
pub(crate) fn quantiser_row(limbs: Limbs, number: u64) -> Vec<f32> {
    let seed = &mut Seed::new(2000 + number);
    let cols = 1 + seed.below(130) as usize;
    let mut row: Vec<f32> = (0..cols)
        .map(|i| match (number + i as u64 / 32) % 4 {
            0 => f32::from_bits(seed.next() as u32 & 0xbfff_ffff),
            // The largest magnitude makes the scale 1, so that every second value is a tie.
            1 if i % BLOCK == 0 => limbs.max() as f32,
            1 => (seed.below(u64::from(4 * limbs.max())) as f32 - 2.0 * limbs.max() as f32) * 0.5,
            2 => seed.below(3) as f32 * 1e-19,
            _ => seed.below(1 << 24) as f32 / 16_777_216.0 - 0.5,
        })
        .collect();
    match number {
        0 => row[cols - 1] = f32::NAN,
        1 => row[cols - 1] = f32::NEG_INFINITY,
        2 => row[cols - 1] = 1e30,
        _ => (),
    }
    row
}

/// The quantiser on a row of values of many sizes, ties, zeros, and on rows that must be refused.
fn quantise(form: &dyn ArrayForm, limbs: Limbs, number: u64) -> Result<(), String> {
    let row = quantiser_row(limbs, number);
    let cols = row.len();
    let make = |form: &dyn ArrayForm| {
        let (n, l) = (cols.div_ceil(BLOCK), limbs.count());
        let (mut q8, mut q16, mut fix, mut half, mut scale) =
            (vec![0; n * l * BLOCK], vec![0; n * BLOCK], vec![0; n * l], vec![0; n * l], vec![0.0; n]);
        let mut out = RowOut { q8: &mut q8, q16: &mut q16, fix: &mut fix, half: &mut half, scale: &mut scale };
        let result = form.quantise(&row, limbs, &mut out).map_err(|(block, cause)| (block, cause.to_string()));
        result.map(|()| (q8, q16, fix, half, scale))
    };
    if make(form) == make(&Mirror) {
        return Ok(());
    }
    Err(format!("quantise {cols} values, {} limbs, row {number}", limbs.count()))
}

pub(crate) fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
