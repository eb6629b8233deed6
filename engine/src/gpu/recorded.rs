//! `Recorded`: a command that was issued and not yet run, and how it is issued to other units.

use crate::units::{self, UnitError, Units};

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
