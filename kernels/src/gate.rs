//! The init gate: a form of the array unit computes only after it has matched the mirror, bit by bit, on this device.
//!
//! [`Units::new`] checks the table of products whole, then takes the device's forms from the fastest down. A form that
//! fails one test is demoted: the next one is taken, and the report says which test failed. The mirror itself is held
//! to the pinned probe. Without a whole table and a passing form there is no [`Units`], and nothing computes.

pub(crate) mod cases;

use crate::cpu::matvec::{ArrayForm, Mirror};
use crate::format::Weights;
use crate::probe::{self, Probe};
use crate::tables::{self, MulTable, TableError};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A form of the array unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Plain scalar code, the definition of the bits.
    Mirror,
    /// AArch64 NEON.
    Neon,
    /// AArch64 NEON with the dot product instruction.
    Dotprod,
    /// x86-64 AVX2.
    Avx2,
    /// x86-64 AVX-512 VNNI.
    Vnni,
}

impl Form {
    /// Every form, the fastest first.
    pub const ALL: [Form; 5] = [Form::Vnni, Form::Avx2, Form::Dotprod, Form::Neon, Form::Mirror];

    /// Name for people and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Form::Mirror => "cpu-mirror",
            Form::Neon => "cpu-neon",
            Form::Dotprod => "cpu-neon-dotprod",
            Form::Avx2 => "cpu-avx2",
            Form::Vnni => "cpu-avx512-vnni",
        }
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What became of a form on this device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The processor lacks its instructions.
    Absent,
    /// Passed every test, and printed the pinned probe.
    Passed(Probe),
    /// Failed the test named here, or was found wrong later, in a run.
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

/// What the gate found, and what computes now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Every form that was looked at, the fastest first.
    pub forms: Vec<FormReport>,
    /// The form that computes.
    pub active: Form,
    /// Tests that a form has to pass.
    pub tests: usize,
}

/// Why this device does not compute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitsError {
    /// The table of products is not whole.
    #[error(transparent)]
    Table(#[from] TableError),
    /// No form passed the gate.
    #[error("no form of the array unit passed the init gate; the last one to fail, {form}, failed '{test}'")]
    NoForm {
        /// The last form.
        form: Form,
        /// The test that it failed.
        test: String,
    },
}

/// Proof that the table is whole and that a form of the array unit has passed the init gate; every computation on
/// int8 takes it.
pub struct Units {
    table: MulTable<'static>,
    /// Forms that passed, the fastest first.
    forms: Vec<&'static dyn ArrayForm>,
    active: AtomicUsize,
    verdicts: Mutex<Vec<FormReport>>,
}

impl std::fmt::Debug for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Units").field("active", &self.active()).finish_non_exhaustive()
    }
}

impl Units {
    /// The fastest form of this device that passes.
    ///
    /// # Errors
    /// The table is not whole, or no form passes.
    pub fn new() -> Result<Self, UnitsError> {
        Self::up_to(Form::Vnni)
    }

    /// The same, but no faster form than this one is looked at.
    ///
    /// # Errors
    /// As [`Units::new`].
    pub fn up_to(best: Form) -> Result<Self, UnitsError> {
        Self::over(tables::EMBEDDED, best)
    }

    /// The same over these bytes as the table of products.
    fn over(table: &'static [u8], best: Form) -> Result<Self, UnitsError> {
        let table = MulTable::check(table)?;
        let forms = Form::ALL.into_iter().filter(|f| *f <= best);
        Self::gate(table, forms.map(|form| (form, device_form(form))))
    }

