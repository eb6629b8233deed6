//! Rows quantised on the device, to the bits of [`mod@crate::format`]: where the limbs lie, and the kernel that makes them.
//!
//! A block is quantised by integer operations alone, so the shader cannot round otherwise than the host. [`text`] gives
//! the functions to any kernel that has a block's values at hand and can leave out the way through memory.

use super::device::Gpu;
use super::error::GpuError;
use super::job::{Job, fill};
use super::region::Region;
use super::wgsl::prelude;
use crate::format::{BLOCK, EXP_MAX, EXP_MIN, Limbs};
use crate::matvec::Acts;

/// Room is made for whole groups of rows: the array's kernels take this many at a time and drop what is too much.
pub(super) const ROW_GROUP: usize = 16;
/// Threads of a workgroup.
const THREADS: usize = 256;

/// The quantiser in WGSL, over the prelude.
///
/// `q_exponent(bits of the largest magnitude)`, `q_bad(bits, exponent)`: no int8 form exists;
/// `q_words(bits of four values, exponent)`: their high limbs and their low limbs, packed (one limb: the second alone);
/// `q_scale(exponent)`; `q_word(row, limb, block, quad)`: where packed limbs of columns `4 quad ..` of a block lie among
/// a [`DeviceActs`]' limbs as words. A row's scale of a block lies at `row * Q_BLOCKS + block`.
#[must_use]
pub fn text(limbs: Limbs, cols: usize) -> String {
    let shift = limbs.max().leading_zeros() - 8;
    fill(
        TEXT,
        &[
            ("$COLS", cols.to_string()),
            ("$BLOCKS", cols.div_ceil(BLOCK).to_string()),
            ("$LIMBS", limbs.count().to_string()),
            ("$SHIFT", shift.to_string()),
            ("$LIMIT", (limbs.max() << shift).to_string()),
            ("$EXP_MIN", EXP_MIN.to_string()),
            ("$EXP_MAX", EXP_MAX.to_string()),
        ],
    )
}

const TEXT: &str = "
const Q_COLS: u32 = $COLSu;
const Q_BLOCKS: u32 = $BLOCKSu;
fn q_field(bits: u32) -> i32 { return i32((bits >> 23u) & 255u) - 150; }
fn q_integer(bits: u32) -> u32 { return select((bits & 0x7fffffu) | 0x800000u, 0u, (bits & 0x7f800000u) == 0u); }
fn q_exponent(bits: u32) -> i32 {
  let m = q_integer(bits);
  let e = q_field(bits) + $SHIFT + select(0, 1, m > $LIMITu);
  return select(max(e, $EXP_MIN), $EXP_MIN, m == 0u);
}
fn q_bad(bits: u32, e: i32) -> bool { return bits >= 0x7f800000u || e > $EXP_MAX; }
fn q_scale(e: i32) -> f32 { return bitcast<f32>(u32(min(e, $EXP_MAX) + 127) << 23u); }
fn q_value(bits: u32, e: i32) -> i32 {
  let m = q_integer(bits);
  let k = u32(min(e - q_field(bits), 31)) & 31u;
  let below_half = (1u << ((k - 1u) & 31u)) - 1u;
  let q = i32((m + below_half + ((m >> k) & 1u)) >> k);
  let sign = bitcast<i32>(bits) >> 31u;
  return (q ^ sign) - sign;
}
fn q_pack(q: vec4<i32>) -> u32 {
  let u = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
  return u.x | (u.y << 8u) | (u.z << 16u) | (u.w << 24u);
}
fn q_words(bits: vec4<u32>, e: i32) -> vec2<u32> {
  let q = vec4<i32>(q_value(bits.x, e), q_value(bits.y, e), q_value(bits.z, e), q_value(bits.w, e));
  let low = (q << vec4<u32>(24u)) >> vec4<u32>(24u);
  return vec2<u32>(q_pack((q - low) >> vec4<u32>(8u)), q_pack(low));
}
fn q_word(row: u32, limb: u32, block: u32, quad: u32) -> u32 {
  return (((row * $LIMBSu + limb) * 2u + (quad >> 2u)) * Q_BLOCKS + block) * 4u + (quad & 3u);
}
";

