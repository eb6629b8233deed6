//! Rings on loopback that do what they should, and what `plan` and `replay` say of them.

use super::kit::{ASK, Ring, Running, Setting, alone, failed, lonely, within};
use crate::docs::documented;
use crate::support::{model_arg, run_json, wordline};
use serde_json::Value;
use std::net::UdpSocket;
use tempfile::TempDir;
use wordline::pipeline::demand::demand;
use wordline::pipeline::link::{Identity, Ticket};
use wordline::pipeline::load::program_of;
use wordline::pipeline::plan::Room;
use wordline_ir::Numerics;

#[test]
fn five_processes_write_what_one_writes() {
    for model in ["demo".to_owned(), model_arg("storyteller-llama")] {
        let record = TempDir::new().unwrap();
        let file = record.path().join("record").display().to_string();
        let ring = Ring::new(&model, 4, &[&ASK[..], &["--check", "--audit", "1", "--record", &file]].concat());
        let stages: Vec<Running> = (0..4).map(|_| ring.stage(&[])).collect();
        let (report, err) = ring.report();
        let expected = alone(&model);
        assert_eq!((&report["ids"], &report["text"]), (&expected["ids"], &expected["text"]), "{err}");
        assert_eq!(report["check"]["equal"], true);
        let ranges: Vec<(u64, u64)> = report["stages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| (s["layers"][0].as_u64().unwrap(), s["layers"][1].as_u64().unwrap()))
            .collect();
        assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "{ranges:?}");
        assert!(report["audit"].as_array().unwrap().iter().all(|a| a["found"] == "right"), "{report}");
        stages.into_iter().for_each(|stage| {
            let ended = stage.output();
            assert!(ended.status.success(), "{}", ended.err);
        });
        let replayed = run_json(&["replay", &file, "--json"]);
        assert_eq!((&replayed["equal"], &replayed["ids"][0]), (&Value::Bool(true), &expected["ids"]), "{replayed}");
        assert!(replayed["hops"].as_u64().unwrap() > 20, "{replayed}");
        documented("head", &report);
        documented("replay", &replayed);
        // One digit of one digest.
        let mut text = std::fs::read_to_string(&file).unwrap();
        let at = text.rfind("\"rows\":[[\"").unwrap() + "\"rows\":[[\"".len();
        let other = if &text[at..=at] == "0" { "1" } else { "0" };
        text.replace_range(at..=at, other);
        std::fs::write(&file, text).unwrap();
        let output = wordline(&["replay", &file, "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "an altered record is no replay's equal");
    }
}

/// Laps of the last tokens alone, past the point where they begin to slide: the check and the replay do as the ring does.
#[test]
fn laps_of_the_last_tokens_are_checked_and_replayed() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("record").display().to_string();
    let slide = ["--stateless", "--step-rows", "5", "--check", "--record", &file];
    let ring = Ring::new("demo", 2, &[&ASK[..], &slide].concat());
    let stages = [ring.stage(&[]), ring.stage(&[])];
    let (report, err) = ring.report();
    assert_eq!(report["check"]["equal"], true, "{err}");
    assert_ne!(report["ids"], alone("demo")["ids"], "five tokens are less than the whole text");
    let replayed = run_json(&["replay", &file, "--json"]);
    assert_eq!((&replayed["equal"], &replayed["ids"][0]), (&Value::Bool(true), &report["ids"]), "{replayed}");
    assert_eq!(replayed["hops"], 12 * 3, "twelve laps of three stages: {replayed}");
    assert!(stages.into_iter().all(|stage| stage.output().status.success()));
}

#[test]
fn stages_on_other_units_write_the_same() {
    let tried = wordline(&["run", "demo", "--backend", "dp4a", "--ids", "1", "-n", "1"]).output().unwrap();
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    if !tried.status.success() && said.contains("backend 'dp4a'") {
        return println!("skipped: {said}");
    }
    assert!(tried.status.success(), "{said}");
    for name in ["demo", "given/qwen3"] {
        let model = model_arg(name);
        let ask = ["--ids", "5,9,31", "-n", "6", "--ignore-eos"];
        // However fast each is, both get layers: the head has memory for one, and each of the two for all but two.
        let spec = crate::support::model(name).checkpoint.spec;
        let needs = program_of(&spec, &Numerics::default()).unwrap();
        let needs = demand(&needs, Room { ctx: 9, step_rows: 9, sequences: 1 }).unwrap();
        let head = (needs.ends + needs.layers[0]).to_string();
        let largest = needs.layers.iter().max().unwrap();
        let other = (largest * (needs.layers.len() as u64 - 2)).to_string();
        // A device in software makes its programs for as long as it likes.
        let patient = ["--lap-timeout", "60"];
        let more = [&ask[..], &patient, &["--check", "--audit", "1", "--auditor", "other", "--memory", &head]].concat();
        let ring = Ring::new(&model, 2, &more);
        let stages = [
            ring.stage(&["--backend", "dp4a", "--memory", &other]),
            ring.stage(&["--backend", "cpu", "--memory", &other]),
        ];
        let (report, err) = ring.report();
        let expected = run_json(&[&["run", &model, "--json"][..], &ask].concat());
        assert_eq!((&report["ids"], &report["check"]["equal"]), (&expected["ids"], &true.into()), "{err}");
        let on = report["stages"].as_array().unwrap().iter().map(|s| s["backend"].as_str().unwrap().to_owned());
        let on: Vec<String> = on.collect();
        assert_eq!(on.iter().filter(|name| name.contains("gpu-")).count(), 1, "{on:?}: {err}");
        // Each of the two replays what came to the other: the processor the device's rows, and the device the processor's.
        let audit = report["audit"].as_array().unwrap();
        assert!(
            audit.len() == 2 && audit.iter().all(|a| a["found"] == "right" && a["by"] != a["key"]),
            "{report}: {err}"
        );
        assert!(stages.into_iter().all(|stage| stage.output().status.success()));
    }
}

#[test]
fn a_stage_serves_heads_one_after_the_other_and_says_what_they_write() {
    let folder = TempDir::new().unwrap();
    let identity = folder.path().join("identity").display().to_string();
    // One identity and one port: the first head's ticket is good for all of them.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let other = model_arg("given/qwen3");
    let ask = ["--ids", "5,9,31", "-n", "5", "--ignore-eos"];
    let more = [&ask[..], &["--identity", &identity]].concat();
    let head = |model: &str| Ring::with(&Setting { model, more: &more, listen: &port, ..Setting::default() });
    let first = head("demo");
    let args = ["stage", "--join", &first.join(), "--threads", "1", "--listen", "127.0.0.1:0", "--watch"];
    let stage = Running::start(within(lonely(), wordline(&args)));
    let expected = run_json(&[&["run", "demo", "--json"][..], &ask].concat());
    let (report, err) = first.report();
    assert_eq!(report["ids"], expected["ids"], "{err}");
    // The second brings a model that this device does not have: that run fails by name, and the device stays.
    let err = failed(head(&other).head, "stage 1 (");
    assert!(err.contains("this device has no copy of local/qwen3"), "{err}");
    stage.says("waiting for the head's next run");
    let (report, err) = head("demo").report();
    assert_eq!(report["ids"], expected["ids"], "{err}");
    assert!(stage.lives());
    stage.signal("KILL");
    let ended = stage.output();
    // Sequence, place and id of every token of both runs, with its text.
    let ids = expected["ids"].as_array().unwrap();
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.len(), 2 * ids.len(), "{}", ended.out);
    for (index, (line, id)) in lines.iter().zip(ids.iter().chain(ids)).enumerate() {
        assert!(line.starts_with(&format!("0 {} {id} \"", index % ids.len())), "{line}");
    }
    let said: String = lines[..ids.len()].iter().map(|line| line.split('"').nth(1).unwrap()).collect();
    assert_eq!(said, expected["text"].as_str().unwrap());
}

