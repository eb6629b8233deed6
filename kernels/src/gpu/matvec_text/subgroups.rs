//! The shader for subgroups. A subgroup of `S` threads takes `S` neighbouring blocks of a set of rows at a time, a block a
//! thread, so loads are wide and all rows of the set use the activations that were loaded once. The products then
//! change places by shuffles, so that `L` threads hold the lanes of one row, `S / L` rows at once, and add them in order.

use super::bindings::ROUTE;
use super::shape::{Plan, Shape};
use super::stage::Stage;
use super::terms::terms;
use crate::format::Limbs;
use crate::gpu::weights::QUAD;
use std::fmt::Write as _;

/// Rows of a set at once, `size / lanes` rows in the lanes of one subgroup.
pub(super) fn text(plan: &Plan, shape: &Shape, size: u32) -> String {
    let Plan { rows, unroll, subgroups, tokens, .. } = *plan;
    let (lanes, groups, two) = (shape.lanes, size / shape.lanes, shape.limbs == Limbs::Two);
    let (terms, coded) = (terms(shape), shape.weights.book().is_some());
    let (quads, sets) = (rows / QUAD as u32, rows / groups);
    let steps = shape.blocks.div_ceil(size);
    let begin = if shape.gated.is_some() { "begin_for(params.gates)" } else { "begin()" };
    let mut t = format!(
        "\n@compute @workgroup_size({})\nfn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_id) part: u32, \
         @builtin(subgroup_invocation_id) lane: u32) {{\n  let live = {begin};\n  zero ^= params.none;\n  \
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
    let stage = Stage { plan, shape, size, quads, sets, groups, two, coded, terms };
    let stages = steps.div_ceil(unroll);
    if plan.ahead && !shape.routed && stages > 1 {
        // One text for all stages: what the kernels of a layer are made of has to stay in a cache of instructions.
        stage.declare(&mut t, "x");
        stage.load(&mut t, "x", "0u");
        let _ = writeln!(t, "  for (var o = {unroll}u; o <= {}u; o += {unroll}u) {{", stages * unroll);
        stage.declare(&mut t, "y");
        stage.load(&mut t, "y", "o");
        stage.multiply(&mut t, "x");
        stage.follow(&mut t, "x", "y");
        t += "  }\n";
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
             q_quad(0u, {}u + group.y, quad, four, live && part == 0u && lane < 8u, params.gates);\n}}",
            shape.first
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
