//! CPU forms of the conv unit.

use super::vector::{Job, Map, Simd};
use crate::math::Function;
use crate::math::ops::Scalar;

/// Channels that are summed before their activation is taken.
const BLOCK: usize = 256;

/// One row's convolution.
pub(crate) struct Step<'a> {
    /// [taps, channels].
    pub(crate) by_tap: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) act: Function,
    /// One input a tap, oldest first.
    pub(crate) rows: &'a [&'a [f32]],
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
        let mut sum = o.mul(o.load(&self.by_tap[c..]), o.load(&self.rows[0][c..]));
        for (tap, row) in self.rows.iter().enumerate().skip(1) {
            sum = o.add(sum, o.mul(o.load(&self.by_tap[tap * channels + c..]), o.load(&row[c..])));
        }
        match self.bias {
            Some(bias) => o.add(sum, o.load(&bias[c..])),
            None => sum,
        }
    }
}
