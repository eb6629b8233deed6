//! The attention unit on a device: three passes in the orders of [`crate::attend`], over a bank of the cache.
//!
//! A workgroup takes one query head of one row. Where the row's view fits workgroup memory one kernel makes all three
//! passes; longer views take four, with scores, sums and lanes in device memory: scores by position, softmax by head,
//! values by lane, and what folds the lanes. Both forms take the same sums in the same order.

use super::Method;
use super::cache::{BANK, Bank, fits, format_text};
use super::device::{Gpu, GpuError};
use super::job::{Job, fill};
use super::quantise::{self, DeviceActs};
use super::record::Region;
use super::wgsl::prelude;
use crate::attend::{Attend, CacheLayout};
use crate::format::{BLOCK, EXP_MAX, Limbs};
use crate::math::Function;
use std::fmt::Write as _;

/// Positions whose scores a workgroup has room for.
pub const SHORT: usize = 1024;
/// Words of lanes and of quantised terms that a workgroup has room for.
const ROOM: usize = 2048;
/// Threads of a workgroup.
const THREADS: usize = 256;
/// Pages of one lane whose terms a workgroup of the long form holds at a time.
const LAP: usize = 8;

/// Memory of the long form.
#[derive(Clone, Copy, Debug)]
pub struct LongMemory<'a> {
    /// `[rows, query heads, positions]`.
    pub scores: &'a Region,
    /// `[rows, query heads]`.
    pub sums: &'a Region,
    /// `[rows, query heads, lanes, value dim]`.
    pub lanes: &'a Region,
    /// Positions that a row of scores has room for, a multiple of 32.
    pub positions: usize,
}

/// One attention over every row of a step.
#[derive(Clone, Copy, Debug)]
pub struct AttendRun<'a> {
    /// How int8 products are made.
    pub method: Method,
    /// The table of products, for [`Method::Lut`].
    pub table: Option<&'a Region>,
    /// View, cap, limbs and lanes.
    pub attend: Attend,
    /// First token-row of this run.
    pub first_row: usize,
    /// Token-rows.
    pub rows: usize,
    /// Number of the command, for a fault.
    pub command: u32,
    /// Query heads of a row, all banks together.
    pub heads: usize,
    /// q heads | k heads | v heads, a row.
    pub qkv: &'a Region,
    /// Elements of such a row.
    pub width: usize,
    /// `[rows, query heads, value dim]`.
    pub out: &'a Region,
    /// The cache.
    pub bank: Bank<'a>,
    /// Memory where views may be longer than [`SHORT`].
    pub long: Option<LongMemory<'a>>,
    /// What the output becomes besides.
    pub quantised: Option<AttendActs<'a>>,
}

/// The array unit's operand that an attention's output becomes.
#[derive(Clone, Copy, Debug)]
pub struct AttendActs<'a> {
    /// The command whose operand it is, for a fault.
    pub command: u32,
    /// `[rows, query heads * value dim]`; written.
    pub acts: &'a DeviceActs,
    /// Threads of a subgroup.
    subgroup: u32,
}

impl<'a> AttendActs<'a> {
    /// For the short form's rows of `heads` heads of a cache; `None` where the device has no subgroups of one size, or a
    /// head is no row of whole blocks.
    #[must_use]
    pub fn of(gpu: &Gpu, layout: &CacheLayout, command: u32, acts: &'a DeviceActs) -> Option<Self> {
        let size = gpu.facts().subgroup_size().filter(|s| *s >= 8 && THREADS.is_multiple_of(*s as usize))?;
        let whole = layout.v_dim().is_multiple_of(BLOCK) && acts.cols().is_multiple_of(layout.v_dim());
        whole.then_some(Self { command, acts, subgroup: size })
    }
}

