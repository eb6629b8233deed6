//! What goes wrong, each thing under its own name, and answers that go on as if it had not.
//!
//! How long a loss takes to be noticed is held to its bound of 5 s where the clock is the test's own (`session`); here, where
//! other tests have the processor too, losses and refusals are held to twice that.

use super::kit::{ASK, Ended, Ring, Running, Setting, Space, alone, failed, lonely, stage, stage_command, within};
use crate::support::{model_arg, path};
use std::time::{Duration, Instant};
use wordline::pipeline::link::Ticket;

/// A loss is noticed, and a stage refused, before this has passed.
const NOTICED: Duration = Duration::from_secs(10);

/// The stage that comes to say that this fault happens to it.
fn struck<'a>(stages: &'a [Running], fault: &str) -> &'a Running {
    let (start, says) = (Instant::now(), format!("the fault that was asked for: {fault}"));
    loop {
        if let Some(stage) = stages.iter().find(|stage| stage.has_said(&says)) {
            return stage;
        }
        assert!(start.elapsed() < super::kit::PATIENCE, "no stage comes to {fault}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A ring of two stages, of which stage 2 waits in the middle of the answer, so that a signal meets it there.
fn disturbed(signal: &str, named: &str) {
    let expected = alone("demo");
    let ring = Ring::new("demo", 2, &ASK);
    let stages = [(); 2].map(|()| ring.stage(&["--fault", "slow@stage2:tok5"]));
    let second = struck(&stages, "slow");
    second.signal(signal);
    let sent = Instant::now();
    ring.head.says(named);
    let noticed = sent.elapsed();
    println!("{signal}: noticed after {:.1} s", noticed.as_secs_f64());
    assert!(noticed < NOTICED, "{signal}: noticed after {noticed:?}");
    let (report, err) = ring.report();
    assert_eq!(report["ids"], expected["ids"], "{signal}: {err}");
    let losses = report["losses"].to_string();
    assert!(losses.contains(named) && losses.contains("stage 2 (") && losses.contains("computing"), "{losses}");
    second.signal("KILL");
}

#[test]
fn a_killed_process_is_named_and_the_answer_is_the_same() {
    disturbed("KILL", "no sign of life");
}

#[test]
fn a_frozen_process_is_named_and_the_answer_is_the_same() {
    disturbed("STOP", "no sign of life");
}

#[test]
fn a_stage_that_dies_stalls_or_bends_is_named_and_the_answer_is_the_same() {
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

/// A slow hop is waited for, as long as laps may take, and past that it is a loss.
#[test]
fn a_slow_hop_is_waited_for_and_one_that_is_too_slow_is_named() {
    let expected = alone("demo");
    for (limit, named) in [("60", None), ("0.5", Some("stalled: it holds lap 8 of sequence"))] {
        // Laps of few rows: what a device of little capacity is given beyond the limit is given by the row.
        let ring = Ring::new("demo", 2, &[&ASK[..], &["--step-rows", "4", "--lap-timeout", limit]].concat());
        // Of a ring that follows no sequence comes so far again.
        let stages = [(); 2].map(|()| ring.stage(&["--fault", "slow@stage1:tok8"]));
        struck(&stages, "slow");
        let slow = Instant::now();
        let (report, err) = ring.report();
        assert_eq!(report["ids"], expected["ids"], "{limit}: {err}");
        let losses: Vec<&str> =
            report["losses"].as_array().unwrap().iter().map(|loss| loss.as_str().unwrap()).collect();
        if let Some(named) = named {
            assert!(losses.iter().any(|loss| loss.starts_with("stage 1 (") && loss.contains(named)), "{err}");
            continue;
        }
        assert!(losses.is_empty(), "{err}");
        assert!(slow.elapsed() > Duration::from_millis(1500), "no hop was slow: {:?}", slow.elapsed());
        assert!(stages.into_iter().all(|stage| stage.output().status.success()));
    }
}

#[test]
fn a_spare_takes_the_layers_of_a_stage_that_dies() {
    let expected = alone("demo");
    // The pause in which the spare comes is as long as it takes it.
    let ring = Ring::new("demo", 2, &[&ASK[..], &["--lap-timeout", "100", "--check", "--audit", "1"]].concat());
    // Of the ring that follows no sequence comes so far again.
    let stages = [(); 2].map(|()| ring.stage(&["--fault", "stall@stage2:tok8"]));
    let stalled = struck(&stages, "stall");
    let spare = ring.stage(&[]);
    let name = |stage: &Running| stage.says("stage ").split(':').next().unwrap().to_owned();
    let (lost, taken) = (name(stalled), name(&spare));
    ring.head.says(&format!("device {taken} joins"));
    stalled.signal("KILL");
    let (report, err) = ring.report();
    assert_eq!((&report["ids"], &report["check"]["equal"]), (&expected["ids"], &true.into()), "{err}");
    let losses = report["losses"].as_array().unwrap();
    assert!(losses.len() == 1 && losses[0].as_str().unwrap().starts_with(&format!("stage 2 ({lost})")), "{report}");
    let keys: Vec<&str> = report["stages"].as_array().unwrap().iter().map(|s| s["key"].as_str().unwrap()).collect();
    let holds = |name: &str| keys.iter().any(|key| key.starts_with(name));
    assert!(keys.len() == 3 && holds(&taken) && !holds(&lost), "{report}");
    // What it computed is held to the head's own account of the whole answer.
    let audit = report["audit"].as_array().unwrap();
    assert!(audit.len() == 2 && audit.iter().all(|a| a["found"] == "right"), "{report}");
    assert!(spare.output().status.success());
}

/// As [`failed`], before [`NOTICED`] has passed.
#[track_caller]
fn refused(stage: Running, says: &str) {
    let begun = Instant::now();
    failed(stage, says);
    let after = begun.elapsed();
    println!("{says}: refused after {:.1} s", after.as_secs_f64());
    assert!(after < NOTICED, "{says}: refused after {after:?}");
}

#[test]
fn wrong_keys_tickets_and_models_are_refused_by_name() {
    let ring = Ring::new("demo", 1, &ASK);
    let text = std::fs::read_to_string(ring.ticket()).unwrap();
    refused(stage(&text[..text.len() - 9], &[]), "the ticket was not copied whole");
    refused(stage("hello", &[]), "not a ticket");
    // Another head's ticket at this head's address: that key does not answer there.
    let other = Ring::new("demo", 1, &ASK);
    let (mut wrong_key, mut wrong_secret) = (text.parse::<Ticket>().unwrap(), text.parse::<Ticket>().unwrap());
    let foreign: Ticket = std::fs::read_to_string(other.ticket()).unwrap().parse().unwrap();
    wrong_key.head = foreign.head;
    wrong_secret.secret = foreign.secret;
    refused(stage(&wrong_key.to_string(), &[]), "joining: the head is not reached");
    refused(stage(&wrong_secret.to_string(), &[]), "its ticket is not this head's");
    drop((ring, other));

    let ring = Ring::new(&model_arg("storyteller-llama"), 1, &ASK);
    let other = path("given/qwen3").display().to_string();
    let stage = ring.stage(&["--model", &other]);
    let begun = Instant::now();
    let err = failed(ring.head, "loading: model: the copy on this device has the tensor index");
    assert!(begun.elapsed() < NOTICED && err.contains("stage 1 ("), "{:?}: {err}", begun.elapsed());
    failed(stage, "lost");
}

#[test]
fn a_head_says_who_is_missing() {
    let ring = Ring::new("demo", 2, &[&ASK[..], &["--wait", "4"]].concat());
    let text = std::fs::read_to_string(ring.ticket()).unwrap();
    let mut wrong: Ticket = text.parse().unwrap();
    wrong.secret = [1; 32];
    let here = ring.stage(&[]);
    let refused = failed(stage(&wrong.to_string(), &[]), "its ticket is not this head's");
    let name = refused.split("stage ").nth(1).unwrap().split(':').next().unwrap();
    let err = failed(ring.head, "joining: 1 of 2 stages came within 4 s; here: ");
    assert!(err.contains(&format!("missing: device {name} is refused: its key is not on the roster")), "{err}");
    assert!(err.contains("wordline stage --join") && err.contains("127.0.0.1:"), "{err}");
    failed(here, "joining: 1 of 2 stages came");

    // Of a roster the names are known of those that never came.
    let folder = tempfile::TempDir::new().unwrap();
    let roster = folder.path().join("roster");
    std::fs::write(&roster, format!("{}\n", "5c".repeat(32))).unwrap();
    let ring =
        Ring::new("demo", 1, &[&ASK[..], &["--wait", "0.2", "--roster", &roster.display().to_string()]].concat());
    failed(ring.head, "missing: device 5c5c5c5c5c of the roster has not reached this head");
    let ring = Ring::new("demo", 3, &[&ASK[..], &["--wait", "0.2"]].concat());
    failed(ring.head, "0 of 3 stages came within 0 s; the 3 missing have not reached this head");
}

/// A stage whose cache is a file system of `size` bytes, where the system allows to mount one.
fn small_disk(
    space: Option<&Space>,
    join: &str,
    size: &str,
    env: &[(&str, &str)],
) -> Option<(tempfile::TempDir, Running)> {
    let folder = tempfile::TempDir::new().unwrap();
    let (disk, home) = (folder.path().join("disk"), folder.path().join("home"));
    std::fs::create_dir_all(&disk).unwrap();
    let identity = folder.path().join("key").display().to_string();
    let inner = stage_command(join, "127.0.0.1:0", &["--identity", &identity]);
    let mount =
        format!("mount -t tmpfs -o size={size} none {} && echo mounted >&2 && exec \"$0\" \"$@\"", disk.display());
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", &mount]).arg(inner.get_program()).args(inner.get_args());
    command.current_dir(inner.get_current_dir().unwrap());
    command.env("WORDLINE_CACHE", &disk).env("HF_HOME", &home).envs(env.iter().copied());
    let running = Running::start(within(space, command));
    running.comes_to_say("mounted").then_some((folder, running))
}

#[test]
fn a_disk_that_is_full_during_the_fetch_is_named() {
    let (server, endpoint) = super::aside::hub(lonely(), "demo", None);
    let folder = tempfile::TempDir::new().unwrap();
    let cache = folder.path().display().to_string();
    let env = [("HF_ENDPOINT", endpoint.as_str()), ("WORDLINE_CACHE", &cache), ("HF_HOME", &cache)];
    let setting = Setting { model: crate::hub::MODEL, env: &env, ..Setting::default() };
    let ring = Ring::with(&setting);
    let Some((_disk, stage)) = small_disk(lonely(), &ring.join(), "600k", &env[..1]) else {
        return println!("skipped: no file system can be mounted here");
    };
    let err = failed(ring.head, "loading: disk: ");
    assert!(err.contains("stage 1 (") && err.contains("No space left on device"), "{err}");
    assert!(err.contains("WORDLINE_CACHE"), "what to do: {err}");
    let Ended { status, err, .. } = stage.output();
    assert!(!status.success() && err.contains("disk: "), "{err}");
    drop(server);
}

/// A copy of the demo in which one matrix of every layer has the other sign.
fn altered() -> tempfile::TempDir {
    let folder = tempfile::TempDir::new().unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(path("demo").join(name), folder.path().join(name)).unwrap();
    }
    let model = crate::support::model("demo");
    let file = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    for (_, entry) in model.checkpoint.weights.entries().filter(|(_, entry)| entry.name.contains("down_proj")) {
        let values = &mut bytes[entry.bytes.start as usize..entry.bytes.end as usize];
        let size = entry.dtype.bitsize() / 8;
        values.chunks_exact_mut(size).for_each(|value| value[size - 1] ^= 0x80);
    }
    std::fs::write(file, bytes).unwrap();
    folder
}

#[test]
fn an_altered_weight_passes_every_hash_and_is_caught_with_the_right_blame() {
    let folder = altered();
    let copy = folder.path().display().to_string();
    let expected = alone("demo");
    for auditor in ["head", "other"] {
        let record = folder.path().join("record").display().to_string();
        let more = [&ASK[..], &["--check", "--audit", "1", "--auditor", auditor, "--record", &record]].concat();
        let ring = Ring::new("demo", 2, &more);
        let wrong = ring.stage(&["--model", &copy]);
        let right = ring.stage(&[]);
        let name = wrong.says("stage ").split(':').next().unwrap().to_owned();
        let Ended { status, out, err } = ring.head.output();
        assert_eq!(status.code(), Some(1), "{err}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["losses"], serde_json::json!([]), "nothing on the wire shows it");
        // The check: the first token that differs, as the ring wrote it and as it should be.
        let found = &report["check"]["difference"];
        let index = found["index"].as_u64().unwrap() as usize;
        assert_eq!((&found["ring"], &found["alone"]), (&report["ids"][index], &expected["ids"][index]), "{report}");
        let before = |ids: &serde_json::Value| ids.as_array().unwrap()[..index].to_vec();
        assert!(found["ring"] != found["alone"] && before(&report["ids"]) == before(&expected["ids"]), "{report}");
        // Whose weights are others; a stage that lies about them is left to the audit.
        let images = report["check"]["images"].as_array().unwrap();
        assert!(images.len() == 1 && images[0]["key"].as_str().unwrap().starts_with(&name), "{report}");
        assert!(err.contains("error: head: checking: stage ") && err.contains("runs on other weights"), "{err}");
        // The audit: that stage from its first row on, and no other.
        let audit = report["audit"].as_array().unwrap();
        assert_eq!(audit.len(), 2, "{report}");
        for audit in audit {
            let altered = audit["key"].as_str().unwrap().starts_with(&name);
            assert_eq!(audit["found"], if altered { "wrong" } else { "right" }, "{auditor}: {report}");
            assert_eq!(audit["position"].as_u64(), altered.then_some(0), "{auditor}: {report}");
        }
        // A wrong device that replays is found out too.
        let replayed_wrongly = err.contains(&format!("device {name} replayed position 0 of stage"));
        assert_eq!(replayed_wrongly, auditor == "other", "{err}");
        drop((wrong, right));
        let replayed = crate::support::run(&["replay", &record, "--json"]);
        assert_eq!(replayed.code, 1, "{}", replayed.out);
    }
}

#[test]
fn what_is_no_figure_is_refused_before_anybody_is_waited_for() {
    for (flag, given, says) in [
        ("--lap-timeout", "nan", "--lap-timeout is NaN"),
        ("--lap-timeout", "0", "--lap-timeout is 0"),
        ("--lap-timeout", "1e9", "at most 86400 seconds"),
        ("--wait", "nan", "--wait is NaN"),
        ("--wait", "inf", "--wait is inf"),
        ("--sequences", "0", "--sequences is 0; it is at least 1"),
        ("--step-rows", "0", "--step-rows is 0; it is at least 1"),
        ("--audit", "1.5", "--audit is 1.5"),
        ("--ids", "5,999999", "a prompt has token 999999, the model has "),
    ] {
        let prompt: &[&str] = if flag == "--ids" { &[] } else { &["--prompt", "x"] };
        let output = crate::support::run(&[&["head", "demo", flag, given], prompt].concat());
        assert!(output.code == 2 && output.err.contains(says), "{flag} {given}: {}", output.err);
    }
}

/// A record that cannot be written on: the file is named, and the stages hear why the run ends.
#[test]
fn a_record_that_finds_no_room_ends_the_run_by_name() {
    // More than a buffer holds back until the end.
    let more = ["--prompt", "Once upon a time", "--max-tokens", "100", "--ignore-eos", "--record", "/dev/full"];
    let ring = Ring::new("demo", 1, &more);
    let stage = ring.stage(&[]);
    failed(ring.head, "head: recording /dev/full: ");
    failed(stage, "the record: ");
}

#[test]
fn a_stage_that_waits_outlives_a_head_that_dies_before_its_first_run() {
    let folder = tempfile::TempDir::new().unwrap();
    let identity = folder.path().join("identity").display().to_string();
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let more = [&ASK[..], &["--identity", &identity]].concat();
    let head =
        |stages| Ring::with(&Setting { model: "demo", stages, more: &more, listen: &port, ..Setting::default() });
    let dying = head(2);
    let args = ["stage", "--join", &dying.join(), "--threads", "1", "--listen", "127.0.0.1:0"];
    let stage = Running::start(within(lonely(), crate::support::wordline(&args)));
    dying.head.says("joins");
    dying.head.signal("KILL");
    stage.says("waiting for it");
    drop(dying);
    let (report, err) = head(1).report();
    assert_eq!(report["ids"], alone("demo")["ids"], "{err}");
    assert!(stage.lives());
}

/// A stage that waits for one run after the other takes its directory as it is for each.
#[test]
fn a_directory_that_changes_between_runs_is_read_anew_and_a_file_that_was_cut_is_named() {
    let (first, other) = (tempfile::TempDir::new().unwrap(), altered());
    let weights = "model.safetensors";
    for name in ["config.json", "tokenizer.json", weights] {
        std::fs::copy(path("demo").join(name), first.path().join(name)).unwrap();
    }
    let identity = first.path().join("identity").display().to_string();
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let more = [&ASK[..], &["--check", "--identity", &identity]].concat();
    let head = || Ring::with(&Setting { model: "demo", more: &more, listen: &port, ..Setting::default() });
    let ring = head();
    let (join, copy) = (ring.join(), first.path().display().to_string());
    let args = ["stage", "--join", &join, "--threads", "1", "--listen", "127.0.0.1:0", "--model", &copy];
    let stage = Running::start(within(lonely(), crate::support::wordline(&args)));
    let (report, err) = ring.report();
    assert_eq!(report["check"]["images"], serde_json::json!([]), "{err}");
    std::fs::rename(other.path().join(weights), first.path().join(weights)).unwrap();
    let Ended { status, err, .. } = head().head.output();
    assert!(status.code() == Some(1) && err.contains("runs on other weights"), "{err}");
    std::fs::OpenOptions::new().write(true).open(first.path().join(weights)).unwrap().set_len(100_000).unwrap();
    let err = failed(head().head, "loading: ");
    assert!(err.contains("stage 1 (") && err.contains(weights), "{err}");
    assert!(stage.lives(), "it waits for the next run");
}
