//! What no input may do: panic, hang, or bring a price that contradicts itself.

use super::specs::{HYBRID, MIXTURE, SMALL};
use crate::machine::{CLASSES, KNOBS, Kind, Knob, PRESETS, Provenance};
use crate::sweep::{Axis, Base, csv, sweep};
use crate::{Ask, Formats, KV_FORMATS, Link, Load, Logits, Machine, Report, RingStage, Sequences, Subject, TwinError};
use crate::{WEIGHT_FORMATS, html, price, price_ring, trace};
use proptest::prelude::*;
use std::sync::LazyLock;

static SUBJECTS: LazyLock<Vec<Subject>> = LazyLock::new(|| {
    let formats = Formats::engine();
    [SMALL, HYBRID, MIXTURE].iter().map(|s| Subject::new(&s.program(), &formats).unwrap()).collect()
});

/// Numbers as a file may write them: sane, at the borders of what a number is, and beyond.
fn number() -> impl Strategy<Value = String> {
    let words = [
        "0",
        "-0.0",
        "1",
        "-1",
        "0.5",
        "2",
        "1e-300",
        "1e300",
        "1e9",
        "-1e9",
        "nan",
        "-nan",
        "inf",
        "-inf",
        "true",
        "9223372036854775807",
        "-9223372036854775808",
        "1e-9",
        "65536",
        "4096",
        "\"4\"",
        "[1]",
        "{}",
        "{ value = 1 }",
        "{ value = nan }",
        "{ value = 3, spread = nan }",
        "{ value = 3, spread = -1 }",
    ];
    prop_oneof![
        proptest::sample::select(words.map(str::to_owned).to_vec()),
        any::<f64>().prop_map(|v| if v.is_finite() { format!("{v:?}") } else { "nan".into() }),
        (-3.0..12.0_f64).prop_map(|power| format!("{:?}", 10_f64.powf(power))),
        any::<i64>().prop_map(|v| v.to_string()),
    ]
}

/// A machine file with some knobs at such numbers.
fn file() -> impl Strategy<Value = String> {
    let knobs = proptest::collection::vec((0..KNOBS.len(), number()), 1..5);
    (0..CLASSES.len(), knobs).prop_map(|(class, knobs)| {
        let mut text = format!("class = \"{}\"\n", CLASSES[class].0);
        for (knob, value) in knobs {
            // Dotted keys: a section may come more than once.
            text += &format!("{} = {value}\n", KNOBS[knob].name);
        }
        text
    })
}

