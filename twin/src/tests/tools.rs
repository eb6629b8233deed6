//! Sweeps, traces, comparisons, calibration.

use super::specs::{HYBRID, MIXTURE, SEVEN, SMALL, Sizes};
use crate::calibrate::{Run, benches, calibrate, check};
use crate::compare::compare;
use crate::sweep::{Axis, Base, csv, sweep};
use crate::{Ask, Formats, Knob, Load, Logits, Machine, Provenance, Report, Subject, html, price, trace};
use std::collections::BTreeMap;

fn base() -> Base {
    let machine = Machine::preset("edge-asic").unwrap();
    Base {
        machine,
        weights: "int8".into(),
        kv: "int8".into(),
        ctx: 100,
        rows: 1,
        sequences: 1,
        also: Vec::new(),
        state: "f32".into(),
        skew: 0.0,
    }
}

#[test]
fn a_sweep_prices_every_point_as_the_twin_does() {
    let program = SMALL.program();
    let axes = [
        Axis::parse("array.lanes_n=64,128,256").unwrap(),
        Axis::parse("ctx=1k..4k").unwrap(),
        Axis::parse("weights=int8,bf16").unwrap(),
    ];
    assert_eq!(axes[1].values, ["1024", "2048", "4096"]);
    let points = sweep(&program, &base(), &axes, &["tokens_per_s".into(), "watts".into()]).unwrap();
    assert_eq!(points.len(), 18);
    assert_eq!(points[1].at, ["64", "1024", "bf16"]);
    for point in &points {
        let mut machine = base().machine;
        machine.set(Knob::LanesN, point.at[0].parse().unwrap(), Provenance::Guessed).unwrap();
        let subject = Subject::new(&program, &Formats::new(&point.at[2], "int8", "f32").unwrap()).unwrap();
        let load = Load::decode(point.at[1].parse().unwrap()).unwrap();
        let report = Report::of(&subject, &machine, &load, Ask::default()).unwrap();
        let figures = point.figures.unwrap();
        assert_eq!((figures.tokens_per_s, figures.watts), (report.tokens_per_s, report.energy.watts));
    }
    // No point of the front is beaten, and every other one is.
    let beats = |a: &crate::sweep::Figures, b: &crate::sweep::Figures| {
        a.tokens_per_s >= b.tokens_per_s && a.watts <= b.watts && (a.tokens_per_s > b.tokens_per_s || a.watts < b.watts)
    };
    for point in &points {
        let beaten = points.iter().any(|p| beats(&p.figures.unwrap(), &point.figures.unwrap()));
        assert_eq!(point.front, !beaten, "{:?}", point.at);
    }
    let text = csv(&axes, &points);
    assert_eq!(text.lines().count(), 19);
    assert!(text.starts_with("array.lanes_n,ctx,weights,tokens_per_s,"));
    let page = html("a < b", &axes, &points, &["tokens_per_s".into(), "watts".into()]);
    assert!(page.contains("<svg") && page.contains("a &lt; b") && !page.contains("http"));
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn the_page_stands_alone_and_says_its_units() {
    let axes = ["array.lanes_n=64,128,256", "ctx=1k..4k", "weights=int8,bf16"].map(|text| Axis::parse(text).unwrap());
    let objectives = ["tokens_per_s".to_owned(), "joules_per_token".to_owned()];
    let points = sweep(&SMALL.program(), &base(), &axes, &objectives).unwrap();
    let page = html("a page", &axes, &points, &objectives);
    for outside in ["http", "src=", "href=", "url(", "@import", "fetch("] {
        assert!(!page.contains(outside), "it wants {outside}");
    }
    for label in ["tokens_per_s (tokens/s)", "joules_per_token (J)", "array.lanes_n (outputs)", "ctx (positions)"] {
        assert!(page.contains(label), "no axis says {label}");
    }
    assert_eq!(page.matches("<svg").count(), 3, "the cloud, and a plot for each axis of numbers");
    for tag in ["svg", "g", "table", "tr", "th", "td", "section", "script", "style", "html", "text", "p", "ul", "li"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "<{tag}>");
    }
    // The front is drawn as a line through as many rings as it has points.
    let front = points.iter().filter(|p| p.front).count();
    let group = page.split("<g class=\"front\">").nth(1).and_then(|rest| rest.split("</g>").next()).unwrap();
    assert_eq!((group.matches("<circle").count(), group.matches("<polyline").count()), (front, 1));
    // Each column has a button that sorts, each figure the number that it is sorted by.
    let columns = axes.len() + 7;
    assert_eq!(page.matches("<th scope=\"col\"><button>").count(), columns);
    assert_eq!(page.matches("data-n=").count(), points.len() * (columns - 1));
    assert_eq!(page.matches("<tr class=\"front\">").count(), front);
}

