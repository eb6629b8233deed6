//! `Load`: what a step advances: sequences, the rows of each, and the positions that each has behind it.

use crate::TwinError;

/// Sequences that are alike in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequences {
    /// How many.
    pub count: u64,
    /// Token-rows of each.
    pub rows: u64,
    /// Positions in the cache of each before the step.
    pub ctx: u64,
}

/// Which token-rows read out logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Logits {
    /// The last of each sequence: decode, or the end of a prompt.
    Last,
    /// All: a draft's rows are checked.
    All,
}

/// What a step advances.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    groups: Vec<Sequences>,
    logits: Logits,
    /// How unevenly experts are picked: the exponent of their Zipf law; 0: all alike.
    pub skew: f64,
}

/// How unevenly experts are picked where nothing else is said. Trained routers have favourites; published batches of one
/// mixture touch about as many experts as this exponent says (docs/twin.md).
pub const SKEW: f64 = 0.8;

/// Largest counts that a load may have: far above any step, far below an overflow.
const MOST: u64 = 1 << 24;

impl Load {
    /// A load of groups of sequences.
    ///
    /// # Errors
    /// A count is zero or out of reach.
    pub fn new(groups: Vec<Sequences>, logits: Logits, skew: f64) -> Result<Load, TwinError> {
        let refuse = |what, given: String, reason: &str| Err(TwinError::Load { what, given, reason: reason.into() });
        if groups.is_empty() {
            return refuse("sequences", "0".into(), "a step advances at least one");
        }
        for group in &groups {
            for (what, value, least) in [("sequences", group.count, 1), ("rows", group.rows, 1), ("ctx", group.ctx, 0)]
            {
                if !(least..=MOST).contains(&value) {
                    return refuse(what, value.to_string(), &format!("it lies between {least} and {MOST}"));
                }
            }
        }
        let rows: u128 = groups.iter().map(|g| u128::from(g.count) * u128::from(g.rows)).sum();
        if rows > u128::from(MOST) {
            return refuse("rows of all sequences", rows.to_string(), &format!("a step holds at most {MOST}"));
        }
        if !(0.0..=10.0).contains(&skew) {
            return refuse("skew", skew.to_string(), "the exponent of experts' use lies between 0 and 10");
        }
        Ok(Load { groups, logits, skew })
    }

    /// `sequences` sequences of `rows` rows over `ctx` positions each.
    ///
    /// # Errors
    /// As [`Load::new`].
    pub fn even(sequences: u64, rows: u64, ctx: u64, logits: Logits) -> Result<Load, TwinError> {
        Load::new(vec![Sequences { count: sequences, rows, ctx }], logits, 0.0)
    }

    /// One token of one sequence over `ctx` positions.
    ///
    /// # Errors
    /// As [`Load::new`].
    pub fn decode(ctx: u64) -> Result<Load, TwinError> {
        Load::even(1, 1, ctx, Logits::Last)
    }

    /// The groups.
    #[must_use]
    pub fn groups(&self) -> &[Sequences] {
        &self.groups
    }

