//! The twin over whole checkpoints: one list for every reader of the words, counts by hand from the Spec, bytes of the
//! engine's own image and caches, and the command line's contract.

use crate::support::{fixtures, model, model_arg, program, root, run, run_json};
use serde_json::Value;
use tempfile::TempDir;
use wordline_engine::{ImageLayout, Sequencer};
use wordline_ir::spec::{Ffn, Linear, Mixer, View};
use wordline_ir::{Numerics, Spec, WeightFormat, text};
use wordline_kernels::attend::CacheLayout;
use wordline_lowering::lower;
use wordline_lowering::split::{join, split};
use wordline_twin::{Formats, KV_FORMATS, Load, Machine, Subject, WEIGHT_FORMATS, price};

#[test]
fn printer_engine_splitter_and_twin_read_one_list() {
    for name in fixtures() {
        let program = program(&model(&name));
        let words = program.words().unwrap();
        let subject = Subject::of_words(&program, &words, &Formats::engine()).unwrap();
        let priced = subject.commands();
        assert_eq!(priced, text::parse(&text::to_text(&program)).unwrap().commands, "{name}: printed");
        assert_eq!(priced, Sequencer::from_words(&program, &words).unwrap().program().commands, "{name}: executed");
        let layers = program.layers();
        let half = layers.div_ceil(2);
        let stages = split(&program, &[0..half, half..layers][..if half < layers { 2 } else { 1 }]).unwrap();
        let joined: Vec<_> = join(&stages);
        assert_eq!(priced, joined, "{name}: cut");
        let price = price(&subject, &Machine::preset("h200").unwrap(), &Load::decode(3).unwrap()).unwrap();
        assert_eq!(price.spent.len(), words.len(), "{name}: one price a word");
        assert_eq!(price.spent.iter().sum::<u64>() + price.host, price.cycles, "{name}: no more and no less");
        // A word changed is a price changed, or the same command.
        let other = Subject::of_words(&program, &words[1..], &Formats::engine()).unwrap();
        assert_eq!(other.commands(), &priced[1..], "{name}: the words decide, not the program's list");
    }
}

fn elements(view: &View) -> u64 {
    (view.rows() * view.cols()) as u64
}

fn of(linear: &Linear) -> u64 {
    elements(&linear.weight)
}

/// Multiply-accumulates of a step of one row that sees `seen` positions, from the Spec alone.
fn by_hand(spec: &Spec, seen: u64) -> u64 {
    let layer = |layer: &wordline_ir::spec::Layer| {
        let mixer = match &layer.mixer {
            Mixer::Attention(a) => {
                let seen = a.window.map_or(seen, |w| seen.min(w as u64));
                let heads = (a.heads * (a.head_dim + a.v_dim)) as u64;
                of(&a.q) + of(&a.k) + of(&a.v) + of(&a.o) + a.gate.as_ref().map_or(0, of) + heads * seen
            }
            Mixer::DeltaNet(d) => {
                let taps = d.qkv.weight.rows() as u64 * d.conv_taps as u64;
                let memory = (d.value_heads * d.key_dim * d.value_dim) as u64;
                of(&d.qkv) + of(&d.z) + of(&d.b) + of(&d.a) + of(&d.o) + taps + 3 * memory
            }
        };
        let mlp = |m: &wordline_ir::spec::Mlp| m.gate.as_ref().map_or(0, of) + of(&m.up) + of(&m.down);
        mixer
            + match &layer.ffn {
                Ffn::Dense(m) => mlp(m),
                Ffn::Moe(m) => {
                    let picked = (elements(&m.gate_up) + elements(&m.down)) / m.experts as u64 * m.top_k as u64;
                    let shared = m.shared.as_ref().map_or(0, |s| mlp(&s.mlp) + s.gate.as_ref().map_or(0, of));
                    of(&m.router) + picked + shared
                }
            }
    };
    spec.layers.iter().map(layer).sum::<u64>() + of(&spec.head)
}

#[test]
fn multiply_accumulates_of_every_checkpoint_are_those_of_its_spec() {
    for name in fixtures() {
        let model = model(&name);
        let subject = Subject::new(&program(&model), &Formats::engine()).unwrap();
        for ctx in [0, 5, 40] {
            let price = price(&subject, &Machine::preset("h200").unwrap(), &Load::decode(ctx).unwrap()).unwrap();
            assert_eq!(price.step_macs(), by_hand(&model.checkpoint.spec, ctx + 1), "{name} at {ctx}");
        }
    }
}

