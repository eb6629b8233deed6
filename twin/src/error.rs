//! `TwinError`: why there is no price.

use crate::MachineError;
use crate::conserve::Conservation;

/// Why there is no price.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TwinError {
    /// No machine.
    #[error("machine: {0}")]
    Machine(#[from] MachineError),
    /// A format that nobody knows.
    #[error("no format of {what} is called '{name}'; there are {known}")]
    Format {
        /// What is stored in it.
        what: &'static str,
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// An exception that names no tensors, or tensors that the program does not have.
    #[error(
        "'{given}' is no exception: write FORMAT,PART=FORMAT, where PART is a part of names of tensors that the program has"
    )]
    Exception {
        /// What was given.
        given: String,
    },
    /// A load that no step can be.
    #[error("load: {what} is {given}: {reason}")]
    Load {
        /// Which part of it.
        what: &'static str,
        /// Its value.
        given: String,
        /// What a step takes.
        reason: String,
    },
    /// The program cannot be read or priced.
    #[error("program: {0}")]
    Program(String),
    /// Weights, caches and states do not fit in memory.
    #[error(
        "'{machine}' holds {have} and {need} are needed: {weights} of weights, {kv} of caches, {state} of states{}; {hint}",
        if *devices > 1 { format!(" on each of {devices} devices") } else { String::new() }
    )]
    DoesNotFit {
        /// The machine.
        machine: String,
        /// Devices that share it all.
        devices: u64,
        /// Room on a device.
        have: Bytes,
        /// Bytes needed on the fullest one.
        need: Bytes,
        /// Of these, weights.
        weights: Bytes,
        /// Of these, caches.
        kv: Bytes,
        /// Of these, memories and rings.
        state: Bytes,
        /// What would fit.
        hint: String,
    },
    /// Further than the twin counts.
    #[error("{part} comes to {given} {what}, and the twin counts to {limit}: a knob or the load is out of all reach")]
    Reach {
        /// A command by index and mnemonic, a hop, or the host.
        part: String,
        /// Of what.
        what: &'static str,
        /// How many.
        given: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A split that the program does not allow.
    #[error("parallel: {0}")]
    Parallel(String),
    /// The price contradicts itself: a fault of the twin.
    #[error("the price contradicts itself: {0}")]
    Conservation(#[from] Conservation),
    /// A sweep, a calibration or a validation that cannot be done.
    #[error("{0}")]
    Data(String),
}

/// A number of bytes, printed with its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..10_000 => write!(f, "{} bytes", self.0),
            10_000..10_000_000 => write!(f, "{:.1} kB", bytes / 1e3),
            10_000_000..10_000_000_000 => write!(f, "{:.1} MB", bytes / 1e6),
            _ => write!(f, "{:.2} GB", bytes / 1e9),
        }
    }
}
