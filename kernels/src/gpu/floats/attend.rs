//! The gate's cases of cache and attention, each in the short form and in the long one.

use super::cases::{Cases, bits, sequence, step_of};
use crate::attend::{Attend, Cache, CacheLayout, Queries, Scratch};
use crate::format::{Lanes, Limbs};
use crate::gate;
use crate::gpu::Method;
use crate::gpu::attend::{AttendActs, AttendRun, LongMemory};
use crate::gpu::cache::{Append, Bank};
use crate::gpu::error::GpuError;
use crate::gpu::quantise::DeviceActs;
use crate::gpu::region::Region;
use crate::vector::{Values, VectorUnit};

/// What an attention case is made of.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    v_dim: usize,
    positions: usize,
    window: Option<usize>,
    cap: Option<f32>,
    ring: Option<usize>,
    limbs: Limbs,
    lanes: u8,
}

const SHAPES: [Shape; 7] = {
    let usual = Shape {
        kv_heads: 1,
        group: 1,
        head_dim: 64,
        v_dim: 64,
        positions: 70,
        window: None,
        cap: None,
        ring: None,
        limbs: Limbs::Two,
        lanes: 8,
    };
    [
        usual,
        Shape { kv_heads: 2, group: 3, head_dim: 128, v_dim: 128, positions: 33, ..usual },
        Shape { head_dim: 20, v_dim: 12, positions: 31, cap: Some(2.5), ..usual },
        Shape { kv_heads: 2, head_dim: 80, v_dim: 48, positions: 150, window: Some(40), ..usual },
        Shape { group: 2, head_dim: 32, v_dim: 40, positions: 200, window: Some(50), ring: Some(64), ..usual },
        Shape { head_dim: 300, v_dim: 290, positions: 97, limbs: Limbs::One, ..usual },
        Shape { head_dim: 96, v_dim: 96, positions: 300, lanes: 32, cap: Some(30.0), ..usual },
    ]
};

/// Rows of the last step of a case: they are appended before the first of them attends.
const LAST: usize = 3;

pub(super) fn attention(cases: &mut Cases<'_>, method: Method, table: Option<&Region>) -> Result<(), GpuError> {
    let Ok(units) = gate::Units::up_to(gate::Form::Mirror) else { return Ok(()) };
    for (number, shape) in SHAPES.into_iter().enumerate() {
        for long in [false, true] {
            one_attention(cases, &units, method, table, shape, number as u32, long)?;
        }
    }
    Ok(())
}

fn one_attention(
    cases: &mut Cases<'_>,
    units: &gate::Units,
    method: Method,
    table: Option<&Region>,
    shape: Shape,
    number: u32,
    long: bool,
) -> Result<(), GpuError> {
    let Shape { kv_heads, group, head_dim, v_dim, positions, window, cap, ring, limbs, lanes } = shape;
    let Ok(layout) = CacheLayout::new(kv_heads, head_dim, v_dim, ring) else { return Ok(()) };
    let (heads, lanes) = (kv_heads * group, Lanes::new(lanes).unwrap_or_default());
    let attend = Attend { window, cap, queries: limbs, probs: limbs, lanes };
    let width = heads * head_dim + kv_heads * (head_dim + v_dim);
    let values = Values::Plain.make(positions * width, 900 + number);
    let keys_at = heads * head_dim;
    let mut cache = Cache::new(layout);
    let pages = layout.ring().unwrap_or(positions.div_ceil(32) + 1);
    let name = format!("attention {number}{}", if long { ", long form" } else { "" });
    let memory = cases.own(2 * pages * layout.page_bytes() / 4)?;
    let bank =
        Bank { layout: &layout, first_head: 0, heads: kv_heads, pages, first_state: 4, states: 2, memory: &memory };
    let mut first = 0;
    let mut want = Vec::new();
    let unit = VectorUnit::mirror();
    // A ring takes few rows at a time; a case ends with a small step.
    for n in [7].into_iter().cycle() {
        let n = if positions - first <= LAST { positions - first } else { n.min(positions - LAST - first) };
        let rows = &values[first * width..][..n * width];
        for row in rows.chunks_exact(width) {
            let (keys, values) = row[keys_at..].split_at(kv_heads * head_dim);
            // The values are finite and small.
            let _ = cache.append(keys, values);
        }
        let input = cases.input(rows)?;
        let step = step_of(cases, &sequence(n, first, 5))?;
        let append = Append { rows: n, command: 0, qkv: &input, width, keys_at, bank };
        cases.job_on(&append.job()?, &step)?;
        first += n;
        if first == positions {
            let mut scratch = Scratch::default();
            for (i, row) in rows.chunks_exact(width).enumerate() {
                for kv_head in 0..kv_heads {
                    let q = &row[kv_head * group * head_dim..][..group * head_dim];
                    let mut out = vec![0.0; group * v_dim];
                    let queries = Queries { kv_head, position: first - n + i, q };
                    let done = attend.group_by(units.array(), &unit, &cache, queries, &mut out, &mut scratch);
                    if done.is_err() {
                        out.fill(f32::NAN);
                    }
                    want.extend(out);
                }
            }
            let out = cases.own(n * heads * v_dim)?;
            let padded = positions.next_multiple_of(32) + 32;
            let (scores, sums) = (cases.own(n * heads * padded)?, cases.own(n * heads)?);
            let lane_memory = cases.own(n * heads * v_dim * lanes.count())?;
            let memory = LongMemory { scores: &scores, sums: &sums, lanes: &lane_memory, positions: padded };
            let acts = DeviceActs::new(cases.gpu, n, heads * v_dim, Limbs::Two)?;
            let quantised = AttendActs::of(cases.gpu, &layout, 0, &acts).filter(|_| !long);
            let run = AttendRun {
                method,
                table,
                attend,
                first_row: 0,
                rows: n,
                command: 0,
                heads,
                qkv: &input,
                width,
                out: &out,
                bank,
                long: long.then_some(memory),
                quantised,
            };
            for job in run.jobs()? {
                cases.job_on(&job, &step)?;
            }
            cases.expect(name.clone(), &out, 0, bits(&want))?;
            if quantised.is_some() {
                cases.expect_acts(&name, &acts, &want)?;
            }
            break;
        }
    }
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(cache.content());
    cases.expect_bytes(format!("{name}: cache"), &memory, pages * layout.page_bytes() / 4, words)
}
