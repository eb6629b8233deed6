//! Micro-programs as WGSL: a shader is printed from the table's steps, so a new entry needs no shader of its own.
//!
//! A program without reductions runs a thread an element. One with reductions runs a workgroup a head: the elements of a
//! pass are made by all threads and laid into workgroup memory, 32 threads sum their lanes in ascending order, and every
//! thread folds the lanes by the halving tree. Steps on a head's value run on every thread alike.

use super::device::Gpu;
use super::job::Job;
use super::quantise::DeviceActs;
use super::region::Region;
use super::vector_quantised::Quantised;
use super::wgsl::prelude;
use crate::math::Function;
use crate::vector::micro::{Access, Level, Micro, Place, Start, Step, level};
use std::fmt::Write as _;

/// Operands that a micro-program may have.
pub const MOST_OPERANDS: usize = 6;
/// Words of a run's parameters.
pub const PARAM_WORDS: usize = 8 + 4 * MOST_OPERANDS;
/// Elements that lie in workgroup memory at a time; a multiple of 32.
pub(super) const CHUNK: usize = 2048;
/// Threads of a shader without reductions.
pub(super) const FLAT: u32 = 64;
/// Elements that a lane's thread loads before it adds the first.
const BATCH: usize = 16;

/// Where an operand lies: its region, and how its elements are found in it.
#[derive(Clone, Copy, Debug)]
pub struct Bound<'a> {
    /// Memory.
    pub region: &'a Region,
    /// First element.
    pub offset: usize,
    /// Elements from one token-row to the next; 0 where all share the values.
    pub row: usize,
    /// Elements from one head to the next; 0 where all share the values.
    pub head: usize,
    /// Elements from one position to the next: a rotary table, learned positions.
    pub position: usize,
}

impl<'a> Bound<'a> {
    /// An operand whose rows follow each other.
    #[must_use]
    pub fn rows(region: &'a Region, row: usize, head: usize) -> Self {
        Self { region, offset: 0, row, head, position: 0 }
    }

    /// An operand that all rows and heads share.
    #[must_use]
    pub fn shared(region: &'a Region) -> Self {
        Self { region, offset: 0, row: 0, head: 0, position: 0 }
    }

    /// An operand with a row a position.
    #[must_use]
    pub fn by_position(region: &'a Region, position: usize) -> Self {
        Self { region, offset: 0, row: 0, head: 0, position }
    }

    /// The same from another element on.
    #[must_use]
    pub fn from(self, offset: usize) -> Self {
        Self { offset: self.offset + offset, ..self }
    }
}

/// One run of a micro-program over every row of a step.
#[derive(Clone, Copy, Debug)]
pub struct MicroRun<'a> {
    /// The program.
    pub micro: &'a Micro,
    /// Token-rows.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// The command's parameters.
    pub params: &'a [f32],
    /// The command's activation.
    pub act: Function,
    /// Lane of a sum's first element.
    pub first_lane: usize,
}

impl MicroRun<'_> {
    /// The kernel over its operands.
    #[must_use]
    pub fn job(&self, operands: &[Bound<'_>]) -> Job {
        let mut words = vec![0; PARAM_WORDS];
        words[..4].copy_from_slice(&[self.heads as u32, self.width as u32, self.first_lane as u32, 0]);
        for (word, p) in words[4..8].iter_mut().zip(self.params) {
            *word = p.to_bits();
        }
        for (words, o) in words[8..].chunks_exact_mut(4).zip(operands) {
            words.copy_from_slice(&[o.offset as u32, o.row as u32, o.head as u32, o.position as u32]);
        }
        let shader = Shader::of(self.micro, self.act, self.width);
        let groups = if shader.reduces() {
            [self.heads as u32, self.rows as u32, 1]
        } else {
            [((self.heads * self.width) as u32).div_ceil(FLAT), self.rows as u32, 1]
        };
        let operands = operands.iter().map(|o| o.region.clone()).collect();
        Job { label: self.micro.name, source: shader.source(), groups, constants: words, operands }
    }

    /// The kernel over its operands that also writes its output quantised, as the operand of command `command`; `None`
    /// where the device has no subgroups of one size, or the output is no row of whole blocks in one piece.
    #[must_use]
    pub fn quantised(&self, gpu: &Gpu, operands: &[Bound<'_>], command: u32, acts: &DeviceActs) -> Option<Job> {
        Quantised::of(self, gpu, operands, acts).map(|kernel| kernel.job(command))
    }
}

/// The shader of a micro-program.
pub(super) struct Shader<'a> {
    pub(super) micro: &'a Micro,
    pub(super) act: Function,
    pub(super) threads: u32,
}

