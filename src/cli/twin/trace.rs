//! `wordline twin trace`: a step as a trace.

use super::source::{LoadArgs, MachineArgs, SourceArgs};
use crate::cli::failure::Failure;
use crate::cli::program_file::write;
use clap::Args as ClapArgs;
use std::path::PathBuf;
use wordline_twin::{Subject, price, trace};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Write the trace here; without it, to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let source = args.source.open()?;
    let machine = args.machine.machine()?;
    let subject = Subject::new(&source.program, &args.load.formats(&source.program)?)?;
    let price = price(&subject, &machine, &args.load.load(false)?)?;
    let text = serde_json::to_string(&trace(&subject, &machine, &price)).map_err(Failure::fault)?;
    write(args.output.as_deref(), (text + "\n").as_bytes())
}
