//! Rotary rows: the cosines and sines of a position, from the recipe of a rotary table.
//!
//! A row depends on its position alone. The steps and their precision are those of the reference framework's rotary
//! initialisers, one token a step: inverse frequencies in f32 (each operation rounded to f32, powers rounded from f64),
//! the angle f32(position) * frequency rounded to f32, its cosine and sine taken in f64 by the pure-Rust math library
//! and rounded to f32, then multiplied by the attention factor in f32.

use crate::flush;
use std::borrow::Cow;

/// How angles come from positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// theta^(-2i / rot).
    Default,
    /// Divided by the factor.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// NTK: the base grows with the length once that passes `original`; at position p the length is p + 1.
    Dynamic {
        /// Factor.
        factor: f64,
        /// Trained length.
        original: usize,
    },
    /// YaRN: interpolated and extrapolated frequencies blended by a ramp over the dimensions.
    Yarn {
        /// Factor.
        factor: f64,
        /// Trained length.
        original: usize,
        /// Rotations over the trained length above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which it is divided.
        beta_slow: f64,
        /// Round the ramp's ends outwards to whole dimensions.
        truncate: bool,
        /// Multiplies cosine and sine.
        attention_factor: f64,
    },
    /// Llama 3: low frequencies divided, middle ones blended.
    Llama3 {
        /// Factor.
        factor: f64,
        /// Wavelengths above original / low are divided.
        low_freq_factor: f64,
        /// Wavelengths below original / high are kept.
        high_freq_factor: f64,
        /// Trained length.
        original: usize,
    },
    /// LongRoPE: a divisor for each frequency, the short list for positions below `original`, the long list from there.
    LongRope {
        /// `rot / 2` divisors.
        short: Vec<f64>,
        /// `rot / 2` divisors.
        long: Vec<f64>,
        /// Trained length.
        original: usize,
        /// Multiplies cosine and sine.
        attention_factor: f64,
    },
}

/// The recipe of a rotary table.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Base.
    pub theta: f64,
    /// Rotated dimensions of a head, even.
    pub rot: usize,
    /// Scaling.
    pub scaling: Scaling,
}

/// Why a recipe gives no table.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecipeError {
    /// An odd number of dimensions, or none.
    #[error("rotary table: {0} rotated dimensions; an even number from 2 on is needed")]
    Rot(usize),
    /// A number outside the range in which the formula means something.
    #[error("rotary table: {name} is {given}; a finite number above {above} is needed")]
    Number {
        /// Its name.
        name: &'static str,
        /// Its value.
        given: f64,
        /// Lower bound, excluded.
        above: f64,
    },
    /// A list of divisors of the wrong length.
    #[error("rotary table: {name} has {given} divisors; {wanted} are needed, one for each pair of dimensions")]
    List {
        /// Its name.
        name: &'static str,
        /// Its length.
        given: usize,
        /// The length that goes with the rotated dimensions.
        wanted: usize,
    },
    /// A frequency that is no finite f32.
    #[error("rotary table: the frequency of pair {pair} is {frequency}")]
    Frequency {
        /// Pair of dimensions.
        pair: usize,
        /// What the recipe gives.
        frequency: f32,
    },
}

/// A recipe made ready: what gives rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    recipe: Recipe,
    /// Frequencies of positions below the trained length, or of all.
    near: Vec<f32>,
    /// Frequencies from the trained length on, where they differ and stay.
    far: Option<(usize, Vec<f32>)>,
    attention_factor: f32,
}

impl Rotary {
    /// Checks a recipe and computes its frequencies.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub fn new(recipe: Recipe) -> Result<Self, RecipeError> {
        check(&recipe)?;
        let plain = frequencies(recipe.theta as f32, recipe.rot);
        let (near, far) = match &recipe.scaling {
            Scaling::Default | Scaling::Dynamic { .. } => (plain, None),
            Scaling::Linear { factor } => (plain.iter().map(|f| f / *factor as f32).collect(), None),
            Scaling::Yarn { .. } => (yarn(&recipe), None),
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
                let bounds = (*low_freq_factor, *high_freq_factor);
                (plain.iter().map(|f| llama3(*f, *factor as f32, bounds, *original as f64)).collect(), None)
            }
            Scaling::LongRope { short, long, original, .. } => {
                let divided = |list: &[f64]| {
                    let powers = powers(recipe.theta as f32, recipe.rot);
                    list.iter().zip(powers).map(|(divisor, power)| 1.0 / (*divisor as f32 * power)).collect()
                };
                (divided(short), Some((*original, divided(long))))
            }
        };
        for list in [Some(&near), far.as_ref().map(|(_, list)| list)].into_iter().flatten() {
            if let Some((pair, frequency)) = list.iter().enumerate().find(|(_, f)| !f.is_finite()) {
                return Err(RecipeError::Frequency { pair, frequency: *frequency });
            }
        }
        let attention_factor = match recipe.scaling {
            Scaling::Yarn { attention_factor, .. } | Scaling::LongRope { attention_factor, .. } => {
                attention_factor as f32
            }
            _ => 1.0,
        };
        Ok(Self { recipe, near, far, attention_factor })
    }

    /// Pairs of dimensions: values of a row's cosines, and of its sines.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.near.len()
    }

    /// The inverse frequencies that a position's angles come from.
    #[must_use]
    pub fn frequencies(&self, position: usize) -> Cow<'_, [f32]> {
        match (&self.far, &self.recipe.scaling) {
            (Some((original, far)), _) if position >= *original => Cow::Borrowed(far),
            (_, Scaling::Dynamic { factor, original }) if position + 1 > *original => {
                frequencies(dynamic_base(&self.recipe, *factor, *original, position + 1), self.recipe.rot).into()
            }
            _ => Cow::Borrowed(&self.near),
        }
    }

    /// Writes the row of a position: [`Rotary::pairs`] cosines and as many sines.
    ///
    /// # Panics
    /// When `cos` or `sin` is shorter.
    pub fn row(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        for (pair, frequency) in self.frequencies(position).iter().enumerate() {
            let angle = f64::from(position as f32 * *frequency);
            cos[pair] = flush::mul(libm::cos(angle) as f32, self.attention_factor);
            sin[pair] = flush::mul(libm::sin(angle) as f32, self.attention_factor);
        }
    }
}

