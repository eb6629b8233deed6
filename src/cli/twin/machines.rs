//! `wordline twin machines`: the machines that come with the twin.

use super::source::open_machine;
use crate::cli::failure::Failure;
use crate::cli::out;
use clap::Args as ClapArgs;
use wordline_twin::machine::{CLASSES, preset_names};
use wordline_twin::{Knob, Machine};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Show this one as a file, every knob with where its value comes from
    #[arg(value_name = "NAME|FILE")]
    name: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(name) = &args.name {
        return out::text(&open_machine(name)?.to_toml(true));
    }
    for name in preset_names() {
        let machine = Machine::preset(name).map_err(Failure::fault)?;
        let (peak, size) = (machine.get(Knob::PeakGbps), machine.get(Knob::CapacityGb));
        out::line(format_args!("{name:14} {:5} {peak:7} GB/s {size:6.1} GB  {}", machine.class, machine.memory))?;
    }
    out::line(format_args!("classes: {}", CLASSES.iter().map(|c| c.0).collect::<Vec<_>>().join(", ")))
}