/// A device whose key the head knows needs nothing of the ticket but where the head is.
#[test]
fn a_device_on_the_roster_takes_part_without_the_secret() {
    let folder = TempDir::new().unwrap();
    let (identity, roster) = (folder.path().join("identity"), folder.path().join("roster"));
    let key = wordline_ir::digest::hex(&Identity::open(&identity).unwrap().key());
    std::fs::write(&roster, format!("# the machine in the cellar\n{key}\n")).unwrap();
    let ring = Ring::new("demo", 1, &[&ASK[..], &["--roster", &roster.display().to_string()]].concat());
    let mut ticket: Ticket = std::fs::read_to_string(ring.ticket()).unwrap().parse().unwrap();
    ticket.secret = [7; 32];
    failed(super::kit::stage(&ticket.to_string(), &[]), "its key is not on the roster");
    let known = super::kit::stage(&ticket.to_string(), &["--identity", &identity.display().to_string()]);
    assert_eq!(known.says("its key is "), key);
    let (report, err) = ring.report();
    assert_eq!((&report["ids"], &report["stages"][1]["key"]), (&alone("demo")["ids"], &key.into()), "{err}");
    assert!(known.output().status.success());
}

#[test]
fn plan_says_who_would_hold_what() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("devices.json").display().to_string();
    let devices = r#"[{"name": "a", "capacity": 100.0, "memory": 8000000000},
        {"name": "b", "capacity": 50.0, "memory": 8000000000, "rtt_ms": 0.2},
        {"name": "c", "capacity": 50.0, "memory": 8000000000}, {"name": "d", "capacity": 0.0, "memory": 8000000000}]"#;
    std::fs::write(&file, devices).unwrap();
    let report = run_json(&["plan", "demo", "--devices", &file, "--json"]);
    documented("plan", &report);
    let stages = report["stages"].as_array().unwrap();
    let layers: u64 = stages.iter().map(|s| s["layers"][1].as_u64().unwrap() - s["layers"][0].as_u64().unwrap()).sum();
    assert_eq!((stages.len(), layers, &report["dropped"][0]), (3, 8, &Value::from("d")), "{report}");
    assert_eq!(stages[0]["layers"], serde_json::json!([0, 4]), "{report}");
    // Neighbouring tensors are read together: a few reads a stage, not one a tensor.
    assert!(stages.iter().all(|s| s["requests"].as_u64().unwrap() <= 3), "{report}");
    let bytes: u64 = stages.iter().map(|s| s["bytes"].as_u64().unwrap()).sum();
    let inspected = run_json(&["inspect", "demo", "--json"]);
    assert_eq!(bytes, inspected["weights"]["stored_bytes"].as_u64().unwrap(), "{report}");
    assert_eq!(report["forecast"].as_array().unwrap().len(), 4);
    assert!(report["advice"].as_str().unwrap().contains("tokens/s"), "{report}");
    let bad = wordline(&["plan", "demo", "--devices", &format!("{file}.not")]).output().unwrap();
    assert_eq!(bad.status.code(), Some(2));
}

#[test]
fn more_prompts_than_sequences_are_answered_one_after_the_other() {
    let prompts = ["Once upon a time", "A dog", "The"];
    let asked = prompts.iter().flat_map(|prompt| ["--prompt", prompt]);
    let more: Vec<&str> = asked.chain(["--max-tokens", "6", "--ignore-eos", "--sequences", "1", "--check"]).collect();
    let ring = Ring::new("demo", 1, &more);
    // A ticket holds the ring's secret.
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(ring.ticket()).unwrap().permissions().mode() & 0o777, 0o600);
    let stage = ring.stage(&[]);
    let (report, err) = ring.report();
    assert_eq!(report["check"]["equal"], true, "{err}");
    for (answer, prompt) in report["answers"].as_array().unwrap().iter().zip(prompts) {
        let alone = crate::support::run_json(&["run", "demo", "--prompt", prompt, "-n", "6", "--ignore-eos", "--json"]);
        assert_eq!(answer["ids"], alone["ids"], "{prompt}: {err}");
    }
    assert!(stage.output().status.success());
}
