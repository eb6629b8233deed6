//! The program is the model: a command less, or two in the other order, and the reference's logits are others.

use crate::support::{model, program};
use std::collections::BTreeMap;
use wordline::model::Model;
use wordline_engine::{Capacity, EngineModel, Linear, Row, Sequencer, StepError};
use wordline_ir::command::Unit;
use wordline_ir::{Command, Ends, LayerId, Program, Slot};

/// A dense model, and a hybrid one with a mixture of experts.
const MODELS: [&str; 2] = ["given/llama", "given/qwen3_next"];

/// What came of a program.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// Bits of the logits of every position; empty where no command writes logits.
    Logits(Vec<u32>),
    /// The command whose unit refused.
    Refused(&'static str),
}

/// Every position's logits on the exact reference, in steps of four. Without an embedding the residual begins at zero.
fn outcome(model: &Model, program: Program) -> Outcome {
    let (embeds, width) = (Ends::of(&program).embeds, program.width(Slot::X).unwrap());
    let sequencer = Sequencer::unverified(program);
    let capacity = Capacity { ctx: 16, step_rows: 4 };
    let mut engine = EngineModel::reference(sequencer, capacity, &model.checkpoint.weights, Linear::Exact, 1).unwrap();
    let seq = engine.open();
    let ids: Vec<u32> = (1..=9).map(|i| i * 7919 % model.checkpoint.spec.vocab as u32).collect();
    let mut bits = Vec::new();
    for ids in ids.chunks(4) {
        let rows: Vec<Row> = ids.iter().map(|&token| Row { seq, token, logits: true }).collect();
        let hidden = vec![0.0; rows.len() * width];
        match if embeds { engine.step(&rows) } else { engine.step_hidden(&rows, &hidden) } {
            Ok(logits) => {
                let finite = logits.values().iter().all(|l| l.is_finite());
                assert!(finite, "{}: a logit is not finite", model.name);
                bits.extend(logits.values().iter().map(|l| l.to_bits()));
            }
            Err(StepError::Command { mnemonic, .. }) => return Outcome::Refused(mnemonic),
            Err(other) => panic!("{}: {other}", model.name),
        }
    }
    Outcome::Logits(bits)
}

#[test]
fn dropping_any_one_command_changes_the_logits() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        let whole = outcome(&model, program.clone());
        assert!(matches!(&whole, Outcome::Logits(bits) if !bits.is_empty()), "{name}: {whole:?}");
        let mut changed: BTreeMap<&str, usize> = BTreeMap::new();
        for index in 0..program.commands.len() {
            let mut less = program.clone();
            let dropped = less.commands.remove(index);
            let found = outcome(&model, less);
            let head = matches!(dropped, Command::Matvec { layer: LayerId::OUTSIDE, .. });
            match dropped {
                // Attend finds none of the positions that its row sees, and says so.
                Command::CacheAppend { .. } => assert_eq!(found, Outcome::Refused("attend"), "{name}: {index}"),
                // Nothing else writes logits.
                _ if head => assert_eq!(found, Outcome::Logits(Vec::new()), "{name}: {index}"),
                _ => {
                    assert!(
                        matches!(&found, Outcome::Logits(bits) if !bits.is_empty()),
                        "{name}: {index} {dropped:?}: {found:?}"
                    );
                    assert!(found != whole, "{name}: command {index} can be left out: {dropped:?}");
                }
            }
            *changed.entry(dropped.info().mnemonic).or_default() += 1;
        }
        println!("{name}: {} commands, each changes the logits: {changed:?}", program.commands.len());
    }
}

/// The two commands touch nothing of one another's: no slot that either writes, and no state of one layer.
fn independent(a: &Command, b: &Command) -> bool {
    let touches = |c: &Command, slot: Slot| c.slots().any(|(_, s)| s == slot);
    let apart =
        |a: &Command, b: &Command| a.slots().filter(|(f, _)| f.role.writes()).all(|(_, slot)| !touches(b, slot));
    let cache = |c: &Command| matches!(c, Command::CacheAppend { .. } | Command::Attend { .. });
    apart(a, b) && apart(b, a) && !(cache(a) && cache(b) && a.layer() == b.layer())
}

#[test]
fn neighbours_of_different_units_change_places_only_where_neither_touches_what_the_other_writes() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        let whole = outcome(&model, program.clone());
        let (mut refused, mut changed, mut free) = (0, 0, 0);
        for index in 1..program.commands.len() {
            let (a, b) = (program.commands[index - 1], program.commands[index]);
            let unit = |c: &Command| -> Unit { c.info().unit };
            if unit(&a) == unit(&b) {
                continue;
            }
            let mut swapped = program.clone();
            swapped.commands.swap(index - 1, index);
            if independent(&a, &b) {
                assert!(outcome(&model, swapped) == whole, "{name}: {index}: {a:?} and {b:?} do not touch each other");
                free += 1;
            } else if wordline_ir::verify(&swapped).is_err() {
                refused += 1;
            } else {
                assert!(outcome(&model, swapped) != whole, "{name}: {index}: {b:?} before {a:?} changes nothing");
                changed += 1;
            }
        }
        println!("{name}: swapped neighbours: {refused} refused, {changed} change the logits, {free} are independent");
        assert!(refused + changed > 20, "{name}: {refused} refused, {changed} changed");
    }
}

#[test]
fn the_oracles_program_is_refused_by_name() {
    let model = model("given/llama");
    let spec = &model.checkpoint.spec;
    let oracle = wordline_lowering::hand_lowering(spec, &wordline_ir::Numerics::default()).unwrap();
    let error = Sequencer::new(&oracle).unwrap_err();
    assert!(matches!(error, wordline_engine::WordsError::NoCut), "{error}");
    // The same commands under the identity that lowering gives them run.
    let lowered = program(&model);
    assert_eq!(oracle.commands, lowered.commands);
    let words = oracle.words().unwrap();
    assert!(matches!(Sequencer::from_words(&oracle, &words), Err(wordline_engine::WordsError::NoCut)));
    assert_eq!(Sequencer::from_words(&lowered, &words).unwrap().program(), &lowered);
}