/// Everything that reads a machine, on it. A price that contradicts itself is no answer.
fn use_all(machine: &Machine, subject: &Subject, load: &Load) {
    let fine = |error: TwinError| assert!(!matches!(error, TwinError::Conservation(_)), "{error}");
    match Report::of(subject, machine, load, Ask::default()) {
        Ok(report) => {
            assert!(report.ms_per_step > 0.0 && report.ms_per_step.is_finite());
            assert!(report.low <= report.tokens_per_s && report.tokens_per_s <= report.high);
            assert!(report.busy.values().all(|b| (0.0..=1.0 + 1e-9).contains(b)), "{:?}", report.busy);
        }
        Err(error) => fine(error),
    }
    match price(subject, machine, load) {
        Ok(price) => assert!(trace(subject, machine, &price)["traceEvents"].is_array()),
        Err(error) => fine(error),
    }
    let stages = [
        RingStage { machine, layers: 0..1, link: Link::of(machine) },
        RingStage { machine, layers: 1..subject.layers().end, link: Link::of(machine) },
    ];
    if let Err(error) = price_ring(subject, load, &stages) {
        fine(error);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// A file of any knobs at any numbers is a machine or is refused, and a machine prices or refuses any load.
    #[test]
    fn no_machine_file_is_too_strange(
        text in file(), model in 0..3_usize, count in 1..2000_u64, rows in 1..3000_u64, ctx in 0..1_000_000_u64,
    ) {
        if let Ok(machine) = Machine::parse(&text) {
            let again = Machine::parse(&machine.to_toml(true)).unwrap();
            prop_assert_eq!(again.to_toml(true), machine.to_toml(true));
            use_all(&machine, &SUBJECTS[model], &Load::even(count, rows, ctx, Logits::Last).unwrap());
        }
    }

    /// Knobs at their own borders, several at a time: within the bounds nothing contradicts itself.
    #[test]
    fn no_bound_is_too_far(
        preset in 0..PRESETS.len(), knobs in proptest::collection::vec((0..KNOBS.len(), any::<bool>()), 1..8),
        model in 0..3_usize, huge in any::<bool>(),
    ) {
        let mut machine = Machine::parse(PRESETS[preset].1).unwrap();
        for (index, top) in knobs {
            let info = &KNOBS[index];
            let value = if top { info.max } else { info.min };
            let whole = matches!(info.kind, Kind::Count | Kind::Flag);
            machine.set(info.knob, if whole { value.ceil() } else { value }, Provenance::Guessed).unwrap();
        }
        let load = if huge { Load::even(1 << 12, 1 << 12, 1 << 24, Logits::All) } else { Load::decode(0) };
        use_all(&machine, &SUBJECTS[model], &load.unwrap());
    }

    /// Loads of unlike sequences, as far as a load goes.
    #[test]
    fn no_load_is_too_uneven(
        groups in proptest::collection::vec((0..1_u64 << 25, 0..1_u64 << 25, any::<u64>()), 0..4), skew in any::<f64>(),
        model in 0..3_usize,
    ) {
        let groups = groups.into_iter().map(|(count, rows, ctx)| Sequences { count, rows, ctx: ctx >> 40 }).collect();
        if let Ok(load) = Load::new(groups, Logits::All, skew) {
            use_all(&Machine::preset("h200").unwrap(), &SUBJECTS[model], &load);
        }
    }

    /// Axes are parsed or refused, whatever they say.
    #[test]
    fn no_axis_is_too_strange(text in "[a-z._]{0,12}=?[-0-9a-zA-Z.,=+]{0,24}") {
        let _ = Axis::parse(&text);
    }

    /// Formats are known or refused.
    #[test]
    fn no_format_is_too_strange(text in "(bits:)?[-a-z0-9._,=:]{0,16}") {
        if let Ok(formats) = Formats::new(&text, "int8", "f32") {
            let _ = Subject::new(&SMALL.program(), &formats);
        }
    }
}

#[test]
fn every_format_is_priced_and_those_that_do_not_run_are_named() {
    let program = SMALL.program();
    let load = Load::even(8, 1, 50, Logits::Last).unwrap();
    for machine in ["h200", "gb10", "kv260", "wormhole-n150", "edge-asic", "host"] {
        let machine = Machine::preset(machine).unwrap();
        for (weights, kv) in WEIGHT_FORMATS
            .iter()
            .map(|w| (w, &KV_FORMATS[0]))
            .chain(KV_FORMATS.iter().map(|kv| (&WEIGHT_FORMATS[0], kv)))
        {
            let formats = Formats::new(weights.name, kv.name, "f32").unwrap();
            let subject = Subject::new(&program, &formats).unwrap();
            let report = Report::of(&subject, &machine, &load, Ask::default()).unwrap();
            let named: Vec<&str> = report.not_run.iter().map(|n| n.format).collect();
            let wanted: Vec<&str> = [weights, kv].iter().filter(|f| !f.runs).map(|f| f.name).collect();
            assert_eq!(named, wanted);
        }
    }
    let runs: Vec<&str> = WEIGHT_FORMATS.iter().filter(|f| f.runs).map(|f| f.name).collect();
    assert_eq!(runs, ["int8", "code4", "e2m1"], "the engine's formats, and no float among them");
}

#[test]
fn a_sweep_over_corners_keeps_every_point() {
    let base = Base {
        machine: Machine::preset("h200").unwrap(),
        weights: "int8".into(),
        kv: "int8".into(),
        ctx: 10,
        rows: 1,
        sequences: 1,
        also: Vec::new(),
        state: "f32".into(),
        skew: 0.0,
    };
    let axes = ["memory.peak_gbps=0,1e-3,1e6,1e7", "sequences=0,1,0.5,1e12", "weights=int8,bf16"]
        .map(|text| Axis::parse(text).unwrap());
    let objectives = ["tokens_per_s".to_owned(), "watts".to_owned()];
    let points = sweep(&SMALL.program(), &base, &axes, &objectives).unwrap();
    assert_eq!(points.len(), 32);
    assert!(points.iter().all(|p| p.figures.is_some() != p.refused.is_some()));
    assert_eq!(csv(&axes, &points).lines().count(), 33);
    assert!(html("corners", &axes, &points, &objectives).ends_with("</html>\n"));
}

#[test]
fn what_is_out_of_all_reach_is_refused_and_not_counted() {
    let mut machine = Machine::preset("kv260").unwrap();
    machine.set(Knob::MacsPerLane, 1e-6, Provenance::Guessed).unwrap();
    machine.set(Knob::Utilisation, 1e-3, Provenance::Guessed).unwrap();
    machine.set(Knob::CapacityGb, 1e7, Provenance::Guessed).unwrap();
    let load = Load::even(1 << 12, 1 << 12, 0, Logits::All).unwrap();
    let error = price(&SUBJECTS[0], &machine, &load).unwrap_err();
    assert!(matches!(error, TwinError::Reach { .. }), "{error}");
    assert!(error.to_string().contains("matvec"), "{error}");
}
