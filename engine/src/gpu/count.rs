//! What a command of a step has moved and multiplied, counted as the processor's units count it.

use super::device::Device;
use super::recorded::Recorded;
use super::weights::Weight;
use crate::int8::Formats;
use crate::units::{Counters, StepRow};
use wordline_ir::TensorId;
use wordline_kernels::attend::{Attend, CacheLayout};

impl Device {
    /// Count what a command of a step has moved and multiplied, as the processor's units do; every pick of a routed
    /// command streams its expert.
    pub(super) fn count(&self, op: &Recorded, n: usize, rows: &[StepRow], counters: &mut Counters) {
        let matrix = |id: TensorId| match self.weight(id) {
            Some(Weight::Matrix(matrix)) => Some(matrix.layout()),
            _ => None,
        };
        match op {
            Recorded::Matvec(op) => {
                let Some(layout) = matrix(op.weight) else { return };
                counters.matrix(layout.rows() * layout.cols(), layout.bytes(), n, op.head);
            }
            Recorded::RoutedMatvec(op) => {
                let Some(layout) = matrix(op.stack) else { return };
                let picks = n * op.k;
                counters.routed(picks * layout.rows() * layout.cols(), picks * layout.bytes(), n);
            }
            Recorded::CacheAppend(op) => {
                let layout = self.states.layers[op.layer].cache.as_ref().map(|cache| cache.layout);
                counters.cache_bytes += layout.map_or(0, |layout| n * layout.position_bytes()) as u64;
            }
            Recorded::Attend(op) => {
                let Formats { queries, probs, lanes, .. } = self.formats;
                let attend = Attend { window: op.window, cap: op.cap, queries, probs, lanes };
                let layout = self.states.layers[op.layer].cache.as_ref().map(|cache| cache.layout);
                let read =
                    |layout: CacheLayout| rows.iter().map(|r| attend.bytes_read(&layout, r.position)).sum::<usize>();
                counters.cache_bytes += layout.map_or(0, read) as u64;
            }
            Recorded::Conv(op) => counters.state_bytes += (n * 4 * op.channels * op.taps) as u64,
            Recorded::Delta(op) => {
                counters.state_bytes += 2 * (n * op.value_heads * op.key_dim * op.value_dim * 4) as u64;
            }
            _ => {}
        }
    }
}
