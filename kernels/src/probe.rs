//! The kernel probe: one seeded product of matrices through the array unit, hashed; every device must print the pin.

use crate::cpu::matvec::ArrayForm;
use crate::format::{Lanes, Limbs, Weights};
use crate::matvec::{Acts, Group, Matrix, MatrixLayout, Matvec, Space};
use sha2::{Digest, Sha256};

/// SHA-256 over the bits of the probe's results, row by row, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Probe(pub [u8; 32]);

impl Probe {
    /// The probe of a pin.
    const fn from_hex(hex: &str) -> Self {
        const fn digit(c: u8) -> u8 {
            if c < b'a' { c - b'0' } else { c - b'a' + 10 }
        }
        let (hex, mut bytes, mut i) = (hex.as_bytes(), [0; 32], 0);
        while i < 32 {
            bytes[i] = digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]);
            i += 1;
        }
        Self(bytes)
    }
}

impl std::fmt::Display for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// The array unit's probe.
pub const ARRAY: Probe = Probe::from_hex("a1e337d6676d9165114175d1ce6c26b0b446491f4c20a99a25af2771c86141fe");

/// The same of a matrix of 4-bit codes.
pub const CODE4: Probe = Probe::from_hex("3822b1e5cf1c1aec37f3a5614f54130715336cf1bc8c984ddc5182b5c93ffeca");
/// The same of a matrix of E2M1 values.
pub const E2M1: Probe = Probe::from_hex("89c79ab69d01431798aa3a25ff1d748290c39200ecfb3aaa5973576e679d7db0");

/// The pinned probe of a matrix in a format.
#[must_use]
pub const fn pinned(weights: Weights) -> Probe {
    match weights {
        Weights::Int8 => ARRAY,
        Weights::Code4 => CODE4,
        Weights::E2m1 => E2M1,
    }
}

/// Matrix rows, columns and token-rows of the probe.
const SHAPE: (usize, usize, usize) = (40, 330, 5);

/// The probe of one form: the operands quantised and multiplied at the default numerics.
pub(crate) fn array(form: &dyn ArrayForm, weights: Weights) -> Probe {
    let Some(operands) = Operands::of(weights) else { return Probe([0; 32]) };
    let (rows, cols, tokens) = SHAPE;
    let mut acts = Acts::new();
    let mut places = acts.shape(tokens, cols, Limbs::Two);
    for (row, values) in operands.values.chunks_exact(cols).enumerate() {
        if form.quantise(values, Limbs::Two, &mut places.space(row)).is_err() {
            return Probe([0; 32]);
        }
    }
    let Some(call) = operands.matrix().and_then(|m| Matvec::new(m, &acts, None, Lanes::default()).ok()) else {
        return Probe([0; 32]);
    };
    let mut space = Space::default();
    let mut group = Group::new(&call, form, &mut space);
    let tiles: Vec<Vec<_>> = (0..operands.layout.tiles()).map(|tile| group.results(tile, 0, tokens).to_vec()).collect();
    let results: Vec<f32> =
        (0..tokens).flat_map(|token| tiles.iter().flat_map(move |tile| tile[token]).take(rows)).collect();
    hash(&results)
}

/// What the probe multiplies: a matrix and rows of values, drawn from a seed.
pub(crate) struct Operands {
    pub(crate) layout: MatrixLayout,
    bytes: Vec<u8>,
    /// `[tokens, cols]`.
    pub(crate) values: Vec<f32>,
}

impl Operands {
    /// `None` where the format cannot hold them, which would be a bug.
    pub(crate) fn of(weights: Weights) -> Option<Self> {
        let (rows, cols, tokens) = SHAPE;
        let seed = &mut Seed::new(0x776f_7264_6c69_6e65);
        let layout = MatrixLayout::of(weights, rows, cols).ok()?;
        let mut bytes = vec![0; layout.bytes()];
        for (tile, out) in bytes.chunks_exact_mut(layout.tile_bytes()).enumerate() {
            let values: Vec<f32> = (0..layout.tile_rows(tile).len() * cols).map(|_| seed.value()).collect();
            layout.pack_tile(tile, &values, out).ok()?;
        }
        let values = (0..tokens * cols).map(|_| seed.value()).collect();
        Some(Self { layout, bytes, values })
    }

    pub(crate) fn matrix(&self) -> Option<Matrix<'_>> {
        Matrix::new(self.layout, &self.bytes).ok()
    }
}

/// The probe of results `[tokens, rows]`.
pub(crate) fn hash(results: &[f32]) -> Probe {
    let mut hash = Sha256::new();
    results.iter().for_each(|y| hash.update(y.to_bits().to_le_bytes()));
    Probe(hash.finalize().into())
}

/// A stream of integers that is the same everywhere (splitmix64).
pub(crate) struct Seed(u64);

impl Seed {
    pub(crate) fn new(start: u64) -> Self {
        Self(start)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An integer below `limit`, at most 2^32.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((self.next() >> 32) * limit) >> 32
    }

    /// A value in -1..1 times a power of two from 2^-6 to 2^1.
    pub(crate) fn value(&mut self) -> f32 {
        let (unit, e) = (self.below(1 << 24) as i32 - (1 << 23), self.below(8) as i32 - 29);
        unit as f32 * crate::format::pow2(e)
    }
}
