//! Every key of every config, changed to other valid values and run: the logits change, or the refusal names the key, or
//! a note says that it is inert, and then they do not change.

use super::mutation::{others, paths};
use crate::support::{golden_fixtures, model, path, program, reference};
use serde_json::Value;
use wordline::checkpoint::Note;
use wordline::checkpoint::arch::load;
use wordline::measure::follow::follow;
use wordline::measure::golden::Golden;
use wordline::model::Model;
use wordline_engine::Capacity;

/// Bits of the reference engine's logits at every position, or at as many as the model takes.
fn logits(model: &Model, ids: &[u32]) -> Vec<u32> {
    let program = program(model);
    let ids = &ids[..ids.len().min(model.checkpoint.spec.max_pos)];
    let mut engine = reference(model, &program, Capacity { ctx: ids.len(), step_rows: 16 });
    let mut bits = Vec::new();
    follow(&mut engine, ids, |_, row| bits.extend(row.iter().map(|logit| logit.to_bits()))).unwrap();
    bits
}

/// Ids that the fixture's golden values are for.
fn golden_ids(name: &str) -> Vec<u32> {
    let folder = path(name);
    let held = || std::fs::read(folder.join("golden.safetensors")).map_err(|error| error.to_string());
    let golden = Golden::parse(&std::fs::read(folder.join("golden.json")).unwrap(), held).unwrap();
    golden.cases[0].ids()
}

fn noted(notes: &[Note], key: &str) -> bool {
    notes.iter().any(|note| note.key.split('.').any(|part| part == key))
}

/// What another value of a key comes to.
#[derive(Debug, PartialEq)]
enum Outcome {
    Named,
    Noted,
    Changed,
    /// Nothing changes and nothing says so.
    Silent,
    /// Something is wrong whatever the other values come to.
    Wrong(String),
}

struct Fixture {
    model: Model,
    ids: Vec<u32>,
    base: Vec<u32>,
}

impl Fixture {
    fn open(name: &str) -> Self {
        let (model, mut ids) = (model(name), golden_ids(name));
        ids.truncate(28);
        let base = logits(&model, &ids);
        Self { model, ids, base }
    }

    fn outcome(&mut self, pointer: &str, other: &Value) -> Outcome {
        let key = pointer.rsplit('/').next().unwrap();
        let mut config = self.model.checkpoint.config.clone();
        *config.pointer_mut(pointer).unwrap() = other.clone();
        let loaded = match load(&config, &self.model.checkpoint.weights) {
            Ok(loaded) => loaded,
            Err(error) if error.to_string().contains(key) => return Outcome::Named,
            Err(error) => return Outcome::Wrong(format!("refused without its name: {error}")),
        };
        // A note holds for the value that is there, so it must stand on both sides to say that the change is nothing.
        let inert = noted(&loaded.notes, key) && noted(&self.model.checkpoint.notes, key);
        let before = std::mem::replace(&mut self.model.checkpoint.spec, loaded.spec);
        // A row's logits depend on the rows before it only, so a shorter run is held to the start of the longer one.
        let same = self.model.checkpoint.spec == before || self.base.starts_with(&logits(&self.model, &self.ids));
        self.model.checkpoint.spec = before;
        match (same, inert) {
            (true, true) => Outcome::Noted,
            (false, true) => Outcome::Wrong("noted as inert, and yet the logits change".to_owned()),
            (false, false) => Outcome::Changed,
            (true, false) if noted(&loaded.notes, key) => Outcome::Noted,
            (true, false) => Outcome::Silent,
        }
    }
}

#[test]
fn every_key_changes_the_logits_or_is_refused_or_noted() {
    let mut failures = Vec::new();
    let mut counts = [0; 3];
    for name in golden_fixtures().into_iter().filter(|name| name.contains('/')) {
        let mut fixture = Fixture::open(&name);
        let mut found = Vec::new();
        paths(&fixture.model.checkpoint.config, "", &mut found);
        found.retain(|pointer| !pointer.starts_with("/vision_config/"));
        for pointer in found {
            let value = fixture.model.checkpoint.config.pointer(&pointer).unwrap().clone();
            let layers = fixture.model.checkpoint.spec.layers.len();
            let key = pointer.rsplit('/').next().unwrap();
            let tried: Vec<Value> = others(key, &value, layers).into_iter().filter(|other| *other != value).collect();
            let outcomes: Vec<Outcome> = tried.iter().map(|other| fixture.outcome(&pointer, other)).collect();
            for (place, wanted) in [Outcome::Named, Outcome::Noted, Outcome::Changed].iter().enumerate() {
                counts[place] += outcomes.iter().filter(|outcome| *outcome == wanted).count();
            }
            let wrong = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Wrong(_)));
            // A value may come to nothing by itself (a window past the run's end); one that matters must show it.
            let accounted = outcomes.is_empty() || outcomes.iter().any(|outcome| *outcome != Outcome::Silent);
            if wrong || !accounted {
                let pairs = tried.iter().zip(&outcomes).map(|(other, outcome)| format!("{other} {outcome:?}"));
                failures.push(format!("{name} {pointer}: {}", pairs.collect::<Vec<_>>().join("; ")));
            }
        }
    }
    println!("named {}, noted {}, changed {}", counts[0], counts[1], counts[2]);
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
    assert!(counts.iter().all(|count| *count > 200), "{counts:?}");
}
