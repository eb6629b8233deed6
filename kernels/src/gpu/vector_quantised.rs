//! Micro-programs whose output is quantised while it is in registers: what the array unit takes next goes to memory as
//! limbs, and as f32 for whoever else reads it.
//!
//! A thread holds four neighbouring elements at a time, as the quantiser takes them, and loads all that it needs before
//! it computes: neither a reduction nor a store stands between the loads. Where operands lie, and the command's
//! parameters, are constants of the text, for a word that has to be loaded first costs as much as the work of a row.

use super::device::Gpu;
use super::job::Job;
use super::quantise::{self, DeviceActs};
use super::vector::{Bound, CHUNK, FLAT, MicroRun, Shader};
use super::wgsl::prelude;
use crate::format::BLOCK;
use crate::vector::micro::{Access, Place, Start, Step};
use std::fmt::Write as _;

/// Elements of a quad.
const QUAD: usize = 4;
/// Words that a thread loads at the most.
const MOST_LOADS: usize = 64;
/// Most threads of a workgroup.
const MOST_THREADS: usize = 1024;
/// Lanes of a sum.
const LANES: u32 = 32;
/// Elements that a lane's thread loads while it adds those before.
const BATCH: usize = 16;

/// A micro-program with its output quantised.
pub(super) struct Quantised<'a> {
    run: &'a MicroRun<'a>,
    bound: &'a [Bound<'a>],
    acts: &'a DeviceActs,
    shader: Shader<'a>,
    /// Threads of a subgroup.
    subgroup: u32,
    /// Heads that a workgroup runs over: all where nothing is reduced, else one.
    heads: usize,
    /// Quads of a thread.
    quads: usize,
    /// Quads of every operand lie at multiples of a quad, so each is one load.
    wide: bool,
}