    /// Gate these forms, in this order.
    fn gate(
        table: MulTable<'static>,
        forms: impl Iterator<Item = (Form, Option<&'static dyn ArrayForm>)>,
    ) -> Result<Self, UnitsError> {
        let (mut passed, mut verdicts) = (Vec::new(), Vec::new());
        for (form, device) in forms {
            let verdict = match device {
                None => Verdict::Absent,
                Some(device) => match examine(device) {
                    Ok(probe) => {
                        passed.push(device);
                        Verdict::Passed(probe)
                    }
                    Err(test) => Verdict::Failed(test),
                },
            };
            verdicts.push(FormReport { form, verdict });
        }
        if passed.is_empty() {
            let last = verdicts.iter().rev().find_map(|report| match &report.verdict {
                Verdict::Failed(test) => Some((report.form, test.clone())),
                _ => None,
            });
            let (form, test) = last.unwrap_or((Form::Mirror, "no form was given".to_owned()));
            return Err(UnitsError::NoForm { form, test });
        }
        Ok(Self { table, forms: passed, active: AtomicUsize::new(0), verdicts: Mutex::new(verdicts) })
    }

    /// The units over these forms, gated; for tests of what goes wrong later.
    #[cfg(test)]
    pub(crate) fn of(forms: &[&'static dyn ArrayForm]) -> Result<Self, UnitsError> {
        Self::gate(MulTable::embedded()?, forms.iter().map(|form| (form.form(), Some(*form))))
    }

    /// The form that computes.
    #[must_use]
    pub fn active(&self) -> Form {
        self.array().form()
    }

    /// The table of products.
    #[must_use]
    pub fn table(&self) -> MulTable<'static> {
        self.table
    }

    /// What the gate found.
    #[must_use]
    pub fn report(&self) -> Report {
        let forms = self.verdicts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        Report { forms, active: self.active(), tests: cases::count() }
    }

    /// A form was found wrong in a run: use the next one from now on. Returns what computes now.
    ///
    /// # Errors
    /// No form is left.
    pub fn demote(&self, form: Form, test: &str) -> Result<Form, UnitsError> {
        {
            let mut verdicts = self.verdicts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(report) = verdicts.iter_mut().find(|r| r.form == form) {
                report.verdict = Verdict::Failed(test.to_owned());
            }
        }
        let Some(at) = self.forms.iter().position(|f| f.form() == form) else { return Ok(self.active()) };
        if at + 1 == self.forms.len() {
            return Err(UnitsError::NoForm { form, test: test.to_owned() });
        }
        // Another thread may have demoted the same form, or a later one, already.
        self.active.fetch_max(at + 1, Ordering::SeqCst);
        Ok(self.active())
    }

    #[inline]
    pub(crate) fn array(&self) -> &'static dyn ArrayForm {
        self.forms[self.active.load(Ordering::Relaxed)]
    }
}

/// The processor's form of this name.
fn device_form(form: Form) -> Option<&'static dyn ArrayForm> {
    match form {
        Form::Mirror => Some(&Mirror),
        #[cfg(target_arch = "x86_64")]
        Form::Avx2 => crate::cpu::matvec_avx2::detect().map(|f| f as _),
        #[cfg(target_arch = "x86_64")]
        Form::Vnni => crate::cpu::matvec_vnni::detect().map(|f| f as _),
        #[cfg(not(target_arch = "x86_64"))]
        Form::Avx2 | Form::Vnni => None,
        #[cfg(target_arch = "aarch64")]
        Form::Neon => crate::cpu::matvec_neon::detect().map(|f| f as _),
        #[cfg(target_arch = "aarch64")]
        Form::Dotprod => crate::cpu::matvec_neon::detect_dot().map(|f| f as _),
        #[cfg(not(target_arch = "aarch64"))]
        Form::Neon | Form::Dotprod => None,
    }
}

/// Every test, and the probe.
///
/// # Errors
/// The name of the first test that the form fails.
fn examine(form: &dyn ArrayForm) -> Result<Probe, String> {
    // The mirror is what the tests compare with; it answers to the pinned probes alone.
    if form.form() != Form::Mirror {
        cases::run(form)?;
    }
    for weights in Weights::ALL {
        let (probe, pinned) = (probe::array(form, weights), probe::pinned(weights));
        if probe != pinned {
            return Err(format!("probe {weights:?}: {probe}, pinned {pinned}"));
        }
    }
    Ok(probe::ARRAY)
}

#[cfg(test)]
mod tests;
