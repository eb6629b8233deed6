//! Results as they are compared: the mirror's, and the device's as they were read back.

use crate::cpu::matvec::{GROUP, Mirror};
use crate::matvec::{Group, Matvec, Space};

/// The mirror's results, `[tokens, rows]`.
pub(in crate::gpu) fn mirror(call: &Matvec<'_>) -> Vec<f32> {
    let (layout, tokens) = (call.matrix().layout(), call.tokens());
    let mut results = vec![0.0; tokens * layout.rows()];
    let mut space = Space::default();
    let mut group = Group::new(call, &Mirror, &mut space);
    for tile in 0..layout.tiles() {
        let rows = layout.tile_rows(tile);
        for first in (0..tokens).step_by(GROUP) {
            for (i, values) in group.results(tile, first, GROUP.min(tokens - first)).iter().enumerate() {
                results[(first + i) * layout.rows()..][rows.clone()].copy_from_slice(&values[..rows.len()]);
            }
        }
    }
    results
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
