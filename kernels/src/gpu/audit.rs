//! The live-shape audit of products on a device: what was read back, held to the mirror.
//!
//! The init gate sees made-up operands; this sees the real ones. The host still has the weights, so a tile of one
//! token-row costs it sixteen rows; a caller that finds a mismatch demotes the method
//! ([`super::gate::DeviceArray::demote`]) and runs the step again.

use crate::cpu::matvec::{Mirror, quantise_row};
use crate::flush::{add, mul};
use crate::format::{Lanes, Limbs};
use crate::matvec::{Acts, Group, Matrix, Matvec, Space, Stack, TILE_ROWS};
use std::ops::Range;

/// A result of the device that is not the mirror's.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("element {element} is {given:e} ({:#010x}), the mirror computes {expected:e} ({:#010x})", given.to_bits(), expected.to_bits())]
pub struct DeviceMismatch {
    /// Row of the matrix.
    pub element: usize,
    /// The device's result.
    pub given: f32,
    /// The mirror's.
    pub expected: f32,
}

/// One token-row of a product that the device made.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The weights.
    pub matrix: Matrix<'a>,
    /// The values that were quantised, `[cols]`.
    pub x: &'a [f32],
    /// Limbs of the numerics.
    pub limbs: Limbs,
    /// Lanes of the numerics.
    pub lanes: Lanes,
    /// Bias, `[rows]`.
    pub bias: Option<&'a [f32]>,
    /// What the product was added to, `[rows]`, and what it was multiplied by before.
    pub residual: Option<(&'a [f32], f32)>,
    /// The device's results, `[rows]`.
    pub given: &'a [f32],
}

impl Sample<'_> {
    /// Recompute the rows of one tile, counted modulo the matrix's tiles. Operands of other lengths, or values that
    /// the quantiser refuses, are not this check's to find: it passes them.
    ///
    /// # Errors
    /// The first element whose bits differ.
    pub fn check(&self, tile: usize) -> Result<(), DeviceMismatch> {
        if self.given.len() != self.matrix.layout().rows() {
            return Ok(());
        }
        let Some((rows, values)) = tile_of(self.matrix, self.x, self.limbs, self.lanes, self.bias, tile) else {
            return Ok(());
        };
        rows.zip(values).try_for_each(|(element, value)| {
            let before = self.residual.and_then(|(x, scale)| x.get(element).map(|x| (*x, scale)));
            let expected = before.map_or(value, |(x, scale)| add(x, mul(value, scale)));
            same(element, self.given[element], expected)
        })
    }
}

/// Tiles of what picked experts made of one token-row, recomputed: `given` is `[picks, rows]`, or with weights their sum,
/// `[rows]`; `x` is one vector, or with weights one a pick. What does not fit together passes, as in [`Sample::check`].
///
/// # Errors
/// The first element whose bits differ; without weights they are counted through all picks.
#[expect(clippy::too_many_arguments, reason = "what a routed command takes")]
pub fn routed(
    stack: Stack<'_>,
    x: &[f32],
    picks: &[f32],
    weights: Option<&[f32]>,
    limbs: Limbs,
    lanes: Lanes,
    given: &[f32],
    tiles: impl Iterator<Item = usize>,
) -> Result<(), DeviceMismatch> {
    let layout = stack.layout().matrix();
    let (rows, cols) = (layout.rows(), layout.cols());
    let results = if weights.is_some() { 1 } else { picks.len() };
    if given.len() < results * rows || weights.is_some_and(|weights| weights.len() < picks.len()) {
        return Ok(());
    }
    for tile in tiles {
        let mut sums = vec![0.0_f32; layout.tile_rows(tile % layout.tiles()).len()];
        for (pick, number) in picks.iter().enumerate() {
            let vector = if weights.is_some() { x.get(pick * cols..(pick + 1) * cols) } else { x.get(..cols) };
            let (Some(vector), Ok(expert)) = (vector, stack.expert(*number as usize)) else { return Ok(()) };
            let Some((range, values)) = tile_of(expert, vector, limbs, lanes, None, tile) else { return Ok(()) };
            match weights {
                None => range.zip(values).try_for_each(|(row, v)| {
                    let element = pick * rows + row;
                    same(element, given[element], v)
                })?,
                Some(weights) => {
                    sums.iter_mut().zip(values).for_each(|(sum, v)| *sum = add(*sum, mul(weights[pick], v)));
                }
            }
        }
        if weights.is_some() {
            let range = layout.tile_rows(tile % layout.tiles());
            range.zip(&sums).try_for_each(|(row, sum)| same(row, given[row], *sum))?;
        }
    }
    Ok(())
}

