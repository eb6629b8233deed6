//! `RandomWeights`: weights drawn from a seed, for models whose checkpoint is not at hand.
//!
//! A value depends on the seed, the tensor's name and the value's place in the tensor, so it is the same whoever asks,
//! in whatever pieces and from however many threads. Matrices are uniform with a variance of one over their columns:
//! every product then has the scale of what enters it, and no layer's output vanishes or grows without bound. Plain
//! tensors lie around one, as the weights of norms do.

use std::ops::Range;
use wordline_engine::source::{SourceError, WeightSource};
use wordline_ir::{Tensor, TensorKind};

/// A source of random weights.
#[derive(Clone, Copy, Debug)]
pub struct RandomWeights {
    seed: u64,
}

/// Step of the counter: odd, so that all counts of a tensor give different numbers.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl RandomWeights {
    /// Weights of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Where a tensor's count starts: FNV-1a over its name, mixed with the seed.
    fn start(&self, tensor: &Tensor) -> u64 {
        let name = tensor
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        mix(name ^ mix(self.seed))
    }
}

/// Bits of a count: a multiply and two shifts either side, after which every bit of the count is felt in every other.
#[inline]
fn mix(count: u64) -> u64 {
    let mut bits = count;
    bits = (bits ^ (bits >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    bits = (bits ^ (bits >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    bits ^ (bits >> 32)
}

/// A number in -1..1 out of 32 bits.
#[inline]
fn signed(bits: u32) -> f32 {
    bits as i32 as f32 * (1.0 / 2_147_483_648.0)
}

impl WeightSource for RandomWeights {
    fn read_rows(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        let cols = tensor.cols;
        if rows.end > tensor.rows || rows.start > rows.end || out.len() != rows.len() * cols {
            let (rows, len) = (format!("{}..{}", rows.start, rows.end), out.len());
            return Err(SourceError::new(tensor, format!("{len} values were asked for as rows {rows} of {cols}")));
        }
        let (centre, spread) = match tensor.kind {
            TensorKind::Plain => (1.0, 0.25),
            // A uniform number of -1..1 has a variance of a third.
            TensorKind::Matrix | TensorKind::Stack { .. } => (0.0, (3.0 / cols.max(1) as f32).sqrt()),
        };
        let (start, first) = (self.start(tensor), (rows.start * cols) as u64);
        // Two values a count: half the work, and a piece may begin at either.
        let draw = |place: u64| {
            let bits = mix(start.wrapping_add((place / 2).wrapping_mul(STEP)));
            centre + spread * signed((bits >> (32 * (place % 2))) as u32)
        };
        for (i, value) in out.iter_mut().enumerate() {
            *value = draw(first + i as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wordline_ir::spec::View;

    fn tensor(name: &str, kind: TensorKind, rows: usize, cols: usize) -> Tensor {
        Tensor { name: name.to_owned(), kind, rows, cols, view: View::whole(name, &[rows, cols]) }
    }

    fn read(source: &RandomWeights, tensor: &Tensor, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![f32::NAN; rows.len() * tensor.cols];
        source.read_rows(tensor, rows, &mut out).unwrap();
        out
    }

    #[test]
    fn pieces_are_the_whole() {
        let tensor = tensor("a", TensorKind::Matrix, 40, 33);
        let source = RandomWeights::new(7);
        let whole = read(&source, &tensor, 0..40);
        let pieces = [0..3, 3..4, 4..4, 4..29, 29..40].map(|rows| read(&source, &tensor, rows)).concat();
        assert_eq!(whole, pieces);
    }

    #[test]
    fn seed_and_name_decide() {
        let [a, b] = ["a", "b"].map(|name| tensor(name, TensorKind::Matrix, 4, 64));
        let source = RandomWeights::new(1);
        assert_ne!(read(&source, &a, 0..4), read(&source, &b, 0..4));
        assert_ne!(read(&source, &a, 0..4), read(&RandomWeights::new(2), &a, 0..4));
    }

    /// Mean, variance and the correlation of neighbours, over so many values that five deviations are small.
    #[test]
    fn matrices_have_a_variance_of_one_over_their_columns() {
        let (rows, cols) = (512, 768);
        let values = read(&RandomWeights::new(0), &tensor("m", TensorKind::Matrix, rows, cols), 0..rows);
        let n = values.len() as f64;
        let scaled: Vec<f64> = values.iter().map(|v| f64::from(*v) * (cols as f64).sqrt()).collect();
        let mean = scaled.iter().sum::<f64>() / n;
        let variance = scaled.iter().map(|v| v * v).sum::<f64>() / n;
        let neighbours = scaled.windows(2).map(|v| v[0] * v[1]).sum::<f64>() / n;
        let near = 5.0 / n.sqrt();
        assert!(mean.abs() < near && (variance - 1.0).abs() < near && neighbours.abs() < near);
    }

    #[test]
    fn plain_tensors_lie_around_one() {
        let values = read(&RandomWeights::new(0), &tensor("n", TensorKind::Plain, 4096, 1), 0..4096);
        assert!(values.iter().all(|v| (0.75..=1.25).contains(v)) && values.iter().any(|v| *v < 0.8));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let tensor = tensor("a", TensorKind::Matrix, 4, 8);
        let source = RandomWeights::new(0);
        assert!(source.read_rows(&tensor, 0..5, &mut [0.0; 40]).is_err());
        assert!(source.read_rows(&tensor, 0..1, &mut [0.0; 9]).is_err());
    }
}