/// Where limbs and scales go: bindings `first` and `first + 1`. With `shuffles` also `q_quad(row, block, quad, bits of four
/// values, live, command)`, which writes them: eight neighbouring threads of a subgroup, all of them at work, hold a
/// block's quads in order.
pub(super) fn outputs(limbs: Limbs, first: usize, shuffles: bool) -> String {
    let two = limbs == Limbs::Two;
    let high = if two { "limbs[q_word(row, 0u, block, quad)] = w.x;" } else { "" };
    fill(
        &[OUTPUTS, if shuffles { QUAD } else { "" }].concat(),
        &[
            ("$LIMBS", first.to_string()),
            ("$SCALES", (first + 1).to_string()),
            ("$HIGH", high.to_owned()),
            ("$LOW", usize::from(two).to_string()),
        ],
    )
}

const OUTPUTS: &str = "
@group(0) @binding($LIMBS) var<storage, read_write> limbs: array<u32>;
@group(0) @binding($SCALES) var<storage, read_write> scales: array<f32>;
fn largest(v: vec4<u32>) -> u32 {
  let m = v & vec4<u32>(0x7fffffffu);
  return max(max(m.x, m.y), max(m.z, m.w));
}
fn put(row: u32, block: u32, quad: u32, v: vec4<u32>, e: i32) {
  let w = q_words(v, e);
  $HIGH
  limbs[q_word(row, $LOWu, block, quad)] = w.y;
}
";

const QUAD: &str = "
fn q_quad(row: u32, block: u32, quad: u32, v: vec4<u32>, live: bool, command: u32) {
  var m = largest(v);
  m = max(m, subgroupShuffleXor(m, 1u));
  m = max(m, subgroupShuffleXor(m, 2u));
  m = max(m, subgroupShuffleXor(m, 4u));
  let e = q_exponent(m);
  if (!live || block >= Q_BLOCKS) { return; }
  if (q_bad(m, e)) { fail(command); }
  put(row, block, quad, v, e);
  if (quad == 0u) { scales[row * Q_BLOCKS + block] = q_scale(e); }
}
";

/// Quantised rows in device memory.
///
/// Limbs lie `[rows][limbs, high first][2 halves of a block][blocks]`, 16 bytes each; scales `[rows][blocks]`, f32. There
/// is room for a whole number of row groups.
#[derive(Clone, Debug)]
pub struct DeviceActs {
    limbs: Region,
    scales: Region,
    rows: usize,
    cols: usize,
    format: Limbs,
}

impl DeviceActs {
    /// Room for `rows` x `cols`.
    ///
    /// # Errors
    /// As [`Gpu::region`].
    pub fn new(gpu: &Gpu, rows: usize, cols: usize, format: Limbs) -> Result<Self, GpuError> {
        let (limbs, scales) = Self::sizes(rows, cols, format);
        let (limbs, scales) = (gpu.region("limbs", limbs)?, gpu.region("block scales", scales)?);
        Ok(Self { limbs, scales, rows, cols, format })
    }

    /// Another shape over the same memory.
    ///
    /// # Errors
    /// It does not fit.
    pub fn shaped(&self, rows: usize, cols: usize, format: Limbs) -> Result<Self, GpuError> {
        let (limbs, scales) = Self::sizes(rows, cols, format);
        let (limbs, scales) = (self.limbs.part(0, limbs)?, self.scales.part(0, scales)?);
        Ok(Self { limbs, scales, rows, cols, format })
    }

    /// Rows that the host has quantised.
    ///
    /// # Errors
    /// As [`Gpu::region`].
    pub fn upload(gpu: &Gpu, acts: &Acts) -> Result<Self, GpuError> {
        let format = if acts.limbs() == 1 { Limbs::One } else { Limbs::Two };
        let device = Self::new(gpu, acts.rows(), acts.cols(), format)?;
        let (blocks, parts) = (acts.blocks(), acts.rows() * acts.limbs());
        let mut bytes = vec![0; parts * blocks * BLOCK];
        for (at, limb) in acts.q8().chunks_exact(BLOCK).enumerate() {
            let (block, part) =
                (at / acts.limbs() % blocks, at / acts.limbs() / blocks * acts.limbs() + at % acts.limbs());
            for (half, values) in limb.chunks_exact(16).enumerate() {
                let to = ((part * 2 + half) * blocks + block) * 16;
                bytes[to..][..16].copy_from_slice(bytemuck::cast_slice(values));
            }
        }
        gpu.write(&device.limbs, 0, &bytes)?;
        gpu.write(&device.scales, 0, bytemuck::cast_slice(acts.scale()))?;
        Ok(device)
    }

