//! CPU form of the attention unit: its passes over the cache's pages, on a form of the array and of the vector unit.
//!
//! There is no arithmetic of its own here but the product of a softmax term with its value's scale; a form of this unit
//! is a pair of gated forms.

use super::matvec::{ArrayForm, GROUP, Run, Scales, fold};
use crate::attend::{Attend, AttendError, Cache, Scratch};
use crate::format::BLOCK;
use crate::matvec::TILE_ROWS;
use crate::vector::VectorUnit;
use std::ops::Range;

/// Pages whose softmax terms are quantised at a time: bounds the scratch memory of a long context.
pub(crate) const CHUNK: usize = 64;
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
                let mut results = [[0.0; TILE_ROWS]; GROUP];
                self.form.tile(&run, &rows[..heads], store, &mut results[..heads]);
                for (head, result) in results[..heads].iter().enumerate() {
                    let to = head * width + at * BLOCK + half * TILE_ROWS;
                    scratch.scores[to..to + TILE_ROWS].copy_from_slice(result);
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

    /// The products of the terms with one block of value elements, not yet divided by the sums.
    fn values(&self, heads: usize, v_block: usize, out: &mut [f32], scratch: &mut Scratch) {
        let (layout, pages) = (self.cache.layout(), self.pages());
        let (lanes, width) = (self.attend.lanes.count(), pages.len() * BLOCK);
        let rows: [usize; GROUP] = std::array::from_fn(|i| i);
        let tiles = v_block * TILES..((v_block + 1) * TILES).min(layout.v_dim().div_ceil(TILE_ROWS));
        let Scratch { terms, scores, weighted, lanes: store, .. } = scratch;
        for store in store.chunks_exact_mut(GROUP * lanes) {
            store[..heads * lanes].fill([0.0; TILE_ROWS]);
        }
        let mut done = 0;
        while done < pages.len() {
            let n = CHUNK.min(pages.len() - done);
            weighted.resize(n * BLOCK, 0.0);
            let mut space = terms.shape(heads, n * BLOCK, self.attend.probs);
            for (head, scores) in scores.chunks_exact(width).take(heads).enumerate() {
                let scores = scores[done * BLOCK..].chunks_exact(BLOCK);
                for ((i, to), terms) in weighted.chunks_exact_mut(BLOCK).enumerate().zip(scores) {
                    let exponents = self.cache.exponents(pages.start + done + i, self.kv_head, v_block);
                    self.vector.weigh(terms, exponents, to);
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
            for (lanes, out) in store.chunks_exact_mut(lanes).zip(out.chunks_exact_mut(v_dim)).take(heads) {
                let end = v_dim.min((tile + 1) * TILE_ROWS);
                let to = &mut out[tile * TILE_ROWS..end];
                to.copy_from_slice(&fold(lanes)[..to.len()]);
            }
        }
    }
}
