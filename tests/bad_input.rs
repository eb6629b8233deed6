//! What people hand over by mistake: refused with exit code 2, naming what is wrong and where; never a panic, never a hang.

use crate::support::{Ran, model_arg, path, run};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Refused, and the message holds all of `parts`.
fn refused(args: &[&str], parts: &[&str]) -> Ran {
    let ran = run(args);
    assert_eq!(ran.code, 2, "{args:?}: {}{}", ran.out, ran.err);
    assert!(!ran.err.contains("panicked") && !ran.err.contains("internal fault"), "{args:?}: {}", ran.err);
    for part in parts {
        assert!(ran.err.contains(part), "{args:?}: '{part}' is not in: {}", ran.err);
    }
    ran
}

/// A copy of a fixture that may be spoilt.
fn copy(name: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    for entry in fs::read_dir(path(name)).unwrap() {
        let entry = entry.unwrap();
        fs::write(folder.path().join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
    }
    folder
}

fn at(folder: &TempDir) -> String {
    folder.path().display().to_string()
}

#[test]
fn a_model_that_is_none() {
    let empty = TempDir::new().unwrap();
    refused(&["inspect", "no/such/model"], &["no/such/model", "hint", "demo"]);
    refused(&["inspect", &at(&empty)], &["config.json", "not there"]);
    refused(&["run", &at(&empty), "--prompt", "x"], &["config.json"]);
    refused(&["lower", &path("given/llama").join("config.json").display().to_string()], &["not a directory"]);
    refused(&["inspect", ""], &[]);
}

#[test]
fn a_checkpoint_that_is_cut_short_or_empty() {
    for keep in [0, 4, 8, 100, 200_000] {
        let folder = copy("given/llama");
        let file = folder.path().join("model.safetensors");
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..keep.min(bytes.len() - 1)]).unwrap();
        refused(&["inspect", &at(&folder)], &["model.safetensors"]);
        refused(&["run", &at(&folder), "--ids", "1"], &["model.safetensors"]);
    }
    for text in ["", "{", "[]", "null", "{}"] {
        let folder = copy("given/llama");
        fs::write(folder.path().join("config.json"), text).unwrap();
        refused(&["inspect", &at(&folder)], &["config.json"]);
    }
}

#[test]
fn files_beside_the_weights_that_lie() {
    for (file, text, args) in [
        ("tokenizer.json", "{", vec!["run", "--prompt", "x"]),
        ("tokenizer.json", "", vec!["run", "--prompt", "x"]),
        ("generation_config.json", "[1]", vec!["run", "--ids", "1"]),
        ("generation_config.json", "{\"temperature\": -1, \"do_sample\": true}", vec!["run", "--ids", "1"]),
        ("tokenizer_config.json", "{\"chat_template\": \"{% if %}\"}", vec!["run", "--chat", "--prompt", "x"]),
        ("tokenizer_config.json", "nonsense", vec!["run", "--chat", "--prompt", "x"]),
    ] {
        let folder = copy("given/qwen2");
        fs::write(folder.path().join(file), text).unwrap();
        let at = at(&folder);
        let args = [&args[..1], &[at.as_str()], &args[1..]].concat();
        let ran = refused(&args, &[]);
        assert!(ran.err.contains(file) || ran.err.contains("temperature"), "{file}: {}", ran.err);
    }
    let folder = copy("given/llama");
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    refused(&["run", &at(&folder), "--prompt", "x"], &["tokenizer.json", "--ids"]);
    assert_eq!(run(&["run", &at(&folder), "--ids", "1,2", "-n", "2"]).code, 0, "ids need no tokenizer");
}

#[test]
fn absurd_numbers() {
    let huge = "18446744073709551615";
    refused(&["run", "demo", "--ids", "4294967296"], &[]);
    refused(&["run", "demo", "--ids", "999999"], &["999999", "vocabulary"]);
    refused(&["run", "demo", "--ids", ""], &[]);
    refused(&["run", "demo", "--prompt", ""], &["no token"]);
    refused(&["run", "demo", "--prompt", "x", "--ctx", "0"], &[]);
    refused(&["run", "demo", "--prompt", "x", "--ctx", huge], &["2048"]);
    refused(&["run", "demo", "--prompt", "x", "--temperature", "-1"], &["temperature"]);
    refused(&["run", "demo", "--prompt", "x", "--temperature", "nan"], &["temperature"]);
    refused(&["run", "demo", "--prompt", "x", "--top-p", "7"], &["top_p"]);
    refused(&["run", "demo", "--prompt", "x", "--threads", "0"], &[]);
    refused(&["run", "demo"], &["--prompt"]);
    refused(&["run", "demo", "--prompt", "x", "--ids", "1"], &[]);
    refused(&["accuracy", "demo", "--window", "1"], &["window"]);
    refused(&["accuracy", "demo", "--window", huge], &["2048"]);
    refused(&["lower", "demo", "--ctx", "0"], &[]);
    let all = run(&["run", "demo", "--prompt", "x", "-n", huge, "--greedy", "--stop", "e"]);
    assert_eq!(all.code, 0, "as many tokens as fit: {}", all.err);
    assert_eq!(run(&["run", "demo", "--prompt", "x", "-n", "0"]).code, 0);
    let long = "word ".repeat(4000);
    refused(&["run", "demo", "--prompt", &long], &["2048", "shorten"]);
}

