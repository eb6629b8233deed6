//! The path equals the oracle, command for command.

use crate::testing::{families, llama};
use crate::{hand_lowering, lower};
use wordline_ir::{Numerics, Program, Spec};

pub(super) fn assert_equal(lowered: &Program, hand: &Program, what: &str) {
    for (n, (a, b)) in lowered.commands.iter().zip(&hand.commands).enumerate() {
        assert_eq!(a, b, "{what}: command {n}");
    }
    assert_eq!(lowered.commands.len(), hand.commands.len(), "{what}: number of commands");
    assert_eq!(lowered.slots, hand.slots, "{what}: slots");
    assert_eq!(lowered.tensors, hand.tensors, "{what}: tensors");
    assert_eq!(lowered.ropes, hand.ropes, "{what}: ropes");
    assert_eq!(lowered.max_pos, hand.max_pos, "{what}: positions");
}

fn both(spec: &Spec) -> (Program, Program) {
    let numerics = Numerics::default();
    let lowered = lower(spec, &numerics, 64).unwrap_or_else(|e| panic!("{}: lower: {e}", spec.family));
    let hand = hand_lowering(spec, &numerics).unwrap_or_else(|e| panic!("{}: hand: {e}", spec.family));
    (lowered.program, hand)
}

#[test]
fn every_family_lowers_to_what_the_oracle_says() {
    for spec in families() {
        let (lowered, hand) = both(&spec);
        assert_equal(&lowered, &hand, &spec.family);
    }
}

#[test]
fn identity_names_the_cut_read_and_the_oracle_read_none() {
    let spec = llama();
    let (lowered, hand) = both(&spec);
    let cut = lowered.identity.cut;
    assert_eq!((cut.ctx, cut.first_layer, cut.last_layer), (64, 0, 2));
    assert_eq!((hand.identity.cut.ctx, hand.identity.cut.last_layer), (0, 0));
    assert_eq!(lowered.identity.spec, hand.identity.spec);
    assert_eq!(lowered.identity.numerics, hand.identity.numerics);
}

#[test]
fn commands_do_not_depend_on_the_caches_length() {
    for spec in families() {
        let at = |ctx| lower(&spec, &Numerics::default(), ctx).expect("lowers").program;
        let (short, long) = (at(16), at(131_072));
        assert_equal(&short, &long, &spec.family);
        assert_ne!(short.identity, long.identity);
    }
}
