//! `Auditor`: the live audit of a run on a device. What a command read and wrote is read back, and the mirror computes it
//! again, by bits.
//!
//! Each kind of command in each shape is looked at when it first runs, before its step's results are given out; after that
//! one command in every [`PERIOD`] steps, in turn. A difference is the device's failure: whoever runs the step hands it, and
//! every sequence, to the next backend.
//!
//! A command is looked at over few rows, for the mirror is slow: products over some tiles of one row, attention over one row,
//! what carries a state over the rows of one sequence.

use super::device::Device;
use super::error::DeviceError;
use super::plan::{Key, Mark, Plan};
use super::recorded::Recorded;
use super::state::read;
use super::step::StepFault;
use super::weights::Weight;
use crate::image::Image;
use crate::int8::{Formats, Int8Units, Kernels, LayerContent};
use crate::sequencer::Sequencer;
use crate::state::Capacity;
use crate::team::Team;
use crate::units::{self, StepRow, Units};
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use wordline_ir::{LayerId, Slot};
use wordline_kernels::gate::UnitsError;
use wordline_kernels::gpu::audit::{DeviceMismatch, Sample, routed};
use wordline_kernels::gpu::{GpuError, Region};

/// Steps between two that are looked at, once every shape has been seen.
pub(super) const PERIOD: u64 = 256;
/// Tiles of a product that are computed again.
const TILES: usize = 8;
/// Positions of a view above which attention takes the mirror too long.
const VIEW: usize = 8192;

/// What has been looked at, and the mirror's units.
pub(super) struct Auditor {
    /// The commands' mnemonics and layers.
    names: Vec<(&'static str, LayerId)>,
    mirror: Int8Units,
    image: Arc<Image>,
    seen: HashSet<String>,
    /// Plans of whose commands every shape has been seen.
    known: HashSet<(usize, usize, Option<usize>, usize)>,
    steps: u64,
}

/// The rows of a pass, as the audit meets them.
pub(super) struct Rows<'a> {
    pub(super) rows: &'a [StepRow],
    /// Rows that the tail runs on, in its order.
    pub(super) tail: Vec<usize>,
    /// Commands before the tail.
    pub(super) body: usize,
}

/// What a command has read.
struct Given {
    /// Its rows' places in the slots.
    at: Vec<usize>,
    rows: Vec<StepRow>,
    slots: Vec<(Slot, Vec<f32>)>,
    state: Option<(usize, LayerContent)>,
}

/// The scalar mirrors; they pass their gate once in a process.
fn mirrors() -> Result<Kernels, UnitsError> {
    static MIRRORS: OnceLock<Kernels> = OnceLock::new();
    match MIRRORS.get() {
        Some(kernels) => Ok(kernels.clone()),
        None => {
            let kernels = Kernels::mirror()?;
            Ok(MIRRORS.get_or_init(|| kernels).clone())
        }
    }
}

impl Auditor {
    pub(super) fn new(sequencer: &Sequencer, capacity: Capacity, image: &Arc<Image>) -> Result<Self, DeviceError> {
        let mirror = Int8Units::new(sequencer, capacity, Arc::clone(image), mirrors()?, Team::new(1))?;
        let names = sequencer.program().commands.iter().map(|c| (c.info().mnemonic, c.layer())).collect();
        let (seen, known) = (HashSet::new(), HashSet::new());
        Ok(Self { names, mirror, image: Arc::clone(image), seen, known, steps: 0 })
    }

    /// The commands of this pass to look at, in their order.
    pub(super) fn choose(&mut self, device: &Device, key: &Key) -> Vec<usize> {
        self.steps += 1;
        let plan = (key.ops.len(), key.rows, key.kept, key.positions);
        let mut chosen = Vec::new();
        if self.known.insert(plan) {
            for (index, op) in key.ops.iter().enumerate() {
                if self.seen.insert(self.shape(device, index, op, key)) {
                    chosen.push(index);
                }
            }
        }
        if self.steps.is_multiple_of(PERIOD) && !key.ops.is_empty() {
            // A prime step, so that every command has its turn.
            let index = (self.steps / PERIOD).wrapping_mul(7919) as usize % key.ops.len();
            if let Err(place) = chosen.binary_search(&index) {
                chosen.insert(place, index);
            }
        }
        chosen
    }

