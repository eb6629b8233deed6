//! Sequences begin, fill up, fail, are reset and are released.

use super::programs::{self, Rng};
use super::{Bits, KINDS, Kind, capacity, engine, engine_of, run};
use crate::{Capacity, EngineModel, ModelError, Row, Sequencer, StepError};

#[test]
fn state_is_zero_at_the_start_and_after_a_reset() {
    for kind in KINDS {
        for (name, program) in programs::all() {
            let tokens = Rng(1).tokens(40, 75);
            let mut model = engine(kind, &program, capacity(64), 1);
            let seq = model.open();
            let fresh = model.state_bits(seq).unwrap();
            assert!(fresh.iter().all(|v| *v == 0), "{kind:?} {name}");
            let first = run(&mut model, seq, &tokens, &[9]);
            assert_ne!(model.state_bits(seq).unwrap(), fresh, "{kind:?} {name}");
            assert_eq!(model.length(seq), Some(40));
            assert!(model.reset(seq));
            assert_eq!((model.state_bits(seq).unwrap(), model.length(seq)), (fresh, Some(0)), "{kind:?} {name}");
            assert_eq!(run(&mut model, seq, &tokens, &[9]), first, "{kind:?} {name}");
            // A new sequence in the place of a released one sees nothing of it.
            assert!(model.release(seq));
            let next = model.open();
            assert_eq!(run(&mut model, next, &tokens, &[9]), first, "{kind:?} {name}");
        }
    }
}

#[test]
fn a_released_id_is_no_sequence_even_when_its_place_is_taken() {
    let mut model = engine(KINDS[0], &programs::dense(), capacity(64), 1);
    let old = model.open();
    assert!(model.release(old));
    let new = model.open();
    assert_ne!(old, new);
    let row = |seq| Row { seq, token: 0, logits: true };
    assert_eq!(model.step(&[row(new), row(old)]).unwrap_err(), StepError::Unknown { row: 1, seq: old });
    assert!(!model.release(old) && !model.reset(old));
    assert_eq!((model.length(old), model.state_bits(old)), (None, None));
    // The refused step has taken no row.
    assert_eq!(model.length(new), Some(0));
}

#[test]
fn a_row_past_the_context_is_refused_and_the_sequence_goes_on() {
    for kind in KINDS {
        for (name, program) in programs::all() {
            let mut model = engine(kind, &program, capacity(20), 1);
            let tokens = Rng(2).tokens(20, 75);
            let seq = model.open();
            let mut bits = run(&mut model, seq, &tokens[..18], &[18]);
            let rows: Vec<Row> = (0..3).map(|_| Row { seq, token: 4, logits: true }).collect();
            let error = model.step(&rows).unwrap_err();
            assert_eq!(error, StepError::Context { row: 2, position: 20, ctx: 20 }, "{kind:?} {name}");
            assert_eq!(model.length(seq), Some(18));
            bits.0.extend(run(&mut model, seq, &tokens[18..], &[2]).0);
            assert!(matches!(model.step(&rows[..1]), Err(StepError::Context { .. })), "{kind:?} {name}");
            let mut other = engine(kind, &program, capacity(64), 1);
            let seq = other.open();
            assert_eq!(run(&mut other, seq, &tokens, &[20]), bits, "{kind:?} {name}");
        }
    }
}

#[test]
fn a_step_that_does_not_fit_is_refused_by_name() {
    let mut model = engine(KINDS[0], &programs::windowed(), Capacity { ctx: 64, step_rows: 8 }, 1);
    let seq = model.open();
    let row = |token| Row { seq, token, logits: false };
    assert_eq!(model.step(&[row(3), row(75)]).unwrap_err(), StepError::Token { row: 1, token: 75, vocab: 75 });
    assert_eq!(model.step(&[row(3); 9]).unwrap_err(), StepError::Rows { row: 8, limit: 8 });
    assert!(matches!(model.step_hidden(&[row(3)], &[0.0; 40]), Err(StepError::Input(_))));
    assert!(model.step(&[]).unwrap().is_empty());
    assert_eq!(model.length(seq), Some(0));
    // Eight rows of each of two sequences fit.
    let other = model.open();
    let rows: Vec<Row> = [seq, other].iter().flat_map(|seq| [Row { seq: *seq, token: 1, logits: false }; 8]).collect();
    assert!(model.step(&rows).is_ok());
}

#[test]
fn a_capacity_that_is_none_is_refused() {
    let program = programs::learned();
    let source = programs::weights(&program, 1);
    let make = |ctx, step_rows| {
        let sequencer = Sequencer::new(&program).unwrap();
        EngineModel::reference(sequencer, Capacity { ctx, step_rows }, &source, crate::Linear::Exact, 1)
    };
    for (ctx, step_rows) in [(0, 8), (301, 8), (8, 0)] {
        assert!(matches!(make(ctx, step_rows), Err(ModelError::Capacity { .. })), "{ctx} {step_rows}");
    }
    assert!(make(300, 1000).is_ok());
}

