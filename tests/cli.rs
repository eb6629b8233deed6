//! The contract for scripts: exit codes, JSON reports, messages, pipes.

use crate::docs::documented;
use crate::support::{model_arg, path, ran, run, run_json, wordline};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::Stdio;
use tempfile::TempDir;

#[test]
fn help_and_version() {
    let help = run(&["--help"]);
    assert_eq!(help.code, 0);
    for command in [
        "inspect", "fetch", "cache", "lower", "asm", "disasm", "isa", "diff", "run", "verify", "accuracy", "units",
        "bench", "plan", "head", "stage", "replay",
    ] {
        assert!(help.out.contains(command), "{command}");
        assert_eq!(run(&[command, "--help"]).code, 0, "{command}");
    }
    assert!(run(&["--version"]).out.starts_with("wordline "));
    assert_eq!(run(&["frobnicate"]).code, 2);
    assert_eq!(run(&[]).code, 2);
}

#[test]
fn lower_counts_and_identity() {
    let report = run_json(&["lower", "demo", "--json"]);
    assert_eq!(report["opcodes"]["attend"], 2);
    assert_eq!(report["opcodes"]["delta"], 6);
    let commands = report["commands"].as_u64().unwrap();
    let sum: u64 = report["opcodes"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
    assert_eq!((sum, report["word_bytes"].as_u64().unwrap()), (commands, 32 * commands));
    assert_eq!(report["identity"]["spec"].as_str().unwrap().len(), 64);
    assert_eq!(report["identity"]["numerics"]["acts"], "two_limbs");
    assert_eq!(report["identity"]["cut"]["last_layer"], 8);
}

#[test]
fn the_forms_of_a_program_agree() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (text, bin, again) = (file("p.txt"), file("p.wlp"), file("again.txt"));
    assert_eq!(run(&["lower", "demo", "-o", &text]).code, 0);
    assert_eq!(run(&["asm", &text, "-o", &bin]).code, 0);
    assert_eq!(run(&["disasm", &bin, "-o", &again]).code, 0);
    assert_eq!(std::fs::read(&text).unwrap(), std::fs::read(&again).unwrap());
    let direct = wordline(&["lower", "demo", "--format", "bin"]).output().unwrap();
    assert_eq!(direct.stdout, std::fs::read(&bin).unwrap(), "asm(text) is the program file");
    let json = file("p.json");
    assert_eq!(run(&["lower", "demo", "--format", "json", "-o", &json]).code, 0);
    assert_eq!(run(&["diff", &json, &bin]).code, 0);
    let hex = run(&["lower", "demo", "--format", "hex"]).out;
    let commands = run_json(&["lower", "demo", "--json"])["commands"].as_u64().unwrap();
    assert_eq!(hex.lines().count() as u64, commands);
    assert!(hex.lines().all(|line| line.len() == 64 && line.bytes().all(|b| b.is_ascii_hexdigit())));
    // The words printed beside the text are those of the hex form.
    let beside = run(&["disasm", "--words", &bin]).out;
    assert!(hex.lines().all(|word| beside.contains(word)));
}

#[test]
fn diff_says_equal_different_or_refused() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (left, right) = (file("left.txt"), file("right.txt"));
    assert_eq!(run(&["lower", "demo", "-o", &left]).code, 0);
    let text = std::fs::read_to_string(&left).unwrap();
    let norm = text.lines().find(|line| line.starts_with("L3 ") && line.contains(" norm ")).unwrap();
    let edited = norm.replace("eps=", "eps=2e-3 #");
    std::fs::write(&right, text.replacen(norm, &edited, 1)).unwrap();

    let model = run_json(&["diff", "demo", "--json"]);
    assert_eq!((&model["equal"], &model["difference"]), (&Value::Bool(true), &Value::Null));
    let different = run(&["diff", &left, &right]);
    assert_eq!(different.code, 1, "{}", different.err);
    assert!(different.out.contains("left:") && different.out.contains("right:") && different.out.contains("eps"));
    let report = ran(wordline(&["diff", &left, &right, "--json"]).output().unwrap());
    let json: Value = serde_json::from_str(&report.out).unwrap();
    assert_eq!((&json["equal"], &json["difference"]["where"]), (&Value::Bool(false), &Value::from("command")));
    assert!(json["difference"]["left"].as_str() != json["difference"]["right"].as_str());
    let refused = run(&["diff", &left, "no-such-file"]);
    assert!(refused.code == 2 && refused.err.contains("no-such-file"), "{}", refused.err);
    let one = run(&["diff", &left]);
    assert!(one.code == 2 && one.err.contains("name both"), "{}", one.err);
}

