//! `wordline diff`: two programs, or a model's lowering and the oracle, command for command.

use super::args::{JsonArg, NumericsArgs, usual_ctx};
use super::failure::Failure;
use super::hub::HubArgs;
use super::out;
use super::program_file::read_program;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use wordline_ir::diff::{Difference, first_difference};
use wordline_ir::{Program, verify};
use wordline_lowering::{hand_lowering, lower};

#[derive(Debug, ClapArgs)]
#[command(after_help = "Exit codes: 0 equal, 1 different, 2 refused.")]
pub(super) struct Args {
    /// A model, whose lowering is compared with the oracle's; or the left of two program files
    #[arg(value_name = "MODEL|FILE")]
    left: String,
    /// The right of two program files
    #[arg(value_name = "FILE")]
    right: Option<PathBuf>,
    /// Cache positions that the step is authored over; no command depends on it
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    numerics: NumericsArgs,
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report<'a> {
    left: String,
    right: String,
    equal: bool,
    commands: [usize; 2],
    difference: Option<&'a Difference>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (left, right, names) = match &args.right {
        Some(file) => {
            let names = [args.left.clone(), file.display().to_string()];
            (read_program(args.left.as_ref())?, read_program(file)?, names)
        }
        None => {
            let (lowered, oracle) = both_lowerings(args)?;
            (lowered, oracle, [format!("{}: lower", args.left), format!("{}: hand_lowering", args.left)])
        }
    };
    let difference = first_difference(&left, &right);
    let commands = [left.commands.len(), right.commands.len()];
    let [left_name, right_name] = names;
    if args.json.json {
        let (left, right, equal) = (left_name, right_name, difference.is_none());
        out::json(&Report { left, right, equal, commands, difference: difference.as_ref() })?;
    } else {
        match &difference {
            None => out::line(format_args!("equal: {} commands, {} tensors", commands[0], left.tensors.len()))?,
            Some(difference) => {
                out::line(format_args!("left:  {left_name}\nright: {right_name}\n{difference}"))?;
            }
        }
    }
    if difference.is_none() { Ok(()) } else { Err(Failure::check()) }
}

/// The lowering and the oracle's program of a model; both must be sound.
fn both_lowerings(args: &Args) -> Result<(Program, Program), Failure> {
    let model = args.hub.open(&args.left).map_err(|failure| {
        let file = std::path::Path::new(&args.left).is_file();
        if file { failure.hint("to compare two program files, name both") } else { failure }
    })?;
    let (spec, numerics) = (&model.checkpoint.spec, args.numerics.numerics());
    let lowered = lower(spec, &numerics, args.ctx.unwrap_or_else(|| usual_ctx(spec.max_pos)))?.program;
    let oracle = hand_lowering(spec, &numerics)?;
    for (program, name) in [(&lowered, "lower"), (&oracle, "hand_lowering")] {
        verify::verify(program).map_err(|defects| Failure::refused(defects).at(name))?;
    }
    Ok((lowered, oracle))
}
