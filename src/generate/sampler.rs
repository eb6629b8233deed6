//! `Sampler`: picks the next token from a row of logits.
//!
//! A pick is a function of the settings, the seed, the ids so far and the logits: everything is computed in f64 with
//! the portable math library, candidates are ordered by logit and then by id, and the random stream is ChaCha8, whose
//! output is fixed by its definition. The same seed writes the same text on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cmp::Ordering;

/// How the next token is picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The largest logit; ties to the lower id.
    Greedy,
    /// A draw from the filtered distribution.
    Draw(Draw),
}

/// Settings of a draw. Filters apply in the order of the fields, as the reference framework applies them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides the positive logits of ids already seen and multiplies the negative ones; 1 changes nothing. > 0.
    pub repetition_penalty: f32,
    /// Divides the logits. > 0.
    pub temperature: f32,
    /// Keep this many of the largest logits, ties to the lower id; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of the most likely tokens whose mass reaches this; 1 keeps all. In 0..=1.
    pub top_p: f32,
    /// Drop tokens less likely than this times the likeliest; 0 keeps all. In 0..=1.
    pub min_p: f32,
}

impl Default for Draw {
    fn default() -> Self {
        Self { repetition_penalty: 1.0, temperature: 1.0, top_k: 50, top_p: 1.0, min_p: 0.0 }
    }
}

/// A setting outside its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {given}; it must be {range}")]
pub struct SamplingError {
    /// Setting.
    pub name: &'static str,
    /// Its value.
    pub given: f32,
    /// What it may be.
    pub range: &'static str,
}

impl Draw {
    /// The settings, when each lies in its range.
    ///
    /// # Errors
    /// The first setting that does not.
    pub fn checked(self) -> Result<Self, SamplingError> {
        let positive = |name, given: f32| {
            let ok = given.is_finite() && given > 0.0;
            ok.then_some(()).ok_or(SamplingError { name, given, range: "a finite number above 0" })
        };
        let share = |name, given: f32| {
            (0.0..=1.0).contains(&given).then_some(()).ok_or(SamplingError { name, given, range: "in 0..=1" })
        };
        positive("repetition_penalty", self.repetition_penalty)?;
        positive("temperature", self.temperature)?;
        share("top_p", self.top_p)?;
        share("min_p", self.min_p)?;
        Ok(self)
    }
}

/// Picks tokens, one a call.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// A sampler whose draws start at `seed`.
    #[must_use]
    pub fn new(sampling: Sampling, seed: u64) -> Self {
        Self { sampling, rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The next token after `ids`, given one row of logits. `None` when `logits` is empty.
    pub fn pick(&mut self, logits: &[f32], ids: &[u32]) -> Option<u32> {
        match self.sampling {
            Sampling::Greedy => argmax(logits),
            Sampling::Draw(draw) => {
                // 53 bits: every value of the grid is an f64, and 1.0 is never drawn.
                let unit = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                pick_at(&candidates(&draw, logits, ids), unit)
            }
        }
    }
}

/// Index of the largest logit; ties to the lower id, NaN below everything. `None` when there is none.
#[must_use]
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (id, &logit) in logits.iter().enumerate() {
        if best.is_none_or(|(_, top)| logit > top || (top.is_nan() && !logit.is_nan())) {
            best = Some((id, logit));
        }
    }
    best.and_then(|(id, _)| u32::try_from(id).ok())
}

/// The tokens that survive the filters with their unnormalised probabilities, likeliest first.
fn candidates(draw: &Draw, logits: &[f32], ids: &[u32]) -> Vec<(u32, f64)> {
    let mut scores: Vec<(u32, f64)> = (0_u32..).zip(logits.iter().map(|&l| f64::from(l))).collect();
    if draw.repetition_penalty != 1.0 {
        let penalty = f64::from(draw.repetition_penalty);
        let mut seen = ids.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            if let Some((_, score)) = scores.get_mut(id as usize) {
                *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
            }
        }
    }
    let order = |a: &(u32, f64), b: &(u32, f64)| match b.1.partial_cmp(&a.1) {
        Some(Ordering::Equal) | None => a.0.cmp(&b.0),
        Some(order) => order,
    };
    scores.retain(|(_, score)| !score.is_nan());
    if draw.top_k > 0 && draw.top_k < scores.len() {
        scores.select_nth_unstable_by(draw.top_k - 1, order);
        scores.truncate(draw.top_k);
    }
    scores.sort_unstable_by(order);
    let top = scores.first().map_or(0.0, |(_, score)| *score);
    let temperature = f64::from(draw.temperature);
    for (_, score) in &mut scores {
        // The likeliest token's weight is exp(0) = 1, so nothing overflows; with an infinite top only it remains.
        *score = if *score == top { 1.0 } else { libm::exp((*score - top) / temperature) };
    }
    if draw.top_p < 1.0 {
        let mass: f64 = scores.iter().map(|(_, weight)| weight).sum();
        let enough = mass * f64::from(draw.top_p);
        let mut sum = 0.0;
        let reached = scores.iter().position(|(_, weight)| {
            sum += weight;
            sum >= enough
        });
        scores.truncate(reached.map_or(scores.len(), |last| last + 1));
    }
    let least = f64::from(draw.min_p);
    scores.retain(|(_, weight)| *weight >= least);
    scores
}

