//! Properties of prices over machines and loads: what must not fall, what must not change, what must be refused.

use super::specs::{HYBRID, MIXTURE, SEVEN, SMALL, Sizes, WINDOWED};
use crate::machine::{Better, KNOBS, Kind, Knob, PRESETS, Provenance};
use crate::{Ask, Formats, Load, Logits, Machine, Report, Sequences, Subject, TwinError, price};
use proptest::prelude::*;
use std::sync::LazyLock;

static SUBJECTS: LazyLock<Vec<Subject>> = LazyLock::new(|| {
    let formats = Formats::engine();
    [SMALL, HYBRID, MIXTURE, WINDOWED].iter().map(|s| Subject::new(&s.program(), &formats).unwrap()).collect()
});

fn machines() -> Vec<Machine> {
    PRESETS.iter().map(|p| Machine::parse(p.1).unwrap()).collect()
}

fn cycles(subject: &Subject, machine: &Machine, load: &Load) -> f64 {
    price(subject, machine, load).unwrap().seconds(machine)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every preset prices every load of every small model, and the price is conserved (an error otherwise).
    #[test]
    fn everything_that_fits_has_a_price(
        model in 0..4_usize, machine in 0..PRESETS.len(), count in 1..20_u64, rows in 1..70_u64, ctx in 0..3000_u64,
        skew in 0.0..2.0_f64, all in any::<bool>(),
    ) {
        let logits = if all { Logits::All } else { Logits::Last };
        let load = Load::new(vec![Sequences { count, rows, ctx }], logits, skew).unwrap();
        let machine = &machines()[machine];
        let report = Report::of(&SUBJECTS[model], machine, &load, Ask::default()).unwrap();
        prop_assert!(report.low < report.tokens_per_s && report.tokens_per_s < report.high);
        prop_assert!(report.tokens_per_s <= report.naive_tokens_per_s * (1.0 + 1e-9));
        prop_assert!(report.busy.values().all(|b| (0.0..=1.0 + 1e-9).contains(b)), "{:?}", report.busy);
        let parts = report.time.compute + report.time.transfer + report.time.wait;
        prop_assert!((parts / report.ms_per_step - 1.0).abs() < 1e-9);
    }

    /// More positions, more rows or more sequences never take less time, and never fewer bytes.
    #[test]
    fn more_work_takes_no_less(
        model in 0..4_usize, machine in 0..PRESETS.len(), count in 1..9_u64, rows in 1..33_u64, ctx in 0..2000_u64,
        more in 1..100_u64,
    ) {
        let (subject, machine) = (&SUBJECTS[model], &machines()[machine]);
        let of = |count, rows, ctx| {
            let load = Load::even(count, rows, ctx, Logits::Last).unwrap();
            let price = price(subject, machine, &load).unwrap();
            (price.seconds(machine), price.step_moved().memory())
        };
        let base = of(count, rows, ctx);
        for other in [of(count + more, rows, ctx), of(count, rows + more, ctx), of(count, rows, ctx + more)] {
            prop_assert!(other.0 >= base.0 && other.1 >= base.1, "{base:?} {other:?}");
        }
    }

    /// A knob moved the way that its table row calls better never makes a step slower.
    #[test]
    fn better_knobs_are_no_worse(
        model in 0..4_usize, machine in 0..PRESETS.len(), knob in 0..KNOBS.len(), factor in 1.0..8.0_f64,
        count in 1..9_u64, rows in 1..20_u64, ctx in 0..2000_u64,
    ) {
        let info = &KNOBS[knob];
        // Rows in a tile trade padding for nothing here, and rounding up need not shrink with them; the clock is the
        // unit of whole cycles.
        let even = matches!(info.knob, Knob::RowTile | Knob::CoreMhz | Knob::LanesN | Knob::LanesK | Knob::BurstBytes | Knob::RowShare);
        prop_assume!(info.better != Better::Neither && !even);
        let mut machine = machines()[machine].clone();
        let load = Load::even(count, rows, ctx, Logits::Last).unwrap();
        let before = cycles(&SUBJECTS[model], &machine, &load);
        let from = machine.get(info.knob);
        // A rate of zero means that nothing waits for it.
        prop_assume!(!(from == 0.0 && matches!(
            info.knob,
            Knob::ScaleLanes | Knob::StreamRows | Knob::Outstanding | Knob::RowLanes | Knob::PortBytes
        )));
        let moved = match (info.better, info.kind) {
            (_, Kind::Flag) => 1.0,
            (Better::More, Kind::Count) => (from * factor).ceil(),
            (Better::More, _) => from * factor,
            (_, Kind::Count) => (from / factor).floor(),
            _ => from / factor,
        };
        machine.set(info.knob, moved.clamp(info.min, info.max), Provenance::Guessed).unwrap();
        prop_assume!(machine.check().is_ok());
        let after = cycles(&SUBJECTS[model], &machine, &load);
        // A cycle a command may come of rounding.
        let slack = SUBJECTS[model].commands().len() as f64 / (machine.get(Knob::CoreMhz) * 1e6);
        prop_assert!(after <= before + slack, "{} {from} -> {moved}: {before} -> {after}", info.name);
    }

    /// Sequences may be grouped in any way.
    #[test]
    fn groups_do_not_matter(model in 0..4_usize, count in 2..20_u64, cut in 1..19_u64, rows in 1..9_u64, ctx in 0..500_u64) {
        prop_assume!(cut < count);
        let machine = Machine::preset("edge-asic").unwrap();
        let one = Load::even(count, rows, ctx, Logits::Last).unwrap();
        let part = |count| Sequences { count, rows, ctx };
        let two = Load::new(vec![part(cut), part(count - cut)], Logits::Last, 0.0).unwrap();
        prop_assert_eq!(price(&SUBJECTS[model], &machine, &one).unwrap(), price(&SUBJECTS[model], &machine, &two).unwrap());
    }

    /// Any text is a machine or is refused; nothing panics.
    #[test]
    fn any_text_is_a_machine_or_is_refused(text in "(class = \"(gpu|asic|fpga)\"\n)?(\\[(memory|array|kv|weights)\\]\n)?[a-z_]{0,14} ?=? ?[-0-9.e\\[\\]{}\", a-z]{0,20}") {
        let _ = Machine::parse(&text);
    }
}

