//! What both shaders begin with: constants of the shape, what is bound, how elements and scales are read, what int8
//! products are made by, and how a result ends.

use super::shape::{Place, Shape};
use crate::format::Book;
use crate::gpu::Method;
use crate::gpu::job::fill;
use crate::gpu::quantise;
use crate::gpu::weights::{scale_words, table_words};
use std::fmt::Write as _;

/// The text before `main`, for `tokens` token-rows at once.
pub(super) fn text(shape: &Shape, tokens: u32) -> String {
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
// `gates`: the command that reads what a gate lets through, for a fault. It differs from layer to layer, so it is no
// constant of the text, of which every layer would be another shader.
struct Params { command: u32, tokens: u32, none: u32, gates: u32 }
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

fn scale_shape(book: &Book) -> [(&'static str, String); 4] {
    let Book { mantissa, sign, .. } = book;
    [
        ("$OFFSET", (127 + mantissa).to_string()),
        ("$MANTISSA", mantissa.to_string()),
        ("$SIGN", sign.to_string()),
        ("$PLACE", (23 - mantissa).to_string()),
    ]
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
pub(super) const ROUTE: &str = "
  let pick = group.x;
  let number = picks[pick];
  let chosen = u32(max(number, 0.0));
  if (local == 0u && (chosen >= ALL_EXPERTS || bitcast<u32>(f32(chosen)) != bitcast<u32>(number))) { fail(params.command); }
  let here = chosen >= FIRST_EXPERT && chosen - FIRST_EXPERT < EXPERTS;
  let expert = select(0u, chosen - FIRST_EXPERT, here);
  let source = pick / K * VECTORS + pick % K % VECTORS;
";
