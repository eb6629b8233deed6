//! The cache on a device: the bytes of [`crate::attend::Cache`], page by page, for many sequences in one buffer.
//!
//! A bank holds some of a layer's key heads for every state: `[states][pages][heads of the bank][bytes of a head]`. A
//! workgroup quantises one head's keys and values of one row; bytes that share a word with other positions' are set by
//! atomic operations on that word, each byte by the one workgroup it belongs to.

use super::error::GpuError;
use super::job::{Job, fill};
use super::region::Region;
use super::wgsl::prelude;
use crate::attend::CacheLayout;
use crate::format::{BLOCK, EXP_MAX, EXP_MIN, EXP_SPAN};

/// Blocks of a head that a workgroup has room for.
const MOST_BLOCKS: usize = 64;

/// The quantisers of [`mod@crate::format`] in integers.
pub(super) const FORMAT: &str = "
struct Split { e: i32, m: u32 }
fn split(bits: u32) -> Split {
  let field = (bits >> 23u) & 255u;
  return Split(i32(field) - 150, select((bits & 0x7fffffu) | 0x800000u, 0u, field == 0u));
}
fn finite(bits: u32) -> bool { return bits < 0x7f800000u; }
// Exponent of the smallest power of two that takes a magnitude of these bits into the limit.
fn pow2_exponent(bits: u32, limit: u32) -> i32 {
  let s = split(bits);
  let shift = countLeadingZeros(limit) - 8u;
  let e = s.e + i32(shift) + select(0, 1, s.m > (limit << shift));
  return select(max(e, $EXP_MIN), $EXP_MIN, s.m == 0u);
}
fn pow2(e: i32) -> f32 { return bitcast<f32>(u32(e + 127) << 23u); }
fn quantise_pow2(bits: u32, e: i32) -> i32 {
  let s = split(bits);
  let k = u32(min(e - s.e, 31)) & 31u;
  let below_half = (1u << ((k - 1u) & 31u)) - 1u;
  let q = i32((s.m + below_half + ((s.m >> k) & 1u)) >> k);
  let sign = bitcast<i32>(bits) >> 31u;
  return (q ^ sign) - sign;
}
// A weight scale as 16 e + m, so that scales compare as integers.
fn weight_scale(bits: u32) -> i32 {
  let s = split(bits);
  var shift = 13u;
  var m = 8u;
  for (var n = 0u; n < 9u; n += 1u) {
    if (((127u * m) << shift) < s.m) {
      m += 1u;
      if (m == 16u) { m = 8u; shift = 14u; }
    }
  }
  let least = $EXP_MIN * 16 + 8;
  return select(max((s.e + i32(shift)) * 16 + i32(m), least), least, s.m == 0u);
}
fn quantise_weight(bits: u32, scale: i32) -> i32 {
  let s = split(bits);
  let m = u32(scale & 15);
  let k = u32(min((scale >> 4u) - s.e, 24)) & 31u;
  let q = ((s.m >> k) * (0x10000u / m + 1u)) >> 16u;
  let unit = m << k;
  let rest = (s.m - q * unit) << 1u;
  let up = select(0u, 1u, rest > unit) | (select(0u, 1u, rest == unit) & q);
  let v = i32(q + (up & 1u));
  let sign = bitcast<i32>(bits) >> 31u;
  return (v ^ sign) - sign;
}
";

pub(super) fn format_text() -> String {
    FORMAT.replace("$EXP_MIN", &EXP_MIN.to_string())
}

/// A bank of a layer's cache.
#[derive(Clone, Copy, Debug)]
pub struct Bank<'a> {
    /// The layer's cache, all key heads.
    pub layout: &'a CacheLayout,
    /// First key head.
    pub first_head: usize,
    /// Key heads.
    pub heads: usize,
    /// Pages that each state has.
    pub pages: usize,
    /// First state.
    pub first_state: usize,
    /// States.
    pub states: usize,
    /// `[states][pages][heads][bytes of a head]`.
    pub memory: &'a Region,
}