impl<'a> Quantised<'a> {
    pub(super) fn of(run: &'a MicroRun<'a>, gpu: &Gpu, bound: &'a [Bound<'a>], acts: &'a DeviceActs) -> Option<Self> {
        let mut shader = Shader::of(run.micro, run.act, run.width);
        if run.micro.steps.iter().any(|s| matches!(s, Step::Max(_))) {
            return None;
        }
        if shader.reduces() {
            shader.threads = threads(gpu, run.width, buffers(&shader)) as u32;
        }
        let size = gpu.facts().subgroup_size().filter(|s| *s >= 8 && shader.threads.is_multiple_of(*s))?;
        let n = run.heads * run.width;
        let (heads, quads) =
            if shader.reduces() { (1, run.width.div_ceil(BLOCK) * 8) } else { (run.heads, shader.threads as usize) };
        let quads = quads.div_ceil(shader.threads as usize);
        let mut this = Self { run, bound, acts, shader, subgroup: size, heads, quads, wide: false };
        this.wide = this.in_quads();
        let out = this.output()?;
        let whole = run.heads == 1 || (run.width.is_multiple_of(BLOCK) && bound.get(out)?.head == run.width);
        let few = this.places().len() * QUAD * quads <= MOST_LOADS;
        (acts.cols() == n && acts.rows() == run.rows && run.first_lane == 0 && whole && few).then_some(this)
    }

    /// The one operand that is written, once, in order, and not read.
    fn output(&self) -> Option<usize> {
        let steps = self.run.micro.steps;
        let stores: Vec<&Place> =
            steps.iter().filter_map(|s| if let Step::Store(p, _) = s { Some(p) } else { None }).collect();
        let [Place { operand, start: Start::First, step: 1 }] = stores[..] else { return None };
        let heads = steps.iter().any(|s| matches!(s, Step::StoreHead(..)));
        let info = self.run.micro.operands.get(usize::from(*operand))?;
        (!heads && info.access == Access::Out).then_some((*operand).into())
    }

    fn in_quads(&self) -> bool {
        let whole = |n: usize| n.is_multiple_of(QUAD);
        let at = |o: &Bound<'_>| [o.offset, o.row, o.head, o.position].into_iter().all(whole);
        let heads = self.run.micro.steps.iter().any(|s| matches!(s, Step::LoadHead(_)));
        let next = |p: &Place| p.step == 1 && p.start != Start::Odd;
        let aligned = |o: &Bound<'_>| o.region.offset().is_multiple_of(4 * QUAD as u64);
        whole(self.run.width)
            && self.bound.iter().all(|o| at(o) && aligned(o))
            && !heads
            && self.places().iter().all(next)
    }

    /// Elements that lie in workgroup memory at a time.
    fn chunk(&self) -> usize {
        CHUNK.max(QUAD * self.shader.threads as usize)
    }

    /// What is loaded for an element.
    fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for step in self.run.micro.steps {
            if let Step::Load(place) = step
                && !places.contains(place)
            {
                places.push(*place);
            }
        }
        places
    }

    pub(super) fn job(&self, command: u32) -> Job {
        let MicroRun { rows, heads, width, .. } = *self.run;
        let all = (heads * width).div_ceil(BLOCK) * 8;
        let groups = if self.shader.reduces() { heads } else { all.div_ceil(FLAT as usize) };
        let operands = self.bound.iter().map(|o| o.region).chain([self.acts.limbs(), self.acts.scales()]);
        Job {
            label: self.run.micro.name,
            source: self.source(),
            groups: [groups as u32, rows as u32, 1],
            constants: vec![command, 0, 0, 0],
            operands: operands.cloned().collect(),
        }
    }

    fn source(&self) -> String {
        let mut text = prelude(&self.shader.functions());
        text += &quantise::text(self.acts.format(), self.acts.cols());
        text += "@group(0) @binding(1) var<storage, read> params: vec4<u32>;\n";
        for (k, operand) in self.run.micro.operands.iter().enumerate() {
            let access = if operand.access == Access::In { "read" } else { "read_write" };
            let of = if self.wide { "vec4<f32>" } else { "f32" };
            let _ = writeln!(text, "@group(0) @binding({}) var<storage, {access}> m{k}: array<{of}>;", k + 2);
        }
        text += &quantise::outputs(self.acts.format(), self.run.micro.operands.len() + 2, true);
        let threads = self.shader.threads;
        for j in 0..buffers(&self.shader) {
            let _ = writeln!(text, "var<workgroup> buf{j}: array<vec4<f32>, {}>;", self.chunk() / QUAD);
        }
        if self.shader.reduces() {
            text += "var<workgroup> red: array<f32, 64>;\nfn larger(x: f32, y: f32) -> f32 { return select(x, y, x < y); }\n";
        }
        let _ = writeln!(
            text,
            "@compute @workgroup_size({threads}) fn main(@builtin(workgroup_id) group: vec3<u32>, \
             @builtin(subgroup_id) piece: u32, @builtin(subgroup_invocation_id) lane: u32) {{\n\
             \x20 let live = begin_for(params.x);\n  let t = piece * {}u + lane;\n  let row = group.y;\n  let width = {}u;",
            self.subgroup, self.run.width
        );
        if self.shader.reduces() {
            text += "  let head = group.x;\n  let first = t;\n";
        } else {
            let _ = writeln!(text, "  let first = group.x * {FLAT}u + t;");
            let head = if self.heads == 1 { "0u" } else { "min(4u * first / width, HEADS - 1u)" };
            let _ = writeln!(text, "  let head = {};", head.replace("HEADS", &format!("{}u", self.heads)));
        }
        self.bases(&mut text);
        self.loads(&mut text);
        self.steps(&mut text);
        self.ends(&mut text);
        text + "}\n"
    }

    fn bases(&self, text: &mut String) {
        if self.bound.iter().any(|o| o.position != 0) {
            text.push_str("  let position = step.row[row].position;\n");
        }
        for (k, o) in self.bound.iter().enumerate() {
            let _ = write!(text, "  let o{k} = {}u", o.offset);
            for (name, by) in [("row", o.row), ("head", o.head), ("position", o.position)] {
                if by != 0 {
                    let _ = write!(text, " + {name} * {by}u");
                }
            }
            text.push_str(";\n");
        }
    }

    /// Every element that the thread needs; past a row's end the last one again.
    fn loads(&self, text: &mut String) {
        let places = self.places();
        for j in 0..self.quads {
            let quad = if j == 0 { "first".to_owned() } else { format!("first + {}u", j as u32 * self.shader.threads) };
            let start = if self.heads > 1 { " - head * width" } else { "" };
            let _ = writeln!(text, "  let at{j} = 4u * ({quad}){start};");
            for c in 0..QUAD {
                let _ = writeln!(text, "  let in{j}_{c} = at{j} + {c}u < width;");
                for (n, place) in places.iter().enumerate() {
                    if self.wide {
                        if c == 0 {
                            let start = if place.start == Start::Second { " + width" } else { "" };
                            let first = format!("o{}{start} + min(at{j}, width - 4u)", place.operand);
                            let _ = writeln!(text, "  let q{n}_{j} = m{}[({first}) / 4u];", place.operand);
                        }
                        let _ = writeln!(text, "  let l{n}_{j}_{c} = q{n}_{j}[{c}];");
                        continue;
                    }
                    let element = Shader::element(*place);
                    let index = format!("min(at{j} + {c}u, width - 1u)");
                    let element = element.replace("* i]", &format!("* {index}]"));
                    let _ = writeln!(text, "  let l{n}_{j}_{c} = {element};");
                }
            }
        }
    }

    /// All steps; what is stored stays in `w`.
    fn steps(&self, text: &mut String) {
        for j in 0..self.quads {
            let _ = writeln!(text, "  var w{j} = vec4<f32>(0.0, 0.0, 0.0, 0.0);");
        }
        let micro = self.run.micro;
        let mut at = 0;
        while at < micro.steps.len() {
            let pass = micro.passes[at];
            if pass == 0 {
                self.step(text, at, (0, 0));
                at += 1;
                continue;
            }
            let end = (at..micro.steps.len()).find(|s| micro.passes[*s] != pass).unwrap_or(micro.steps.len());
            self.pass(text, at, end);
            at = end;
        }
    }

    fn pass(&self, text: &mut String, from: usize, to: usize) {
        let micro = self.run.micro;
        let sums: Vec<usize> = self.shader.reductions(micro.passes[from]).collect();
        for at in &sums {
            let _ = writeln!(text, "  var part{at} = 0.0;");
        }
        let threads = self.shader.threads as usize;
        let each = if sums.is_empty() { self.quads } else { (self.chunk() / (QUAD * threads)).max(1) };
        for chunk in (0..self.quads).step_by(each) {
            let last = (chunk + each).min(self.quads);
            text.push_str("  {\n");
            for j in chunk..last {
                for n in 0..sums.len() {
                    let _ = writeln!(text, "    var sum{n} = vec4<f32>(0.0, 0.0, 0.0, 0.0);");
                }
                for c in 0..QUAD {
                    let _ = writeln!(text, "    {{");
                    for at in (from..to).filter(|at| !sums.contains(at)) {
                        self.step(text, at, (j, c));
                    }
                    for (n, at) in sums.iter().enumerate() {
                        if let Step::Sum(a) = micro.steps[*at] {
                            let _ = writeln!(text, "    sum{n}[{c}] = v{a};");
                        }
                    }
                    text.push_str("    }\n");
                }
                for n in 0..sums.len() {
                    let place = format!("(at{j} - {}u) / 4u", chunk * QUAD * threads);
                    let _ = writeln!(text, "    if (in{j}_0) {{ buf{n}[{place}] = sum{n}; }}");
                }
            }
            if !sums.is_empty() {
                let n = self.run.width.saturating_sub(chunk * QUAD * threads).min(each * QUAD * threads);
                self.add(text, &sums, n, last == self.quads);
            }
            text.push_str("  }\n");
        }
        if self.subgroup != LANES {
            self.shader.fold(text, &sums);
            return;
        }
        // The lanes are one subgroup: it folds them, and tells the others.
        for at in &sums {
            let round = self.rounds(*at);
            for half in [16, 8, 4, 2, 1] {
                let _ = writeln!(text, "  part{at} = {round}(part{at} + subgroupShuffleXor(part{at}, {half}u));");
            }
            let _ = writeln!(text, "  if (t == 0u) {{ red[{at}] = part{at}; }}");
        }
        if !sums.is_empty() {
            text.push_str("  workgroupBarrier();\n");
        }
        for at in &sums {
            let _ = writeln!(text, "  let v{at} = red[{at}];");
        }
    }

    fn rounds(&self, sum: usize) -> &'static str {
        if let Step::Sum(a) = self.run.micro.steps[sum] { self.shader.round(a) } else { "r" }
    }

    /// `n` elements in workgroup memory go to the lanes of the sums.
    fn add(&self, text: &mut String, sums: &[usize], n: usize, last: bool) {
        text.push_str("    workgroupBarrier();\n    if (t < 32u) {\n");
        let laps = n / (LANES as usize * BATCH);
        for (j, at) in sums.iter().enumerate() {
            let round = self.rounds(*at);
            let load = |text: &mut String, name: &str, from: &str| {
                for i in 0..BATCH {
                    let place = format!("({from} + {}u + t) / 4u", LANES as usize * i);
                    let _ = writeln!(text, "      {name}{i} = buf{j}[{place}][t % 4u];");
                }
            };
            text.push_str("    {\n");
            if laps > 0 {
                for i in 0..BATCH {
                    let _ = writeln!(text, "      var s{i}: f32;\n      var n{i}: f32;");
                }
                load(text, "s", "0u");
                let _ = writeln!(text, "      for (var k = 0u; k < {laps}u; k += 1u) {{");
                // Past the last lap the same elements are loaded again, for nobody.
                load(text, "n", &format!("min(k + 1u, {}u) * {}u", laps - 1, LANES as usize * BATCH));
                for i in 0..BATCH {
                    let _ = writeln!(text, "      part{at} = {round}(part{at} + s{i});");
                }
                for i in 0..BATCH {
                    let _ = writeln!(text, "      s{i} = n{i};");
                }
                text.push_str("      }\n");
            }
            let _ = writeln!(
                text,
                "      for (var k = {}u + t; k < {n}u; k += {LANES}u) {{ part{at} = {round}(part{at} + buf{j}[k / 4u][t % 4u]); }}\n    }}",
                laps * LANES as usize * BATCH
            );
        }
        text.push_str("    }\n");
        if !last {
            text.push_str("    workgroupBarrier();\n");
        }
    }

    /// One step for element `c` of quad `j`.
    fn step(&self, text: &mut String, at: usize, (j, c): (usize, usize)) {
        let value = match self.run.micro.steps[at] {
            Step::Load(place) => {
                let n = self.places().iter().position(|p| *p == place).unwrap_or(0);
                format!("l{n}_{j}_{c}")
            }
            Step::Store(_, v) => {
                let _ = writeln!(text, "    w{j}[{c}] = v{v};");
                format!("v{v}")
            }
            Step::LoadHead(o) => format!("m{o}[o{o}]"),
            Step::Param(p) => {
                let bits = self.run.params.get(usize::from(p)).map_or(0, |p| p.to_bits());
                format!("bitcast<f32>({bits:#x}u ^ zero)")
            }
            // Made where their pass ends; no output is quantised that has head values.
            Step::Sum(_) | Step::Max(_) | Step::StoreHead(..) => return,
            step => self.shader.value(step),
        };
        let _ = writeln!(text, "    let v{at} = {value};");
    }

    /// The quads' limbs, then the elements themselves.
    fn ends(&self, text: &mut String) {
        let out = self.output().unwrap_or(0);
        let block =
            if self.heads == 1 { format!("head * {}u + ", self.run.width.div_ceil(BLOCK)) } else { String::new() };
        let padded = self.run.width.next_multiple_of(BLOCK);
        for j in 0..self.quads {
            let quad = format!("(first + {}u)", j as u32 * self.shader.threads);
            let bits: Vec<String> =
                (0..QUAD).map(|c| format!("select(0u, bitcast<u32>(w{j}[{c}]), in{j}_{c})")).collect();
            let _ = writeln!(
                text,
                "  let bits{j} = vec4<u32>({});\n  q_quad(row, {block}{quad} / 8u, {quad} % 8u, bits{j}, live && at{j} < {padded}u, params.x);",
                bits.join(", ")
            );
            if self.wide {
                let _ = writeln!(text, "  if (live && in{j}_0) {{ m{out}[(o{out} + at{j}) / 4u] = w{j}; }}");
                continue;
            }
            for c in 0..QUAD {
                let _ = writeln!(text, "  if (live && in{j}_{c}) {{ m{out}[o{out} + at{j} + {c}u] = w{j}[{c}]; }}");
            }
        }
    }
}

/// Sums that a pass makes at the most.
fn buffers(shader: &Shader<'_>) -> usize {
    let passes = shader.micro.passes.iter().copied().max().unwrap_or(0);
    (1..=passes).map(|pass| shader.reductions(pass).count()).max().unwrap_or(0)
}

/// Threads of a row of this width: a quad each, as many as the device has room for.
fn threads(gpu: &Gpu, width: usize, buffers: usize) -> usize {
    let limits = gpu.limits();
    let most = limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x) as usize;
    let room = (limits.max_compute_workgroup_storage_size as usize).saturating_sub(512) / (4 * QUAD * buffers.max(1));
    let most = most.min(room).clamp(64, MOST_THREADS);
    let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
    (width.div_ceil(BLOCK) * 8).next_power_of_two().clamp(64, most)
}
