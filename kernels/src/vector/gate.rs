//! The init gate of the vector unit: the forms of the device, held to the mirror before one computes.

use super::audit::Audit;
use super::micro::{Access, Micro, Step};
use super::run::{Operand, Run};
use super::{Form, MICRO, interpret};
use crate::math::Function;
use crate::math::exhaustive::borders;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What became of a form on this device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The processor lacks its instructions.
    Absent,
    /// Passed every test.
    Passed,
    /// Failed the test named here.
    Failed(String),
}

/// One form's line in the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormReport {
    /// Form.
    pub form: Form,
    /// What became of it.
    pub verdict: Verdict,
}

/// A form whose bits are not the mirror's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the vector unit's form {form} failed '{test}'")]
pub struct GateError {
    /// The form.
    pub form: Form,
    /// The test.
    pub test: String,
}

/// Proof that a form of the vector unit has passed the gate; the commands are its methods. Clones are one unit: what one
/// finds wrong, all leave alone.
#[derive(Clone, Debug)]
pub struct VectorUnit(Arc<State>);

#[derive(Debug)]
struct State {
    /// Index of what computes in [`Form::ALL`].
    form: AtomicUsize,
    reports: Mutex<Vec<FormReport>>,
    audit: Option<Audit>,
}

impl VectorUnit {
    /// The fastest form of this device that passes; the gate is run once in a process. The mirror always passes: it is
    /// what the others are held to.
    #[must_use]
    pub fn new() -> Self {
        static FASTEST: OnceLock<VectorUnit> = OnceLock::new();
        FASTEST.get_or_init(|| Self::up_to(Form::ALL[0])).apart(None)
    }

    /// The same, but no faster form than this one is looked at.
    #[must_use]
    pub fn up_to(best: Form) -> Self {
        Self::choose(best, examine)
    }

    /// The mirror.
    #[must_use]
    pub fn mirror() -> Self {
        Self::up_to(Form::Mirror)
    }

    /// A unit with the form of this one, whose calls are recomputed by the mirror: the first of each shape and every
    /// `period`-th after it; 0: the first alone.
    #[must_use]
    pub fn audited(&self, period: u64) -> Self {
        self.apart(Some(Audit::new(period)))
    }

    /// A unit that shares nothing with this one.
    fn apart(&self, audit: Option<Audit>) -> Self {
        Self::with(self.form(), self.reports(), audit)
    }

    fn with(form: Form, reports: Vec<FormReport>, audit: Option<Audit>) -> Self {
        let form = AtomicUsize::new(place(form));
        Self(Arc::new(State { form, reports: Mutex::new(reports), audit }))
    }

    /// Takes the first form for which `check` finds no fault; it gives `None` for a form that the device lacks.
    pub(super) fn choose(best: Form, check: impl Fn(Form) -> Option<Result<(), GateError>>) -> Self {
        let mut reports = Vec::new();
        let form = first(Form::ALL.into_iter().filter(|form| *form <= best), check, &mut reports);
        Self::with(form, reports, None)
    }

    /// A form that no gate has seen, for the tests of the forms themselves.
    #[cfg(test)]
    pub(super) fn ungated(form: Form) -> Self {
        Self::with(form, Vec::new(), None)
    }

    /// The form that computes.
    #[must_use]
    pub fn form(&self) -> Form {
        Form::ALL[self.0.form.load(Ordering::Relaxed)]
    }

