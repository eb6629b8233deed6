//! The gate's cases of functions and micro-programs: those of the vector unit's own gate, recorded while the mirror runs
//! them.

use super::cases::{Cases, bits};
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::outcome::Failed;
use crate::gpu::vector::{Bound, MicroRun, map_job};
use crate::math::Function;
use crate::vector::{Form, Micro, check_micros, check_with, interpret, micro::Access, run::Run};
use std::cell::RefCell;

pub(super) fn micro_programs(gpu: &Gpu) -> Result<usize, Failed> {
    let cases = RefCell::new(Cases::new(gpu)?);
    let failed = RefCell::new(None);
    let keep = |result: Result<(), GpuError>| {
        if let Err(e) = result {
            failed.borrow_mut().get_or_insert(e);
        }
    };
    let interpreter = |micro: &Micro, run: Run<'_, '_>| keep(one_micro(&mut cases.borrow_mut(), micro, run));
    let map = |f: Function, x: &[f32], y: &mut [f32]| {
        Form::Mirror.map(f, x, y);
        keep(one_map(&mut cases.borrow_mut(), f, x, y));
    };
    // The mirror is what runs, so what is checked here is right; the cases are what the device has to give.
    check_with(interpreter, map).map_err(Failed::Test)?;
    check_micros(&[513, 2048, 2081, 4130], interpreter).map_err(Failed::Test)?;
    if let Some(e) = failed.into_inner() {
        return Err(e.into());
    }
    cases.into_inner().finish()
}

fn one_map(cases: &mut Cases<'_>, f: Function, x: &[f32], y: &[f32]) -> Result<(), GpuError> {
    let from = cases.input(x)?;
    let to = cases.output(&vec![0; x.len()])?;
    cases.job(&map_job(f, &from, &to, x.len()))?;
    cases.expect(format!("function {}", f.name()), &to, 0, bits(y))
}

fn one_micro(cases: &mut Cases<'_>, micro: &Micro, run: Run<'_, '_>) -> Result<(), GpuError> {
    let Run { heads, width, params, act, first_lane, operands } = run;
    let mut regions = Vec::new();
    for (operand, info) in operands.iter().zip(micro.operands) {
        regions.push(match info.access {
            Access::In => cases.input(operand.data())?,
            Access::Out | Access::Update => cases.output(&bits(operand.data()))?,
        });
    }
    let bound: Vec<Bound<'_>> =
        regions.iter().zip(&*operands).map(|(region, o)| Bound::rows(region, 0, o.stride)).collect();
    cases.job(&MicroRun { micro, rows: 1, heads, width, params, act, first_lane }.job(&bound))?;
    interpret(Form::Mirror, micro, Run { heads, width, params, act, first_lane, operands: &mut *operands });
    for ((region, operand), info) in regions.iter().zip(&*operands).zip(micro.operands) {
        if info.access != Access::In {
            let name = format!("{} of heads of {width}, '{}'", micro.name, info.name);
            cases.expect(name, region, 0, bits(operand.data()))?;
        }
    }
    Ok(())
}
