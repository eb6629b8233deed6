//! `Backend`: everything on this machine that can run the units, what its gates say, and how fast it multiplies.

use super::array_rate::{ArrayRate, Gemm};
#[cfg(feature = "gpu")]
use super::device_limits::DeviceArrayRate;
#[cfg(feature = "gpu")]
use super::limit::Limit as _;
use serde::Serialize;
use wordline_ir::Numerics;
#[cfg(feature = "gpu")]
use wordline_kernels::format::Weights;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gate::{Form, Units, Verdict};
#[cfg(feature = "gpu")]
use wordline_kernels::gpu::{Gpu, GpuError, Method, gates};

/// The product that backends are compared by.
pub const GEMM: Gemm = Gemm { rows: 1024, cols: 1024, tokens: 16 };

/// Passes that a speed is the median of.
const PASSES: usize = 5;

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
    /// The processor or device; none where there is no device.
    pub adapter: Option<String>,
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
    /// Why this machine does not have it.
    pub absent: Option<String>,
    /// SHA-256 over the bits of the probe's results.
    pub probe: Option<String>,
    /// Products of [`GEMM`]'s shape a second, at the default numerics.
    pub gemms_per_s: Option<f64>,
}

/// Mark what computes where `wanted` is asked for: the fastest of its forms that has passed, else the first to follow.
pub fn activate(lines: &mut [Backend], wanted: &str) {
    // The order in which backends take over from one another.
    const LADDER: [&str; 3] = ["dp4a", "lut", "cpu"];
    let from = LADDER.iter().position(|name| *name == wanted).unwrap_or(LADDER.len() - 1);
    for name in &LADDER[from..] {
        if let Some(line) = lines.iter_mut().find(|l| l.backend == *name && l.standing == Standing::Passed) {
            line.active = true;
            return;
        }
    }
}

/// A device's methods, the fastest first; `units` have checked the table of products. What `gpu` is not tells why there
/// is no device.
#[cfg(feature = "gpu")]
#[must_use]
pub fn device(gpu: &Result<Gpu, GpuError>, units: &Units) -> Vec<Backend> {
    Method::ALL.map(|method| method_line(gpu, method, units)).into()
}

#[cfg(feature = "gpu")]
fn method_line(gpu: &Result<Gpu, GpuError>, method: Method, units: &Units) -> Backend {
    let line = Backend {
        backend: match method {
            Method::Dp4a => "dp4a",
            Method::Lut => "lut",
        },
        form: method.name(),
        adapter: gpu.as_ref().ok().map(|gpu| gpu.facts().adapter.clone()),
        driver: gpu.as_ref().ok().map(|gpu| gpu.facts().driver.clone()),
        active: false,
        standing: Standing::Failed,
        gates_passed: None,
        failed_gate: None,
        absent: None,
        probe: None,
        gemms_per_s: None,
    };
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(error) => return Backend { standing: Standing::Absent, absent: Some(error.to_string()), ..line },
    };
    let failed = |test: String| Backend { failed_gate: Some(test), ..line.clone() };
    let Some(lanes) = Lanes::new(Numerics::default().lanes) else { return failed("the lanes".to_owned()) };
    // The gates of int8 stand before those of every format, so tests of the others are what they add.
    let gated = |weights| gates::gated(gpu, method, lanes, weights, units.table());
    let passed = match gated(Weights::Int8) {
        Ok(passed) => passed,
        Err(error) => return failed(error.to_string()),
    };
    let mut tests = passed.tests;
    for weights in Weights::ALL.into_iter().filter(|weights| *weights != Weights::Int8) {
        match gated(weights) {
            Ok(with) => tests += with.tests - passed.tests,
            Err(error) => return failed(error.to_string()),
        }
    }
    let rate = DeviceArrayRate::new(gpu, method, units, GEMM, lanes, Limbs::Two);
    let gemms_per_s = rate.ok().and_then(|mut rate| {
        let mut passes: Vec<f64> = (0..PASSES).map_while(|_| rate.pass().ok()).collect();
        passes.sort_by(f64::total_cmp);
        passes.get(passes.len() / 2).map(|macs| macs / (Limbs::Two.count() * GEMM.macs()) as f64)
    });
    Backend {
        standing: Standing::Passed,
        gates_passed: Some(tests),
        probe: Some(passed.probe.to_string()),
        gemms_per_s,
        ..line
    }
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
            adapter: Some(adapter.clone()),
            driver: None,
            active: false,
            standing,
            gates_passed: passed.then_some(report.tests),
            failed_gate,
            absent: (standing == Standing::Absent).then(|| "the processor lacks its instructions".to_owned()),
            probe,
            gemms_per_s: if passed { gemms_per_s(form, threads) } else { None },
        }
    };
    report.forms.iter().map(|form| line(form.form, &form.verdict)).collect()
}

