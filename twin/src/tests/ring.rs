//! A ring of stages against the price that cuts a step over equal devices.

use super::specs::{SEVEN, SMALL};
use crate::{Formats, Knob, Link, Load, Logits, Machine, Provenance, RingStage, Subject, TwinError, price, price_ring};

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

#[test]
fn a_ring_of_equal_stages_costs_what_the_knob_says() {
    let subject = Subject::new(&SEVEN.program(), &Formats::engine()).unwrap();
    let load = Load::even(2, 1, 100, Logits::Last).unwrap();
    for count in [1, 2, 4, 8] {
        let mut machine = Machine::preset("edge-asic").unwrap();
        // Weights and states on the chip are shared out over the knob's stages alone.
        machine.set(Knob::StateInSram, 0.0, Provenance::Guessed).unwrap();
        let layers = 32 / count;
        let link = Link::of(&machine);
        let stages: Vec<RingStage<'_>> =
            (0..count).map(|i| RingStage { machine: &machine, layers: i * layers..(i + 1) * layers, link }).collect();
        let ring = price_ring(&subject, &load, &stages).unwrap();
        let mut cut = machine.clone();
        cut.set(Knob::Stages, count as f64, Provenance::Datasheet).unwrap();
        // As many loads as stages, so that a micro-batch of the cut is the ring's load.
        let all = Load::even(2 * count as u64, 1, 100, Logits::Last).unwrap();
        let whole = price(&subject, &cut, &all).unwrap();
        let seconds = |cycles: u64| cycles as f64 / (cut.get(Knob::CoreMhz) * 1e6);
        assert_eq!(ring.stage_s.len(), count);
        for (a, b) in ring.stage_s.iter().zip(&whole.stages) {
            assert!(close(*a, seconds(b.cycles)), "{a} {}", seconds(b.cycles));
        }
        assert_eq!(ring.hop_s.len(), if count > 1 { count } else { 0 });
        assert!(ring.hop_s.iter().all(|s| (s / seconds(whole.hop.0) - 1.0).abs() < 1e-3));
        let per_s = all.rows() as f64 / whole.seconds(&cut);
        assert!((ring.filled_tokens_per_s / per_s - 1.0).abs() < 1e-3, "{} {per_s}", ring.filled_tokens_per_s);
        assert!(close(ring.tokens_per_s, 2.0 / ring.lap_s));
    }
}

#[test]
fn the_slowest_stage_and_the_longest_link_set_the_pace() {
    let subject = Subject::new(&SEVEN.program(), &Formats::engine()).unwrap();
    let load = Load::decode(100).unwrap();
    let (fast, slow) = (Machine::preset("h200").unwrap(), Machine::preset("gb10").unwrap());
    let near = Link { latency_us: 10.0, gbps: 12.5, framing_bytes: 64 };
    let far = Link { latency_us: 1e6, ..near };
    let of = |machines: [&Machine; 2], cut: usize, link: Link| {
        let [a, b] = machines;
        let stages =
            [RingStage { machine: a, layers: 0..cut, link }, RingStage { machine: b, layers: cut..32, link: near }];
        price_ring(&subject, &load, &stages).unwrap()
    };
    let even = of([&fast, &slow], 16, near);
    let skewed = of([&fast, &slow], 28, near);
    assert!(skewed.filled_tokens_per_s > 1.5 * even.filled_tokens_per_s);
    assert!(skewed.bubble < even.bubble && even.stage_s[1] > 5.0 * even.stage_s[0]);
    let remote = of([&fast, &slow], 28, far);
    assert!(remote.lap_s > 1.0 && remote.filled_tokens_per_s < 2.0, "a long way round bounds the pace");
    assert_eq!(remote.stage_s, skewed.stage_s);
    // A head alone: embedding, final norm and head, no layer.
    let head = of([&fast, &slow], 0, near);
    assert!(head.stage_s[0] < even.stage_s[0] && head.stage_s[1] > even.stage_s[1]);
}

#[test]
fn a_ring_that_cannot_be_is_refused() {
    let subject = Subject::new(&SMALL.program(), &Formats::engine()).unwrap();
    let load = Load::decode(10).unwrap();
    let machine = Machine::preset("edge-asic").unwrap();
    let link = Link::of(&machine);
    let all = subject.layers().end;
    let says = |cuts: &[(usize, usize)], link: Link| {
        let stages: Vec<RingStage<'_>> =
            cuts.iter().map(|(a, b)| RingStage { machine: &machine, layers: *a..*b, link }).collect();
        price_ring(&subject, &load, &stages).unwrap_err().to_string()
    };
    assert!(says(&[], link).contains("0 stages"));
    assert!(says(&[(0, 1)], link).contains("end at layer 1"));
    assert!(says(&[(0, 1), (2, all)], link).contains("stage 1 has the layers 2"));
    assert!(says(&[(0, all), (all, all)], link).contains("only the first may have none"));
    assert!(says(&[(0, all)], Link { gbps: f64::NAN, ..link }).contains("NaN GB/s"));
    let mut small = machine.clone();
    small.set(Knob::CapacityGb, 0.501, Provenance::Guessed).unwrap();
    let seven = Subject::new(&SEVEN.program(), &Formats::engine()).unwrap();
    let stages =
        [RingStage { machine: &machine, layers: 0..31, link }, RingStage { machine: &small, layers: 31..32, link }];
    assert!(matches!(price_ring(&seven, &load, &stages), Err(TwinError::DoesNotFit { .. })));
}
