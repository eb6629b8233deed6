//! `Auditor`: results of a run held to the mirror, and what follows when they differ.

use crate::units::UnitError;
use wordline_kernels::audit::{Audit, Culprit, Mismatch};
use wordline_kernels::gate;
use wordline_kernels::vector::VectorUnit;

/// Calls of one shape between two that are looked at.
const PERIOD: u64 = 1024;

/// The live-shape audit of an engine.
#[derive(Debug)]
pub(super) struct Auditor {
    audit: Audit,
    /// What was found, until somebody asks.
    found: Vec<String>,
}

impl Auditor {
    pub(super) fn new() -> Self {
        Self { audit: Audit::new(PERIOD), found: Vec::new() }
    }

    /// What was found since the last time.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.found)
    }

    /// Run a command until its results are the mirror's: after a mismatch the form that made it is demoted, and the
    /// next one computes the whole command again.
    pub(super) fn run<T>(
        &mut self,
        units: &gate::Units,
        vector: &VectorUnit,
        mut command: impl FnMut(&Audit) -> Result<(T, Option<Mismatch>), UnitError>,
    ) -> Result<T, UnitError> {
        loop {
            let (result, mismatch) = command(&self.audit)?;
            let Some(mismatch) = mismatch else { return Ok(result) };
            match mismatch.by {
                Culprit::Array(form) => {
                    let next = units.demote(form, &mismatch.to_string())?;
                    self.found.push(format!("audit: {mismatch}; {next} computes from here on"));
                }
                // It keeps what it is told for those who ask.
                Culprit::Vector(form) => vector.demote(form, &mismatch.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wordline_kernels::gate::Form;

    fn mismatch(form: Form) -> Mismatch {
        Mismatch { by: Culprit::Array(form), call: "matvec".into(), row: 0, element: 3, given: 1.0, expected: 2.0 }
    }

    #[test]
    fn a_mismatch_demotes_the_form_and_the_command_runs_again() {
        let units = gate::Units::new().unwrap();
        let first = units.active();
        let mut auditor = Auditor::new();
        let mut runs = Vec::new();
        // The fastest form is wrong each time; the mirror is right.
        let result = auditor.run(&units, &VectorUnit::new(), |_| {
            let form = units.active();
            runs.push(form);
            Ok((runs.len(), (form != Form::Mirror).then(|| mismatch(form))))
        });
        assert_eq!(result.unwrap(), runs.len());
        assert_eq!((runs.first(), runs.last()), (Some(&first), Some(&Form::Mirror)));
        assert!(runs.windows(2).all(|w| w[1] < w[0]), "{runs:?}");
        assert_eq!(units.active(), Form::Mirror);
        let found = auditor.take();
        assert_eq!(found.len(), runs.len() - 1);
        assert!(found.iter().all(|line| line.contains("element 3 of row 0")), "{found:?}");
        assert!(auditor.take().is_empty());
    }

    #[test]
    fn a_mismatch_of_the_vector_unit_demotes_its_form_alone() {
        let (units, vector) = (gate::Units::new().unwrap(), VectorUnit::new().audited(0));
        let (array, best) = (units.active(), vector.form());
        let mut auditor = Auditor::new();
        auditor
            .run(&units, &vector, |_| {
                let by = Culprit::Vector(best);
                let wrong = (vector.form() == best && best != wordline_kernels::vector::Form::Mirror)
                    .then(|| Mismatch { by, ..mismatch(array) });
                Ok(((), wrong))
            })
            .unwrap();
        assert_eq!((units.active(), auditor.take()), (array, Vec::new()));
        if best != wordline_kernels::vector::Form::Mirror {
            assert!(vector.form() < best);
            let found = vector.findings();
            assert!(found.len() == 1 && found[0].contains("element 3 of row 0"), "{found:?}");
        }
    }

    #[test]
    fn when_the_mirror_itself_is_wrong_nothing_computes() {
        let units = gate::Units::up_to(Form::Mirror).unwrap();
        let error =
            Auditor::new().run(&units, &VectorUnit::new(), |_| Ok(((), Some(mismatch(Form::Mirror))))).unwrap_err();
        assert!(matches!(error, UnitError::Device(_)), "{error}");
    }
}
