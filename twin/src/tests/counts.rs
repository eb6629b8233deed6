//! Counts by hand, from sizes alone: multiply-accumulates and bytes of whole steps.

use super::specs::{HYBRID, MIXTURE, SEVEN, SMALL, Sizes, WINDOWED};
use crate::{Formats, Load, Logits, Machine, Subject, price};

fn machine(name: &str) -> Machine {
    Machine::preset(name).expect("a preset")
}

/// Elements of all matrices that stream in a step of one row, by the sizes.
fn streamed(s: &Sizes) -> u64 {
    let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let attention = s.hidden * (q + 2 * kv) + q * s.hidden;
    let delta = s.hidden * (3 * q + q + 2 * s.heads) + q * s.hidden;
    let attentions = if s.hybrid { s.layers / 4 } else { s.layers };
    let ffn = match s.experts {
        Some((experts, k)) => experts * s.hidden + k * 3 * s.hidden * s.inter,
        None => 3 * s.hidden * s.inter,
    };
    let layers = attentions * attention + (s.layers - attentions) * delta + s.layers * ffn;
    (layers + s.vocab * s.hidden) as u64
}

#[test]
fn multiply_accumulates_are_those_of_the_sizes() {
    for s in [SEVEN, SMALL, HYBRID, MIXTURE, WINDOWED] {
        let subject = Subject::new(&s.program(), &Formats::engine()).unwrap();
        for ctx in [0_u64, 7, 100] {
            let price = price(&subject, &machine("h200"), &Load::decode(ctx).unwrap()).unwrap();
            let seen = (ctx + 1).min(s.window.map_or(u64::MAX, |w| w as u64));
            let attentions = if s.hybrid { s.layers / 4 } else { s.layers } as u64;
            let head = (s.heads * s.head_dim) as u64;
            let delta = (s.layers as u64 - attentions) * (3 * head * s.head_dim as u64 + 4 * 3 * head);
            let by_hand = streamed(&s) + attentions * seen * 2 * head + delta;
            assert_eq!(price.step_macs(), by_hand, "{s:?} at {ctx}");
        }
    }
}

#[test]
fn bytes_are_those_of_the_sizes() {
    let formats = Formats::new("bf16", "bf16", "f32").unwrap();
    for s in [SEVEN, SMALL, HYBRID, MIXTURE, WINDOWED] {
        let subject = Subject::new(&s.program(), &formats).unwrap();
        let price = price(&subject, &machine("h200"), &Load::decode(100).unwrap()).unwrap();
        let moved = price.step_moved();
        // Norm weights are f32: two a layer and the last; a delta layer has its own, its taps and two values a head.
        let attentions = if s.hybrid { s.layers / 4 } else { s.layers };
        let deltas = s.layers - attentions;
        let head = s.heads * s.head_dim;
        let plain = (2 * s.layers + 1) * s.hidden + deltas * (s.head_dim + 3 * head * 4 + 2 * s.heads);
        let weights = 2 * streamed(&s) + 4 * plain as u64 + 2 * s.hidden as u64;
        assert_eq!(moved.weights, weights, "{s:?}");
        let seen = s.window.map_or(101, |w| w.min(101)) as u64;
        let position = (2 * s.kv_heads * s.head_dim * 2) as u64;
        assert_eq!(moved.kv, attentions as u64 * position * (seen + 1), "{s:?}");
        let state = deltas * (head * s.head_dim + 3 * head * 3);
        assert_eq!(moved.state, 2 * 4 * state as u64, "{s:?}");
    }
}

#[test]
fn weights_stream_once_for_all_rows() {
    let subject = Subject::new(&SMALL.program(), &Formats::engine()).unwrap();
    let moved = |sequences, rows| {
        let load = Load::even(sequences, rows, 10, Logits::Last).unwrap();
        price(&subject, &machine("edge-asic"), &load).unwrap().step_moved().weights
    };
    // Each row looks its token up; nothing else depends on their number.
    let looked_up = 256;
    assert_eq!(moved(1, 64), moved(1, 1) + 63 * looked_up);
    assert_eq!(moved(16, 4), moved(1, 1) + 63 * looked_up);
}