/// Four products of int8 in two words.
pub(super) fn dot_text(method: Method, binding: usize) -> String {
    match method {
        Method::Dp4a => "fn dot4(x: u32, y: u32) -> i32 { return dot4I8Packed(x, y); }\n".to_owned(),
        Method::Lut => format!(
            "@group(0) @binding({binding}) var<storage, read> table: array<u32>;\n\
             fn product(x: u32, y: u32) -> i32 {{\n\
             \x20 let at = ((x & 255u) << 8u) | (y & 255u);\n\
             \x20 return bitcast<i32>(table[at >> 1u] << (16u - 16u * (at & 1u))) >> 16u;\n}}\n\
             fn dot4(x: u32, y: u32) -> i32 {{\n\
             \x20 return product(x, y) + product(x >> 8u, y >> 8u) + product(x >> 16u, y >> 16u) + product(x >> 24u, y >> 24u);\n}}\n"
        ),
    }
}

/// What every kernel of the unit begins with; `$…` are filled by the run's shape.
const COMMON: &str = "
struct Params {
  bank: Bank, width: u32, group: u32, window: u32, command: u32, cap: f32, first_row: u32, positions: u32, heads: u32,
  quantises: u32,
}
@group(0) @binding(1) var<storage, read> params: Params;
const HEAD_DIM: u32 = $HEAD_DIMu;
const BLOCKS: u32 = $BLOCKSu;
const V_DIM: u32 = $V_DIMu;
const LANES: u32 = $LANESu;
struct View { start: u32, end: u32, page: u32, pages: u32 }
fn view(row: u32) -> View {
  let position = step.row[row].position;
  var start = 0u;
  if (params.window != 0u && position + 1u > params.window) { start = position + 1u - params.window; }
  return View(start, position + 1u, start / 32u, position / 32u + 1u - start / 32u);
}
";

/// Quantise the head's query into workgroup memory.
const QUERY: &str = "
var<workgroup> query_max: array<atomic<u32>, BLOCKS>;
var<workgroup> query_high: array<u32, $QUERY_WORDS>;
var<workgroup> query_low: array<u32, $QUERY_WORDS>;
var<workgroup> query_scale: array<f32, BLOCKS>;
fn query_bits(at: u32, i: u32) -> u32 { return select(0u, bitcast<u32>(qkv[at + min(i, HEAD_DIM - 1u)]), i < HEAD_DIM); }
fn query(row: u32, head: u32, t: u32, live: bool) {
  let q0 = row * params.width + head * HEAD_DIM;
  for (var i = t; i < BLOCKS; i += $THREADSu) { atomicStore(&query_max[i], 0u); }
  workgroupBarrier();
  for (var i = t; i < HEAD_DIM; i += $THREADSu) { atomicMax(&query_max[i / 32u], query_bits(q0, i) & 0x7fffffffu); }
  workgroupBarrier();
  for (var i = t; i < BLOCKS * 8u; i += $THREADSu) {
    let bits = atomicLoad(&query_max[i / 8u]);
    let e = pow2_exponent(bits, $Q_LIMITu);
    if (live && (!finite(bits) || e > $EXP_MAX)) { fail(params.command); }
    var high = 0u;
    var low = 0u;
    for (var c = 0u; c < 4u; c += 1u) {
      let q = quantise_pow2(query_bits(q0, i * 4u + c), e);
      let l = (q << 24u) >> 24u;
      low |= (u32(l) & 255u) << (8u * c);
      high |= (u32((q - l) >> 8u) & 255u) << (8u * c);
    }
    query_high[i] = high;
    query_low[i] = low;
    if (i % 8u == 0u) { query_scale[i / 8u] = pow2(min(e, $EXP_MAX)); }
  }
  workgroupBarrier();
}
fn key_block(sum: f32, tile: u32, place: u32, base: u32, block: u32) -> f32 {
  let byte = 16u + block * 16u + place;
  let code = (cache[tile + byte / 4u] >> (8u * (byte % 4u))) & 255u;
  let scale = bitcast<f32>((base + code) << 20u) * query_scale[block];
  let k0 = tile + params.bank.scales + block * 128u + place;
  $WORDS_K
  let low = $Q_LOW_DOT;
  $Q_HIGH_DOT
  var s = sum;
  $Q_HIGH_SUM
  return b(s + f32(low) * scale);
}
// The query with the key of a position, lanes and tree as the array unit has them.
fn score(state: u32, head: u32, position: u32) -> f32 {
  let slot = position % 32u;
  let tile = page_at(state, position / 32u, head) + (slot / 16u) * params.bank.tile;
  let place = slot % 16u;
  let byte = (cache[tile + place / 4u] >> (8u * (place % 4u))) & 255u;
  let base = u32((i32(byte << 24u) >> 24u) + 130) << 3u;
$SCORE_LANES
}
fn capped(s: f32) -> f32 { $CAP }
";