    /// Token-rows of the step.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.groups.iter().map(|g| g.count * g.rows).sum()
    }

    /// Sequences of the step.
    #[must_use]
    pub fn sequences(&self) -> u64 {
        self.groups.iter().map(|g| g.count).sum()
    }

    /// Rows that read out logits.
    #[must_use]
    pub fn logit_rows(&self) -> u64 {
        match self.logits {
            Logits::Last => self.sequences(),
            Logits::All => self.rows(),
        }
    }

    /// The longest sequence after the step.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.groups.iter().map(|g| g.ctx + g.rows).max().unwrap_or(0)
    }

    /// Positions that the rows see, summed over rows: their own included, no more than `window` each (0: all).
    #[must_use]
    pub fn seen(&self, window: u64) -> u64 {
        self.groups.iter().map(|g| g.count * sum_min(g.ctx + 1, 1, g.rows, cap(window))).sum()
    }

    /// Positions that are read when up to `share` rows of a sequence read its cache together.
    #[must_use]
    pub fn read(&self, window: u64, share: u64) -> u64 {
        let share = share.max(1);
        let sequence = |g: &Sequences| {
            let step = share.min(g.rows);
            // The rows of a pass see up to the last one's position, from the first one's window on.
            let full = g.rows / step;
            let whole = sum_min(g.ctx + step, step, full, cap(window).saturating_add(step - 1));
            let rest = g.rows % step;
            let last = if rest == 0 { 0 } else { (g.ctx + g.rows).min(cap(window).saturating_add(rest - 1)) };
            whole + last
        };
        self.groups.iter().map(|g| g.count * sequence(g)).sum()
    }

    /// Positions that the caches hold after the step, all sequences together, no more than a window's each.
    #[must_use]
    pub fn held(&self, window: u64) -> u64 {
        self.groups.iter().map(|g| g.count * (g.ctx + g.rows).min(cap(window).saturating_add(g.rows - 1))).sum()
    }

    /// The load of the `part`th of `parts` equal shares of its sequences; none where there are fewer sequences.
    #[must_use]
    pub(crate) fn share(&self, parts: u64) -> Load {
        let groups = self.groups.iter().map(|g| Sequences { count: g.count.div_ceil(parts), ..*g }).collect();
        Load { groups, ..self.clone() }
    }

    /// So many loads like this one together.
    #[must_use]
    pub(crate) fn times(&self, count: u64) -> Load {
        let groups = self.groups.iter().map(|g| Sequences { count: g.count.saturating_mul(count), ..*g }).collect();
        Load { groups, ..self.clone() }
    }

    /// Experts of `experts` that are expected to be picked at all when each row picks `k`.
    #[must_use]
    pub fn distinct(&self, experts: u64, k: u64, rows: u64) -> f64 {
        let (n, k) = (experts as f64, k.min(experts) as f64);
        if experts == 0 {
            return 0.0;
        }
        if rows <= 1 {
            return k;
        }
        if self.skew == 0.0 {
            return n * (1.0 - (1.0 - k / n).powf(rows as f64));
        }
        let weights: Vec<f64> = (1..=experts).map(|e| (e as f64).powf(-self.skew)).collect();
        // A row picks an expert once at most: chances above 1 go to the others.
        let mut chances = vec![0.0_f64; weights.len()];
        let (mut left, mut first) = (k, 0);
        while first < weights.len() {
            let sum: f64 = weights[first..].iter().sum();
            let top = left * weights[first] / sum;
            if top < 1.0 {
                chances[first..].iter_mut().zip(&weights[first..]).for_each(|(c, w)| *c = left * w / sum);
                break;
            }
            chances[first] = 1.0;
            (left, first) = (left - 1.0, first + 1);
        }
        chances.iter().map(|c| 1.0 - (1.0 - c).powf(rows as f64)).sum()
    }
}

fn cap(window: u64) -> u64 {
    if window == 0 { u64::MAX } else { window }
}

/// The sum of min(start + i * step, cap) over i in 0..n.
fn sum_min(start: u64, step: u64, n: u64, cap: u64) -> u64 {
    // Terms below the cap come first.
    let below = if start >= cap { 0 } else { n.min((cap - start).div_ceil(step.max(1))) };
    let rising = u128::from(below) * u128::from(start)
        + u128::from(step) * u128::from(below) * u128::from(below.saturating_sub(1)) / 2;
    let level = u128::from(n - below) * u128::from(cap);
    u64::try_from(rising + level).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_equal_their_terms() {
        for start in [0, 1, 5, 100] {
            for step in [1, 3, 16] {
                for n in [0, 1, 2, 9, 40] {
                    for cap in [1, 7, 100, u64::MAX] {
                        let terms: u64 = (0..n).map(|i| (start + i * step).min(cap)).sum();
                        assert_eq!(sum_min(start, step, n, cap), terms, "{start} {step} {n} {cap}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_share_nothing_read_what_they_see() {
        let groups = vec![Sequences { count: 3, rows: 5, ctx: 9 }, Sequences { count: 1, rows: 1, ctx: 0 }];
        let load = Load::new(groups, Logits::Last, 0.0).unwrap();
        for window in [0, 1, 4, 12, 100] {
            assert_eq!(load.read(window, 1), load.seen(window), "window {window}");
        }
        // All five rows of a sequence read its 14 positions together once.
        assert_eq!(load.read(0, 5), 3 * 14 + 1);
        assert_eq!(load.read(0, 2), 3 * (11 + 13 + 14) + 1);
        assert_eq!(load.read(4, 5), 3 * 8 + 1);
        assert_eq!((load.rows(), load.sequences(), load.logit_rows(), load.longest()), (16, 4, 4, 14));
    }

    #[test]
    fn experts_picked_lie_between_one_rows_and_all() {
        let load = |skew| Load::new(vec![Sequences { count: 1, rows: 1, ctx: 0 }], Logits::Last, skew).unwrap();
        assert_eq!(load(0.0).distinct(128, 8, 1), 8.0);
        let even = load(0.0).distinct(128, 8, 16);
        let skewed = load(1.0).distinct(128, 8, 16);
        assert!(8.0 < skewed && skewed < even && even < 128.0, "{skewed} {even}");
        assert!((load(0.0).distinct(128, 8, 100_000) - 128.0).abs() < 1e-6);
        assert!((load(3.0).distinct(8, 8, 2) - 8.0).abs() < 1e-9);
    }
}