/// Cut between two layers: the first part's hidden states drive the second to the same logits and states.
#[test]
fn two_parts_of_a_program_are_the_whole() {
    for kind in KINDS {
        for (name, program) in programs::all() {
            let cut = (program.identity.cut.last_layer / 2) as u8;
            let at = program.commands.iter().position(|c| c.layer().0 == cut).unwrap();
            let part = |commands: &[wordline_ir::Command]| {
                let mut part = program.clone();
                part.commands = commands.to_vec();
                engine_of(kind, Sequencer::unverified(part), capacity(64), 1)
            };
            let (mut first, mut second) = (part(&program.commands[..at]), part(&program.commands[at..]));
            let mut whole = engine(kind, &program, capacity(64), 1);
            let tokens = Rng(8).tokens(30, 75);
            let seq = whole.open();
            let expected = run(&mut whole, seq, &tokens, &[10]);
            let (a, b) = (first.open(), second.open());
            let mut bits = Bits::default();
            for tokens in tokens.chunks(6) {
                let rows = |seq| tokens.iter().map(|t| Row { seq, token: *t, logits: true }).collect::<Vec<_>>();
                assert!(first.step(&rows(a)).unwrap().is_empty());
                let hidden = first.hidden().to_vec();
                bits.extend(second.step_hidden(&rows(b), &hidden).unwrap().values());
            }
            assert_eq!(bits, expected, "{kind:?} {name}");
        }
    }
}

/// A clock that counts how often it was read.
fn ticks() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static TICKS: AtomicU64 = AtomicU64::new(0);
    TICKS.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn commands_are_timed_when_asked_for() {
    let program = programs::hybrid();
    let mut engine = engine(Kind::Int8, &program, capacity(64), 1);
    let seq = engine.open();
    engine.prefill(seq, &[1, 2, 3]).unwrap();
    assert_eq!(engine.command_times().count(), 0, "nobody asked");
    engine.time_commands(Some(ticks));
    engine.prefill(seq, &[4, 5]).unwrap();
    let times: Vec<_> = engine.command_times().collect();
    let calls: u64 = times.iter().map(|kind| kind.calls).sum();
    assert_eq!(calls, program.commands.len() as u64);
    // Two readings a command, the ticks of other tests between them.
    assert!(times.iter().all(|kind| kind.nanos >= kind.calls), "{times:?}");
    let mut named: Vec<_> = program.commands.iter().map(|c| c.info().mnemonic).collect();
    named.sort_unstable();
    named.dedup();
    let mut seen: Vec<_> = times.iter().map(|kind| kind.mnemonic).collect();
    seen.sort_unstable();
    assert_eq!(seen, named);
    engine.time_commands(None);
    engine.prefill(seq, &[6]).unwrap();
    assert_eq!(engine.command_times().count(), 0);
}

/// What a step moves, by hand: one page of the cache for each attending row, rings and memories once a row.
#[test]
fn counters_tell_the_bytes_of_caches_and_states() {
    let program = programs::hybrid();
    let mut engine = engine(Kind::Int8, &program, capacity(64), 2);
    let seq = engine.open();
    engine.prefill(seq, &[1, 2, 3]).unwrap();
    let counted = engine.counters();
    // A page of the one attending layer, 2 heads of 16: two tiles of keys of a block, 64 exponents, a tile of values.
    let page = 2 * (2 * (64 + 512) + 64 + 512);
    assert_eq!(counted.cache_bytes, 3 * (page + page / 32));
    // Two delta layers: a ring of 128 channels and 4 taps, 4 memories of 12 by 20.
    assert_eq!(counted.state_bytes, 3 * 2 * (4 * 128 * 4 + 2 * 4 * 4 * 12 * 20));
    assert_eq!(counted.bytes(), counted.weight_bytes + counted.cache_bytes + counted.state_bytes);
}

#[test]
fn reading_out_elsewhere_gives_the_steps_own_bits() {
    for kind in KINDS {
        for (name, program) in programs::all() {
            let mut model = engine(kind, &program, capacity(64), 1);
            let seqs = [model.open(), model.open()];
            let tokens = Rng(8).tokens(7, 75);
            let rows = |logits| {
                let row = move |i: usize, token: &u32| Row { seq: seqs[i % 2], token: *token, logits };
                tokens.iter().enumerate().map(|(i, token)| row(i, token)).collect::<Vec<_>>()
            };
            let expected = Bits(model.step(&rows(true)).unwrap().values().iter().map(|v| v.to_bits().into()).collect());
            seqs.iter().for_each(|seq| assert!(model.reset(*seq)));
            assert!(model.step(&rows(false)).unwrap().is_empty());
            let hidden = model.hidden().to_vec();
            let state = seqs.map(|seq| (model.state_bits(seq), model.length(seq)));
            let of: Vec<_> = rows(true).iter().map(|row| row.seq).collect();
            let mut bits = Bits::default();
            bits.extend(model.read_out(&of, &hidden).unwrap().values());
            assert_eq!(bits, expected, "{kind:?} {name}");
            assert_eq!(seqs.map(|seq| (model.state_bits(seq), model.length(seq))), state, "{kind:?} {name}");
            assert!(matches!(model.read_out(&of, &hidden[1..]), Err(StepError::Input(_))), "{kind:?} {name}");
            assert!(model.release(seqs[1]));
            assert_eq!(
                model.read_out(&of, &hidden).unwrap_err(),
                StepError::Unknown { row: 1, seq: seqs[1] },
                "{kind:?} {name}"
            );
        }
    }
}