/// Quantise the terms of some pages into workgroup memory: `$NAME_page(n)` is the n-th page or NONE.
const TERMS: &str = "
var<workgroup> t_max: array<atomic<u32>, $PAIRS>;
var<workgroup> t_high: array<u32, $TERM_WORDS>;
var<workgroup> t_low: array<u32, $TERM_WORDS>;
fn term_word(four: vec4<u32>, e: i32, at: u32) {
  var high = 0u;
  var low = 0u;
  for (var c = 0u; c < 4u; c += 1u) {
    let q = quantise_pow2(four[c], e);
    let l = (q << 24u) >> 24u;
    low |= (u32(l) & 255u) << (8u * c);
    high |= (u32((q - l) >> 8u) & 255u) << (8u * c);
  }
  t_high[at] = high;
  t_low[at] = low;
}
// The terms of four positions of a page times their values' scales, as bits.
fn weighted(page: u32, block: u32, quad: u32, state: u32, head: u32) -> vec4<u32> {
  let word = cache[page_at(state, page, head) + params.bank.exponents + block * 8u + quad];
  var four = vec4<u32>(0u);
  for (var c = 0u; c < 4u; c += 1u) {
    let e = i32((word >> (8u * c)) << 24u) >> 24u;
    four[c] = bitcast<u32>(r(term(page, quad * 4u + c) * pow2(e)));
  }
  return four;
}
fn largest_of(four: vec4<u32>) -> u32 { return max(max(four.x, four.y), max(four.z, four.w)); }
fn value_block(sum: f32, at: u32, page: u32, d: u32, state: u32, head: u32) -> f32 {
  let bits = atomicLoad(&t_max[at]);
  let scale = pow2(pow2_exponent(bits, $P_LIMITu));
  let v0 = page_at(state, page, head) + params.bank.values + (d / 16u) * 128u + d % 16u;
  $WORDS_V
  let low = $P_LOW_DOT;
  $P_HIGH_DOT
  var s = sum;
  $P_HIGH_SUM
  return b(s + f32(low) * scale);
}
";

