//! `wordline twin validate`: the twin against published measurements.

use super::source::Source;
use crate::cli::args::JsonArg;
use crate::cli::failure::Failure;
use crate::cli::out;
use crate::cli::program_file::read_text;
use clap::Args as ClapArgs;
use std::path::PathBuf;
use wordline_ir::Numerics;
use wordline_twin::TwinError;
use wordline_twin::validate::{JUDGED, PUBLISHED, rows, validate};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Rows of your own, as twin/data/published.toml has them
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let text = args.rows.as_deref().map(read_text).transpose()?;
    let rows = match text {
        Some(text) => rows(&text)?,
        None => [rows(PUBLISHED)?, rows(JUDGED)?].concat(),
    };
    let program = |shape: &str| {
        let source = Source::shape(shape, &Numerics::default());
        source.map(|s| s.program).map_err(|failure| TwinError::Data(failure.what))
    };
    let validation = validate(&rows, program)?;
    if args.json.json { out::json(&validation) } else { out::text(&validation.markdown()) }
}
