//! `Kernels`: the gated kernels of a device, and how a program's facts read to them.

use crate::error::ModelError;
use std::sync::Arc;
use wordline_ir::spec::Activation;
use wordline_ir::{ActFormat, Program};
use wordline_kernels::attend::Attend;
use wordline_kernels::format::{Lanes, Limbs};
use wordline_kernels::gate::{self, UnitsError};
use wordline_kernels::math::Function;
use wordline_kernels::vector::VectorUnit;

/// Calls of one shape of the vector, conv or delta unit between two that are looked at: the mirror takes some tens of
/// times as long as a form.
const PERIOD: u64 = 4096;

/// The kernels of this device that have passed their init gates.
#[derive(Clone, Debug)]
pub struct Kernels {
    /// Array and attention.
    pub array: Arc<gate::Units>,
    /// Vector, conv and delta; audited as it runs.
    pub vector: VectorUnit,
}

impl Kernels {
    /// The fastest forms of this device that pass.
    ///
    /// # Errors
    /// The table of products is not whole, or no form of the array unit passes: the device does not compute.
    pub fn new() -> Result<Self, UnitsError> {
        Ok(Self { array: Arc::new(gate::Units::new()?), vector: VectorUnit::new().audited(PERIOD) })
    }

    /// The scalar mirrors, which define the bits.
    ///
    /// # Errors
    /// As [`Kernels::new`].
    pub fn mirror() -> Result<Self, UnitsError> {
        let array = Arc::new(gate::Units::up_to(gate::Form::Mirror)?);
        Ok(Self { array, vector: VectorUnit::mirror() })
    }
}

/// How a program's numerics read to the kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formats {
    pub(crate) acts: Limbs,
    pub(crate) queries: Limbs,
    pub(crate) probs: Limbs,
    pub(crate) lanes: Lanes,
}

impl Formats {
    pub(crate) fn of(program: &Program) -> Result<Self, ModelError> {
        let numerics = program.identity.numerics;
        let limbs = |format| match format {
            ActFormat::OneLimb => Limbs::One,
            ActFormat::TwoLimbs => Limbs::Two,
        };
        Ok(Self {
            acts: limbs(numerics.acts),
            queries: limbs(numerics.queries),
            probs: limbs(numerics.probs),
            lanes: Lanes::new(numerics.lanes).ok_or(ModelError::Lanes { given: numerics.lanes })?,
        })
    }
}

impl Formats {
    /// How rows attend in these formats.
    pub(super) fn attend(&self, window: Option<usize>, cap: Option<f32>) -> Attend {
        Attend { window, cap, queries: self.queries, probs: self.probs, lanes: self.lanes }
    }
}

/// The function of an activation.
pub(crate) fn function(act: Activation) -> Function {
    match act {
        Activation::Silu => Function::Silu,
        Activation::GeluErf => Function::GeluErf,
        Activation::GeluTanh => Function::GeluTanh,
        Activation::Relu => Function::Relu,
    }
}
