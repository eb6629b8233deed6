//! The delta unit and its memory: the recurrence of a gated delta network, row by row.
//!
//! Per value head, with the memory S [key dim, value dim] in f32 and every operation through `r`:
//!
//! 1. S = S * decay
//! 2. m = S^T k
//! 3. d = (v - m) * beta
//! 4. S = S + k d^T
//! 5. out = S^T (q * scale)
//!
//! The sums of 2 and 5 run over the key index: index i to lane i mod 32, ascending, then the halving tree 16, 8, 4, 2, 1.
//! Heads are independent, so they may run on any thread. A chunk-parallel form would give other bits and does not exist.

use crate::cpu::delta::Step;
use crate::flush;
use crate::vector::run::LANES;
use crate::vector::{Call, Form, Shape, VectorUnit};

/// A sequence's memory of a layer: one [key dim, value dim] matrix for each value head, zero at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    head: usize,
    state: Vec<f32>,
}

impl Memory {
    /// The memory at a sequence's start.
    #[must_use]
    pub fn new(value_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        Self { head: key_dim * value_dim, state: vec![0.0; value_heads * key_dim * value_dim] }
    }

    /// Back to a sequence's start.
    pub fn reset(&mut self) {
        self.state.fill(0.0);
    }

    /// One head's matrix, value index fastest.
    ///
    /// # Panics
    /// When there is no such head.
    pub fn head_mut(&mut self, head: usize) -> &mut [f32] {
        &mut self.state[head * self.head..][..self.head]
    }

    /// Every head's matrix, in order: what threads share out.
    pub fn heads_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [f32]> {
        self.state.chunks_exact_mut(self.head.max(1))
    }

    /// All matrices, one after the other, to change in place.
    pub fn state_mut(&mut self) -> &mut [f32] {
        &mut self.state
    }

    /// All matrices, one after the other.
    #[must_use]
    pub fn state(&self) -> &[f32] {
        &self.state
    }
}

/// What one token-row brings to one value head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRow<'a> {
    /// Query [key dim], not yet scaled.
    pub q: &'a [f32],
    /// Key [key dim].
    pub k: &'a [f32],
    /// Value [value dim].
    pub v: &'a [f32],
    /// Multiplies the memory first.
    pub decay: f32,
    /// Share of the difference that is written.
    pub beta: f32,
    /// Multiplies q.
    pub scale: f32,
}

impl VectorUnit {
    /// One row through one value head's memory; `out` is [value dim].
    ///
    /// # Panics
    /// When the slices' lengths do not agree.
    pub fn delta(&self, row: &DeltaRow<'_>, memory: &mut [f32], out: &mut [f32]) {
        self.perform(DeltaCall { row, memory, out });
    }
}

/// One row through one head.
struct DeltaCall<'a> {
    row: &'a DeltaRow<'a>,
    memory: &'a mut [f32],
    out: &'a mut [f32],
}

impl Call for DeltaCall<'_> {
    fn shape(&self) -> Shape {
        Shape { unit: "delta", sizes: [self.row.k.len(), self.row.v.len()], grows: false }
    }

    fn compute(&mut self, form: Form) {
        step(form, self.row, self.memory, self.out);
    }

    fn written(&mut self, see: &mut dyn FnMut(&mut [f32])) {
        see(self.out);
        see(self.memory);
    }
}

fn step(form: Form, row: &DeltaRow<'_>, memory: &mut [f32], out: &mut [f32]) {
    let (dk, dv) = (row.k.len(), row.v.len());
    assert!(row.q.len() == dk && out.len() == dv, "q {} for k {dk}, out {} for v {dv}", row.q.len(), out.len());
    assert_eq!(memory.len(), dk * dv, "a memory of {dk} by {dv}");
    match form {
        Form::Mirror => {
            for (j, out) in out.iter_mut().enumerate() {
                *out = column(row, memory, j);
            }
        }
        _ => form.enter(Step { row, memory, out }),
    }
}

