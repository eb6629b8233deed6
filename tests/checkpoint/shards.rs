//! Several weight files and the index over them: one test for each way they can disagree.

use super::support::{Draft, names, repository};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use wordline::checkpoint::Checkpoint;

/// The three-shard fixture in a folder of its own.
fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(repository("tests/fixtures/given/mistral")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00003.safetensors";
const LAST: &str = "model-00003-of-00003.safetensors";

/// The copy with its index edited.
fn edited(edit: impl Fn(&mut Value)) -> TempDir {
    let folder = copy();
    let path = folder.path().join(INDEX);
    let mut index = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut index);
    std::fs::write(path, index.to_string()).unwrap();
    folder
}

fn refusal(folder: &Path) -> String {
    Checkpoint::open(folder).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn shards_are_one_model() {
    let sharded = Checkpoint::open(copy().path()).unwrap();
    let single = Draft::given("mistral").open().unwrap();
    assert_eq!(sharded.spec, single.spec);
    for (_, entry) in sharded.weights.entries() {
        let (a, b) = (sharded.weights.tensor(&entry.name).unwrap(), single.weights.tensor(&entry.name).unwrap());
        assert_eq!((a.dtype, a.shape, a.bytes().unwrap()), (b.dtype, b.shape, b.bytes().unwrap()), "{}", entry.name);
    }
    assert_eq!(sharded.weights.file_of("lm_head.weight"), Some(LAST));
}

#[test]
fn a_single_file_is_taken_before_an_index() {
    let folder = edited(|index| *index = json!("no index at all"));
    assert!(Checkpoint::open(folder.path()).is_err());
    let single = Draft::given("mistral").write();
    std::fs::copy(single.path().join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    assert!(Checkpoint::open(folder.path()).is_ok());
}

#[test]
fn an_index_that_is_no_map_of_files() {
    for index in ["", "[", "[]", "{}", r#"{"weight_map":{}}"#, r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        let folder = copy();
        std::fs::write(folder.path().join(INDEX), index).unwrap();
        names(&refusal(folder.path()), &[INDEX]);
    }
}

#[test]
fn a_tensor_that_the_index_lists_twice() {
    let folder = copy();
    let text = std::fs::read_to_string(folder.path().join(INDEX)).unwrap();
    let text = text.replace("\"weight_map\": {", &format!("\"weight_map\": {{\"model.norm.weight\": \"{FIRST}\","));
    std::fs::write(folder.path().join(INDEX), text).unwrap();
    names(&refusal(folder.path()), &[INDEX, "'model.norm.weight' stands twice"]);
}

#[test]
fn file_names_that_leave_the_folder_or_are_no_weights() {
    for name in [
        "../model-00001-of-00003.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "sub\\model.safetensors",
        "C:model.safetensors",
        "..safetensors",
        ".safetensors",
        ".hidden.safetensors",
        "model.bin",
        "",
        "https://x/model.safetensors",
        "model\u{0}.safetensors",
    ] {
        let folder = edited(|index| index["weight_map"]["lm_head.weight"] = json!(name));
        names(&refusal(folder.path()), &[INDEX, "'lm_head.weight'", "same folder"]);
    }
}

#[test]
fn a_file_that_is_not_there() {
    let folder = copy();
    std::fs::remove_file(folder.path().join(FIRST)).unwrap();
    names(&refusal(folder.path()), &[INDEX, FIRST, "'model.embed_tokens.weight'"]);
}

#[test]
fn a_tensor_that_its_file_does_not_hold() {
    let folder = edited(|index| index["weight_map"]["model.layers.9.x"] = json!(FIRST));
    names(&refusal(folder.path()), &[FIRST, "'model.layers.9.x'"]);
}

#[test]
fn a_tensor_that_lies_in_another_file() {
    let folder = edited(|index| index["weight_map"]["lm_head.weight"] = json!(FIRST));
    names(&refusal(folder.path()), &[FIRST, "'lm_head.weight'"]);
}

#[test]
fn a_tensor_that_the_index_does_not_list() {
    let folder = edited(|index| {
        index["weight_map"].as_object_mut().unwrap().shift_remove("lm_head.weight");
    });
    names(&refusal(folder.path()), &[LAST, "'lm_head.weight'"]);
}

#[test]
fn a_tensor_in_two_files() {
    let folder = edited(|index| index["weight_map"]["again"] = json!("model-extra.safetensors"));
    std::fs::copy(folder.path().join(LAST), folder.path().join("model-extra.safetensors")).unwrap();
    names(&refusal(folder.path()), &["'lm_head.weight'", LAST, "model-extra.safetensors"]);
}

#[test]
fn folders_without_what_is_needed() {
    let folder = copy();
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    names(&refusal(folder.path()), &["config.json", "not there"]);
    let folder = copy();
    std::fs::remove_file(folder.path().join(INDEX)).unwrap();
    names(&refusal(folder.path()), &["model.safetensors"]);
    std::fs::write(folder.path().join("pytorch_model.bin"), "x").unwrap();
    names(&refusal(folder.path()), &["pytorch_model.bin", "unpickling"]);
    names(&refusal(&folder.path().join("config.json")), &["not a directory"]);
    names(&refusal(&folder.path().join("absent")), &["absent"]);
}
