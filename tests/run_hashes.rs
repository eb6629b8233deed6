//! The run hash of every fixture is the pinned one, whatever runs it.

use crate::support::{fixtures, int8, mirror, model, program, root, setup};
use std::collections::BTreeMap;
use wordline::backends::Backend;
use wordline::engines::Setup;
use wordline::measure::run_hash::{PROMPT, STEPS, coded_pins, pins, run_hash};
use wordline_engine::Capacity;
use wordline_ir::{Numerics, WeightFormat};
use wordline_lowering::lower;

/// Set to pin anew.
const BLESS: &str = "WORDLINE_BLESS";

fn capacity() -> Capacity {
    Capacity { ctx: PROMPT + STEPS, step_rows: PROMPT }
}

#[test]
fn every_fixture_runs_as_pinned() {
    let mut found = BTreeMap::new();
    for name in fixtures() {
        let model = model(&name);
        let program = program(&model);
        let hash = run_hash(&mut int8(&model, &program, capacity(), 2), model.checkpoint.spec.vocab).unwrap();
        found.insert(name, hash);
    }
    if std::env::var_os(BLESS).is_some() {
        let text = serde_json::to_string_pretty(&found).unwrap() + "\n";
        std::fs::write(root().join("src/measure/run_hashes.json"), text).unwrap();
        return;
    }
    assert_eq!(found, pins().unwrap(), "a result's bits changed; if they were meant to, pin them with {BLESS}=1");
}

#[test]
fn the_mirrors_find_the_pinned_hash() {
    let pins = pins().unwrap();
    for name in ["given/llama", "given/qwen3_next", "given/gemma3"] {
        let model = model(name);
        let program = program(&model);
        let hash = run_hash(&mut mirror(&model, &program, capacity()), model.checkpoint.spec.vocab).unwrap();
        assert_eq!(Some(&hash), pins.get(name), "{name}");
    }
}

/// One model of each kind of layer: biases and positions, plain attention, windows and caps, picked experts, delta memories
/// with convolutions, both in one model.
const KINDS: [&str; 6] =
    ["given/gpt2", "given/llama", "given/gemma3", "extra/qwen3_moe-mixed", "given/qwen3_5", "given/qwen3_next"];

#[test]
fn a_graphics_device_finds_the_pinned_hash() {
    let pins = pins().unwrap();
    for backend in [Backend::Dp4a, Backend::Lut] {
        if let Err(error) = backend.open() {
            println!("skipped, {}: {error}", backend.name());
            continue;
        }
        for name in KINDS {
            let model = model(name);
            let program = program(&model);
            let mut engine = Setup { backend, ..setup(&model, &program, capacity(), 1) }.int8().unwrap();
            let hash = run_hash(&mut engine, model.checkpoint.spec.vocab).unwrap();
            // The device itself has computed it: what hands down to another backend says so.
            assert_eq!(engine.notices(), Vec::<String>::new(), "{name}, {}", backend.name());
            assert_eq!(engine.form(), format!("gpu-{}", backend.name()));
            assert_eq!(Some(&hash), pins.get(name), "{name}, {}", backend.name());
        }
    }
}

/// The 4-bit formats, by their names on the command line.
const CODED: [(&str, WeightFormat); 2] = [("code4", WeightFormat::Code4), ("e2m1", WeightFormat::E2m1)];

#[test]
fn four_bit_weights_run_as_pinned_on_every_backend() {
    let mut found = BTreeMap::new();
    let pins = coded_pins().unwrap();
    for (format, weights) in CODED {
        let of_format: &mut BTreeMap<String, String> = found.entry(format.to_owned()).or_default();
        for name in KINDS {
            let model = model(name);
            let numerics = Numerics { weights, ..Numerics::default() };
            let program = lower(&model.checkpoint.spec, &numerics, 64).unwrap().program;
            let vocab = model.checkpoint.spec.vocab;
            let hash = run_hash(&mut int8(&model, &program, capacity(), 2), vocab).unwrap();
            // The definition, one product and one addition at a time, finds the same.
            assert_eq!(run_hash(&mut mirror(&model, &program, capacity()), vocab).unwrap(), hash, "{name}, {format}");
            for backend in [Backend::Dp4a, Backend::Lut] {
                if let Err(error) = backend.open() {
                    println!("skipped, {}: {error}", backend.name());
                    continue;
                }
                let mut engine = Setup { backend, ..setup(&model, &program, capacity(), 1) }.int8().unwrap();
                assert_eq!(run_hash(&mut engine, vocab).unwrap(), hash, "{name}, {format}, {}", backend.name());
                assert_eq!(engine.notices(), Vec::<String>::new(), "{name}, {format}, {}", backend.name());
            }
            of_format.insert(name.to_owned(), hash);
        }
    }
    if std::env::var_os(BLESS).is_some() {
        let text = serde_json::to_string_pretty(&found).unwrap() + "\n";
        std::fs::write(root().join("src/measure/run_hashes_4bit.json"), text).unwrap();
        return;
    }
    assert_eq!(found, pins, "a result's bits changed; if they were meant to, pin them with {BLESS}=1");
}
