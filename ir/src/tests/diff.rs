//! The first difference of two programs.

use super::samples;
use crate::spec::RopeScaling;
use crate::{Command, Difference, Offset, first_difference};

#[test]
fn equal_programs_have_none_and_the_cut_does_not_count() {
    for (name, program) in samples::all() {
        let mut other = program.clone();
        other.identity.cut.ctx = 4096;
        assert_eq!(first_difference(&program, &other), None, "{name}");
    }
}

#[test]
fn the_first_differing_command_is_shown_from_both_sides() {
    let (left, mut right) = (samples::windowed(), samples::windowed());
    for command in &mut right.commands[5..] {
        if let Command::Matvec { offset, .. } = command {
            *offset = Offset(offset.0 + 1);
        }
    }
    let difference = first_difference(&left, &right).unwrap();
    let text = "command 9 differs in offset\n  \
        left:  L0   matvec        attn -> mix              weight=l0.o[64x64]\n  \
        right: L0   matvec        attn -> mix              weight=l0.o[64x64] offset=1";
    assert_eq!(difference.to_string(), text);
    let Difference::Command { index, fields, .. } = difference else { panic!("{difference}") };
    assert_eq!((left.commands[..index].to_vec(), fields), (right.commands[..index].to_vec(), vec!["offset"]));
}

#[test]
fn a_shorter_program_differs_where_it_ends() {
    let (left, mut right) = (samples::windowed(), samples::windowed());
    right.commands.pop();
    let Some(Difference::Command { index, left: Some(_), right: None, .. }) = first_difference(&left, &right) else {
        panic!("one side has ended")
    };
    assert_eq!(index, right.commands.len());
}

#[test]
fn equal_names_at_other_indices_show_their_words() {
    let (left, mut right) = (samples::dense(), samples::dense());
    // Tensors 1 and 2 change places, in the table and in the commands: every line of text stays.
    right.tensors.swap(1, 2);
    for command in &mut right.commands {
        let mut raw = command.to_raw();
        raw.tensors = raw.tensors.map(|index| if index == 1 || index == 2 { 3 - index } else { index });
        *command = Command::from_raw(&raw).unwrap();
    }
    let difference = first_difference(&left, &right).unwrap();
    let [l, r] = [&left, &right].map(|p| p.words().unwrap()[1].to_string());
    assert!(difference.to_string().starts_with("command 1 differs in weight\n"), "{difference}");
    assert!(difference.to_string().contains(&l) && difference.to_string().contains(&r), "{difference}");
}

#[test]
fn each_table_and_fact_is_compared() {
    let left = samples::hybrid();
    let of = |change: &dyn Fn(&mut crate::Program)| {
        let mut right = left.clone();
        change(&mut right);
        first_difference(&left, &right).unwrap()
    };
    assert!(matches!(of(&|p| p.slots[3].width = 1), Difference::Slot { index: 3, .. }));
    assert!(matches!(of(&|p| p.tensors[2].view.add_one = true), Difference::Tensor { index: 2, .. }));
    assert!(matches!(of(&|p| p.ropes[0].scaling = RopeScaling::Default), Difference::Rope { index: 0, .. }));
    assert!(matches!(of(&|p| p.max_pos = 1), Difference::Program { field: "max_pos", .. }));
    assert!(matches!(of(&|p| p.identity.family.clear()), Difference::Program { field: "family", .. }));
    assert!(matches!(of(&|p| p.identity.spec.clear()), Difference::Program { field: "spec", .. }));
    assert!(matches!(of(&|p| p.identity.numerics.lanes = 32), Difference::Program { field: "numerics", .. }));
    let json = serde_json::to_value(of(&|p| p.slots[3].width = 1)).unwrap();
    assert_eq!(json["where"], "slot");
}
