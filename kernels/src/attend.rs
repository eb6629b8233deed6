//! The attention unit: softmax attention of a row's query heads over its sequence's int8 cache.
//!
//! For one query head `q` (scaled already) over the visible positions `p`, in three passes:
//!
//! 1. `s[p] = q . k[p]` on the array: `q` quantised in blocks along the head, lanes and tree as in [`crate::matvec`];
//!    then the soft cap, if any: `cap * tanh(s * recip(cap))`;
//! 2. `e[p] = exp(s[p] - max)`, and their sum, position `p` in lane `p mod 32`, ascending, then the halving tree;
//! 3. for each block of 32 value elements, `e[p] * 2^v` with the value row's scale exponent is quantised in blocks of
//!    32 positions, by absolute position, and multiplied on the array with the value integers: block `p / 32` goes to
//!    lane `(p / 32) mod L`. The result is multiplied by `recip(sum)` last.
//!
//! Positions outside the row's view count as zero whatever the cache holds. So neither the cache's capacity, nor what
//! was appended after the row, nor the other rows of the step show in a bit.

mod cache;
pub(crate) mod terms;

pub use cache::{Cache, CacheError, CacheLayout};

use crate::cpu::attend::Job;
use crate::cpu::matvec::{ArrayForm, GROUP};
use crate::format::{BLOCK, Cause, Lanes, Limbs};
use crate::gate::Units;
use crate::matvec::{Acts, TILE_ROWS};
use crate::vector::VectorUnit;
use std::ops::Range;

/// Why a row's attention cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum AttendError {
    /// The row's own position has not been appended.
    #[error("position {position} attends, but the cache holds positions up to {len}, that one excluded")]
    Position {
        /// The row's position.
        position: usize,
        /// Positions appended.
        len: usize,
    },
    /// The ring has overwritten a visible position.
    #[error("position {first} is visible, but the ring holds {kept} and later only; it must keep more positions")]
    Dropped {
        /// First visible position.
        first: usize,
        /// First position held.
        kept: usize,
    },
    /// A slice has another length, or a head does not exist.
    #[error("{what}: {given} is given, {expected} is expected")]
    Shape {
        /// What.
        what: &'static str,
        /// Given.
        given: usize,
        /// Expected.
        expected: usize,
    },
    /// A query head has no int8 form.
    #[error("query head {head}, block {block}: {cause}")]
    Query {
        /// Head, counted within the group.
        head: usize,
        /// Block along the head.
        block: usize,
        /// Why.
        cause: Cause,
    },
}

/// How a layer's rows attend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// Positions seen, the row's own included; `None`: all.
    pub window: Option<usize>,
    /// Soft cap of the scores.
    pub cap: Option<f32>,
    /// Limbs of the queries.
    pub queries: Limbs,
    /// Limbs of the softmax terms.
    pub probs: Limbs,
    /// Lanes of the array.
    pub lanes: Lanes,
}

/// Memory that a thread reuses from row to row.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) queries: Acts,
    pub(crate) terms: Acts,
    /// `[heads][pages * 32]`: scores, then softmax terms.
    pub(crate) scores: Vec<f32>,
    pub(crate) sums: Vec<f32>,
    pub(crate) weighted: Vec<f32>,
    pub(crate) lanes: Vec<[f32; TILE_ROWS]>,
}

impl Scratch {
    /// Make room for `heads` query heads over a view of this many positions of a cache, so that [`Attend::group`]
    /// allocates nothing for up to as many.
    pub fn reserve(&mut self, heads: usize, positions: usize, layout: &CacheLayout, attend: &Attend) {
        let (heads, width) = (heads.min(GROUP), (positions.div_ceil(BLOCK) + 1) * BLOCK);
        let (blocks, tiles) = (layout.v_dim().div_ceil(BLOCK), layout.v_dim().div_ceil(TILE_ROWS));
        // Fewer heads take more pages at a time, and no more terms than this.
        let terms = (heads * blocks * width).min(crate::cpu::attend::TERMS.max(heads * blocks * BLOCK));
        self.queries.shape(heads, layout.head_dim(), attend.queries);
        self.terms.shape(1, terms, attend.probs);
        self.scores.resize(heads * width, 0.0);
        self.weighted.resize(terms, 0.0);
        self.sums.resize(heads, 0.0);
        self.lanes.resize(tiles * heads * attend.lanes.count(), [0.0; TILE_ROWS]);
    }
}

/// The query heads of one row that share a key head.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// The key head.
    pub kv_head: usize,
    /// The row's position; it has been appended.
    pub position: usize,
    /// `[heads, head_dim]`, scaled already.
    pub q: &'a [f32],
}

impl Attend {
    /// The positions that a row at `position` sees.
    #[must_use]
    pub fn view(&self, position: usize) -> Range<usize> {
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        first..position + 1
    }

    /// Bytes of the cache's pages that a row at `position` reads, all heads.
    #[must_use]
    pub fn bytes_read(&self, layout: &CacheLayout, position: usize) -> usize {
        let view = self.view(position);
        (view.end.div_ceil(BLOCK) - view.start / BLOCK) * layout.page_bytes()
    }

    /// Attention of the query heads that share key head `kv_head`, for one row at `position`; `q` is `[heads, head_dim]`,
    /// `out` is `[heads, v_dim]`.
    ///
    /// Key heads and rows are independent: they may run on different threads, each with its own scratch memory.
    ///
    /// # Errors
    /// [`AttendError`]; `out` is unspecified then.
    #[expect(clippy::too_many_arguments, reason = "operands of one command, each of another kind")]
    pub fn group(
        &self,
        units: &Units,
        vector: &VectorUnit,
        cache: &Cache,
        kv_head: usize,
        position: usize,
        q: &[f32],
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), AttendError> {
        self.group_by(units.array(), vector, cache, Queries { kv_head, position, q }, out, scratch)
    }

    pub(crate) fn group_by(
        &self,
        form: &dyn ArrayForm,
        vector: &VectorUnit,
        cache: &Cache,
        Queries { kv_head, position, q }: Queries<'_>,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), AttendError> {
        let layout = cache.layout();
        let view = self.view(position);
        if position >= cache.len() {
            return Err(AttendError::Position { position, len: cache.len() });
        }
        if view.start < cache.kept() {
            return Err(AttendError::Dropped { first: view.start, kept: cache.kept() });
        }
        if kv_head >= layout.kv_heads() {
            return Err(AttendError::Shape { what: "key head", given: kv_head, expected: layout.kv_heads() - 1 });
        }
        let heads = q.len() / layout.head_dim();
        if q.len() != heads * layout.head_dim() || heads == 0 {
            let expected = heads.max(1) * layout.head_dim();
            return Err(AttendError::Shape { what: "query elements", given: q.len(), expected });
        }
        if out.len() != heads * layout.v_dim() {
            let expected = heads * layout.v_dim();
            return Err(AttendError::Shape { what: "output elements", given: out.len(), expected });
        }
        let q = q.chunks(GROUP * layout.head_dim());
        for (part, (q, out)) in q.zip(out.chunks_mut(GROUP * layout.v_dim())).enumerate() {
            let job = Job { attend: self, form, vector, cache, kv_head, view: view.clone() };
            job.run(q, out, scratch).map_err(|error| match error {
                AttendError::Query { head, block, cause } => {
                    AttendError::Query { head: part * GROUP + head, block, cause }
                }
                other => other,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
