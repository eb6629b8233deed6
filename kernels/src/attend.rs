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

pub use cache::{Cache, CacheError, CacheLayout};

use crate::cpu::matvec::{ArrayForm, GROUP, Run, Scales, fold};
use crate::flush::mul;
use crate::format::{BLOCK, Cause, Lanes, Limbs, pow2};
use crate::gate::Units;
use crate::matvec::{Acts, TILE_ROWS};
use crate::vector::VectorUnit;
use std::ops::Range;

/// Pages whose softmax terms are quantised at a time: bounds the scratch memory of a long context.
const CHUNK: usize = 64;
/// Tiles of 16 value elements that share a scale.
const TILES: usize = BLOCK / TILE_ROWS;

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
    queries: Acts,
    terms: Acts,
    /// `[heads][pages * 32]`: scores, then softmax terms.
    scores: Vec<f32>,
    sums: Vec<f32>,
    weighted: Vec<f32>,
    lanes: Vec<[f32; TILE_ROWS]>,
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

/// At most [`GROUP`] query heads over one key head.
struct Job<'a> {
    attend: &'a Attend,
    form: &'a dyn ArrayForm,
    vector: &'a VectorUnit,
    cache: &'a Cache,
    kv_head: usize,
    view: Range<usize>,
}

impl Job<'_> {
    fn run(&self, q: &[f32], out: &mut [f32], scratch: &mut Scratch) -> Result<(), AttendError> {
        let layout = self.cache.layout();
        let dim = layout.head_dim();
        let heads = q.len() / dim;
        let mut space = scratch.queries.shape(heads, dim, self.attend.queries);
        for (head, q) in q.chunks_exact(dim).enumerate() {
            let refuse = |(block, cause)| AttendError::Query { head, block, cause };
            self.form.quantise(q, self.attend.queries, &mut space.space(head)).map_err(refuse)?;
        }
        self.scores(heads, scratch);
        self.softmax(heads, scratch);
        for v_block in 0..layout.v_dim().div_ceil(BLOCK) {
            self.values(heads, v_block, out, scratch);
        }
        self.vector.divide_by_sums(out, &scratch.sums);
        Ok(())
    }

    /// Absolute pages that hold the view.
    fn pages(&self) -> Range<usize> {
        self.view.start / BLOCK..self.view.end.div_ceil(BLOCK)
    }

    /// `q . k` of every position of the view's pages.
    fn scores(&self, heads: usize, scratch: &mut Scratch) {
        let (layout, pages) = (self.cache.layout(), self.pages());
        let (lanes, width) = (self.attend.lanes.count(), pages.len() * BLOCK);
        let rows: [usize; GROUP] = std::array::from_fn(|i| i);
        scratch.scores.resize(heads * width, 0.0);
        scratch.lanes.resize(TILES * GROUP * lanes, [0.0; TILE_ROWS]);
        for (at, page) in pages.enumerate() {
            for half in 0..TILES {
                let (bases, codes, elements) = self.cache.keys(page, self.kv_head, half);
                let store = &mut scratch.lanes[..heads * lanes];
                store.fill([0.0; TILE_ROWS]);
                let run = Run {
                    elements,
                    stride: BLOCK * TILE_ROWS,
                    blocks: layout.keys().blocks(),
                    scales: Scales::Codes { bases, codes },
                    acts: &scratch.queries,
                    first_act: 0,
                    first_lane: 0,
                    lanes,
                };
                self.form.accumulate(&run, &rows[..heads], store);
                for (head, lanes) in store.chunks_exact_mut(lanes).enumerate() {
                    let to = head * width + at * BLOCK + half * TILE_ROWS;
                    scratch.scores[to..to + TILE_ROWS].copy_from_slice(&fold(lanes));
                }
            }
        }
    }

    /// Soft cap, softmax terms and their sums; zero outside the view.
    fn softmax(&self, heads: usize, scratch: &mut Scratch) {
        let origin = self.pages().start * BLOCK;
        let inside = self.view.start - origin..self.view.end - origin;
        scratch.sums.clear();
        for row in scratch.scores.chunks_exact_mut(self.pages().len() * BLOCK).take(heads) {
            let visible = &mut row[inside.clone()];
            if let Some(cap) = self.attend.cap {
                self.vector.soft_cap(visible, cap);
            }
            scratch.sums.push(self.vector.softmax_terms(visible, self.view.start));
            row[..inside.start].fill(0.0);
            row[inside.end..].fill(0.0);
        }
    }

    /// The products of the terms with one block of value elements, not yet divided by the sums.
    fn values(&self, heads: usize, v_block: usize, out: &mut [f32], scratch: &mut Scratch) {
        let (layout, pages) = (self.cache.layout(), self.pages());
        let (lanes, width) = (self.attend.lanes.count(), pages.len() * BLOCK);
        let rows: [usize; GROUP] = std::array::from_fn(|i| i);
        let tiles = v_block * TILES..((v_block + 1) * TILES).min(layout.v_dim().div_ceil(TILE_ROWS));
        let Scratch { terms, scores, weighted, lanes: store, .. } = scratch;
        store.fill([0.0; TILE_ROWS]);
        let mut done = 0;
        while done < pages.len() {
            let n = CHUNK.min(pages.len() - done);
            weighted.resize(n * BLOCK, 0.0);
            let mut space = terms.shape(heads, n * BLOCK, self.attend.probs);
            for (head, scores) in scores.chunks_exact(width).take(heads).enumerate() {
                let scores = scores[done * BLOCK..].chunks_exact(BLOCK);
                for ((i, to), terms) in weighted.chunks_exact_mut(BLOCK).enumerate().zip(scores) {
                    let exponents = self.cache.exponents(pages.start + done + i, self.kv_head, v_block);
                    for ((to, term), e) in to.iter_mut().zip(terms).zip(exponents) {
                        *to = mul(*term, pow2(i32::from(*e as i8)));
                    }
                }
                // A term is at most 1 and a value scale at most 2^EXP_MAX, so every block has a scale.
                let made = self.form.quantise(weighted, self.attend.probs, &mut space.space(head));
                debug_assert!(made.is_ok(), "softmax terms are finite");
            }
            // A ring folds the pages, so the chunk may be two runs.
            let mut at = 0;
            while at < n {
                let page = pages.start + done + at;
                let blocks = self.cache.contiguous(page).min(n - at);
                for (tile, store) in tiles.clone().zip(store.chunks_exact_mut(GROUP * lanes)) {
                    let (elements, stride) = self.cache.values(page, self.kv_head, tile);
                    let run = Run {
                        elements,
                        stride,
                        blocks,
                        scales: Scales::Unit,
                        acts: terms,
                        first_act: at,
                        first_lane: page % lanes,
                        lanes,
                    };
                    self.form.accumulate(&run, &rows[..heads], &mut store[..heads * lanes]);
                }
                at += blocks;
            }
            done += n;
        }
        let v_dim = layout.v_dim();
        for (tile, store) in tiles.zip(store.chunks_exact_mut(GROUP * lanes)) {
            for (lanes, out) in store.chunks_exact_mut(lanes).zip(out.chunks_exact_mut(v_dim)) {
                let end = v_dim.min((tile + 1) * TILE_ROWS);
                let to = &mut out[tile * TILE_ROWS..end];
                to.copy_from_slice(&fold(lanes)[..to.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
