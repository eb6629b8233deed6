//! The gate's cases of what picks: the largest of a row, and rows of a step.

use super::cases::{Cases, bits, sequence, step_of};
use crate::gpu::error::GpuError;
use crate::gpu::rows::{Largest, keep};

pub(super) fn rows(cases: &mut Cases<'_>) -> Result<(), GpuError> {
    for (experts, k) in [(1, 1), (5, 5), (64, 8), (65, 3), (200, 10)] {
        let rows = 2;
        // Few different values, so that there are ties.
        let values: Vec<f32> = (0..rows * experts).map(|i| (i * 7919 % 13) as f32 / 16.0).collect();
        let (mut picks, mut weights) = (Vec::new(), Vec::new());
        for row in values.chunks_exact(experts) {
            let mut chosen = vec![0; k];
            crate::topk::largest(row, &mut chosen);
            picks.extend(chosen.iter().map(|i| *i as f32));
            weights.extend(chosen.iter().map(|i| row[*i]));
        }
        let step = step_of(cases, &sequence(rows, 0, 0))?;
        let values = cases.input(&values)?;
        let picked = cases.output(&vec![0; rows * k])?;
        let weighed = cases.output(&vec![0; rows * k])?;
        let job = Largest { rows, experts, k, values: &values, picks: &picked, weights: &weighed };
        cases.job_on(&job.job(), &step)?;
        cases.expect(format!("the {k} largest of {experts}"), &picked, 0, bits(&picks))?;
        cases.expect(format!("the {k} largest of {experts}: their values"), &weighed, 0, bits(&weights))?;
    }
    let (rows, width) = (5, 67);
    let values: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
    let step = step_of(cases, &sequence(rows, 0, 0))?;
    let x = cases.input(&values)?;
    let out = cases.output(&vec![0; rows * width])?;
    cases.job_on(&keep(rows, width, &x, &out), &step)?;
    let want: Vec<f32> = values.chunks_exact(width).rev().flatten().copied().collect();
    cases.expect("rows kept".to_owned(), &out, 0, bits(&want))
}
