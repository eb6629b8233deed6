//! Large models lower, and the work grows with their layers alone.

use super::oracle::assert_equal;
use crate::testing::{big, mixture};
use crate::{Shim, author, fuse, hand_lowering, lift, lower};
use wordline_ir::{Numerics, verify};

#[test]
fn eighty_layers_of_70b_shape_lower_to_what_the_oracle_says() {
    let spec = big(80);
    let lowered = lower(&spec, &Numerics::default(), 4096).expect("lowers").program;
    let hand = hand_lowering(&spec, &Numerics::default()).expect("the oracle writes it");
    assert_equal(&lowered, &hand, "70b");
    verify(&lowered).expect("verifies");
    assert_eq!(lowered.commands.len(), 1 + 80 * 12 + 2);
    assert_eq!(lowered.tensors.len(), 1 + 80 * 6 + 2);
}

#[test]
fn a_mixture_of_512_experts_lowers_to_what_the_oracle_says() {
    let spec = mixture(48, 512);
    let lowered = lower(&spec, &Numerics::default(), 4096).expect("lowers").program;
    let hand = hand_lowering(&spec, &Numerics::default()).expect("the oracle writes it");
    assert_equal(&lowered, &hand, "mixture");
    verify(&lowered).expect("verifies");
}

#[test]
fn each_layer_costs_the_same_operations_and_patches() {
    let work = |layers: usize| {
        let step = author(&big(layers), 4096).expect("the author writes it");
        let mut graph = lift(&step).expect("it lifts");
        let patches: usize = fuse(&mut graph, &Shim::engine()).iter().map(|fired| fired.times).sum();
        (step.ops.len(), patches, graph.len())
    };
    let ((ops1, patches1, nodes1), (ops2, patches2, nodes2), (ops40, patches40, nodes40)) =
        (work(1), work(2), work(40));
    assert_eq!(ops40 - ops1, 39 * (ops2 - ops1));
    assert_eq!(patches40 - patches1, 39 * (patches2 - patches1));
    assert_eq!(nodes40 - nodes1, 39 * (nodes2 - nodes1));
    assert!(ops2 - ops1 < 100, "a dense layer is written in {} operations", ops2 - ops1);
}
