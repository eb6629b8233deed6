//! The live audit of the units that compute in f32 (vector, conv, delta): calls of a run are recomputed by the mirror,
//! the first time a shape is seen and then by sample.
//!
//! The init gate sees made-up operands; the audit sees the real ones. An audited call always ends with the mirror's
//! results. Where the form's bits differ the form is named and demoted: the next one that passes the gate computes from
//! then on.

use super::{Form, VectorUnit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A call of a unit, to be computed by one form or by two.
pub(crate) trait Call {
    /// Which unit, and its operands' sizes.
    fn shape(&self) -> Shape;

    /// Compute it; what it reads is left alone but where it is written too.
    fn compute(&mut self, form: Form);

    /// Show everything that it writes.
    fn written(&mut self, see: &mut dyn FnMut(&mut [f32]));
}

/// What is audited as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// A micro-program, `conv` or `delta`.
    pub(crate) unit: &'static str,
    /// Heads and width, channels and taps, or key and value dimension.
    pub(crate) sizes: [usize; 2],
    /// The second size grows with every row of a sequence: calls of all sizes are one shape.
    pub(crate) grows: bool,
}

/// Shapes that are told apart. Those past them share one count.
const SHAPES: usize = 256;

/// Calls of a shape: its key, 0 where there is none yet, and their number.
#[derive(Debug, Default)]
struct Count {
    key: AtomicU64,
    calls: AtomicU64,
}

/// How often each shape was seen, and what was found.
#[derive(Debug)]
pub(super) struct Audit {
    period: u64,
    counts: Vec<Count>,
    checks: AtomicU64,
    /// What a call has written, before it and after it.
    space: Mutex<Vec<f32>>,
    found: Mutex<Vec<String>>,
    /// Tests: the shape's unit, the value and the bit that every form but the mirror gets wrong.
    #[cfg(test)]
    fault: Mutex<Option<(&'static str, usize, u32)>>,
}

impl Audit {
    pub(super) fn new(period: u64) -> Self {
        Self {
            period,
            counts: (0..SHAPES).map(|_| Count::default()).collect(),
            checks: AtomicU64::new(0),
            space: Mutex::default(),
            found: Mutex::default(),
            #[cfg(test)]
            fault: Mutex::default(),
        }
    }

    /// True when this call of the shape is to be checked: the first, and every `period`-th.
    fn due(&self, shape: Shape) -> bool {
        let key = shape.key();
        let first = key as usize % SHAPES;
        let places = (first..SHAPES).chain(0..first);
        let mut count = &self.counts[first];
        for place in places {
            count = &self.counts[place];
            match count.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(there) if there == key => break,
                Err(_) => (),
            }
        }
        let calls = count.calls.fetch_add(1, Ordering::Relaxed) + 1;
        calls == 1 || (self.period > 0 && calls.is_multiple_of(self.period))
    }
}

impl Shape {
    /// FNV-1a over everything, never 0.
    fn key(self) -> u64 {
        let step = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        let name = self.unit.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| step(hash, u64::from(byte)));
        let sizes = [self.sizes[0], if self.grows { 0 } else { self.sizes[1] }];
        let key = sizes.into_iter().fold(name, |hash, size| step(hash, size as u64));
        // The upper bits are the better mixed ones, and the lower choose the place.
        (key ^ key >> 32).max(1)
    }
}

impl VectorUnit {
    /// Compute a call, audited where it is due.
    #[inline]
    pub(crate) fn perform(&self, mut call: impl Call) {
        let form = self.form();
        match self.audit() {
            Some(audit) if form != Form::Mirror && audit.due(call.shape()) => self.check(audit, form, &mut call),
            _ => self.compute(form, &mut call),
        }
    }

    #[inline]
    fn compute(&self, form: Form, call: &mut impl Call) {
        call.compute(form);
        #[cfg(test)]
        if let Some(audit) = self.audit().filter(|_| form != Form::Mirror) {
            audit.spoil(call);
        }
    }

