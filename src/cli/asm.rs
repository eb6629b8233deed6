//! `wordline asm`: program text to a program file.

use super::failure::{Failure, chain};
use super::program_file::{read_program, write};
use clap::Args as ClapArgs;
use std::path::PathBuf;
use wordline_ir::{file, verify};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Program text (as `lower` and `disasm` print it); `-` is standard input
    file: PathBuf,
    /// Write the program file here; without it, to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the program although it is not sound; no engine runs it
    #[arg(long)]
    unsound: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let program = read_program(&args.file)?;
    if !args.unsound {
        verify::verify(&program).map_err(|defects| {
            Failure::refused(defects).at(args.file.display()).hint("`--unsound` writes the program all the same")
        })?;
    }
    let bytes = file::to_bytes(&program).map_err(|e| Failure::refused(chain(&e)).at(args.file.display()))?;
    write(args.output.as_deref(), &bytes)
}
