//! `wordline disasm`: a program file as text.

use super::failure::{Failure, chain};
use super::out;
use super::program_file::{read_program, write};
use clap::Args as ClapArgs;
use std::path::PathBuf;
use wordline_ir::{file, text, verify};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// A program file; `-` is standard input
    file: PathBuf,
    /// Write the text here; without it, to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show each command's word beside it
    #[arg(long)]
    words: bool,
    /// The program as JSON (docs/json.md)
    #[arg(long, conflicts_with = "words")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let program = read_program(&args.file)?;
    let printed = if args.json {
        let json = file::to_json(&program).map_err(|e| Failure::refused(chain(&e)).at(args.file.display()))?;
        format!("{json:#}\n")
    } else if args.words {
        text::to_text_with_words(&program)
    } else {
        text::to_text(&program)
    };
    if let Err(defects) = verify::verify(&program) {
        out::note(format_args!("note: {}: {defects}", args.file.display()));
    }
    write(args.output.as_deref(), printed.as_bytes())
}