    /// Compute by the form and by the mirror, whose results stay.
    fn check(&self, audit: &Audit, form: Form, call: &mut impl Call) {
        audit.checks.fetch_add(1, Ordering::Relaxed);
        let mut space = audit.space.lock().unwrap_or_else(PoisonError::into_inner);
        space.clear();
        call.written(&mut |values| space.extend_from_slice(values));
        let before = space.len();
        self.compute(form, call);
        call.written(&mut |values| space.extend_from_slice(values));
        let (before, mut given) = space.split_at(before);
        let mut rest = before;
        call.written(&mut |values| {
            let (own, others) = rest.split_at(values.len());
            values.copy_from_slice(own);
            rest = others;
        });
        call.compute(Form::Mirror);
        let (mut element, mut wrong) = (0, None);
        call.written(&mut |values| {
            let (own, others) = given.split_at(values.len());
            given = others;
            let differ = |(given, expected): (&f32, &f32)| given.to_bits() != expected.to_bits();
            if let Some(at) = own.iter().zip(&*values).position(differ).filter(|_| wrong.is_none()) {
                wrong = Some((element + at, own[at], values[at]));
            }
            element += values.len();
        });
        drop(space);
        if let Some((element, given, expected)) = wrong {
            let Shape { unit, sizes: [a, b], .. } = call.shape();
            let (given_bits, expected_bits) = (given.to_bits(), expected.to_bits());
            self.demote(
                form,
                &format!(
                    "{unit} of {a} x {b}: value {element} is {given:e} ({given_bits:#010x}), the mirror computes \
                     {expected:e} ({expected_bits:#010x})"
                ),
            );
        }
    }