impl<'a> Shader<'a> {
    pub(super) fn of(micro: &'a Micro, act: Function, width: usize) -> Self {
        let reduces = micro.steps.iter().any(|s| matches!(s, Step::Sum(_) | Step::Max(_)));
        let threads = match (reduces, width) {
            (false, _) => FLAT,
            (true, 0..=512) => 64,
            (true, _) => 256,
        };
        // Without an `act` step the activation must not make another shader of it.
        let acts = micro.steps.iter().any(|s| matches!(s, Step::Act(_)));
        Self { micro, act: if acts { act } else { Function::Relu }, threads }
    }

    pub(super) fn reduces(&self) -> bool {
        self.micro.steps.iter().any(|s| matches!(s, Step::Sum(_) | Step::Max(_)))
    }

    pub(super) fn functions(&self) -> Vec<Function> {
        let of = |s: &Step| match s {
            Step::Map(f, _) => Some(*f),
            Step::Act(_) => Some(self.act),
            _ => None,
        };
        self.micro.steps.iter().filter_map(of).collect()
    }

    fn source(&self) -> String {
        let mut text = prelude(&self.functions());
        let _ = writeln!(
            text,
            "struct Params {{ heads: u32, width: u32, first: u32, spare: u32, p: vec4<f32>, \
             o: array<vec4<u32>, {MOST_OPERANDS}> }}\n\
             @group(0) @binding(1) var<storage, read> params: Params;"
        );
        for (k, operand) in self.micro.operands.iter().enumerate() {
            let access = if operand.access == Access::In { "read" } else { "read_write" };
            let _ = writeln!(text, "@group(0) @binding({}) var<storage, {access}> m{k}: array<f32>;", k + 2);
        }
        if self.reduces() {
            self.by_head(&mut text)
        } else {
            self.by_element(&mut text)
        }
        text
    }

    /// Where each operand's head begins.
    fn bases(&self, text: &mut String) {
        let _ = writeln!(text, "  let width = params.width;\n  let position = step.row[row].position;");
        for k in 0..self.micro.operands.len() {
            let _ = writeln!(
                text,
                "  let o{k} = params.o[{k}].x + row * params.o[{k}].y + head * params.o[{k}].z + position * params.o[{k}].w;"
            );
        }
    }