const SHORT_MAIN: &str = "
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> cache: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
var<workgroup> scores: array<f32, $SHORT>;
var<workgroup> red: array<f32, $THREADS>;
var<workgroup> lanes: array<f32, $ROOM>;
var<private> first_page: u32;
fn term(page: u32, i: u32) -> f32 { return scores[(page - first_page) * 32u + i]; }
fn larger(x: f32, y: f32) -> f32 { return select(x, y, x < y); }
@compute @workgroup_size($THREADS) fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32$SUBGROUPS) {
  let row = params.first_row + group.y;
  let state = step.row[row].state;
  let live = begin() && mine(state);
  let head = params.bank.first_head * params.group + group.x;
  let kv = group.x / params.group;
  query(row, head, t, live);
  let v = view(row);
  first_page = v.page;
  // A row of another bank has no pages here.
  let pages = select(0u, v.pages, live);
  let n = pages * 32u;
  var top = bitcast<f32>(0xff800000u ^ zero);
  for (var k = t; k < n; k += $THREADSu) {
    let position = v.page * 32u + k;
    if (position >= v.start && position < v.end) {
      let s = capped(score(state, kv, position));
      scores[k] = s;
      top = larger(top, s);
    }
  }
  red[t] = top;
  workgroupBarrier();
  if (t < 32u) {
    for (var k = t + 32u; k < $THREADSu; k += 32u) { top = larger(top, red[k]); }
    red[t] = top;
  }
  workgroupBarrier();
  for (var k = 0u; k < 32u; k += 1u) { top = larger(top, red[k]); }
  workgroupBarrier();
  for (var k = t; k < n; k += $THREADSu) {
    let position = v.page * 32u + k;
    var e = 0.0;
    if (position >= v.start && position < v.end) { e = f_exp(r(scores[k] - top)); }
    scores[k] = e;
  }
  workgroupBarrier();
  // Terms are never below zero, so their sums need no flush; positions outside the view add zero.
  if (t < 32u) {
    var lane = 0.0;
    for (var k = t; k < n; k += 32u) { lane = b(lane + scores[k]); }
    red[t] = lane;
  }
  workgroupBarrier();
$TREE
  let inverse = f_recip(total);
  for (var slice = 0u; slice < $V_BLOCKSu; slice += $SLICEu) {
    $ACC_INIT
    for (var lap = v.page / LANES; lap * LANES < v.page + pages; lap += 1u) {
      for (var i = t; i < $PAIRSu; i += $THREADSu) { atomicStore(&t_max[i], 0u); }
      workgroupBarrier();
      for (var first = 0u; first < $PAIRSu * 8u; first += $THREADSu) {
        let i = first + t;
        let page = lap * LANES + (i / 8u) / $SLICEu;
        let block = slice + (i / 8u) % $SLICEu;
        let seen = i < $PAIRSu * 8u && page >= v.page && page < v.page + pages && block < $V_BLOCKSu;
        var four = vec4<u32>(0u);
        if (seen) {
          four = weighted(page, block, i % 8u, state, kv);
          atomicMax(&t_max[i / 8u], largest_of(four));
        }
        workgroupBarrier();
        if (seen) { term_word(four, pow2_exponent(atomicLoad(&t_max[i / 8u]), $P_LIMITu), i); }
      }
      workgroupBarrier();
      $ACC_STEP
      workgroupBarrier();
    }
    $ACC_STORE
    workgroupBarrier();
    for (var d = t; d < $SLICEu * 32u; d += $THREADSu) {
      let at = slice * 32u + d;
      if (live && at < V_DIM) {
        $FOLD
        let result = r(folded * inverse);
        out[(row * params.heads + head) * V_DIM + at] = result;
        $MADE
      }
    }
    workgroupBarrier();
    $QUANTISE
  }
}
";

/// The slice's results as limbs; all threads shuffle, the first of them have quads.
const QUANTISE: &str = "let local = piece * $SUBGROUPu + lane;
    let quad = min(local, $SLICEu * 8u - 1u);
    let four = vec4<u32>(made[quad * 4u], made[quad * 4u + 1u], made[quad * 4u + 2u], made[quad * 4u + 3u]);
    let inside = local < $SLICEu * 8u && slice + quad / 8u < $V_BLOCKSu;
    q_quad(row, head * $V_BLOCKSu + slice + quad / 8u, quad % 8u, four, live && inside, params.quantises);
    workgroupBarrier();";

const SCORES_MAIN: &str = "
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> cache: array<u32>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;
@compute @workgroup_size($THREADS) fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let row = params.first_row + group.z;
  let state = step.row[row].state;
  let live = begin() && mine(state);
  let head = params.bank.first_head * params.group + group.y;
  query(row, head, t, live);
  let v = view(row);
  let k = group.x * $THREADSu + t;
  let position = v.page * 32u + k;
  if (live && k < v.pages * 32u && position >= v.start && position < v.end) {
    scores[(group.z * params.heads + head) * params.positions + k] = capped(score(state, group.y / params.group, position));
  }
}
";

