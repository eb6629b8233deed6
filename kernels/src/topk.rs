//! The router's choice: the largest of a row, ties to the lower index, in falling order.

use crate::vector::VectorUnit;

/// Writes the indices of the `picks.len()` largest values, the largest first, the lower index first among equals.
///
/// # Panics
/// When more are asked for than there are.
pub fn largest(values: &[f32], picks: &mut [usize]) {
    assert!(picks.len() <= values.len(), "{} picks of {}", picks.len(), values.len());
    let mut taken = 0;
    for (index, value) in values.iter().enumerate() {
        // Strictly larger only: an equal value that came earlier stays ahead.
        let place = picks[..taken].iter().position(|p| values[*p] < *value).unwrap_or(taken);
        if place == picks.len() {
            continue;
        }
        taken = (taken + 1).min(picks.len());
        picks.copy_within(place..taken - 1, place + 1);
        picks[place] = index;
    }
}

/// Memory that the router's choice works in, reused from row to row.
#[derive(Clone, Debug, Default)]
pub struct Space {
    probabilities: Vec<f32>,
    chosen: Vec<usize>,
}

impl VectorUnit {
    /// Softmax over the router's logits; the `picks.len()` most probable experts with their probabilities, which are
    /// divided by their sum where `renormalise` says so. Picks are whole numbers.
    ///
    /// # Panics
    /// When there are more picks than logits, or another number of weights than of picks.
    pub fn top_k(&self, logits: &[f32], renormalise: bool, picks: &mut [f32], weights: &mut [f32]) {
        self.top_k_in(logits, renormalise, picks, weights, &mut Space::default());
    }

    /// The same in memory that the caller keeps from call to call.
    ///
    /// # Panics
    /// As [`VectorUnit::top_k`].
    pub fn top_k_in(
        &self,
        logits: &[f32],
        renormalise: bool,
        picks: &mut [f32],
        weights: &mut [f32],
        space: &mut Space,
    ) {
        assert_eq!(picks.len(), weights.len(), "a weight for each pick");
        let Space { probabilities, chosen } = space;
        probabilities.resize(logits.len(), 0.0);
        self.softmax(logits, probabilities);
        chosen.resize(picks.len(), 0);
        largest(probabilities, chosen);
        for ((pick, weight), index) in picks.iter_mut().zip(weights.iter_mut()).zip(&*chosen) {
            // Expert numbers are below 2^16, so exact.
            *pick = *index as f32;
            *weight = probabilities[*index];
        }
        if renormalise {
            self.renormalise(weights);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn top(values: &[f32], k: usize) -> Vec<usize> {
        let mut picks = vec![usize::MAX; k];
        largest(values, &mut picks);
        picks
    }

    #[test]
    fn falling_order_and_ties_to_the_lower_index() {
        assert_eq!(top(&[1.0, 3.0, 2.0, 3.0, 0.5], 4), [1, 3, 2, 0]);
        assert_eq!(top(&[2.0; 5], 3), [0, 1, 2]);
        assert_eq!(top(&[1.0, 2.0, 2.0, 1.0], 4), [1, 2, 0, 3]);
        assert_eq!(top(&[5.0], 1), [0]);
        assert_eq!(top(&[5.0, 4.0], 0), []);
    }

    #[test]
    fn weights_are_probabilities() {
        let unit = VectorUnit::new();
        let (mut picks, mut weights) = ([0.0; 2], [0.0; 2]);
        // exp of 0, ln 2, ln 4 is 1, 2, 4.
        let logits = [0.0, std::f32::consts::LN_2, 2.0 * std::f32::consts::LN_2];
        unit.top_k(&logits, false, &mut picks, &mut weights);
        assert_eq!(picks, [2.0, 1.0]);
        assert!((weights[0] - 4.0 / 7.0).abs() < 1e-7 && (weights[1] - 2.0 / 7.0).abs() < 1e-7);
        unit.top_k(&logits, true, &mut picks, &mut weights);
        assert!((weights[0] - 2.0 / 3.0).abs() < 1e-7 && (weights[1] - 1.0 / 3.0).abs() < 1e-7);
    }

    proptest! {
        #[test]
        fn equals_a_stable_sort(values in prop::collection::vec(-3i8..4, 1..80), k in 0usize..80) {
            let values: Vec<f32> = values.into_iter().map(f32::from).collect();
            let k = k.min(values.len());
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
            prop_assert_eq!(top(&values, k), &order[..k]);
        }
    }
}
