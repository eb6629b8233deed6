//! The products of a block with a row, in the order in which every shader adds them.
//!
//! Elements of 4 bits go through a table of all pairs of levels into what int8 elements are; their block of 32 columns has
//! two halves with a scale each, so there are two products, the first half's before the second's.

use super::shape::Shape;

/// A product that is added to a lane: its place in names, and the half of the block whose scale it has; no half where
/// both share one.
#[derive(Clone, Copy)]
pub(super) struct Term {
    pub(super) name: &'static str,
    pub(super) half: Option<u32>,
}

/// The products of a block with a row, in the order in which they are added.
pub(super) fn terms(shape: &Shape) -> &'static [Term] {
    match shape.weights.book() {
        None => &[Term { name: "", half: None }],
        Some(_) => &[Term { name: "_0", half: Some(0) }, Term { name: "_1", half: Some(1) }],
    }
}

/// Index and name of the limbs, high first.
pub(super) fn shape_limbs(two: bool) -> &'static [(u32, &'static str)] {
    if two { &[(0, "h"), (1, "l")] } else { &[(0, "l")] }
}

/// The product of sums, one a limb, high first, with a scale. Each limb's product is exact, so that what adds two of them
/// rounds the whole product once, fused or not. The high limb's scale goes through the barrier: compilers take a factor that
/// both products share out of the sum, which would be rounded before it is multiplied.
pub(super) fn product(sums: &[String], scale: &str) -> String {
    match sums {
        [high, low] => format!("f32({high}) * b({scale} * 256.0) + f32({low}) * {scale}"),
        _ => format!("f32({}) * {scale}", sums.concat()),
    }
}
