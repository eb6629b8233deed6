//! What a model asks of devices: bytes of weights and state a layer, and what a stage will read of the weight files.

use super::plan::{Demand, Room};
use crate::checkpoint::Weights;
use crate::checkpoint::hub::Limits;
use crate::checkpoint::hub::ranges::{RangeSet, pieces, runs};
use std::collections::{BTreeMap, BTreeSet};
use wordline_engine::ImageLayout;
use wordline_engine::image::LayoutError;
use wordline_ir::{LayerId, Program, TensorId, state_layout};

/// Of what is needed, this much more in hundredths stays free: rows at work, kernels, the system.
const HEADROOM: u64 = 20;

/// Bytes that a model needs on its devices, with this room for sequences.
///
/// # Errors
/// A matrix has no place in a weight image.
pub fn demand(program: &Program, room: Room) -> Result<Demand, LayoutError> {
    let layout = ImageLayout::of(program)?;
    let cut = program.identity.cut;
    let mut layers = vec![0_u64; cut.last_layer];
    let mut ends = 0_u64;
    let mut seen = BTreeSet::new();
    for command in &program.commands {
        for (_, id) in command.tensors() {
            if seen.insert(id) {
                let bytes = layout.place(id).map_or(0, |place| place.len as u64);
                match layers.get_mut(usize::from(command.layer().0)) {
                    Some(layer) if command.layer() != LayerId::OUTSIDE => *layer += bytes,
                    _ => ends += bytes,
                }
            }
        }
    }
    let sequences = u64::from(room.sequences);
    for (layer, state) in layers.iter_mut().zip(state_layout(program)) {
        let cache = state.cache.map_or(0, |cache| {
            let seen = cache.window.map_or(room.ctx, |w| {
                let rows = u32::try_from(w).unwrap_or(u32::MAX).saturating_sub(1).saturating_add(room.step_rows);
                rows.min(room.ctx)
            });
            // An int8 an element, and a scale for each block of 32, on both sides rounded up.
            u64::from(seen.next_multiple_of(64)) * cache.row() as u64 * 9 / 8
        });
        let ring = state.ring.map_or(0, |ring| 4 * (ring.channels * ring.taps) as u64);
        let memory = state.memory.map_or(0, |memory| 4 * (memory.heads * memory.key_dim * memory.value_dim) as u64);
        *layer += sequences * (cache + ring + memory);
    }
    let roomy = |bytes: u64| bytes + bytes / 100 * HEADROOM;
    Ok(Demand { ends: roomy(ends), layers: layers.into_iter().map(roomy).collect() })
}

/// What a stage reads of the weight files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Reads {
    /// Bytes of its own tensors, as stored.
    pub bytes: u64,
    /// Requests that bring them from the Hub where nothing is here yet: a run of bytes each, by the rule that the Hub's
    /// client keeps.
    pub requests: u32,
}

/// What a stage reads: the stored tensors that its program's tensors are views of.
#[must_use]
pub fn reads(program: &Program, tensors: &[TensorId], weights: &Weights) -> Reads {
    let names: BTreeSet<&str> =
        stored(program, tensors).into_iter().flat_map(|name| weights.stored_names(name)).collect();
    let mut wanted: BTreeMap<&str, RangeSet> = BTreeMap::new();
    for (file, entry) in weights.entries().filter(|(_, entry)| names.contains(entry.name.as_str())) {
        wanted.entry(file).or_default().insert(entry.bytes.clone());
    }
    let Limits { bridge, piece, .. } = Limits::default();
    let requests = |set: &RangeSet| pieces(&runs(set, &RangeSet::default(), bridge), piece).len() as u32;
    Reads { bytes: wanted.values().map(RangeSet::bytes).sum(), requests: wanted.values().map(requests).sum() }
}

/// Names of the stored tensors behind these.
#[must_use]
pub fn stored<'a>(program: &'a Program, tensors: &[TensorId]) -> BTreeSet<&'a str> {
    let views = tensors.iter().filter_map(|id| program.tensor(*id)).map(|tensor| &tensor.view);
    views.flat_map(|view| &view.parts).map(|part| part.tensor.as_str()).collect()
}
