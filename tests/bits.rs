//! What a bit means, on real fixtures: no batch, split, thread, context length or instruction set shows in a result.

use crate::support::{self, int8, mirror, model, reference};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeSet;
use wordline::model::Model;
use wordline_engine::{Capacity, EngineModel, Row, SeqId};
use wordline_ir::spec::RopeScaling;
use wordline_ir::{Command, Program};

/// Dense, windowed, hybrid with and without a mixture of experts, learned positions, two rotary bases, and every rotary
/// scaling that has a trained length; and the demo.
const MODELS: [&str; 13] = [
    "demo",
    "storyteller-llama",
    "given/llama",
    "given/mistral",
    "given/qwen3_5",
    "given/qwen3_next",
    LEARNED,
    "given/gemma3",
    "given/phi3",
    "extra/llama-dynamic",
    "extra/llama-yarn",
    "extra/phi3-long",
    "extra/phi3-window",
];

/// The one whose positions are a table of 64 rows, which no context can pass.
const LEARNED: &str = "given/gpt2";

/// As many ids as cross every border; the first test asserts that they do.
const LENGTH: usize = 200;

/// Most rows of a step.
const STEP: usize = 64;

/// The longest context. Where positions are rotary nothing but the config bounds them, so that programs here take as many.
const LONG: usize = 4096;

/// A fixture's program, bounded by its tables alone.
fn program(model: &Model) -> Program {
    let mut program = support::program(model);
    if !program.ropes.is_empty() {
        program.max_pos = program.max_pos.max(LONG);
    }
    program
}

/// Lengths at which something in a run changes, each with its name.
fn borders(program: &Program) -> Vec<(&'static str, usize)> {
    let windows = program.commands.iter().filter_map(|command| match command {
        Command::Attend { window, .. } if *window != 0 => Some(usize::from(*window)),
        _ => None,
    });
    let originals = program.ropes.iter().filter_map(|rope| match rope.scaling {
        RopeScaling::Default | RopeScaling::Linear { .. } => None,
        RopeScaling::Dynamic { original, .. }
        | RopeScaling::Yarn { original, .. }
        | RopeScaling::Llama3 { original, .. }
        | RopeScaling::LongRope { original, .. } => Some(("the trained length", original)),
    });
    let windows: BTreeSet<usize> = windows.collect();
    let windows = windows.into_iter().flat_map(|w| [("the window", w), ("the window and a step", w + STEP)]);
    [("a cache block", 32), ("two cache blocks", 64)].into_iter().chain(windows).chain(originals).collect()
}

fn ids(vocab: usize, length: usize, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..length).map(|_| (rng.next_u64() % vocab as u64) as u32).collect()
}

fn length(program: &Program) -> usize {
    LENGTH.min(program.max_pos)
}

/// Every position's logits, as bits, of `ids` taken in steps of these sizes.
fn logits(engine: &mut EngineModel, ids: &[u32], mut size: impl FnMut() -> usize) -> (Vec<Vec<u32>>, Vec<u64>) {
    let seq = engine.open();
    let (mut at, mut rows) = (0, Vec::new());
    while at < ids.len() {
        let n = size().clamp(1, ids.len() - at);
        let step: Vec<Row> = ids[at..at + n].iter().map(|&token| Row { seq, token, logits: true }).collect();
        let logits = engine.step(&step).unwrap();
        rows.extend((0..n).map(|i| logits.row(i).unwrap().iter().map(|l| l.to_bits()).collect()));
        at += n;
    }
    let state = engine.state_bits(seq).unwrap();
    engine.release(seq);
    (rows, state)
}

fn capacity(program: &Program) -> Capacity {
    Capacity { ctx: length(program), step_rows: STEP }
}

/// Logits of every position, one row a step, on one thread: what every other way of running must give.
fn one_by_one(name: &str) -> (Program, Vec<u32>, Vec<Vec<u32>>, Vec<u64>) {
    let model = model(name);
    let program = program(&model);
    let ids = ids(model.checkpoint.spec.vocab, length(&program), 7);
    let (rows, state) = logits(&mut int8(&model, &program, capacity(&program), 1), &ids, || 1);
    (program, ids, rows, state)
}

