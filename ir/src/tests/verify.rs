//! `verify`: sound programs pass, and each fault of a kind is one defect of its kind at its place.

use super::faults::{FAULTS, set};
use super::samples;
use crate::verify::{At, Defect, DefectKind as K, Ends};
use crate::{Command, Const, Cut, LayerId, Program, Slot, SlotInfo, verify, verify_part};

#[test]
fn the_samples_are_valid() {
    for (name, program) in samples::all() {
        assert_eq!(verify(&program), Ok(()), "{name}");
        assert_eq!(Ends::of(&program), Ends::WHOLE);
    }
}

#[test]
fn a_program_that_was_read_off_no_cut_has_every_layer_up_to_its_last() {
    let mut program = samples::dense();
    program.identity.cut = Cut::NONE;
    assert_eq!(verify(&program), Ok(()));
    for command in &mut program.commands {
        let mut raw = command.to_raw();
        raw.layer = if raw.layer == 1 { 2 } else { raw.layer };
        *command = Command::from_raw(&raw).unwrap();
    }
    assert!(matches!(&defects(&program)[..], [Defect { kind: K::NoLayer { .. }, .. }]));
}

fn defects(program: &Program) -> Vec<Defect> {
    verify(program).err().map(|d| d.0).unwrap_or_default()
}

/// Each fault is found; its defects, as listed in the golden file, are those that it causes.
#[test]
fn every_fault_is_found_and_told() {
    for (group, faults) in FAULTS {
        let mut text = String::new();
        for (what, sample, change) in *faults {
            let mut program = sample();
            change(&mut program);
            let found = defects(&program);
            assert!(!found.is_empty(), "{group}: {what} is not found");
            text += &format!("{what}\n");
            found.iter().for_each(|defect| text += &format!("    {defect}\n"));
        }
        insta::assert_snapshot!(format!("faults_in_{group}"), text);
    }
}

/// Every kind of defect is shown by some fault.
#[test]
fn every_kind_of_defect_has_its_fault() {
    let kinds = "Alias Constant Count Geometry Kind Limit Name NoLayer NoRope NoSlot NoTensor Order OutsideCut Part Picks \
        Range SameName Shape Stack State Twice Unread Unused Unwritten Value View Width Zero";
    let mut seen = std::collections::BTreeSet::new();
    for (_, sample, change) in FAULTS.iter().flat_map(|(_, faults)| *faults) {
        let mut program = sample();
        change(&mut program);
        let name = |kind: &K| format!("{kind:?}").split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned);
        seen.extend(defects(&program).iter().filter_map(|d| name(&d.kind)));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), kinds.split_whitespace().collect::<Vec<_>>());
}

/// Every command of every sample matters: without it something is unwritten, unread, unused or out of order. A change in
/// place is what the commands around it can do without.
#[test]
fn a_program_without_one_of_its_commands_is_refused() {
    for (name, program) in samples::all() {
        for index in 0..program.commands.len() {
            let mut less = program.clone();
            let dropped = less.commands.remove(index);
            let written: Vec<Slot> = dropped.slots().filter(|(f, _)| f.role.writes()).map(|(_, s)| s).collect();
            let in_place = dropped.slots().any(|(f, slot)| f.role.reads() && written.contains(&slot));
            assert!(in_place || !defects(&less).is_empty(), "{name}: {dropped:?}");
        }
    }
}

#[test]
fn all_defects_are_listed_and_point_at_their_commands() {
    let mut program = samples::moe();
    set!(&mut program, "norm" 0, Norm { eps = Const::new(f32::NAN) });
    set!(&mut program, "cache_append" 0, CacheAppend { head_dim = 15 });
    set!(&mut program, "top_k" 0, TopK { experts = 9 });
    set!(&mut program, "gate" 0, Gate { gate = Slot::Logits });
    program.ropes[0].theta = f64::NAN;
    program.tensors[3].view.parts[0].shape[0] = 1;
    program.slots.push(SlotInfo { slot: Slot::Inner, width: 0 });
    program.commands.swap(2, 3);
    let error = verify(&program).unwrap_err();
    insta::assert_snapshot!("moe_with_many_faults", error);
    let command = |at: &At| matches!(at, At::Command { .. });
    assert!(error.0.iter().filter(|d| command(&d.at)).count() >= 5);
    assert!(error.0.iter().filter(|d| !command(&d.at)).count() >= 4);
}

