//! A program that passes `verify` cannot make an engine panic, however it came about.

use super::programs::{self, weights};
use super::{SEED, kernels, open};
use crate::{Capacity, EngineModel, Linear, Row, Sequencer};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;
use std::cell::Cell;
use wordline_ir::{Ends, Program, Slot, Word, state_layout};

/// What is done to a program.
#[derive(Clone, Debug)]
enum Edit {
    /// One bit of one word turned.
    Bit(Index, u8),
    /// One number changed, of the tables or of the commands.
    One(Index, Change),
    /// A number changed wherever it stands: widths, counts and shapes that agree go on agreeing.
    Everywhere(Index, Change),
}

#[derive(Clone, Copy, Debug)]
enum Change {
    To(f64),
    By(f64),
    Times(f64),
}

fn change() -> impl Strategy<Value = Change> {
    const TO: [f64; 9] = [0.0, 1.0, 2.0, 31.0, 32.0, 33.0, 255.0, -1.0, 1e30];
    prop_oneof![
        proptest::sample::select(TO.to_vec()).prop_map(Change::To),
        (-3_i32..=3).prop_map(|by| Change::By(by.into())),
        proptest::sample::select(vec![0.5, 2.0, 3.0]).prop_map(Change::Times),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        2 => (any::<Index>(), any::<u8>()).prop_map(|(word, bit)| Edit::Bit(word, bit)),
        3 => (any::<Index>(), change()).prop_map(|(at, change)| Edit::One(at, change)),
        3 => (any::<Index>(), change()).prop_map(|(at, change)| Edit::Everywhere(at, change)),
    ]
}

/// Every number of a JSON value, in its order.
fn numbers<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    match value {
        Value::Number(_) => found.push(value),
        Value::Array(items) => items.iter_mut().for_each(|item| numbers(item, found)),
        Value::Object(fields) => fields.values_mut().for_each(|field| numbers(field, found)),
        _ => {}
    }
}

fn changed(number: &Value, change: Change) -> Value {
    let before = number.as_f64().unwrap();
    let after = match change {
        Change::To(to) => to,
        Change::By(by) => before + by,
        Change::Times(factor) => before * factor,
    };
    if number.is_f64() { after.into() } else { (after as i64).into() }
}

/// The edited program's tables and words; nothing when it can no longer be written down.
fn edited(program: &Program, edits: &[Edit]) -> Option<(Program, Vec<Word>)> {
    let mut json = serde_json::to_value(program).unwrap();
    for edit in edits {
        let mut found = Vec::new();
        numbers(&mut json, &mut found);
        match edit {
            Edit::Bit(..) => {}
            Edit::One(at, change) => {
                let number = at.index(found.len());
                *found[number] = changed(found[number], *change);
            }
            Edit::Everywhere(at, change) => {
                let before = found[at.index(found.len())].clone();
                let after = changed(&before, *change);
                found.into_iter().filter(|number| **number == before).for_each(|number| *number = after.clone());
            }
        }
    }
    let program: Program = serde_json::from_value(json).ok()?;
    let mut words = program.commands.iter().map(|c| Word::encode(c).ok()).collect::<Option<Vec<_>>>()?;
    for edit in edits {
        if let Edit::Bit(word, bit) = edit {
            let word = &mut words[word.index(program.commands.len())];
            let mut bytes = word.to_bytes();
            bytes[usize::from(bit / 8)] ^= 1 << (bit % 8);
            *word = Word::from_bytes(bytes);
        }
    }
    Some((program, words))
}

/// Few enough weights, values of a row and state for a test.
fn small(program: &Program) -> bool {
    const WEIGHTS: usize = 1 << 19;
    const ROW: usize = 1 << 15;
    const STATE: usize = 1 << 20;
    let weights: usize = program.tensors.iter().map(|t| t.rows * t.cols).sum();
    let row: usize = program.slots.iter().map(|s| s.width).sum();
    let state = state_layout(program).into_iter().map(|layer| {
        let ring = layer.ring.map_or(0, |r| r.channels * r.taps);
        let cache = layer.cache.map_or(0, |c| 64 * c.kv_heads * (c.head_dim + c.v_dim));
        ring + cache + layer.memory.map_or(0, |m| m.heads * m.key_dim * m.value_dim)
    });
    weights <= WEIGHTS && row <= ROW && state.sum::<usize>() <= STATE && program.max_pos <= 1 << 24
}

/// Three rows through both kinds of units: two in a step, then one. True when both gave logits or hidden states.
fn runs(sequencer: &Sequencer) -> bool {
    let program = sequencer.program();
    let source = weights(program, SEED);
    let (embeds, width) = (Ends::of(program).embeds, program.width(Slot::X).unwrap_or(0));
    let capacity = Capacity { ctx: program.max_pos.min(16), step_rows: 4.min(program.max_pos) };
    let image = open(program, &source);
    let models = [
        EngineModel::reference(sequencer.clone(), capacity, &source, Linear::Exact, 1),
        EngineModel::int8(sequencer.clone(), capacity, image, kernels(), 1),
    ];
    models.into_iter().all(|model| {
        let Ok(mut model) = model else { return false };
        let seq = model.open();
        let mut step = |tokens: &[u32]| {
            let rows: Vec<Row> = tokens.iter().map(|token| Row { seq, token: *token, logits: true }).collect();
            let hidden = vec![0.5; rows.len() * width];
            if embeds { model.step(&rows) } else { model.step_hidden(&rows, &hidden) }.is_ok()
        };
        step(&[0, 1]) && step(&[2])
    })
}

#[test]
fn no_program_that_passes_verify_panics() {
    let programs = programs::all();
    let (passed, ran) = (Cell::new(0), Cell::new(0));
    // PROPTEST_CASES asks for more.
    let cases = Config::default().cases.max(6000);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let strategy = (0..programs.len(), proptest::collection::vec(edit(), 1..4));
    let result = runner.run(&strategy, |(which, edits)| {
        if let Some((tables, words)) = edited(&programs[which].1, &edits)
            && let Ok(sequencer) = Sequencer::from_words(&tables, &words)
            && small(sequencer.program())
        {
            passed.set(passed.get() + 1);
            ran.set(ran.get() + u32::from(runs(&sequencer)));
        }
        Ok(())
    });
    println!("{} edited programs pass verify, {} of them run on both units", passed.get(), ran.get());
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(passed.get() > 300 && ran.get() > 200, "{} pass, {} run", passed.get(), ran.get());
}
