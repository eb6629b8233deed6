//! CPU form of the attention unit: its passes over the cache's pages, on a form of the array and of the vector unit.
//!
//! There is no arithmetic of its own here but the product of a softmax term with its value's scale; a form of this unit
//! is a pair of gated forms.

use super::matvec::{ArrayForm, GROUP, Run, Scales, fold};
use crate::attend::terms::Weigh;
use crate::attend::{Attend, AttendError, Cache, Scratch};
use crate::format::BLOCK;
use crate::matvec::TILE_ROWS;
use crate::vector::VectorUnit;
use std::ops::Range;

/// Most pages whose softmax terms are quantised at a time.
pub(crate) const CHUNK: usize = 64;
/// Softmax terms that are quantised at a time, of all heads and blocks of value elements: what is made of them stays near.
pub(crate) const TERMS: usize = 8 << 10;

/// Pages at a time where each has `rows` blocks of terms.
fn chunk(rows: usize) -> usize {
    (TERMS / BLOCK).checked_div(rows).unwrap_or(CHUNK).clamp(1, CHUNK)
}

/// Tiles of 16 value elements that share a scale.
const TILES: usize = BLOCK / TILE_ROWS;

/// At most [`GROUP`] query heads over one key head.
pub(crate) struct Job<'a> {
    pub(crate) attend: &'a Attend,
    pub(crate) form: &'a dyn ArrayForm,
    pub(crate) vector: &'a VectorUnit,
    pub(crate) cache: &'a Cache,
    pub(crate) kv_head: usize,
    pub(crate) view: Range<usize>,
}

impl Job<'_> {
    /// The group's results, divided by the sums.
    pub(crate) fn run(&self, q: &[f32], out: &mut [f32], scratch: &mut Scratch) -> Result<(), AttendError> {
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
        self.values(heads, out, scratch);
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
        scratch.lanes.resize(scratch.lanes.len().max(heads * lanes), [0.0; TILE_ROWS]);
        let mut results = [[0.0; TILE_ROWS]; GROUP];
        for (at, page) in pages.enumerate() {
            for half in 0..TILES {
                let (bases, codes, elements) = self.cache.keys(page, self.kv_head, half);
                let store = &mut scratch.lanes[..heads * lanes];
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
                self.form.tile(&run, &rows[..heads], store, &mut results[..heads]);
                for (scores, result) in scratch.scores.chunks_exact_mut(width).zip(&results[..heads]) {
                    let (tiles, _) = scores.as_chunks_mut();
                    tiles[at * TILES + half] = *result;
                }
            }
        }
    }

    /// Soft cap, softmax terms and their sums; zero outside the view.
    fn softmax(&self, heads: usize, scratch: &mut Scratch) {
        let (origin, width) = (self.pages().start * BLOCK, self.pages().len() * BLOCK);
        let inside = self.view.start - origin..self.view.end - origin;
        let Scratch { scores, sums, .. } = scratch;
        if let Some(cap) = self.attend.cap {
            for row in scores.chunks_exact_mut(width).take(heads) {
                self.vector.soft_cap(&mut row[inside.clone()], cap);
            }
        }
        sums.clear();
        sums.resize(heads, 0.0);
        let visible = &mut scores[inside.start..];
        self.vector.softmax_heads(visible, width, inside.len(), self.view.start, sums);
        for row in scores.chunks_exact_mut(width).take(heads) {
            row[..inside.start].fill(0.0);
            row[inside.end..].fill(0.0);
        }
    }

    /// The products of the terms with the values, not yet divided by the sums.
    fn values(&self, heads: usize, out: &mut [f32], scratch: &mut Scratch) {
        let (layout, pages) = (self.cache.layout(), self.pages());
        let (lanes, width, v_dim) = (self.attend.lanes.count(), pages.len() * BLOCK, layout.v_dim());
        let (v_blocks, tiles) = (v_dim.div_ceil(BLOCK), v_dim.div_ceil(TILE_ROWS));
        let each = chunk(heads * v_blocks);
        let Scratch { terms, scores, weighted, lanes: store, .. } = scratch;
        // A ring folds the pages, so a chunk may be two runs.
        let whole = pages.len() <= each && self.cache.contiguous(pages.start) >= pages.len();
        let stored = heads * lanes;
        if !whole {
            store.clear();
            store.resize(tiles * stored, [0.0; TILE_ROWS]);
        }
        let mut results = [[0.0; TILE_ROWS]; GROUP];
        for done in (0..pages.len()).step_by(each) {
            let n = each.min(pages.len() - done);
            // The heads' terms for one block of value elements after another.
            weighted.resize(heads * v_blocks * n * BLOCK, 0.0);
            let mut space = terms.shape(heads * v_blocks, n * BLOCK, self.attend.probs);
            let exponents = |page, block| self.cache.exponents(pages.start + done + page, self.kv_head, block);
            self.vector.weigh(Weigh {
                terms: &scores[done * BLOCK..],
                stride: width,
                heads,
                pages: n,
                blocks: v_blocks,
                exponents,
                out: weighted,
            });
            // A term is at most 1 and a value scale at most 2^EXP_MAX, so every block has a scale.
            let made = self.form.quantise(weighted, self.attend.probs, space.all());
            debug_assert!(made.is_ok(), "softmax terms are finite");
            for tile in 0..tiles {
                let rows: [usize; GROUP] = std::array::from_fn(|i| tile / TILES * heads + i);
                let rows = &rows[..heads];
                let run = |at: usize, blocks| {
                    let page = pages.start + done + at;
                    let (elements, stride) = self.cache.values(page, self.kv_head, tile);
                    let (first_act, first_lane) = (at, page % lanes);
                    Run { elements, stride, blocks, scales: Scales::Unit, acts: terms, first_act, first_lane, lanes }
                };
                if whole {
                    self.form.tile(&run(0, n), rows, &mut store[..stored], &mut results[..heads]);
                    put(&results[..heads], tile, v_dim, out);
                    continue;
                }
                let store = &mut store[tile * stored..][..stored];
                let mut at = 0;
                while at < n {
                    let blocks = self.cache.contiguous(pages.start + done + at).min(n - at);
                    self.form.accumulate(&run(at, blocks), rows, store);
                    at += blocks;
                }
            }
        }
        if !whole {
            for (tile, store) in store.chunks_exact_mut(stored).enumerate() {
                for (lanes, result) in store.chunks_exact_mut(lanes).zip(&mut results) {
                    *result = fold(lanes);
                }
                put(&results[..heads], tile, v_dim, out);
            }
        }
    }
}

/// The heads' results of one tile of value elements.
#[inline]
fn put(results: &[[f32; TILE_ROWS]], tile: usize, v_dim: usize, out: &mut [f32]) {
    for (result, out) in results.iter().zip(out.chunks_exact_mut(v_dim)) {
        let to = &mut out[tile * TILE_ROWS..];
        match to.first_chunk_mut() {
            Some(to) => *to = *result,
            None => to.copy_from_slice(&result[..to.len()]),
        }
    }
}
