//! The live-shape audit: results of a run are recomputed by the mirror, the first time a shape is seen and then by
//! sample.
//!
//! The init gate sees made-up operands; the audit sees the real ones. A mismatch names what differs; the caller then
//! takes the form out of use ([`Units::demote`]), runs the call again and says so.

use crate::attend::{Attend, Cache, Queries, Scratch};
use crate::cpu::matvec::{GROUP, Mirror};
use crate::gate::{Form, Units};
use crate::matvec::{Group, Matvec, OutTiles, Space};
use crate::vector::{self, VectorUnit};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What is audited: a unit and the shape of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Matvec { rows: usize, cols: usize, tokens: usize, limbs: usize, lanes: usize, bias: bool },
    Attend { heads: usize, head_dim: usize, v_dim: usize, limbs: (usize, usize), lanes: usize },
}

/// A form whose result is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// A form of the array unit.
    Array(Form),
    /// A form of the vector unit.
    Vector(vector::Form),
}

impl std::fmt::Display for Culprit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Array(form) => write!(f, "array unit, {form}"),
            Self::Vector(form) => write!(f, "vector unit, {form}"),
        }
    }
}

/// A result that is not the mirror's.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{by}: {call}: element {element} of row {row} is {given:e} ({:#010x}), the mirror computes {expected:e} ({:#010x})", given.to_bits(), expected.to_bits())]
pub struct Mismatch {
    /// The form that computed it.
    pub by: Culprit,
    /// The call, with its shape.
    pub call: String,
    /// Row of the call.
    pub row: usize,
    /// Element of the row.
    pub element: usize,
    /// The form's result.
    pub given: f32,
    /// The mirror's.
    pub expected: f32,
}

/// How often each shape was seen, and when it is looked at again.
#[derive(Debug)]
pub struct Audit {
    period: u64,
    seen: Mutex<HashMap<Shape, u64>>,
    checks: AtomicU64,
    vector: VectorUnit,
}

impl Audit {
    /// An audit of the first call of each shape and of every `period`-th after it; 0: of the first alone.
    #[must_use]
    pub fn new(period: u64) -> Self {
        Self { period, seen: Mutex::default(), checks: AtomicU64::new(0), vector: VectorUnit::mirror() }
    }

    /// Calls that were recomputed so far.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }

    /// Recompute a part of a matvec whose results lie in `out`, if it is due: the first and the last tile for the first
    /// rows and the last when the shape is new, one tile and one row of a sample. `out` holds all tiles.
    ///
    /// # Errors
    /// The first element whose bits differ.
    pub fn matvec(&self, units: &Units, call: &Matvec<'_>, out: &OutTiles<'_>) -> Result<(), Mismatch> {
        let (layout, tokens, tiles) = (call.matrix().layout(), call.tokens(), out.tiles());
        if tokens == 0 || tiles.is_empty() {
            return Ok(());
        }
        let (limbs, lanes, bias) = call.knobs();
        let shape = Shape::Matvec { rows: layout.rows(), cols: layout.cols(), tokens, limbs, lanes, bias };
        let Some(count) = self.due(shape) else { return Ok(()) };
        let check = |tile: usize, first: usize, n: usize| {
            let mut space = Space::default();
            let mut mirror = Group::new(call, &Mirror, &mut space);
            let want = mirror.results(tile, first, n);
            (first..first + n).zip(want).try_for_each(|(row, want)| {
                let from = layout.tile_rows(tile).start;
                differ(out.read(tile, row), want).map_or(Ok(()), |(element, given, expected)| {
                    let (by, call) = (Culprit::Array(units.active()), format!("matvec {shape:?}"));
                    Err(Mismatch { by, call, row, element: from + element, given, expected })
                })
            })
        };
        if count == 1 {
            for tile in [tiles.start, tiles.end - 1] {
                check(tile, 0, tokens.min(GROUP))?;
                check(tile, tokens - 1, 1)?;
            }
            return Ok(());
        }
        // Samples walk through tiles and rows.
        let step = (count / self.period.max(1)) as usize;
        check(tiles.start + step % tiles.len(), step % tokens, 1)
    }

    /// Recompute the attention of one group of query heads whose results are `out`, if it is due. A mismatch is laid to
    /// the vector unit's form where the array's gives the mirror's results without it.
    ///
    /// # Errors
    /// The first element whose bits differ.
    #[expect(clippy::too_many_arguments, reason = "the operands of the call, and its results")]
    pub fn attend(
        &self,
        units: &Units,
        vector: &VectorUnit,
        attend: &Attend,
        cache: &Cache,
        queries: Queries<'_>,
        out: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(), Mismatch> {
        let (head_dim, v_dim) = (cache.layout().head_dim(), cache.layout().v_dim());
        let limbs = (attend.queries.count(), attend.probs.count());
        let lanes = attend.lanes.count();
        let shape = Shape::Attend { heads: queries.q.len() / head_dim, head_dim, v_dim, limbs, lanes };
        if self.due(shape).is_none() {
            return Ok(());
        }
        let mut want = vec![0.0; out.len()];
        // What the mirror refuses, the form has refused before.
        if attend.group_by(&Mirror, &self.vector, cache, queries, &mut want, scratch).is_err() {
            return Ok(());
        }
        let Some((at, given, expected)) = differ(out, &want) else { return Ok(()) };
        let mut again = vec![0.0; out.len()];
        let array = attend.group_by(units.array(), &self.vector, cache, queries, &mut again, scratch);
        let by = if array.is_ok() && differ(&again, &want).is_none() {
            Culprit::Vector(vector.form())
        } else {
            Culprit::Array(units.active())
        };
        let call = format!("attend {shape:?} at position {}, head {}", queries.position, at / v_dim);
        Err(Mismatch { by, call, row: 0, element: at % v_dim, given, expected })
    }

    /// How often the shape was seen, when this time is to be checked.
    fn due(&self, shape: Shape) -> Option<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let count = seen.entry(shape).or_default();
        *count += 1;
        let due = *count == 1 || (self.period > 0 && count.is_multiple_of(self.period));
        due.then(|| {
            self.checks.fetch_add(1, Ordering::Relaxed);
            *count
        })
    }
}

/// The first place where the bits differ, over the shorter of the two.
fn differ(given: &[f32], expected: &[f32]) -> Option<(usize, f32, f32)> {
    let mut pairs = given.iter().zip(expected).enumerate();
    pairs.find(|(_, (a, b))| a.to_bits() != b.to_bits()).map(|(i, (a, b))| (i, *a, *b))
}

#[cfg(test)]
mod tests;
