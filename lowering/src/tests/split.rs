//! Stages hold every command once, and only what they can run.

use crate::lower;
use crate::split::{SplitError, Stage, join, split};
use crate::testing::{families, llama, mixture};
use std::ops::Range;
use wordline_ir::{Command, Ends, LayerId, Numerics, Program, Slot, verify_part};

fn program(spec: &wordline_ir::Spec) -> Program {
    lower(spec, &Numerics::default(), 64).expect("lowers").program
}

/// Every way to cut `layers` layers into ranges, the head's perhaps empty.
fn plans(layers: usize) -> Vec<Vec<Range<usize>>> {
    let mut plans = Vec::new();
    for bits in 0u32..1 << (layers - 1) {
        let mut ranges = vec![];
        let mut start = 0;
        for end in 1..=layers {
            if end == layers || bits & (1 << (end - 1)) != 0 {
                ranges.push(start..end);
                start = end;
            }
        }
        let mut headless = ranges.clone();
        headless.insert(0, 0..0);
        plans.extend([ranges, headless]);
    }
    plans
}

#[test]
fn joined_stages_are_the_whole_for_every_plan() {
    let mut specs = families();
    specs.push(mixture(5, 12));
    for spec in specs {
        let whole = program(&spec);
        for plan in plans(spec.layers.len()) {
            let stages = split(&whole, &plan).unwrap_or_else(|e| panic!("{} {plan:?}: {e}", spec.family));
            assert_eq!(join(&stages), whole.commands, "{} {plan:?}", spec.family);
            for (i, stage) in stages.iter().enumerate() {
                check_stage(&whole, stage, i, &plan[i]);
            }
        }
    }
}

fn check_stage(whole: &Program, stage: &Stage, index: usize, range: &Range<usize>) {
    let commands = &stage.program.commands;
    let has = |kind: fn(&Command) -> bool| commands.iter().any(kind);
    assert_eq!(has(|c| matches!(c, Command::Embed { .. })), index == 0);
    assert_eq!(has(|c| c.layer() == LayerId::OUTSIDE && matches!(c, Command::Matvec { .. })), index == 0);
    for c in commands.iter().filter(|c| c.layer() != LayerId::OUTSIDE) {
        assert!(range.contains(&usize::from(c.layer().0)));
    }
    // Global tables, own tensors.
    assert_eq!(stage.program.tensors, whole.tensors);
    assert_eq!(stage.program.ropes, whole.ropes);
    let used: std::collections::BTreeSet<_> = commands.iter().flat_map(|c| c.tensors().map(|(_, id)| id)).collect();
    assert_eq!(stage.tensors, used.into_iter().collect::<Vec<_>>());
    assert_eq!(
        (stage.program.identity.cut.first_layer, stage.program.identity.cut.last_layer),
        (range.start, range.end)
    );
    if index > 0 {
        assert_eq!(stage.before_hop, commands.len());
        let ends = Ends { embeds: false, reads_out: false };
        assert_eq!(Ends::of(&stage.program), ends);
        verify_part(&stage.program, ends).unwrap_or_else(|defects| {
            // The tables are the whole program's.
            let others: Vec<_> =
                defects.0.iter().filter(|d| !matches!(d.kind, wordline_ir::verify::DefectKind::Unused)).collect();
            assert!(others.is_empty(), "{others:?}");
        });
    }
}

#[test]
fn plans_that_do_not_hold_every_layer_once_are_refused() {
    let whole = program(&mixture(4, 12));
    let refused = |plan: &[Range<usize>]| split(&whole, plan).expect_err("refused");
    assert_eq!(refused(&[]), SplitError::NoStages);
    assert_eq!(refused(&[0..2, 3..4]), SplitError::Gap { stage: 1, given: 3, needed: 2 });
    assert_eq!(refused(&[0..2, 1..4]), SplitError::Gap { stage: 1, given: 1, needed: 2 });
    assert_eq!(refused(std::slice::from_ref(&(1..4))), SplitError::Gap { stage: 0, given: 1, needed: 0 });
    assert_eq!(refused(&[0..2, 2..2, 2..4]), SplitError::Empty { stage: 1, start: 2, end: 2 });
    #[expect(clippy::reversed_empty_ranges, reason = "a plan from outside may be nonsense")]
    let backwards = [0..2, 2..1];
    assert_eq!(refused(&backwards), SplitError::Empty { stage: 1, start: 2, end: 1 });
    assert_eq!(refused(&[0..2, 2..3]), SplitError::End { given: 3, needed: 4 });
    assert_eq!(refused(&[0..2, 2..5]), SplitError::End { given: 5, needed: 4 });
}

#[test]
fn a_stage_that_reads_anothers_slot_is_refused() {
    let mut whole = program(&llama());
    let first = whole.commands.iter().position(|c| c.layer() == LayerId(1)).expect("two layers");
    // Layer 1 without its norm reads what layer 0 left in `h`.
    whole.commands.remove(first);
    let error = split(&whole, &[0..1, 1..2]).expect_err("refused");
    assert_eq!(error, SplitError::Crosses { command: first, stage: 1, slot: Slot::H });
    split(&whole, std::slice::from_ref(&(0..2))).expect("one stage holds both");
}

#[test]
fn commands_out_of_order_are_refused() {
    let mut whole = program(&llama());
    let last = whole.commands.len() - 1;
    whole.commands.swap(1, last);
    assert!(matches!(split(&whole, &[0..1, 1..2]), Err(SplitError::Order { .. })));
    let mut whole = program(&llama());
    whole.commands.clear();
    assert_eq!(split(&whole, std::slice::from_ref(&(0..2))).expect("nothing to cut")[0].program.commands, vec![]);
}
