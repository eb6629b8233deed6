//! The gate's cases of kernels that do the work of neighbours: micro-programs and attention that quantise what they
//! make, rotation with the cache's append. Each is held to its parts on the mirror, one after the other.

use super::cases::{Cases, bits, sequence, step_of};
use crate::attend::{Cache, CacheLayout};
use crate::cpu::matvec::quantise_row;
use crate::format::Limbs;
use crate::gpu::cache::{Append, Bank};
use crate::gpu::error::GpuError;
use crate::gpu::quantise::DeviceActs;
use crate::gpu::rotate_append::RotateAppend;
use crate::gpu::vector::{Bound, MicroRun};
use crate::gpu::wgsl::step_words;
use crate::math::Function;
use crate::matvec::Acts;
use crate::vector::run::{Operand, Run};
use crate::vector::{Form, Micro, Rope, Values, VectorUnit, interpret, table};

/// Rows of a case.
const ROWS: usize = 2;

/// Micro-programs whose output the array unit takes: ragged rows, a row of several pieces, heads.
pub(super) fn quantised(cases: &mut Cases<'_>) -> Result<(), GpuError> {
    let shapes: [(usize, usize, Limbs, &[&Micro]); 3] = [
        (1, 40, Limbs::Two, &[&table::NORM_RMS, &table::NORM_LN_BIAS, &table::ACT, &table::GATE]),
        (1, 2080, Limbs::One, &[&table::NORM_RMS]),
        (3, 64, Limbs::Two, &[&table::ACT_GATED, &table::GATE_GROUP, &table::GATED_NORM]),
    ];
    let mut seed = 7000;
    for (heads, width, limbs, micros) in shapes {
        for micro in micros {
            for values in [Values::Plain, Values::Cancelling, Values::Tiny] {
                seed += 10;
                one(cases, micro, (heads, width, limbs), values, seed)?;
            }
        }
    }
    Ok(())
}

fn one(
    cases: &mut Cases<'_>,
    micro: &Micro,
    (heads, width, limbs): (usize, usize, Limbs),
    values: Values,
    seed: u32,
) -> Result<(), GpuError> {
    let name = format!("{} of {heads} heads of {width}, {values:?} values, quantised", micro.name);
    let (n, out) = (heads * width, micro.operands.len() - 1);
    // Elements of a row of each operand and from head to head; none: the rows share one head's.
    let shape = |k: usize| match micro.operands[k].name {
        "weight" | "bias" => None,
        "x" if micro.name == table::ACT_GATED.name => Some(2 * width),
        "gate" if micro.name == table::GATE_GROUP.name => Some(1),
        _ => Some(width),
    };
    let params = [Function::Recip.eval(width as f32), 1e-5];
    let params = &params[..micro.params.len()];
    let data: Vec<Vec<f32>> =
        (0..out).map(|k| values.make(shape(k).map_or(width, |head| ROWS * heads * head), seed + k as u32)).collect();
    let mut want = vec![0.0; ROWS * n];
    for (row, made) in want.chunks_exact_mut(n).enumerate() {
        let mut operands: Vec<Operand<'_>> = Vec::new();
        for (k, values) in data.iter().enumerate() {
            operands.push(match shape(k) {
                None => Operand::input(values, 0),
                Some(head) => Operand::input(&values[row * heads * head..][..heads * head], head),
            });
        }
        operands.push(Operand::output(made, width));
        let act = Function::Silu;
        let run = Run { heads, width, params, act, first_lane: 0, operands: &mut operands };
        interpret(Form::Mirror, micro, run);
    }
    let quantisable = want.chunks_exact(n).all(|row| {
        let mut acts = Acts::new();
        quantise_row(row, limbs, &mut acts.shape(1, n, limbs).space(0)).is_ok()
    });
    if !quantisable {
        return Ok(());
    }
    let regions = data.iter().map(|values| cases.input(values)).collect::<Result<Vec<_>, _>>()?;
    let made = cases.own(ROWS * n)?;
    let mut bound: Vec<Bound<'_>> = Vec::new();
    for (k, region) in regions.iter().enumerate() {
        bound.push(shape(k).map_or(Bound::shared(region), |head| Bound::rows(region, heads * head, head)));
    }
    bound.push(Bound::rows(&made, n, width));
    let acts = DeviceActs::new(cases.gpu, ROWS, n, limbs)?;
    let run = MicroRun { micro, rows: ROWS, heads, width, params, act: Function::Silu, first_lane: 0 };
    const READS: u32 = 3;
    let Some(job) = run.quantised(cases.gpu, &bound, READS, &acts) else { return Ok(()) };
    // Another workgroup has found the command that reads this at fault; what that one reads is made all the same.
    let mut words = step_words(&sequence(ROWS, 0, 0));
    words[0] = READS;
    let step = cases.gpu.upload("the gate's step", bytemuck::cast_slice(&words))?;
    cases.job_on(&job, &step)?;
    cases.expect(name.clone(), &made, 0, bits(&want))?;
    cases.expect_acts(&name, &acts, &want)
}

