//! The oracle judges: over the given checkpoints and both storytellers, every authored operation dropped, every two
//! operands of one shape swapped, and every rule switched off, one at a time.

use crate::support::{fixtures, model};
use std::collections::{BTreeMap, BTreeSet};
use wordline_ir::graph::{Prim, Site};
use wordline_ir::spec::{Ffn, Layer, Mixer};
use wordline_ir::{Numerics, Program, Spec};
use wordline_lowering::author::Step;
use wordline_lowering::mutants::{Mutant, Mutation, Verdict, equivalent, judge, mutants};
use wordline_lowering::rules::PHASES;
use wordline_lowering::{Shim, author, fuse, hand_lowering, lift};

/// Rules for which no fixture has anything, and why they are in the table all the same.
const SILENT: [(&str, &str); 2] = [
    ("rotate_pairs", "a Spec may turn neighbouring dimensions, and no family that is read does"),
    ("logit_scale", "a Spec may scale the logits, and no family that is read does"),
];

fn specs(names: impl Iterator<Item = String>) -> Vec<(String, Spec)> {
    names
        .map(|name| {
            let spec = model(&name).checkpoint.spec;
            (name, spec)
        })
        .collect()
}

/// The given checkpoints and both storytellers.
fn judged() -> Vec<(String, Spec)> {
    let specs = specs(fixtures().into_iter().filter(|name| !name.starts_with("extra/")));
    assert_eq!(specs.len(), 11, "{:?}", specs.iter().map(|(name, _)| name).collect::<Vec<_>>());
    specs
}

fn step_and_oracle(spec: &Spec) -> (Step, Program) {
    let oracle = hand_lowering(spec, &Numerics::default()).expect("the oracle writes it");
    (author(spec, 16).expect("the author writes it"), oracle)
}

/// What a layer is made of: layers of one kind differ in the tensors they name and in nothing that a rule looks at.
fn kind(layer: &Layer) -> String {
    let mixer = match &layer.mixer {
        Mixer::Attention(a) => format!("attention, window {:?}, rope {:?}", a.window, a.rope),
        Mixer::DeltaNet(_) => "delta net".to_owned(),
    };
    let ffn = match &layer.ffn {
        Ffn::Dense(_) => "dense",
        Ffn::Moe(_) => "experts",
    };
    format!("{mixer}; {ffn}")
}

/// The first layer of each kind; operations outside any layer count too.
fn shown(spec: &Spec) -> impl Fn(&Site) -> bool {
    let mut seen = BTreeSet::new();
    let first: Vec<bool> = spec.layers.iter().map(|layer| seen.insert(kind(layer))).collect();
    move |site| site.layer.is_none_or(|layer| first.get(layer).copied().unwrap_or(false))
}

/// Name of a mutation's kind, and the operation that it is done to.
fn target(mutation: &Mutation) -> (&'static str, &str) {
    match mutation {
        Mutation::Drop { op } => ("drop", op),
        Mutation::Swap { op, .. } => ("swap", op),
        Mutation::Rewire { op, .. } => ("rewire", op),
        Mutation::Alter { op, .. } => ("alter", op),
    }
}

#[derive(Debug, Default)]
struct Counts {
    refused: usize,
    differs: usize,
    equivalent: BTreeMap<&'static str, usize>,
}

/// Dropped and swapped everywhere; rewired and altered, which there are many ways to be, in the first layer of each kind.
#[test]
fn every_wrong_step_is_refused_or_differs_or_means_the_same() {
    let mut counts: BTreeMap<&str, Counts> = BTreeMap::new();
    let mut escaped = Vec::new();
    for (name, spec) in judged() {
        let (step, oracle) = step_and_oracle(&spec);
        let shown = shown(&spec);
        let sites: BTreeMap<&str, Site> = step.ops.iter().map(|op| (op.name.as_str(), op.site)).collect();
        for mutant in mutants(&step) {
            let (what, op) = target(&mutant.mutation);
            if !matches!(what, "drop" | "swap") && !shown(&sites[op]) {
                continue;
            }
            let counts = counts.entry(what).or_default();
            match judge(&mutant.step, &Shim::engine(), &oracle) {
                Verdict::Refused(_) => counts.refused += 1,
                Verdict::Differs(_) => counts.differs += 1,
                Verdict::Equal => match equivalent(&step, &mutant) {
                    Some(reason) => *counts.equivalent.entry(reason).or_default() += 1,
                    None => escaped.push(describe(&name, &mutant)),
                },
            }
        }
    }
    for (what, counts) in &counts {
        println!("{what}: {counts:?}");
    }
    assert!(escaped.is_empty(), "{} wrong steps give the oracle's program:\n{}", escaped.len(), escaped.join("\n"));
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), ["alter", "drop", "rewire", "swap"]);
    assert!(counts["drop"].refused > 0 && counts["drop"].differs > 0, "{counts:?}");
    assert!(counts["swap"].refused + counts["swap"].differs > 0, "{counts:?}");
    // Nothing that is dropped or swapped means the same.
    assert!(counts["drop"].equivalent.is_empty() && counts["swap"].equivalent.is_empty(), "{counts:?}");
}

fn describe(name: &str, Mutant { mutation, prim, .. }: &Mutant) -> String {
    let of: &Prim = prim;
    format!("{name}: {mutation:?} of {}", of.name())
}

#[test]
fn a_right_step_is_the_oracles() {
    for (name, spec) in judged() {
        let (step, oracle) = step_and_oracle(&spec);
        let verdict = judge(&step, &Shim::engine(), &oracle);
        assert!(matches!(verdict, Verdict::Equal), "{name}: {verdict:?}");
    }
}

#[test]
fn every_rule_fires_on_a_checkpoint_and_none_that_fires_can_be_missed() {
    let mut all_fired = BTreeSet::new();
    let (mut refused, mut differs) = (0, 0);
    for (name, spec) in specs(fixtures().into_iter()) {
        let (step, oracle) = step_and_oracle(&spec);
        let mut graph = lift(&step).expect("it lifts");
        for fired in fuse(&mut graph, &Shim::engine()) {
            all_fired.insert(fired.rule);
            match judge(&step, &Shim::engine().without(fired.rule), &oracle) {
                Verdict::Refused(_) => refused += 1,
                Verdict::Differs(_) => differs += 1,
                Verdict::Equal => panic!("{name}: the program is the same without rule {}", fired.rule),
            }
        }
    }
    println!("{} rules fire; switched off: {refused} refused, {differs} differ", all_fired.len());
    assert!(refused > 0 && refused + differs >= all_fired.len());
    let silent = SILENT.map(|(rule, _)| rule);
    for rule in PHASES.iter().flat_map(|phase| phase.rules) {
        let (fires, listed) = (all_fired.contains(rule.name), silent.contains(&rule.name));
        assert!(fires != listed, "rule {}: fires {fires}, listed as silent {listed}", rule.name);
    }
    assert!(SILENT.iter().all(|(rule, why)| !why.is_empty() && wordline_lowering::rules::rule(rule).is_some()));
}