const SOFTMAX_MAIN: &str = "
@group(0) @binding(2) var<storage, read_write> scores: array<f32>;
@group(0) @binding(3) var<storage, read_write> sums: array<f32>;
var<workgroup> red: array<f32, $THREADS>;
fn larger(x: f32, y: f32) -> f32 { return select(x, y, x < y); }
@compute @workgroup_size($THREADS) fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let row = params.first_row + group.y;
  let live = begin() && mine(step.row[row].state);
  let head = params.bank.first_head * params.group + group.x;
  let v = view(row);
  let n = select(0u, v.pages * 32u, live);
  let at = (group.y * params.heads + head) * params.positions;
  var top = bitcast<f32>(0xff800000u ^ zero);
  for (var k = t; k < n; k += $THREADSu) {
    let position = v.page * 32u + k;
    if (position >= v.start && position < v.end) { top = larger(top, scores[at + k]); }
  }
  red[t] = top;
  workgroupBarrier();
  if (t < 32u) {
    for (var k = t + 32u; k < $THREADSu; k += 32u) { top = larger(top, red[k]); }
    red[t] = top;
  }
  workgroupBarrier();
  for (var k = 0u; k < 32u; k += 1u) { top = larger(top, red[k]); }
  workgroupBarrier();
  for (var k = t; k < n; k += $THREADSu) {
    let position = v.page * 32u + k;
    var e = 0.0;
    if (position >= v.start && position < v.end) { e = f_exp(r(scores[at + k] - top)); }
    scores[at + k] = e;
  }
  storageBarrier();
  workgroupBarrier();
  if (t < 32u) {
    var lane = 0.0;
    for (var k = t; k < n; k += 32u) { lane = b(lane + scores[at + k]); }
    red[t] = lane;
  }
  workgroupBarrier();
$TREE
  if (live && t == 0u) { sums[group.y * params.heads + head] = total; }
}
";

const VALUES_MAIN: &str = "
@group(0) @binding(2) var<storage, read> cache: array<u32>;
@group(0) @binding(3) var<storage, read> scores: array<f32>;
@group(0) @binding(4) var<storage, read_write> lanes: array<f32>;
var<private> terms_at: u32;
fn term(page: u32, i: u32) -> f32 { return scores[terms_at + page * 32u + i]; }
@compute @workgroup_size($THREADS) fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let row = params.first_row + group.z;
  let state = step.row[row].state;
  let live = begin() && mine(state);
  let head = params.bank.first_head * params.group + group.y;
  let kv = group.y / params.group;
  let lane = group.x % LANES;
  let slice = (group.x / LANES) * $SLICEu;
  let v = view(row);
  let pages = select(0u, v.pages, live);
  terms_at = (group.z * params.heads + head) * params.positions - v.page * 32u;
  // The lane's first page from the view's first page on.
  let first = v.page + (lane + LANES - v.page % LANES) % LANES;
  let d = slice * 32u + t;
  var sum = 0.0;
  for (var lap = first; lap < v.page + pages; lap += LANES * $LAPu) {
    for (var i = t; i < $PAIRSu; i += $THREADSu) { atomicStore(&t_max[i], 0u); }
    workgroupBarrier();
    for (var start = 0u; start < $PAIRSu * 8u; start += $THREADSu) {
      let i = start + t;
      let page = lap + LANES * ((i / 8u) / $SLICEu);
      let block = slice + (i / 8u) % $SLICEu;
      let seen = i < $PAIRSu * 8u && page < v.page + pages && block < $V_BLOCKSu;
      var four = vec4<u32>(0u);
      if (seen) {
        four = weighted(page, block, i % 8u, state, kv);
        atomicMax(&t_max[i / 8u], largest_of(four));
      }
      workgroupBarrier();
      if (seen) { term_word(four, pow2_exponent(atomicLoad(&t_max[i / 8u]), $P_LIMITu), i); }
    }
    workgroupBarrier();
    if (t < $SLICEu * 32u && d < V_DIM) {
      for (var n = 0u; n < $LAPu; n += 1u) {
        let page = lap + LANES * n;
        if (page < v.page + pages) { sum = value_block(sum, n * $SLICEu + t / 32u, page, d, state, kv); }
      }
    }
    workgroupBarrier();
  }
  if (live && t < $SLICEu * 32u && d < V_DIM) { lanes[((group.z * params.heads + head) * LANES + lane) * V_DIM + d] = sum; }
}
";

