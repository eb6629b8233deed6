//! `wordline twin diff`: two prices beside each other.

use super::source::{LoadArgs, MachineArgs, Source, open_machine};
use crate::cli::args::{JsonArg, LimbArgs};
use crate::cli::failure::Failure;
use crate::cli::out;
use clap::{ArgGroup, Args as ClapArgs};
use wordline_twin::compare::{Comparison, compare};
use wordline_twin::{Ask, Bytes, Machine, Report, Subject};

#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("same").required(true).args(["machine", "on", "shape"]))]
pub(super) struct Args {
    /// A machine; or, with --machine, a model, config, shape or program
    #[arg(value_name = "LEFT")]
    left: String,
    /// What it is compared with
    #[arg(value_name = "RIGHT")]
    right: String,
    /// Compare two machines on this model
    #[arg(long, value_name = "MODEL", conflicts_with = "machine")]
    on: Option<String>,
    /// Compare two machines on this published shape
    #[arg(long, value_name = "NAME", conflicts_with_all = ["machine", "on"])]
    shape: Option<String>,
    /// Compare two models or programs on this machine
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// Give a knob of both machines another value
    #[arg(long = "set", value_name = "KNOB=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    limbs: LimbArgs,
    #[command(flatten)]
    json: JsonArg,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let knobs = MachineArgs { machine: None, set: args.set.clone(), devices: None, stages: None };
    let numerics = args.limbs.numerics();
    let price = |source: &Source, machine: &Machine| -> Result<Report, Failure> {
        let subject = Subject::new(&source.program, &args.load.formats(&source.program)?)?;
        Ok(Report::of(&subject, machine, &args.load.load(false)?, Ask::default())?)
    };
    let (left, right) = match (&args.machine, &args.on, &args.shape) {
        (Some(machine), _, _) => {
            let machine = knobs.apply(open_machine(machine)?)?;
            let of = |name: &str| price(&Source::open(name, &numerics)?, &machine);
            (of(&args.left)?, of(&args.right)?)
        }
        (None, on, shape) => {
            let source = match (on, shape) {
                (Some(model), _) => Source::open(model, &numerics)?,
                (None, Some(shape)) => Source::shape(shape, &numerics)?,
                (None, None) => return Err(Failure::refused("give --machine, --on or --shape: what both have")),
            };
            let of = |name: &str| price(&source, &knobs.apply(open_machine(name)?)?);
            (of(&args.left)?, of(&args.right)?)
        }
    };
    let comparison = compare(&left, &right);
    if args.json.json { out::json(&comparison) } else { print(args, &comparison) }
}

fn print(args: &Args, c: &Comparison) -> Result<(), Failure> {
    let row = |name: &str, (l, r): (f64, f64)| out::line(format_args!("  {name:14} {l:12.4} {r:12.4}  {:+.4}", r - l));
    out::line(format_args!("left:  {}\nright: {}", args.left, args.right))?;
    row("ms a step", c.ms_per_step)?;
    row("  compute", c.compute)?;
    row("  transfer", c.transfer)?;
    row("  wait", c.wait)?;
    row("tokens/s", c.tokens_per_s)?;
    let within = if c.within_doubt { "; the intervals overlap" } else { "" };
    out::line(format_args!("  right is {:.3} x left{within}", c.ratio))?;
    out::line(format_args!("  from memory    {} and {}", Bytes(c.memory_bytes.0), Bytes(c.memory_bytes.1)))?;
    for both in c.by_command.iter().filter(|b| b.ms.0 > 0.0 || b.ms.1 > 0.0) {
        row(both.command, both.ms)?;
    }
    Ok(())
}
