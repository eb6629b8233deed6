//! `Curve`: the share of its efficiency that a transfer reaches, over its size.

/// Points (bytes, share), linear between them in the logarithm of the bytes, level beyond the ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<(f64, f64)>);

impl Curve {
    /// A curve through points.
    ///
    /// # Errors
    /// What is wrong: no points, bytes that do not rise, shares outside (0, 1], or a share so much smaller at a larger
    /// size that the larger transfer would take less time.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Self, String> {
        if points.is_empty() {
            return Err("a curve has at least one point [bytes, share]".into());
        }
        for (bytes, share) in &points {
            if !bytes.is_finite() || *bytes <= 0.0 {
                return Err(format!("{bytes} bytes: a point lies at a positive number of bytes"));
            }
            if !(*share > 0.0 && *share <= 1.0) {
                return Err(format!("a share of {share} at {bytes} bytes: shares lie above 0 and up to 1"));
            }
        }
        for pair in points.windows(2) {
            if pair[1].0 <= pair[0].0 {
                return Err(format!("{} bytes after {}: points stand in rising order", pair[1].0, pair[0].0));
            }
            if pair[1].1 < pair[0].1 {
                return Err(format!(
                    "the share falls from {} to {}: larger transfers are no worse",
                    pair[0].1, pair[1].1
                ));
            }
        }
        let curve = Self(points);
        Ok(curve)
    }

    /// The points.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.0
    }

    /// The share that a transfer of so many bytes reaches.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        let after = self.0.partition_point(|p| p.0 < bytes);
        match (after.checked_sub(1).and_then(|i| self.0.get(i)), self.0.get(after)) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (bytes / a.0).ln() / (b.0 / a.0).ln(),
            (Some(end), None) | (None, Some(end)) => end.1,
            (None, None) => 1.0,
        }
    }

    /// Time of a transfer in units of its time at full efficiency and one byte: bytes / share, made to rise with the
    /// bytes.
    #[must_use]
    pub fn stretched(&self, bytes: f64) -> f64 {
        // Between points a share that rises faster than the bytes would make a larger transfer quicker than a smaller
        // one; it takes at least as long as the points below it.
        let below = self.0.iter().take_while(|p| p.0 < bytes).map(|p| p.0 / p.1);
        below.fold(bytes / self.at(bytes), f64::max)
    }
}
