//! `wordline twin knobs`: every knob of a machine.

use crate::cli::args::JsonArg;
use crate::cli::failure::Failure;
use crate::cli::out;
use clap::Args as ClapArgs;
use serde::Serialize;
use wordline_twin::KNOBS;
use wordline_twin::machine::Better;
use wordline_twin::sweep::knob_reference;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    json: JsonArg,
}

/// A knob of the table.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    unit: &'static str,
    from: f64,
    to: f64,
    default: f64,
    better: &'static str,
    meaning: &'static str,
}

/// What `--json` reports.
#[derive(Serialize)]
struct Table {
    knobs: Vec<Row>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if !args.json.json {
        return out::text(&knob_reference());
    }
    let row = |k: &wordline_twin::KnobInfo| Row {
        name: k.name,
        unit: k.unit,
        from: k.min,
        to: k.max,
        default: k.default,
        better: match k.better {
            Better::More => "more",
            Better::Less => "less",
            Better::Neither => "neither",
        },
        meaning: k.meaning,
    };
    out::json(&Table { knobs: KNOBS.iter().map(row).collect() })
}