    /// Bytes of limbs and of scales.
    #[must_use]
    pub fn sizes(rows: usize, cols: usize, format: Limbs) -> (u64, u64) {
        let blocks = (rows.next_multiple_of(ROW_GROUP) * cols.div_ceil(BLOCK)) as u64;
        (blocks * (BLOCK * format.count()) as u64, blocks * 4)
    }

    /// The limbs.
    #[must_use]
    pub fn limbs(&self) -> &Region {
        &self.limbs
    }

    /// The block scales.
    #[must_use]
    pub fn scales(&self) -> &Region {
        &self.scales
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One limb or two.
    #[must_use]
    pub fn format(&self) -> Limbs {
        self.format
    }
}

/// Rows of f32 into limbs. A block that has no int8 form fails the command.
#[derive(Clone, Copy, Debug)]
pub struct QuantiseRun<'a> {
    /// Number of the command, for a fault.
    pub command: u32,
    /// f32; row `t` starts at element `offset + t * stride`.
    pub x: &'a Region,
    /// First element of the first row.
    pub offset: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Rows, columns and limbs; written.
    pub acts: &'a DeviceActs,
}

impl QuantiseRun<'_> {
    /// The kernel.
    #[must_use]
    pub fn job(&self, gpu: &Gpu) -> Job {
        let acts = self.acts;
        let shuffles = gpu.facts().subgroup_size().filter(|s| *s >= 8 && THREADS.is_multiple_of(*s as usize));
        let quads = acts.cols.div_ceil(BLOCK) * 8;
        let threads = if shuffles.is_some() { quads } else { quads / 8 };
        Job {
            label: "quantise",
            source: source(acts.format, acts.cols, shuffles),
            groups: [threads.div_ceil(THREADS) as u32, acts.rows as u32, 1],
            constants: vec![self.command, self.offset as u32, self.stride as u32, 0],
            operands: vec![self.x.clone(), acts.limbs.clone(), acts.scales.clone()],
        }
    }
}

/// Eight threads a block that shuffle their maxima, or a thread a block.
fn source(limbs: Limbs, cols: usize, shuffles: Option<u32>) -> String {
    let body = if shuffles.is_some() { SHUFFLED } else { WHOLE };
    let values = [("$THREADS", THREADS.to_string()), ("$SUBGROUP", shuffles.unwrap_or(0).to_string())];
    prelude(&[]) + &text(limbs, cols) + COMMON + &outputs(limbs, 3, shuffles.is_some()) + &fill(body, &values)
}

const COMMON: &str = "
struct Params { command: u32, offset: u32, stride: u32, spare: u32 }
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> x: array<u32>;
fn value(row: u32, col: u32) -> u32 {
  let at = params.offset + row * params.stride + min(col, Q_COLS - 1u);
  return select(0u, x[at], col < Q_COLS);
}
fn values(row: u32, col: u32) -> vec4<u32> {
  return vec4<u32>(value(row, col), value(row, col + 1u), value(row, col + 2u), value(row, col + 3u));
}
";

const SHUFFLED: &str = "
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_id) part: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let live = begin();
  let at = group.x * $THREADSu + part * $SUBGROUPu + lane;
  let row = group.y;
  let block = at / 8u;
  let quad = at % 8u;
  q_quad(row, block, quad, values(row, block * 32u + quad * 4u), live, params.command);
}
";

const WHOLE: &str = "
@compute @workgroup_size($THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let block = id.x;
  let row = id.y;
  if (!begin() || block >= Q_BLOCKS) { return; }
  var m = 0u;
  for (var quad = 0u; quad < 8u; quad += 1u) { m = max(m, largest(values(row, block * 32u + quad * 4u))); }
  let e = q_exponent(m);
  if (q_bad(m, e)) { fail(params.command); }
  for (var quad = 0u; quad < 8u; quad += 1u) { put(row, block, quad, values(row, block * 32u + quad * 4u), e); }
  scales[row * Q_BLOCKS + block] = q_scale(e);
}
";
