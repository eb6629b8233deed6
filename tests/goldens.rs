//! Every fixture against what the reference framework computed for it.

use crate::support::{golden_fixtures, int8, model, path, program, reference};
use wordline::measure::golden::Golden;
use wordline::measure::verify::verify;
use wordline_engine::Capacity;

fn golden(name: &str) -> Golden {
    let folder = path(name);
    let logits = || std::fs::read(folder.join("golden.safetensors")).map_err(|e| e.to_string());
    let json = std::fs::read(folder.join("golden.json")).unwrap();
    Golden::parse(&json, logits).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn capacity(golden: &Golden) -> Capacity {
    Capacity { ctx: golden.cases.iter().map(|c| c.ids().len()).max().unwrap(), step_rows: 16 }
}

/// The reference engine gives every golden logit within the golden file's own tolerance and the same greedy ids. This
/// is what proves the lowering: nothing is quantised.
#[test]
fn the_reference_engine_gives_every_golden_logit() {
    let mut failed = Vec::new();
    for name in golden_fixtures() {
        let (model, golden) = (model(&name), golden(&name));
        let program = program(&model);
        let found = verify(&golden, &mut reference(&model, &program, capacity(&golden)), None).unwrap().reference;
        println!("{name:28} max |difference| {:.2e} of {:.1e}, {} logits", found.max_abs, found.atol, found.compared);
        if !found.ok || !found.greedy_equal {
            failed.push(format!("{name}: {found:?}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The int8 engine stays close to the reference. The bounds are loose on purpose: they catch a wrong unit, not noise;
/// `wordline accuracy` measures how close it is.
#[test]
fn the_int8_engine_stays_close_to_the_reference() {
    for name in golden_fixtures() {
        let (model, golden) = (model(&name), golden(&name));
        let program = program(&model);
        let capacity = capacity(&golden);
        let mut int8 = int8(&model, &program, capacity, 2);
        let found = verify(&golden, &mut reference(&model, &program, capacity), Some(&mut int8)).unwrap().int8.unwrap();
        println!("{name:28} KL {:.2e}, top-1 {:.3}", found.kl, found.top1);
        assert!(found.kl < 2e-3 && found.top1 > 0.9, "{name}: {found:?}");
    }
}

/// A tokenizer gives the golden ids, and the ids their text.
#[test]
fn every_tokenizer_gives_the_golden_ids() {
    let mut cases = 0;
    for name in golden_fixtures() {
        let Ok(tokenizer) = model(&name).tokenizer() else { continue };
        for case in golden(&name).texts {
            assert_eq!(tokenizer.encode(&case.text, case.special).unwrap(), case.ids, "{name}: {:?}", case.text);
            if let Some(text) = &case.decoded {
                assert_eq!(tokenizer.decode(&case.ids, true), *text, "{name}");
            }
            cases += 1;
        }
    }
    assert!(cases > 50, "{cases} cases");
}

/// A golden value that differs is noticed: the checks above can fail.
#[test]
fn a_wrong_golden_value_fails() {
    let model = model("given/llama");
    let program = program(&model);
    let mut golden = golden("given/llama");
    let capacity = capacity(&golden);
    golden.cases[0].known[5].all[7] += 3.0 * golden.atol as f32;
    golden.cases[0].greedy[3] ^= 1;
    let found = verify(&golden, &mut reference(&model, &program, capacity), None).unwrap().reference;
    assert!(!found.ok && !found.greedy_equal, "{found:?}");
    let (worst, greedy) = (found.worst.unwrap(), found.greedy_difference.unwrap());
    assert_eq!((worst.position, worst.id, greedy.index), (5, Some(7), 3));
}
