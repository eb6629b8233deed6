//! The convolution unit and its ring: depthwise and causal over a row's own and its sequence's past inputs.
//!
//! For each channel, with taps oldest first: s = w0 p0; s = s + w1 p1; …; s = s + w_last x; then s + bias where there is
//! one; then the activation. Every product and sum passes `r`. Inputs before a sequence's start are +0.0.

use crate::cpu::conv::{Inputs, Step};
use crate::flush;
use crate::math::Function;
use crate::vector::{Call, Form, Shape, VectorUnit};

/// A layer's taps and bias, laid out for the unit and flushed.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvWeights {
    channels: usize,
    taps: usize,
    /// [taps, channels], so that the channels of one tap lie side by side.
    by_tap: Vec<f32>,
    bias: Option<Vec<f32>>,
    act: Function,
}

impl ConvWeights {
    /// From `weight` `[channels, taps]`, taps oldest first, and `bias` `[channels]`.
    ///
    /// # Panics
    /// When the weight is not a whole, nonzero number of channels wide, or the bias has another number of channels.
    #[must_use]
    pub fn new(weight: &[f32], bias: Option<&[f32]>, taps: usize, act: Function) -> Self {
        assert!(taps > 0 && weight.len().is_multiple_of(taps), "{} weights for {taps} taps", weight.len());
        let channels = weight.len() / taps;
        let mut by_tap: Vec<f32> =
            (0..taps).flat_map(|tap| (0..channels).map(move |c| weight[c * taps + tap])).collect();
        flush::flush_all(&mut by_tap);
        let bias = bias.map(|bias| {
            assert_eq!(bias.len(), channels, "one bias a channel");
            let mut bias = bias.to_vec();
            flush::flush_all(&mut bias);
            bias
        });
        Self { channels, taps, by_tap, bias, act }
    }

    /// Channels.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Taps, the row's own input included.
    #[must_use]
    pub fn taps(&self) -> usize {
        self.taps
    }
}

/// A sequence's last `taps - 1` inputs of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Ring {
    channels: usize,
    /// [taps - 1, channels], a circle.
    past: Vec<f32>,
    /// Row that holds the oldest input.
    oldest: usize,
}

impl Ring {
    /// The ring at a sequence's start.
    #[must_use]
    pub fn new(channels: usize, taps: usize) -> Self {
        Self { channels, past: vec![0.0; channels * taps.saturating_sub(1)], oldest: 0 }
    }

    /// Back to a sequence's start.
    pub fn reset(&mut self) {
        self.past.fill(0.0);
        self.oldest = 0;
    }

    /// Become the ring with these past inputs, oldest first; those of another size are left out.
    pub fn restore(&mut self, past: &[f32]) {
        if past.len() == self.past.len() {
            self.past.copy_from_slice(past);
            self.oldest = 0;
        }
    }

    /// The past inputs, oldest first.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        let (young, old) = self.past.split_at(self.oldest * self.channels);
        old.chunks_exact(self.channels.max(1)).chain(young.chunks_exact(self.channels.max(1)))
    }

    /// Bytes that a row moves: the past inputs read, its own written.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        let own = if self.past.is_empty() { 0 } else { self.channels };
        (self.past.len() + own) * size_of::<f32>()
    }

    /// Takes a row's input in, over the oldest one.
    fn push(&mut self, x: &[f32]) {
        let rows = self.past.len() / self.channels.max(1);
        if rows > 0 {
            self.past[self.oldest * self.channels..][..self.channels].copy_from_slice(x);
            self.oldest = (self.oldest + 1) % rows;
        }
    }
}

impl VectorUnit {
    /// One row through the convolution: out from x and the ring, then x into the ring.
    ///
    /// # Panics
    /// When `x`, `out` and the ring do not have the weights' channels and taps.
    pub fn conv(&self, weights: &ConvWeights, ring: &mut Ring, x: &[f32], out: &mut [f32]) {
        self.perform(ConvCall { weights, ring, x, out });
        ring.push(x);
    }
}