#[test]
fn verify_reports_and_its_exit_code_follows() {
    let golden = path("given/llama").join("golden.json").display().to_string();
    let report = run_json(&["verify", &model_arg("given/llama"), "--golden", &golden, "--json"]);
    let reference = &report["reference"];
    assert!(reference["max_abs"].as_f64().unwrap() <= reference["atol"].as_f64().unwrap());
    assert_eq!((&reference["ok"], &reference["greedy_equal"]), (&Value::Bool(true), &Value::Bool(true)));
    assert!(report["int8"]["kl"].as_f64().unwrap() < 1e-2 && report["int8"]["top1"].as_f64().unwrap() > 0.9);
    assert_eq!(report["tokenizer"]["ok"], true);

    // A golden file that asks for more than the reference gives: the check fails, the report says by how much.
    let folder = TempDir::new().unwrap();
    let strict = folder.path().join("golden.json");
    let text =
        std::fs::read_to_string(&golden).unwrap().replace("\"suggested_atol\": 0.0001", "\"suggested_atol\": 1e-12");
    std::fs::write(&strict, text).unwrap();
    std::fs::copy(path("given/llama").join("golden.safetensors"), folder.path().join("golden.safetensors")).unwrap();
    let strict = ["verify", &model_arg("given/llama"), "--golden", strict.to_str().unwrap(), "--reference-only"];
    let failed = run(&strict);
    assert!(failed.code == 1 && failed.out.contains("FAILED"), "{}{}", failed.out, failed.err);

    // Another model's golden values are refused, not compared.
    let foreign = run(&["verify", &model_arg("given/qwen3"), "--golden", &golden]);
    assert!(foreign.code == 2 && foreign.err.contains("not the file"), "{}", foreign.err);
}

#[test]
fn run_reports_ids_text_and_speed() {
    let args = ["run", "demo", "--prompt", "Once upon a time", "--max-tokens", "12", "--json"];
    let report = run_json(&args);
    assert_eq!(report["prompt_ids"].as_array().unwrap().len(), 4);
    assert_eq!((report["ids"].as_array().unwrap().len(), &report["finish"]), (12, &Value::from("length")));
    assert!(!report["text"].as_str().unwrap().is_empty());
    assert!(report["tokens_per_s"].as_f64().unwrap() > 0.0 && report["bytes_per_step"].as_u64().unwrap() > 1_000_000);
    assert_eq!(run_json(&args)["ids"], report["ids"], "one seed, one text");
    let other = run_json(&[&args[..], &["--seed", "2"]].concat());
    assert_ne!(other["ids"], report["ids"], "another seed, another text");
    let one_thread = run_json(&[&args[..], &["--threads", "1"]].concat());
    assert_eq!(one_thread["ids"], report["ids"], "threads change nothing");
}

