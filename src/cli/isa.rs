//! `wordline isa`: the reference of the command words, printed from the tables that define them.

use super::failure::Failure;
use super::out;
use clap::Args as ClapArgs;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The vector unit's micro-programs instead
    #[arg(long)]
    micro: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let text = if args.micro { wordline_kernels::vector::micro_text() } else { wordline_ir::isa::isa_reference() };
    out::text(&text)
}
