//! `Machine`: the knobs of one machine, each value with where it comes from.
//!
//! A machine is read from TOML ([`Machine::parse`]) or is one of the [`PRESETS`]. Its class gives every knob that the
//! file leaves out, so that a device of a known class is described by its datasheet alone.

mod curve;
mod error;
mod knobs;
mod parse;
mod presets;

pub use curve::Curve;
pub use error::MachineError;
pub use knobs::{Better, KNOBS, Kind, Knob, KnobInfo};
pub use presets::{CLASSES, PRESETS, class_names, preset_names};

use serde::{Deserialize, Serialize};

/// Where a knob's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// The maker's documents.
    Datasheet,
    /// Measured on such a device, or derived from such a measurement.
    Measured,
    /// Fitted on measurements of whole steps or kernels (docs/twin-validation.md).
    Fitted,
    /// A guess; by habit of the class, or a design of our own.
    Guessed,
}

impl Provenance {
    /// Every one.
    pub const ALL: [Provenance; 4] =
        [Provenance::Datasheet, Provenance::Measured, Provenance::Fitted, Provenance::Guessed];

    /// Name in machine files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Provenance::Datasheet => "datasheet",
            Provenance::Measured => "measured",
            Provenance::Fitted => "fitted",
            Provenance::Guessed => "guessed",
        }
    }

    /// Standard deviation of the logarithm of a value from there, where its file gives none of its own (`spread`).
    #[must_use]
    pub const fn spread(self) -> f64 {
        match self {
            Provenance::Datasheet => 0.01,
            Provenance::Measured => 0.05,
            Provenance::Fitted => 0.12,
            Provenance::Guessed => 0.30,
        }
    }
}

/// Kinds of bytes that have an efficiency of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// Matrices, plain tensors and looked-up rows.
    Weights,
    /// Caches of attention layers.
    Kv,
    /// Rings and memories.
    State,
}

impl Traffic {
    /// Every kind.
    pub const ALL: [Traffic; 3] = [Traffic::Weights, Traffic::Kv, Traffic::State];

    /// Its section in machine files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Traffic::Weights => "weights",
            Traffic::Kv => "kv",
            Traffic::State => "state",
        }
    }

    pub(crate) const fn efficiency(self) -> Knob {
        match self {
            Traffic::Weights => Knob::WeightsEfficiency,
            Traffic::Kv => Knob::KvEfficiency,
            Traffic::State => Knob::StateEfficiency,
        }
    }

    pub(crate) const fn ramp(self) -> Knob {
        match self {
            Traffic::Weights => Knob::WeightsRamp,
            Traffic::Kv => Knob::KvRamp,
            Traffic::State => Knob::StateRamp,
        }
    }
}

/// A value with where it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Value, in the knob's unit.
    pub value: f64,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Standard deviation of the value's logarithm.
    pub spread: f64,
    /// The machine's own file gives it; otherwise its class or the table does.
    pub own: bool,
}

/// One machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Name.
    pub name: String,
    /// Class whose habits fill what the file leaves out.
    pub class: String,
    /// Kind of memory, for people.
    pub memory: String,
    /// What it is and where its numbers stand.
    pub about: String,
    settings: Vec<Setting>,
    curves: [Option<Curve>; 3],
}

impl Machine {
    /// A knob's value.
    #[must_use]
    pub fn get(&self, knob: Knob) -> f64 {
        self.settings[knob as usize].value
    }

    /// A knob's value with where it comes from.
    #[must_use]
    pub fn setting(&self, knob: Knob) -> &Setting {
        &self.settings[knob as usize]
    }

    /// A flag's value.
    #[must_use]
    pub fn flag(&self, knob: Knob) -> bool {
        self.get(knob) != 0.0
    }

    /// The curve of a kind of bytes, where the file gives points.
    #[must_use]
    pub fn curve(&self, traffic: Traffic) -> Option<&Curve> {
        self.curves[traffic as usize].as_ref()
    }

    /// Give a kind of bytes a curve.
    pub fn set_curve(&mut self, traffic: Traffic, curve: Option<Curve>) {
        self.curves[traffic as usize] = curve;
    }

    /// Give a knob a value.
    ///
    /// # Errors
    /// The value is impossible; the error names the knob and its bounds.
    pub fn set(&mut self, knob: Knob, value: f64, provenance: Provenance) -> Result<(), MachineError> {
        let info = knob.info();
        let refuse = |reason: String| MachineError::Value { knob: info.name, value, reason };
        if !value.is_finite() {
            return Err(refuse("a knob is a finite number".into()));
        }
        if value < info.min || value > info.max {
            let unit = info.unit;
            return Err(refuse(format!("it lies between {} and {} {unit}", info.min, info.max)));
        }
        let whole = matches!(info.kind, Kind::Count | Kind::Flag);
        if whole && value.fract() != 0.0 {
            return Err(refuse("it is a whole number".into()));
        }
        self.settings[knob as usize] = Setting { value, provenance, spread: provenance.spread(), own: true };
        Ok(())
    }

    /// Give a knob a value by its name.
    ///
    /// # Errors
    /// No knob has the name, or the value is impossible.
    pub fn set_named(&mut self, name: &str, value: f64, provenance: Provenance) -> Result<(), MachineError> {
        self.set(named(name)?, value, provenance)
    }

    /// Put a value in a knob's place for a while, within its bounds; the value before it.
    pub(crate) fn replace(&mut self, knob: Knob, value: f64) -> f64 {
        std::mem::replace(&mut self.settings[knob as usize].value, value)
    }

    /// What no single knob shows: parts that do not fit each other.
    ///
    /// # Errors
    /// Names the knobs.
    pub fn check(&self) -> Result<(), MachineError> {
        let at = |knob: Knob| self.get(knob);
        if at(Knob::ReservedGb) >= at(Knob::CapacityGb) {
            return Err(MachineError::Together {
                knobs: "memory.reserved_gb, memory.capacity_gb",
                reason: format!("{} GB of {} are reserved", at(Knob::ReservedGb), at(Knob::CapacityGb)),
            });
        }
        let placed = at(Knob::SramWeightsMib) + at(Knob::PrefetchMib);
        if placed > at(Knob::SramMib) {
            return Err(MachineError::Together {
                knobs: "sram.weights_mib, sram.prefetch_mib, sram.capacity_mib",
                reason: format!("{placed} MiB are placed in {} MiB", at(Knob::SramMib)),
            });
        }
        if at(Knob::Outstanding) > 0.0 && at(Knob::LatencyNs) == 0.0 {
            return Err(MachineError::Together {
                knobs: "memory.outstanding, memory.latency_ns",
                reason: "requests in flight bound the bandwidth only with a latency above 0".into(),
            });
        }
        Ok(())
    }
}

fn named(name: &str) -> Result<Knob, MachineError> {
    Knob::named(name).ok_or_else(|| MachineError::Unknown { name: name.into(), nearest: Knob::nearest(name) })
}
