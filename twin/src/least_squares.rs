//! Least squares over the logarithms of positive numbers within bounds: Gauss-Newton steps, damped as Marquardt does.

use crate::TwinError;

/// Steps, at most; it ends when a step moves nothing by more than this share.
const STEPS: usize = 60;
const STILL: f64 = 1e-6;
/// Share by which a value is moved to see what it does: more than whole cycles hide.
const NUDGE: f64 = 0.01;

/// Move `values`, each within its `bounds`, to where the squares of `residuals` sum to least, as far as steps downhill
/// lead. There are no fewer residuals than it takes to fix the values, or some that hold a value where it is.
pub(crate) fn descend(
    values: &mut [f64],
    bounds: &[(f64, f64)],
    mut residuals: impl FnMut(&[f64]) -> Result<Vec<f64>, TwinError>,
) -> Result<(), TwinError> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let put = |value: f64, (low, high): (f64, f64)| value.clamp(low, high);
    let mut now = residuals(values)?;
    let mut damping = 1e-3;
    for _ in 0..STEPS {
        let mut slopes = Vec::with_capacity(values.len());
        for (at, bound) in bounds.iter().enumerate() {
            let mut moved = values.to_vec();
            // At a bound the other way is open.
            let way = if values[at] * (1.0 + NUDGE) <= bound.1 { NUDGE } else { -NUDGE };
            moved[at] = put(values[at] * (1.0 + way), *bound);
            let step = (1.0 + way).ln();
            slopes.push(residuals(&moved)?.iter().zip(&now).map(|(a, r)| (a - r) / step).collect::<Vec<f64>>());
        }
        let mut normal: Vec<Vec<f64>> = slopes.iter().map(|a| slopes.iter().map(|b| dot(a, b)).collect()).collect();
        let wanted: Vec<f64> = slopes.iter().map(|a| -dot(a, &now)).collect();
        for (at, row) in normal.iter_mut().enumerate() {
            row[at] = row[at] * (1.0 + damping) + 1e-12;
        }
        let next: Vec<f64> = solve(normal, wanted)
            .iter()
            .zip(values.iter().zip(bounds))
            .map(|(step, (value, bound))| put(value * step.clamp(-1.0, 1.0).exp(), *bound))
            .collect();
        let found = residuals(&next)?;
        let still = next.iter().zip(&*values).all(|(a, b)| (a / b).ln().abs() < STILL);
        if dot(&found, &found) < dot(&now, &now) {
            values.copy_from_slice(&next);
            now = found;
            damping = (damping / 3.0).max(1e-9);
        } else {
            damping *= 4.0;
        }
        if still || damping > 1e9 {
            break;
        }
    }
    Ok(())
}

/// The solution of a small system of equations with a positive diagonal, by elimination.
fn solve(mut rows: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let n = right.len();
    for at in 0..n {
        for below in at + 1..n {
            let factor = rows[below][at] / rows[at][at];
            let (upper, lower) = rows.split_at_mut(below);
            lower[0].iter_mut().zip(&upper[at]).for_each(|(x, y)| *x -= factor * y);
            right[below] -= factor * right[at];
        }
    }
    for at in (0..n).rev() {
        let known: f64 = (at + 1..n).map(|i| rows[at][i] * right[i]).sum();
        right[at] = (right[at] - known) / rows[at][at];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_made_the_figures_and_stays_in_bounds() {
        // y = a + b * x over x in 1..6, as shares of what is measured.
        let run = |truth: (f64, f64), bounds: &[(f64, f64)]| {
            let mut values = vec![1.0, 1.0];
            descend(&mut values, bounds, |v| {
                Ok((1..6).map(|x| ((v[0] + v[1] * f64::from(x)) / (truth.0 + truth.1 * f64::from(x))).ln()).collect())
            })
            .unwrap();
            values
        };
        let found = run((30.0, 0.2), &[(1e-3, 1e3), (1e-3, 1e3)]);
        assert!((found[0] / 30.0 - 1.0).abs() < 1e-3 && (found[1] / 0.2 - 1.0).abs() < 1e-2, "{found:?}");
        let found = run((30.0, 0.2), &[(1e-3, 10.0), (1e-3, 1e3)]);
        assert!(found[0] <= 10.0 && found[1] > 0.2, "{found:?}");
    }
}
