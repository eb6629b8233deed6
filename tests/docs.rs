//! Documents that hold commands and reports: every command in README.md and docs/pipeline.md runs and prints what is shown, and
//! docs/json.md describes every report as it is.

use crate::support::{model_arg, root, run, run_json, wordline};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use tempfile::TempDir;

/// The `console` blocks of a document: commands, each with the output shown below it.
fn console(document: &str) -> Vec<(String, Vec<String>)> {
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in document.lines() {
        if let Some(fence) = line.strip_prefix("```") {
            inside = fence == "console";
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            steps.push((command.to_owned(), Vec::new()));
        } else if inside && let Some((_, output)) = steps.last_mut() {
            output.push(line.to_owned());
        }
    }
    steps
}

/// A line as shown, with `…` for any text, fits a line as printed.
fn fits(shown: &str, printed: &str) -> bool {
    let mut rest = printed;
    let parts: Vec<&str> = shown.split('…').collect();
    for (i, part) in parts.iter().enumerate() {
        let Some(at) = rest.find(part) else { return false };
        if i == 0 && at != 0 {
            return false;
        }
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || parts.last().is_some_and(|last| last.is_empty())
}

/// Every command of a document runs, in a folder that has the repository's `tests` and `demo`, and prints the lines that
/// are shown in their order; how many commands those were.
#[cfg(unix)]
fn as_shown(document: &str) -> usize {
    let folder = TempDir::new().unwrap();
    for name in ["tests", "demo"] {
        std::os::unix::fs::symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    let program = wordline(&[]).get_program().to_str().unwrap().to_owned();
    let mut run = 0;
    for (command, shown) in console(document) {
        // The test command would start this test again.
        if command.starts_with("cargo test") || command.starts_with("bash .ci/run") {
            continue;
        }
        let line = command.replace("cargo run --release --", "wordline");
        let looks = line.starts_with("cat ");
        assert!(looks || line.contains("wordline "), "not a command that can be run here: {command}");
        let script = format!("wordline() {{ \"{program}\" \"$@\"; }}\n{line}");
        let output = Command::new("bash")
            .args(["-o", "pipefail", "-c", &script])
            .current_dir(folder.path())
            .env("WORDLINE_CACHE", folder.path().join("cache"))
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command}: {}: {printed}", output.status);
        let mut lines = printed.lines();
        for line in shown.iter().filter(|line| !line.trim().is_empty() && line.trim() != "…") {
            assert!(lines.any(|printed| fits(line, printed)), "{command}\nshown:   {line}\nprinted: {printed}");
        }
        run += 1;
    }
    run
}

#[cfg(unix)]
#[test]
fn the_readmes_commands_do_what_it_shows() {
    let document = std::fs::read_to_string(root().join("README.md")).unwrap();
    let run = as_shown(&document);
    assert!(run >= 5, "{run} commands");
    assert!(document.contains("cargo test --release --workspace"));
}

#[cfg(unix)]
#[test]
fn the_commands_of_the_page_of_rings_do_what_it_shows() {
    assert_eq!(as_shown(&std::fs::read_to_string(root().join("docs/pipeline.md")).unwrap()), 2);
}

/// Paths of all keys of a JSON value; entries of maps that are keyed by names count as `*`.
fn keys(value: &Value, prefix: &str, open: &[&str], found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = if open.contains(&prefix) { "*" } else { key };
                let path = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
                keys(value, &path, open, found);
                found.insert(path);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, &format!("{prefix}[]"), open, found)),
        _ => {}
    }
}

