//! The convolution unit on a device: a thread a channel takes its sequence's rows in order through the ring.

use super::job::Job;
use super::region::Region;
use super::wgsl::prelude;
use crate::math::Function;

/// One convolution over every row of a step.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// Token-rows.
    pub rows: usize,
    /// Channels.
    pub channels: usize,
    /// Taps, the row's own input included.
    pub taps: usize,
    /// Activation.
    pub act: Function,
    /// Inputs, `[rows, channels]`.
    pub x: &'a Region,
    /// Taps, oldest first `[channels, taps]`.
    pub weight: &'a Region,
    /// Bias `[channels]`.
    pub bias: Option<&'a Region>,
    /// Past inputs, `[states, taps - 1, channels]`: position `p` in row `p mod (taps - 1)`, zero before a sequence's start.
    pub ring: &'a Region,
    /// Outputs, `[rows, channels]`.
    pub out: &'a Region,
}

const SOURCE: &str = "
@group(0) @binding(1) var<storage, read> params: vec4<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> ring: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
$BINDING
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  let channels = params.x;
  let taps = params.y;
  let past = taps - 1u;
  let c = at.x;
  if (!begin() || c >= channels || step.row[at.y].first == 0u) { return; }
  var row = at.y;
  loop {
    let position = step.row[row].position;
    let base = step.row[row].state * past * channels + c;
    let input = x[row * channels + c];
    var s = 0.0;
    for (var tap = 0u; tap < taps; tap += 1u) {
      var v = input;
      if (tap < past) { v = ring[base + ((position + tap) % past) * channels]; }
      let m = r(weight[c * taps + tap] * v);
      if (tap == 0u) { s = m; } else { s = r(s + m); }
    }
    $BIAS
    out[row * channels + c] = f_$ACT(s);
    if (past > 0u) { ring[base + (position % max(past, 1u)) * channels] = input; }
    row = step.row[row].next;
    if (row == NONE) { break; }
  }
}
";

impl Conv<'_> {
    /// The kernel.
    #[must_use]
    pub fn job(&self) -> Job {
        let (binding, bias) = match self.bias {
            Some(_) => ("@group(0) @binding(6) var<storage, read> bias: array<f32>;", "s = r(s + bias[c]);"),
            None => ("", ""),
        };
        let values =
            [("$BINDING", binding.to_owned()), ("$BIAS", bias.to_owned()), ("$ACT", self.act.name().to_owned())];
        let operands = [self.x, self.weight, self.ring, self.out].into_iter().chain(self.bias);
        Job {
            label: "conv",
            source: prelude(&[self.act]) + &super::job::fill(SOURCE, &values),
            groups: [(self.channels as u32).div_ceil(64), self.rows as u32, 1],
            constants: vec![self.channels as u32, self.taps as u32, 0, 0],
            operands: operands.cloned().collect(),
        }
    }
}
