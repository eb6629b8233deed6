//! Bits depend on the program, the weights and the tokens alone.

use super::programs::{self, Rng};
use super::{Bits, KINDS, capacity, engine, run};
use crate::{Capacity, EngineModel, Row, SeqId};
use wordline_ir::Program;

/// Tokens of the long runs: past 32, 64, the windows and the windows with a step's rows.
const LONG: usize = 200;

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    Rng(seed).tokens(count, 75)
}

/// Logits of a run in steps of one row, and the state it leaves.
fn alone(model: &mut EngineModel, tokens: &[u32]) -> (Bits, Bits) {
    let seq = model.open();
    let bits = run(model, seq, tokens, &[1]);
    let state = state(model, seq);
    model.release(seq);
    (bits, state)
}

fn state(model: &EngineModel, seq: SeqId) -> Bits {
    let state = Bits(model.state_bits(seq).unwrap());
    assert!(!state.0.is_empty(), "every test program keeps state");
    state
}

fn each(test: impl Fn(&str, &Program, super::Kind)) {
    for kind in KINDS {
        for (name, program) in programs::all() {
            test(&format!("{kind:?} {name}"), &program, kind);
        }
    }
}

#[test]
fn a_step_of_many_rows_is_many_steps_of_one_row() {
    each(|name, program, kind| {
        let tokens = tokens(1, LONG);
        let mut model = engine(kind, program, capacity(LONG), 1);
        let expected = alone(&mut model, &tokens);
        let mut rng = Rng(2);
        for _ in 0..3 {
            let seq = model.open();
            let steps: Vec<usize> = (0..LONG).map(|_| 1 + rng.below(40)).collect();
            let bits = run(&mut model, seq, &tokens, &steps);
            assert_eq!((bits, state(&model, seq)), expected, "{name}: {steps:?}");
            model.release(seq);
        }
    });
}

#[test]
fn rows_that_want_no_logits_change_nothing_for_those_that_do() {
    each(|name, program, kind| {
        let tokens = tokens(3, 50);
        let mut model = engine(kind, program, capacity(64), 1);
        let expected = alone(&mut model, &tokens).0;
        let seq = model.open();
        let rows: Vec<Row> =
            tokens.iter().enumerate().map(|(i, token)| Row { seq, token: *token, logits: i % 7 == 3 }).collect();
        let logits = model.step(&rows).unwrap();
        assert_eq!(logits.len(), 7);
        for (row, at) in (3..50).step_by(7).enumerate() {
            let mut bits = Bits::default();
            bits.extend(logits.row(row).unwrap());
            assert_eq!(bits.0, expected.0[at * 75..][..75], "{name}: row {at}");
        }
    });
}

#[test]
fn a_prompt_in_chunks_ends_in_the_same_logits() {
    each(|name, program, kind| {
        let tokens = tokens(4, 150);
        let mut model = engine(kind, program, capacity(LONG), 1);
        let (expected, expected_state) = alone(&mut model, &tokens);
        let seq = model.open();
        // The capacity takes 64 rows a step: three steps.
        let mut bits = Bits::default();
        bits.extend(model.prefill(seq, &tokens).unwrap().values());
        assert_eq!(bits.0, expected.0[149 * 75..], "{name}");
        assert_eq!(state(&model, seq), expected_state, "{name}");
    });
}

