//! The shader for devices without subgroups of one size: a lane a thread, joined through workgroup memory.

use super::bindings::ROUTE;
use super::shape::{Plan, Shape, THREADS};
use super::terms::{product, shape_limbs, terms};
use crate::format::Limbs;
use std::fmt::Write as _;

/// A lane of one row a thread.
pub(super) fn text(plan: &Plan, shape: &Shape) -> String {
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
        for term in terms {
            let scale = format!("(w{} * x)", term.half.unwrap_or(0));
            let sum = |limb: u32| {
                let products = |h: u32| format!("products(e{h}, limb(t{token}, {limb}u, {h}u, k))");
                term.half.map_or_else(|| format!("{} + {}", products(0), products(1)), products)
            };
            let sums: Vec<String> = shape_limbs(two).iter().map(|(limb, _)| sum(*limb)).collect();
            let _ = writeln!(t, "      a{token} = b(a{token} + apart({}));", product(&sums, &scale));
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
