//! CPU forms of the delta unit: vectors over the value index.

use super::vector::{Job, Simd};
use crate::delta::DeltaRow;
use crate::math::ops::Scalar;
use crate::vector::run::LANES;

/// Value indices that are taken through the recurrence together: their lanes fill 8 KB.
const BLOCK: usize = 64;

/// One row through one value head.
pub(crate) struct Step<'a> {
    pub(crate) row: &'a DeltaRow<'a>,
    pub(crate) memory: &'a mut [f32],
    pub(crate) out: &'a mut [f32],
}

/// The lanes of a sum over the key index, for each value index of a block.
type Lanes = [[f32; BLOCK]; LANES];

impl Job for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run<O: Simd>(self, o: O) {
        let Step { row, memory, out } = self;
        let dv = out.len();
        let mut lanes = [[0.0; BLOCK]; LANES];
        for first in (0..dv).step_by(BLOCK) {
            let n = BLOCK.min(dv - first);
            let whole = n - n % O::LANES;
            block(o, row, memory, &mut out[first..first + whole], first, &mut lanes);
            block(Scalar, row, memory, &mut out[first + whole..first + n], first + whole, &mut lanes);
        }
    }
}

/// The recurrence for the value indices `first ..`, a whole number of vectors.
#[inline(always)]
fn block<O: Simd>(o: O, row: &DeltaRow<'_>, memory: &mut [f32], out: &mut [f32], first: usize, lanes: &mut Lanes) {
    let (dv, n) = (row.v.len(), out.len());
    if n == 0 {
        return;
    }
    let (decay, beta) = (o.num(row.decay), o.num(row.beta));
    clear(lanes, n);
    for (i, (k, s)) in row.k.iter().zip(memory.chunks_exact_mut(dv)).enumerate() {
        let k = o.num(*k);
        let vectors = s[first..first + n].chunks_exact_mut(O::LANES);
        for (s, lane) in vectors.zip(lanes[i % LANES].chunks_exact_mut(O::LANES)) {
            let faded = o.mul(o.load(s), decay);
            o.store(faded, s);
            o.store(o.add(o.load(lane), o.mul(faded, k)), lane);
        }
    }
    tree(o, lanes, n);
    // d takes the place of m; the output's slice holds it until the output is known.
    let values = row.v[first..first + n].chunks_exact(O::LANES);
    for ((v, m), d) in values.zip(lanes[0].chunks_exact(O::LANES)).zip(out.chunks_exact_mut(O::LANES)) {
        o.store(o.mul(o.sub(o.load(v), o.load(m)), beta), d);
    }
    clear(lanes, n);
    for (i, ((k, q), s)) in row.k.iter().zip(row.q).zip(memory.chunks_exact_mut(dv)).enumerate() {
        let (k, q) = (o.num(*k), o.mul(o.num(*q), o.num(row.scale)));
        let vectors = s[first..first + n].chunks_exact_mut(O::LANES).zip(out.chunks_exact(O::LANES));
        for ((s, d), lane) in vectors.zip(lanes[i % LANES].chunks_exact_mut(O::LANES)) {
            let written = o.add(o.load(s), o.mul(k, o.load(d)));
            o.store(written, s);
            o.store(o.add(o.load(lane), o.mul(written, q)), lane);
        }
    }
    tree(o, lanes, n);
    out.copy_from_slice(&lanes[0][..n]);
}

#[inline(always)]
fn clear(lanes: &mut Lanes, n: usize) {
    for lane in lanes {
        lane[..n].fill(0.0);
    }
}

/// `lane[i] += lane[i + s]` for i < s, s = 16, 8, 4, 2, 1, for each of the first `n` value indices.
#[inline(always)]
fn tree<O: Simd>(o: O, lanes: &mut Lanes, n: usize) {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes[..2 * half].split_at_mut(half);
        for (a, b) in low.iter_mut().zip(high) {
            for (a, b) in a[..n].chunks_exact_mut(O::LANES).zip(b.chunks_exact(O::LANES)) {
                o.store(o.add(o.load(a), o.load(b)), a);
            }
        }
        half /= 2;
    }
}