/// Rotations that end in the cache.
pub(super) fn rotated(cases: &mut Cases<'_>) -> Result<(), GpuError> {
    let unit = VectorUnit::mirror();
    for (seed, (kv_heads, group, head_dim, v_dim, rot, interleaved)) in
        [(2, 2, 32, 32, 32, false), (1, 3, 20, 12, 8, true), (2, 1, 128, 96, 128, true), (1, 1, 80, 80, 40, false)]
            .into_iter()
            .enumerate()
    {
        let Ok(layout) = CacheLayout::new(kv_heads, head_dim, v_dim, None) else { continue };
        let (heads, rows, first) = (kv_heads * group, 3, 31);
        let (keys_at, pages, pairs) = (heads * head_dim, 3, rot / 2);
        let width = keys_at + kv_heads * (head_dim + v_dim);
        let scale = 0.3;
        let mut qkv = Values::Plain.make(rows * width, 8000 + seed as u32);
        let (cos, sin) =
            (Values::Plain.make((first + rows) * pairs, 8100), Values::Plain.make((first + rows) * pairs, 8200));
        let memory = cases.own(pages * layout.page_bytes() / 4)?;
        let given = cases.gpu.upload("rows of the gate", bytemuck::cast_slice(&qkv))?;
        let bank =
            Bank { layout: &layout, first_head: 0, heads: kv_heads, pages, first_state: 0, states: 1, memory: &memory };
        let append = Append { rows, command: 0, qkv: &given, width, keys_at, bank };
        let (cos_memory, sin_memory) = (cases.input(&cos)?, cases.input(&sin)?);
        let job = RotateAppend { append, heads, rot, interleaved, scale, cos: &cos_memory, sin: &sin_memory }.job()?;
        let step = step_of(cases, &sequence(rows, first, 0))?;
        cases.job_on(&job, &step)?;

        let mut cache = Cache::new(layout);
        // Positions before these are zeros.
        for _ in 0..first {
            let _ = cache.append(&vec![0.0; kv_heads * head_dim], &vec![0.0; kv_heads * v_dim]);
        }
        let shape = Rope { heads, kv_heads, head_dim, rot, interleaved, scale };
        for (i, row) in qkv.chunks_exact_mut(width).enumerate() {
            let at = (first + i) * pairs;
            unit.rope(row, &cos[at..][..pairs], &sin[at..][..pairs], &shape);
            let (keys, values) = row[keys_at..].split_at(kv_heads * head_dim);
            let _ = cache.append(keys, values);
        }
        // Positions that the device was never given differ from zeros that were appended: they are appended there too.
        let zeros = cases.own(first * width)?;
        let before = Append { rows: first, command: 0, qkv: &zeros, width, keys_at, bank };
        let step = step_of(cases, &sequence(first, 0, 0))?;
        cases.job_on(&before.job()?, &step)?;
        let name = format!("rotation of {heads} and {kv_heads} heads of {head_dim} into the cache");
        cases.expect(name.clone(), &given, 0, bits(&qkv))?;
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(cache.content());
        cases.expect_bytes(format!("{name}: cache"), &memory, 0, words)?;
    }
    Ok(())
}