fn check(recipe: &Recipe) -> Result<(), RecipeError> {
    let Recipe { theta, rot, scaling } = recipe;
    if *rot == 0 || !rot.is_multiple_of(2) {
        return Err(RecipeError::Rot(*rot));
    }
    let above = |name, given: f64, above: f64| {
        if given > above && given.is_finite() { Ok(()) } else { Err(RecipeError::Number { name, given, above }) }
    };
    above("theta", *theta, 0.0)?;
    match scaling {
        Scaling::Default => {}
        Scaling::Linear { factor } => above("factor", *factor, 0.0)?,
        Scaling::Dynamic { factor, original } => {
            above("factor", *factor, 0.0)?;
            above("original length", *original as f64, 0.0)?;
            // The base takes the power rot / (rot - 2).
            above("rotated dimensions", *rot as f64, 2.0)?;
        }
        Scaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, .. } => {
            // The ramp's ends divide by ln(theta).
            above("theta", *theta, 1.0)?;
            above("factor", *factor, 0.0)?;
            above("original length", *original as f64, 0.0)?;
            above("beta_fast", *beta_fast, 0.0)?;
            above("beta_slow", *beta_slow, 0.0)?;
            above("attention factor", *attention_factor, 0.0)?;
        }
        Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
            above("factor", *factor, 0.0)?;
            above("original length", *original as f64, 0.0)?;
            above("low_freq_factor", *low_freq_factor, 0.0)?;
            above("high_freq_factor", *high_freq_factor, *low_freq_factor)?;
        }
        Scaling::LongRope { short, long, attention_factor, .. } => {
            above("attention factor", *attention_factor, 0.0)?;
            for (name, list) in [("short_factor", short), ("long_factor", long)] {
                if list.len() != rot / 2 {
                    return Err(RecipeError::List { name, given: list.len(), wanted: rot / 2 });
                }
                list.iter().try_for_each(|divisor| above(name, *divisor, 0.0))?;
            }
        }
    }
    Ok(())
}

/// base^(2i / rot), the exponent a quotient in f32.
fn powers(base: f32, rot: usize) -> impl Iterator<Item = f32> {
    (0..rot / 2).map(move |i| power(base, (2 * i) as f32 / rot as f32))
}

/// base^exponent, rounded once.
fn power(base: f32, exponent: f32) -> f32 {
    libm::pow(f64::from(base), f64::from(exponent)) as f32
}

/// 1 / base^(2i / rot).
fn frequencies(base: f32, rot: usize) -> Vec<f32> {
    powers(base, rot).map(|p| 1.0 / p).collect()
}

/// theta * (factor * length / original - (factor - 1))^(rot / (rot - 2)), in f32 for length is a tensor there.
fn dynamic_base(recipe: &Recipe, factor: f64, original: usize, length: usize) -> f32 {
    let rot = recipe.rot as f64;
    let stretch = factor as f32 * length as f32 / original as f32 - (factor - 1.0) as f32;
    recipe.theta as f32 * power(stretch, (rot / (rot - 2.0)) as f32)
}

/// Divided where the wavelength exceeds original / low, kept where it is below original / high, blended between.
fn llama3(frequency: f32, factor: f32, (low, high): (f64, f64), original: f64) -> f32 {
    let wavelength = std::f32::consts::TAU / frequency;
    let divided = frequency / factor;
    if wavelength > (original / low) as f32 {
        divided
    } else if wavelength < (original / high) as f32 {
        frequency
    } else {
        let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

fn yarn(recipe: &Recipe) -> Vec<f32> {
    let Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } = recipe.scaling else {
        return frequencies(recipe.theta as f32, recipe.rot);
    };
    let rot = recipe.rot as f64;
    // The dimension whose wavelength goes this many times into the trained length.
    let dimension = |rotations: f64| {
        let span = libm::log(original as f64 / (rotations * std::f64::consts::TAU));
        rot * span / (2.0 * libm::log(recipe.theta))
    };
    let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
    if truncate {
        (low, high) = (libm::floor(low), libm::ceil(high));
    }
    (low, high) = (low.max(0.0), high.min(rot - 1.0));
    if low == high {
        high += 0.001;
    }
    let powers = powers(recipe.theta as f32, recipe.rot);
    powers
        .enumerate()
        .map(|(i, power)| {
            let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            let (interpolated, extrapolated) = (1.0 / (factor as f32 * power), 1.0 / power);
            interpolated * (1.0 - kept) + extrapolated * kept
        })
        .collect()
}

#[cfg(test)]
mod tests;