#[test]
fn the_lengths_here_cross_every_border() {
    let mut crossed = BTreeSet::new();
    for name in MODELS {
        let program = program(&model(name));
        for (what, border) in borders(&program) {
            // Learned positions end at 64: no id comes after them.
            let reached = length(&program) > border || name == LEARNED && length(&program) == border;
            assert!(reached, "{name}: {} ids do not cross {what}, {border}", length(&program));
            crossed.insert(what);
        }
    }
    let kinds = ["a cache block", "the trained length", "the window", "the window and a step", "two cache blocks"];
    assert_eq!(crossed.into_iter().collect::<Vec<_>>(), kinds);
}

#[test]
fn a_step_of_many_rows_is_as_many_steps_of_one_and_threads_show_in_no_bit() {
    for name in MODELS {
        let (program, ids, expected, state) = one_by_one(name);
        let model = model(name);
        for (threads, seed) in [(1, 1), (2, 2), (3, 3)] {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let size = || 1 + (rng.next_u64() % STEP as u64) as usize;
            let (rows, found) = logits(&mut int8(&model, &program, capacity(&program), threads), &ids, size);
            let first = rows.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(first, None, "{name}, {threads} threads: first position whose logits differ");
            assert!(found == state, "{name}, {threads} threads: the states differ");
        }
    }
}

#[test]
fn the_mirrors_give_the_bits_of_the_fastest_forms() {
    for name in ["given/llama", "given/mistral", "given/qwen3_next", LEARNED] {
        let (program, ids, expected, _) = one_by_one(name);
        let (rows, _) =
            logits(&mut mirror(&model(name), &program, capacity(&program)), &ids[..80.min(ids.len())], || 5);
        let first = rows.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(first, None, "{name}: first position whose logits differ");
    }
}

#[test]
fn the_context_length_shows_in_no_bit() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        let long = LONG.min(program.max_pos);
        assert_eq!(long, if name == LEARNED { 64 } else { LONG }, "{name}");
        // The short context is filled to its last position.
        for length in [64, 150] {
            let length = length.min(program.max_pos);
            let ids = ids(model.checkpoint.spec.vocab, length, 11);
            // The state is not compared: how many positions a windowed layer keeps is the capacity's.
            let run =
                |ctx, step_rows| logits(&mut int8(&model, &program, Capacity { ctx, step_rows }, 2), &ids, || 7).0;
            assert!(run(length, 7) == run(long, STEP), "{name}: {length} ids in a context of {length} and of {long}");
        }
    }
}

#[test]
fn any_batch_of_sequences_is_each_alone() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        let vocab = model.checkpoint.spec.vocab;
        let texts: Vec<Vec<u32>> =
            [50, 1, 33, 70].iter().zip(20..).map(|(n, seed)| ids(vocab, length(&program).min(*n), seed)).collect();
        let mut engine = int8(&model, &program, capacity(&program), 2);
        let alone: Vec<_> = texts.iter().map(|ids| logits(&mut engine, ids, || 1)).collect();
        // Rows of all sequences mixed at random; each sequence's own rows keep their order.
        let seqs: Vec<SeqId> = texts.iter().map(|_| engine.open()).collect();
        let (mut taken, mut found) = (vec![0; texts.len()], vec![Vec::new(); texts.len()]);
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        while taken.iter().zip(&texts).any(|(n, ids)| *n < ids.len()) {
            let (mut rows, mut owners) = (Vec::new(), Vec::new());
            for _ in 0..1 + rng.next_u64() % 24 {
                let s = (rng.next_u64() % texts.len() as u64) as usize;
                if taken[s] < texts[s].len() {
                    rows.push(Row { seq: seqs[s], token: texts[s][taken[s]], logits: true });
                    owners.push(s);
                    taken[s] += 1;
                }
            }
            let logits = engine.step(&rows).unwrap();
            for (i, s) in owners.into_iter().enumerate() {
                found[s].push(logits.row(i).unwrap().iter().map(|l| l.to_bits()).collect::<Vec<_>>());
            }
        }
        for (s, (rows, state)) in alone.iter().enumerate() {
            assert!(found[s] == *rows, "{name}: logits of sequence {s}");
            assert!(engine.state_bits(seqs[s]).unwrap() == *state, "{name}: state of sequence {s}");
        }
    }
}

