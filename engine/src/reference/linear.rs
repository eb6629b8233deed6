//! Matrix products of the reference units: f32 weights, f64 sums.

use super::q4_k::q4_k;
use crate::team::{Columns, Team};

/// Output rows that one part computes at a time.
const TILE: usize = 8;
/// f64 lanes of a sum: its order is fixed by them, not by the instruction set.
const LANES: usize = 4;
/// Values that share one scale in the int8 baseline.
const BLOCK: usize = 32;

/// How the reference multiplies a matrix with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linear {
    /// As the values are.
    Exact,
    /// Both sides rounded to int8 in blocks of 32 along the reduction, scale max/127 in f32: what common 8-bit kernels
    /// do. The baseline that the engine's own format is compared with.
    Q8,
    /// Weights as Q4_K stores them (`q4_k`), activations as they are: what common 4-bit kernels start from.
    Q4K,
}

impl Linear {
    /// A row of activations as its product sees it, in f64.
    pub(crate) fn widen(self, row: &[f32], out: &mut [f64]) {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { self.widen_avx2(row, out) };
        }
        self.widen_each(row, out);
    }

    /// [`Linear::widen_each`] compiled for AVX2, which rounds in one instruction.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn widen_avx2(self, row: &[f32], out: &mut [f64]) {
        self.widen_each(row, out);
    }

    #[inline(always)]
    fn widen_each(self, row: &[f32], out: &mut [f64]) {
        match self {
            Linear::Exact | Linear::Q4K => out.iter_mut().zip(row).for_each(|(out, v)| *out = f64::from(*v)),
            Linear::Q8 => {
                for (out, block) in out.chunks_mut(BLOCK).zip(row.chunks(BLOCK)) {
                    let scale = block.iter().fold(0.0_f32, |max, v| max.max(v.abs())) / 127.0;
                    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                    for (out, v) in out.iter_mut().zip(block) {
                        *out = f64::from((v * inverse).round_ties_even()) * f64::from(scale);
                    }
                }
            }
        }
    }
}

impl Linear {
    /// Make a row of weights what the file that is emulated would hold, once, when it is read. An embedding that is the
    /// head's matrix too is looked up in it, as it is there.
    pub(crate) fn store(self, row: &mut [f32]) {
        match self {
            Linear::Exact | Linear::Q8 => {}
            Linear::Q4K => q4_k(row),
        }
    }
}

/// One product: `out[row][offset + i] = sum over k of weight[i][k] * x[row][k] (+ bias[i])`.
pub(crate) struct Product<'a> {
    /// (out, in), row-major.
    pub(crate) weight: &'a [f32],
    /// Columns of the weight.
    pub(crate) cols: usize,
    /// `[rows, cols]`, already widened.
    pub(crate) x: &'a [f64],
    /// `[out]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// First element of a row of `out` written.
    pub(crate) offset: usize,
    /// How weights are widened.
    pub(crate) linear: Linear,
}

impl Product<'_> {
    /// Write the product into `out`, rows of `width`.
    pub(crate) fn run(&self, team: &mut Team, out: &mut [f32], width: usize) {
        let outputs = self.weight.len().checked_div(self.cols).unwrap_or(0);
        let columns = Columns::new(out, width);
        let work = self.weight.len() * self.x.len().checked_div(self.cols).unwrap_or(0);
        team.run(work, outputs.div_ceil(TILE), &|part| {
            let first = part * TILE;
            let count = TILE.min(outputs - first);
            let mut weights = vec![0.0; count * self.cols];
            for (i, row) in weights.chunks_mut(self.cols).enumerate() {
                self.linear.widen(&self.weight[(first + i) * self.cols..][..self.cols], row);
            }
            for (row, x) in self.x.chunks(self.cols).enumerate() {
                // SAFETY: part `part` alone writes the columns of its own output rows.
                let out = unsafe { columns.segment(row, self.offset + first, count) };
                for (i, (out, w)) in out.iter_mut().zip(weights.chunks(self.cols)).enumerate() {
                    let bias = self.bias.map_or(0.0, |b| f64::from(b[first + i]));
                    *out = (dot(w, x) + bias) as f32;
                }
            }
        });
    }
}

/// The sum of products, in [`LANES`] lanes of f64.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { dot_avx2(a, b) };
    }
    dot_lanes(a, b)
}

/// [`dot_lanes`] compiled for AVX2: the same operations in the same order.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn dot_avx2(a: &[f64], b: &[f64]) -> f64 {
    dot_lanes(a, b)
}

#[inline(always)]
fn dot_lanes(a: &[f64], b: &[f64]) -> f64 {
    // Four independent groups of lanes keep the adders busy.
    const GROUPS: usize = 4;
    let mut sums = [[0.0; LANES]; GROUPS];
    let (a_blocks, a_rest) = a.as_chunks::<{ LANES * GROUPS }>();
    let (b_blocks, b_rest) = b.as_chunks::<{ LANES * GROUPS }>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for group in 0..GROUPS {
            for lane in 0..LANES {
                sums[group][lane] += a[group * LANES + lane] * b[group * LANES + lane];
            }
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().flatten().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_the_sum_it_says_for_any_team() {
        let (rows, cols, outputs) = (3, 37, 21);
        let weight: Vec<f32> = (0..outputs * cols).map(|i| ((i * 31 % 101) as f32 - 50.0) / 64.0).collect();
        let x: Vec<f64> = (0..rows * cols).map(|i| ((i * 17 % 89) as f64 - 44.0) / 32.0).collect();
        let bias: Vec<f32> = (0..outputs).map(|i| i as f32).collect();
        let product = Product { weight: &weight, cols, x: &x, bias: Some(&bias), offset: 2, linear: Linear::Exact };
        let width = outputs + 5;
        for members in [1, 2] {
            let mut out = vec![-1.0; rows * width];
            product.run(&mut Team::eager(members), &mut out, width);
            for (row, out) in out.chunks(width).enumerate() {
                for i in 0..outputs {
                    // Every operand is a multiple of 2^-11 and small: the f64 sum is exact in any order.
                    let sum: f64 = (0..cols).map(|k| f64::from(weight[i * cols + k]) * x[row * cols + k]).sum();
                    assert_eq!(out[2 + i], (sum + i as f64) as f32);
                }
                assert_eq!((out[0], out[width - 1]), (-1.0, -1.0), "columns beside the product stay");
            }
        }
    }

    #[test]
    fn the_baseline_rounds_to_255_steps_of_a_block() {
        let row: Vec<f32> = (0..40).map(|i| i as f32 - 20.0).collect();
        let mut out = vec![0.0; 40];
        Linear::Q8.widen(&row, &mut out);
        let step = 20.0 / 127.0;
        for (v, q) in row[..32].iter().zip(&out[..32]) {
            assert!((f64::from(*v) - q).abs() <= step / 2.0 + 1e-6);
            assert!((q / step - (q / step).round()).abs() < 1e-4);
        }
        assert!(out[..32].iter().zip(&row).any(|(q, v)| *q != f64::from(*v)), "the baseline rounds");
    }
}
