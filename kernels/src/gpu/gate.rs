//! The init gate of the array unit on a device: a method computes only after its shaders have matched the mirror here.
//!
//! [`DeviceArray::new`] checks the table of products whole, then takes the methods from the fastest down. One that fails a
//! test, or that the driver does not compile, is demoted: the next is taken and the report says which test failed. With
//! none left the device does not compute, and its caller falls back to the processor.
//!
//! `examine` goes through the tests, which lie in files by what they test; `bits` holds what results are compared with.

pub(super) mod bits;
mod examine;
mod gated;
mod products;
mod quantised;
mod routed;

use super::Method;
use super::clock::HostClock;
use super::device::{Facts, Gpu};
use super::error::GpuError;
use super::matvec::{Array, RunError};
use super::outcome::Failed;
use super::record::{self, Dispatch};
use super::region::Region;
use crate::format::{Lanes, Weights};
use crate::gate::Verdict;
use crate::tables::{self, MulTable, TableError};
use examine::{examine, probe_dispatches, tests};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

pub(super) use examine::{coded, one};

/// One method's line in the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodReport {
    /// Method.
    pub method: Method,
    /// What became of it.
    pub verdict: Verdict,
}

/// What the gate found on a device, and what computes now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Backend, adapter, driver.
    pub facts: Facts,
    /// Every method that was looked at, the fastest first.
    pub methods: Vec<MethodReport>,
    /// The method that computes.
    pub active: Option<Method>,
    /// Tests that a method has to pass.
    pub tests: usize,
}

/// Why a device does not compute.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceArrayError {
    /// The table of products is not whole.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The device fails.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// No method passed the gate.
    #[error(
        "no method of the array unit passed the init gate on this device; the last one to fail, {method}, failed '{test}'"
    )]
    NoMethod {
        /// The last method.
        method: Method,
        /// The test that it failed.
        test: String,
    },
}

/// Proof that the table is whole and that a method of the array unit has passed the init gate on this device.
#[derive(Debug)]
pub struct DeviceArray {
    gpu: Gpu,
    table: Region,
    lanes: Lanes,
    passed: Vec<Method>,
    active: AtomicUsize,
    verdicts: Mutex<Vec<MethodReport>>,
}

impl DeviceArray {
    /// The fastest method of this device that passes with these lanes, none faster than `best`.
    ///
    /// # Errors
    /// The table is not whole, the device fails, or no method passes.
    pub fn new(gpu: &Gpu, best: Method, lanes: Lanes) -> Result<Self, DeviceArrayError> {
        Self::over(gpu, tables::EMBEDDED, best, lanes)
    }

    /// The same over these bytes as the table of products.
    ///
    /// # Errors
    /// As [`DeviceArray::new`].
    pub fn over(gpu: &Gpu, table: &[u8], best: Method, lanes: Lanes) -> Result<Self, DeviceArrayError> {
        let table = gpu.upload("the table of products", MulTable::check(table)?.bytes())?;
        let (mut passed, mut verdicts) = (Vec::new(), Vec::new());
        for method in Method::ALL.into_iter().filter(|m| *m <= best) {
            let verdict = match examine(gpu, &Array { method, table: Some(&table), lanes, plan: None }) {
                Ok(probe) => {
                    passed.push(method);
                    Verdict::Passed(probe)
                }
                Err(Failed::Test(test)) => Verdict::Failed(test),
                Err(Failed::Gpu(error @ (GpuError::Refused { .. } | GpuError::TooLarge { .. }))) => {
                    Verdict::Failed(error.to_string())
                }
                Err(Failed::Gpu(error)) => return Err(error.into()),
            };
            verdicts.push(MethodReport { method, verdict });
        }
        if passed.is_empty() {
            let last = verdicts.iter().rev().find_map(|report| match &report.verdict {
                Verdict::Failed(test) => Some((report.method, test.clone())),
                _ => None,
            });
            let (method, test) = last.unwrap_or((Method::Lut, "no method was given".to_owned()));
            return Err(DeviceArrayError::NoMethod { method, test });
        }
        let (active, verdicts) = (AtomicUsize::new(0), Mutex::new(verdicts));
        Ok(Self { gpu: gpu.clone(), table, lanes, passed, active, verdicts })
    }

    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The method that computes.
    #[must_use]
    pub fn active(&self) -> Method {
        self.passed[self.active.load(Ordering::Relaxed)]
    }

    /// The table of products.
    #[must_use]
    pub fn table(&self) -> &Region {
        &self.table
    }

    /// The array unit.
    #[must_use]
    pub fn array(&self) -> Array<'_> {
        Array { method: self.active(), table: Some(&self.table), lanes: self.lanes, plan: None }
    }

    /// What the gate found.
    #[must_use]
    pub fn report(&self) -> Report {
        let methods = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Report { facts: self.gpu.facts().clone(), methods, active: Some(self.active()), tests: tests() }
    }

    /// A method was found wrong in a run: use the next one from now on. Returns what computes now.
    ///
    /// # Errors
    /// No method is left.
    pub fn demote(&self, method: Method, test: &str) -> Result<Method, DeviceArrayError> {
        {
            let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(report) = verdicts.iter_mut().find(|r| r.method == method) {
                report.verdict = Verdict::Failed(test.to_owned());
            }
        }
        let Some(at) = self.passed.iter().position(|m| *m == method) else { return Ok(self.active()) };
        if at + 1 == self.passed.len() {
            return Err(DeviceArrayError::NoMethod { method, test: test.to_owned() });
        }
        self.active.fetch_max(at + 1, Ordering::SeqCst);
        Ok(self.active())
    }

    /// Products of the probe's matrix with its rows that the device makes in a second, submission and all.
    ///
    /// # Errors
    /// The device fails.
    pub fn gemms_per_second(&self, now: HostClock) -> Result<f64, RunError> {
        const BATCH: usize = 256;
        let (gpu, array) = (&self.gpu, self.array());
        let Some((dispatches, y)) = probe_dispatches(gpu, &array, Weights::Int8).map_err(RunError::from)? else {
            return Ok(0.0);
        };
        let product = &dispatches[1..];
        let batch: Vec<Dispatch> = product.iter().cycle().take(BATCH * product.len()).cloned().collect();
        record::run(gpu, &dispatches, &y)?;
        let start = now();
        record::run(gpu, &batch, &y)?;
        Ok(BATCH as f64 * 1e9 / now().saturating_sub(start).max(1) as f64)
    }
}