#[test]
fn bytes_of_every_checkpoint_are_those_of_the_engines_image_and_caches() {
    for name in fixtures() {
        let spec = model(&name).checkpoint.spec;
        for weights in WeightFormat::ALL.iter().copied() {
            let program = lower(&spec, &Numerics { weights, ..Numerics::default() }, 64).unwrap().program;
            let subject = Subject::new(&program, &Formats::of_program(&program)).unwrap();
            let layout = ImageLayout::of_used(&program).unwrap();
            let image: usize = layout.places().iter().map(|p| p.len).sum();
            assert_eq!(subject.image_bytes(), image as u64, "{name} in {}", weights.name());
            // The same by its name, as a command line gives it.
            let named = Subject::new(&program, &Formats::new(weights.name(), "int8", "f32").unwrap()).unwrap();
            assert_eq!(named.image_bytes(), image as u64, "{name} in {}", weights.name());
        }
    }
    for (heads, keys, values) in [(1, 64, 64), (2, 128, 128), (3, 24, 40), (8, 256, 256)] {
        let page = CacheLayout::new(heads, keys, values, None).unwrap().page_bytes();
        let bytes = Formats::engine().kv.cache_bytes(heads as u64, keys as u64, values as u64, 32);
        assert_eq!(bytes, page as u64, "{heads} {keys} {values}");
    }
}

#[test]
fn the_report_keeps_its_contract() {
    let args = ["twin", "demo", "--machine", "edge-asic", "--ctx", "100", "--rows", "1", "--sequences", "2"];
    let report = run_json(&[&args[..], &["--weights", "int4-g128", "--kv", "fp8", "--json"]].concat());
    let number = |path: &str| {
        let value = path.split('.').fold(&report, |value: &Value, key| &value[key]);
        value.as_f64().unwrap_or_else(|| panic!("{path} is {value}"))
    };
    assert!(number("low") < number("tokens_per_s") && number("tokens_per_s") < number("high"));
    assert!(number("tokens_per_s") < number("naive_tokens_per_s"));
    assert!((number("ms_per_step") * number("tokens_per_s") / 2000.0 - 1.0).abs() < 1e-9);
    // This machine keeps memories and rings on the chip.
    assert_eq!(number("bytes.state"), 0.0);
    for path in ["bytes.weights", "bytes.kv", "bytes.on_chip", "busy.array", "busy.memory", "bottleneck.gain"] {
        assert!(number(path) > 0.0, "{path}");
    }
    assert!(report["bottleneck"]["knob"].is_string());
    assert_eq!(report["not_run"].as_array().unwrap().len(), 2, "formats that the engine does not run are marked");
    let own = run_json(&[&args[..], &["--json"]].concat());
    assert_eq!(own["not_run"], Value::Array(vec![]));
}

#[test]
fn a_config_alone_is_enough_and_gives_the_checkpoints_price() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config.json");
    std::fs::copy(root().join("tests/fixtures/given/llama/config.json"), &config).unwrap();
    let price = |model: &str| {
        let report = run_json(&["twin", model, "--machine", "kv260", "--ctx", "8", "--json"]);
        (report["ms_per_step"].clone(), report["macs"].clone(), report["bytes"].clone())
    };
    let whole = price(&model_arg("given/llama"));
    assert_eq!(price(config.to_str().unwrap()), whole);
    assert_eq!(price(folder.path().to_str().unwrap()), whole);
}

/// A report's keys that scripts rely on, each a number above zero where `positive`.
fn keeps_contract(report: &Value, args: &[&str]) {
    let at = |path: &str| path.split('.').fold(report, |value: &Value, key| &value[key]).clone();
    for path in ["ms_per_step", "tokens_per_s", "low", "high", "naive_tokens_per_s", "bytes.weights", "bottleneck.gain"]
    {
        let value = at(path).as_f64().unwrap_or_else(|| panic!("{args:?}: {path} is {}", at(path)));
        assert!(value > 0.0 && value.is_finite(), "{args:?}: {path} is {value}");
    }
    assert!(at("bytes.kv").is_u64() && at("bytes.state").is_u64() && at("bottleneck.knob").is_string(), "{args:?}");
    let busy = at("busy");
    for (what, share) in busy.as_object().unwrap() {
        assert!((0.0..=1.0 + 1e-9).contains(&share.as_f64().unwrap()), "{args:?}: {what} is busy {share}");
    }
    let (rate, low, high) = (at("tokens_per_s").as_f64(), at("low").as_f64(), at("high").as_f64());
    assert!(low < rate && rate < high && rate <= at("naive_tokens_per_s").as_f64(), "{args:?}");
    let (ms, rows) = (at("ms_per_step").as_f64().unwrap(), at("rows").as_f64().unwrap());
    assert!((ms * rate.unwrap() / (1e3 * rows) - 1.0).abs() < 1e-9, "{args:?}");
    // The parts are the whole, however they are cut.
    for parts in ["time", "by_unit"] {
        let sum: f64 = at(parts).as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
        assert!((sum / ms - 1.0).abs() < 1e-6, "{args:?}: {parts} sum to {sum} of {ms}");
    }
}