    /// Every form that was looked at, the fastest first.
    #[must_use]
    pub fn reports(&self) -> Vec<FormReport> {
        self.0.reports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn audit(&self) -> Option<&Audit> {
        self.0.audit.as_ref()
    }

    /// Mark a form as failed and compute by the next one that passes, which is returned; `None` when it is another
    /// that computes already, or there is none below it.
    pub(super) fn replace(&self, form: Form, test: &str) -> Option<Form> {
        let mut reports = self.0.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if self.form() != form || form == Form::Mirror {
            return None;
        }
        if let Some(report) = reports.iter_mut().find(|report| report.form == form) {
            report.verdict = Verdict::Failed(test.to_owned());
        }
        let next = first(Form::ALL.into_iter().filter(|next| *next < form), examine, &mut reports);
        self.0.form.store(place(next), Ordering::Relaxed);
        Some(next)
    }
}

/// The first of these forms without a fault, the mirror when there is none; each that is looked at is reported.
fn first(
    forms: impl Iterator<Item = Form>,
    check: impl Fn(Form) -> Option<Result<(), GateError>>,
    reports: &mut Vec<FormReport>,
) -> Form {
    for form in forms {
        let verdict = match check(form) {
            None => Verdict::Absent,
            Some(Ok(())) => Verdict::Passed,
            Some(Err(error)) => Verdict::Failed(error.test),
        };
        let passed = verdict == Verdict::Passed;
        reports.push(FormReport { form, verdict });
        if passed {
            return form;
        }
    }
    Form::Mirror
}

/// The gate's word on a form of this device.
fn examine(form: Form) -> Option<Result<(), GateError>> {
    match form {
        // What the others are held to.
        Form::Mirror => Some(Ok(())),
        _ if form.is_available() => Some(check(form)),
        _ => None,
    }
}

/// Index in [`Form::ALL`].
fn place(form: Form) -> usize {
    Form::ALL.iter().position(|other| *other == form).unwrap_or(Form::ALL.len() - 1)
}

impl Default for VectorUnit {
    fn default() -> Self {
        Self::new()
    }
}

/// Holds a form to the mirror: every function on its borders, every micro-program on ragged shapes and hard values,
/// then the conv and the delta unit and the softmax terms of attention.
///
/// # Errors
/// The first test whose bits differ.
pub(super) fn check(form: Form) -> Result<(), GateError> {
    check_with(|micro, run| interpret(form, micro, run), |f, x, y| form.map(f, x, y))
        .and_then(|()| crate::conv::check(form))
        .and_then(|()| crate::delta::check(form))
        .and_then(|()| crate::attend::terms::check(form))
        .map_err(|test| GateError { form, test })
}

/// The tests on any interpreter and any map.
pub(crate) fn check_with(
    interpreter: impl Fn(&Micro, Run<'_, '_>),
    map: impl Fn(Function, &[f32], &mut [f32]),
) -> Result<(), String> {
    let inputs = borders();
    for &function in Function::ALL {
        let mut got = vec![0.0; inputs.len()];
        map(function, &inputs, &mut got);
        for (x, y) in inputs.iter().zip(got) {
            if y.to_bits() != function.eval(*x).to_bits() {
                return Err(format!("function {} at {x:e}", function.name()));
            }
        }
    }
    check_micros(&[1, 7, 8, 31, 32, 33, 64, 127, 128, 129, 300], interpreter)
}

/// Every micro-program on heads of these widths.
pub(crate) fn check_micros(widths: &[usize], interpreter: impl Fn(&Micro, Run<'_, '_>)) -> Result<(), String> {
    for micro in MICRO {
        for (at, &width) in widths.iter().enumerate() {
            // All kinds of values where vectors, lanes and tiles have a rest; one kind in turn elsewhere.
            let rest = [33, 129].contains(&width);
            for (case, values) in Values::ALL.into_iter().enumerate().filter(|(case, _)| rest || at % 4 == *case) {
                let seed = (case * 1000 + width) as u32;
                let trial = Trial { micro, heads: 2, width, values, seed };
                if trial.bits(&interpreter) != trial.bits(&|micro, run| interpret(Form::Mirror, micro, run)) {
                    return Err(format!("{} on {values:?} values, width {width}", micro.name));
                }
            }
        }
    }
    Ok(())
}

/// Kinds of hard values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Everyday sizes.
    Plain,
    /// Sums that cancel to a few units in the last place of their terms.
    Cancelling,
    /// Around 2^-60, so that products lie around the flush, and around 2^-120, where sums do.
    Tiny,
    /// All the same.
    Constant,
}

impl Values {
    pub(crate) const ALL: [Values; 4] = [Values::Plain, Values::Cancelling, Values::Tiny, Values::Constant];

    /// `n` values of this kind.
    pub(crate) fn make(self, n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            // 24 bits of it, in -1..1, exactly.
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        let constant = next();
        let mut values: Vec<f32> = (0..n)
            .map(|i| match self {
                Values::Plain => 4.0 * next(),
                Values::Cancelling => {
                    let size = 1000.0 * (1.0 + next().abs() / 4096.0);
                    if i % 2 == 0 { size } else { -size }
                }
                Values::Tiny => {
                    let field = if i % 3 == 0 { 5 + i as u32 % 5 } else { 62 + i as u32 % 11 };
                    f32::from_bits(next().to_bits() & 0x807f_ffff | field << 23)
                }
                Values::Constant => constant,
            })
            .collect();
        crate::flush::flush_all(&mut values);
        values
    }
}

