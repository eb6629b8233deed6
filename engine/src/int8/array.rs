//! Commands of the array unit: rows quantised once, each matrix streamed once for all of them.

use super::audit::Auditor;
use super::{FirstError, Int8Units, Kernels};
use crate::image::Image;
use crate::team::Team;
use crate::units::{self, UnitError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use wordline_ir::{Slot, TensorId};
use wordline_kernels::flush::{add, mul};
use wordline_kernels::format::Limbs;
use wordline_kernels::gate;
use wordline_kernels::matvec::{ActError, Acts, Matvec, OutTiles, Space};
use wordline_kernels::topk;

/// Bytes of a matrix that a member takes at a time: long enough to cost nothing, short enough that a member that was
/// held up is helped out.
const PIECE: usize = 256 << 10;
/// Bytes of the next matrix that a waiting member asks memory for: they stay in its second-level cache.
const REACH: usize = 160 << 10;
/// Elementary operations that quantising a value takes.
const QUANTISE: usize = 8;

/// The products of one matrix.
struct Job<'a> {
    tensor: TensorId,
    /// Tiles of the tensor before the matrix's first.
    first: usize,
    call: Matvec<'a>,
    out: OutTiles<'a>,
}

// SAFETY: through a shared job `stream` makes pieces of the output only, each of tiles of its own; the rest of a job is
// read.
unsafe impl Sync for Job<'_> {}

/// What commands of a mixture of experts work in, kept from step to step.
#[derive(Default)]
pub(super) struct Routing {
    choice: topk::Space,
    picks: Vec<usize>,
    /// Picks in the order of their experts, the row that each multiplies, and where each lies in the order.
    order: Vec<usize>,
    sources: Vec<usize>,
    place: Vec<usize>,
    /// Room for jobs; empty between commands.
    jobs: Vec<Job<'static>>,
}

/// The memory of an emptied list, for elements that live for another time. Collecting in place allocates nothing.
fn emptied<'b>(mut jobs: Vec<Job<'_>>) -> Vec<Job<'b>> {
    jobs.clear();
    jobs.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

impl Int8Units {
    /// The router's choice for each row.
    pub(super) fn choose(&mut self, op: &units::TopK) {
        let width = self.at.store.width(op.logits);
        let Self { at, kernels, routing, values, .. } = self;
        values.resize((2 * op.k).max(values.len()), 0.0);
        let (picks, weights) = values[..2 * op.k].split_at_mut(op.k);
        for row in 0..at.rows.len() {
            let logits = &at.store.get(op.logits)[row * width..][..op.experts];
            kernels.vector.top_k_in(logits, op.renormalise, picks, weights, &mut routing.choice);
            at.store.get_mut(op.picks)[row * op.k..][..op.k].copy_from_slice(picks);
            at.store.get_mut(op.weights)[row * op.k..][..op.k].copy_from_slice(weights);
        }
    }

    /// `y[offset ..] = weight * x (+ bias)` for all rows.
    pub(super) fn product(&mut self, op: &units::Matvec) -> Result<(), UnitError> {
        let rows = self.at.rows.len();
        let Self { image, at, kernels, formats, team, spaces, acts, counters, audit, next, .. } = self;
        let unfit = |e: &dyn std::fmt::Display| UnitError::tensor(op.weight, e);
        let matrix = image.matrix(op.weight).ok_or_else(|| unfit(&"is no matrix"))?;
        let layout = matrix.layout();
        quantise(team, &kernels.array, acts, op.x, at.store.get(op.x), layout.cols(), formats.acts, 1)?;
        let bias = op.bias.map(|b| image.plain(b));
        let call = Matvec::new(matrix, acts, bias, formats.lanes).map_err(|e| unfit(&e))?;
        let width = at.store.width(op.y);
        let out = OutTiles::new(at.store.get_mut(op.y), &layout, rows, op.offset, width).map_err(|e| unfit(&e))?;
        let job = Job { tensor: op.weight, first: 0, call, out };
        if let Some(matrix) = next.get(op.weight.index()).copied().flatten().and_then(|next| image.matrix(next)) {
            team.expect(matrix.bytes(), matrix.layout().tile_bytes(), REACH);
        }
        let bytes = stream(team, spaces, image, kernels, audit, &[job])?;
        counters.matrix(layout.rows() * layout.cols(), bytes, rows, op.head);
        Ok(())
    }

