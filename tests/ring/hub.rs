//! Stages that fetch from the Hub: each its own tensors, with its own token, in as few requests as `plan` says.

use super::kit::{Ended, PATIENCE, Ring, Running, Setting, failed, lonely, stage_command, within};
use crate::hub::{MODEL, Server, Site, program};
use crate::support::{model, path, ran, run_json};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wordline::checkpoint::roles::tensors_of;
use wordline::pipeline::demand::demand;
use wordline::pipeline::load::program_of;
use wordline::pipeline::plan::Room;
use wordline_ir::Numerics;

const TOKEN: &str = "hf_verysecrettoken";

/// A process of a ring with an environment of the Hub that the test gives and nothing of the user's.
fn device(endpoint: &str, cache: &Path, args: &[&str], token: Option<&str>) -> Command {
    let mut command = program(endpoint, cache, args);
    if let Some(token) = token {
        command.env("HF_TOKEN", token);
    }
    command
}

fn stage_args<'a>(join: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["stage", "--join", join, "--once", "--threads", "1", "--listen", "127.0.0.1:0"];
    args.extend(more);
    args
}

/// A ring over a model on the Hub: the head's report, what each stage said, and the server's requests.
struct Told {
    report: Value,
    stages: Vec<Ended>,
    /// Authorization, file, length of the range.
    seen: Vec<(String, String, Option<u64>)>,
}

fn ring(fixture: &str, stages: usize, more: &[&str]) -> Told {
    let (mut server, endpoint) = super::aside::hub(lonely(), fixture, Some(TOKEN));
    let caches: Vec<TempDir> = (0..=stages).map(|_| TempDir::new().unwrap()).collect();
    let home = caches[0].path().display().to_string();
    let env = [("HF_ENDPOINT", endpoint.as_str()), ("WORDLINE_CACHE", &home), ("HF_HOME", &home), ("HF_TOKEN", TOKEN)];
    let record = caches[0].path().join("flight.json").display().to_string();
    let more = [more, &["--record", &record]].concat();
    let ring = Ring::with(&Setting { model: MODEL, stages, more: &more, env: &env, ..Setting::default() });
    let join = ring.join();
    let start = |cache: &TempDir| {
        let command = device(&endpoint, cache.path(), &stage_args(&join, &[]), Some(TOKEN));
        Running::start(within(lonely(), command))
    };
    let running: Vec<Running> = caches[1..].iter().map(start).collect();
    let (report, err) = ring.report();
    let stages: Vec<Ended> = running.into_iter().map(Running::output).collect();
    server.close_input();
    let told = server.output().out;
    let seen = told.lines().filter_map(|line| line.strip_prefix("seen ")).map(|line| {
        // "Bearer TOKEN FILE FIRST END", or "whole" in place of the range.
        let words: Vec<&str> = line.split(' ').collect();
        let range = words[3..].first().filter(|first| **first != "whole");
        let length = range.map(|first| words[4].parse::<u64>().unwrap() - first.parse::<u64>().unwrap());
        (words[1].to_owned(), words[2].to_owned(), length)
    });
    let seen = seen.collect();
    let record = std::fs::read_to_string(record).unwrap();
    for text in stages.iter().map(|stage| &stage.err).chain([&err, &report.to_string(), &record]) {
        assert!(!text.contains(TOKEN), "a token: {text}");
    }
    Told { report, stages, seen }
}

#[test]
fn each_device_fetches_its_own_tensors_and_no_others() {
    for (fixture, stages) in [("demo", 4), ("given/mistral", 2), ("given/qwen3_next", 2)] {
        let told = ring(fixture, stages, &["--ids", "1,2,3", "-n", "4", "--ignore-eos", "--check"]);
        let local = crate::support::model_arg(fixture);
        let expected = run_json(&["run", &local, "--ids", "1,2,3", "-n", "4", "--ignore-eos", "--json"]);
        assert_eq!((&told.report["ids"], &told.report["check"]["equal"]), (&expected["ids"], &Value::Bool(true)));
        let model = model(fixture);
        let (spec, weights) = (&model.checkpoint.spec, &model.checkpoint.weights);
        let bytes_of = |names: &BTreeSet<String>| -> u64 {
            let own = weights.entries().filter(|(_, entry)| names.contains(&entry.name));
            own.map(|(_, entry)| entry.bytes.end - entry.bytes.start).sum()
        };
        // What each stage was to read, and did: ranges of its own tensors, its neighbours' at most where a gap is bridged.
        for stage in told.report["stages"].as_array().unwrap().iter().skip(1) {
            let layers = stage["layers"][0].as_u64().unwrap() as usize..stage["layers"][1].as_u64().unwrap() as usize;
            let own = bytes_of(&tensors_of(spec, &layers, false));
            assert_eq!(stage["bytes"].as_u64(), Some(own), "{fixture}: {stage}");
            // Its own words: a neighbour may name it too, when it hears that it left.
            let own_words = format!("its key is {}", stage["key"].as_str().unwrap());
            let said = told.stages.iter().find(|s| s.err.contains(&own_words)).unwrap();
            assert!(said.status.success(), "{}", said.err);
            let line = said.err.lines().find(|line| line.contains("bytes fetched in")).unwrap();
            let figure = |after: &str| -> u64 {
                let rest = line.split(after).nth(1).unwrap().trim_start_matches([';', ' ']);
                rest.split(' ').next().unwrap().parse().unwrap()
            };
            let (fetched, requests) = (figure("reads"), figure("fetched in "));
            assert!((own..=own + (256 << 10)).contains(&fetched), "{fixture}: {line}: {own}");
            assert_eq!(Some(requests), stage["requests"].as_u64(), "{fixture}: {line}: as was planned");
        }
        // Everybody asked with a token of its own, and for the commit that the head resolved.
        assert!(told.seen.iter().all(|(token, ..)| token == TOKEN), "{:?}", told.seen);
        let weights_moved: u64 = told
            .seen
            .iter()
            .filter(|(_, file, _)| file.ends_with(".safetensors"))
            .filter_map(|(.., length)| *length)
            .sum();
        // The head fetched its own part, and all of it once more for the check.
        println!("{fixture}: {weights_moved} bytes of weights and headers moved, {} requests", told.seen.len());
    }
}

