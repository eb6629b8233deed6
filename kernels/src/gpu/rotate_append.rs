//! Query and key heads rotated and the cache extended by the rotated keys, in one kernel: a workgroup a head.
//!
//! The rotation is printed from the table of micro-programs, so it is the one that runs alone; a key head's results also
//! go to workgroup memory, from where they are quantised.

use super::cache::{Append, BANK, append_text, fits, format_text};
use super::error::GpuError;
use super::job::Job;
use super::region::Region;
use super::vector::Shader;
use super::wgsl::prelude;
use crate::format::BLOCK;
use crate::math::Function;
use crate::vector::micro::{Micro, Start, Step};
use crate::vector::table;
use std::fmt::Write as _;

/// Threads of a workgroup.
const THREADS: u32 = 64;

/// Rotate a step's rows, then append them to their caches.
#[derive(Clone, Copy, Debug)]
pub struct RotateAppend<'a> {
    /// What is appended, to a bank that has all key heads and every state of the step.
    pub append: Append<'a>,
    /// Query heads.
    pub heads: usize,
    /// Rotated dimensions of a head, from its first on.
    pub rot: usize,
    /// Pairs are (2i, 2i + 1) when true, (i, i + rot / 2) when false.
    pub interleaved: bool,
    /// Multiplies the query heads.
    pub scale: f32,
    /// `[positions, rot / 2]`.
    pub cos: &'a Region,
    /// `[positions, rot / 2]`.
    pub sin: &'a Region,
}

impl RotateAppend<'_> {
    /// The kernel.
    ///
    /// # Errors
    /// A head is wider than a workgroup has room for.
    pub fn job(&self) -> Result<Job, GpuError> {
        let Append { rows, qkv, bank, .. } = self.append;
        fits(bank.layout.head_dim().div_ceil(BLOCK) + bank.layout.v_dim().div_ceil(BLOCK))?;
        Ok(Job {
            label: "rope + cache_append",
            source: self.source(),
            groups: [(bank.heads + self.heads) as u32, rows as u32, 1],
            constants: self.append.words(),
            operands: [qkv, bank.memory, self.cos, self.sin].map(Region::clone).into(),
        })
    }

    fn source(&self) -> String {
        let (dim, pairs) = (self.append.bank.layout.head_dim(), self.rot / 2);
        let (query, key) = if self.interleaved {
            (&table::ROPE_PAIRS_QUERY, &table::ROPE_PAIRS_KEY)
        } else {
            (&table::ROPE_HALF_QUERY, &table::ROPE_HALF_KEY)
        };
        let mut text = prelude(&[]) + &format_text() + BANK + &append_text();
        let _ = writeln!(
            text,
            "struct Params {{ bank: Bank, width: u32, keys: u32, values: u32, command: u32 }}\n\
             @group(0) @binding(1) var<storage, read> params: Params;\n\
             @group(0) @binding(2) var<storage, read_write> qkv: array<f32>;\n\
             @group(0) @binding(3) var<storage, read_write> cache: array<atomic<u32>>;\n\
             @group(0) @binding(4) var<storage, read> m1: array<f32>;\n\
             @group(0) @binding(5) var<storage, read> m2: array<f32>;\n\
             var<workgroup> key: array<f32, {dim}>;\n\
             fn key_bits(at: u32, i: u32, n: u32) -> u32 {{ return select(0u, bitcast<u32>(key[min(i, n - 1u)]), i < n); }}\n\
             @compute @workgroup_size({THREADS}) fn main(@builtin(workgroup_id) group: vec3<u32>, \
             @builtin(local_invocation_index) t: u32) {{\n\
             \x20 let row = group.y;\n  let state = step.row[row].state;\n  let live = begin() && mine(state);\n\
             \x20 let width = {pairs}u;\n  let o1 = step.row[row].position * width;\n  let o2 = o1;\n\
             \x20 if (group.x >= params.bank.heads) {{\n\
             \x20   let o0 = row * params.width + (group.x - params.bank.heads) * {dim}u;\n\
             \x20   for (var i = t; i < width; i += {THREADS}u) {{"
        );
        self.rotation(&mut text, query, false);
        let scale = self.scale.to_bits();
        let _ = writeln!(
            text,
            "    }}\n    for (var i = {}u + t; i < {dim}u; i += {THREADS}u) {{\n\
             \x20     if (live) {{ qkv[o0 + i] = r(qkv[o0 + i] * bitcast<f32>({scale:#x}u ^ zero)); }}\n    }}\n  }} else {{\n\
             \x20   let o0 = row * params.width + params.keys + group.x * {dim}u;\n\
             \x20   for (var i = t; i < width; i += {THREADS}u) {{",
            self.rot
        );
        self.rotation(&mut text, key, true);
        let _ = writeln!(
            text,
            "    }}\n    for (var i = {}u + t; i < {dim}u; i += {THREADS}u) {{ key[i] = qkv[o0 + i]; }}\n\
             \x20   workgroupBarrier();\n    append(row, group.x, state, t, live);\n  }}\n}}",
            self.rot
        );
        text
    }

    /// The steps of a rotation for pair `i` of the head at `o0`.
    fn rotation(&self, text: &mut String, micro: &Micro, keep: bool) {
        let shader = Shader { micro, act: Function::Relu, threads: THREADS };
        for (at, step) in micro.steps.iter().enumerate() {
            let memory = |element: String| element.replace("m0[", "qkv[");
            let value = match *step {
                Step::Load(place) => memory(Shader::element(place)),
                Step::Store(place, v) => {
                    let _ = writeln!(text, "      if (live) {{ {} = v{v}; }}", memory(Shader::element(place)));
                    if keep {
                        let start = match place.start {
                            Start::First => "0u",
                            Start::Odd => "1u",
                            Start::Second => "width",
                        };
                        let _ = writeln!(text, "      key[{start} + {}u * i] = v{v};", place.step);
                    }
                    format!("v{v}")
                }
                Step::Param(_) => format!("bitcast<f32>({:#x}u ^ zero)", self.scale.to_bits()),
                step => shader.value(step),
            };
            let _ = writeln!(text, "      let v{at} = {value};");
        }
    }
}
