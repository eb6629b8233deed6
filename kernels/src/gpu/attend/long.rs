//! The long form: a kernel for each pass and one that folds the lanes, for views that no workgroup has room for.

pub(super) const SCORES: &str = "
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

pub(super) const SOFTMAX: &str = "
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

pub(super) const VALUES: &str = "
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

pub(super) const FINISH: &str = "
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