/// One row's outputs, the ring as it is before the row.
struct ConvCall<'a> {
    weights: &'a ConvWeights,
    ring: &'a Ring,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Call for ConvCall<'_> {
    fn shape(&self) -> Shape {
        Shape { unit: "conv", sizes: [self.weights.channels, self.weights.taps], grows: false }
    }

    fn compute(&mut self, form: Form) {
        outputs(form, self.weights, self.ring, self.x, self.out);
    }

    fn written(&mut self, see: &mut dyn FnMut(&mut [f32])) {
        see(self.out);
    }
}

fn outputs(form: Form, weights: &ConvWeights, ring: &Ring, x: &[f32], out: &mut [f32]) {
    let ConvWeights { channels, taps, by_tap, bias, act } = weights;
    let (channels, taps) = (*channels, *taps);
    assert!(x.len() == channels && out.len() == channels, "{channels} channels, {} in, {} out", x.len(), out.len());
    assert!(ring.channels == channels && ring.past.len() == channels * (taps - 1), "a ring for {taps} taps");
    let (young, old) = ring.past.split_at(ring.oldest * channels);
    let rows = Inputs { old, young, x };
    match form {
        Form::Mirror => {
            for c in 0..channels {
                let mut sum = flush::mul(by_tap[c], rows.row(0)[c]);
                for tap in 1..taps {
                    sum = flush::add(sum, flush::mul(by_tap[tap * channels + c], rows.row(tap)[c]));
                }
                if let Some(bias) = bias {
                    sum = flush::add(sum, bias[c]);
                }
                out[c] = act.eval(sum);
            }
        }
        _ => form.enter(Step { by_tap, bias: bias.as_deref(), act: *act, rows, out }),
    }
}

/// A row's outputs, and its input into the ring.
fn step(form: Form, weights: &ConvWeights, ring: &mut Ring, x: &[f32], out: &mut [f32]) {
    outputs(form, weights, ring, x, out);
    ring.push(x);
}