fn same(element: usize, given: f32, expected: f32) -> Result<(), DeviceMismatch> {
    if given.to_bits() == expected.to_bits() { Ok(()) } else { Err(DeviceMismatch { element, given, expected }) }
}

/// The mirror's results of one tile, with its rows; `None` where there are none to have.
fn tile_of(
    matrix: Matrix<'_>,
    x: &[f32],
    limbs: Limbs,
    lanes: Lanes,
    bias: Option<&[f32]>,
    tile: usize,
) -> Option<(Range<usize>, [f32; TILE_ROWS])> {
    let layout = matrix.layout();
    if x.len() != layout.cols() {
        return None;
    }
    let (mut acts, mut space) = (Acts::new(), Space::default());
    quantise_row(x, limbs, &mut acts.shape(1, layout.cols(), limbs).space(0)).ok()?;
    let call = Matvec::new(matrix, &acts, bias, lanes).ok()?;
    let tile = tile % layout.tiles();
    let mut group = Group::new(&call, &Mirror, &mut space);
    let values = group.results(tile, 0, 1).first().copied()?;
    Some((layout.tile_rows(tile), values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matvec::MatrixLayout;
    use crate::probe::Seed;

    #[test]
    fn one_wrong_bit_in_the_sampled_tile_is_found_and_named() {
        let (rows, cols) = (37, 70);
        let seed = &mut Seed::new(5);
        let layout = MatrixLayout::new(rows, cols).unwrap();
        let mut bytes = vec![0; layout.bytes()];
        for (tile, out) in bytes.chunks_exact_mut(layout.tile_bytes()).enumerate() {
            let values: Vec<f32> = (0..layout.tile_rows(tile).len() * cols).map(|_| seed.value()).collect();
            layout.pack_tile(tile, &values, out).unwrap();
        }
        let mut values = |n: usize| -> Vec<f32> { (0..n).map(|_| seed.value()).collect() };
        let (x, bias, before) = (values(cols), values(rows), values(rows));
        let matrix = Matrix::new(layout, &bytes).unwrap();
        let (limbs, lanes) = (Limbs::Two, Lanes::default());
        let mut acts = Acts::new();
        quantise_row(&x, limbs, &mut acts.shape(1, cols, limbs).space(0)).unwrap();
        let call = Matvec::new(matrix, &acts, Some(&bias), lanes).unwrap();
        let product = crate::gpu::gate::bits::mirror(&call);
        let mut given: Vec<f32> = product.iter().zip(&before).map(|(v, x)| add(*x, mul(*v, 0.5))).collect();
        let residual = Some((&before[..], 0.5));
        let sample = |given: &[f32]| -> Vec<Result<(), DeviceMismatch>> {
            let sample = Sample { matrix, x: &x, limbs, lanes, bias: Some(&bias), residual, given };
            (0..4).map(|tile| sample.check(tile)).collect()
        };
        assert!(sample(&given).iter().all(Result::is_ok));
        given[36] = f32::from_bits(given[36].to_bits() ^ 1);
        let found = sample(&given);
        assert!(matches!(found[2], Err(DeviceMismatch { element: 36, .. })), "{found:?}");
        assert!(found[0].is_ok() && found[1].is_ok() && found[3].is_ok());
    }
}