#[test]
fn plan_says_the_requests_that_a_stage_sends() {
    let server = Server::new(Site::of(&path("demo")));
    let cache = TempDir::new().unwrap();
    let devices = cache.path().join("devices.json");
    std::fs::write(
        &devices,
        r#"[{"capacity": 1.0, "memory": 9e9}, {"capacity": 1.0, "memory": 9e9}]"#.replace("9e9", "9000000000"),
    )
    .unwrap();
    let file = devices.display().to_string();
    let args = ["plan", MODEL, "--devices", &file, "--json"];
    let planned = ran(program(&server.endpoint, cache.path(), &args).output().unwrap());
    assert_eq!(planned.code, 0, "{}", planned.err);
    let planned: Value = serde_json::from_str(&planned.out).unwrap();
    // Planning moves config and headers.
    let seen = server.of("model.safetensors");
    assert_eq!(seen.len(), 2, "{seen:?}");
    let stage = &planned["stages"][1];
    let layers = format!("{}..{}", stage["layers"][0], stage["layers"][1]);
    server.forget();
    let fetched = ran(program(&server.endpoint, cache.path(), &["fetch", MODEL, "--layers", &layers, "--json"])
        .output()
        .unwrap());
    let fetched: Value = serde_json::from_str(&fetched.out).unwrap();
    let file = &fetched["files"]["model.safetensors"];
    assert_eq!((&file["wanted"], &file["requests"]), (&stage["bytes"], &stage["requests"]), "{planned}");
    assert_eq!(server.of("model.safetensors").len() as u64, stage["requests"].as_u64().unwrap());
}

#[test]
fn a_stage_without_access_is_named_and_told_what_to_do() {
    let (server, endpoint) = super::aside::hub(lonely(), "given/llama", Some(TOKEN));
    let (head, own) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let home = head.path().display().to_string();
    let env = [("HF_ENDPOINT", endpoint.as_str()), ("WORDLINE_CACHE", &home), ("HF_HOME", &home), ("HF_TOKEN", TOKEN)];
    let more = ["--ids", "1,2,3", "-n", "2"];
    // Without a token, and with one of its own that opens nothing: what goes wrong is told to the head, the token is not.
    const OTHER: &str = "hf_anothersecrettoken";
    for token in [None, Some(OTHER)] {
        let ring = Ring::with(&Setting { model: MODEL, more: &more, env: &env, ..Setting::default() });
        let join = ring.join();
        let stage = Running::start(within(lonely(), device(&endpoint, own.path(), &stage_args(&join, &[]), token)));
        let err = failed(ring.head, "loading: access: ");
        assert!(err.contains("stage 1 (") && err.contains("gated") && err.contains("HF_TOKEN"), "{err}");
        let err = failed(stage, "access: ") + &err;
        assert!(!err.contains(TOKEN) && !err.contains(OTHER), "{err}");
    }
    drop(server);
}

#[test]
fn a_stage_with_a_directory_takes_part_in_a_ring_over_the_hub() {
    let (server, endpoint) = super::aside::hub(lonely(), "given/llama", None);
    let head = TempDir::new().unwrap();
    let home = head.path().display().to_string();
    let env = [("HF_ENDPOINT", endpoint.as_str()), ("WORDLINE_CACHE", &home), ("HF_HOME", &home)];
    let more = ["--ids", "1,2,3", "-n", "3", "--ignore-eos", "--check"];
    let ring = Ring::with(&Setting { model: MODEL, more: &more, env: &env, ..Setting::default() });
    let local = path("given/llama").display().to_string();
    let command = stage_command(&ring.join(), "127.0.0.1:0", &["--model", &local]);
    let stage = Running::start(within(lonely(), command));
    let (report, err) = ring.report();
    assert_eq!(report["check"]["equal"], true, "{err}");
    let ended = stage.output();
    assert!(ended.status.success() && !ended.err.contains("fetched"), "{}", ended.err);
    drop(server);
}