#[test]
fn programs_that_are_none() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name);
        fs::write(&file, bytes).unwrap();
        file.display().to_string()
    };
    let file = folder.path().join("p.wlp").display().to_string();
    assert_eq!(run(&["lower", "demo", "--format", "bin", "-o", &file]).code, 0);
    let bytes = fs::read(&file).unwrap();
    let (mut altered, mut newer) = (bytes.clone(), bytes.clone());
    altered[bytes.len() / 2] ^= 0x10;
    newer[8] = 99;
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("short", &bytes[..40]),
        ("half", &bytes[..bytes.len() / 2]),
        ("altered", &altered),
        ("newer", &newer),
        ("binary", &[0xff, 0xfe, 0x00]),
        ("text", b"L0 frobnicate x -> y\n"),
        ("json", b"{\"schema\": 1}"),
    ] {
        let file = write(name, bytes);
        refused(&["disasm", &file], &[&file]);
        refused(&["asm", &file], &[&file]);
        refused(&["run", "demo", "--prompt", "x", "--program", &file], &[&file]);
    }
    refused(&["disasm", &at(&folder)], &[]);
    refused(&["lower", "demo", "-o", &folder.path().join("no/such/dir/file").display().to_string()], &["no/such/dir"]);
}

#[test]
fn golden_values_that_are_none() {
    let folder = TempDir::new().unwrap();
    let golden = folder.path().join("golden.json");
    let name = golden.display().to_string();
    for text in ["", "{}", "[]", "{\"prompts\": []}", "{\"prompt_ids\": [1], \"greedy_ids\": [2]}"] {
        fs::write(&golden, text).unwrap();
        refused(&["verify", &model_arg("given/llama"), "--golden", &name], &["golden.json"]);
    }
    refused(&["verify", &model_arg("given/llama"), "--golden", "nowhere.json"], &["nowhere.json"]);
    let lacks = copy("given/llama");
    fs::remove_file(lacks.path().join("golden.json")).unwrap();
    refused(&["verify", &at(&lacks)], &["--golden"]);
}

#[test]
fn texts_that_are_none() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("text");
    let name = file.display().to_string();
    fs::write(&file, [0x66, 0xff]).unwrap();
    refused(&["run", "demo", "--prompt-file", &name], &["UTF-8", "byte 1"]);
    refused(&["accuracy", "demo", "--text", &name], &["UTF-8"]);
    fs::write(&file, "").unwrap();
    refused(&["accuracy", "demo", "--text", &name], &["nothing to score"]);
    refused(&["accuracy", &model_arg("given/llama")], &["--text"]);
    assert!(Path::new(&name).exists());
}

#[test]
fn a_cache_that_cannot_be_written_is_no_obstacle() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let output = crate::support::wordline(&["run", "demo", "--prompt", "x", "-n", "1"])
        .env("WORDLINE_CACHE", file.join("cache"))
        .output();
    let ran = crate::support::ran(output.unwrap());
    assert!(ran.code == 0 && ran.err.contains("in memory"), "{}", ran.err);
}

/// A copy of a fixture with keys of one of its JSON files set to other values.
fn edited(name: &str, file: &str, keys: &[(&str, serde_json::Value)]) -> TempDir {
    let folder = copy(name);
    let file = folder.path().join(file);
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for (key, value) in keys {
        json[*key] = value.clone();
    }
    fs::write(&file, json.to_string()).unwrap();
    folder
}

#[test]
fn a_tokenizer_that_can_be_read_and_not_used() {
    let replace = serde_json::json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"});
    let charsmap = serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
    let length = serde_json::json!({"type": "FixedLength", "length": 0});
    let template = serde_json::json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<none>",
        "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}});
    for (key, value) in
        [("normalizer", replace), ("normalizer", charsmap), ("pre_tokenizer", length), ("post_processor", template)]
    {
        let folder = edited("given/llama", "tokenizer.json", &[(key, value)]);
        refused(&["run", &at(&folder), "-p", "Hi", "-n", "1"], &[]);
    }
}

#[test]
fn a_chat_template_of_a_length_that_none_has() {
    let template = format!("{{{{ 1{} }}}}", "+1".repeat(100_000));
    let folder = edited("given/qwen2", "tokenizer_config.json", &[("chat_template", template.into())]);
    refused(&["run", &at(&folder), "-p", "Hi", "--chat"], &["tokenizer_config.json", "200007"]);
    // The longest that is taken does not exhaust the stack.
    let template = format!("{{{{ {}1 }}}}", "not ".repeat(16_000));
    let folder = edited("given/qwen2", "tokenizer_config.json", &[("chat_template", template.into())]);
    let ran = run(&["run", &at(&folder), "-p", "Hi", "--chat", "-n", "1"]);
    assert!([0, 2].contains(&ran.code), "{}", ran.err);
}

#[test]
fn sizes_that_no_program_may_have() {
    let folder = edited("given/llama", "config.json", &[("max_position_embeddings", (1_u64 << 28).into())]);
    for command in ["lower", "diff"] {
        refused(&[command, &at(&folder)], &["positions"]);
    }
}

#[test]
fn ids_that_end_a_text_and_are_none() {
    for value in [serde_json::json!("x"), serde_json::json!(-1), serde_json::json!([[1]]), serde_json::json!(true)] {
        let folder = edited("given/llama", "config.json", &[("eos_token_id", value)]);
        refused(&["run", &at(&folder), "--ids", "1", "-n", "1"], &["config.json", "eos_token_id"]);
    }
}

#[test]
#[cfg(unix)]
fn a_pipe_in_the_place_of_a_file() {
    for (file, args) in [("config.json", ["--ids", "1"]), ("tokenizer.json", ["-p", "Hi"])] {
        let folder = copy("given/llama");
        let pipe = folder.path().join(file);
        fs::remove_file(&pipe).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        refused(&["run", &at(&folder), args[0], args[1], "-n", "1"], &[file, "regular file"]);
    }
}

#[test]
fn a_prompt_that_begins_like_an_option() {
    let ran = run(&["run", "demo", "-p", "- a list", "-n", "2", "--greedy", "--stop", "-x"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}
