//! What a head is given: prompts, a roster, a place for the record; and how long a lap may take.

use super::Args;
use crate::cli::failure::Failure;
use crate::model::Model;
use crate::pipeline::capacity::MACS;
use crate::pipeline::plan::{Key, Room};
use crate::pipeline::record::{Asked, FORMAT, Header, Recorder};
use crate::pipeline::session::Ask;
use std::io::BufWriter;
use std::time::Duration;
use wordline_ir::Program;

pub(super) fn prompts(args: &Args, tokenizer: Option<&crate::tokenizer::Tokenizer>) -> Result<Vec<Vec<u32>>, Failure> {
    let ids = args.ids.iter().map(|list| {
        let id =
            |id: &str| id.trim().parse::<u32>().map_err(|_| Failure::refused(format!("--ids: '{id}' is no token id")));
        list.split(',').map(id).collect::<Result<Vec<u32>, Failure>>()
    });
    let texts = args.prompt.iter().map(|text| {
        let tokenizer = tokenizer.ok_or_else(|| Failure::fault("a text prompt without a tokenizer"))?;
        Ok(tokenizer.encode(text, true)?)
    });
    let prompts = ids.chain(texts).collect::<Result<Vec<_>, Failure>>()?;
    match prompts.iter().position(Vec::is_empty) {
        Some(empty) => Err(Failure::refused(format!("prompt {empty} holds no token; give at least one"))),
        None => Ok(prompts),
    }
}

pub(super) fn roster(args: &Args) -> Result<Vec<Key>, Failure> {
    let Some(path) = &args.roster else { return Ok(Vec::new()) };
    let text =
        std::fs::read_to_string(path).map_err(|e| Failure::refused(format!("roster {}: {e}", path.display())))?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let digits = line.is_ascii().then(|| line.as_bytes().chunks(2)).filter(|_| line.len() == 64);
            let bytes: Option<Vec<u8>> = digits
                .and_then(|digits| digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok()).collect());
            bytes.and_then(|bytes| Key::try_from(bytes).ok()).ok_or_else(|| {
                let what = format!("roster {}, line {}: a key has 64 hexadecimal digits", path.display(), number + 1);
                Failure::refused(what)
            })
        })
        .collect()
}

pub(super) fn record(
    args: &Args,
    model: &Model,
    program: &Program,
    room: Room,
    asks: &[Ask],
) -> Result<Option<Recorder<BufWriter<std::fs::File>>>, Failure> {
    let Some(path) = &args.record else { return Ok(None) };
    let header = Header {
        wordline_record: FORMAT,
        model: args.model.model.clone(),
        index: model.checkpoint.weights.index_digest(),
        spec: program.identity.spec.clone(),
        numerics: program.identity.numerics,
        ctx: room.ctx,
        step_rows: room.step_rows,
        stateless: args.stateless,
        answers: asks.iter().map(Asked::of).collect(),
    };
    let file = std::fs::File::create(path).and_then(|file| Recorder::new(BufWriter::new(file), &header));
    file.map(Some).map_err(|e| Failure::refused(format!("record {}: {e}", path.display())))
}

/// What a lap may take: what is asked for, and ten times what the slowest thinkable share of the model takes on this device.
pub(super) fn lap_limit(args: &Args, program: &Program, capacity: f64, room: Room) -> Duration {
    let macs: u64 = program.tensors.iter().map(|t| (t.rows * t.cols) as u64).sum();
    let rows = f64::from(room.step_rows * room.sequences.min(64));
    let seconds = 10.0 * rows * macs as f64 / MACS as f64 / capacity.max(1e-3);
    Duration::from_secs_f64((args.lap_timeout.max(0.1) + seconds.min(3600.0)).min(1e6))
}