const FINISH_MAIN: &str = "
@group(0) @binding(2) var<storage, read> lanes: array<f32>;
@group(0) @binding(3) var<storage, read> sums: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  let row = params.first_row + at.z;
  let head = params.bank.first_head * params.group + at.y;
  if (!begin() || !mine(step.row[row].state) || at.x >= V_DIM) { return; }
  let d = at.x;
  let l0 = (at.z * params.heads + head) * LANES * V_DIM + d;
  $FOLD
  out[(row * params.heads + head) * V_DIM + d] = r(folded * f_recip(sums[at.z * params.heads + head]));
}
";

impl AttendRun<'_> {
    /// The kernels, in order.
    ///
    /// # Errors
    /// A head is wider than a workgroup has room for.
    pub fn jobs(&self) -> Result<Vec<Job>, GpuError> {
        let layout = self.bank.layout;
        fits(layout.head_dim().div_ceil(BLOCK) + layout.v_dim().div_ceil(BLOCK))?;
        let group = self.heads / layout.kv_heads();
        let (q_heads, rows) = ((self.bank.heads * group) as u32, self.rows as u32);
        let Some(long) = self.long else {
            let mut operands = vec![self.qkv, self.bank.memory, self.out];
            operands.extend(self.quantised.into_iter().flat_map(|q| [q.acts.limbs(), q.acts.scales()]));
            return Ok(vec![self.job("attend", &[QUERY, TERMS, SHORT_MAIN], [q_heads, rows, 1], &operands, true)]);
        };
        let lanes = self.attend.lanes.count() as u32;
        let slices = (layout.v_dim().div_ceil(BLOCK) as u32).div_ceil(self.long_slice() as u32);
        let by_position = (long.positions as u32).div_ceil(THREADS as u32);
        let memory = self.bank.memory;
        Ok(vec![
            self.job(
                "attend.scores",
                &[QUERY, SCORES_MAIN],
                [by_position, q_heads, rows],
                &[self.qkv, memory, long.scores],
                true,
            ),
            self.job("attend.softmax", &[SOFTMAX_MAIN], [q_heads, rows, 1], &[long.scores, long.sums], false),
            self.job(
                "attend.values",
                &[TERMS, VALUES_MAIN],
                [lanes * slices, q_heads, rows],
                &[memory, long.scores, long.lanes],
                true,
            ),
            self.job(
                "attend.finish",
                &[FINISH_MAIN],
                [(layout.v_dim() as u32).div_ceil(64), q_heads, rows],
                &[long.lanes, long.sums, self.out],
                false,
            ),
        ])
    }

    /// Blocks of value elements that the short form takes at a time.
    fn slice(&self) -> usize {
        let blocks = self.bank.layout.v_dim().div_ceil(BLOCK);
        (ROOM / (BLOCK * self.attend.lanes.count())).clamp(1, 8).min(blocks)
    }

    /// The same of the long form: a thread an element.
    fn long_slice(&self) -> usize {
        self.bank.layout.v_dim().div_ceil(BLOCK).min(THREADS / BLOCK)
    }

    fn job(&self, label: &'static str, parts: &[&str], groups: [u32; 3], operands: &[&Region], dots: bool) -> Job {
        let layout = self.bank.layout;
        let (blocks, lanes) = (layout.head_dim().div_ceil(BLOCK), self.attend.lanes.count());
        let long = self.long.is_some();
        let slice = if long { self.long_slice() } else { self.slice() };
        let pairs = slice * if long { LAP } else { lanes };
        let two = |limbs, text: &str| if limbs == Limbs::Two { text.to_owned() } else { String::new() };
        let (queries, probs) = (self.attend.queries, self.attend.probs);
        let per_thread = (slice * BLOCK * lanes).div_ceil(THREADS);
        let each = |line: &dyn Fn(usize) -> String| (0..per_thread).map(line).collect::<String>();
        let tasks = slice * BLOCK * lanes;
        let cap = "let inverse = f_recip(params.cap); return r(f_tanh(r(s * inverse)) * params.cap);";
        let fold_from = |l: usize| {
            if long { format!("lanes[l0 + {l}u * V_DIM]") } else { format!("lanes[{l}u * {}u + d]", slice * BLOCK) }
        };
        let quantised = self.quantised.filter(|_| !long);
        let ends = quantised.map_or_else(String::new, |q| {
            QUANTISE
                .replace("$SUBGROUP", &q.subgroup.to_string())
                .replace("$SLICE", &slice.to_string())
                .replace("$V_BLOCKS", &layout.v_dim().div_ceil(BLOCK).to_string())
        });
        let where_quantised = |text: &str| quantised.map_or_else(String::new, |_| text.to_owned());
        let values = [
            ("$QUANTISE", ends),
            ("$MADE", where_quantised("made[d] = bitcast<u32>(result);")),
            (
                "$SUBGROUPS",
                where_quantised(", @builtin(subgroup_id) piece: u32, @builtin(subgroup_invocation_id) lane: u32"),
            ),
            ("$HEAD_DIM", layout.head_dim().to_string()),
            ("$BLOCKS", blocks.to_string()),
            ("$V_DIM", layout.v_dim().to_string()),
            ("$V_BLOCKS", layout.v_dim().div_ceil(BLOCK).to_string()),
            ("$LANES", lanes.to_string()),
            ("$LAP", LAP.to_string()),
            ("$QUERY_WORDS", (blocks * 8).to_string()),
            ("$THREADS", THREADS.to_string()),
            ("$SHORT", SHORT.to_string()),
            ("$ROOM", (slice * BLOCK * lanes).to_string()),
            ("$Q_LIMIT", queries.max().to_string()),
            ("$P_LIMIT", probs.max().to_string()),
            ("$EXP_MAX", EXP_MAX.to_string()),
            ("$WORDS_K", words("k0")),
            ("$WORDS_V", words("v0")),
            ("$Q_LOW_DOT", int8_sum("query_low", "block")),
            ("$P_LOW_DOT", int8_sum("t_low", "at")),
            ("$Q_HIGH_DOT", two(queries, &format!("let high = {};", int8_sum("query_high", "block")))),
            ("$Q_HIGH_SUM", two(queries, "s = b(s + f32(high) * (scale * 256.0));")),
            ("$P_HIGH_DOT", two(probs, &format!("let high = {};", int8_sum("t_high", "at")))),
            ("$P_HIGH_SUM", two(probs, "s = b(s + f32(high) * (scale * 256.0));")),
            ("$SCORE_LANES", score_lanes(blocks, lanes)),
            ("$CAP", if self.attend.cap.is_some() { cap.to_owned() } else { "return s;".to_owned() }),
            ("$SLICE", slice.to_string()),
            ("$PAIRS", pairs.to_string()),
            ("$TERM_WORDS", (pairs * 8).to_string()),
            ("$TREE", tree_of("red", 32, "total", &|l| format!("red[{l}]"))),
            ("$FOLD", tree_of("fold", lanes, "folded", &fold_from)),
            ("$ACC_INIT", each(&|n| format!("var acc{n} = 0.0;\n    "))),
            (
                "$ACC_STEP",
                each(&|n| {
                    format!(
                        "{{ let task = t + {0}u; let d = task % {1}u; let l = task / {1}u; let page = lap * LANES + l;\n\
                         \x20     if (task < {tasks}u && page >= v.page && page < v.page + pages && slice * 32u + d < V_DIM) {{\n\
                         \x20       acc{n} = value_block(acc{n}, l * {slice}u + d / 32u, page, slice * 32u + d, state, kv); }} }}\n      ",
                        n * THREADS,
                        slice * BLOCK
                    )
                }),
            ),
            (
                "$ACC_STORE",
                each(&|n| format!("if (t + {0}u < {tasks}u) {{ lanes[t + {0}u] = acc{n}; }}\n    ", n * THREADS)),
            ),
        ];
        // Longer names first, so that no name is taken for its prefix.
        let mut values: Vec<(&str, String)> = values.into();
        values.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        let mut functions = vec![Function::Exp, Function::Recip];
        functions.extend(self.attend.cap.map(|_| Function::Tanh));
        let mut source = prelude(&functions) + &format_text() + BANK;
        source += &fill(COMMON, &values);
        if dots {
            source += &dot_text(self.method, 2 + operands.len());
        }
        for part in parts {
            source += &fill(part, &values);
        }
        if let Some(q) = quantised {
            source += &quantise::text(q.acts.format(), q.acts.cols());
            source += &quantise::outputs(q.acts.format(), 5, true);
            let _ = writeln!(source, "var<workgroup> made: array<u32, {}>;", slice * BLOCK);
        }
        // Loads of words that no step changes would stand before every address; what differs from layer to layer stays.
        let bank = self.bank.words();
        let fixed = ["head_words", "exponents", "values", "tile", "scales"].into_iter().zip(&bank);
        for (name, word) in fixed.chain([("heads", &bank[6]), ("pages", &bank[7])]) {
            source = source.replace(&format!("params.bank.{name}"), &format!("{word}u"));
        }
        let group = self.heads / layout.kv_heads();
        let window = self.attend.window.unwrap_or(0);
        for (name, word) in [("width", self.width), ("group", group), ("window", window), ("heads", self.heads)] {
            source = source.replace(&format!("params.{name}"), &format!("{word}u"));
        }
        let mut constants = self.bank.words();
        constants.extend([self.width, group, window].map(|n| n as u32));
        constants.extend([self.command, self.attend.cap.unwrap_or(0.0).to_bits(), self.first_row as u32]);
        constants.extend([self.long.map_or(0, |l| l.positions as u32), self.heads as u32]);
        constants.push(quantised.map_or(0, |q| q.command));
        let mut operands: Vec<Region> = operands.iter().map(|r| (*r).clone()).collect();
        if dots && self.method == Method::Lut {
            operands.extend(self.table.cloned());
        }
        Job { label, source, groups, constants, operands }
    }
}

