//! `Backend`: everything on this machine that can run the units, what its gates say, and how fast it multiplies.

use super::array_rate::{ArrayRate, Gemm};
use serde::Serialize;
use wordline_ir::Numerics;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gate::{Form, Units, Verdict};

/// The product that backends are compared by.
pub const GEMM: Gemm = Gemm { rows: 1024, cols: 1024, tokens: 16 };

/// What became of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It has passed its gates.
    Passed,
    /// It failed one, and computes nothing.
    Failed,
    /// This machine does not have it.
    Absent,
}

/// A backend's line in the table.
#[derive(Clone, Debug, Serialize)]
pub struct Backend {
    /// Name for `--backend`.
    pub backend: &'static str,
    /// The form of the array unit.
    pub form: &'static str,
    /// The processor or device.
    pub adapter: String,
    /// The device's driver; none for the processor.
    pub driver: Option<String>,
    /// It is what computes unless something else is asked for.
    pub active: bool,
    /// What became of it.
    pub standing: Standing,
    /// Tests passed.
    pub gates_passed: Option<usize>,
    /// The test that it failed.
    pub failed_gate: Option<String>,
    /// SHA-256 over the bits of the probe's results.
    pub probe: Option<String>,
    /// Products of [`GEMM`]'s shape a second, at the default numerics.
    pub gemms_per_s: Option<f64>,
}

/// The processor's forms, the fastest first.
#[must_use]
pub fn processor(units: &Units, threads: usize) -> Vec<Backend> {
    let (report, adapter) = (units.report(), processor_name());
    let line = |form: Form, verdict: &Verdict| {
        let (standing, failed_gate, probe) = match verdict {
            Verdict::Absent => (Standing::Absent, None, None),
            Verdict::Failed(test) => (Standing::Failed, Some(test.clone()), None),
            Verdict::Passed(probe) => (Standing::Passed, None, Some(probe.to_string())),
        };
        let passed = standing == Standing::Passed;
        Backend {
            backend: "cpu",
            form: form.name(),
            adapter: adapter.clone(),
            driver: None,
            active: form == report.active,
            standing,
            gates_passed: passed.then_some(report.tests),
            failed_gate,
            probe,
            gemms_per_s: if passed { gemms_per_s(form, threads) } else { None },
        }
    };
    report.forms.iter().map(|form| line(form.form, &form.verdict)).collect()
}

/// Median of a few passes of one form.
fn gemms_per_s(form: Form, threads: usize) -> Option<f64> {
    const PASSES: usize = 5;
    let units = Units::up_to(form).ok().filter(|units| units.active() == form)?;
    let lanes = Lanes::new(Numerics::default().lanes)?;
    let mut rate = ArrayRate::new(&units, GEMM, lanes, Limbs::Two, threads).ok()?;
    let mut passes: Vec<f64> = (0..PASSES).map(|_| rate.products()).collect();
    passes.sort_by(f64::total_cmp);
    passes.get(PASSES / 2).copied()
}

/// The processor's name where the system says it, else its architecture.
fn processor_name() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.trim_start().strip_prefix(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processors_forms_all_have_a_line() {
        let units = Units::new().unwrap();
        let lines = processor(&units, 1);
        assert_eq!(lines.len(), Form::ALL.len());
        assert_eq!(lines.iter().filter(|line| line.active).count(), 1);
        for line in lines {
            let passed = line.standing == Standing::Passed;
            assert_eq!((line.probe.is_some(), line.gates_passed.is_some()), (passed, passed), "{line:?}");
            assert_eq!(line.gemms_per_s.is_some_and(|rate| rate > 0.0), passed, "{line:?}");
            assert!(!line.active || passed);
            assert!(!line.adapter.is_empty());
        }
    }
}
