//! `wordline fetch`: brings a model on the Hub, or some of its layers, into the cache.

use super::args::{JsonArg, ModelArg};
use super::failure::Failure;
use super::hub::BytesBar;
use super::out;
use crate::checkpoint::hub::Fetched;
use crate::checkpoint::roles::tensors_of;
use crate::model::{Model, TEXT_FILES};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Only the weights of layers A to B, B left out
    #[arg(long, value_name = "A..B")]
    layers: Option<Layers>,
    /// With --layers: also embedding, positions, final norm and LM head
    #[arg(long, requires = "layers")]
    ends: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// Layers `a..b`.
#[derive(Clone, Debug)]
struct Layers(Range<usize>);

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once("..").and_then(|(a, b)| Some(a.trim().parse().ok()?..b.trim().parse().ok()?));
        match range {
            Some(range) if range.start < range.end => Ok(Self(range)),
            _ => Err(format!("'{text}' must read A..B with A below B, such as 0..12")),
        }
    }
}

/// What `--json` reports.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    commit: Option<&'a str>,
    layers: [usize; 2],
    tensors: usize,
    requests: u64,
    bytes_moved: u64,
    files: BTreeMap<String, File>,
}

/// What was done for one file.
#[derive(Serialize)]
struct File {
    wanted: u64,
    cached: u64,
    bytes: u64,
    requests: u64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let model = args.model.open()?;
    let (spec, weights) = (&model.checkpoint.spec, &model.checkpoint.weights);
    let all = 0..spec.layers.len();
    let layers = args.layers.as_ref().map_or(all.clone(), |Layers(layers)| layers.clone());
    if layers.end > all.end {
        let what = format!("{}: layers {}..{} of a model of {}", args.model.model, layers.start, layers.end, all.end);
        return Err(
            Failure::refused(what).hint(format!("layers are counted from 0; the last range ends at {}", all.end))
        );
    }
    let names = tensors_of(spec, &layers, args.layers.is_none() || args.ends);
    let bar = BytesBar::default();
    let progress = |done, total| bar.show("fetching", done, total, 1);
    let mut files = BTreeMap::new();
    for Fetched { file, wanted, cached, bytes, requests } in
        weights.fetch(names.iter().map(String::as_str), &progress)?
    {
        files.insert(file, File { wanted, cached, bytes, requests });
    }
    if args.layers.is_none() {
        texts(&model, &mut files)?;
    }
    let repo = model.checkpoint.folder.repo();
    let report = Report {
        model: &args.model.model,
        commit: repo.map(|repo| repo.commit().as_str()),
        layers: [layers.start, layers.end],
        tensors: names.len(),
        requests: repo.map_or(0, |repo| repo.meter().requests()),
        bytes_moved: repo.map_or(0, |repo| repo.meter().bytes()),
        files,
    };
    if args.json.json { out::json(&report) } else { print(&report) }
}

/// Bring the text files that commands may want, so that they work without the network.
fn texts(model: &Model, files: &mut BTreeMap<String, File>) -> Result<(), Failure> {
    let Some(repo) = model.checkpoint.folder.repo() else { return Ok(()) };
    for name in TEXT_FILES {
        let (bytes, requests) = (repo.meter().bytes(), repo.meter().requests());
        if let Some(text) = model.file(name)? {
            let (wanted, moved) = (text.len() as u64, repo.meter().bytes() - bytes);
            let requests = repo.meter().requests() - requests;
            files
                .insert(name.to_owned(), File { wanted, cached: wanted.saturating_sub(moved), bytes: moved, requests });
        }
    }
    Ok(())
}

fn print(report: &Report<'_>) -> Result<(), Failure> {
    let Report { model, commit, layers: [first, last], tensors, requests, bytes_moved, files } = report;
    let Some(commit) = commit else {
        return out::line(format_args!("{model}: is here; nothing to fetch"));
    };
    out::line(format_args!("{model}: commit {commit}, layers {first}..{last}, {tensors} tensors"))?;
    for (name, file) in files {
        let File { wanted, cached, bytes, requests } = file;
        out::line(format_args!(
            "  {name}: {wanted} bytes, {cached} of them cached; {bytes} moved in {requests} requests"
        ))?;
    }
    out::line(format_args!("  in all, headers and config included: {bytes_moved} bytes moved in {requests} requests"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_read_as_a_range() {
        assert_eq!("0..12".parse::<Layers>().unwrap().0, 0..12);
        for bad in ["", "3", "3..3", "4..3", "..", "1..", "..2", "a..b", "-1..2", "0..=3", "0..99999999999999999999"] {
            assert!(bad.parse::<Layers>().is_err(), "{bad}");
        }
    }
}
