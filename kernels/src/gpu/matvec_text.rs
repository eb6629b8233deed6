//! The array unit's shaders as text: one for subgroups, one for devices without.
//!
//! Lane order is the array's own: block `b` adds to lane `b mod L`, ascending, high limb before low, then the halving tree.
//! A subgroup of `S` threads takes `S` neighbouring blocks of a set of rows at a time, a block a thread, so loads are wide
//! and all rows of the set use the activations that were loaded once. The exact products then change places by
//! shuffles, so that `L` threads hold the lanes of one row, `S / L` rows at once, and add them in order. Every addition
//! passes the rounding barrier. What lies past the last block has a scale of zero: a lane never holds a negative zero, so
//! adding a zero of either sign changes no bit.
//!
//! Elements of 4 bits go through a table of all pairs of levels into what int8 elements are; their block of 32 columns has
//! two halves with a scale each, so there are twice as many products, the first half's before the second's.

use super::Method;
use super::job::fill;
use super::quantise;
use super::weights::QUAD;
use super::wgsl::prelude;
use crate::format::{Book, Limbs, Weights};
use crate::math::Function;
use std::fmt::Write as _;

/// How a shader is laid over a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Threads of a subgroup; `None`: a lane a thread, joined through workgroup memory.
    pub subgroup: Option<u32>,
    /// Rows of a subgroup: a multiple of 4 and of `subgroup / lanes`.
    pub rows: u32,
    /// Blocks that a thread asks for before it multiplies the first.
    pub unroll: u32,
    /// The next blocks are asked for before these are multiplied: for few subgroups, which do not hide one another's
    /// waiting.
    pub ahead: bool,
    /// Subgroups of a workgroup.
    pub subgroups: u32,
    /// Token-rows that share one reading of the weights.
    pub tokens: u32,
}

/// What the text depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) method: Method,
    pub(super) lanes: u32,
    pub(super) limbs: Limbs,
    pub(super) weights: Weights,
    pub(super) blocks: u32,
    pub(super) group: u32,
    /// Quads of the chunk's rows.
    pub(super) quads: u32,
    pub(super) bias: bool,
    pub(super) residual: Option<Place>,
    /// What becomes of pairs of rows.
    pub(super) gated: Option<Gate>,
    /// The matrix is one of a stack's, picked by a buffer.
    pub(super) routed: bool,
    /// Workgroups before the first of this dispatch.
    pub(super) first: u32,
    pub(super) ends: Ends,
}

/// Where results go and what they meet there: constants of the text, for a word that has to be loaded first costs as
/// much time as a small matrix.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    /// Rows of the chunk, and the matrix row of the first.
    pub(super) rows: u32,
    pub(super) first_row: u32,
    pub(super) offset: u32,
    pub(super) stride: u32,
    pub(super) x_offset: u32,
    pub(super) x_stride: u32,
    pub(super) scale: f32,
    pub(super) k: u32,
    pub(super) vectors: u32,
    pub(super) first_expert: u32,
    pub(super) experts: u32,
    pub(super) all_experts: u32,
}

/// The first half of the rows are gates of the second half: `act(gate) * up`, as f32 and as the array's limbs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    pub(super) act: Function,
    pub(super) limbs: Limbs,
    /// The command whose operand they are, for a fault.
    pub(super) command: u32,
}

/// Where the rows lie that a product is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Where the sums go.
    InPlace,
    /// In another buffer.
    Apart,
}

/// Threads of a workgroup without subgroups.
pub(super) const THREADS: u32 = 64;

impl Plan {
    /// Matrix rows of a workgroup.
    pub(super) fn group_rows(&self, lanes: u32) -> u32 {
        match self.subgroup {
            Some(_) => self.rows * self.subgroups,
            None => THREADS / lanes,
        }
    }
}

/// The shader.
pub(super) fn source(plan: &Plan, shape: &Shape) -> String {
    let mut text = match shape.gated {
        Some(gate) => prelude(&[gate.act]),
        None if shape.routed => prelude(&[]),
        None => reading(&prelude(&[])),
    };
    text += &bindings(shape, plan.tokens);
    text += &match plan.subgroup {
        Some(size) => subgroups(plan, shape, size),
        None => memory(plan, shape),
    };
    text
}