#[test]
fn text_streams_and_is_what_the_report_says() {
    let base = ["run", "demo", "--prompt", "Once upon a time", "--greedy", "-n", "24"];
    let text = run(&base);
    let report = run_json(&[&base[..], &["--json"]].concat());
    let story = report["text"].as_str().unwrap();
    assert_eq!(text.out, format!("Once upon a time{story}\n"));
    assert!(text.err.contains("tokens/s"), "{}", text.err);
    let silent = run(&[&base[..], &["--no-echo"]].concat());
    assert_eq!(silent.out, format!("{story}\n"));
    // A stop string ends the text before it, wherever the border between two tokens falls.
    let word = story.split(' ').nth(5).unwrap();
    let (stop, at) = (&word[1..], story.find(&word[1..]).unwrap());
    let stopped = run_json(&[&base[..], &["--json", "--stop", stop]].concat());
    assert_eq!((stopped["text"].as_str().unwrap(), &stopped["finish"]), (&story[..at], &Value::from("stop")));
    // Ids in place of text give the same text.
    let ids: Vec<String> = report["prompt_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    let by_ids = run_json(&["run", "demo", "--ids", &ids.join(","), "--greedy", "-n", "24", "--json"]);
    assert_eq!(by_ids["ids"], report["ids"]);
}

#[test]
fn greedy_is_what_the_golden_file_says_for_a_clear_path() {
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(path("given/llama").join("golden.json")).unwrap()).unwrap();
    let ids: Vec<String> = golden["prompt_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    let args =
        ["run", &model_arg("given/llama"), "--ids", &ids.join(","), "--greedy", "--ignore-eos", "-n", "16", "--json"];
    assert_eq!(run_json(&args)["ids"], golden["greedy_ids"]);
}

#[test]
fn chat_goes_through_the_checkpoints_template() {
    let base = ["run", &model_arg("given/qwen2"), "--prompt", "Hi", "-n", "2", "--greedy", "--json"];
    let plain = run_json(&base)["prompt_ids"].as_array().unwrap().len();
    let chat = run_json(&[&base[..], &["--chat", "--system", "Be brief"]].concat());
    assert!(chat["prompt_ids"].as_array().unwrap().len() > plain + 4);
    let none = run(&["run", "demo", "--chat", "--prompt", "Hi"]);
    assert!(none.code == 2 && none.err.contains("no chat template"), "{}", none.err);
}

#[test]
fn an_edited_program_runs_and_its_edit_shows() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (text, edited) = (file("p.txt"), file("edited.txt"));
    assert_eq!(run(&["lower", "demo", "-o", &text]).code, 0);
    let base = ["run", "demo", "--prompt", "Once upon a time", "--greedy", "-n", "8", "--json"];
    let plain = run_json(&base);
    assert_eq!(run_json(&[&base[..], &["--program", &text]].concat())["ids"], plain["ids"]);
    let program = std::fs::read_to_string(&text).unwrap();
    let add = program.lines().find(|line| line.starts_with("L3 ") && line.contains(" add ")).unwrap();
    let edit = add.replace("scale=1.0", "scale=-3.0");
    assert_ne!(edit, add);
    std::fs::write(&edited, program.replacen(add, &edit, 1)).unwrap();
    let changed = run_json(&[&base[..], &["--program", &edited]].concat());
    assert_ne!(changed["ids"], plain["ids"], "the program is the model");
    // A program that is not sound, and one of another model, are refused.
    let dropped: String = program
        .lines()
        .filter(|l| !(l.starts_with("L3 ") && l.contains("cache_append")))
        .map(|l| format!("{l}\n"))
        .collect();
    std::fs::write(&edited, dropped).unwrap();
    let unsound = run(&["run", "demo", "--prompt", "x", "--program", &edited]);
    assert!(unsound.code == 2 && unsound.err.contains("attend"), "{}", unsound.err);
    assert_eq!(run(&["asm", &edited]).code, 2);
    let foreign = run(&["run", &model_arg("given/llama"), "--ids", "1", "--program", &text]);
    assert!(foreign.code == 2 && foreign.err.contains("another model"), "{}", foreign.err);
}

#[test]
fn a_backend_without_a_device_says_so() {
    for backend in ["lut", "dp4a"] {
        let ran = run(&["run", "demo", "--prompt", "x", "-n", "1", "--backend", backend]);
        // A machine without a driver refuses; one with a driver writes what the processor writes.
        if ran.code == 0 {
            assert_eq!(ran.out, run(&["run", "demo", "--prompt", "x", "-n", "1", "--backend", "cpu"]).out);
        } else {
            assert!(
                ran.code == 2 && ran.err.contains("no graphics adapter") && ran.err.contains("hint"),
                "{}",
                ran.err
            );
        }
    }
    assert_eq!(run(&["run", "demo", "--prompt", "x", "-n", "1", "--backend", "cpu"]).code, 0);
}

