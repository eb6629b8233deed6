//! A micro-program bound to the slices of one token-row.

use super::micro::{Access, Micro, Step};
use crate::math::Function;

/// Lanes of every reduction.
pub const LANES: usize = 32;

/// Values that an operand holds.
#[derive(Debug)]
pub enum Data<'a> {
    /// For reading.
    In(&'a [f32]),
    /// For writing, or for both.
    Out(&'a mut [f32]),
}

/// An operand bound to memory.
#[derive(Debug)]
pub struct Operand<'a> {
    pub(crate) data: Data<'a>,
    /// From one head's start to the next one's; 0 where all heads share the values.
    pub(crate) stride: usize,
}

impl<'a> Operand<'a> {
    /// Values to read.
    #[must_use]
    pub fn input(data: &'a [f32], stride: usize) -> Self {
        Self { data: Data::In(data), stride }
    }

    /// Values to write or update.
    #[must_use]
    pub fn output(data: &'a mut [f32], stride: usize) -> Self {
        Self { data: Data::Out(data), stride }
    }

    #[inline(always)]
    pub(crate) fn data(&self) -> &[f32] {
        match &self.data {
            Data::In(data) => data,
            Data::Out(data) => data,
        }
    }

    #[inline(always)]
    pub(crate) fn data_mut(&mut self) -> &mut [f32] {
        match &mut self.data {
            Data::In(_) => &mut [],
            Data::Out(data) => data,
        }
    }
}

/// One run of a micro-program.
#[derive(Debug)]
pub struct Run<'r, 'd> {
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// The command's parameters, in the micro-program's order.
    pub params: &'r [f32],
    /// The command's activation; ignored by a micro-program without one.
    pub act: Function,
    /// Lane of a sum's first element.
    pub first_lane: usize,
    /// The operands, in the micro-program's order.
    pub operands: &'r mut [Operand<'d>],
}

impl Run<'_, '_> {
    /// Holds the operands to what the micro-program will touch.
    ///
    /// # Panics
    /// When an operand or a parameter is missing, an operand is too short, or one to be written is read-only: the
    /// caller has not checked its shapes.
    pub(crate) fn check(&self, micro: &Micro) {
        let name = micro.name;
        assert_eq!(self.operands.len(), micro.operands.len(), "{name}: operands");
        assert_eq!(self.params.len(), micro.params.len(), "{name}: parameters");
        for (operand, info) in self.operands.iter().zip(micro.operands) {
            let writable = matches!(operand.data, Data::Out(_));
            assert!(writable || info.access == Access::In, "{name}: '{}' is written", info.name);
        }
        if self.heads == 0 {
            return;
        }
        for step in micro.steps {
            let (operand, last) = match *step {
                Step::Load(place) | Step::Store(place, _) if self.width > 0 => {
                    (place.operand, place.at(self.width - 1, self.width))
                }
                Step::LoadHead(operand) | Step::StoreHead(operand, _) => (operand, 0),
                _ => continue,
            };
            let bound = &self.operands[usize::from(operand)];
            let needed = (self.heads - 1) * bound.stride + last + 1;
            let (given, what) = (bound.data().len(), micro.operands[usize::from(operand)].name);
            assert!(given >= needed, "{name}: '{what}' holds {given} values, {needed} are needed");
        }
    }
}
