//! Rows on a device: the router's choice, and the rows that a step keeps for its tail.

use super::job::Job;
use super::region::Region;
use super::wgsl::prelude;

/// The largest of each row of probabilities.
#[derive(Clone, Copy, Debug)]
pub struct Largest<'a> {
    /// Token-rows.
    pub rows: usize,
    /// Values of a row.
    pub experts: usize,
    /// Picks of a row.
    pub k: usize,
    /// `[rows, experts]`.
    pub values: &'a Region,
    /// `[rows, k]`: whole numbers.
    pub picks: &'a Region,
    /// `[rows, k]`: the values picked.
    pub weights: &'a Region,
}

const LARGEST: &str = "
@group(0) @binding(1) var<storage, read> params: vec4<u32>;
@group(0) @binding(2) var<storage, read> values: array<f32>;
@group(0) @binding(3) var<storage, read_write> picks: array<f32>;
@group(0) @binding(4) var<storage, read_write> weights: array<f32>;
var<workgroup> best: array<f32, 64>;
var<workgroup> whose: array<u32, 64>;
// Whether value v of index i goes before value w of index j: larger, or equal and earlier.
fn before(v: f32, i: u32, w: f32, j: u32) -> bool { return w < v || (v == w && i < j); }
@compute @workgroup_size(64) fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let live = begin();
  let experts = params.x;
  let k = params.y;
  let row = group.x;
  var last = 0.0;
  var taken = NONE;
  for (var n = 0u; n < k; n += 1u) {
    var v = 0.0;
    var i = NONE;
    for (var e = t; e < experts; e += 64u) {
      let w = values[row * experts + e];
      if ((n == 0u || before(last, taken, w, e)) && (i == NONE || before(w, e, v, i))) { v = w; i = e; }
    }
    best[t] = v;
    whose[t] = i;
    workgroupBarrier();
    v = 0.0;
    i = NONE;
    for (var other = 0u; other < 64u; other += 1u) {
      let j = whose[other];
      if (j != NONE && (i == NONE || before(best[other], j, v, i))) { v = best[other]; i = j; }
    }
    workgroupBarrier();
    last = v;
    taken = i;
    if (live && t == 0u) { picks[row * k + n] = f32(i); weights[row * k + n] = v; }
  }
}
";

impl Largest<'_> {
    /// The kernel.
    #[must_use]
    pub fn job(&self) -> Job {
        Job {
            label: "top_k.largest",
            source: prelude(&[]) + LARGEST,
            groups: [self.rows as u32, 1, 1],
            constants: vec![self.experts as u32, self.k as u32, 0, 0],
            operands: [self.values, self.picks, self.weights].map(Region::clone).into(),
        }
    }
}

const KEEP: &str = "
@group(0) @binding(1) var<storage, read> params: vec4<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (!begin() || at.x >= params.x) { return; }
  out[at.y * params.x + at.x] = x[step.row[at.y].source * params.x + at.x];
}
";

/// Row `i` of `out` is the row of `x` that the step's words name as the source of kept row `i`.
#[must_use]
pub fn keep(kept: usize, width: usize, x: &Region, out: &Region) -> Job {
    Job {
        label: "keep",
        source: prelude(&[]) + KEEP,
        groups: [(width as u32).div_ceil(64), kept as u32, 1],
        constants: vec![width as u32, 0, 0, 0],
        operands: vec![x.clone(), out.clone()],
    }
}