#[test]
fn units_pass_on_this_device() {
    let report = run_json(&["units", "--json"]);
    documented("units", &report);
    assert_eq!(report["ok"], true);
    assert!(report["array"]["forms"]["cpu-mirror"].as_str().unwrap().starts_with("passed"));
    let backends = report["backends"].as_array().unwrap();
    let active: Vec<&Value> = backends.iter().filter(|line| line["active"] == true).collect();
    assert_eq!(active.len(), 1, "{backends:?}");
    assert_eq!((&active[0]["standing"], &active[0]["form"]), (&"passed".into(), &report["array"]["active"]));
    // One probe, whoever computes it.
    assert!(backends.iter().all(|line| line["standing"] != "passed" || line["probe"] == active[0]["probe"]));
    let table = run(&["units", "--backend", "cpu"]).out;
    assert!(table.contains("GEMMs/s") && table.contains("cpu-mirror"), "{table}");
}

/// The report's figures follow from each other as docs/json.md says; what they are is the machine's.
fn adds_up(report: &Value, backend: &str) {
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    let (limit, array) = (number(&report["limit_bytes_per_s"]), number(&report["array_macs_per_s"]));
    assert_eq!((&report["limit"]["median"], &report["threads"]), (&report["limit_bytes_per_s"], &2.into()));
    assert_eq!(report["backend"], backend);
    assert_eq!((report["adapter"].is_null(), report["driver"].is_null()), (backend == "cpu", backend == "cpu"));
    let decode = report["decode"].as_array().unwrap();
    assert_eq!(decode.len(), 2);
    for (line, batch) in decode.iter().zip([1.0, 3.0]) {
        let seconds = number(&line["step_us"]["median"]) / 1e6;
        let bytes = number(&line["bytes_per_step"]);
        assert_eq!(number(&line["batch"]), batch);
        assert!(near(number(&line["tokens_per_s"]), batch / seconds));
        assert!(near(number(&line["share_of_limit"]), bytes / seconds / limit));
        let sum: f64 = ["weight_bytes", "cache_bytes", "state_bytes"].iter().map(|key| number(&line[key])).sum();
        assert_eq!(sum, bytes);
        let bound = (bytes / limit).max(2.0 * number(&line["macs"]) / array);
        assert!(near(number(&line["bound_us"]), 1e6 * bound) && near(number(&line["times_bound"]), seconds / bound));
        let launches = &line["launches"];
        if backend == "cpu" {
            assert!(launches.is_null() && number(&line["us_by_command"]["matvec"]) > 0.0);
            continue;
        }
        let (each, submission) = (number(&launches["us_each"]), number(&launches["submission_us"]));
        assert!(each > 0.0 && submission > 0.0);
        if let Some(kernels) = launches["kernels"].as_f64() {
            assert!(near(number(&launches["share_of_step"]), (kernels * each + submission) / seconds / 1e6));
        }
    }
    // The weights of a step are read once, however many rows there are; what rows keep is each row's own.
    assert_eq!(decode[0]["weight_bytes"], decode[1]["weight_bytes"]);
    assert_eq!(number(&decode[1]["state_bytes"]), 3.0 * number(&decode[0]["state_bytes"]));
    assert_eq!(number(&decode[1]["macs"]), 3.0 * number(&decode[0]["macs"]));
    let prefill = &report["prefill"];
    assert!(near(number(&prefill["rows_per_s"]), 8e6 / number(&prefill["prompt_us"]["median"])));
}

#[test]
fn bench_adds_up() {
    // Caches, rings and memories, and small: a device in software computes it too.
    let model = model_arg("given/qwen3_5");
    let mut owed = None;
    for backend in ["cpu", "dp4a", "lut"] {
        let args = ["--pairs", "2", "--batch", "1,3", "--prefill", "8", "--ctx", "20", "--threads", "2", "--json"];
        let ran = run(&[&["bench", &model, "--backend", backend][..], &args].concat());
        if ran.err.contains("no graphics adapter") {
            assert_eq!(ran.code, 2);
            println!("skipped, {backend}: no graphics adapter on this machine");
            continue;
        }
        assert_eq!(ran.code, 0, "{}", ran.err);
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        adds_up(&report, backend);
        // What a step must move is the program's, whoever moves it.
        let now: Vec<Value> = ["weight_bytes", "state_bytes", "macs"].map(|k| report["decode"][0][k].clone()).into();
        assert_eq!(*owed.get_or_insert_with(|| now.clone()), now, "{backend}");
    }
}