/// A micro-program on made-up operands.
struct Trial<'a> {
    micro: &'a Micro,
    heads: usize,
    width: usize,
    values: Values,
    seed: u32,
}

impl Trial<'_> {
    /// Runs it and returns the bits of every operand that it may write.
    fn bits(&self, interpreter: &impl Fn(&Micro, Run<'_, '_>)) -> Vec<u32> {
        let Trial { micro, heads, width, values, seed } = *self;
        // Wide enough for every place, and a few more elements that must stay.
        let stride = 2 * width + 3;
        let mut memory: Vec<Vec<f32>> = (0..micro.operands.len())
            .map(|k| values.make(heads * stride + 32, seed.wrapping_add(77 * k as u32)))
            .collect();
        let shared: Vec<bool> = (0..micro.operands.len()).map(|k| is_shared(micro, k)).collect();
        let mut operands: Vec<Operand<'_>> = memory
            .iter_mut()
            .zip(micro.operands.iter().zip(&shared))
            .map(|(data, (info, shared))| match info.access {
                Access::In => Operand::input(data, if *shared { 0 } else { stride }),
                Access::Out | Access::Update => Operand::output(data, stride),
            })
            .collect();
        let params = [0.37, 1e-6];
        interpreter(
            micro,
            Run {
                heads,
                width,
                params: &params[..micro.params.len()],
                act: Function::Silu,
                first_lane: seed as usize % 32,
                operands: &mut operands,
            },
        );
        drop(operands);
        let written = memory.iter().zip(micro.operands).filter(|(_, info)| info.access != Access::In);
        written.flat_map(|(data, _)| data.iter().map(|x| x.to_bits())).collect()
    }
}

/// An operand named for a parameter is shared by the heads.
fn is_shared(micro: &Micro, operand: usize) -> bool {
    matches!(micro.operands[operand].name, "weight" | "bias" | "cos" | "sin")
        && !micro.steps.iter().any(|s| matches!(s, Step::LoadHead(o) if usize::from(*o) == operand))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_this_device_pass() {
        for form in Form::ALL.into_iter().filter(|f| f.is_available()) {
            assert_eq!(check(form), Ok(()));
        }
        let unit = VectorUnit::new();
        assert!(unit.reports().iter().all(|r| !matches!(r.verdict, Verdict::Failed(_))));
    }

    #[test]
    fn a_failing_form_is_demoted_and_named() {
        let unit = VectorUnit::choose(Form::Avx2, |form| match form {
            Form::Avx512 | Form::Avx2 | Form::Neon => None,
            Form::Portable => Some(Err(GateError { form, test: "act on Tiny values, width 33".into() })),
            Form::Mirror => Some(Ok(())),
        });
        assert_eq!(unit.form(), Form::Mirror);
        let verdicts: Vec<_> = unit.reports().iter().map(|r| r.verdict.clone()).collect();
        let failed = Verdict::Failed("act on Tiny values, width 33".into());
        assert_eq!(verdicts, [Verdict::Absent, Verdict::Absent, failed, Verdict::Passed]);
    }

    /// An interpreter that is wrong in one written value, at one width only.
    fn off_by_one(name: &'static str, width: usize) -> impl Fn(&Micro, Run<'_, '_>) {
        move |micro, run| {
            let Run { heads, width: w, params, act, first_lane, operands } = run;
            let again = Run { heads, width: w, params, act, first_lane, operands: &mut *operands };
            interpret(Form::Mirror, micro, again);
            if micro.name == name && w == width {
                let out = operands.last_mut().unwrap().data_mut();
                out[w - 1] = f32::from_bits(out[w - 1].to_bits() ^ 1);
            }
        }
    }

    #[test]
    fn one_wrong_bit_at_one_boundary_fails() {
        let map = |f: Function, x: &[f32], y: &mut [f32]| Form::Mirror.map(f, x, y);
        assert_eq!(check_with(off_by_one("none", 1), map), Ok(()));
        let error = check_with(off_by_one("norm.rms", 33), map).unwrap_err();
        assert_eq!(error, "norm.rms on Plain values, width 33");
        let error = check_with(off_by_one("none", 1), |f, x, y| {
            Form::Mirror.map(f, x, y);
            if f == Function::Exp {
                // A form without the flush: the result just below 2^-120 survives.
                for (x, y) in x.iter().zip(y) {
                    if *y == 0.0 && *x > -84.0 {
                        *y = x.exp();
                    }
                }
            }
        });
        assert!(error.unwrap_err().starts_with("function exp at -8"));
    }
}