impl Bank<'_> {
    /// Bytes of one state.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.pages * self.heads * self.layout.head_bytes()
    }

    /// What shaders know of a bank, in words: where a head's parts lie, the bank's heads and states, pages.
    pub(super) fn words(&self) -> Vec<u32> {
        let layout = self.layout;
        [
            layout.head_bytes() / 4,
            layout.exponents_at() / 4,
            layout.values_at() / 4,
            layout.keys().tile_bytes() / 4,
            layout.keys().scale_bytes() / 4,
            self.first_head,
            self.heads,
            self.pages,
            self.first_state,
            self.states,
            layout.head_dim(),
            layout.v_dim(),
        ]
        .map(|n| n as u32)
        .into()
    }
}

/// The bank's words in a shader, and where a head's part of a page begins.
pub(super) const BANK: &str = "
struct Bank {
  head_words: u32, exponents: u32, values: u32, tile: u32, scales: u32, first_head: u32, heads: u32, pages: u32,
  first_state: u32, states: u32, head_dim: u32, v_dim: u32,
}
fn mine(state: u32) -> bool { return state >= params.bank.first_state && state - params.bank.first_state < params.bank.states; }
fn page_at(state: u32, page: u32, head: u32) -> u32 {
  let at = (state - params.bank.first_state) * params.bank.pages + page % params.bank.pages;
  return (at * params.bank.heads + head) * params.bank.head_words;
}
";

/// Append every row's keys and values to its sequence's cache.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// Token-rows.
    pub rows: usize,
    /// Number of the command, for a fault.
    pub command: u32,
    /// q heads | k heads | v heads, a row.
    pub qkv: &'a Region,
    /// Elements of such a row.
    pub width: usize,
    /// Elements before the key heads.
    pub keys_at: usize,
    /// Where to.
    pub bank: Bank<'a>,
}

/// Quantise a head's keys and values into its page; `key_bits(first, i, n)` gives a key's element.
pub(super) const APPEND: &str = "
var<workgroup> largest: array<atomic<u32>, $SLOTS>;
fn bits_of(at: u32, i: u32, n: u32) -> u32 { return select(0u, bitcast<u32>(qkv[at + min(i, n - 1u)]), i < n); }
fn put_byte(at: u32, byte: u32, value: u32) {
  let shift = 8u * (byte % 4u);
  atomicAnd(&cache[at + byte / 4u], ~(255u << shift));
  atomicOr(&cache[at + byte / 4u], (value & 255u) << shift);
}
fn append(row: u32, head: u32, state: u32, t: u32, live: bool) {
  let dk = params.bank.head_dim;
  let dv = params.bank.v_dim;
  let key_blocks = (dk + 31u) / 32u;
  let blocks = key_blocks + (dv + 31u) / 32u;
  let k0 = row * params.width + params.keys + (params.bank.first_head + head) * dk;
  let v0 = row * params.width + params.values + (params.bank.first_head + head) * dv;
  for (var i = t; i < blocks; i += 64u) { atomicStore(&largest[i], 0u); }
  workgroupBarrier();
  for (var i = t; i < dk; i += 64u) { atomicMax(&largest[i / 32u], key_bits(k0, i, dk) & 0x7fffffffu); }
  for (var i = t; i < dv; i += 64u) { atomicMax(&largest[key_blocks + i / 32u], bits_of(v0, i, dv) & 0x7fffffffu); }
  workgroupBarrier();
  var top = $EXP_MIN * 16 + 8;
  var good = true;
  for (var n = 0u; n < key_blocks; n += 1u) {
    let bits = atomicLoad(&largest[n]);
    good = good && finite(bits);
    top = max(top, weight_scale(bits));
  }
  good = good && (top >> 4u) <= $EXP_MAX;
  for (var n = key_blocks; n < blocks; n += 1u) {
    let bits = atomicLoad(&largest[n]);
    good = good && finite(bits) && pow2_exponent(bits, 127u) <= $EXP_MAX;
  }
  if (live && !good) { fail(params.command); }
  if (live && good) {
    let base = max((top >> 4u) - $SPAN, $EXP_MIN);
    let position = step.row[row].position;
    let slot = position % 32u;
    let page = page_at(state, position / 32u, head);
    let tile = page + (slot / 16u) * params.bank.tile;
    let place = slot % 16u;
    for (var i = t; i < key_blocks * 8u; i += 64u) {
      let scale = max(weight_scale(atomicLoad(&largest[i / 8u])), base * 16 + 8);
      var word = 0u;
      for (var c = 0u; c < 4u; c += 1u) {
        word |= ((u32(quantise_weight(key_bits(k0, i * 4u + c, dk), scale)) & 255u) ^ 128u) << (8u * c);
      }
      atomicStore(&cache[tile + params.bank.scales + i * 16u + place], word);
      if (i % 8u == 0u) {
        let code = (u32((scale >> 4u) - base) << 3u) | (u32(scale & 15) - 8u);
        put_byte(tile, 16u + (i / 8u) * 16u + place, code);
      }
    }
    if (t == 0u) { put_byte(tile, place, u32(base)); }
    for (var i = t; i < dv; i += 64u) {
      let e = pow2_exponent(atomicLoad(&largest[key_blocks + i / 32u]), 127u);
      let q = (u32(quantise_pow2(bits_of(v0, i, dv), e)) & 255u) ^ 128u;
      put_byte(page + params.bank.values, (i / 16u) * 512u + ((slot / 4u) * 16u + i % 16u) * 4u + slot % 4u, q);
      if (i % 32u == 0u) { put_byte(page + params.bank.exponents, i + slot, u32(e)); }
    }
  }
}
";

