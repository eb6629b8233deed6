//! The short form: one kernel makes all three passes, for a row's view fits workgroup memory.

pub(super) const MAIN: &str = "
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
  let live = $BEGIN && mine(state);
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
pub(super) const QUANTISE: &str = "let local = piece * $SUBGROUPu + lane;
    let quad = min(local, $SLICEu * 8u - 1u);
    let four = vec4<u32>(made[quad * 4u], made[quad * 4u + 1u], made[quad * 4u + 2u], made[quad * 4u + 3u]);
    let inside = local < $SLICEu * 8u && slice + quad / 8u < $V_BLOCKSu;
    q_quad(row, head * $V_BLOCKSu + slice + quad / 8u, quad % 8u, four, live && inside, params.quantises);
    workgroupBarrier();";
