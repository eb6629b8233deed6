//! What a bit means, on real fixtures: no batch, split, thread, context length or instruction set shows in a result.

use crate::support::{int8, mirror, model, program, reference};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use wordline_engine::{Capacity, EngineModel, Row, SeqId};
use wordline_ir::Program;

/// Dense, windowed (8), hybrid with a mixture of experts, learned positions, two rotary bases, longrope; and the demo.
const MODELS: [&str; 7] =
    ["demo", "given/llama", "given/mistral", "given/qwen3_next", "given/gpt2", "given/gemma3", "given/phi3"];

/// As many ids as cross 32, 64, a window, a window and a step, and phi3's original length.
const LENGTH: usize = 200;

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
    Capacity { ctx: length(program), step_rows: 64 }
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
fn a_step_of_many_rows_is_as_many_steps_of_one_and_threads_show_in_no_bit() {
    for name in MODELS {
        let (program, ids, expected, state) = one_by_one(name);
        let model = model(name);
        for (threads, seed) in [(1, 1), (2, 2), (3, 3)] {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let size = || 1 + (rng.next_u64() % 64) as usize;
            let (rows, found) = logits(&mut int8(&model, &program, capacity(&program), threads), &ids, size);
            let first = rows.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(first, None, "{name}, {threads} threads: first position whose logits differ");
            assert!(found == state, "{name}, {threads} threads: the states differ");
        }
    }
}

#[test]
fn the_mirrors_give_the_bits_of_the_fastest_forms() {
    for name in ["given/llama", "given/mistral", "given/qwen3_next", "given/gpt2"] {
        let (program, ids, expected, _) = one_by_one(name);
        let (rows, _) = logits(&mut mirror(&model(name), &program, capacity(&program)), &ids[..80.min(ids.len())], || 5);
        let first = rows.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(first, None, "{name}: first position whose logits differ");
    }
}

#[test]
fn the_context_length_shows_in_no_bit() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        let ids = ids(model.checkpoint.spec.vocab, 60, 11);
        let run = |ctx: usize, step_rows| {
            let capacity = Capacity { ctx: ctx.min(program.max_pos), step_rows };
            logits(&mut int8(&model, &program, capacity, 2), &ids, || 7).0
        };
        assert!(run(64, 7) == run(4096, 64), "{name}");
    }
}

#[test]
fn any_batch_of_sequences_is_each_alone() {
    for name in MODELS {
        let model = model(name);
        let program = program(&model);
        let vocab = model.checkpoint.spec.vocab;
        let texts: Vec<Vec<u32>> = [50, 1, 33, 70].iter().zip(20..).map(|(n, seed)| ids(vocab, *n, seed)).collect();
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
    // A mixture of experts streams what its rows pick, so it is left out.
    for name in ["demo", "given/llama", "given/mistral", "given/gpt2"] {
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

#[test]
fn the_reference_does_not_depend_on_the_split_either() {
    for name in ["given/llama", "given/qwen3_next"] {
        let model = model(name);
        let program = program(&model);
        let ids = ids(model.checkpoint.spec.vocab, 40, 9);
        let mut run = |n: usize| logits(&mut reference(&model, &program, capacity(&program)), &ids, || n).0;
        assert!(run(1) == run(13), "{name}");
    }
}
