//! The gate's cases of the units that carry state from row to row, conv and delta: their outputs, and the state that they
//! leave.

use super::cases::{Cases, bits, sequence, step_of};
use crate::conv::{ConvWeights, Ring};
use crate::delta::{DeltaRow, Memory};
use crate::gpu::conv::Conv;
use crate::gpu::delta::Delta;
use crate::gpu::error::GpuError;
use crate::math::Function;
use crate::vector::{Values, VectorUnit};

pub(super) fn conv(cases: &mut Cases<'_>) -> Result<(), GpuError> {
    let unit = VectorUnit::mirror();
    for (seed, values) in Values::ALL.into_iter().enumerate() {
        for (channels, taps, with_bias) in [(1, 1, true), (33, 2, false), (65, 4, false), (130, 4, true), (7, 3, true)]
        {
            let seed = seed as u32;
            let (weight, bias) = (values.make(channels * taps, seed + 1), values.make(channels, seed + 2));
            let weights = ConvWeights::new(&weight, with_bias.then_some(&bias), taps, Function::Silu);
            let rows = taps + 2;
            let x = values.make(rows * channels, seed + 10);
            let mut ring = Ring::new(channels, taps);
            let mut want = vec![0.0; rows * channels];
            for (x, out) in x.chunks_exact(channels).zip(want.chunks_exact_mut(channels)) {
                unit.conv(&weights, &mut ring, x, out);
            }
            let step = step_of(cases, &sequence(rows, 0, 1))?;
            let (x, weight, bias) = (cases.input(&x)?, cases.input(&weight)?, cases.input(&bias)?);
            let past = (taps - 1) * channels;
            let ring_memory = cases.output(&vec![0; 2 * past])?;
            let out = cases.output(&vec![0; rows * channels])?;
            let job = Conv {
                rows,
                channels,
                taps,
                act: Function::Silu,
                x: &x,
                weight: &weight,
                bias: with_bias.then_some(&bias),
                ring: &ring_memory,
                out: &out,
            };
            cases.job_on(&job.job(), &step)?;
            let name = format!("conv of {channels} channels, {taps} taps, {values:?} values");
            cases.expect(name.clone(), &out, 0, bits(&want))?;
            // Position p lies in row p mod (taps - 1); the oldest is that of the next position.
            for (i, past_row) in ring.rows().enumerate() {
                let row = (rows + i) % (taps - 1);
                cases.expect(format!("{name}: ring"), &ring_memory, past + row * channels, bits(past_row))?;
            }
        }
    }
    Ok(())
}

pub(super) fn delta(cases: &mut Cases<'_>) -> Result<(), GpuError> {
    let unit = VectorUnit::mirror();
    for (seed, values) in Values::ALL.into_iter().enumerate() {
        for (dk, dv, key_heads, share) in [(1, 1, 1, 1), (31, 8, 2, 1), (33, 64, 1, 2), (64, 65, 1, 1), (128, 40, 1, 2)]
        {
            let (heads, rows, seed) = (key_heads * share, 3, seed as u32 * 100);
            let width = 2 * key_heads * dk + heads * dv;
            let qkv = values.make(rows * width, seed + 1);
            // Decays that take a memory through the flush within a few rows.
            let decays = [0.9, 1e-9, 1e-30];
            let gb: Vec<f32> =
                (0..rows).flat_map(|t| (0..2 * heads).map(move |i| if i < heads { decays[t] } else { 0.7 })).collect();
            let mut memory = Memory::new(heads, dk, dv);
            let start = values.make(heads * dk * dv, seed + 5);
            for head in 0..heads {
                memory.head_mut(head).copy_from_slice(&start[head * dk * dv..][..dk * dv]);
            }
            let mut want = vec![0.0; rows * heads * dv];
            for t in 0..rows {
                let row = &qkv[t * width..][..width];
                for head in 0..heads {
                    let key = head / share * dk;
                    let line = DeltaRow {
                        q: &row[key..][..dk],
                        k: &row[key_heads * dk + key..][..dk],
                        v: &row[2 * key_heads * dk + head * dv..][..dv],
                        decay: gb[t * 2 * heads + head],
                        beta: gb[t * 2 * heads + heads + head],
                        scale: 0.25,
                    };
                    unit.delta(&line, memory.head_mut(head), &mut want[(t * heads + head) * dv..][..dv]);
                }
            }
            let step = step_of(cases, &sequence(rows, 0, 0))?;
            let (qkv, gb) = (cases.input(&qkv)?, cases.input(&gb)?);
            let state = cases.output(&bits(&start))?;
            let out = cases.output(&vec![0; want.len()])?;
            let job = Delta {
                rows,
                key_heads,
                value_heads: heads,
                key_dim: dk,
                value_dim: dv,
                share,
                scale: 0.25,
                qkv: &qkv,
                qkv_width: width,
                gb: &gb,
                memory: &state,
                out: &out,
            };
            cases.job_on(&job.job(), &step)?;
            let name = format!("delta of {heads} heads of {dk} by {dv}, {values:?} values");
            cases.expect(name.clone(), &out, 0, bits(&want))?;
            cases.expect(format!("{name}: memory"), &state, 0, bits(memory.state()))?;
        }
    }
    Ok(())
}
