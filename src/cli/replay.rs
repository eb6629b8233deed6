//! `wordline replay`: runs a flight record again on this machine and compares every hop.

use super::args::{EngineArgs, JsonArg};
use super::failure::{Failure, chain};
use super::hub::HubArgs;
use super::out;
use crate::pipeline::load::{Maker, program_of};
use crate::pipeline::record::{Record, Replayed};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::io::BufReader;
use std::path::PathBuf;
use wordline_engine::Kernels;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Record that `head --record` wrote
    #[arg(value_name = "FILE")]
    record: PathBuf,
    /// Where the model is: a directory, `demo`, or owner/name[@revision] on the Hub [default: where the record says]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report {
    record: String,
    ids: Vec<Vec<u32>>,
    equal: bool,
    #[serde(flatten)]
    replayed: Replayed,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let name = args.record.display();
    let failed = |error: &dyn std::error::Error| Failure::refused(chain(error)).at(&name);
    let file = std::fs::File::open(&args.record).map_err(|e| failed(&e))?;
    let record = Record::read(BufReader::new(file)).map_err(|e| failed(&e))?;
    let prepared = args.engine.prepare()?;
    let model = args.hub.open(args.model.as_ref().unwrap_or(&record.header.model))?;
    let program = program_of(&model.checkpoint.spec, &record.header.numerics)?;
    let kernels = Kernels::new().map_err(|e| Failure::refused(format!("this device does not compute: {e}")))?;
    let (threads, backend, cache) = (prepared.threads, prepared.backend, prepared.cache());
    let (weights, watch) = (&model.checkpoint.weights, prepared.watch());
    let maker = Maker { weights, kernels, threads, backend, cache, watch };
    let replayed = record.replay(&program, &maker).map_err(|e| failed(&e))?;
    let equal = replayed.difference.is_none();
    if args.json.json {
        out::json(&Report { record: name.to_string(), ids: record.ids(), equal, replayed })?;
    } else {
        let Replayed { hops, rows, tokens, difference } = &replayed;
        out::line(difference.as_ref().map_or_else(
            || format!("equal: {hops} hops, {rows} rows, {tokens} tokens"),
            |difference| format!("differs: {difference}"),
        ))?;
    }
    if equal { Ok(()) } else { Err(Failure::check()) }
}