const MAIN: &str = "
struct Params { bank: Bank, width: u32, keys: u32, values: u32, command: u32 }
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read_write> cache: array<atomic<u32>>;
fn key_bits(at: u32, i: u32, n: u32) -> u32 { return bits_of(at, i, n); }
@compute @workgroup_size(64) fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let state = step.row[group.y].state;
  let live = begin() && mine(state);
  append(group.y, group.x, state, t, live);
}
";

impl Append<'_> {
    /// The kernel.
    ///
    /// # Errors
    /// A head is wider than a workgroup has room for.
    pub fn job(&self) -> Result<Job, GpuError> {
        let layout = self.bank.layout;
        let blocks = layout.head_dim().div_ceil(BLOCK) + layout.v_dim().div_ceil(BLOCK);
        fits(blocks)?;
        Ok(Job {
            label: "cache_append",
            source: prelude(&[]) + &format_text() + BANK + MAIN + &append_text(),
            groups: [self.bank.heads as u32, self.rows as u32, 1],
            constants: self.words(),
            operands: vec![self.qkv.clone(), self.bank.memory.clone()],
        })
    }

    /// The constants.
    pub(super) fn words(&self) -> Vec<u32> {
        let layout = self.bank.layout;
        let values_at = self.keys_at + layout.kv_heads() * layout.head_dim();
        let rest = [self.width, self.keys_at, values_at].map(|n| n as u32);
        self.bank.words().into_iter().chain(rest).chain([self.command]).collect()
    }
}

pub(super) fn append_text() -> String {
    let values = [
        ("$SLOTS", (2 * MOST_BLOCKS).to_string()),
        ("$EXP_MIN", EXP_MIN.to_string()),
        ("$EXP_MAX", EXP_MAX.to_string()),
        ("$SPAN", EXP_SPAN.to_string()),
    ];
    fill(APPEND, &values)
}

/// Refuse heads that a workgroup has no room for.
pub(super) fn fits(blocks: usize) -> Result<(), GpuError> {
    if blocks <= MOST_BLOCKS {
        return Ok(());
    }
    let what = "blocks of 32 in the keys and values of a head".to_owned();
    Err(GpuError::TooLarge { what, given: blocks as u64, limit: MOST_BLOCKS as u64 })
}