    /// What makes two commands alike: kind, widths, the matrix's size, how many rows.
    fn shape(&self, device: &Device, index: usize, op: &Recorded, key: &Key) -> String {
        let rows = if index < key.body { key.rows } else { key.kept.unwrap_or(key.rows) }.next_power_of_two();
        let widths: Vec<usize> = op.reads().into_iter().chain(op.writes()).map(|slot| device.width(slot)).collect();
        let matrix = match op {
            Recorded::Matvec(op) => Some(op.weight),
            Recorded::RoutedMatvec(op) => Some(op.stack),
            _ => None,
        };
        let matrix = matrix.and_then(|id| match device.weight(id) {
            Some(Weight::Matrix(matrix)) => Some((matrix.layout().rows(), matrix.layout().cols())),
            _ => None,
        });
        format!("{} {widths:?} {matrix:?} {rows} {}", self.name(index).0, key.positions)
    }

    fn name(&self, index: usize) -> (&'static str, LayerId) {
        self.names.get(index).copied().unwrap_or(("command", LayerId::OUTSIDE))
    }

    /// Read what a command is about to read.
    fn given(
        &self,
        device: &Device,
        op: &Recorded,
        index: usize,
        mark: &Mark,
        of: &Rows<'_>,
    ) -> Result<Option<Given>, GpuError> {
        let tail = index >= of.body;
        let n = if tail { of.tail.len() } else { of.rows.len() };
        let row = |at: usize| if tail { of.tail[at] } else { at };
        if n == 0 {
            return Ok(None);
        }
        let picked = self.steps as usize % n;
        let sequence = of.rows[row(picked)].sequence;
        let same: Vec<usize> = (0..n).filter(|at| of.rows[row(*at)].sequence == sequence).collect();
        let (at, layer): (Vec<usize>, _) = match op {
            Recorded::CacheAppend(op) => (same, Some(op.layer)),
            Recorded::Conv(op) => (same, Some(op.layer)),
            Recorded::Delta(op) => (same, Some(op.layer)),
            Recorded::Attend(op) => (same.last().copied().into_iter().collect(), Some(op.layer)),
            _ => (vec![picked], None),
        };
        let rows: Vec<StepRow> = at.iter().map(|at| StepRow { sequence: 0, ..of.rows[row(*at)] }).collect();
        let attends = matches!(op, Recorded::Attend(_));
        if attends && rows.iter().any(|row| row.position >= VIEW) {
            return Ok(None);
        }
        let slots = op
            .reads()
            .into_iter()
            .map(|slot| Ok::<_, GpuError>((slot, self.rows(device, mark.before(device, slot), slot, &at)?)));
        let slots = slots.collect::<Result<_, GpuError>>()?;
        let state = match (layer, rows.first(), rows.last()) {
            (Some(layer), Some(first), Some(last)) => {
                // Attention reads what was appended before it, other commands what the sequence came with. Rows that follow
                // in the step are in the cache too, and no view reaches them.
                let length = if attends { last.position + 1 } else { first.position };
                Some((layer, device.states.layer(&device.gpu, layer, sequence, length)?))
            }
            _ => None,
        };
        Ok(Some(Given { at, rows, slots, state }))
    }

    /// Take what a command has written, which is read by the next one in the same kernel, from where it lies now.
    fn given_after(&self, device: &Device, before: &Recorded, mark: &Mark, given: &mut Given) -> Result<(), GpuError> {
        let at = given.at.clone();
        for (slot, values) in given.slots.iter_mut().filter(|(slot, _)| before.writes().contains(slot)) {
            *values = self.rows(device, mark.after(device, *slot), *slot, &at)?;
        }
        Ok(())
    }

