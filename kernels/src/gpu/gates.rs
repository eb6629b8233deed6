//! All gates that a method passes before it computes on a device, each run once for a device in a process: models are
//! opened more often than devices change.

use super::Method;
use super::device::Gpu;
use super::outcome::{Failed, Passed};
use super::{floats, gate};
use crate::format::{Lanes, Weights};
use crate::probe;
use crate::tables::MulTable;
use std::sync::{Mutex, PoisonError};

/// How products are made.
type Way = (Method, Lanes, Weights);

/// What a device's gates have found: by method and lanes, and first the units that multiply no int8.
#[derive(Default)]
struct Found {
    floats: Vec<(Gpu, Result<usize, Failed>)>,
    methods: Vec<(Gpu, Way, Result<Passed, Failed>)>,
}

/// All gates that a method passes before it computes on a device with weights of a format: the array unit's, and those
/// of the float units. Each runs once for a device in a process. The probe is that of the format.
///
/// # Errors
/// The first test that fails, or what the device refused.
pub fn gated(
    gpu: &Gpu,
    method: Method,
    lanes: Lanes,
    weights: Weights,
    products: MulTable<'_>,
) -> Result<Passed, Failed> {
    static FOUND: Mutex<Found> = Mutex::new(Found { floats: Vec::new(), methods: Vec::new() });
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let floats = match found.floats.iter().find(|(of, _)| of.is(gpu)) {
        Some((_, result)) => result.clone(),
        None => {
            let result = floats::check(gpu);
            found.floats.push((gpu.clone(), result.clone()));
            result
        }
    }?;
    let mut passed = Passed { tests: floats, probe: probe::ARRAY };
    // Attention multiplies int8, whatever the weights are.
    let formats = [Weights::Int8, weights];
    for format in &formats[..if weights == Weights::Int8 { 1 } else { 2 }] {
        let way = (method, lanes, *format);
        let known = found.methods.iter().find(|(of, by, _)| of.is(gpu) && *by == way);
        let result = match known {
            Some((.., result)) => result.clone(),
            None => {
                let result = products_of(gpu, method, lanes, *format, products);
                found.methods.push((gpu.clone(), way, result.clone()));
                result
            }
        }?;
        passed = Passed { tests: passed.tests + result.tests, probe: result.probe };
    }
    Ok(passed)
}

/// The array unit's gate with weights of a format; with that of int8 attention's.
fn products_of(
    gpu: &Gpu,
    method: Method,
    lanes: Lanes,
    weights: Weights,
    products: MulTable<'_>,
) -> Result<Passed, Failed> {
    let table = gpu.upload("the table of products", products.bytes())?;
    if weights != Weights::Int8 {
        return gate::coded(gpu, &table, method, lanes, weights);
    }
    let array = gate::one(gpu, &table, method, lanes)?;
    let attention = floats::check_attention(gpu, method, Some(&table))?;
    Ok(Passed { tests: array.tests + attention, ..array })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Choice;

    #[test]
    fn the_float_units_of_this_device_pass() {
        let Ok(gpu) = Gpu::open(&Choice::Best) else { return };
        for method in Method::ALL {
            let cases = gated(&gpu, method, Lanes::default(), Weights::Int8, MulTable::embedded().unwrap());
            assert!(matches!(cases, Ok(passed) if passed.tests > 600), "{method}: {cases:?}");
        }
    }

    /// A shader's source with one place changed; the gate must name the unit that it belongs to.
    fn fault(patch: crate::gpu::device::Patch, test: &str) {
        let Ok(gpu) = Gpu::open_patched(&Choice::Best, Some(patch)) else { return };
        match gated(&gpu, Method::Dp4a, Lanes::default(), Weights::Int8, MulTable::embedded().unwrap()) {
            Err(Failed::Test(name)) => assert!(name.starts_with(test), "{name} for {test}"),
            other => panic!("a fault in {test} was not found: {other:?}"),
        }
    }

    #[test]
    fn one_wrong_bit_at_one_boundary_fails() {
        // The last element of a conv of 130 channels.
        fault(
            |s| {
                s.replace(
                    "out[row * channels + c] = f_silu(s);",
                    "out[row * channels + c] = bitcast<f32>(bitcast<u32>(f_silu(s)) ^ select(0u, 1u, c == 129u));",
                )
            },
            "conv of 130 channels",
        );
    }

    #[test]
    fn a_flush_that_is_left_out_fails() {
        fault(|s| s.replace("select(u, 0u, ", "select(u, u, "), "function");
    }

    #[test]
    fn a_wrong_order_of_positions_fails() {
        fault(|s| s.replace("let slot = position % 32u;", "let slot = (position ^ 1u) % 32u;"), "rotation");
        fault(|s| s.replace("position >= v.start && position < v.end", "position >= v.start"), "attention");
    }
}
