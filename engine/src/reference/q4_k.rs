//! Q4_K, the 4-bit baseline: super-blocks of 256 weights of eight blocks of 32, `d * scale * q - dmin * min` with 4-bit
//! `q`, 6-bit scales and minima and two f16 factors; 4.5 bits a weight.
//!
//! The rule is that of common 4-bit files without calibration data: each block tries 21 ranges, fits scale and minimum
//! to the codes of each by weighted least squares, a weight counting `rms + |w|`, and keeps the best; then scales and
//! minima are rounded and the codes made again. A row's last super-block may be short here; files refuse such rows.

/// Weights that share a scale.
const BLOCK: usize = 32;
/// Weights of a super-block.
const SUPER: usize = 256;
/// Largest code.
const TOP: f32 = 15.0;

/// A row as Q4_K stores it.
pub(super) fn q4_k(row: &mut [f32]) {
    for row in row.chunks_mut(SUPER) {
        let fits: Vec<(f32, f32)> = row.chunks(BLOCK).map(fit).collect();
        let largest = |of: fn(&(f32, f32)) -> f32| fits.iter().map(of).fold(0.0, f32::max);
        let (scale, min) = (largest(|f| f.0), largest(|f| f.1));
        let six = |value: f32, largest: f32| {
            if largest > 0.0 { (63.0 / largest * value).round_ties_even().min(63.0) } else { 0.0 }
        };
        let (d, d_min) = (f16(scale / 63.0), f16(min / 63.0));
        for (block, fit) in row.chunks_mut(BLOCK).zip(&fits) {
            let (step, below) = (d * six(fit.0, scale), d_min * six(fit.1, min));
            for v in block {
                let code = if step > 0.0 { ((*v + below) / step).round_ties_even().clamp(0.0, TOP) } else { 0.0 };
                *v = step * code - below;
            }
        }
    }
}

/// Scale and minimum (as a positive number below zero) of a block.
fn fit(block: &[f32]) -> (f32, f32) {
    let squares: f32 = block.iter().map(|v| v * v).sum();
    let rms = (squares / block.len() as f32).sqrt();
    let low = block.iter().fold(0.0_f32, |low, v| low.min(*v));
    let high = block.iter().fold(f32::NEG_INFINITY, |high, v| high.max(*v));
    if high <= low {
        return (0.0, -low);
    }
    let codes =
        |steps: f32| block.iter().map(move |v| (steps / (high - low) * (v - low)).round_ties_even().clamp(0.0, TOP));
    let error = |steps: f32, scale: f32, min: f32| -> f32 {
        let each = block.iter().zip(codes(steps));
        each.map(|(v, code)| (rms + v.abs()) * (scale * code + min - v).powi(2)).sum()
    };
    let mut best = ((high - low) / TOP, low);
    let mut least = error(TOP, best.0, best.1);
    for step in 0..=20 {
        let steps = TOP - 1.0 + 0.1 * step as f32;
        let [mut w, mut x, mut l, mut ll, mut lx] = [0.0_f32; 5];
        for (v, code) in block.iter().zip(codes(steps)) {
            let weight = rms + v.abs();
            w += weight;
            x += weight * v;
            l += weight * code;
            ll += weight * code * code;
            lx += weight * code * v;
        }
        let determinant = w * ll - l * l;
        if determinant <= 0.0 {
            continue;
        }
        let (mut scale, mut min) = ((w * lx - x * l) / determinant, (ll * x - l * lx) / determinant);
        if min > 0.0 {
            (scale, min) = (lx / ll, 0.0);
        }
        let left = error(steps, scale, min);
        if left < least {
            (best, least) = ((scale, min), left);
        }
    }
    (best.0, -best.1)
}

/// A positive value rounded to f16, half to even.
fn f16(value: f32) -> f32 {
    // Below 2^-14 the step is 2^-24; above, ten bits follow the first.
    let exponent = ((value.to_bits() >> 23) as i32 - 127).max(-14);
    let step = 2.0_f32.powi(exponent - 10);
    (value / step).round_ties_even() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_as_their_definition_says() {
        for (value, half) in
            [(1.0, 1.0), (1.0 + 2f32.powi(-11), 1.0), (1.0 + 3.0 * 2f32.powi(-11), 1.0 + 2f32.powi(-9))]
        {
            assert_eq!(f16(value), half);
        }
        assert_eq!((f16(2f32.powi(-25)), f16(3.0 * 2f32.powi(-25)), f16(0.0)), (0.0, 2f32.powi(-23), 0.0));
    }

    /// A block on a grid of 16 steps is stored as it is, and one whose values are all positive has no minimum.
    #[test]
    fn a_grid_is_kept() {
        let row: Vec<f32> = (0..SUPER + 40).map(|i| (i * 7 % 16) as f32 * 63.0 * 2f32.powi(-9)).collect();
        let mut out = row.clone();
        q4_k(&mut out);
        for (v, q) in row.iter().zip(&out) {
            assert!((v - q).abs() < 1e-3, "{v} became {q}");
        }
    }

    #[test]
    fn the_search_leaves_less_than_plain_rounding() {
        let row: Vec<f32> = (0..SUPER).map(|i| libm::sinf(i as f32 * 12.9898) * libm::cosf(i as f32 * 4.1)).collect();
        let mut out = row.clone();
        q4_k(&mut out);
        let error: f64 = row.iter().zip(&out).map(|(v, q)| f64::from(v - q).powi(2)).sum();
        let square: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
        let plain: f64 = row
            .chunks(BLOCK)
            .map(|block| {
                let max = block.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                block
                    .iter()
                    .map(|v| (f64::from(*v) - f64::from((v / max * 7.0).round() * max / 7.0)).powi(2))
                    .sum::<f64>()
            })
            .sum();
        assert!(error < 0.8 * plain && error < 0.01 * square, "{error} of {square}, plain {plain}");
        let mut zeros = [0.0; 70];
        q4_k(&mut zeros);
        assert!(zeros.iter().all(|v| *v == 0.0));
    }
}
