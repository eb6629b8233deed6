//! CPU forms of the conv unit.

use super::vector::{Job, Map, Simd};
use crate::math::Function;
use crate::math::ops::Scalar;

/// Channels that are summed before their activation is taken.
const BLOCK: usize = 256;

/// The inputs that a row's taps meet.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// Past inputs, oldest first: those before the circle's seam, then those after it.
    pub(crate) old: &'a [f32],
    pub(crate) young: &'a [f32],
    /// The row's own.
    pub(crate) x: &'a [f32],
}

impl<'a> Inputs<'a> {
    /// The input of a tap, the oldest first.
    #[inline(always)]
    pub(crate) fn row(&self, tap: usize) -> &'a [f32] {
        let (channels, at) = (self.x.len(), tap * self.x.len());
        match at.checked_sub(self.old.len()) {
            None => &self.old[at..at + channels],
            Some(at) if at < self.young.len() => &self.young[at..at + channels],
            Some(_) => self.x,
        }
    }
}

/// One row's convolution.
pub(crate) struct Step<'a> {
    /// [taps, channels].
    pub(crate) by_tap: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) act: Function,
    pub(crate) rows: Inputs<'a>,
    pub(crate) out: &'a mut [f32],
}

impl Job for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run<O: Simd>(self, o: O) {
        let channels = self.out.len();
        let mut sums = [0.0; BLOCK];
        for first in (0..channels).step_by(BLOCK) {
            let n = BLOCK.min(channels - first);
            let whole = n - n % O::LANES;
            for c in (0..whole).step_by(O::LANES) {
                let sum = self.sum(o, first + c);
                o.store(sum, &mut sums[c..]);
            }
            for (c, sum) in sums[..n].iter_mut().enumerate().skip(whole) {
                *sum = self.sum(Scalar, first + c);
            }
            o.enter(Map { function: self.act, from: &sums[..n], to: &mut self.out[first..first + n] });
        }
    }
}

impl Step<'_> {
    /// The sums of the channels from `c` on.
    #[inline(always)]
    fn sum<O: Simd>(&self, o: O, c: usize) -> O::F {
        let channels = self.out.len();
        let mut sum = o.mul(o.load(&self.by_tap[c..]), o.load(&self.rows.row(0)[c..]));
        for tap in 1..self.by_tap.len() / channels {
            let row = self.rows.row(tap);
            sum = o.add(sum, o.mul(o.load(&self.by_tap[tap * channels + c..]), o.load(&row[c..])));
        }
        match self.bias {
            Some(bias) => o.add(sum, o.load(&bias[c..])),
            None => sum,
        }
    }
}