/// The candidate in whose share of the mass the point `unit`, in 0..1, falls.
fn pick_at(candidates: &[(u32, f64)], unit: f64) -> Option<u32> {
    let mass: f64 = candidates.iter().map(|(_, weight)| weight).sum();
    let mut left = unit * mass;
    for (id, weight) in candidates {
        if left < *weight {
            return Some(*id);
        }
        left -= weight;
    }
    candidates.last().map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Draw = Draw { repetition_penalty: 1.0, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    fn kept(draw: Draw, logits: &[f32], ids: &[u32]) -> Vec<u32> {
        candidates(&draw, logits, ids).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn greedy_ties_go_to_the_lower_id() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(argmax(&[f32::NAN, -1.0, -1.0]), Some(1));
        assert_eq!(argmax(&[f32::NEG_INFINITY; 2]), Some(0));
        assert_eq!(argmax(&[]), None);
    }

    #[test]
    fn top_k_keeps_the_lower_of_tied_ids() {
        assert_eq!(kept(Draw { top_k: 2, ..FREE }, &[1.0, 2.0, 1.0, 1.0], &[]), [1, 0]);
        assert_eq!(kept(Draw { top_k: 9, ..FREE }, &[1.0, 2.0], &[]), [1, 0]);
    }

    #[test]
    fn top_p_keeps_the_token_that_reaches_the_mass() {
        let logits = [0.5_f32, 0.3, 0.2].map(f32::ln);
        assert_eq!(kept(Draw { top_p: 0.49, ..FREE }, &logits, &[]), [0]);
        assert_eq!(kept(Draw { top_p: 0.51, ..FREE }, &logits, &[]), [0, 1]);
        assert_eq!(kept(Draw { top_p: 0.81, ..FREE }, &logits, &[]), [0, 1, 2]);
        assert_eq!(kept(Draw { top_p: 0.0, ..FREE }, &logits, &[]), [0], "one token always remains");
    }

    #[test]
    fn top_p_measures_the_mass_that_top_k_left() {
        // Of the first two tokens alone the first holds 0.625.
        let logits = [0.5_f32, 0.3, 0.2].map(f32::ln);
        assert_eq!(kept(Draw { top_k: 2, top_p: 0.6, ..FREE }, &logits, &[]), [0]);
    }

    #[test]
    fn min_p_is_relative_to_the_likeliest() {
        let logits = [0.5_f32, 0.3, 0.2].map(f32::ln);
        assert_eq!(kept(Draw { min_p: 0.5, ..FREE }, &logits, &[]), [0, 1]);
    }

    #[test]
    fn repetition_penalty_pushes_seen_ids_down_on_both_sides_of_zero() {
        assert_eq!(kept(Draw { repetition_penalty: 2.0, ..FREE }, &[3.0, 2.0, -1.0, -1.5], &[0, 2, 0]), [1, 0, 3, 2]);
    }

    #[test]
    fn one_seed_writes_one_text_and_draws_follow_the_distribution() {
        let logits = [0.7_f32, 0.3].map(f32::ln);
        let draws = |seed| {
            let mut sampler = Sampler::new(Sampling::Draw(FREE), seed);
            (0..4000).filter_map(|_| sampler.pick(&logits, &[])).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
        let ones = draws(7).iter().sum::<u32>();
        assert!((1080..1320).contains(&ones), "id 1 has probability 0.3, drawn {ones} of 4000");
        // The stream itself is part of the contract: a text's seed must write the same text tomorrow.
        assert_eq!(draws(7)[..16], PINNED);
    }

    const PINNED: [u32; 16] = [0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0];

    #[test]
    fn infinite_and_absurd_logits_never_panic() {
        for logits in [[f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2], [f32::NAN; 2], [f32::MAX, f32::MIN]] {
            let mut sampler = Sampler::new(Sampling::Draw(Draw { temperature: 1e-30, top_p: 0.5, ..FREE }), 1);
            let _ = sampler.pick(&logits, &[u32::MAX]);
        }
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        assert_eq!(Draw { temperature: 0.0, ..FREE }.checked().unwrap_err().name, "temperature");
        assert_eq!(Draw { temperature: f32::NAN, ..FREE }.checked().unwrap_err().name, "temperature");
        assert_eq!(Draw { top_p: 1.5, ..FREE }.checked().unwrap_err().name, "top_p");
        assert_eq!(Draw { min_p: -0.1, ..FREE }.checked().unwrap_err().name, "min_p");
        assert_eq!(Draw { repetition_penalty: 0.0, ..FREE }.checked().unwrap_err().name, "repetition_penalty");
    }
}
