//! `wordline cache`: what was fetched from the Hub, and the weight images: listed, checked, removed.

use super::args::JsonArg;
use super::failure::Failure;
use super::out;
use crate::checkpoint::hub::store::{Damage, Entry};
use crate::checkpoint::hub::{HubError, ModelId, Store};
use crate::image_cache::ImageCache;
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The cache lies in WORDLINE_CACHE, else in wordline under XDG_CACHE_HOME or ~/.cache. The standard \
                        Hub cache (HF_HOME) is read and never changed."
)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List what is cached
    List {
        #[command(flatten)]
        json: JsonArg,
    },
    /// Compare fetched bytes with their digests; exit code 1 when some differ (they are fetched again when needed)
    Verify {
        /// owner/name or owner/name@commit [default: everything]
        #[arg(value_name = "MODEL")]
        model: Option<String>,
        #[command(flatten)]
        json: JsonArg,
    },
    /// Remove what was fetched; models in use stay
    Clean {
        /// owner/name or owner/name@commit [default: everything]
        #[arg(value_name = "MODEL")]
        model: Option<String>,
        /// Remove the weight images too; they are built again when needed
        #[arg(long)]
        images: bool,
        #[command(flatten)]
        json: JsonArg,
    },
}

#[derive(Serialize)]
struct Listing {
    folder: String,
    models: Vec<Entry>,
    images: Images,
    bytes: u64,
}

#[derive(Serialize)]
struct Images {
    count: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Verdict {
    ok: bool,
    models: Vec<Checked>,
}

#[derive(Serialize)]
struct Checked {
    model: String,
    commit: String,
    bytes: u64,
    damaged: Vec<Damage>,
}

#[derive(Serialize)]
struct Cleaned {
    removed_bytes: u64,
    models: usize,
    in_use: usize,
    images: usize,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let images = ImageCache::of_user().ok_or(HubError::NoCache)?;
    // The place alone: a token that cannot be used is no reason to keep what is to be removed.
    let store = Store::of_user().ok_or(HubError::NoCache)?;
    match &args.action {
        Action::List { json } => list(&store, &images, json.json),
        Action::Verify { model, json } => verify(&store, &chosen(&store, model.as_deref())?, json.json),
        Action::Clean { model, images: too, json } => {
            clean(&store, &chosen(&store, model.as_deref())?, too.then_some(&images), json.json)
        }
    }
}

/// The entries that a MODEL means; all when none is given.
fn chosen(store: &Store, model: Option<&str>) -> Result<Vec<Entry>, Failure> {
    let mut entries = store.list();
    let Some(model) = model else { return Ok(entries) };
    let ModelId { repo, revision } = model.parse().map_err(HubError::from)?;
    let commit = match (revision.commit(), model.contains('@')) {
        (None, true) => {
            return Err(Failure::refused(format!(
                "{model}: name a full commit after '@'; `wordline cache list` has them"
            )));
        }
        (commit, _) => commit,
    };
    entries.retain(|e| e.model == repo.as_str() && commit.as_ref().is_none_or(|commit| e.commit == commit.as_str()));
    Ok(entries)
}

fn list(store: &Store, images: &ImageCache, json: bool) -> Result<(), Failure> {
    let (models, built) = (store.list(), images.list());
    let images = Images { count: built.len(), bytes: built.iter().map(|(_, bytes)| bytes).sum() };
    let bytes = models.iter().map(|entry| entry.bytes).sum::<u64>() + images.bytes;
    if json {
        return out::json(&Listing { folder: store.root().display().to_string(), models, images, bytes });
    }
    for entry in &models {
        out::line(format_args!("{}@{}: {} bytes", entry.model, entry.commit, entry.bytes))?;
        for file in &entry.files {
            out::line(format_args!("  {}: {} of {} bytes", file.file, file.held, file.size))?;
        }
    }
    out::line(format_args!("{} weight images: {} bytes", images.count, images.bytes))?;
    out::line(format_args!("{bytes} bytes in all, in {}", store.root().display()))
}

fn verify(store: &Store, entries: &[Entry], json: bool) -> Result<(), Failure> {
    let mut models = Vec::new();
    for entry in entries {
        let (model, commit) = (entry.model.clone(), entry.commit.clone());
        models.push(Checked { model, commit, bytes: entry.bytes, damaged: store.verify(entry)? });
    }
    let verdict = Verdict { ok: models.iter().all(|m| m.damaged.is_empty()), models };
    if json {
        out::json(&verdict)?;
    } else {
        for m in &verdict.models {
            let bad = m.damaged.len();
            let text = if bad == 0 {
                "as fetched".to_owned()
            } else {
                format!("{bad} spans DAMAGED; they are fetched again when needed")
            };
            out::line(format_args!("{}@{}: {} bytes, {text}", m.model, m.commit, m.bytes))?;
            for Damage { file, start, end } in &m.damaged {
                out::line(format_args!("  {file}: bytes {start}..{end}"))?;
            }
        }
    }
    if verdict.ok { Ok(()) } else { Err(Failure::check()) }
}

fn clean(store: &Store, entries: &[Entry], images: Option<&ImageCache>, json: bool) -> Result<(), Failure> {
    let mut cleaned = Cleaned { removed_bytes: 0, models: 0, in_use: 0, images: 0 };
    for entry in entries {
        if store.remove(entry)? {
            cleaned.models += 1;
            cleaned.removed_bytes += entry.bytes;
        } else {
            cleaned.in_use += 1;
            out::note(format_args!("note: {}@{} is in use and stays", entry.model, entry.commit));
        }
    }
    if let Some(images) = images {
        let built = images.list();
        images.clean().map_err(|e| Failure::refused(format!("a weight image cannot be removed: {e}")))?;
        cleaned.images = built.len();
        cleaned.removed_bytes += built.iter().map(|(_, bytes)| bytes).sum::<u64>();
    }
    if json {
        return out::json(&cleaned);
    }
    let Cleaned { removed_bytes, models, images, .. } = cleaned;
    out::line(format_args!("removed {removed_bytes} bytes: {models} models, {images} weight images"))
}
