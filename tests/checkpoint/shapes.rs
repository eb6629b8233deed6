//! A config alone gives the Spec that its published checkpoint gives; every listed shape is a whole model of its size.

use super::support::{fixtures, names};
use serde_json::json;
use std::collections::HashSet;
use std::path::Path;
use wordline::checkpoint::Checkpoint;
use wordline::checkpoint::arch::load_config;
use wordline::shapes::{self, Shape};
use wordline_ir::{Numerics, Program};
use wordline_lowering::{hand_lowering, lower};

/// Fixtures whose files differ on purpose from what is published of such a config, and in what.
const UNLIKE: &[(&str, &str)] =
    &[("gpt2-gelu", "tensor names have a prefix"), ("gpt2-prefix", "tensor names have a prefix")];

#[test]
fn a_config_alone_gives_the_spec_of_its_checkpoint() {
    let mut unlike = Vec::new();
    for path in fixtures() {
        let alone = Shape::of_config(&path).unwrap_or_else(|error| panic!("{error}"));
        if alone.spec != Checkpoint::open(&path).unwrap().spec {
            unlike.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    let expected: Vec<&str> = UNLIKE.iter().map(|(name, _)| *name).collect();
    assert_eq!(unlike, expected);
}

/// Parameters of a program's tensors, each stored row once.
fn parameters(program: &Program) -> u64 {
    let mut seen = HashSet::new();
    let mut count = 0;
    for part in program.tensors.iter().flat_map(|t| &t.view.parts) {
        if seen.insert((&part.tensor, part.rows.first().map(|rows| rows.start))) {
            let rows: usize = part.rows.iter().map(|rows| rows.len()).sum();
            count += (rows * part.cols()) as u64;
        }
    }
    count
}

/// The counts that the models' cards and their weight files' indexes give; vision towers and extra layers left out.
const PARAMETERS: &[(&str, u64)] = &[
    ("smollm2-135m", 134_515_008),
    ("smollm2-360m", 361_821_120),
    ("smollm2-1.7b", 1_711_376_384),
    ("tinyllama-1.1b", 1_100_048_384),
    ("llama2-7b", 6_738_415_616),
    ("llama2-13b", 13_015_864_320),
    ("llama2-70b", 68_976_648_192),
    ("llama3-8b", 8_030_261_248),
    ("llama3-70b", 70_553_706_496),
    ("llama3.1-8b", 8_030_261_248),
    ("llama3.1-70b", 70_553_706_496),
    ("llama3.1-405b", 405_853_388_800),
    ("llama3.2-1b", 1_235_814_400),
    ("llama3.2-3b", 3_212_749_824),
    ("mistral-7b", 7_241_732_096),
    ("mistral-nemo-12b", 12_247_782_400),
    ("qwen2.5-0.5b", 494_032_768),
    ("qwen2.5-1.5b", 1_543_714_304),
    ("qwen2.5-3b", 3_085_938_688),
    ("qwen2.5-7b", 7_615_616_512),
    ("qwen2.5-14b", 14_770_033_664),
    ("qwen2.5-32b", 32_763_876_352),
    ("qwen2.5-72b", 72_706_203_648),
    ("qwen3-0.6b", 596_049_920),
    ("qwen3-1.7b", 1_720_574_976),
    ("qwen3-4b", 4_022_468_096),
    ("qwen3-8b", 8_190_735_360),
    ("qwen3-14b", 14_768_307_200),
    ("qwen3-32b", 32_762_123_264),
    ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen3-235b-a22b", 235_093_634_560),
    ("phi3-mini", 3_821_079_552),
    ("gemma3-1b", 999_885_952),
    ("gpt2", 124_439_808),
    ("gpt2-medium", 354_823_168),
    ("gpt2-large", 774_030_080),
    ("gpt2-xl", 1_557_611_200),
];

#[test]
fn every_shape_is_a_model_of_its_published_size() {
    let listed = shapes::names().unwrap();
    for name in &listed {
        let shape = Shape::named(name).unwrap_or_else(|error| panic!("{error}"));
        let program = lower(&shape.spec, &Numerics::default(), 64).unwrap_or_else(|e| panic!("{name}: {e}")).program;
        if let Some((_, published)) = PARAMETERS.iter().find(|(known, _)| known == name) {
            assert_eq!(parameters(&program), *published, "{name}");
        }
    }
    for (known, _) in PARAMETERS {
        assert!(listed.iter().any(|name| name == known), "{known}");
    }
}

/// The shapes' programs are the oracle's too. One of each kind: large ones say nothing that small ones do not.
#[test]
fn a_shape_lowers_as_the_oracle_does() {
    for name in ["smollm2-135m", "qwen2.5-0.5b", "qwen3.5-0.8b", "qwen3-30b-a3b", "gemma3-4b", "phi3-mini", "gpt2"] {
        let spec = Shape::named(name).unwrap().spec;
        let ours = lower(&spec, &Numerics::default(), 64).unwrap().program;
        assert_eq!(ours.commands, hand_lowering(&spec, &Numerics::default()).unwrap().commands, "{name}");
    }
}

#[test]
fn a_name_that_is_not_listed_brings_close_ones() {
    names(&Shape::named("qwen3-6b").unwrap_err().to_string(), &["qwen3-6b", "qwen3-0.6b", "qwen3-8b"]);
    names(&Shape::named("nonesuch").unwrap_err().to_string(), &["nonesuch", "smollm2-135m", "gpt2-xl"]);
    assert!(Shape::of_config(Path::new("tests/fixtures")).unwrap_err().to_string().contains("not there"));
}

#[test]
fn impossible_sizes_are_refused_by_key() {
    let tiny = json!({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 128});
    assert_eq!(load_config(&tiny).unwrap().spec.layers.len(), 2);
    for (key, value, says) in [
        ("num_hidden_layers", json!(1 << 28), "more than"),
        ("hidden_size", json!(63), "divide"),
        ("hidden_size", json!(null), "missing"),
        ("num_attention_heads", json!(0), "at least 1"),
        ("vocab_size", json!(1.5), "whole number"),
        ("num_key_value_heads", json!(3), "evenly"),
    ] {
        let mut config = tiny.clone();
        config[key] = value;
        names(&load_config(&config).unwrap_err().to_string(), &[key, says]);
    }
}