/// Median of a few passes of one form.
fn gemms_per_s(form: Form, threads: usize) -> Option<f64> {
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

    fn adds_up(lines: &[Backend]) {
        for line in lines {
            let passed = line.standing == Standing::Passed;
            assert_eq!((line.probe.is_some(), line.gates_passed.is_some()), (passed, passed), "{line:?}");
            assert_eq!(line.gemms_per_s.is_some_and(|rate| rate > 0.0), passed, "{line:?}");
            assert_eq!(line.absent.is_some(), line.standing == Standing::Absent, "{line:?}");
            assert_eq!(line.failed_gate.is_some(), line.standing == Standing::Failed, "{line:?}");
            assert!(!line.active || passed, "{line:?}");
        }
    }

    #[test]
    fn the_processors_forms_all_have_a_line() {
        let units = Units::new().unwrap();
        let mut lines = processor(&units, 1);
        activate(&mut lines, "cpu");
        assert_eq!(lines.len(), Form::ALL.len());
        assert_eq!(lines.iter().filter(|line| line.active).count(), 1);
        assert!(lines.iter().any(|line| line.active && line.form == units.active().name()));
        assert!(lines.iter().all(|line| line.adapter.is_some()));
        adds_up(&lines);
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn a_machine_without_a_device_says_why() {
        let units = Units::new().unwrap();
        let mut lines = device(&Err(GpuError::NoAdapter), &units);
        lines.extend(processor(&units, 1));
        activate(&mut lines, "dp4a");
        adds_up(&lines);
        assert!(lines[..2].iter().all(|l| l.absent.as_ref().is_some_and(|why| why.contains("no graphics adapter"))));
        assert!(lines.iter().any(|line| line.active && line.backend == "cpu"));
    }

    /// A fault of one bit in a device's shaders: its line names the test, and the next backend is what computes.
    #[cfg(feature = "gpu")]
    #[test]
    fn a_fault_of_one_bit_falls_to_the_next_and_names_the_test() {
        use wordline_kernels::gpu::{Choice, device::Patch};
        let units = Units::new().unwrap();
        let dp4a: Patch = |s| s.replace("+ dot4I8Packed(a.w, c.w)", "+ (dot4I8Packed(a.w, c.w) ^ 1)");
        let both: Patch = |s| {
            let wrong = "v = bitcast<f32>(bitcast<u32>(r(v + met.x)) ^ select(0u, 1u, row == 16u));";
            s.replace("v = r(v + met.x);", wrong)
        };
        for (patch, computes) in [(dp4a, "lut"), (both, "cpu")] {
            let gpu = Gpu::open_patched(&Choice::Best, Some(patch));
            if let Err(error) = gpu {
                return println!("skipped: {error}");
            }
            let mut lines = device(&gpu, &units);
            lines.extend(processor(&units, 1));
            activate(&mut lines, "dp4a");
            adds_up(&lines);
            assert!(lines[0].failed_gate.as_ref().is_some_and(|test| test.starts_with("matvec")), "{:?}", lines[0]);
            assert_eq!(lines[1].standing == Standing::Passed, computes == "lut", "{:?}", lines[1]);
            let active: Vec<&str> = lines.iter().filter(|line| line.active).map(|line| line.backend).collect();
            assert_eq!(active, [computes]);
        }
    }
}