#[test]
fn sequences_of_a_batch_are_each_as_if_alone() {
    each(|name, program, kind| {
        let mut model = engine(kind, program, capacity(LONG), 1);
        let texts: Vec<Vec<u32>> = [60, 35, 80].iter().zip(10..).map(|(n, seed)| tokens(seed, *n)).collect();
        let expected: Vec<_> = texts.iter().map(|text| alone(&mut model, text)).collect();
        let seqs: Vec<SeqId> = texts.iter().map(|_| model.open()).collect();
        let mut taken = [0; 3];
        let mut bits: Vec<Bits> = vec![Bits::default(); 3];
        let mut rng = Rng(9);
        while taken.iter().zip(&texts).any(|(taken, text)| *taken < text.len()) {
            // A step of rows drawn from the sequences at random, one sequence's rows in its order.
            let mut order = Vec::new();
            for _ in 0..1 + rng.below(30) {
                let at = rng.below(3);
                if taken[at] < texts[at].len() {
                    order.push((at, texts[at][taken[at]]));
                    taken[at] += 1;
                }
            }
            let rows: Vec<Row> =
                order.iter().map(|(at, token)| Row { seq: seqs[*at], token: *token, logits: true }).collect();
            let logits = model.step(&rows).unwrap();
            for (i, (at, _)) in order.iter().enumerate() {
                bits[*at].extend(logits.row(i).unwrap());
            }
        }
        for at in 0..3 {
            assert_eq!((bits[at].clone(), state(&model, seqs[at])), expected[at], "{name}: sequence {at}");
        }
    });
}

#[test]
fn threads_change_nothing() {
    each(|name, program, kind| {
        let tokens = tokens(5, 70);
        let results: Vec<_> = [1, 2, 3]
            .iter()
            .map(|threads| {
                let mut model = engine(kind, program, capacity(LONG), *threads);
                let seq = model.open();
                (run(&mut model, seq, &tokens, &[13, 1]), state(&model, seq))
            })
            .collect();
        assert!(results.iter().all(|r| *r == results[0]), "{name}: {results:?}");
    });
}

#[test]
fn the_context_length_and_the_rows_of_a_step_change_nothing() {
    each(|name, program, kind| {
        let tokens = tokens(6, 64);
        let most = program.max_pos.min(4096);
        let capacities = [(64, 64), (most, 64), (64, 16), (most, 1024)];
        let results: Vec<_> = capacities
            .iter()
            .map(|(ctx, step_rows)| {
                let mut model = engine(kind, program, Capacity { ctx: *ctx, step_rows: *step_rows }, 1);
                let seq = model.open();
                run(&mut model, seq, &tokens, &[16])
            })
            .collect();
        assert!(results.iter().all(|r| *r == results[0]), "{name}: {results:?}");
    });
}

#[test]
fn a_matrix_streams_once_for_all_rows() {
    each(|name, program, kind| {
        let mut model = engine(kind, program, capacity(64), 1);
        let routed = program.commands.iter().any(|c| c.info().mnemonic == "routed_matvec");
        let mut bytes = |rows: usize| {
            let seq = model.open();
            let before = model.counters();
            // The same token in each row of its own sequence: routed rows then pick the same experts.
            let rows: Vec<Row> = (0..rows).map(|_| Row { seq: model.open(), token: 7, logits: true }).collect();
            model.step(&rows).unwrap();
            rows.iter().for_each(|row| assert!(model.release(row.seq)));
            model.release(seq);
            let after = model.counters();
            (after.weight_bytes - before.weight_bytes, after.macs - before.macs)
        };
        let (one, sixteen) = (bytes(1), bytes(16));
        assert_eq!(one.0, sixteen.0, "{name}, routed: {routed}");
        assert!(one.0 > 0, "{name}");
        assert_eq!(16 * one.1, sixteen.1, "{name}");
    });
}

#[test]
fn the_head_runs_for_rows_that_want_logits() {
    each(|name, program, kind| {
        let mut model = engine(kind, program, capacity(64), 1);
        let seq = model.open();
        let rows: Vec<Row> = (0..9).map(|i| Row { seq, token: 1, logits: i == 8 }).collect();
        model.step(&rows).unwrap();
        assert_eq!(model.counters().head_rows, 1, "{name}");
        let none: Vec<Row> = (0..9).map(|_| Row { seq, token: 1, logits: false }).collect();
        assert!(model.step(&none).unwrap().is_empty());
        assert_eq!(model.counters().head_rows, 1, "{name}");
    });
}