/// Bytes of a file's tensors that a cache holds, by its journal; tensors begin at `first`.
fn held(cache: &Path, file: &str, first: u64) -> u64 {
    let mut left = vec![cache.to_owned()];
    while let Some(folder) = left.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if path.ends_with(format!("{file}.journal")) {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                let span = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
                    [start, end, digest, _] if digest.len() == 64 => {
                        let (start, end) = (start.parse::<u64>().ok()?, end.parse::<u64>().ok()?);
                        (start >= first).then_some(end - start)
                    }
                    _ => None,
                };
                return text.lines().filter_map(span).sum();
            } else if path.is_dir() {
                left.push(path);
            }
        }
    }
    0
}

#[test]
fn a_killed_fetch_goes_on_from_what_is_there() {
    const STALLED: &str = "model-00003-of-00003.safetensors";
    const STAGE: &str = "hf_thestage";
    // The third file's weights do not come to the stage as long as this holds. Each device has a token of its own.
    let stalls = Arc::new(AtomicBool::new(true));
    let holds = Arc::clone(&stalls);
    let is_weights = |seen: &crate::hub::Seen| seen.range.as_ref().is_some_and(|range| range.start > 8);
    let server = Server::changing(Site::of(&path("given/mistral")), move |seen, _, reply| {
        let stage = seen.authorization.as_ref().is_some_and(|text| text.ends_with(STAGE));
        let stalled = holds.load(Ordering::Relaxed) && stage && seen.file == STALLED && is_weights(seen);
        if stalled { reply.with("test-wait-ms", 60_000) } else { reply }
    });
    let model = model("given/mistral");
    let all = 0..model.checkpoint.spec.layers.len();
    let names = tensors_of(&model.checkpoint.spec, &all, false);
    let (mut wanted, mut first): (BTreeMap<&str, u64>, BTreeMap<&str, u64>) = Default::default();
    for (file, entry) in model.checkpoint.weights.entries() {
        let first = first.entry(file).or_insert(u64::MAX);
        *first = entry.bytes.start.min(*first);
    }
    for (file, entry) in model.checkpoint.weights.entries().filter(|(_, entry)| names.contains(&entry.name)) {
        *wanted.entry(file).or_default() += entry.bytes.end - entry.bytes.start;
    }
    assert!(wanted.len() == 3 && wanted[STALLED] > 0, "{wanted:?}");
    // The head lends memory for its ends alone, so that every layer is the stage's.
    let program = program_of(&model.checkpoint.spec, &Numerics::default()).unwrap();
    let ends = demand(&program, Room { ctx: 6, step_rows: 6, sequences: 1 }).unwrap().ends.to_string();
    let caches = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let home = caches[0].path().display().to_string();
    let env = [("HF_ENDPOINT", server.endpoint.as_str()), ("WORDLINE_CACHE", &home), ("HF_HOME", &home)];
    let more = ["--ids", "1,2,3", "-n", "3", "--ignore-eos", "--check", "--memory", &ends];
    let setting = Setting { model: MODEL, more: &more, env: &env, space: None, ..Setting::default() };
    let own = caches[1].path();
    let start =
        |ring: &Ring| Running::start(device(&server.endpoint, own, &stage_args(&ring.join(), &[]), Some(STAGE)));
    let ring = Ring::with(&setting);
    let stage = start(&ring);
    let begun = Instant::now();
    let there = || wanted.iter().all(|(file, bytes)| *file == STALLED || held(own, file, first[file]) >= *bytes);
    while !there() || !server.of(STALLED).iter().any(is_weights) {
        assert!(begun.elapsed() < PATIENCE && stage.lives(), "{:?}", server.seen());
        std::thread::sleep(Duration::from_millis(20));
    }
    stage.signal("KILL");
    let err = failed(ring.head, "loading: no sign of life");
    assert!(err.contains("0 of 1 stages are left"), "{err}");

    stalls.store(false, Ordering::Relaxed);
    server.forget();
    let ring = Ring::with(&setting);
    let stage = start(&ring);
    let (report, err) = ring.report();
    assert_eq!(report["check"]["equal"], true, "{err}");
    assert_eq!(report["stages"][1]["layers"], serde_json::json!([0, all.end]), "{report}");
    let ended = stage.output();
    assert!(ended.status.success(), "{}", ended.err);
    let here: u64 = wanted.iter().filter(|(file, _)| **file != STALLED).map(|(_, bytes)| bytes).sum();
    let line = ended.err.lines().find(|line| line.contains("bytes fetched in")).unwrap();
    assert!(line.ends_with(&format!("{here} were here")), "{line}: {here}");
    assert!(line.contains(&format!("; {} bytes fetched in 1 requests", wanted[STALLED])), "{line}: {wanted:?}");
}