/// A part of a program: the commands of a range with the tables that they use.
fn part(program: &Program, range: std::ops::Range<usize>, cut: (usize, usize)) -> Program {
    let mut part = program.clone();
    part.commands = program.commands[range].to_vec();
    (part.identity.cut.first_layer, part.identity.cut.last_layer) = cut;
    let slots: Vec<Slot> = part.commands.iter().flat_map(|c| c.slots().map(|(_, s)| s)).collect();
    part.slots.retain(|s| slots.contains(&s.slot));
    if !part.commands.iter().any(|c| matches!(c, Command::Rope { .. })) {
        part.ropes.clear();
    }
    let used: Vec<usize> = part.commands.iter().flat_map(|c| c.tensors().map(|(_, t)| t.index())).collect();
    let kept: Vec<usize> = (0..program.tensors.len()).filter(|i| used.contains(i)).collect();
    part.tensors = kept.iter().map(|i| program.tensors[*i].clone()).collect();
    for command in &mut part.commands {
        let mut raw = command.to_raw();
        for (_, place) in command.info().places() {
            let old = raw.get(place) as usize;
            if let (crate::command::Place::Tensor(_), Some(new)) = (place, kept.iter().position(|k| *k == old)) {
                raw.set(place, new as u32).unwrap();
            }
        }
        *command = Command::from_raw(&raw).unwrap();
    }
    part
}

#[test]
fn a_program_cut_between_layers_is_parts_that_pass() {
    let program = samples::dense();
    let first_of = |layer: u8| program.commands.iter().position(|c| c.layer() == LayerId(layer)).unwrap();
    let (l0, l1) = (first_of(0), first_of(1));
    let readout = program.commands.iter().rposition(|c| c.layer() == LayerId(1)).unwrap() + 1;
    let end = program.commands.len();
    let ends = |embeds, reads_out| Ends { embeds, reads_out };
    let cuts = [
        (0..l1, (0, 1), ends(true, false)),
        (0..l0, (0, 0), ends(true, false)),
        (l0..l1, (0, 1), ends(false, false)),
        (l1..readout, (1, 2), ends(false, false)),
        (l1..end, (1, 2), ends(false, true)),
        (readout..end, (2, 2), ends(false, true)),
    ];
    for (range, cut, ends) in cuts {
        let part = part(&program, range.clone(), cut);
        assert_eq!(Ends::of(&part), ends, "{range:?}");
        assert_eq!(verify_part(&part, ends), Ok(()), "{range:?}");
        let whole_tables = Program { commands: program.commands[range.clone()].to_vec(), ..program.clone() };
        let whole_tables = Program { identity: part.identity.clone(), ..whole_tables };
        assert_eq!(verify_part(&whole_tables, ends), Ok(()), "{range:?}");
        for other in [Ends::WHOLE, Ends { embeds: !ends.embeds, ..ends }, Ends { reads_out: !ends.reads_out, ..ends }] {
            assert!(verify_part(&part, other).is_err(), "{range:?} as {other:?}");
        }
    }
    // Cut inside a layer, what the layer had computed does not arrive.
    let inside = part(&program, l1 + 2..end, (1, 2));
    let found = verify_part(&inside, ends(false, true)).unwrap_err().0;
    assert!(found.iter().any(|d| matches!(d.kind, K::Unwritten { slot: Slot::Qkv, .. })), "{found:?}");
}

#[test]
fn a_value_of_another_layer_is_not_read() {
    let mut program = samples::dense();
    // The second layer's first norm gone, its matvec reads what the first layer left in `h`.
    let at = program.commands.iter().position(|c| c.layer() == LayerId(1)).unwrap();
    program.commands.remove(at);
    let found = defects(&program);
    let stale = |d: &Defect| matches!(d.kind, K::Unwritten { slot: Slot::H, layer: true, start: 0, end: 64, .. });
    assert!(found.iter().any(stale), "{found:?}");
}