#[test]
fn a_reset_or_reused_sequence_remembers_nothing() {
    for name in ["given/qwen3_5", "given/mistral"] {
        let model = model(name);
        let program = program(&model);
        let ids = ids(model.checkpoint.spec.vocab, 40, 3);
        let mut engine = int8(&model, &program, capacity(&program), 1);
        let first = logits(&mut engine, &ids, || 9);
        assert!(logits(&mut engine, &ids, || 9) == first, "{name}: after release and open");
        let seq = engine.open();
        engine.prefill(seq, &ids[..17]).unwrap();
        assert!(engine.reset(seq));
        let last = engine.prefill(seq, &ids).unwrap().row(0).unwrap().to_vec();
        assert_eq!(last.iter().map(|l| l.to_bits()).collect::<Vec<_>>(), first.0[39], "{name}: after reset");
    }
}

#[test]
fn weights_stream_once_a_step_whatever_the_rows() {
    // A mixture of experts streams what its rows pick: the test below.
    for name in ["demo", "given/llama", "given/mistral", LEARNED] {
        let model = model(name);
        let program = program(&model);
        let mut engine = int8(&model, &program, capacity(&program), 2);
        let mut bytes = |rows: usize| {
            let seq = engine.open();
            let before = engine.counters();
            let step: Vec<Row> = (0..rows).map(|i| Row { seq, token: i as u32, logits: i + 1 == rows }).collect();
            engine.step(&step).unwrap();
            engine.release(seq);
            let after = engine.counters();
            (after.weight_bytes - before.weight_bytes, after.head_rows - before.head_rows)
        };
        let (one, sixteen) = (bytes(1), bytes(16));
        assert_eq!(one, sixteen, "{name}: bytes of weights, and rows through the head");
        assert!(one.0 > 0 && one.1 == 1, "{name}: {one:?}");
    }
}

/// A mixture of experts streams each expert picked once: sixteen sequences at one state pick what one picks, rows of
/// different tokens pick more.
#[test]
fn an_experts_weights_stream_once_a_step_whatever_the_rows() {
    let model = model("given/qwen3_next");
    let program = program(&model);
    let mut engine = int8(&model, &program, capacity(&program), 2);
    let mut bytes = |rows: usize, token: fn(usize) -> u32| {
        let seqs: Vec<SeqId> = (0..rows).map(|_| engine.open()).collect();
        let before = engine.counters();
        let row = |(i, seq): (usize, &SeqId)| Row { seq: *seq, token: token(i), logits: i + 1 == rows };
        engine.step(&seqs.iter().enumerate().map(row).collect::<Vec<_>>()).unwrap();
        assert!(seqs.into_iter().all(|seq| engine.release(seq)));
        let after = engine.counters();
        (after.weight_bytes - before.weight_bytes, after.head_rows - before.head_rows)
    };
    let (one, sixteen, mixed) = (bytes(1, |_| 5), bytes(16, |_| 5), bytes(16, |i| 5 + i as u32));
    assert_eq!(one, sixteen, "bytes of weights, and rows through the head");
    assert!(mixed.0 > one.0 && mixed.1 == 1, "one token {one:?}, sixteen tokens {mixed:?}");
}

#[test]
fn the_reference_does_not_depend_on_the_split_either() {
    for name in ["given/llama", "given/qwen3_next"] {
        let model = model(name);
        let program = program(&model);
        let ids = ids(model.checkpoint.spec.vocab, 40, 9);
        let run = |n: usize| logits(&mut reference(&model, &program, capacity(&program)), &ids, || n).0;
        assert!(run(1) == run(13), "{name}");
    }
}