    fn rows(&self, device: &Device, region: &Region, slot: Slot, at: &[usize]) -> Result<Vec<f32>, GpuError> {
        let width = device.width(slot);
        let mut values = Vec::with_capacity(at.len() * width);
        for at in at {
            let bytes = read(&device.gpu, &region.part(4 * (at * width) as u64, 4 * width as u64)?)?;
            values.extend(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes));
        }
        Ok(values)
    }

    /// Hold what a command has written to what the mirror writes; in words, what differs.
    fn check(
        &mut self,
        device: &Device,
        op: &Recorded,
        mark: &Mark,
        given: &Given,
        sequence: usize,
    ) -> Result<Option<String>, GpuError> {
        let input = |slot: Slot| given.slots.iter().find(|(of, _)| *of == slot).map_or(&[][..], |(_, v)| v.as_slice());
        match op {
            Recorded::Matvec(op) => {
                let wrote = self.rows(device, mark.after(device, op.y), op.y, &given.at)?;
                Ok(self.product(device, op, input(op.x), &wrote).err().map(|e| e.to_string()))
            }
            Recorded::RoutedMatvec(op) => {
                let wrote = self.rows(device, mark.after(device, op.y), op.y, &given.at)?;
                let weights = op.weights.map(input);
                Ok(self.picked(device, op, input(op.x), input(op.picks), weights, &wrote).err().map(|e| e.to_string()))
            }
            _ => self.on_the_mirror(device, op, mark, given, sequence),
        }
    }

    fn product(&self, device: &Device, op: &units::Matvec, x: &[f32], wrote: &[f32]) -> Result<(), DeviceMismatch> {
        let Some(matrix) = self.image.matrix(op.weight) else { return Ok(()) };
        let layout = matrix.layout();
        let Formats { acts: limbs, lanes, .. } = device.formats;
        let Some(given) = wrote.get(op.offset..op.offset + layout.rows()) else { return Ok(()) };
        let bias = op.bias.map(|id| self.image.plain(id));
        let sample = Sample { matrix, x, limbs, lanes, bias, residual: None, given };
        self.tiles(layout.tiles()).try_for_each(|tile| sample.check(tile))
    }

    fn picked(
        &self,
        device: &Device,
        op: &units::RoutedMatvec,
        x: &[f32],
        picks: &[f32],
        weights: Option<&[f32]>,
        wrote: &[f32],
    ) -> Result<(), DeviceMismatch> {
        let Some(stack) = self.image.stack(op.stack) else { return Ok(()) };
        let Formats { acts: limbs, lanes, .. } = device.formats;
        let tiles = self.tiles(stack.layout().matrix().tiles());
        routed(stack, x, &picks[..op.k.min(picks.len())], weights, limbs, lanes, wrote, tiles)
    }

    /// Some tiles of a matrix, the first and the last among them.
    fn tiles(&self, tiles: usize) -> impl Iterator<Item = usize> + use<> {
        let (each, first) = (tiles.div_ceil(TILES).max(1), self.steps as usize);
        (0..tiles).step_by(each).map(move |at| (at + first % each).min(tiles - 1)).chain(tiles.checked_sub(1))
    }

    /// The command on the mirror's units, with what it read in their slots.
    fn on_the_mirror(
        &mut self,
        device: &Device,
        op: &Recorded,
        mark: &Mark,
        given: &Given,
        sequence: usize,
    ) -> Result<Option<String>, GpuError> {
        self.mirror.begin(&given.rows);
        for (slot, values) in &given.slots {
            let to = self.mirror.slot_mut(*slot);
            let n = to.len().min(values.len());
            to[..n].copy_from_slice(&values[..n]);
        }
        if let Some((layer, content)) = &given.state {
            self.mirror.open(0);
            self.mirror.set_layer(0, *layer, content);
        }
        // What the mirror refuses the device refuses too, in its own way.
        if op.issue(&mut self.mirror).is_err() {
            return Ok(None);
        }
        for slot in op.writes() {
            let wrote = self.rows(device, mark.after(device, slot), slot, &given.at)?;
            let want = self.mirror.slot(slot);
            let width = device.width(slot).max(1);
            // A NaN is a NaN: its sign and payload are outside the contract.
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            if let Some(i) = (0..want.len()).find(|i| !wrote.get(*i).is_some_and(|v| same(*v, want[*i]))) {
                let (gave, expected) = (wrote.get(i).copied().unwrap_or(f32::NAN), want[i]);
                let mismatch = DeviceMismatch { element: i % width, given: gave, expected };
                return Ok(Some(format!("slot '{}': {mismatch}", slot.name())));
            }
        }
        if let (Some((layer, _)), Some(last)) = (&given.state, given.rows.last()) {
            let left = device.states.layer(&device.gpu, *layer, sequence, last.position + 1)?;
            let want = self.mirror.layer(0, *layer);
            // Each command answers for the part that is its own.
            let differs = match op {
                Recorded::CacheAppend(_) => left.cache != want.cache,
                Recorded::Conv(_) => left.ring != want.ring,
                Recorded::Delta(_) => left.memory != want.memory,
                _ => false,
            };
            if differs {
                return Ok(Some("the state that it leaves is not the mirror's".to_owned()));
            }
        }
        Ok(None)
    }

    /// Run a pass with these of its commands looked at; what is read back at its end is recorded in the last submission.
    pub(super) fn run(
        &mut self,
        device: &Device,
        plan: &Plan,
        chosen: &[usize],
        of: &Rows<'_>,
        submit: &dyn Fn(std::ops::Range<usize>, bool) -> Result<(), GpuError>,
    ) -> Result<(), StepFault> {
        let of_place = |a: &usize, b: &usize| match (plan.marks.get(*a), plan.marks.get(*b)) {
            (Some(a), Some(b)) => a.dispatches == b.dispatches,
            _ => false,
        };
        let mut done = 0;
        // Commands that are one kernel are looked at together.
        for together in chosen.chunk_by(of_place) {
            let Some(mark) = together.first().and_then(|index| plan.marks.get(*index)) else { continue };
            submit(done..mark.dispatches.start, false)?;
            let mut all = Vec::with_capacity(together.len());
            for &index in together {
                let Some(op) = plan.key.ops.get(index) else { continue };
                all.extend(self.given(device, op, index, mark, of)?.map(|given| (index, op, given)));
            }
            submit(mark.dispatches.clone(), false)?;
            done = mark.dispatches.end;
            for (index, op, mut given) in all {
                // What the command before it in the same kernel has made was not there before the kernel.
                let made = index.checked_sub(1).filter(|before| plan.marks.get(*before) == Some(mark));
                if let Some(before) = made.and_then(|before| plan.key.ops.get(before)) {
                    self.given_after(device, before, mark, &mut given)?;
                }
                let sequence = sequence_of(of, index, &given.at);
                let Some(differs) = self.check(device, op, mark, &given, sequence)? else { continue };
                // After a command that failed the others write nothing: that is no difference.
                if !device.faulted()? {
                    let (mnemonic, layer) = self.name(index);
                    let place =
                        if layer == LayerId::OUTSIDE { String::new() } else { format!(" of layer {}", layer.0) };
                    return Err(StepFault::Device(format!("audit: command {index}, {mnemonic}{place}: {differs}")));
                }
            }
        }
        submit(done..plan.dispatches.len(), true)?;
        Ok(())
    }
}

fn sequence_of(of: &Rows<'_>, index: usize, at: &[usize]) -> usize {
    let row = |at: usize| if index >= of.body { of.tail[at] } else { at };
    at.first().map_or(0, |at| of.rows[row(*at)].sequence)
}