    /// A form was found wrong in a run, in what `test` says: the next one that passes the gate computes from now on.
    /// The finding is kept for [`VectorUnit::findings`].
    pub fn demote(&self, form: Form, test: &str) {
        let Some(next) = self.replace(form, test) else { return };
        if let Some(audit) = self.audit() {
            let line = format!("audit: vector unit, {form}: {test}; {next} computes from here on");
            audit.found.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    /// What the audit has found since the last time, for people.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let taken =
            self.audit().map(|audit| std::mem::take(&mut *audit.found.lock().unwrap_or_else(PoisonError::into_inner)));
        taken.unwrap_or_default()
    }

    /// Calls that were recomputed so far.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.audit().map_or(0, |audit| audit.checks.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
impl VectorUnit {
    /// Every form but the mirror gets this bit of this value wrong, where the unit is the one named; `None`: no more.
    pub(crate) fn spoil(&self, fault: Option<(&'static str, usize, u32)>) {
        *self.audit().unwrap().fault.lock().unwrap() = fault;
    }
}

#[cfg(test)]
impl Audit {
    /// Flip the fault's bit in what a call has written.
    fn spoil(&self, call: &mut impl Call) {
        let Some((unit, mut at, bit)) = *self.fault.lock().unwrap() else { return };
        if call.shape().unit != unit {
            return;
        }
        call.written(&mut |values| {
            if let Some(value) = values.get_mut(at) {
                *value = f32::from_bits(value.to_bits() ^ 1 << bit);
                at = usize::MAX;
            } else if at != usize::MAX {
                at -= values.len();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HeadNorm, Norm, Verdict};
    use super::*;
    use crate::conv::{ConvWeights, Ring};
    use crate::delta::{DeltaRow, Memory};
    use crate::math::Function;
    use crate::vector::Values;

    /// One call of each unit, on the same operands whoever computes: its name in the audit, and its results.
    type Unit = (&'static str, fn(&VectorUnit) -> Vec<f32>);

    const UNITS: [Unit; 5] = [
        ("norm.rms", |unit| {
            let (x, weight, mut out) = (Values::Plain.make(70, 1), Values::Plain.make(70, 2), vec![0.0; 70]);
            unit.norm(Norm::Rms, &x, &weight, None, 1e-5, &mut out);
            out
        }),
        ("head_norm", |unit| {
            let (mut qkv, weight) = (Values::Plain.make(4 * 33, 3), Values::Plain.make(33, 4));
            let shape = HeadNorm { heads: 2, kv_heads: 1, head_dim: 33, eps: 1e-6 };
            unit.head_norm(&mut qkv, Some(&weight), None, &shape);
            qkv
        }),
        ("act.gated", |unit| {
            let (x, mut out) = (Values::Plain.make(2 * 50, 5), vec![0.0; 50]);
            unit.act_gated(&x, Function::Silu, 1, &mut out);
            out
        }),
        ("conv", |unit| {
            let weights = ConvWeights::new(&Values::Plain.make(40 * 4, 6), None, 4, Function::Silu);
            let (mut ring, mut out) = (Ring::new(40, 4), vec![0.0; 40]);
            unit.conv(&weights, &mut ring, &Values::Plain.make(40, 7), &mut out);
            out.extend(ring.rows().flatten());
            out
        }),
        ("delta", |unit| {
            let (q, k, v) = (Values::Plain.make(34, 8), Values::Plain.make(34, 9), Values::Plain.make(17, 10));
            let row = DeltaRow { q: &q, k: &k, v: &v, decay: 0.9, beta: 0.5, scale: 0.25 };
            let (mut memory, mut out) = (Memory::new(1, 34, 17), vec![0.0; 17]);
            memory.state_mut().copy_from_slice(&Values::Plain.make(34 * 17, 11));
            unit.delta(&row, memory.state_mut(), &mut out);
            out.extend(memory.state());
            out
        }),
    ];

    fn bits(values: Vec<f32>) -> Vec<u32> {
        values.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn one_bit_of_any_unit_is_caught_named_demoted_and_put_right() {
        for (name, run) in UNITS {
            let want = bits(run(&VectorUnit::mirror()));
            for (value, bit) in [(0, 0), (7, 22), (16, 31)] {
                let unit = VectorUnit::new().audited(3);
                let best = unit.form();
                if best == Form::Mirror {
                    return;
                }
                assert_eq!(bits(run(&unit)), want, "{name}");
                assert!(unit.findings().is_empty() && unit.checks() == 1, "{name}: the first call is checked");
                unit.spoil(Some((name, value, bit)));
                // The second call is no sample; the fault goes through. The third is.
                assert_ne!(bits(run(&unit)), want, "{name}: the fault shows");
                assert_eq!((unit.form(), unit.checks()), (best, 1), "{name}");
                assert_eq!(bits(run(&unit)), want, "{name}: an audited call has the mirror's results");
                let next = unit.form();
                assert!(next < best, "{name}: {best} gives way to {next}");
                let found = unit.findings();
                let start = format!("audit: vector unit, {best}: {name} of ");
                let end = format!("; {next} computes from here on");
                assert!(found.len() == 1 && found[0].starts_with(&start) && found[0].ends_with(&end), "{found:?}");
                let failed = |form: Form| {
                    unit.reports().iter().any(|r| r.form == form && matches!(r.verdict, Verdict::Failed(_)))
                };
                assert!(failed(best) && !failed(next), "{name}: {:?}", unit.reports());
                // Wrong too, the next one falls to the mirror, which is right; then nothing is left to audit.
                (0..6).for_each(|_| drop(run(&unit)));
                assert_eq!((unit.form(), bits(run(&unit))), (Form::Mirror, want.clone()), "{name}");
            }
        }
    }

    /// A demotion is the unit's own: others of the process, and those made later, are gated on their own account.
    #[test]
    fn units_do_not_share_their_findings() {
        let unit = VectorUnit::new().audited(1);
        let (other, clone) = (VectorUnit::new().audited(1), unit.clone());
        let best = unit.form();
        unit.demote(best, "a test");
        if best != Form::Mirror {
            assert!(unit.form() < best);
            assert_eq!((clone.form(), other.form(), VectorUnit::new().form()), (unit.form(), best, best));
        }
    }

    #[test]
    fn shapes_are_counted_apart_and_more_of_them_than_there_is_room_for() {
        let audit = Audit::new(0);
        for round in 0..2 {
            for n in 0..2 * SHAPES {
                let due = audit.due(Shape { unit: "act", sizes: [1, n], grows: false });
                assert_eq!(due, round == 0 && n < SHAPES, "call {round} of shape {n}");
            }
        }
        let audit = Audit::new(4);
        let due: Vec<bool> = (0..9).map(|n| audit.due(Shape { unit: "act", sizes: [1, n], grows: true })).collect();
        assert_eq!(due, [true, false, false, true, false, false, false, true, false]);
    }
}