    fn by_element(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "@compute @workgroup_size({FLAT}) fn main(@builtin(global_invocation_id) at: vec3<u32>) {{\n\
             \x20 if (!begin() || at.x >= params.heads * params.width) {{ return; }}\n\
             \x20 let row = at.y;\n  let head = at.x / params.width;\n  let i = at.x % params.width;\n  let live = true;"
        );
        self.bases(text);
        for at in 0..self.micro.steps.len() {
            self.step(text, at, "i == 0u");
        }
        text.push_str("}\n");
    }

    fn by_head(&self, text: &mut String) {
        let threads = self.threads;
        let most = |pass: u8| self.reductions(pass).count();
        let passes = self.micro.passes.iter().copied().max().unwrap_or(0);
        let buffers = (1..=passes).map(most).max().unwrap_or(0);
        for j in 0..buffers {
            let _ = writeln!(text, "var<workgroup> buf{j}: array<f32, {CHUNK}>;");
        }
        let _ = writeln!(
            text,
            "var<workgroup> red: array<f32, 32>;\n\
             fn larger(x: f32, y: f32) -> f32 {{ return select(x, y, x < y); }}\n\
             @compute @workgroup_size({threads}) fn main(@builtin(workgroup_id) group: vec3<u32>, \
             @builtin(local_invocation_index) t: u32) {{\n\
             \x20 let live = begin();\n  let row = group.y;\n  let head = group.x;"
        );
        self.bases(text);
        let mut at = 0;
        while at < self.micro.steps.len() {
            let pass = self.micro.passes[at];
            if pass == 0 {
                self.step(text, at, "t == 0u");
                at += 1;
                continue;
            }
            let end = (at..self.micro.steps.len()).find(|s| self.micro.passes[*s] != pass);
            let end = end.unwrap_or(self.micro.steps.len());
            self.pass(text, at, end);
            at = end;
        }
        text.push_str("}\n");
    }

    pub(super) fn reductions(&self, pass: u8) -> impl Iterator<Item = usize> + '_ {
        let reduces = move |at: &usize| {
            self.micro.passes[*at] == pass && matches!(self.micro.steps[*at], Step::Sum(_) | Step::Max(_))
        };
        (0..self.micro.steps.len()).filter(reduces)
    }

    /// The steps of a pass over the head's elements, then the reductions that end it.
    fn pass(&self, text: &mut String, from: usize, to: usize) {
        let threads = self.threads;
        let reductions: Vec<usize> = self.reductions(self.micro.passes[from]).collect();
        let elements = (from..to).filter(|at| !reductions.contains(at));
        if reductions.is_empty() {
            let _ = writeln!(text, "  for (var i = t; i < width; i += {threads}u) {{");
            elements.for_each(|at| self.step(text, at, "false"));
            text.push_str("  }\n");
            return;
        }
        for at in &reductions {
            let start =
                if matches!(self.micro.steps[*at], Step::Sum(_)) { "0.0" } else { "bitcast<f32>(0xff800000u ^ zero)" };
            let _ = writeln!(text, "  var part{at} = {start};");
        }
        let _ = writeln!(
            text,
            "  for (var c = 0u; c < width; c += {CHUNK}u) {{\n\
             \x20   let n = min({CHUNK}u, width - c);\n\
             \x20   for (var k = t; k < n; k += {threads}u) {{\n      let i = c + k;"
        );
        elements.for_each(|at| self.step(text, at, "false"));
        for (j, at) in reductions.iter().enumerate() {
            let _ = match self.micro.steps[*at] {
                Step::Max(a) => writeln!(text, "    part{at} = larger(part{at}, v{a});"),
                Step::Sum(a) => writeln!(text, "    buf{j}[k] = v{a};"),
                _ => Ok(()),
            };
        }
        text.push_str("    }\n");
        self.add(text, &reductions, "params.first");
        text.push_str("  }\n");
        self.fold(text, &reductions);
    }

    /// What lies in workgroup memory, `n` elements, goes to the lanes of the sums.
    fn add(&self, text: &mut String, reductions: &[usize], first: &str) {
        for (j, at) in reductions.iter().enumerate() {
            if let Step::Sum(a) = self.micro.steps[*at] {
                let round = self.round(a);
                let _ = writeln!(
                    text,
                    "    workgroupBarrier();\n\
                     \x20   if (t < 32u) {{\n\
                     \x20     var k = (t + 32u - {first} % 32u) % 32u;\n\
                     \x20     for (; k + {}u < n; k += {}u) {{",
                    32 * (BATCH - 1),
                    32 * BATCH
                );
                for i in 0..BATCH {
                    let _ = writeln!(text, "        let s{i} = buf{j}[k + {}u];", 32 * i);
                }
                for i in 0..BATCH {
                    let _ = writeln!(text, "        part{at} = {round}(part{at} + s{i});");
                }
                let _ = writeln!(
                    text,
                    "      }}\n\
                     \x20     for (; k < n; k += 32u) {{ part{at} = {round}(part{at} + buf{j}[k]); }}\n\
                     \x20   }}\n\
                     \x20   workgroupBarrier();"
                );
            }
        }
    }

    /// The reductions of a pass, from what each thread has.
    pub(super) fn fold(&self, text: &mut String, reductions: &[usize]) {
        let threads = self.threads;
        for (j, at) in reductions.iter().enumerate() {
            match self.micro.steps[*at] {
                Step::Sum(a) => {
                    let round = self.round(a);
                    let _ = writeln!(text, "  if (t < 32u) {{ red[t] = part{at}; }}\n  workgroupBarrier();");
                    let mut names: Vec<String> = (0..32).map(|l| format!("red[{l}]")).collect();
                    for half in [16, 8, 4, 2, 1] {
                        for l in 0..half {
                            let name = format!("t{at}_{half}_{l}");
                            let _ = writeln!(text, "  let {name} = {round}({} + {});", names[l], names[l + half]);
                            names[l] = name;
                        }
                    }
                    let _ = writeln!(text, "  let v{at} = {};\n  workgroupBarrier();", names[0]);
                }
                _ => {
                    let _ = writeln!(
                        text,
                        "  buf{j}[t] = part{at};\n  workgroupBarrier();\n\
                         \x20 if (t < 32u) {{\n    for (var k = t + 32u; k < {threads}u; k += 32u) {{ \
                         part{at} = larger(part{at}, buf{j}[k]); }}\n    red[t] = part{at};\n  }}\n\
                         \x20 workgroupBarrier();\n\
                         \x20 for (var k = 0u; k < 32u; k += 1u) {{ part{at} = larger(part{at}, red[k]); }}\n\
                         \x20 let v{at} = part{at};\n  workgroupBarrier();"
                    );
                }
            }
        }
    }

    /// How a sum of this value rounds: what is never below zero is zero or at least 2^-120, so its sums need no flush.
    pub(super) fn round(&self, value: u8) -> &'static str {
        match self.micro.steps[usize::from(value)] {
            Step::Mul(a, b) if a == b => "b",
            Step::Map(Function::Exp | Function::Sigmoid, _) => "b",
            _ => "r",
        }
    }

    /// Where the element `i` of a place lies.
    pub(super) fn element(p: Place) -> String {
        let start = match p.start {
            Start::First => "",
            Start::Odd => " + 1u",
            Start::Second => " + width",
        };
        format!("m{0}[o{0}{start} + {1}u * i]", p.operand, p.step)
    }

    /// One step that reduces nothing; `once` holds on one thread of a head.
    fn step(&self, text: &mut String, at: usize, once: &str) {
        let micro = self.micro;
        let element = Self::element;
        let value = match micro.steps[at] {
            Step::Load(p) => element(p),
            Step::Store(p, v) => {
                let _ = writeln!(text, "    if (live) {{ {} = v{v}; }}", element(p));
                format!("v{v}")
            }
            Step::LoadHead(o) => format!("m{o}[o{o}]"),
            Step::StoreHead(o, v) => {
                let _ = writeln!(text, "    if (live && {once}) {{ m{o}[o{o}] = v{v}; }}");
                format!("v{v}")
            }
            // Made where their pass ends.
            Step::Sum(_) | Step::Max(_) => return,
            Step::Param(p) => format!("params.p[{p}]"),
            step => self.value(step),
        };
        let _ = writeln!(text, "    let v{at} = {value};");
        debug_assert!(level(micro.steps, at) == Level::Head || micro.passes[at] != 0);
    }

    /// What a step on values gives.
    pub(super) fn value(&self, step: Step) -> String {
        match step {
            Step::Number(n) => format!("bitcast<f32>({:#x}u)", n.to_bits()),
            Step::Add(a, b) => format!("r(v{a} + v{b})"),
            Step::Sub(a, b) => format!("r(v{a} - v{b})"),
            Step::Mul(a, b) => format!("r(v{a} * v{b})"),
            Step::Map(f, a) => format!("f_{}(v{a})", f.name()),
            Step::Act(a) => format!("f_{}(v{a})", self.act.name()),
            Step::Spread(a) => format!("v{a}"),
            // Memory and reductions are their shaders' own.
            _ => String::new(),
        }
    }
}

/// `to[i] = function(from[i])` for `n` values.
#[must_use]
pub fn map_job(function: Function, from: &Region, to: &Region, n: usize) -> Job {
    let source = format!(
        "{}@group(0) @binding(1) var<storage, read> params: vec4<u32>;\n\
         @group(0) @binding(2) var<storage, read> from_: array<f32>;\n\
         @group(0) @binding(3) var<storage, read_write> to_: array<f32>;\n\
         @compute @workgroup_size({FLAT}) fn main(@builtin(global_invocation_id) at: vec3<u32>) {{\n\
         \x20 let i = at.y * {ROW}u + at.x;\n\
         \x20 if (!begin() || i >= params.x) {{ return; }}\n\
         \x20 to_[i] = f_{}(from_[i]);\n}}\n",
        prelude(&[function]),
        function.name()
    );
    const ROW: usize = 65_536;
    let groups = [(n.min(ROW) as u32).div_ceil(FLAT), n.div_ceil(ROW) as u32, 1];
    let operands = vec![from.clone(), to.clone()];
    Job { label: function.name(), source, groups, constants: vec![n as u32, 0, 0, 0], operands }
}
