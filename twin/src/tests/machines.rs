//! Machine files: presets, what a file may say, and what is refused.

use super::specs::SMALL;
use crate::machine::{CLASSES, KNOBS, Knob, PRESETS, Provenance};
use crate::{Formats, Load, Logits, Machine, MachineError, Subject, price};
use std::collections::BTreeSet;

#[test]
fn every_preset_and_class_is_a_machine() {
    for (name, text) in PRESETS {
        let machine = Machine::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(machine.name, *name);
        assert!(!machine.about.is_empty() && !machine.memory.is_empty(), "{name} says what it is");
        assert_eq!(Machine::parse(&machine.to_toml(true)).unwrap().to_toml(true), machine.to_toml(true), "{name}");
    }
    for (class, _) in CLASSES {
        Machine::parse(&format!("class = \"{class}\"")).unwrap_or_else(|e| panic!("{class}: {e}"));
    }
}

#[test]
fn a_published_device_has_its_memory_from_a_datasheet() {
    // Machines that run the engine are measured.
    for (name, text) in PRESETS.iter().filter(|p| !matches!(p.0, "host" | "host-gpu")) {
        let machine = Machine::parse(text).unwrap();
        for knob in [Knob::PeakGbps, Knob::CapacityGb] {
            assert_eq!(machine.setting(knob).provenance, Provenance::Datasheet, "{name}: {knob}");
        }
    }
}

#[test]
fn knobs_are_named_once_and_their_defaults_lie_in_their_bounds() {
    let names: BTreeSet<&str> = KNOBS.iter().map(|k| k.name).collect();
    assert_eq!(names.len(), KNOBS.len());
    for (index, info) in KNOBS.iter().enumerate() {
        assert_eq!(info.knob as usize, index);
        assert!(info.min <= info.default && info.default <= info.max, "{}", info.name);
        assert!(info.name.contains('.') && !info.meaning.is_empty() && !info.unit.is_empty());
        assert_eq!(Knob::named(info.name), Some(info.knob));
    }
}