/// The eight words of a block of 32 values, 16 words apart, all asked for at once.
fn words(at: &str) -> String {
    (0..8).map(|q| format!("let w{q} = cache[{at} + {}u] ^ 0x80808080u;\n  ", 16 * q)).collect()
}

/// Their products with a block of limbs.
fn int8_sum(limbs: &str, block: &str) -> String {
    let each: Vec<String> = (0..8).map(|q| format!("dot4(w{q}, {limbs}[{block} * 8u + {q}u])")).collect();
    each.join(" + ")
}

/// The lanes of a score and their tree; lanes without a block hold +0.0, which adds nothing.
fn score_lanes(blocks: usize, lanes: usize) -> String {
    let mut text = String::new();
    let used = lanes.min(blocks);
    for l in 0..used {
        let _ = writeln!(
            text,
            "  var l{l} = 0.0;\n  for (var block = {l}u; block < BLOCKS; block += LANES) {{ l{l} = key_block(l{l}, tile, place, base, block); }}"
        );
    }
    text += &tree_of("s", lanes, "sum", &|l| if l < used { format!("l{l}") } else { "0.0".to_owned() });
    text + "  return sum;"
}

/// The halving tree over `n` values, each sum through the barrier.
fn tree_of(prefix: &str, n: usize, result: &str, value: &dyn Fn(usize) -> String) -> String {
    let mut text = String::new();
    let mut names: Vec<String> = (0..n).map(value).collect();
    let mut half = n / 2;
    while half > 0 {
        for l in 0..half {
            // What is added to +0.0 stays.
            if names[l + half] == "0.0" {
                continue;
            }
            let name = format!("{prefix}_{half}_{l}");
            let _ = writeln!(text, "  let {name} = b({} + {});", names[l], names[l + half]);
            names[l] = name;
        }
        half /= 2;
    }
    let _ = writeln!(text, "  let {result} = {};", names[0]);
    text
}