#[test]
fn a_point_that_no_machine_has_keeps_its_reason() {
    let axes = [Axis::parse("weights.efficiency=0.5,1.5").unwrap(), Axis::parse("memory.capacity_gb=0.6,8").unwrap()];
    let points = sweep(&SEVEN.program(), &base(), &axes, &["tokens_per_s".into()]).unwrap();
    let refused: Vec<bool> = points.iter().map(|p| p.refused.is_some()).collect();
    assert_eq!(refused, [true, false, true, true]);
    assert!(points[0].refused.as_ref().unwrap().contains("are needed"));
    assert!(points[2].refused.as_ref().unwrap().contains("knob 'weights.efficiency' is 1.5"));
    assert!(points[1].front && html("t", &axes, &points, &["tokens_per_s".into(), "watts".into()]).contains("refused"));
}

#[test]
fn a_bad_axis_is_refused() {
    for (text, says) in [
        ("ctx", "write NAME=VALUE"),
        ("lanes=3", "it moves a knob"),
        ("array.lane_n=3", "did you mean 'array.lanes_n'"),
        ("ctx=many", "'many' is no number"),
        ("ctx=8k..1k", "is no range"),
        ("ctx=0..4", "is no range"),
    ] {
        let error = Axis::parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let axis = Axis::parse(&format!("ctx={}", vec!["1"; 2000].join(","))).unwrap();
    assert!(sweep(&SMALL.program(), &base(), &[axis.clone(), axis], &[]).unwrap_err().to_string().contains("points"));
    let error = sweep(&SMALL.program(), &base(), &[], &["speed".into()]).unwrap_err().to_string();
    assert!(error.contains("no objective is called 'speed'; there are tokens_per_s"), "{error}");
}

#[test]
fn a_trace_has_a_slice_for_each_word_one_after_the_other() {
    for sizes in [SMALL, HYBRID, MIXTURE] {
        let subject = Subject::new(&sizes.program(), &Formats::engine()).unwrap();
        for stages in [1.0, 2.0] {
            let mut machine = Machine::preset("edge-asic").unwrap();
            machine.set(Knob::Stages, stages, Provenance::Datasheet).unwrap();
            let price = price(&subject, &machine, &Load::decode(10).unwrap()).unwrap();
            let trace = trace(&subject, &machine, &price);
            let events = trace["traceEvents"].as_array().unwrap();
            let slices: Vec<_> = events.iter().filter(|e| e["ph"] == "X" && e["cat"] != "memory").collect();
            assert_eq!(slices.len(), subject.commands().len());
            let mut end = 0.0;
            for (word, slice) in slices.iter().enumerate() {
                assert_eq!(slice["args"]["word"], word);
                let (ts, dur) = (slice["ts"].as_f64().unwrap(), slice["dur"].as_f64().unwrap());
                assert!(ts >= end - 1e-9, "word {word} starts before its predecessor ends");
                end = ts + dur;
            }
            let whole = price.seconds(&machine) * 1e6;
            assert!(end <= whole + 1e-6 && end > 0.9 * whole, "{end} of {whole}");
        }
    }
}

#[test]
fn a_trace_has_the_form_that_viewers_read() {
    let subject = Subject::new(&MIXTURE.program(), &Formats::engine()).unwrap();
    for (name, stages) in [("edge-asic", 1.0), ("h200", 1.0), ("gb10", 4.0), ("kv260", 3.0)] {
        let mut machine = Machine::preset(name).unwrap();
        machine.set(Knob::Stages, stages, Provenance::Datasheet).unwrap();
        let price = price(&subject, &machine, &Load::decode(77).unwrap()).unwrap();
        let trace = trace(&subject, &machine, &price);
        assert_eq!(trace["displayTimeUnit"], "ns");
        let mut named = BTreeMap::new();
        let mut ends: BTreeMap<(u64, u64), f64> = BTreeMap::new();
        for event in trace["traceEvents"].as_array().unwrap() {
            let id = |key: &str| event[key].as_u64();
            match event["ph"].as_str().unwrap() {
                "M" => {
                    let what = event["name"].as_str().unwrap();
                    assert!(["process_name", "thread_name"].contains(&what));
                    assert!(event["args"]["name"].is_string());
                    named.insert((id("pid").unwrap(), id("tid")), what.to_owned());
                }
                "X" => {
                    let lane = (id("pid").unwrap(), id("tid").unwrap());
                    let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
                    assert!(ts >= 0.0 && dur >= 0.0 && event["name"].is_string() && event["cat"].is_string());
                    // A lane's slices neither overlap nor go back: viewers would nest them.
                    let end = ends.entry(lane).or_insert(0.0);
                    assert!(ts >= *end - 1e-6, "{name}: {event}");
                    *end = ts + dur;
                    assert_eq!(named.get(&(lane.0, Some(lane.1))).map(String::as_str), Some("thread_name"));
                    assert_eq!(named.get(&(lane.0, None)).map(String::as_str), Some("process_name"));
                    assert!((event["args"]["word"].as_u64().unwrap() as usize) < subject.commands().len());
                }
                other => panic!("a phase '{other}'"),
            }
        }
    }
}

#[test]
fn a_comparison_holds_both_sides() {
    let subject = Subject::new(&SEVEN.program(), &Formats::engine()).unwrap();
    let load = Load::decode(10).unwrap();
    let of = |name| Report::of(&subject, &Machine::preset(name).unwrap(), &load, Ask::default()).unwrap();
    let (left, right) = (of("edge-asic"), of("h200"));
    let c = compare(&left, &right);
    assert_eq!(c.ratio, right.tokens_per_s / left.tokens_per_s);
    assert!(!c.within_doubt && compare(&left, &left).within_doubt);
    assert_eq!(c.by_command.len(), left.by_command.len());
    assert!(c.by_command.iter().all(|b| b.count.0 == b.count.1));
}

/// Runs that a machine with known knobs would have measured.
fn measured<'a>(truth: &Machine, subjects: &'a [Subject]) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        for (batch, limit) in [(1, 30e9), (4, 36e9)] {
            let mut machine = truth.clone();
            machine.set(Knob::PeakGbps, limit / 1e9, Provenance::Measured).unwrap();
            let price = price(subject, &machine, &Load::even(batch, 1, 64, Logits::All).unwrap()).unwrap();
            let us = |cycles: u64| cycles as f64 / machine.get(Knob::CoreMhz);
            let mut kinds = BTreeMap::new();
            for (command, spent) in subject.commands().iter().zip(&price.spent) {
                *kinds.entry(command.info().mnemonic.to_owned()).or_insert(0.0) += us(*spent);
            }
            let (name, step_us) = (format!("model {index}"), us(price.cycles));
            runs.push(Run { name, subject, ctx: 64, limit, array: None, batch, rows: 1, step_us, us: kinds });
        }
    }
    runs
}