/// The prelude of a shader that never fails its command: it only reads the step's words, so products that do not depend
/// on one another overlap.
fn reading(prelude: &str) -> String {
    let lines = prelude.lines().filter(|line| !line.starts_with("fn fail"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let text = text.replace("fault: atomic<u32>", "fault: u32").replace("atomicLoad(&step.fault)", "step.fault");
    text.replace("var<storage, read_write> step", "var<storage, read> step")
}

fn bindings(shape: &Shape, tokens: u32) -> String {
    let mut text = fill(
        HEAD,
        &[
            ("$BLOCKS", shape.blocks.to_string()),
            ("$GROUP", shape.group.to_string()),
            ("$SHIFT", shape.group.trailing_zeros().to_string()),
            ("$QUADS", shape.quads.to_string()),
            ("$LIMBS", shape.limbs.count().to_string()),
            ("$WORDS", scale_words(shape.weights, shape.blocks).to_string()),
            ("$TABLE", table_words(shape.weights).to_string()),
        ],
    );
    let layout = [("$SHIFT", shape.group.trailing_zeros().to_string()), ("$GROUP", shape.group.to_string())];
    text += &match shape.weights.book() {
        None => fill(INT8, &layout),
        Some(book) => fill(CODED, &[&layout[..], &scale_shape(book)].concat()),
    };
    let e = &shape.ends;
    let words = [
        ("ROWS", e.rows),
        ("FIRST_ROW", e.first_row),
        ("OFFSET", e.offset),
        ("STRIDE", e.stride),
        ("X_OFFSET", e.x_offset),
        ("X_STRIDE", e.x_stride),
        ("K", e.k),
        ("VECTORS", e.vectors),
        ("FIRST_EXPERT", e.first_expert),
        ("EXPERTS", e.experts),
        ("ALL_EXPERTS", e.all_experts),
    ];
    for (name, value) in words {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
    }
    let _ = writeln!(text, "fn x_scale() -> f32 {{ return bitcast<f32>({:#x}u ^ zero); }}", e.scale.to_bits());
    let mut binding = 7;
    let mut bind_as = |text: &mut String, access: &str, name: &str, ty: &str| {
        let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{ty}>;");
        binding += 1;
    };
    if shape.bias {
        bind_as(&mut text, "read", "bias", "f32");
    }
    if shape.residual == Some(Place::Apart) {
        bind_as(&mut text, "read", "residual", "f32");
    }
    if shape.residual.is_some() {
        bind_as(&mut text, "read_write", "sums", "f32");
    }
    if let Some(gate) = shape.gated {
        bind_as(&mut text, "read_write", "gated", "f32");
        // Names of the operand's own limbs and scales, which are read here, are taken.
        let made = quantise::outputs(gate.limbs, 8 + usize::from(shape.bias), true);
        text += &quantise::text(gate.limbs, (shape.ends.rows / 2) as usize);
        text += &made.replace("limbs", "made_limbs").replace("scales", "made_scales");
        let _ = writeln!(text, "var<workgroup> made: array<u32, 32>;");
    }
    let mut bind = |text: &mut String, name: &str, ty: &str| bind_as(text, "read", name, ty);
    if shape.routed {
        bind(&mut text, "picks", "f32");
    }
    if shape.method == Method::Lut {
        bind(&mut text, "table", "u32");
    }
    text += match shape.method {
        Method::Dp4a => DP4A,
        Method::Lut => LUT,
    };
    let bias = if shape.bias { "met.x = bias[m];" } else { "" };
    let added = if shape.bias { "v = r(v + met.x);" } else { "" };
    let place = "X_OFFSET + token * X_STRIDE + m";
    let (residual, summed) = match shape.residual {
        None => (String::new(), String::new()),
        Some(of) => {
            let from = if of == Place::Apart { "residual" } else { "sums" };
            (format!("met.y = {from}[{place}];"), format!("sums[{place}] = r(met.y + r(x_scale() * v));"))
        }
    };
    let beyond = if tokens > 1 { "token >= params.tokens" } else { "false" };
    text + &fill(
        FINISH,
        &[
            ("$BEYOND", beyond.to_owned()),
            ("$BIAS", bias.to_owned()),
            ("$RESIDUAL", residual),
            ("$ADDED", added.to_owned()),
            ("$SUMMED", summed),
        ],
    )
}

const HEAD: &str = "
struct Params { command: u32, tokens: u32, none: u32, spare: u32 }
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> elements: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> codes: array<u32>;
@group(0) @binding(4) var<storage, read> limbs: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> scales: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
const BLOCKS: u32 = $BLOCKSu;
const QUADS: u32 = $QUADSu;
const WORDS: u32 = $WORDSu;
const TABLE: u32 = $TABLEu;
fn limb(token: u32, which: u32, half: u32, block: u32) -> vec4<u32> {
  return limbs[((token * $LIMBSu + which) * 2u + half) * BLOCKS + block];
}
";

const INT8: &str = "
fn element(quad: u32, row: u32, half: u32, block: u32) -> vec4<u32> {
  let group = block >> $SHIFTu;
  return elements[quad * (BLOCKS * 8u) + group * ($GROUPu * 8u) + (row * 2u + half) * $GROUPu + (block & ($GROUPu - 1u))];
}
// What the base of row `row` of the quad adds to its scale bytes: m * 2^e is 1.mmm * 2^(e + 3).
fn base(bases: u32, row: u32) -> u32 {
  return bitcast<u32>((bitcast<i32>(bases << (24u - 8u * row)) >> 24u) + 130) << 3u;
}
fn scale(base: u32, code: u32, row: u32) -> f32 {
  return bitcast<f32>((base + ((code >> (8u * row)) & 255u)) << 20u);
}
";

const CODED: &str = "
fn stored(quad: u32, row: u32, block: u32) -> vec4<u32> {
  let group = block >> $SHIFTu;
  return elements[quad * (BLOCKS * 4u) + group * ($GROUPu * 4u) + row * $GROUPu + (block & ($GROUPu - 1u))];
}
fn levels(word: u32) -> vec2<u32> {
  return vec2<u32>(codes[word & 255u] | (codes[(word >> 8u) & 255u] << 16u),
                   codes[(word >> 16u) & 255u] | (codes[word >> 24u] << 16u));
}
fn half_of(words: vec2<u32>) -> vec4<u32> { return vec4<u32>(levels(words.x), levels(words.y)); }
// What the base of row `row` of the quad adds to its scale bytes, past their sign.
fn base(bases: u32, row: u32) -> u32 {
  return bitcast<u32>((bitcast<i32>(bases << (24u - 8u * row)) >> 24u) + $OFFSET) << $MANTISSAu;
}
fn scale(base: u32, code: u32, row: u32) -> f32 {
  let byte = (code >> (8u * row)) & 255u;
  return bitcast<f32>(((base + (byte >> $SIGNu)) << $PLACEu) | ((byte & $SIGNu) << 31u));
}
";

/// Words with the scales of a quad's blocks.
pub(super) fn scale_words(weights: Weights, blocks: u32) -> u32 {
    if weights.book().is_some() { 2 * blocks } else { blocks }
}

/// Words before the scales: the levels of every pair of codes.
pub(super) fn table_words(weights: Weights) -> u32 {
    if weights.book().is_some() { 256 } else { 0 }
}

fn scale_shape(book: &Book) -> [(&'static str, String); 4] {
    let Book { mantissa, sign, .. } = book;
    [
        ("$OFFSET", (127 + mantissa).to_string()),
        ("$MANTISSA", mantissa.to_string()),
        ("$SIGN", sign.to_string()),
        ("$PLACE", (23 - mantissa).to_string()),
    ]
}

/// A product that is added to a lane.
struct Term {
    /// Name of the limb in the text, and its index, high first.
    name: &'static str,
    limb: u32,
    /// The half of the block whose scale it has; none: both, which share one.
    half: Option<u32>,
}

impl Term {
    fn text(&self) -> String {
        self.half.map_or_else(|| self.name.to_owned(), |half| format!("{}{half}", self.name))
    }
}

/// The products of a block with a row, in the order in which they are added.
fn terms(shape: &Shape) -> Vec<Term> {
    let two = shape.limbs == Limbs::Two;
    let limbs = |half| shape_limbs(two).iter().map(move |(limb, name)| Term { name, limb: *limb, half });
    match shape.weights.book() {
        None => limbs(None).collect(),
        Some(_) => limbs(Some(0)).chain(limbs(Some(1))).collect(),
    }
}

const DP4A: &str = "
fn products(a: vec4<u32>, c: vec4<u32>) -> i32 {
  return dot4I8Packed(a.x, c.x) + dot4I8Packed(a.y, c.y) + dot4I8Packed(a.z, c.z) + dot4I8Packed(a.w, c.w);
}
";

const LUT: &str = "
fn product(a: u32, c: u32) -> i32 {
  let at = ((a & 255u) << 8u) | (c & 255u);
  return bitcast<i32>(table[at >> 1u] << (16u - 16u * (at & 1u))) >> 16u;
}
fn products(a: vec4<u32>, c: vec4<u32>) -> i32 {
  var sum = 0;
  for (var word = 0u; word < 4u; word += 1u) {
    for (var shift = 0u; shift < 32u; shift += 8u) { sum += product(a[word] >> shift, c[word] >> shift); }
  }
  return sum;
}
";

const FINISH: &str = "
// What a result meets: bias and residual, asked for before the weights so that nothing waits for them at the end.
fn meets(row: u32, token: u32) -> vec2<f32> {
  var met = vec2<f32>(0.0, 0.0);
  if (row >= ROWS || $BEYOND) { return met; }
  let m = FIRST_ROW + row;
  $BIAS
  $RESIDUAL
  return met;
}
fn finish(value: f32, row: u32, token: u32, met: vec2<f32>) {
  if (row >= ROWS || $BEYOND) { return; }
  let m = FIRST_ROW + row;
  var v = value;
  $ADDED
  y[OFFSET + token * STRIDE + m] = v;
  $SUMMED
}
";

/// The picked expert; in another chunk: no steps, and nothing is written. Bits are compared, for a compiler may take it
/// that there is no NaN.
const ROUTE: &str = "
  let pick = group.x;
  let number = picks[pick];
  let chosen = u32(max(number, 0.0));
  if (local == 0u && (chosen >= ALL_EXPERTS || bitcast<u32>(f32(chosen)) != bitcast<u32>(number))) { fail(params.command); }
  let here = chosen >= FIRST_EXPERT && chosen - FIRST_EXPERT < EXPERTS;
  let expert = select(0u, chosen - FIRST_EXPERT, here);
  let source = pick / K * VECTORS + pick % K % VECTORS;
";

/// Rows of a set at once, `size / lanes` rows in the lanes of one subgroup.
fn subgroups(plan: &Plan, shape: &Shape, size: u32) -> String {
    let Plan { rows, unroll, subgroups, tokens, .. } = *plan;
    let (lanes, groups, two) = (shape.lanes, size / shape.lanes, shape.limbs == Limbs::Two);
    let (terms, coded) = (terms(shape), shape.weights.book().is_some());
    let (quads, sets) = (rows / QUAD as u32, rows / groups);
    let steps = shape.blocks.div_ceil(size);
    let mut t = format!(
        "\n@compute @workgroup_size({})\nfn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_id) part: u32, \
         @builtin(subgroup_invocation_id) lane: u32) {{\n  let live = begin();\n  zero ^= params.none;\n  \
         let unit = ({}u + group.y) * {subgroups}u + part;\n",
        size * subgroups,
        shape.first,
    );
    let (here, source, expert, count) = if shape.routed {
        t += &ROUTE.replace("local", "(part | lane)");
        ("live && here", "source", "expert", format!("select(0u, {steps}u, here)"))
    } else {
        ("live", "0u", "0u", format!("{steps}u"))
    };
    for q in 0..quads {
        // Of a gate's rows and those that it opens a subgroup has as many.
        let n = match shape.gated {
            Some(_) => format!("unit * {0}u + {1}u", quads / 2, q % (quads / 2) + q / (quads / 2) * (shape.quads / 2)),
            None => format!("min(unit * {quads}u + {q}u, QUADS - 1u)"),
        };
        let _ = write!(
            t,
            "  let n{q} = {n};\n  let q{q} = {expert} * QUADS + n{q};\n  \
             let c{q} = TABLE + {expert} * (QUADS * (WORDS + 1u)) + n{q} * WORDS;\n  \
             let bases{q} = codes[TABLE + {expert} * (QUADS * (WORDS + 1u)) + QUADS * WORDS + n{q}];\n",
        );
        for j in 0..QUAD {
            let _ = writeln!(t, "  let base{q}_{j} = base(bases{q}, {j}u);");
        }
    }
    for token in 0..tokens {
        let first = if shape.routed { source.to_owned() } else { format!("group.x * {tokens}u + {token}u") };
        let _ = writeln!(t, "  let t{token} = {first};");
        for set in 0..sets {
            let _ = writeln!(t, "  var a{token}_{set} = 0.0;");
        }
    }
    for stage in 0..groups.trailing_zeros() {
        let _ = writeln!(t, "  let up{stage} = ((lane / {lanes}u) & {}u) != 0u;", 1 << stage);
    }
    let meets = shape.bias || shape.residual.is_some();
    let row_of = |set: u32| match shape.gated {
        Some(_) => {
            let second = set / (sets / 2) * (shape.ends.rows / 2);
            format!("unit * {}u + {}u + lane / {lanes}u", rows / 2, set % (sets / 2) * groups + second)
        }
        None => format!("unit * {rows}u + {}u + lane / {lanes}u", set * groups),
    };
    for token in 0..tokens {
        for set in 0..sets {
            let row = row_of(set);
            let _ = writeln!(t, "  var met{token}_{set} = vec2<f32>(0.0, 0.0);");
            if meets {
                let _ = writeln!(t, "  if (lane % {lanes}u == 0u) {{ met{token}_{set} = meets({row}, t{token}); }}");
            }
        }
    }
    let stage = Stage { plan, shape, size, quads, sets, groups, two, coded, terms: &terms };
    let stages = steps.div_ceil(unroll);
    if plan.ahead && !shape.routed && stages > 1 {
        stage.declare(&mut t, "x");
        stage.declare(&mut t, "y");
        stage.load(&mut t, "x", "0u");
        let _ = writeln!(t, "  for (var o = 0u; o < {}u; o += {}u) {{", stages / 2 * 2 * unroll, 2 * unroll);
        stage.load(&mut t, "y", &format!("o + {unroll}u"));
        stage.multiply(&mut t, "x");
        stage.load(&mut t, "x", &format!("o + {}u", 2 * unroll));
        stage.multiply(&mut t, "y");
        t += "  }\n";
        if stages % 2 == 1 {
            stage.multiply(&mut t, "x");
        }
    } else {
        let _ = writeln!(t, "  let steps = {count};\n  for (var o = 0u; o < steps; o += {unroll}u) {{");
        stage.declare(&mut t, "x");
        stage.load(&mut t, "x", "o");
        stage.multiply(&mut t, "x");
        t += "  }\n";
    }
    for token in 0..tokens {
        for set in 0..sets {
            let a = format!("a{token}_{set}");
            let mut s = lanes / 2;
            while s > 0 {
                let _ = writeln!(t, "  {a} = b({a} + subgroupShuffleXor({a}, {s}u));");
                s /= 2;
            }
        }
    }
    if let Some(gate) = shape.gated {
        let _ = writeln!(t, "  let first = lane % {lanes}u == 0u;");
        for set in 0..sets {
            let added = if shape.bias { format!("r(a0_{set} + met0_{set}.x)") } else { format!("a0_{set}") };
            let _ = writeln!(
                t,
                "  let v{set} = {added};\n  if (live && first) {{ y[OFFSET + {}] = v{set}; }}",
                row_of(set)
            );
        }
        for set in 0..sets / 2 {
            let row = row_of(set);
            let _ = writeln!(
                t,
                "  {{\n    let opened = r(f_{}(v{set}) * v{});\n    if (first) {{ made[({row}) % 32u] = bitcast<u32>(opened); }}\n    \
                 if (live && first) {{ gated[{row}] = opened; }}\n  }}",
                gate.act.name(),
                set + sets / 2
            );
        }
        let _ = writeln!(
            t,
            "  workgroupBarrier();\n  let quad = min(part * {size}u + lane, 7u);\n  \
             let four = vec4<u32>(made[quad * 4u], made[quad * 4u + 1u], made[quad * 4u + 2u], made[quad * 4u + 3u]);\n  \
             q_quad(0u, {}u + group.y, quad, four, live && part == 0u && lane < 8u, {}u);\n}}",
            shape.first, gate.command
        );
        return t;
    }
    let _ = writeln!(t, "  if (!({here}) || lane % {lanes}u != 0u) {{ return; }}");
    for token in 0..tokens {
        let place = if shape.routed { "group.x".to_owned() } else { format!("t{token}") };
        for set in 0..sets {
            let row = row_of(set);
            let _ = writeln!(t, "  finish(a{token}_{set}, {row}, {place}, met{token}_{set});");
        }
    }
    t + "}\n"
}

/// `unroll` blocks of every thread: asked for, then multiplied and added.
struct Stage<'a> {
    plan: &'a Plan,
    shape: &'a Shape,
    size: u32,
    quads: u32,
    sets: u32,
    groups: u32,
    two: bool,
    coded: bool,
    terms: &'a [Term],
}

impl Stage<'_> {
    /// What the loads go to, by the name of the stage.
    fn declare(&self, t: &mut String, name: &str) {
        for i in 0..self.plan.unroll {
            let _ = writeln!(t, "    var {name}k{i} = 0u;\n    var {name}in{i} = true;");
            if self.shares() {
                for (_, limb) in shape_limbs(self.two) {
                    let _ = writeln!(
                        t,
                        "    var {name}{limb}{i}_0 = vec4<u32>(0u);\n    var {name}{limb}{i}_1 = vec4<u32>(0u);"
                    );
                }
                let _ = writeln!(t, "    var {name}s{i} = 0.0;");
            }
            for q in 0..self.quads {
                for j in 0..QUAD {
                    for h in self.parts() {
                        let _ = writeln!(t, "    var {name}e{i}_{q}_{j}{h} = vec4<u32>(0u);");
                    }
                }
                for h in self.halves() {
                    let _ = writeln!(t, "    var {name}c{i}_{q}{h} = 0u;");
                }
            }
        }
    }

    /// What the elements of a row's block are loaded in: two halves, or the codes of both at once.
    fn parts(&self) -> &'static [&'static str] {
        if self.coded { &[""] } else { &["_0", "_1"] }
    }

    /// What has a scale: a block, or each half of one.
    fn halves(&self) -> &'static [&'static str] {
        if self.coded { &["_0", "_1"] } else { &[""] }
    }

    /// One token-row: its activations are asked for with the weights, before them, for they come from nearer.
    fn shares(&self) -> bool {
        self.plan.tokens == 1
    }

    fn load(&self, t: &mut String, name: &str, o: &str) {
        let (unroll, size) = (self.plan.unroll, self.size);
        // Stages go past the end by less than two of them.
        let ahead = self.plan.ahead && !self.shape.routed;
        let ragged = ahead || !self.shape.blocks.is_multiple_of(size * unroll);
        for i in 0..unroll {
            let _ = writeln!(t, "    {name}k{i} = ({o} + {i}u) * {size}u + lane;");
            if ragged {
                let _ = writeln!(
                    t,
                    "    {name}in{i} = {name}k{i} < BLOCKS;\n    {name}k{i} = min({name}k{i}, BLOCKS - 1u);"
                );
            }
            if self.shares() {
                for (w, limb) in shape_limbs(self.two) {
                    for h in 0..2 {
                        let _ = writeln!(t, "    {name}{limb}{i}_{h} = limb(t0, {w}u, {h}u, {name}k{i});");
                    }
                }
                let _ = writeln!(t, "    {name}s{i} = scales[t0 * BLOCKS + {name}k{i}];");
            }
            for q in 0..self.quads {
                for j in 0..QUAD {
                    if self.coded {
                        let _ = writeln!(t, "    {name}e{i}_{q}_{j} = stored(q{q}, {j}u, {name}k{i});");
                        continue;
                    }
                    for h in 0..2 {
                        let _ = writeln!(t, "    {name}e{i}_{q}_{j}_{h} = element(q{q}, {j}u, {h}u, {name}k{i});");
                    }
                }
                if self.coded {
                    for h in 0..2 {
                        let _ = writeln!(t, "    {name}c{i}_{q}_{h} = codes[c{q} + 2u * {name}k{i} + {h}u];");
                    }
                } else {
                    let _ = writeln!(t, "    {name}c{i}_{q} = codes[c{q} + {name}k{i}];");
                }
            }
        }
    }

    fn multiply(&self, t: &mut String, name: &str) {
        let Self { plan, shape, sets, groups, two, .. } = *self;
        for i in 0..plan.unroll {
            let _ = writeln!(t, "    {{");
            for (q, j) in (0..self.quads).flat_map(|q| (0..QUAD).map(move |j| (q, j))).filter(|_| self.coded) {
                let e = format!("{name}e{i}_{q}_{j}");
                let _ = writeln!(t, "    let {e}_0 = half_of({e}.xy);\n    let {e}_1 = half_of({e}.zw);");
            }
            for token in 0..plan.tokens {
                let _ = writeln!(t, "    {{");
                for (w, limb) in shape_limbs(two) {
                    for h in 0..2 {
                        let value = if self.shares() {
                            format!("{name}{limb}{i}_{h}")
                        } else {
                            format!("limb(t{token}, {w}u, {h}u, {name}k{i})")
                        };
                        let _ = writeln!(t, "      let {limb}{h} = {value};");
                    }
                }
                let x = if self.shares() {
                    format!("{name}s{i}")
                } else {
                    format!("scales[t{token} * BLOCKS + {name}k{i}]")
                };
                let _ = writeln!(t, "      let xs = select(0.0, {x}, {name}in{i});");
                for row in 0..plan.rows {
                    let (q, j) = (row / QUAD as u32, row % QUAD as u32);
                    for half in self.halves() {
                        let code = format!("{name}c{i}_{q}{half}");
                        let _ = writeln!(t, "      let s{row}{half} = scale(base{q}_{j}, {code}, {j}u) * xs;");
                    }
                    for term in self.terms {
                        let product = |h: u32| format!("products({name}e{i}_{q}_{j}_{h}, {}{h})", term.name);
                        let (sum, scale) = match term.half {
                            None => (format!("{} + {}", product(0), product(1)), format!("s{row}")),
                            Some(half) => (product(half), format!("s{row}_{half}")),
                        };
                        let place = if two && term.limb == 0 { format!("({scale} * 256.0)") } else { scale };
                        let _ = writeln!(t, "      var {}p{row} = f32({sum}) * {place};", term.text());
                    }
                }
                for set in 0..sets {
                    transpose(t, set * groups, groups, shape.lanes, self.terms);
                    for from in 0..groups {
                        for limb in self.terms.iter().map(Term::text) {
                            let p = format!("{limb}p{}", set * groups + from);
                            let _ = writeln!(t, "      a{token}_{set} = b(a{token}_{set} + {p});");
                        }
                    }
                }
                let _ = writeln!(t, "    }}");
            }
            let _ = writeln!(t, "    }}");
        }
    }
}

