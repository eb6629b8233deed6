//! Every key of every config is accounted for: changed to another valid value it changes the Spec, or the refusal names
//! it, or a note says that it is inert.

use super::support::fixtures;
use serde_json::{Value, json};
use wordline::checkpoint::arch::load;
use wordline::checkpoint::{Checkpoint, Weights};

/// JSON pointers to every value of a config, objects and lists included.
pub(super) fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    let Value::Object(map) = value else { return };
    for (key, value) in map {
        let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        found.push(path.clone());
        paths(value, &path, found);
    }
}

/// Other valid values for a key.
pub(super) fn others(key: &str, value: &Value, layers: usize) -> Vec<Value> {
    let kinds = |kind: &str| json!(vec![kind; layers]);
    match (key, value) {
        ("hidden_act" | "activation_function" | "hidden_activation", _) => vec![json!("relu"), json!("gelu")],
        ("layer_types", _) => vec![kinds("full_attention"), kinds("sliding_attention"), kinds("linear_attention")],
        ("rope_scaling" | "rope_parameters", Value::Null) => vec![json!({"rope_type": "linear", "factor": 2.0})],
        ("full_attention" | "sliding_attention", _) => vec![json!({"rope_type": "linear", "factor": 2.0})],
        ("rope_type" | "type", _) => vec![json!("linear"), json!("default"), json!("dynamic")],
        ("architectures", _) => vec![json!(["OtherForCausalLM"])],
        ("model_type", _) => vec![json!("other")],
        ("dtype" | "torch_dtype", _) => vec![json!("float64")],
        ("mlp_only_layers", _) => vec![json!([0]), json!([0, 1])],
        ("sliding_window", Value::Null) => vec![json!(5)],
        ("sliding_window", Value::Number(_)) => vec![json!(3), json!(4), json!(600)],
        ("beta_fast" | "beta_slow", Value::Number(number)) => {
            [0.25, 2.0, 8.0].iter().map(|scale| json!(number.as_f64().unwrap() * scale)).collect()
        }
        ("n_inner", Value::Null) => vec![json!(96)],
        ("attn_logit_softcapping" | "final_logit_softcapping", Value::Null) => vec![json!(1.0)],
        (_, Value::Null) => vec![json!(1)],
        (_, Value::Bool(flag)) => vec![json!(!flag)],
        (_, Value::Number(number)) if number.is_u64() || number.is_i64() => {
            let n = number.as_u64().unwrap_or(0);
            vec![json!(n + 1), json!(2 * n + 2), json!((n / 2).max(1))]
        }
        (_, Value::Number(number)) => vec![json!(number.as_f64().unwrap() * 1.5 + 1e-3)],
        (_, Value::String(text)) => vec![json!(format!("{text}x"))],
        (_, Value::Array(list)) => {
            let doubled = list.iter().map(|item| item.as_f64().map_or(item.clone(), |n| json!(n * 2.0 + 1.0)));
            vec![doubled.collect(), list.iter().skip(1).cloned().collect()]
        }
        // Their own keys are changed one by one.
        (_, Value::Object(_)) => Vec::new(),
    }
}

fn account(config: &Value, weights: &Weights, before: &Checkpoint, key: &str) -> Result<(), String> {
    match load(config, weights) {
        Err(error) if error.to_string().contains(key) => Ok(()),
        Err(error) => Err(format!("refused without its name: {error}")),
        Ok(loaded) if loaded.spec != before.spec => Ok(()),
        Ok(loaded) if loaded.notes.iter().any(|note| note.key.split('.').any(|part| part == key)) => Ok(()),
        Ok(_) => Err("accepted without effect and without a note".to_owned()),
    }
}

#[test]
fn every_key_changes_the_spec_or_is_refused_or_noted() {
    let mut failures = Vec::new();
    let mut tried = 0;
    for path in fixtures() {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let mut found = Vec::new();
        paths(&checkpoint.config, "", &mut found);
        // The vision tower's own keys lie under one inert key.
        found.retain(|pointer| !pointer.starts_with("/vision_config/"));
        for pointer in found {
            let key = pointer.rsplit('/').next().unwrap();
            let value = checkpoint.config.pointer(&pointer).unwrap();
            for other in others(key, value, checkpoint.spec.layers.len()) {
                if other == *value {
                    continue;
                }
                tried += 1;
                let mut config = checkpoint.config.clone();
                *config.pointer_mut(&pointer).unwrap() = other.clone();
                if let Err(why) = account(&config, &checkpoint.weights, &checkpoint, key) {
                    failures.push(format!("{} {pointer} = {other}: {why}", path.display()));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {tried}:\n{}", failures.len(), failures.join("\n"));
    assert!(tried > 1000, "{tried}");
}

/// A note must be true: changing a noted key never changes the Spec.
#[test]
fn a_noted_key_changes_nothing() {
    for path in fixtures() {
        let checkpoint = Checkpoint::open(&path).unwrap();
        for note in &checkpoint.notes {
            let pointer = format!("/{}", note.key.replace('.', "/"));
            let Some(value) = checkpoint.config.pointer(&pointer) else { continue };
            let key = note.key.rsplit('.').next().unwrap();
            for other in others(key, value, checkpoint.spec.layers.len()) {
                let mut config = checkpoint.config.clone();
                *config.pointer_mut(&pointer).unwrap() = other.clone();
                let Ok(loaded) = load(&config, &checkpoint.weights) else { continue };
                // A limit on positions is a fact of the Spec, though no logit depends on it.
                let mut spec = loaded.spec;
                if key == "max_position_embeddings" {
                    spec.max_pos = checkpoint.spec.max_pos;
                }
                assert_eq!(spec, checkpoint.spec, "{}: {pointer} = {other}, noted as: {}", path.display(), note.reason);
            }
        }
    }
}