/// The mirror: one value index at a time.
fn column(row: &DeltaRow<'_>, memory: &mut [f32], j: usize) -> f32 {
    let dv = row.v.len();
    let mut lanes = [0.0; LANES];
    for (i, k) in row.k.iter().enumerate() {
        let s = &mut memory[i * dv + j];
        *s = flush::mul(*s, row.decay);
        lanes[i % LANES] = flush::add(lanes[i % LANES], flush::mul(*s, *k));
    }
    let m = tree(lanes);
    let d = flush::mul(flush::sub(row.v[j], m), row.beta);
    let mut lanes = [0.0; LANES];
    for (i, (k, q)) in row.k.iter().zip(row.q).enumerate() {
        let s = &mut memory[i * dv + j];
        *s = flush::add(*s, flush::mul(*k, d));
        lanes[i % LANES] = flush::add(lanes[i % LANES], flush::mul(*s, flush::mul(*q, row.scale)));
    }
    tree(lanes)
}

fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = flush::add(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Holds a form to the mirror.
///
/// # Errors
/// The first test whose bits differ.
pub(crate) fn check(form: Form) -> Result<(), String> {
    for (seed, values) in crate::vector::Values::ALL.into_iter().enumerate() {
        for (dk, dv) in [(1, 1), (16, 7), (31, 8), (33, 64), (64, 65), (128, 40)] {
            let mut memories = [vec![0.0; dk * dv], vec![0.0; dk * dv]];
            let mut outs = [vec![0.0; dv], vec![0.0; dv]];
            for t in 0..4 {
                let make = |n, salt| values.make(n, seed as u32 * 100 + t * 10 + salt);
                let (q, k, v) = (make(dk, 1), make(dk, 2), make(dv, 3));
                // A decay that takes a memory through the flush within a few rows.
                let row = DeltaRow {
                    q: &q,
                    k: &k,
                    v: &v,
                    decay: [0.9, 1e-9, 1e-30, 1.0][t as usize],
                    beta: 0.7,
                    scale: 0.25,
                };
                step(Form::Mirror, &row, &mut memories[0], &mut outs[0]);
                step(form, &row, &mut memories[1], &mut outs[1]);
                let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
                if !same(&outs[0], &outs[1]) || !same(&memories[0], &memories[1]) {
                    return Err(format!("delta on {values:?} values, {dk} by {dv}, row {t}"));
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
        for form in forms() {
            let mut memory = Memory::new(2, 2, 2);
            let mut out = [0.0; 2];
            let row = DeltaRow { q: &[2.0, 4.0], k: &[1.0, 2.0], v: &[3.0, 5.0], decay: 0.5, beta: 0.5, scale: 0.5 };
            step(form, &row, memory.head_mut(1), &mut out);
            // S = k d^T with d = v / 2; out = (q . k) / 2 * d = 5 d.
            assert_eq!(memory.head_mut(1), [1.5, 2.5, 3.0, 5.0]);
            assert_eq!(out, [7.5, 12.5]);
            let row = DeltaRow { q: &[1.0, 0.0], k: &[1.0, 0.0], v: &[1.0, 1.0], decay: 0.5, beta: 1.0, scale: 1.0 };
            step(form, &row, memory.head_mut(1), &mut out);
            // With beta 1 and a unit key the memory's first row becomes v; the second only decays.
            assert_eq!(memory.head_mut(1), [1.0, 1.0, 1.5, 2.5]);
            assert_eq!(out, [1.0, 1.0]);
            assert_eq!(memory.head_mut(0), [0.0; 4], "another head's memory stays");
            assert_eq!(memory.heads_mut().len(), 2);
            memory.reset();
            assert_eq!(memory, Memory::new(2, 2, 2));
        }
    }

    #[test]
    fn sums_run_by_lanes() {
        // Key indices 0 and 32 share lane 0, so 2^24 + 1 loses the 1 before the tree meets lane 16's -2^24.
        let mut k = vec![0.0; 64];
        (k[0], k[32], k[16]) = (1.0, 1.0, 1.0);
        for form in forms() {
            let mut memory = vec![0.0; 64];
            (memory[0], memory[32], memory[16]) = (16_777_216.0, 1.0, -16_777_216.0);
            let mut out = [9.0];
            let row = DeltaRow { q: &k, k: &vec![0.0; 64], v: &[0.0], decay: 1.0, beta: 0.0, scale: 1.0 };
            step(form, &row, &mut memory, &mut out);
            assert_eq!(out, [0.0]);
        }
    }

    #[test]
    fn a_memory_decays_to_plus_zero() {
        for form in forms() {
            let mut memory = vec![1.0, -1.0];
            let mut out = [0.0; 2];
            let row = DeltaRow { q: &[1.0], k: &[0.0], v: &[0.0, 0.0], decay: 0.5, beta: 0.5, scale: 1.0 };
            for _ in 0..120 {
                step(form, &row, &mut memory, &mut out);
            }
            assert_eq!(memory, [2f32.powi(-120), -2f32.powi(-120)]);
            step(form, &row, &mut memory, &mut out);
            assert!(memory.iter().chain(&out).all(|x| x.to_bits() == 0));
        }
    }

    #[test]
    fn every_width_gives_the_mirror_bits() {
        for n in 1..=300u32 {
            // Both dimensions take every length; their product stays small.
            for (dk, dv) in [(n as usize, 9), (40, n as usize)] {
                let values = Values::ALL[n as usize % 4];
                let (q, k, v) = (values.make(dk, n), values.make(dk, n + 1), values.make(dv, n + 2));
                let row = DeltaRow { q: &q, k: &k, v: &v, decay: 0.97, beta: 0.4, scale: 0.125 };
                let run = |form| {
                    let (mut memory, mut out) = (values.make(dk * dv, n + 3), vec![0.0; dv]);
                    step(form, &row, &mut memory, &mut out);
                    memory.iter().chain(&out).map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                let expected = run(Form::Mirror);
                for form in Form::ALL.into_iter().filter(|form| form.is_available()) {
                    assert_eq!(run(form), expected, "{form}: {dk} by {dv}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn agrees_with_f64(seed: u32, dk in 1usize..70, dv in 1usize..20) {
            let unit = |n: usize, salt: u32| {
                let mut x = Values::Plain.make(n, seed.wrapping_add(salt));
                let size = x.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-3);
                x.iter_mut().for_each(|x| *x /= size);
                x
            };
            let mut memory = vec![0.0f32; dk * dv];
            let mut exact = vec![0.0f64; dk * dv];
            let mut out = vec![0.0; dv];
            for t in 0..8 {
                let (q, k, v) = (unit(dk, t), unit(dk, t + 100), unit(dv, t + 200));
                let row = DeltaRow { q: &q, k: &k, v: &v, decay: 0.9, beta: 0.6, scale: 0.5 };
                step(VectorUnit::new().form(), &row, &mut memory, &mut out);
                for j in 0..dv {
                    let of = |i: usize| i * dv + j;
                    (0..dk).for_each(|i| exact[of(i)] *= f64::from(row.decay));
                    let m: f64 = (0..dk).map(|i| exact[of(i)] * f64::from(k[i])).sum();
                    let d = (f64::from(v[j]) - m) * f64::from(row.beta);
                    (0..dk).for_each(|i| exact[of(i)] += f64::from(k[i]) * d);
                    let o: f64 = (0..dk).map(|i| exact[of(i)] * f64::from(q[i]) * 0.5).sum();
                    prop_assert!((o - f64::from(out[j])).abs() < 1e-6, "{o} {}", out[j]);
                }
            }
        }
    }
}