fn refused(text: &str) -> String {
    match Machine::parse(text) {
        Ok(machine) => panic!("it is taken: {machine:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_bad_file_is_refused_by_the_name_of_what_is_wrong() {
    let cases = [
        ("class = ", "not TOML"),
        ("name = \"x\"", "'class': a machine says its class: gpu, soc"),
        ("class = \"quantum\"", "no class is called 'quantum'; there are gpu"),
        ("like = \"a200\"", "no machine is called 'a200'; there are kv260"),
        ("class = \"gpu\"\n[memory]\npeek_gbps = 3", "'memory.peek_gbps'; did you mean 'memory.peak_gbps'?"),
        ("class = \"gpu\"\n[memory]\npeak_gbps = 0", "knob 'memory.peak_gbps' is 0"),
        ("class = \"gpu\"\n[memory]\npeak_gbps = -5.0", "knob 'memory.peak_gbps' is -5"),
        ("class = \"gpu\"\n[memory]\npeak_gbps = nan", "knob 'memory.peak_gbps' is NaN"),
        ("class = \"gpu\"\n[memory]\npeak_gbps = inf", "knob 'memory.peak_gbps' is inf"),
        ("class = \"gpu\"\n[memory]\npeak_gbps = \"fast\"", "'memory.peak_gbps': a number is wanted"),
        ("class = \"gpu\"\n[array]\nlanes_n = 2.5", "knob 'array.lanes_n' is 2.5: it is a whole number"),
        ("class = \"gpu\"\n[weights]\nefficiency = 1.01", "knob 'weights.efficiency' is 1.01"),
        ("class = \"gpu\"\n[sequencer]\nprefetch = 2", "knob 'sequencer.prefetch' is 2"),
        (
            "class = \"gpu\"\n[memory]\npeak_gbps = { value = 3, provenance = \"rumour\" }",
            "provenance 'rumour' is none of",
        ),
        ("class = \"gpu\"\n[memory]\npeak_gbps = { provenance = \"guessed\" }", "'memory.peak_gbps': it has no value"),
        ("class = \"gpu\"\n[memory]\npeak_gbps = { value = 3, sprad = 1 }", "no 'sprad'"),
        ("class = \"gpu\"\n[memory]\npeak_gbps = { value = 3, spread = 7 }", "a spread of 7"),
        ("class = \"gpu\"\nspeed = 4", "no key is called 'speed'"),
        ("class = 4", "'class': a text is wanted"),
        ("class = \"gpu\"\n[weights]\ncurve = []", "'weights.curve': a curve has at least one point"),
        ("class = \"gpu\"\n[kv]\ncurve = [[1024, 0.5], [512, 0.6]]", "'kv.curve': 512 bytes after 1024"),
        ("class = \"gpu\"\n[kv]\ncurve = [[1024, 1.5]]", "'kv.curve': a share of 1.5"),
        ("class = \"gpu\"\n[kv]\ncurve = [[1024]]", "'kv.curve': a point is [bytes, share]"),
        (
            "class = \"gpu\"\n[memory]\nreserved_gb = 99\ncapacity_gb = 80",
            "memory.reserved_gb, memory.capacity_gb: 99 GB",
        ),
        ("class = \"gpu\"\n[sram]\nweights_mib = 9\ncapacity_mib = 8", "sram.weights_mib"),
        ("class = \"gpu\"\n[memory]\noutstanding = 9\nlatency_ns = 0", "memory.outstanding, memory.latency_ns"),
    ];
    for (text, says) in cases {
        let error = refused(text);
        assert!(error.contains(says), "{text}\n gives: {error}\n wants: {says}");
    }
}

#[test]
fn a_machine_like_another_changes_what_it_names() {
    let machine = Machine::parse("like = \"a100-80g\"\nname = \"capped\"\n[memory]\npeak_gbps = 1700").unwrap();
    let other = Machine::preset("a100-80g").unwrap();
    assert_eq!((machine.name.as_str(), machine.class.as_str()), ("capped", "gpu"));
    assert_eq!(machine.get(Knob::PeakGbps), 1700.0);
    for info in KNOBS.iter().filter(|k| k.knob != Knob::PeakGbps) {
        assert_eq!(machine.get(info.knob), other.get(info.knob), "{}", info.name);
    }
    assert!(matches!(Machine::parse("like = \"a100-80g\"\nclass = \"cpu\""), Err(MachineError::Form { .. })));
}

#[test]
fn a_command_that_merges_costs_no_launch_and_no_ramp() {
    let subject = Subject::new(&SMALL.program(), &Formats::engine()).unwrap();
    let us = |merge: f64, sequences: u64| {
        let mut machine = Machine::preset("host-gpu").unwrap();
        let settings = [
            (Knob::Merge, merge),
            // A launch is far longer than anything else.
            (Knob::CommandUs, 1000.0),
            (Knob::VectorLatency, 0.0),
            (Knob::WeightsRamp, 0.0),
        ];
        settings.into_iter().for_each(|(knob, value)| machine.set(knob, value, Provenance::Guessed).unwrap());
        price(&subject, &machine, &Load::even(sequences, 1, 8, Logits::Last).unwrap()).unwrap().seconds(&machine) * 1e6
    };
    // A layer has two sums with a product and one append; its one activation merges in a step of one row alone.
    let layers = SMALL.layers as f64;
    for (sequences, activations) in [(1, layers), (2, 0.0)] {
        let [none, sums, all] = [0.0, 1.0, 2.0].map(|merge| us(merge, sequences));
        assert!(((none - sums) / 1000.0 - 3.0 * layers).abs() < 0.1, "{none} {sums}");
        assert!(((sums - all) / 1000.0 - activations).abs() < 0.1, "{sums} {all}");
    }
}

#[test]
fn groups_of_token_rows_fill_the_lanes_that_outputs_leave() {
    let subject = Subject::new(&SMALL.program(), &Formats::engine()).unwrap();
    let compute = |group: f64, rows: u64| {
        let mut machine = Machine::preset("host-gpu").unwrap();
        // More lanes than any matrix has outputs, and nothing but the array takes time.
        let settings = [
            (Knob::GroupRows, group),
            (Knob::LanesN, 1e6),
            (Knob::MacsPerLane, 1e-6),
            (Knob::Overlap, 1.0),
            (Knob::CommandUs, 0.0),
            (Knob::VectorLatency, 0.0),
        ];
        settings.into_iter().for_each(|(knob, value)| machine.set(knob, value, Provenance::Guessed).unwrap());
        price(&subject, &machine, &Load::even(rows, 1, 8, Logits::All).unwrap()).unwrap().seconds(&machine)
    };
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.02, "{a} {b}");
    // One after the other, sixteen rows take sixteen times as long; in groups of four, as long as four.
    near(compute(0.0, 16), 16.0 * compute(0.0, 1));
    near(compute(4.0, 16), 4.0 * compute(0.0, 1));
    near(compute(1.0, 16), compute(0.0, 1));
}