/// Every report has the keys of its example in docs/json.md, and no others.
#[test]
fn reports_are_as_documented() {
    let llama = model_arg("given/llama");
    let reports: [(&str, Vec<&str>); 8] = [
        ("inspect", vec!["inspect", &llama, "--json"]),
        ("lower", vec!["lower", "demo", "--json"]),
        ("diff", vec!["diff", "demo", "--json"]),
        ("run", vec!["run", "demo", "--prompt", "Once", "-n", "2", "--json"]),
        ("verify", vec!["verify", &llama, "--json"]),
        ("accuracy", vec!["accuracy", "demo", "--limit", "40", "--baseline", "q8", "--json"]),
        ("units --runs", vec!["units", "--runs", "--fixtures", "demo", "--json"]),
        (
            "bench",
            vec!["bench", "demo", "--backend", "cpu", "--pairs", "2", "--batch", "1,2", "--prefill", "8", "--json"],
        ),
    ];
    for (name, args) in reports {
        documented(name, &run_json(&args));
    }
}

/// The twin's reports, each with what makes all of its parts appear.
#[test]
fn reports_of_the_twin_are_as_documented() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (own, bench, trace) = (at("own.toml"), at("bench.json"), at("trace.json"));
    std::fs::write(&own, "like = \"kv260\"\n[weights]\ncurve = [[65536, 0.5], [1048576, 1.0]]\n").unwrap();
    let decode = r#"{"batch": 1, "tokens_per_s": 500.0, "us_by_command": {"matvec": 1500.0, "norm": 100.0}}"#;
    std::fs::write(&bench, format!(r#"{{"model": "demo", "limit_bytes_per_s": 2e10, "decode": [{decode}]}}"#)).unwrap();
    let reports: [(&str, Vec<&str>); 8] = [
        ("twin", vec!["twin", "demo", "--machine", "edge-asic", "--stages", "2", "--weights", "bf16", "--json"]),
        ("twin diff", vec!["twin", "diff", "gb10", "jetson-thor", "--on", "demo", "--json"]),
        ("twin machines", vec!["twin", "machines", "--json"]),
        ("twin machines NAME", vec!["twin", "machines", &own, "--json"]),
        ("twin knobs", vec!["twin", "knobs", "--json"]),
        ("twin calibrate", vec!["twin", "calibrate", &bench, "--json"]),
        ("twin validate", vec!["twin", "validate", "--json"]),
        ("sweep", vec!["sweep", "demo", "--machine", "edge-asic", "--set", "memory.peak_gbps=100,1e9", "--json"]),
    ];
    for (name, args) in reports {
        documented(name, &run_json(&args));
    }
    run(&["twin", "trace", "demo", "--machine", "edge-asic", "-o", &trace]);
    documented("twin trace", &serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap());
}

/// A report has the keys of its example in docs/json.md, and no others.
pub(crate) fn documented(name: &str, report: &Value) {
    let document = std::fs::read_to_string(root().join("docs/json.md")).unwrap();
    // Keyed by mnemonics, forms, fixtures, files; rotary scalings have fields of their kind.
    let open = [
        "opcodes",
        "array.forms",
        "vector.forms",
        "runs",
        "rope",
        "spec.rope",
        "files",
        "decode[].us_by_command",
        "knobs",
        "curves",
    ];
    let section = document.split("\n## ").find(|section| section.starts_with(&format!("`{name}`\n")));
    let section = section.unwrap_or_else(|| panic!("docs/json.md has no section ## `{name}`"));
    let example = section.split("```json\n").nth(1).and_then(|s| s.split("```").next());
    let example: Value = serde_json::from_str(example.unwrap_or_else(|| panic!("{name} has no example"))).unwrap();
    let (mut documented, mut found) = (BTreeSet::new(), BTreeSet::new());
    keys(&example, "", &open, &mut documented);
    keys(report, "", &open, &mut found);
    assert_eq!(found, documented, "{name}");
}

#[test]
fn the_parts_of_this_suite_can_fail() {
    assert!(fits("a … c", "a b c") && fits("a", "a") && fits("a…", "abc") && fits("…c", "abc"));
    assert!(!fits("a … c", "a b d") && !fits("a", "ab") && !fits("b…", "ab"));
    let steps = console("x\n```console\n$ one\nout\n$ two\n```\n```sh\n$ three\n```");
    assert_eq!(steps, [("one".to_owned(), vec!["out".to_owned()]), ("two".to_owned(), vec![])]);
}
