//! What passes `verify` runs; nothing makes it, the codecs or the diff panic or hang.

use super::machine;
use super::mutate::{any_program, apply, mutation};
use super::samples;
use crate::file::{from_bytes, from_json, to_bytes, to_json};
use crate::text::to_text_with_words;
use crate::{Ends, first_difference, state_layout, verify, verify_part};
use proptest::prelude::*;

#[test]
fn the_samples_run() {
    for (name, program) in samples::all() {
        assert!(machine::size(&program) < 1 << 20, "{name}");
        machine::run(&program);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_mutant_that_passes_verify_runs(which in 0..5_usize, mutations in prop::collection::vec(mutation(), 1..4)) {
        let original = samples::all().swap_remove(which).1;
        let program = mutations.iter().fold(original.clone(), |program, m| apply(&program, m));
        everything(&program);
        if verify(&program).is_ok() && machine::size(&program) < 1 << 21 {
            machine::run(&program);
        }
        // `diff` is silent about what a program was read off, and about nothing else.
        let mut same_cut = program.clone();
        same_cut.identity.cut = original.identity.cut;
        prop_assert_eq!(first_difference(&program, &original).is_none(), same_cut == original);
    }
}

proptest! {
    #[test]
    fn nonsense_is_refused_in_silence(program in any_program()) {
        everything(&program);
        let whole = verify(&program);
        prop_assert!(whole.is_err());
        prop_assert!(!whole.unwrap_err().to_string().is_empty());
    }
}

/// Every function that takes any program.
fn everything(program: &crate::Program) {
    let _ = verify(program);
    let _ = verify_part(program, Ends::of(program));
    let _ = verify_part(program, Ends { embeds: false, reads_out: false });
    let _ = state_layout(program);
    let _ = to_text_with_words(program);
    let _ = first_difference(program, &samples::dense());
    if let Ok(bytes) = to_bytes(program) {
        assert_eq!(from_bytes(&bytes).as_ref(), Ok(program));
    }
    if let Ok(json) = to_json(program) {
        assert_eq!(from_json(&json.to_string()).as_ref(), Ok(program));
    }
}

/// The most that the limits allow takes no more than a moment, however its values are shredded.
#[test]
fn the_longest_program_is_checked_in_a_moment() {
    use crate::{Command, LayerId, Offset, Slot};
    let mut program = samples::dense();
    let layer = LayerId(0);
    let (weight, bias) = (program.tensors.iter().position(|t| t.name == "l0.o").unwrap(), None);
    let weight = crate::TensorId::new(weight).unwrap();
    let limit = crate::verify::limits::COMMANDS as usize;
    let mut commands = Vec::with_capacity(limit);
    commands.push(program.commands[0]);
    for i in 0..limit as u32 - 1 {
        commands.push(match i % 3 {
            0 => Command::Matvec { layer, x: Slot::Attn, y: Slot::Qkv, weight, bias, offset: Offset(i * 17 % 64) },
            1 => Command::Scale { layer, x: Slot::Qkv, width: (i % 127 + 1) as u16, scale: crate::Const::new(1.0) },
            _ => Command::Add { layer, x: Slot::X, y: Slot::Mix, out: Slot::X, scale: crate::Const::new(1.0) },
        });
    }
    program.commands = commands;
    let start = std::time::Instant::now();
    assert!(verify(&program).is_err());
    program.commands.push(program.commands[0]);
    let defects = verify(&program).unwrap_err();
    assert_eq!(defects.0.len(), 1, "past a limit nothing else is looked at");
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
