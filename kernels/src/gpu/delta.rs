//! The delta unit on a device: a workgroup takes 32 columns of a head's memory through its sequence's rows in order.
//!
//! Eight threads share a column; each holds four of the 32 lanes of a sum over the key index, and the halving tree goes
//! through registers, then through workgroup memory.

use super::job::Job;
use super::region::Region;
use super::wgsl::prelude;

/// One recurrence over every row of a step.
#[derive(Clone, Copy, Debug)]
pub struct Delta<'a> {
    /// Token-rows.
    pub rows: usize,
    /// Key and query heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Dimension of a key head.
    pub key_dim: usize,
    /// Dimension of a value head.
    pub value_dim: usize,
    /// Consecutive value heads that share one key head.
    pub share: usize,
    /// Multiplies q.
    pub scale: f32,
    /// q heads | k heads | v heads, a row.
    pub qkv: &'a Region,
    /// Elements of such a row.
    pub qkv_width: usize,
    /// decay | beta, a row.
    pub gb: &'a Region,
    /// `[states, value heads, key dim, value dim]`.
    pub memory: &'a Region,
    /// `[rows, value heads, value dim]`.
    pub out: &'a Region,
}

const SOURCE: &str = "
struct Params { key_heads: u32, heads: u32, dk: u32, dv: u32, share: u32, scale: f32, width: u32, spare: u32 }
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> gb: array<f32>;
@group(0) @binding(4) var<storage, read_write> memory: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
var<workgroup> parts: array<f32, 256>;
fn eighth(l0: f32, l1: f32, l2: f32, l3: f32) -> f32 { return r(r(l0 + l2) + r(l1 + l3)); }
fn joined(c: u32) -> f32 {
  let x0 = r(parts[c] + parts[c + 128u]);
  let x1 = r(parts[c + 32u] + parts[c + 160u]);
  let x2 = r(parts[c + 64u] + parts[c + 192u]);
  let x3 = r(parts[c + 96u] + parts[c + 224u]);
  return r(r(x0 + x2) + r(x1 + x3));
}
@compute @workgroup_size(256) fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let live = begin();
  let c = t % 32u;
  let lane = t / 32u;
  let j = group.x * 32u + c;
  let head = group.y;
  let dk = params.dk;
  let dv = params.dv;
  let column = j < dv;
  let keys = params.key_heads * dk;
  let key = (head / params.share) * dk;
  var row = group.z;
  if (!live || step.row[row].first == 0u) { row = NONE; }
  loop {
    if (row == NONE) { break; }
    let q0 = row * params.width + key;
    let k0 = q0 + keys;
    let s0 = (step.row[row].state * params.heads + head) * dk * dv + j;
    let decay = gb[row * 2u * params.heads + head];
    let beta = gb[row * 2u * params.heads + params.heads + head];
    var l = vec4<f32>(0.0, 0.0, 0.0, 0.0);
    if (column) {
      for (var i = lane; i < dk; i += 32u) {
        for (var u = 0u; u < 4u; u += 1u) {
          let n = i + 8u * u;
          if (n < dk) { l[u] = r(l[u] + r(r(memory[s0 + n * dv] * decay) * qkv[k0 + n])); }
        }
      }
    }
    parts[t] = eighth(l.x, l.y, l.z, l.w);
    workgroupBarrier();
    let m = joined(c);
    workgroupBarrier();
    l = vec4<f32>(0.0, 0.0, 0.0, 0.0);
    if (column) {
      let d = r(r(qkv[row * params.width + 2u * keys + head * dv + j] - m) * beta);
      for (var i = lane; i < dk; i += 32u) {
        for (var u = 0u; u < 4u; u += 1u) {
          let n = i + 8u * u;
          if (n < dk) {
            let s = r(r(memory[s0 + n * dv] * decay) + r(qkv[k0 + n] * d));
            memory[s0 + n * dv] = s;
            l[u] = r(l[u] + r(s * r(qkv[q0 + n] * params.scale)));
          }
        }
      }
    }
    parts[t] = eighth(l.x, l.y, l.z, l.w);
    workgroupBarrier();
    if (column && lane == 0u) { out[(row * params.heads + head) * dv + j] = joined(c); }
    workgroupBarrier();
    row = step.row[row].next;
  }
}
";

impl Delta<'_> {
    /// The kernel.
    #[must_use]
    pub fn job(&self) -> Job {
        let sizes = [self.key_heads, self.value_heads, self.key_dim, self.value_dim, self.share].map(|n| n as u32);
        let rest = [self.scale.to_bits(), self.qkv_width as u32, 0];
        Job {
            label: "delta",
            source: prelude(&[]) + SOURCE,
            groups: [(self.value_dim as u32).div_ceil(32), self.value_heads as u32, self.rows as u32],
            constants: sizes.into_iter().chain(rest).collect(),
            operands: [self.qkv, self.gb, self.memory, self.out].map(Region::clone).into(),
        }
    }
}
