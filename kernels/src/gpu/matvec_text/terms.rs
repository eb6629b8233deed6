//! The products of a block with a row, in the order in which every shader adds them.
//!
//! Elements of 4 bits go through a table of all pairs of levels into what int8 elements are; their block of 32 columns has
//! two halves with a scale each, so there are twice as many products, the first half's before the second's.

use super::shape::Shape;
use crate::format::Limbs;

/// A product that is added to a lane.
pub(super) struct Term {
    /// Name of the limb in the text, and its index, high first.
    pub(super) name: &'static str,
    pub(super) limb: u32,
    /// The half of the block whose scale it has; none: both, which share one.
    pub(super) half: Option<u32>,
}

impl Term {
    pub(super) fn text(&self) -> String {
        self.half.map_or_else(|| self.name.to_owned(), |half| format!("{}{half}", self.name))
    }
}

/// The products of a block with a row, in the order in which they are added.
pub(super) fn terms(shape: &Shape) -> Vec<Term> {
    let two = shape.limbs == Limbs::Two;
    let limbs = |half| shape_limbs(two).iter().map(move |(limb, name)| Term { name, limb: *limb, half });
    match shape.weights.book() {
        None => limbs(None).collect(),
        Some(_) => limbs(Some(0)).chain(limbs(Some(1))).collect(),
    }
}

/// Index and name of the limbs, high first.
pub(super) fn shape_limbs(two: bool) -> &'static [(u32, &'static str)] {
    if two { &[(0, "h"), (1, "l")] } else { &[(0, "l")] }
}
