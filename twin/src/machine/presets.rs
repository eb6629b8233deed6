//! The classes of machines and the machines that come with the twin, as the files they are.

use super::MachineError;

macro_rules! files {
    ($folder:literal: $($name:literal)+) => { &[$(($name, include_str!(concat!($folder, "/", $name, ".toml"))),)+] };
}

/// Classes: what a machine of each is by habit, under every knob that its datasheet does not give.
pub const CLASSES: &[(&str, &str)] = files!("classes": "gpu" "soc" "fpga" "tiles" "asic" "cpu");

/// Machines that come with the twin.
pub const PRESETS: &[(&str, &str)] = files!("presets":
    "kv260" "u280" "vhk158" "vck190" "gb10" "jetson-thor" "wormhole-n150" "a100-80g" "h100-sxm" "h200" "mi300x"
    "edge-asic" "host" "host-gpu");

/// Names of the presets.
#[must_use]
pub fn preset_names() -> Vec<&'static str> {
    PRESETS.iter().map(|p| p.0).collect()
}

/// Names of the classes.
#[must_use]
pub fn class_names() -> Vec<&'static str> {
    CLASSES.iter().map(|c| c.0).collect()
}

pub(super) fn preset_text(name: &str) -> Result<&'static str, MachineError> {
    find("machine", PRESETS, name)
}

pub(super) fn class_text(name: &str) -> Result<&'static str, MachineError> {
    find("class", CLASSES, name)
}

fn find(what: &'static str, all: &[(&str, &'static str)], name: &str) -> Result<&'static str, MachineError> {
    let found = all.iter().find(|f| f.0 == name).map(|f| f.1);
    let known = || all.iter().map(|f| f.0).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| MachineError::Name { what, name: name.into(), known: known() })
}