/// Index and name of the limbs, high first.
fn shape_limbs(two: bool) -> &'static [(u32, &'static str)] {
    if two { &[(0, "h"), (1, "l")] } else { &[(0, "l")] }
}

/// Products of rows `first ..` change places: thread group `g` holds row `first + g`'s, in the order of the groups
/// that made them.
fn transpose(t: &mut String, first: u32, groups: u32, lanes: u32, terms: &[Term]) {
    for stage in 0..groups.trailing_zeros() {
        let bit = 1 << stage;
        for low in (0..groups).filter(|k| k & bit == 0) {
            let (a, c) = (first + low, first + (low | bit));
            for n in terms.iter().map(Term::text) {
                let _ = write!(
                    t,
                    "      {{ let got = subgroupShuffleXor(select({n}p{c}, {n}p{a}, up{stage}), {}u);\n        \
                     {n}p{a} = select({n}p{a}, got, up{stage}); {n}p{c} = select(got, {n}p{c}, up{stage}); }}\n",
                    bit * lanes
                );
            }
        }
    }
}

/// A lane of one row a thread.
fn memory(plan: &Plan, shape: &Shape) -> String {
    let (lanes, tokens, two) = (shape.lanes, plan.tokens, shape.limbs == Limbs::Two);
    let (terms, coded) = (terms(shape), shape.weights.book().is_some());
    let mut t = format!(
        "\nvar<workgroup> joined: array<f32, {}>;\n@compute @workgroup_size({THREADS})\n\
         fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {{\n  \
         let live = begin();\n  zero ^= params.none;\n  let lane = local % {lanes}u;\n  \
         let row = ({}u + group.y) * {}u + local / {lanes}u;\n  \
         let quad = min(row / 4u, QUADS - 1u);\n  let place = row % 4u;\n",
        THREADS * tokens,
        shape.first,
        THREADS / lanes,
    );
    let (here, expert, count) = if shape.routed {
        t += ROUTE;
        ("live && here", "expert", "select(0u, BLOCKS, here)")
    } else {
        ("live", "0u", "BLOCKS")
    };
    let _ = write!(
        t,
        "  let q = {expert} * QUADS + quad;\n  let c = TABLE + {expert} * (QUADS * (WORDS + 1u));\n  \
         let row_base = base(codes[c + QUADS * WORDS + quad], place);\n"
    );
    for token in 0..tokens {
        let first = if shape.routed { "source".to_owned() } else { format!("group.x * {tokens}u + {token}u") };
        let _ = writeln!(t, "  let t{token} = {first};\n  var a{token} = 0.0;");
    }
    let _ = write!(
        t,
        "  let blocks = {count};\n  for (var k = lane; k < blocks; k += {lanes}u) {{\n    {}",
        if coded {
            "let d = stored(q, place, k);\n    let e0 = half_of(d.xy);\n    let e1 = half_of(d.zw);\n    \
             let at = c + quad * WORDS + 2u * k;\n    let w0 = scale(row_base, codes[at], place);\n    \
             let w1 = scale(row_base, codes[at + 1u], place);\n"
        } else {
            "let e0 = element(q, place, 0u, k);\n    let e1 = element(q, place, 1u, k);\n    \
             let w0 = scale(row_base, codes[c + quad * WORDS + k], place);\n"
        }
    );
    for token in 0..tokens {
        let _ = writeln!(t, "    {{\n      let x = scales[t{token} * BLOCKS + k];");
        for term in &terms {
            let scale = format!("w{} * x", term.half.unwrap_or(0));
            let place = if two && term.limb == 0 { format!("({scale} * 256.0)") } else { format!("({scale})") };
            let product = |h: u32| format!("products(e{h}, limb(t{token}, {}u, {h}u, k))", term.limb);
            let sum = term.half.map_or_else(|| format!("{} + {}", product(0), product(1)), product);
            let _ = writeln!(t, "      a{token} = b(a{token} + f32({sum}) * {place});");
        }
        t += "    }\n";
    }
    t += "  }\n";
    for token in 0..tokens {
        let _ = writeln!(t, "  joined[{}u + local] = a{token};", token * THREADS);
    }
    let place = if shape.routed { "group.x".to_owned() } else { format!("group.x * {tokens}u + n") };
    let _ = write!(
        t,
        "  workgroupBarrier();\n  if (!({here})) {{ return; }}\n  for (var n = lane; n < {tokens}u; n += {lanes}u) {{\n    \
         let at = n * {THREADS}u + local - lane;\n    for (var s = {}u; s > 0u; s /= 2u) {{\n      \
         for (var i = 0u; i < s; i += 1u) {{ joined[at + i] = b(joined[at + i] + joined[at + i + s]); }}\n    }}\n    \
         finish(joined[at], row, {place}, meets(row, {place}));\n  }}\n}}\n",
        lanes / 2
    );
    t
}
