//! The cycle model: what each command of a program costs on a described machine, in cycles and bytes moved.
//!
//! ```text
//! words + tables + formats --Subject--> shapes of commands --cost--> cycles, bytes, MACs --timeline--> Price
//! machine.toml + class ----Machine----> rates -----------------^          |  conserve: hard errors
//!                                                                        Report, Sweep, trace, diff
//! ```
//!
//! **Invariant**: costs come from commands, shapes and the machine alone. No value of a weight or of a token-row is
//! seen, no Spec and no family; the room depends on `wordline-ir` alone and does no I/O.

pub mod calibrate;
pub mod compare;
pub mod conserve;
mod cost;
pub mod doubt;
mod error;
mod fit;
mod format;
mod html;
mod least_squares;
mod load;
pub mod machine;
mod price;
pub mod report;
pub mod ring;
mod subject;
pub mod sweep;
mod timeline;
mod trace;
pub mod validate;

#[cfg(test)]
mod tests;

pub use conserve::Conservation;
pub use cost::{Cost, Moved};
pub use error::{Bytes, TwinError};
pub use fit::Held;
pub use format::{Format, Formats, KV_FORMATS, NotRun, STATE_FORMATS, WEIGHT_FORMATS};
pub use html::html;
pub use load::{Load, Logits, SKEW, Sequences};
pub use machine::{Curve, KNOBS, Knob, KnobInfo, Machine, MachineError, Provenance, Traffic};
pub use price::{Price, StagePrice, UNITS, price, unit_index};
pub use report::{Ask, Report};
pub use ring::{Link, RingPrice, RingStage, price_ring};
pub use subject::Subject;
pub use trace::trace;