#[test]
fn every_command_kind_is_priced() {
    let mut kinds: Vec<&str> = SUBJECTS.iter().flat_map(|s| s.commands()).map(|c| c.info().mnemonic).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for subject in SUBJECTS.iter() {
        let load = Load::decode(10).unwrap();
        let price = price(subject, &Machine::preset("edge-asic").unwrap(), &load).unwrap();
        for (at, command) in subject.commands().iter().enumerate() {
            let cost = price.of(subject, at);
            assert!(cost.compute > 0 && cost.fixed > 0, "{command:?} costs {cost:?}");
            assert!(price.spent[at] >= cost.fixed + cost.compute);
        }
    }
    // What the models of this test do not have: heads' norms, gates and caps, scales.
    for kind in [
        "embed",
        "norm",
        "rope",
        "matvec",
        "cache_append",
        "attend",
        "conv",
        "l2_norm",
        "delta_gate",
        "delta",
        "gated_norm",
        "act",
        "add",
        "top_k",
        "routed_matvec",
    ] {
        assert!(kinds.contains(&kind), "{kind} is not among {kinds:?}");
    }
}

#[test]
fn an_absurd_load_is_refused_by_name() {
    let says = |load: Result<Load, TwinError>| load.unwrap_err().to_string();
    assert!(says(Load::even(0, 1, 0, Logits::Last)).contains("load: sequences is 0"));
    assert!(says(Load::even(1, 0, 0, Logits::Last)).contains("load: rows is 0"));
    assert!(says(Load::even(1, 1, u64::MAX, Logits::Last)).contains("load: ctx is 18446744073709551615"));
    assert!(says(Load::even(1 << 20, 1 << 20, 0, Logits::Last)).contains("rows of all sequences"));
    let group = vec![Sequences { count: 1, rows: 1, ctx: 0 }];
    assert!(says(Load::new(group, Logits::Last, f64::NAN)).contains("skew"));
    assert!(says(Load::new(vec![], Logits::Last, 0.0)).contains("sequences"));
    let machine = Machine::preset("h200").unwrap();
    let load = Load::decode(0).unwrap();
    let error = Report::of(&SUBJECTS[0], &machine, &load, Ask { accept: Some(1.5), draft_us: 0.0 }).unwrap_err();
    assert!(error.to_string().contains("accept is 1.5"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let seventy = Sizes { layers: 80, hidden: 8192, heads: 64, kv_heads: 8, inter: 28672, ..SEVEN };
    let subject = Subject::new(&seventy.program(), &Formats::new("bf16", "bf16", "f32").unwrap()).unwrap();
    let mut machine = Machine::preset("a100-80g").unwrap();
    let load = Load::decode(1000).unwrap();
    let error = price(&subject, &machine, &load).unwrap_err().to_string();
    assert!(error.contains("'a100-80g' holds 78.00 GB and") && error.contains("at least 2 devices"), "{error}");
    machine.set(Knob::Tensor, 2.0, Provenance::Datasheet).unwrap();
    price(&subject, &machine, &load).unwrap();
    let long = Load::even(64, 1, 4000, Logits::Last).unwrap();
    let error = price(&subject, &machine, &long).unwrap_err().to_string();
    assert!(error.contains("beside the weights there is room for"), "{error}");
    machine.set(Knob::Stages, 200.0, Provenance::Datasheet).unwrap();
    let error = price(&subject, &machine, &load).unwrap_err().to_string();
    assert!(error.contains("200 stages for 80 layers"), "{error}");
}

#[test]
fn devices_share_the_matrices() {
    let subject = Subject::new(&SEVEN.program(), &Formats::new("bf16", "bf16", "f32").unwrap()).unwrap();
    let load = Load::decode(100).unwrap();
    let of = |devices: f64| {
        let mut machine = Machine::preset("a100-80g").unwrap();
        machine.set(Knob::Tensor, devices, Provenance::Datasheet).unwrap();
        price(&subject, &machine, &load).unwrap()
    };
    let one = of(1.0);
    for devices in [2.0, 4.0, 8.0] {
        let many = of(devices);
        assert!(many.cycles < one.cycles && (many.cycles as f64) > one.cycles as f64 / devices);
        assert_eq!(many.step_moved().kv, one.step_moved().kv);
        let (a, b) = (many.step_moved().weights as f64, one.step_moved().weights as f64);
        assert!((a / b - 1.0).abs() < 1e-3, "{a} {b}");
        // A sum after each mixer and each network of every layer, and the logits gathered: no other exchange.
        let exchanges = subject.items.iter().filter(|i| {
            let shape = &subject.shapes[i.shape as usize];
            shape.reduced > 0 || shape.gathered > 0
        });
        assert_eq!(exchanges.count(), 2 * 32 + 1);
        assert_eq!(one.step_moved().link, 0);
    }
}

#[test]
fn a_pipeline_has_hops_and_bubbles() {
    let subject = Subject::new(&SEVEN.program(), &Formats::engine()).unwrap();
    let of = |stages: f64, sequences| {
        let mut machine = Machine::preset("edge-asic").unwrap();
        machine.set(Knob::Stages, stages, Provenance::Datasheet).unwrap();
        Report::of(&subject, &machine, &Load::even(sequences, 1, 100, Logits::Last).unwrap(), Ask::default()).unwrap()
    };
    let (one, four) = (of(1.0, 1), of(4.0, 1));
    let p = four.pipeline.clone().unwrap();
    assert_eq!(p.layers, [(0, 8), (8, 16), (16, 24), (24, 32)]);
    assert!(one.pipeline.is_none() && p.bubble > 0.7 && p.imbalance > 1.0);
    // One sequence goes round no faster; the stages of many work side by side.
    assert!(four.ms_per_step > one.ms_per_step);
    let filled = of(4.0, 4);
    assert!(filled.tokens_per_s > 2.5 * one.tokens_per_s, "{} {}", filled.tokens_per_s, one.tokens_per_s);
    assert!(filled.pipeline.unwrap().bubble < 0.3);
}

#[test]
fn a_draft_gives_steps_and_tokens_apart() {
    let machine = Machine::preset("edge-asic").unwrap();
    let load = Load::even(1, 5, 100, Logits::All).unwrap();
    let of = |accept| Report::of(&SUBJECTS[0], &machine, &load, Ask { accept: Some(accept), draft_us: 0.0 }).unwrap();
    assert_eq!(of(0.0).tokens_per_step, 1.0);
    assert_eq!(of(1.0).tokens_per_step, 5.0);
    assert!((of(0.5).tokens_per_step - 1.9375).abs() < 1e-12);
    assert!((of(0.5).tokens_per_s / of(0.5).steps_per_s - 1.9375).abs() < 1e-9);
}

#[test]
fn prefetch_hides_weights_behind_vector_work_and_no_more() {
    let subject = &SUBJECTS[0];
    let load = Load::decode(1000).unwrap();
    let of = |on: f64| {
        let mut machine = Machine::preset("edge-asic").unwrap();
        machine.set(Knob::Prefetch, on, Provenance::Guessed).unwrap();
        price(subject, &machine, &load).unwrap()
    };
    let (without, with) = (of(0.0), of(1.0));
    assert!(with.cycles < without.cycles);
    assert_eq!(with.step_moved(), without.step_moved());
    let hidden: u64 = with.early.iter().sum();
    assert!(hidden >= without.cycles - with.cycles && without.early.iter().all(|e| *e == 0));
}