#[test]
fn every_documented_flag_goes_with_every_other() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config.json");
    std::fs::copy(root().join("tests/fixtures/given/qwen3_next/config.json"), &config).unwrap();
    let file = folder.path().join("own.toml");
    std::fs::write(&file, "class = \"gpu\"\nname = \"own\"\n[memory]\npeak_gbps = 1008\ncapacity_gb = 24\n").unwrap();
    let (config, file) = (config.to_str().unwrap(), file.to_str().unwrap());
    let machines = ["kv260", "h200", "wormhole-n150", "edge-asic", file];
    let models: [&[&str]; 3] = [&[config], &["demo"], &["--shape", "smollm2-135m"]];
    let loads = [["1", "1", "100"], ["8", "1", "0"], ["1", "512", "0"], ["8", "512", "1k"]];
    // Every format with each of these in turn: formats, machines, models and loads meet in all pairs within the run.
    let formats = WEIGHT_FORMATS
        .iter()
        .map(|w| (w.name, "int8"))
        .chain(KV_FORMATS.iter().map(|kv| ("fp8", kv.name)))
        .chain([("bits:3.5", "bits:6"), ("bf16,mlp=int4-g32", "bf16"), ("int4-g128", "fp8")]);
    for (turn, (weights, kv)) in formats.enumerate() {
        for (index, load) in loads.iter().enumerate() {
            let (machine, model) =
                (machines[(turn + index) % machines.len()], models[(turn + 2 * index) % models.len()]);
            let [sequences, rows, ctx] = *load;
            let flags = [
                "--machine",
                machine,
                "--sequences",
                sequences,
                "--rows",
                rows,
                "--ctx",
                ctx,
                "--weights",
                weights,
                "--kv",
                kv,
                "--json",
            ];
            // The exception names tensors that a model of experts alone does not have.
            if weights.contains("mlp=") && model[0] == config {
                continue;
            }
            let args = [&["twin"][..], model, &flags[..]].concat();
            let report = run_json(&args);
            keeps_contract(&report, &args);
            let runs = |name: &str| ["int8", "code4", "e2m1"].contains(&name);
            let not_run = usize::from(!runs(weights)) + usize::from(kv != "int8");
            let marked = report["not_run"].as_array().unwrap().len();
            assert!(marked >= usize::from(not_run > 0) && (marked == 0) == (not_run == 0), "{args:?}: {marked}");
        }
    }
}

#[test]
fn a_price_takes_the_programs_own_format_of_weights() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("four.wlp").to_str().unwrap().to_owned();
    assert_eq!(run(&["lower", "demo", "--weights", "code4", "--format", "bin", "-o", &file]).code, 0);
    let of = |args: &[&str]| run_json(&[&["twin"][..], args, &["--machine", "edge-asic", "--json"][..]].concat());
    let (own, named, wide) = (of(&[&file]), of(&["demo", "--weights", "code4"]), of(&["demo"]));
    assert_eq!((own["weights"].as_str(), own["bytes"].clone()), (Some("code4"), named["bytes"].clone()));
    assert!(own["bytes"]["weights"].as_u64() < wide["bytes"]["weights"].as_u64());
    assert_eq!(own["not_run"], Value::Array(vec![]));
}

