//! The blocks that the subgroups' loop asks for at once. Each stage's loads have names of their own, so that those of the
//! next can be on their way while these are multiplied.

use super::shape::{Plan, Shape};
use super::terms::{Term, product, shape_limbs};
use crate::gpu::weights::QUAD;
use std::fmt::Write as _;

/// `unroll` blocks of every thread: asked for, then multiplied and added.
pub(super) struct Stage<'a> {
    pub(super) plan: &'a Plan,
    pub(super) shape: &'a Shape,
    pub(super) size: u32,
    pub(super) quads: u32,
    pub(super) sets: u32,
    pub(super) groups: u32,
    pub(super) two: bool,
    pub(super) coded: bool,
    pub(super) terms: &'a [Term],
}

impl Stage<'_> {
    /// What the loads go to, by the name of the stage.
    pub(super) fn declare(&self, t: &mut String, name: &str) {
        for (of, zero) in self.loaded() {
            let _ = writeln!(t, "    var {name}{of} = {zero};");
        }
    }

    /// One stage becomes the next.
    pub(super) fn follow(&self, t: &mut String, name: &str, next: &str) {
        for (of, _) in self.loaded() {
            let _ = writeln!(t, "    {name}{of} = {next}{of};");
        }
    }

    /// Names of what a stage loads, after the stage's own, and the zero of each.
    fn loaded(&self) -> Vec<(String, &'static str)> {
        let mut all = Vec::new();
        for i in 0..self.plan.unroll {
            all.extend([(format!("k{i}"), "0u"), (format!("in{i}"), "true")]);
            if self.shares() {
                for (_, limb) in shape_limbs(self.two) {
                    all.extend([0, 1].map(|h| (format!("{limb}{i}_{h}"), "vec4<u32>(0u)")));
                }
                all.push((format!("s{i}"), "0.0"));
            }
            for q in 0..self.quads {
                for j in 0..QUAD {
                    all.extend(self.parts().iter().map(|h| (format!("e{i}_{q}_{j}{h}"), "vec4<u32>(0u)")));
                }
                all.extend(self.halves().iter().map(|h| (format!("c{i}_{q}{h}"), "0u")));
            }
        }
        all
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

    pub(super) fn load(&self, t: &mut String, name: &str, o: &str) {
        let (unroll, size) = (self.plan.unroll, self.size);
        // The last stage asks for one more.
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

    pub(super) fn multiply(&self, t: &mut String, name: &str) {
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
                    for Term { name: part, half } in self.terms {
                        let sum = |limb: &str| {
                            let products = |h: u32| format!("products({name}e{i}_{q}_{j}_{h}, {limb}{h})");
                            half.map_or_else(|| format!("{} + {}", products(0), products(1)), products)
                        };
                        let sums: Vec<String> = shape_limbs(two).iter().map(|(_, limb)| sum(limb)).collect();
                        let _ = writeln!(t, "      var p{row}{part} = {};", product(&sums, &format!("s{row}{part}")));
                    }
                }
                for set in 0..sets {
                    transpose(t, set * groups, groups, shape.lanes, self.terms);
                    for from in 0..groups {
                        for Term { name: part, .. } in self.terms {
                            let p = format!("p{}{part}", set * groups + from);
                            // What comes by a shuffle is a value to a compiler, and no sum.
                            let p = if groups > 1 { p } else { format!("apart({p})") };
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

/// Products of rows `first ..` change places: thread group `g` holds row `first + g`'s, in the order of the groups
/// that made them.
fn transpose(t: &mut String, first: u32, groups: u32, lanes: u32, terms: &[Term]) {
    for stage in 0..groups.trailing_zeros() {
        let bit = 1 << stage;
        for low in (0..groups).filter(|k| k & bit == 0) {
            let (a, c) = (first + low, first + (low | bit));
            for Term { name: part, .. } in terms {
                let (a, c) = (format!("p{a}{part}"), format!("p{c}{part}"));
                let _ = write!(
                    t,
                    "      {{ let got = subgroupShuffleXor(select({c}, {a}, up{stage}), {}u);\n        \
                     {a} = select({a}, got, up{stage}); {c} = select(got, {c}, up{stage}); }}\n",
                    bit * lanes
                );
            }
        }
    }
}