#[test]
fn bench_refuses_what_it_cannot_measure() {
    for (args, says) in [
        (&["bench"][..], "--shape"),
        (&["bench", "demo", "--shape", "gpt2"], "cannot be used with"),
        (&["bench", "--shape", "gpt3"], "did you mean 'gpt2'"),
        (&["bench", "demo", "--batch", "0"], "--batch"),
        (&["bench", "demo", "--batch", "1,x"], "--batch"),
        (&["bench", "demo", "--ctx", "4000"], "--ctx"),
        (&["bench", "demo", "--seed", "1"], "cannot be used with"),
        (&["bench", "--shape", "llama3.1-405b"], "bytes are needed"),
    ] {
        let ran = run(args);
        assert!(ran.code == 2 && ran.err.contains(says), "{args:?}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn a_reader_that_leaves_ends_the_program_quietly() {
    let mut child = wordline(&["run", "demo", "--prompt", "Once", "--ignore-eos", "-n", "400"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 4]).unwrap();
    drop(out);
    let ended = ran(child.wait_with_output().unwrap());
    assert!(
        ended.code == 0 && !ended.err.contains("panic") && !ended.err.contains("error"),
        "{}: {}",
        ended.code,
        ended.err
    );
    // So does one that reads nothing of a long listing.
    let mut child =
        wordline(&["lower", "demo", "--words"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(ran(child.wait_with_output().unwrap()).code, 0);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_after_the_token_at_hand() {
    let mut child = wordline(&["run", "demo", "--prompt", "Once", "--ignore-eos", "-n", "1900"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    // The prompt's echo and a first piece of text: tokens are being written.
    out.read_exact(&mut [0; 8]).unwrap();
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let ended = ran(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 130, "{}", ended.err);
    assert!(ended.err.contains("interrupted") && ended.err.contains("tokens/s"), "{}", ended.err);
    assert!(rest.ends_with(b"\n"), "the last line is ended");
}

#[test]
fn programs_come_from_standard_input_too() {
    let text = run(&["lower", "demo"]).out;
    let mut child = wordline(&["asm", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let direct = wordline(&["lower", "demo", "--format", "bin"]).output().unwrap().stdout;
    assert!(output.status.success() && output.stdout == direct);
}

#[test]
fn the_weight_image_is_built_once_and_kept() {
    let cache = TempDir::new().unwrap();
    let story = |extra: &[&str]| {
        let args = [&["run", "demo", "--prompt", "Once", "-n", "3", "--json"], extra].concat();
        let ran = ran(wordline(&args).env("WORDLINE_CACHE", cache.path()).output().unwrap());
        assert_eq!(ran.code, 0, "{}", ran.err);
        (serde_json::from_str::<Value>(&ran.out).unwrap()["ids"].clone(), ran.err)
    };
    let images = || {
        let files = std::fs::read_dir(cache.path()).unwrap().map(|e| e.unwrap().path());
        files.filter(|p| p.extension().is_some_and(|e| e == "image")).collect::<Vec<_>>()
    };
    let (first, _) = story(&["--no-cache"]);
    assert!(!cache.path().read_dir().is_ok_and(|mut d| d.next().is_some()), "--no-cache leaves nothing");
    assert_eq!(story(&[]).0, first);
    let [image] = images().try_into().unwrap();
    let built = std::fs::metadata(&image).unwrap().modified().unwrap();
    assert_eq!(story(&[]).0, first);
    assert_eq!(std::fs::metadata(&image).unwrap().modified().unwrap(), built, "mapped, not built again");
    // A byte that was altered is noticed, and the image built again.
    let mut bytes = std::fs::read(&image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&image, &bytes).unwrap();
    let (ids, remarks) = story(&[]);
    assert_eq!(ids, first);
    assert!(remarks.contains("built again"), "{remarks}");
    // What is left of an interrupted build is not an image.
    std::fs::write(&image, &bytes[..middle]).unwrap();
    assert_eq!(story(&[]).0, first);
}
