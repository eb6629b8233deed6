//! The run hash of every fixture is the pinned one, whatever runs it.

use crate::support::{fixtures, int8, mirror, model, program, root};
use std::collections::BTreeMap;
use wordline::measure::run_hash::{PROMPT, STEPS, pins, run_hash};
use wordline_engine::Capacity;

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
