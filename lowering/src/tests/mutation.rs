//! The oracle judges: every mutant of every family's step is refused or differs, or means the same.

use crate::mutants::{Mutant, Verdict, equivalent, judge, mutants};
use crate::testing::families;
use crate::{Shim, author, fuse, hand_lowering, lift};
use std::collections::BTreeMap;
use wordline_ir::Numerics;

#[test]
fn every_mutant_is_refused_or_differs_or_means_the_same() {
    let mut escaped: Vec<String> = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for spec in families() {
        let oracle = hand_lowering(&spec, &Numerics::default()).expect("the oracle writes it");
        let step = author(&spec, 16).expect("the author writes it");
        let name = &spec.family;
        for mutant in mutants(&step) {
            let verdict = judge(&mutant.step, &Shim::engine(), &oracle);
            let kind = match verdict {
                Verdict::Refused(_) => "refused",
                Verdict::Differs(_) => "differs",
                Verdict::Equal => match equivalent(&step, &mutant) {
                    Some(_) => "equivalent",
                    None => {
                        let Mutant { mutation, prim, .. } = &mutant;
                        escaped.push(format!("{name}: {mutation:?} of {}", prim.name()));
                        "escaped"
                    }
                },
            };
            *seen.entry(kind).or_default() += 1;
        }
    }
    println!("{seen:?}");
    assert!(escaped.is_empty(), "{} mutants escaped:\n{}", escaped.len(), escaped.join("\n"));
    assert!(seen["refused"] > 1000 && seen["differs"] > 100, "{seen:?}");
}

#[test]
fn every_rule_that_fires_is_needed() {
    for spec in families() {
        let oracle = hand_lowering(&spec, &Numerics::default()).expect("the oracle writes it");
        let step = author(&spec, 16).expect("the author writes it");
        let mut graph = lift(&step).expect("it lifts");
        for fired in fuse(&mut graph, &Shim::engine()) {
            let verdict = judge(&step, &Shim::engine().without(fired.rule), &oracle);
            assert!(!matches!(verdict, Verdict::Equal), "{}: {} is not needed", spec.family, fired.rule);
        }
    }
}
