//! A ring of processes on loopback, as people start it: tickets, plans, faults, and what each says when it fails.
//!
//! Where the system allows it every process runs in a network namespace that has nothing but `lo`.

use crate::support::{model_arg, path, run_json, wordline};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any run here takes on a busy machine; a hang is an error.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that does not outlive its test.
struct Running(Option<Child>);

impl Running {
    fn start(mut command: Command) -> Self {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(piped.spawn().unwrap()))
    }

    fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").arg(format!("-{name}")).arg(self.id().to_string()).status().unwrap().success());
    }

    /// Its output, once it has ended; it must.
    fn output(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let reader = |mut pipe: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                pipe.read_to_end(&mut bytes).unwrap();
                bytes
            })
        };
        let (out, err) =
            (reader(Box::new(child.stdout.take().unwrap())), reader(Box::new(child.stderr.take().unwrap())));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = child.kill();
                let (out, err) = (out.join().unwrap(), err.join().unwrap());
                panic!("a process hangs\n{}\n{}", String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A process that keeps a network namespace with nothing but `lo` alive, where the system allows one.
fn namespace() -> Option<u32> {
    static HOLDER: OnceLock<Option<(Running, u32)>> = OnceLock::new();
    let made = HOLDER.get_or_init(|| {
        let script = "ip link set lo up && echo up && exec sleep 600";
        let mut command = Command::new("unshare");
        let mut child =
            command.args(["-n", "sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut up = [0; 2];
        let ready = child.stdout.as_mut().is_some_and(|out| out.read_exact(&mut up).is_ok());
        let id = child.id();
        let holder = Running(Some(child));
        println!(
            "{}",
            if ready { "in a namespace with lo alone" } else { "no namespace to be had: on plain loopback" }
        );
        ready.then_some((holder, id))
    });
    made.as_ref().map(|(_, id)| *id)
}

/// The program in that namespace.
fn program(args: &[&str]) -> Command {
    let inner = wordline(args);
    let Some(id) = namespace() else { return inner };
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{id}/ns/net")).arg(inner.get_program()).args(inner.get_args());
    inner.get_envs().filter_map(|(k, v)| Some((k, v?))).for_each(|(k, v)| {
        command.env(k, v);
    });
    command.current_dir(inner.get_current_dir().unwrap());
    command
}

struct Ring {
    folder: TempDir,
    head: Running,
}

impl Ring {
    fn new(model: &str, stages: usize, more: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let ticket = folder.path().join("ticket").display().to_string();
        let stages = stages.to_string();
        let mut args = vec!["head", model, "--listen", "127.0.0.1:0", "--ticket-file", &ticket, "--stages", &stages];
        args.extend(["--threads", "1", "--json"]);
        args.extend(more);
        let ring = Self { head: Running::start(program(&args)), folder };
        let start = Instant::now();
        while !ring.ticket().exists() {
            assert!(start.elapsed() < PATIENCE, "no ticket");
            std::thread::sleep(Duration::from_millis(10));
        }
        ring
    }

    fn ticket(&self) -> PathBuf {
        self.folder.path().join("ticket")
    }

    fn stage(&self, more: &[&str]) -> Running {
        stage(&format!("@{}", self.ticket().display()), more)
    }

    fn report(self) -> (Value, String) {
        let output = self.head.output();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{err}");
        (serde_json::from_slice(&output.stdout).unwrap(), err)
    }
}

fn stage(join: &str, more: &[&str]) -> Running {
    let mut args = vec!["stage", "--join", join, "--once", "--threads", "1", "--listen", "127.0.0.1:0"];
    args.extend(more);
    Running::start(program(&args))
}

fn failed(running: Running, says: &str) {
    let output = running.output();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{err}");
    assert!(err.contains(says), "{err}: {says}");
    assert!(!err.contains("internal fault"), "{err}");
}

const ASK: [&str; 5] = ["--prompt", "Once upon a time", "--max-tokens", "12", "--ignore-eos"];

fn alone(model: &str) -> Value {
    let mut args = vec!["run", model, "--json"];
    args.extend(ASK);
    run_json(&args)
}

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
            let output = stage.output();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        });
        let replayed = run_json(&["replay", &file, "--json"]);
        assert_eq!((&replayed["equal"], &replayed["ids"][0]), (&Value::Bool(true), &expected["ids"]), "{replayed}");
        assert!(replayed["hops"].as_u64().unwrap() > 20, "{replayed}");
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

#[test]
fn a_stage_that_dies_freezes_or_bends_is_named_and_the_answer_is_the_same() {
    let expected = alone("demo");
    for (fault, named) in [
        // A process that is gone closes nothing: what is left of it is silence.
        ("kill@stage1:tok4", "no sign of life"),
        ("stall@stage2:tok4", "stalled"),
        ("corrupt@stage1:tok4", "corrupted on the way"),
    ] {
        // Whoever becomes that stage has the fault, once more after the ring is planned again.
        let ring = Ring::new("demo", 2, &ASK);
        let stages = [ring.stage(&["--fault", fault]), ring.stage(&["--fault", fault])];
        let (report, err) = ring.report();
        assert_eq!(report["ids"], expected["ids"], "{fault}: {err}");
        let losses = report["losses"].to_string();
        assert!(losses.contains(named) && losses.contains("computing"), "{fault}: {losses}");
        drop(stages);
    }
}

#[test]
fn a_frozen_process_is_lost_within_seconds() {
    let ring = Ring::new("demo", 2, &["--prompt", "Once", "--max-tokens", "600", "--ignore-eos"]);
    let stages = [ring.stage(&[]), ring.stage(&[])];
    std::thread::sleep(Duration::from_millis(1500));
    stages[1].signal("STOP");
    let (report, err) = ring.report();
    let losses = report["losses"].as_array().unwrap().len();
    // The answer may have been over before the signal; otherwise the silence was noticed, and it was written to its end.
    assert!(losses <= 1 && report["ids"].as_array().unwrap().len() == 600, "{err}");
    stages[1].signal("CONT");
}

#[test]
fn wrong_keys_tickets_and_models_are_refused_by_name() {
    let ring = Ring::new("demo", 1, &ASK);
    let text = std::fs::read_to_string(ring.ticket()).unwrap();
    failed(stage(&text[..text.len() - 9], &[]), "the ticket was not copied whole");
    failed(stage("hello", &[]), "not a ticket");
    // Another head's ticket at this head's address: that key does not answer there.
    let other = Ring::new("demo", 1, &ASK);
    let (mut wrong_key, mut wrong_secret) = (
        text.parse::<wordline::pipeline::link::Ticket>().unwrap(),
        text.parse::<wordline::pipeline::link::Ticket>().unwrap(),
    );
    let foreign: wordline::pipeline::link::Ticket = std::fs::read_to_string(other.ticket()).unwrap().parse().unwrap();
    wrong_key.head = foreign.head;
    wrong_secret.secret = foreign.secret;
    failed(stage(&wrong_key.to_string(), &[]), "joining: the head is not reached");
    failed(stage(&wrong_secret.to_string(), &[]), "its ticket is not this head's");
    drop((ring, other));

    let ring = Ring::new(&model_arg("storyteller-llama"), 1, &ASK);
    let other = path("given/qwen3").display().to_string();
    let stage = ring.stage(&["--model", &other]);
    failed(ring.head, "loading: model: the copy on this device has the tensor index");
    failed(stage, "lost");
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
