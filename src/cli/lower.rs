//! `wordline lower`: a model's decode step as a program of words.

use super::args::{JsonArg, ModelArg, NumericsArgs, usual_ctx};
use super::failure::{Failure, chain};
use super::program_file::write;
use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use wordline_ir::{Identity, Program, file, text, verify::verify};
use wordline_lowering::lower;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Form of the program
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// In program text, show each command's word beside it
    #[arg(long)]
    words: bool,
    /// Cache positions that the step is authored over; no command depends on it
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    /// Write the program here; without it, to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    numerics: NumericsArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One command a line; `asm` reads it back
    Text,
    /// The program as JSON
    Json,
    /// The words alone, 64 hex digits a line
    Hex,
    /// A program file
    Bin,
}

/// What `--json` reports: the program's identity, and its commands by kind.
#[derive(Serialize)]
struct Summary<'a> {
    model: &'a str,
    identity: &'a Identity,
    max_pos: usize,
    commands: usize,
    word_bytes: usize,
    opcodes: BTreeMap<&'static str, usize>,
    slots: usize,
    tensors: usize,
    ropes: usize,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let model = args.model.open()?;
    let spec = &model.checkpoint.spec;
    let ctx = args.ctx.unwrap_or_else(|| usual_ctx(spec.max_pos));
    let program = lower(spec, &args.numerics.numerics(), ctx)?.program;
    // What is printed can be assembled and run: a size that no program may have is refused here, not later.
    verify(&program).map_err(|defects| Failure::refused(defects).at(&args.model.model))?;
    let bytes = if args.json.json {
        let summary = serde_json::to_string_pretty(&summary(&args.model.model, &program));
        (summary.map_err(Failure::fault)? + "\n").into_bytes()
    } else {
        print(&program, args)?
    };
    write(args.output.as_deref(), &bytes)
}

fn print(program: &Program, args: &Args) -> Result<Vec<u8>, Failure> {
    let refused = |e: file::FileError| Failure::refused(chain(&e));
    Ok(match args.format {
        Format::Text if args.words => text::to_text_with_words(program).into_bytes(),
        Format::Text => text::to_text(program).into_bytes(),
        Format::Json => format!("{:#}\n", file::to_json(program).map_err(refused)?).into_bytes(),
        Format::Hex => program.words()?.iter().map(|word| format!("{word}\n")).collect::<String>().into_bytes(),
        Format::Bin => file::to_bytes(program).map_err(refused)?,
    })
}

fn summary<'a>(model: &'a str, program: &'a Program) -> Summary<'a> {
    let mut opcodes = BTreeMap::new();
    for command in &program.commands {
        *opcodes.entry(command.info().mnemonic).or_default() += 1;
    }
    Summary {
        model,
        identity: &program.identity,
        max_pos: program.max_pos,
        commands: program.commands.len(),
        word_bytes: 32 * program.commands.len(),
        opcodes,
        slots: program.slots.len(),
        tensors: program.tensors.len(),
        ropes: program.ropes.len(),
    }
}
