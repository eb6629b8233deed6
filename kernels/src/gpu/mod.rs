//! The units on a graphics device: the same bits in WGSL, through wgpu.
//!
//! Nothing here knows a program. A builder makes the dispatches of one operation over regions of device memory; a caller
//! strings them together into a step, which is recorded once and submitted whole.
//!
//! | module | holds |
//! |---|---|
//! | `error`, `region` | every way in which a device can fail; memory of one |
//! | [`device`] | the device: what there is, what it can do, memory and pipelines |
//! | [`wgsl`], [`job`] | what every shader begins with, functions printed from their tapes; a kernel before it is bound |
//! | [`vector`], `vector_quantised` | shaders printed from the table of micro-programs; with their output quantised besides |
//! | [`conv`], [`delta`], [`cache`], [`rotate_append`], [`attend`], [`rows`] | the units that carry state, attention, top-k |
//! | [`floats`] | the init gate of all of these |
//! | [`quantise`], [`weights`], [`matvec`], [`matvec_text`] | the array unit: rows to limbs, weights packed once, products |
//! | [`gate`], [`audit`] | the array unit's init gate; results of a run held to the mirror |
//! | [`gates`], [`outcome`] | all gates that a method passes before it computes; what comes of one |
//! | [`clock`], [`profile`] | how long a pass takes, how fast memory is; the time of a step by kind of kernel |
//! | [`record`] | dispatches, a step of them in one pass, what is read back |

pub mod attend;
pub mod audit;
pub mod cache;
pub mod clock;
pub mod conv;
pub mod delta;
pub mod device;
mod error;
pub mod floats;
pub mod gate;
pub mod gates;
pub mod job;
pub mod matvec;
pub mod matvec_text;
pub mod outcome;
pub mod profile;
pub mod quantise;
pub mod record;
mod region;
pub mod rotate_append;
pub mod rows;
pub mod vector;
mod vector_quantised;
pub mod weights;
pub mod wgsl;

pub use device::{Choice, Facts, Gpu, Kind, Pipeline};
pub use error::GpuError;
pub use record::{Dispatch, Staging};
pub use region::Region;

/// How a shader multiplies int8 by int8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Products from the checked table, in device memory.
    Lut,
    /// WGSL's `dot4I8Packed`.
    Dp4a,
}

impl Method {
    /// Both, the faster first.
    pub const ALL: [Method; 2] = [Method::Dp4a, Method::Lut];

    /// Name for people and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Method::Dp4a => "gpu-dp4a",
            Method::Lut => "gpu-lut",
        }
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod array_tests;
#[cfg(test)]
mod tests;
