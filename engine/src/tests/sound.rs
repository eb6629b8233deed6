//! The test programs are sound, compute numbers, and every command of them matters.

use super::programs::{self, Rng};
use super::{Bits, KINDS, Kind, capacity, engine, engine_of, run};
use crate::{Row, Sequencer, StepError};
use wordline_ir::{Command, Ends, Program, Slot, Word};

#[test]
fn the_programs_pass_verify() {
    for (name, program) in programs::all() {
        if let Err(error) = wordline_ir::verify(&program) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn logits_are_finite_and_differ_by_row() {
    for kind in KINDS {
        for (name, program) in programs::all() {
            let mut model = engine(kind, &program, capacity(64), 1);
            let seq = model.open();
            let bits = run(&mut model, seq, &[3, 9, 3, 9, 9, 9], &[6]);
            assert!(bits.0.iter().all(|b| f32::from_bits(*b as u32).is_finite()), "{kind:?} {name}");
            let rows: Vec<_> = bits.0.chunks(75).map(|row| Bits(row.to_vec())).collect();
            // The same token at another position, or after another past, gives other logits.
            for (i, a) in rows.iter().enumerate() {
                for b in &rows[..i] {
                    assert_ne!(a, b, "{kind:?} {name}");
                }
            }
        }
    }
}

/// What came of a program that is not whole.
#[derive(Debug, PartialEq)]
enum Outcome {
    Logits(Bits),
    /// The unit of this command says why it cannot.
    Refused(&'static str),
}

/// The logits of `tokens` in steps of five, of a program that may lack an end: without an embedding the residual is zero.
fn outcome(kind: Kind, program: Program, tokens: &[u32]) -> Outcome {
    let (embeds, width) = (Ends::of(&program).embeds, program.width(Slot::X).unwrap());
    let mut model = engine_of(kind, Sequencer::unverified(program), capacity(64), 1);
    let seq = model.open();
    let mut bits = Bits::default();
    for tokens in tokens.chunks(5) {
        let rows: Vec<Row> = tokens.iter().map(|token| Row { seq, token: *token, logits: true }).collect();
        let hidden = vec![0.0; rows.len() * width];
        match if embeds { model.step(&rows) } else { model.step_hidden(&rows, &hidden) } {
            Ok(logits) => bits.extend(logits.values()),
            Err(StepError::Command { mnemonic, .. }) => return Outcome::Refused(mnemonic),
            Err(other) => panic!("{other}"),
        }
    }
    Outcome::Logits(bits)
}

/// A program without one of its commands gives other logits: the program is the model. Only an Attend over a cache that
/// nothing filled refuses; nothing panics.
#[test]
fn dropping_any_command_changes_the_output() {
    for kind in KINDS {
        for (name, program) in programs::all() {
            let tokens = Rng(5).tokens(9, 75);
            let whole = outcome(kind, program.clone(), &tokens);
            assert!(matches!(whole, Outcome::Logits(_)), "{kind:?} {name}: {whole:?}");
            for index in 0..program.commands.len() {
                let mut less = program.clone();
                let dropped = less.commands.remove(index);
                let found = outcome(kind, less, &tokens);
                if matches!(dropped, Command::CacheAppend { .. }) {
                    assert_eq!(found, Outcome::Refused("attend"), "{kind:?} {name}: {index} {dropped:?}");
                } else {
                    assert!(matches!(found, Outcome::Logits(_)), "{kind:?} {name}: {index} {dropped:?}: {found:?}");
                    assert_ne!(found, whole, "{kind:?} {name}: {index} {dropped:?}");
                }
            }
        }
    }
}

/// One changed bit of one word is refused or changes the result, for every word of every program.
#[test]
fn every_bit_of_every_word_counts() {
    let kind = Kind::Reference;
    let mut seen = std::collections::BTreeSet::new();
    let (mut refused, mut changed) = (0, 0);
    for (name, mut program) in programs::all() {
        if name != "learned" {
            // Few enough positions that the largest window allowed is shorter than the run.
            program.max_pos = 96;
        }
        let tokens = Rng(6).tokens(80, 75);
        let ctx = program.max_pos;
        let result = |sequencer: Sequencer| {
            let mut model = engine_of(kind, sequencer, capacity(ctx), 1);
            let seq = model.open();
            run(&mut model, seq, &tokens, &[17])
        };
        let whole = result(Sequencer::new(&program).unwrap());
        let words: Vec<Word> = program.commands.iter().map(|c| Word::encode(c).unwrap()).collect();
        for (index, word) in words.iter().enumerate() {
            // Words of a kind that another program has shown need not be shown again.
            if !seen.insert((program.commands[index].info().code, name == "windowed")) {
                continue;
            }
            for bit in 0..256 {
                let mut flipped = word.to_bytes();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let mut words = words.clone();
                words[index] = Word::from_bytes(flipped);
                match Sequencer::from_words(&program, &words) {
                    Err(_) => refused += 1,
                    Ok(sequencer) => {
                        assert_ne!(result(sequencer), whole, "{name}: word {index}, bit {bit} changes nothing");
                        changed += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 0 && changed > 0, "{refused} refused, {changed} changed");
    assert_eq!(seen.iter().map(|(code, _)| *code).collect::<std::collections::BTreeSet<_>>().len(), 19);
}
