//! How the forms for x86-64 go through a run: some rows at a time, the addresses of their next block in hand.
//!
//! A block is multiplied in a few nanoseconds. To work out each block's addresses from its number, to branch on what the run is
//! made of, or to check bounds takes as long, and while it is done no load is on its way: memory waits.

use super::matvec::{AHEAD, Run, Scales};
use crate::ahead;
use crate::matvec::TILE_ROWS;
use std::ops::Range;

/// Blocks that a group of rows takes before the next group has its turn: the elements are in the first cache then.
const PART: usize = 8;

/// Give a form its rows in groups of `most`, then of four, then what is left, a part of the blocks at a time: `work` is told the
/// blocks, the rows, and where the first row's lanes lie.
#[inline(always)]
pub(crate) fn groups(
    run: &Run<'_>,
    rows: &[usize],
    lanes: &mut [[f32; TILE_ROWS]],
    most: usize,
    mut work: impl FnMut(Range<usize>, &[usize], *mut [f32; TILE_ROWS]),
) {
    let part = if rows.len() <= most { run.blocks } else { PART };
    let mut first = 0;
    while first < run.blocks {
        let blocks = first..run.blocks.min(first.wrapping_add(part));
        first = blocks.end;
        let (mut rows, mut lane) = (rows, lanes.as_mut_ptr());
        while !rows.is_empty() {
            let count = if rows.len() >= most { most } else { rows.len().min(4) };
            let (now, later) = rows.split_at(count);
            work(blocks.clone(), now, lane);
            (rows, lane) = (later, lane.wrapping_add(count.wrapping_mul(run.lanes)));
        }
    }
}

/// Where a block of `R` rows lies in what a form reads of the activations, `T` each.
#[derive(Debug)]
pub(crate) struct Walk<T, const R: usize> {
    pub(crate) q: [*const T; R],
    pub(crate) fix: [*const i32; R],
    pub(crate) half: [*const i32; R],
    pub(crate) scale: [*const f32; R],
}

impl<T, const R: usize> Walk<T, R> {
    /// At block `b` of the run. `q` is the rows' first value, `each` how many a block has.
    #[inline(always)]
    pub(crate) fn new(run: &Run<'_>, b: usize, rows: [usize; R], q: &[T], each: usize) -> Self {
        let acts = run.acts;
        let at = rows.map(|row| row.wrapping_mul(acts.blocks()).wrapping_add(run.first_act).wrapping_add(b));
        let limbs = acts.limbs();
        Self {
            q: at.map(|at| q.as_ptr().wrapping_add(at.wrapping_mul(each))),
            fix: at.map(|at| acts.fix().as_ptr().wrapping_add(at.wrapping_mul(limbs))),
            half: at.map(|at| acts.half().as_ptr().wrapping_add(at.wrapping_mul(limbs))),
            scale: at.map(|at| acts.scale().as_ptr().wrapping_add(at)),
        }
    }

    /// On to the next block.
    #[inline(always)]
    pub(crate) fn next(&mut self, each: usize, limbs: usize) {
        for r in 0..R {
            self.q[r] = self.q[r].wrapping_add(each);
            self.fix[r] = self.fix[r].wrapping_add(limbs);
            self.half[r] = self.half[r].wrapping_add(limbs);
            self.scale[r] = self.scale[r].wrapping_add(1);
        }
    }
}

impl Run<'_> {
    /// Ask memory for what lies [`AHEAD`] of a tile's scales, which no block asks for: bytes in the order in which blocks of the
    /// tile before have asked for those before them.
    #[inline(always)]
    pub(crate) fn ask(&self) {
        let (Scales::Codes { bases, .. } | Scales::Halves { bases, .. }) = self.scales else { return };
        let (start, end) = (bases.as_ptr(), self.elements.as_ptr());
        let mut at = 0;
        while at < end.addr().wrapping_sub(start.addr()).min(AHEAD) {
            ahead::near(start.wrapping_add(AHEAD).wrapping_add(at));
            at = at.wrapping_add(ahead::LINE);
        }
    }
}
