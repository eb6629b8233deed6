//! How far one row of logits lies from another, as the distributions that they stand for. All in f64.

/// Natural logarithms of the softmax of a row.
#[must_use]
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().fold(f64::NEG_INFINITY, |top, &l| top.max(f64::from(l)));
    let sum: f64 = logits.iter().map(|&l| libm::exp(f64::from(l) - top)).sum();
    let norm = top + libm::log(sum);
    logits.iter().map(|&l| f64::from(l) - norm).collect()
}

/// KL(p || q) in nats, from the logarithms of both. What p thinks impossible adds nothing.
#[must_use]
pub fn kl(log_p: &[f64], log_q: &[f64]) -> f64 {
    log_p.iter().zip(log_q).filter(|(p, _)| **p > f64::NEG_INFINITY).map(|(p, q)| libm::exp(*p) * (p - q)).sum()
}

/// A mean that knows how many values it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    /// Take a value.
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// The mean; NaN of no values.
    #[must_use]
    pub fn get(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Values seen.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_shifts_change_nothing() {
        let row = [1.0, 2.0, -3.0, 0.5];
        let log_p = log_softmax(&row);
        assert!((log_p.iter().map(|l| l.exp()).sum::<f64>() - 1.0).abs() < 1e-15);
        let shifted = log_softmax(&row.map(|l| l + 1000.0));
        assert!(log_p.iter().zip(&shifted).all(|(a, b)| (a - b).abs() < 1e-12));
    }

    #[test]
    fn kl_of_known_distributions() {
        let (p, q) = (log_softmax(&[0.5_f32.ln(), 0.5_f32.ln()]), log_softmax(&[0.25_f32.ln(), 0.75_f32.ln()]));
        let expected = 0.5 * 2.0_f64.ln() + 0.5 * (2.0_f64 / 3.0).ln();
        assert!((kl(&p, &q) - expected).abs() < 1e-7);
        assert_eq!(kl(&p, &p), 0.0);
        assert_eq!(kl(&log_softmax(&[0.0, f32::NEG_INFINITY]), &p), 2.0_f64.ln());
    }
}