#[test]
fn calibration_finds_the_machine_that_was_measured() {
    let mut truth = Machine::preset("host").unwrap();
    for (knob, value) in
        [(Knob::CommandUs, 2.5), (Knob::WeightsEfficiency, 0.9), (Knob::WeightsRamp, 1.5), (Knob::VectorLanes, 5.0)]
    {
        truth.set(knob, value, Provenance::Measured).unwrap();
    }
    let sizes = [
        Sizes { layers: 8, hidden: 512, inter: 1408, heads: 8, ..SMALL },
        Sizes { layers: 16, hidden: 1024, inter: 2816, heads: 16, vocab: 8000, ..HYBRID },
        Sizes { layers: 12, hidden: 768, inter: 2048, heads: 12, vocab: 4000, ..SMALL },
        Sizes { layers: 24, hidden: 896, inter: 4864, heads: 14, vocab: 16000, ..HYBRID },
    ];
    let subjects: Vec<Subject> =
        sizes.iter().map(|s| Subject::new(&s.program(), &Formats::engine()).unwrap()).collect();
    let runs = measured(&truth, &subjects);
    let found = calibrate(&Machine::preset("host").unwrap(), &runs).unwrap();
    assert!(found.median.0 < 0.03 && found.median.1 < 0.05, "{:?}", found.median);
    let near = |knob: Knob, tolerance: f64| {
        let (a, b) = (found.machine.get(knob), truth.get(knob));
        assert!((a / b - 1.0).abs() < tolerance, "{knob}: {a}, was {b}");
    };
    near(Knob::WeightsEfficiency, 0.05);
    near(Knob::CommandUs, 0.3);
    near(Knob::VectorLanes, 0.35);
    assert_eq!(found.machine.setting(Knob::WeightsEfficiency).provenance, Provenance::Fitted);
    assert!(check(&truth, &runs).unwrap().median.0 < 1e-9);
    // What is written reads back as the same machine.
    let again = Machine::parse(&found.machine.to_toml(false)).unwrap();
    assert!((check(&again, &runs).unwrap().median.0 - found.median.0).abs() < 1e-12);
    assert!(calibrate(&truth, &[]).is_err());
}

#[test]
fn bench_reports_are_read_by_what_is_needed() {
    let one = r#"{"shape":"x","threads":2,"limit_bytes_per_s":3e10,"decode":[{"batch":1,"tokens_per_s":50.0,"us_by_command":{"matvec":10.0},"other":1}]}"#;
    assert_eq!(benches(one).unwrap()[0].ctx, 64);
    assert_eq!(benches(&format!("[{one},{one}]")).unwrap().len(), 2);
    assert!(benches("{}").unwrap_err().to_string().contains("no bench report"));
}
