//! The init gate of the float units on a device: functions, micro-programs, conv, delta, top-k, cache and attention, each
//! held to the mirror by bits. All cases are recorded first and run as one step.
//!
//! `cases` holds what every case has in common; the others make the cases, in files named as the units are.

mod attend;
mod cases;
mod fused;
mod rows;
mod state;
mod vector;

use super::Method;
use super::device::Gpu;
use super::outcome::Failed;
use super::region::Region;
use cases::Cases;

/// Hold the float units of a device to the mirror: all that multiply no int8. Returns how many cases passed.
///
/// # Errors
/// The first case whose bits differ, or what the device refused.
pub fn check(gpu: &Gpu) -> Result<usize, Failed> {
    let n = vector::micro_programs(gpu)?;
    let mut cases = Cases::new(gpu)?;
    state::conv(&mut cases)?;
    state::delta(&mut cases)?;
    rows::rows(&mut cases)?;
    fused::quantised(&mut cases)?;
    fused::rotated(&mut cases)?;
    Ok(n + cases.finish()?)
}

/// Hold cache and attention to the mirror, by one method of int8 products.
///
/// # Errors
/// As [`check`].
pub fn check_attention(gpu: &Gpu, method: Method, table: Option<&Region>) -> Result<usize, Failed> {
    let mut cases = Cases::new(gpu)?;
    attend::attention(&mut cases, method, table)?;
    cases.finish()
}
