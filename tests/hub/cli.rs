//! The contract for scripts, against a Hub on the loopback.

use super::server::Server;
use super::site::{COMMIT, MODEL, Site};
use super::token::program;
use crate::docs::documented;
use crate::support::{model_arg, path, ran, run_json};
use serde_json::Value;
use tempfile::TempDir;

const FIXTURE: &str = "given/llama";

const DEVICES: &str = r#"[{"name": "a", "capacity": 900.0, "memory": 8000000000, "rtt_ms": 0.3},
                          {"name": "b", "capacity": 700.0, "memory": 8000000000, "rtt_ms": 0.3}]"#;

/// A server, and the program run against it.
struct Bench {
    server: Server,
    cache: TempDir,
}

impl Bench {
    fn new(name: &str) -> Self {
        Self { server: Server::new(Site::of(&path(name))), cache: TempDir::new().unwrap() }
    }

    fn json(&self, args: &[&str]) -> Value {
        let ran = ran(program(&self.server.endpoint, self.cache.path(), args).output().unwrap());
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }
}

#[test]
fn inspect_says_what_the_local_files_say_and_what_it_cost() {
    let bench = Bench::new(FIXTURE);
    let report = bench.json(&["inspect", MODEL, "--json"]);
    let local = run_json(&["inspect", &model_arg(FIXTURE), "--json"]);
    for key in ["spec", "tensors", "bytes", "layer_kinds", "weights", "family", "layers"] {
        assert_eq!(report[key], local[key], "{key}");
    }
    assert_eq!((&report["commit"], &local["commit"]), (&COMMIT.into(), &Value::Null));
    let header = report["tensors"].as_array().unwrap().iter().map(|t| t["range"][0].as_u64().unwrap()).min().unwrap();
    let config = std::fs::metadata(path(FIXTURE).join("config.json")).unwrap().len();
    assert_eq!((&report["requests"], &report["bytes_moved"]), (&3.into(), &(header + config).into()));
    assert_eq!((&local["requests"], &local["bytes_moved"]), (&0.into(), &0.into()));
    let by_role: u64 = report["bytes"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
    assert_eq!(by_role, report["weights"]["stored_bytes"].as_u64().unwrap());
    let text = ran(program(&bench.server.endpoint, bench.cache.path(), &["inspect", MODEL]).output().unwrap()).out;
    for part in [COMMIT, "bytes moved", "model.layers.*.mlp.down_proj.weight", "attention"] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
}

#[test]
fn fetch_says_bytes_and_requests_by_file() {
    let bench = Bench::new("given/mistral");
    let part = bench.json(&["fetch", MODEL, "--layers", "1..2", "--json"]);
    let files = part["files"].as_object().unwrap();
    assert!(!files.is_empty() && files.keys().all(|name| name.ends_with(".safetensors")), "{files:?}");
    assert_eq!((&part["layers"], &part["commit"]), (&serde_json::json!([1, 2]), &COMMIT.into()));
    let all = bench.json(&["fetch", MODEL, "--json"]);
    assert!(all["files"]["tokenizer.json"]["bytes"].as_u64().unwrap() > 0);
    let sum = |report: &Value, key: &str| -> u64 {
        let weights = report["files"].as_object().unwrap().iter().filter(|(name, _)| name.ends_with(".safetensors"));
        weights.map(|(_, file)| file[key].as_u64().unwrap()).sum()
    };
    let inspected = bench.json(&["inspect", MODEL, "--json"]);
    assert_eq!(sum(&all, "wanted"), inspected["weights"]["stored_bytes"].as_u64().unwrap());
    assert_eq!(sum(&all, "bytes") + sum(&all, "cached"), sum(&all, "wanted"));
    assert!(sum(&all, "cached") >= sum(&part, "wanted") && sum(&part, "wanted") > 0);
    let again = bench.json(&["fetch", MODEL, "--json"]);
    assert_eq!((sum(&again, "bytes"), sum(&again, "requests"), &again["requests"]), (0, 0, &1.into()));
    // What is here needs no network.
    bench.server.forget();
    let local = ran(program(&bench.server.endpoint, bench.cache.path(), &["fetch", "demo"]).output().unwrap());
    assert!(local.code == 0 && local.out.contains("nothing to fetch"), "{}{}", local.out, local.err);
    assert!(bench.server.seen().is_empty());
    for (args, words) in [
        (vec!["fetch", MODEL, "--layers", "0..99"], vec!["99", "layers"]),
        (vec!["fetch", MODEL, "--layers", "2..1"], vec!["A..B"]),
        (vec!["fetch", "no/such-model"], vec!["no/such-model", "no such model"]),
        (vec!["fetch", "a/b@../c"], vec!["a/b@../c"]),
        (vec!["inspect", "a/b/c"], vec!["owner/name"]),
    ] {
        let refused = ran(program(&bench.server.endpoint, bench.cache.path(), &args).output().unwrap());
        assert_eq!(refused.code, 2, "{args:?}: {}", refused.err);
        words.iter().for_each(|word| assert!(refused.err.contains(word), "{args:?}: {word}: {}", refused.err));
    }
}

#[test]
fn lower_and_diff_work_from_headers() {
    let bench = Bench::new("given/qwen3_next");
    let lowered = bench.json(&["lower", MODEL, "--json"]);
    let local = run_json(&["lower", &model_arg("given/qwen3_next"), "--json"]);
    assert_eq!((&lowered["identity"], &lowered["opcodes"]), (&local["identity"], &local["opcodes"]));
    assert_eq!(bench.json(&["diff", MODEL, "--json"])["equal"], true);
    let moved: u64 = bench.server.seen().iter().filter_map(|seen| seen.range.as_ref()).map(|r| r.end - r.start).sum();
    let inspected = bench.json(&["inspect", MODEL, "--json"]);
    let tensors = inspected["tensors"].as_array().unwrap();
    let header = tensors.iter().map(|t| t["range"][0].as_u64().unwrap()).min().unwrap();
    assert_eq!(moved, header, "no byte of a tensor");
}

#[test]
fn twin_and_plan_work_from_headers() {
    let bench = Bench::new(FIXTURE);
    let devices = bench.cache.path().join("devices.json");
    std::fs::write(&devices, DEVICES).unwrap();
    let devices = devices.to_str().unwrap();
    let local = model_arg(FIXTURE);
    let (twin, plan) = (["--machine", "edge-asic", "--json"], ["--devices", devices, "--json"]);
    for (command, rest, keys) in
        [("twin", twin, ["ms_per_step", "bytes", "bottleneck"]), ("plan", plan, ["stages", "layers", "advice"])]
    {
        let (ours, theirs) = ([&[command, MODEL], &rest[..]].concat(), [&[command, &*local], &rest[..]].concat());
        let (hub, local) = (bench.json(&ours), run_json(&theirs));
        for key in keys {
            assert!(!hub[key].is_null() && hub[key] == local[key], "{command} {key}: {} and {}", hub[key], local[key]);
        }
    }
    let inspected = bench.json(&["inspect", MODEL, "--json"]);
    let tensors = inspected["tensors"].as_array().unwrap();
    let header = tensors.iter().map(|t| t["range"][0].as_u64().unwrap()).min().unwrap();
    let seen = bench.server.of("model.safetensors");
    assert!(seen.iter().all(|seen| seen.range.as_ref().is_some_and(|range| range.end <= header)), "{seen:?}");
}

#[test]
fn a_model_on_the_hub_writes_what_the_local_one_writes() {
    let bench = Bench::new(FIXTURE);
    let args = |model: &'static str| ["run", model, "--ids", "1,2,3", "-n", "4", "--json"];
    let local = model_arg(FIXTURE);
    let expected = run_json(&["run", &local, "--ids", "1,2,3", "-n", "4", "--json"]);
    let first = bench.json(&args(MODEL));
    assert_eq!(first["ids"], expected["ids"]);
    assert_eq!(bench.server.of("model.safetensors").len(), 3, "two for the header, one for all weights");
    // The second time the weight image is there: no weight moves or is read.
    bench.server.forget();
    let data = bench.cache.path().join("wl/hub");
    let listed = bench.json(&["cache", "list", "--json"]);
    assert_eq!((&listed["models"][0]["model"], &listed["images"]["count"]), (&MODEL.into(), &1.into()));
    assert!(data.is_dir());
    assert_eq!(bench.json(&args(MODEL))["ids"], expected["ids"]);
    assert!(bench.server.of("model.safetensors").is_empty());
    let cleaned = bench.json(&["cache", "clean", "--images", "--json"]);
    assert_eq!((&cleaned["models"], &cleaned["images"], &cleaned["in_use"]), (&1.into(), &1.into(), &0.into()));
    assert_eq!(bench.json(&["cache", "list", "--json"])["bytes"], 0);
    let verified = bench.json(&["verify", MODEL, "--reference-only", "--json"]);
    assert_eq!(verified["reference"]["ok"], true);
}

#[test]
fn a_directory_of_the_same_name_is_taken_first() {
    let bench = Bench::new(FIXTURE);
    let folder = TempDir::new().unwrap();
    let local = folder.path().join(MODEL);
    std::fs::create_dir_all(&local).unwrap();
    std::fs::write(local.join("config.json"), "{}").unwrap();
    let ran = ran(program(&bench.server.endpoint, bench.cache.path(), &["inspect", MODEL])
        .current_dir(folder.path())
        .output()
        .unwrap());
    assert_eq!(ran.code, 2);
    assert!(bench.server.seen().is_empty(), "{}", ran.err);
}

#[test]
fn the_reports_are_as_documented() {
    let bench = Bench::new(FIXTURE);
    bench.json(&["run", MODEL, "--ids", "1", "-n", "1", "--json"]);
    for (name, args) in [
        ("inspect", vec!["inspect", MODEL, "--json"]),
        ("fetch", vec!["fetch", MODEL, "--json"]),
        ("cache list", vec!["cache", "list", "--json"]),
        ("cache clean", vec!["cache", "clean", "--json"]),
    ] {
        documented(name, &bench.json(&args));
    }
    // A damaged span, so that the report has one.
    bench.json(&["fetch", MODEL, "--json"]);
    let cache = bench.cache.path().join("wl/hub");
    let mut left = vec![cache];
    while let Some(folder) = left.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                left.push(path);
            } else if path.ends_with("config.json.spans") {
                std::fs::write(path, "").unwrap();
            }
        }
    }
    let ran =
        ran(program(&bench.server.endpoint, bench.cache.path(), &["cache", "verify", "--json"]).output().unwrap());
    assert_eq!(ran.code, 1);
    documented("cache verify", &serde_json::from_str(&ran.out).unwrap());
}