/// Holds a form to the mirror.
///
/// # Errors
/// The first test whose bits differ.
pub(crate) fn check(form: Form) -> Result<(), String> {
    for (seed, values) in crate::vector::Values::ALL.into_iter().enumerate() {
        for channels in [1, 7, 8, 33, 255, 256, 257] {
            for (taps, with_bias) in [(1, true), (2, false), (4, false), (4, true)] {
                let weight = values.make(channels * taps, seed as u32 + 1);
                let bias = values.make(channels, seed as u32 + 2);
                let weights = ConvWeights::new(&weight, with_bias.then_some(&bias), taps, Function::Silu);
                let mut rings = [Ring::new(channels, taps), Ring::new(channels, taps)];
                let mut outs = [vec![0.0; channels], vec![0.0; channels]];
                for row in 0..taps as u32 + 2 {
                    let x = values.make(channels, seed as u32 + 10 + row);
                    step(Form::Mirror, &weights, &mut rings[0], &x, &mut outs[0]);
                    step(form, &weights, &mut rings[1], &x, &mut outs[1]);
                    if !outs[0].iter().zip(&outs[1]).all(|(a, b)| a.to_bits() == b.to_bits()) {
                        return Err(format!("conv on {values:?} values, {channels} channels, {taps} taps, row {row}"));
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::Values;
    use proptest::prelude::*;

    fn forms() -> impl Iterator<Item = Form> {
        Form::ALL.into_iter().filter(|f| f.is_available())
    }

    #[test]
    fn by_hand() {
        // Two channels, three taps. relu shows the sum where it is positive.
        let weight = [1.0, 2.0, 3.0, -1.0, 0.5, 0.25];
        let weights = ConvWeights::new(&weight, Some(&[10.0, 1.0]), 3, Function::Relu);
        for form in forms() {
            let mut ring = Ring::new(2, 3);
            let mut out = [0.0; 2];
            step(form, &weights, &mut ring, &[1.0, 4.0], &mut out);
            assert_eq!(out, [3.0 + 10.0, 1.0 + 1.0]);
            step(form, &weights, &mut ring, &[2.0, 8.0], &mut out);
            assert_eq!(out, [2.0 + 6.0 + 10.0, 2.0 + 2.0 + 1.0]);
            step(form, &weights, &mut ring, &[3.0, 0.0], &mut out);
            assert_eq!(out, [1.0 + 4.0 + 9.0 + 10.0, -4.0 + 4.0 + 1.0]);
            assert_eq!(ring.rows().collect::<Vec<_>>(), [&[2.0, 8.0][..], &[3.0, 0.0]]);
            step(form, &weights, &mut ring, &[0.0, 0.0], &mut out);
            assert_eq!(out, [2.0 + 6.0 + 10.0, 0.0], "-8 + 0 + 0 + 1 is negative");
            ring.reset();
            assert_eq!(ring, Ring::new(2, 3));
        }
    }

    #[test]
    fn the_order_of_taps_is_that_of_time() {
        // (2^24 + 1) - 2^24: the first sum loses the 1, another order would keep it.
        let weights = ConvWeights::new(&[1.0, 1.0, 1.0], None, 3, Function::Relu);
        for form in forms() {
            let mut ring = Ring::new(1, 3);
            let mut out = [0.0];
            for x in [16_777_216.0, 1.0, -16_777_216.0] {
                step(form, &weights, &mut ring, &[x], &mut out);
            }
            assert_eq!(out, [0.0]);
        }
    }

    #[test]
    fn parameters_are_flushed() {
        let weights = ConvWeights::new(&[1e-37, 1.0], Some(&[-1e-38]), 2, Function::Relu);
        assert_eq!(weights.by_tap, [0.0, 1.0]);
        assert_eq!(weights.bias.unwrap()[0].to_bits(), 0);
    }

    #[test]
    fn every_channel_count_gives_the_mirror_bits() {
        for channels in 1..=300 {
            for (k, values) in Values::ALL.into_iter().enumerate() {
                let weights = ConvWeights::new(&values.make(channels * 4, 5), None, 4, Function::Silu);
                let run = |form| {
                    let (mut ring, mut out) = (Ring::new(channels, 4), vec![0.0; channels]);
                    let rows = (0..3).flat_map(|row| {
                        step(form, &weights, &mut ring, &values.make(channels, 100 * k as u32 + row), &mut out);
                        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                    });
                    (rows.collect::<Vec<_>>(), ring)
                };
                let expected = run(Form::Mirror);
                for form in Form::ALL.into_iter().filter(|form| form.is_available()) {
                    assert_eq!(run(form), expected, "{form}: {channels} {values:?}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn agrees_with_f64(seed: u32, channels in 1usize..40, taps in 1usize..6) {
            let weight = Values::Plain.make(channels * taps, seed);
            let inputs: Vec<Vec<f32>> =
                (0..taps as u32 + 3).map(|row| Values::Plain.make(channels, seed.wrapping_add(row))).collect();
            let weights = ConvWeights::new(&weight, None, taps, Function::Silu);
            let mut ring = Ring::new(channels, taps);
            let mut out = vec![0.0; channels];
            for (now, x) in inputs.iter().enumerate() {
                step(VectorUnit::new().form(), &weights, &mut ring, x, &mut out);
                for c in 0..channels {
                    let sum: f64 = (0..taps)
                        .filter_map(|tap| (now + tap + 1).checked_sub(taps).map(|at| (tap, at)))
                        .map(|(tap, at)| f64::from(weight[c * taps + tap]) * f64::from(inputs[at][c]))
                        .sum();
                    let expected = sum / (1.0 + (-sum).exp());
                    prop_assert!((f64::from(out[c]) - expected).abs() < 1e-4);
                }
            }
        }
    }
}