    /// Each pick's matrix times its vector; gathered, their weighted sum. A picked expert streams once for all rows.
    pub(super) fn routed(&mut self, op: &units::RoutedMatvec) -> Result<(), UnitError> {
        let rows = self.at.rows.len();
        let Self { image, at, kernels, formats, team, spaces, acts, values, counters, audit, routing, .. } = self;
        let Routing { picks, order, sources, place, jobs: room, .. } = routing;
        let unfit = |e: &dyn std::fmt::Display| UnitError::tensor(op.stack, e);
        let stack = image.stack(op.stack).ok_or_else(|| unfit(&"is no stack"))?;
        let layout = stack.layout().matrix();
        let (outputs, cols) = (layout.rows(), layout.cols());
        units::experts(at.store.get(op.picks), op.picks, op.k, stack.layout().experts(), picks)?;
        // Spread: a row's picks share its one vector; gather: each pick has its own.
        let vectors = if op.weights.is_some() { op.k } else { 1 };
        quantise(team, &kernels.array, acts, op.x, at.store.get(op.x), cols, formats.acts, vectors)?;

        // Picks in the order of their experts: an expert's results lie together.
        order.clear();
        order.extend(0..picks.len());
        order.sort_unstable_by_key(|pick| (picks[*pick], *pick));
        let source = |pick: &usize| pick / op.k * vectors + pick % op.k % vectors;
        sources.clear();
        sources.extend(order.iter().map(source));
        values.resize(picks.len() * outputs, 0.0);
        let mut jobs = emptied(std::mem::take(room));
        let (mut sources, mut made) = (&sources[..], &mut values[..]);
        for run in order.chunk_by(|a, b| picks[*a] == picks[*b]) {
            let (now, later) = sources.split_at(run.len());
            let (out, rest) = std::mem::take(&mut made).split_at_mut(run.len() * outputs);
            (sources, made) = (later, rest);
            let expert = picks[run[0]];
            let matrix = stack.expert(expert).map_err(|e| unfit(&e))?;
            let call = Matvec::new(matrix, acts, None, formats.lanes).and_then(|call| call.picked(now));
            let call = call.map_err(|e| unfit(&e))?;
            let out = OutTiles::new(out, &layout, run.len(), 0, outputs).map_err(|e| unfit(&e))?;
            jobs.push(Job { tensor: op.stack, first: expert * layout.tiles(), call, out });
        }
        let bytes = stream(team, spaces, image, kernels, audit, &jobs)?;
        *room = emptied(jobs);

        place.clear();
        place.resize(picks.len(), 0);
        order.iter().enumerate().for_each(|(at, pick)| place[*pick] = at);
        let result = |pick: usize| &values[place[pick] * outputs..][..outputs];
        match op.weights {
            None => {
                let y = at.store.get_mut(op.y);
                y.chunks_mut(outputs).enumerate().for_each(|(pick, y)| y.copy_from_slice(result(pick)));
            }
            Some(weights) => {
                let ([weights], y) = at.store.split([weights], op.y);
                y.fill(0.0);
                for (pick, weight) in weights.iter().enumerate() {
                    let y = &mut y[pick / op.k * outputs..][..outputs];
                    y.iter_mut().zip(result(pick)).for_each(|(y, v)| *y = add(*y, mul(*weight, *v)));
                }
            }
        }
        counters.routed(picks.len() * outputs * cols, bytes, rows);
        Ok(())
    }
}

/// Run all jobs, audited; returns the bytes streamed.
fn stream(
    team: &mut Team,
    spaces: &mut [Space],
    image: &Image,
    kernels: &Kernels,
    audit: &mut Auditor,
    jobs: &[Job<'_>],
) -> Result<usize, UnitError> {
    let units = &*kernels.array;
    audit.run(units, &kernels.vector, |audit| {
        let bytes = run_tiles(team, spaces, image, units, jobs)?;
        let checked = jobs.iter().try_for_each(|job| audit.matvec(units, &job.call, &job.out));
        Ok((bytes, checked.err()))
    })
}

/// Run all tiles of all jobs, whose matrices have one shape; returns the bytes streamed.
fn run_tiles(
    team: &mut Team,
    spaces: &mut [Space],
    image: &Image,
    units: &gate::Units,
    jobs: &[Job<'_>],
) -> Result<usize, UnitError> {
    let Some(first) = jobs.first() else { return Ok(0) };
    let layout = first.call.matrix().layout();
    let tiles = layout.tiles();
    let work = jobs.iter().map(|job| layout.rows() * layout.cols() * job.call.tokens()).sum();
    let (streamed, error) = (AtomicU64::new(0), FirstError::default());
    // Whichever member comes: one that was late so far must not be the one to allocate.
    for job in jobs {
        spaces.iter_mut().for_each(|space| space.reserve(job.call.tokens(), job.call.lanes()));
    }
    let most = (PIECE / layout.tile_bytes()).max(1);
    team.ranges(work, tiles * jobs.len(), most, spaces, &|space, mut range| {
        while !range.is_empty() {
            let (job, tile) = (&jobs[range.start / tiles], range.start % tiles);
            let now = tile..tiles.min(tile + range.len());
            range.start += now.len();
            if let Err(damage) = image.touch(job.tensor, job.first + now.start..job.first + now.end) {
                return error.set(damage.into());
            }
            // SAFETY: every tile is in one range, and ranges do not overlap; the output is not read until all have run.
            let mut out = unsafe { job.out.piece(now) };
            match job.call.run_in(units, &mut out, space) {
                Ok(bytes) => {
                    streamed.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(e) => return error.set(UnitError::tensor(job.tensor, &e)),
            }
        }
    });
    error.take()?;
    Ok(streamed.into_inner() as usize)
}

/// Quantise a slot's vectors, each `cols` long and `vectors` of them a row.
#[expect(clippy::too_many_arguments, reason = "parts of the units that are borrowed apart")]
fn quantise(
    team: &mut Team,
    units: &gate::Units,
    acts: &mut Acts,
    slot: Slot,
    x: &[f32],
    cols: usize,
    limbs: Limbs,
    vectors: usize,
) -> Result<(), UnitError> {
    let rows = x.len() / cols;
    let place = |error: ActError| match error {
        ActError::Quant(e) => UnitError::value(slot, e.row / vectors, &e),
        other => UnitError::value(slot, 0, &other),
    };
    if rows == 1 || team.members() == 1 {
        return acts.quantise(units, x, cols, rows, cols, limbs).map_err(place);
    }
    let each = rows.div_ceil(4 * team.members());
    let rest = Mutex::new(acts.shape(rows, cols, limbs));
    let error = FirstError::default();
    team.run(QUANTISE * x.len(), rows.div_ceil(each), &|_| {
        // Which rows a part takes does not matter: each rows' place is its own.
        let mut rest = rest.lock().unwrap_or_else(PoisonError::into_inner);
        let part = rest.take(each);
        drop(rest);
        let first = part.first();
        if let Err(e) = part.quantise(units, &x[first * cols..], cols) {
            error.set(place(e));
        }
    });
    error.take()
}