#[test]
fn the_document_of_the_validation_is_what_the_command_prints() {
    let said = run(&["twin", "validate"]);
    assert_eq!(said.code, 0, "{}", said.err);
    let path = root().join("docs/twin-validation.md");
    if std::env::var_os("WORDLINE_BLESS").is_some() {
        std::fs::write(&path, &said.out).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap();
    for (line, (a, b)) in said.out.lines().zip(stored.lines()).enumerate() {
        assert_eq!(
            a,
            b,
            "line {} of docs/twin-validation.md is not what `wordline twin validate` prints; run the test with WORDLINE_BLESS=1",
            line + 1
        );
    }
    assert_eq!(said.out.lines().count(), stored.lines().count());
}

#[test]
fn the_tools_run() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (page, table, trace, program) = (at("sweep.html"), at("sweep.csv"), at("trace.json"), at("demo.wlp"));
    let grid = ["--set", "array.lanes_n=64,128", "--set", "ctx=1k..4k"];
    let sweep = ["sweep", "demo", "--machine", "edge-asic", "--html", &page, "-o", &table];
    assert_eq!(run(&[&sweep[..], &grid[..]].concat()).code, 0);
    assert_eq!(std::fs::read_to_string(&table).unwrap().lines().count(), 7);
    assert!(std::fs::read_to_string(&page).unwrap().contains("</svg>"));
    let points = run_json(&[&["sweep", "demo", "--machine", "edge-asic", "--json"][..], &grid[..]].concat());
    assert_eq!(points["points"].as_array().unwrap().len(), 6);
    assert_eq!(run(&["twin", "trace", "demo", "--machine", "gb10", "-o", &trace]).code, 0);
    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|e| e["args"]["tensor"] == "layers.3.attn.qkv"));
    let both = run_json(&["twin", "diff", "gb10", "h200", "--on", "demo", "--json"]);
    assert!(both["ratio"].as_f64().unwrap() > 1.0);
    assert_eq!(run(&["lower", "demo", "--format", "bin", "-o", &program]).code, 0);
    let same = run_json(&["twin", "diff", "demo", &program, "--machine", "gb10", "--json"]);
    assert_eq!(same["ratio"].as_f64(), Some(1.0));
    let machine = run(&["twin", "machines", "a100-80g"]);
    std::fs::write(at("m.toml"), &machine.out).unwrap();
    let of = |machine: &str| run_json(&["twin", "demo", "--machine", machine, "--json"])["cycles"].clone();
    assert_eq!(of(&at("m.toml")), of("a100-80g"));
}

/// What one H200 and two threads of one processor measured, as `bench --json` printed it (keys that nothing reads are left out):
/// reports that the machine is fitted on, and those of other shapes and contexts, with the steps that they hold.
#[test]
fn runs_that_a_machine_was_not_fitted_on_are_predicted() {
    let dir = TempDir::new().unwrap();
    let fixture = |name: String| root().join("tests/fixtures/bench").join(name).display().to_string();
    for (device, steps) in [("h200", 31), ("cpu", 24)] {
        let machine = dir.path().join(device).with_extension("toml").display().to_string();
        run_json(&["twin", "calibrate", &fixture(format!("{device}-fit.json")), "-o", &machine, "--json"]);
        let held_back = fixture(format!("{device}-check.json"));
        let checked = run_json(&["twin", "calibrate", &held_back, "--machine", &machine, "--check", "--json"]);
        assert_eq!(checked["runs"].as_array().unwrap().len(), steps);
        let median = checked["median_error"].as_f64().unwrap();
        assert!(median < 0.10, "{device}: {median}");
    }
}

#[test]
fn what_cannot_be_priced_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("m.toml");
    std::fs::write(&file, "class = \"gpu\"\n[memory]\npeek_gbps = 3\n").unwrap();
    let file = file.to_str().unwrap();
    for (args, says) in [
        (vec!["twin", "demo", "--machine", "h900"], "'h900' is no file and no machine"),
        (vec!["twin", "demo", "--machine", file], "did you mean 'memory.peak_gbps'"),
        (vec!["twin", "demo", "--machine", "h200", "--weights", "int5"], "no format of weights is called 'int5'"),
        (vec!["twin", "demo", "--machine", "h200", "--weights", "bf16,moe=fp8"], "moe="),
        (vec!["twin", "demo", "--machine", "h200", "--rows", "0"], "rows is 0"),
        (vec!["twin", "demo", "--machine", "h200", "--set", "array.lanes_n=-1"], "knob 'array.lanes_n' is -1"),
        (vec!["twin", "--shape", "llama2-70b", "--machine", "kv260"], "'kv260' holds"),
        (vec!["twin", "--shape", "no-such", "--machine", "kv260"], "no shape 'no-such'"),
        (vec!["twin", "nothing-here", "--machine", "kv260"], "'nothing-here' is no file"),
        (vec!["sweep", "demo", "--machine", "h200", "--set", "ctx=x"], "'x' is no number"),
    ] {
        let ran = run(&args);
        assert!(ran.code == 2 && ran.err.contains(says) && ran.out.is_empty(), "{args:?}: {} {}", ran.code, ran.err);
    }
}

#[test]
fn validation_judges_every_row_and_lists_what_is_fitted() {
    let report = run_json(&["twin", "validate", "--json"]);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() >= 19 && report["held"].as_f64().unwrap() >= 0.8, "{}", report["held"]);
    assert!(report["constants"].as_array().unwrap().len() <= 8);
    let ran = run(&["twin", "validate"]);
    assert!(ran.code == 0 && rows.iter().all(|r| ran.out.contains(r["id"].as_str().unwrap())));
}
