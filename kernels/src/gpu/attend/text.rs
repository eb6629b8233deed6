//! What the kernels of both forms share: the view of a row, its query and its terms quantised, products, lanes and trees.
//! The sums are written once, so the forms cannot take them in different orders.

use crate::gpu::Method;
use std::fmt::Write as _;

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
pub(super) const COMMON: &str = "
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
pub(super) const QUERY: &str = "
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
  return b(sum + apart($Q_HIGHf32(low) * scale));
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

/// Quantise the terms of some pages into workgroup memory; `term(page, i)` is the kernel's own.
pub(super) const TERMS: &str = "
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
  return b(sum + apart($P_HIGHf32(low) * scale));
}
";

/// The eight words of a block of 32 values, 16 words apart, all asked for at once.
pub(super) fn words(at: &str) -> String {
    (0..8).map(|q| format!("let w{q} = cache[{at} + {}u] ^ 0x80808080u;\n  ", 16 * q)).collect()
}

/// Their products with a block of limbs.
pub(super) fn int8_sum(limbs: &str, block: &str) -> String {
    let each: Vec<String> = (0..8).map(|q| format!("dot4(w{q}, {limbs}[{block} * 8u + {q}u])")).collect();
    each.join(" + ")
}

/// The lanes of a score and their tree; lanes without a block hold +0.0, which adds nothing.
pub(super) fn score_lanes(blocks: usize, lanes: usize) -> String {
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
pub(super) fn tree_of(prefix: &str, n: usize, result: &str, value: &dyn Fn(usize) -> String) -> String {
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
