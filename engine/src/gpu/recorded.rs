//! `Recorded`: a command that was issued and not yet run, and how it is issued to other units.

use crate::units::{self, UnitError, Units};
use wordline_ir::Slot;

macro_rules! recorded {
    ($($name:ident $method:ident;)+) => {
        /// A command as the sequencer issued it.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(super) enum Recorded { $($name(units::$name),)+ }

        impl Recorded {
            /// Issue it to other units.
            pub(super) fn issue(&self, to: &mut dyn Units) -> Result<(), UnitError> {
                match self { $(Recorded::$name(op) => to.$method(op),)+ }
            }
        }

        /// The methods of [`Units`] that take note of their command.
        macro_rules! record_all {
            () => { $(fn $method(&mut self, op: &units::$name) -> Result<(), UnitError> {
                self.step.ops.push(Recorded::$name(*op));
                Ok(())
            })+ };
        }
        pub(super) use record_all;
    };
}

recorded! {
    Embed embed;
    Norm norm;
    HeadNorm head_norm;
    Rotate rotate;
    Scale scale;
    Matvec matvec;
    CacheAppend cache_append;
    Attend attend;
    Gate gate;
    Conv conv;
    L2Norm l2_norm;
    DeltaGate delta_gate;
    Delta delta;
    GatedNorm gated_norm;
    Act act;
    Add add;
    SoftCap soft_cap;
    TopK top_k;
    RoutedMatvec routed_matvec;
}

impl Recorded {
    /// The slots that it reads, those that it changes in place among them.
    pub(super) fn reads(&self) -> Vec<Slot> {
        match self {
            Recorded::Embed(_) => vec![],
            Recorded::Norm(op) => vec![op.x],
            Recorded::HeadNorm(op) => vec![op.qkv],
            Recorded::Rotate(op) => vec![op.qkv],
            Recorded::Scale(op) => vec![op.x],
            Recorded::Matvec(op) => vec![op.x],
            Recorded::CacheAppend(op) => vec![op.qkv],
            Recorded::Attend(op) => vec![op.qkv],
            Recorded::Gate(op) => vec![op.x, op.gate],
            Recorded::Conv(op) => vec![op.x],
            Recorded::L2Norm(op) => vec![op.x],
            Recorded::DeltaGate(op) => vec![op.ba],
            Recorded::Delta(op) => vec![op.qkv, op.gb],
            Recorded::GatedNorm(op) => vec![op.x, op.gate],
            Recorded::Act(op) => vec![op.x],
            Recorded::Add(op) => vec![op.x, op.y],
            Recorded::SoftCap(op) => vec![op.x],
            Recorded::TopK(op) => vec![op.logits],
            Recorded::RoutedMatvec(op) => [op.x, op.picks].into_iter().chain(op.weights).collect(),
        }
    }

    /// The slots that it writes, those that it changes in place among them.
    pub(super) fn writes(&self) -> Vec<Slot> {
        match self {
            Recorded::Embed(op) => vec![op.out],
            Recorded::Norm(op) => vec![op.out],
            Recorded::HeadNorm(op) => vec![op.qkv],
            Recorded::Rotate(op) => vec![op.qkv],
            Recorded::Scale(op) => vec![op.x],
            Recorded::Matvec(op) => vec![op.y],
            Recorded::CacheAppend(_) => vec![],
            Recorded::Attend(op) => vec![op.out],
            Recorded::Gate(op) => vec![op.out],
            Recorded::Conv(op) => vec![op.out],
            Recorded::L2Norm(op) => vec![op.x],
            Recorded::DeltaGate(op) => vec![op.gb],
            Recorded::Delta(op) => vec![op.out],
            Recorded::GatedNorm(op) => vec![op.out],
            Recorded::Act(op) => vec![op.out],
            Recorded::Add(op) => vec![op.out],
            Recorded::SoftCap(op) => vec![op.x],
            Recorded::TopK(op) => vec![op.picks, op.weights],
            Recorded::RoutedMatvec(op) => vec![op.y],
        }
    }
}
