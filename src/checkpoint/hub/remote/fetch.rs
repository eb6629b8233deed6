//! What brings ranges of files here: which bytes are missing, one request a run of them, several at once.

use super::super::error::HubError;
use super::super::ranges::{RangeSet, pieces, runs};
use super::{RemoteFile, Repo};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Times that bytes are fetched again because they do not read back as they were written.
const REPAIRS: usize = 3;

/// What a fetch did for one file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Fetched {
    /// The file.
    pub file: String,
    /// Bytes that were wanted.
    pub wanted: u64,
    /// Bytes of those that were here already.
    pub cached: u64,
    /// Bytes that moved: those that were missing, and gaps that were read along.
    pub bytes: u64,
    /// HTTP requests sent.
    pub requests: u64,
}

impl Repo {
    /// Bring ranges of files here: compare what the cache holds with its digests, and fetch what is missing, one request
    /// a run of contiguous bytes, gaps bridged within [`crate::checkpoint::hub::Limits::bridge`], runs longer than
    /// [`crate::checkpoint::hub::Limits::piece`] in several requests. `progress(done, total)` counts bytes that move.
    ///
    /// Bytes that came stay when the fetch fails, or the process ends, halfway.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn fetch(
        wanted: &[(&RemoteFile, RangeSet)],
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Vec<Fetched>, HubError> {
        let mut wanted: Vec<_> = wanted.iter().collect();
        // One order for all processes, so that none waits for another in a circle.
        wanted.sort_by(|a, b| (&a.0.repo.id, &a.0.name).cmp(&(&b.0.repo.id, &b.0.name)));
        let before: Vec<_> = wanted.iter().map(|(file, _)| (file.meter.bytes(), file.meter.requests())).collect();
        let mut cached = Vec::new();
        for (file, set) in &wanted {
            set.iter().for_each(|range| file.repo.damaged(&file.name, &file.spans.check(&range)));
            cached.push(set.bytes() - file.spans.missing(set).bytes());
        }
        for round in 0.. {
            let lacking: Vec<_> = wanted.iter().filter(|(file, set)| !file.missing(set).is_empty()).copied().collect();
            if lacking.is_empty() {
                break;
            }
            if round == REPAIRS {
                let (file, set) = lacking[0];
                let range = file.missing(set).iter().next().unwrap_or_default();
                let file = file.repo.label(file.name.as_str());
                return Err(HubError::Unsound { file, start: range.start, end: range.end });
            }
            fetch_missing(&lacking, progress)?;
            // What another process brought is compared before it is believed; what came just now has been.
            for (file, set) in &wanted {
                set.iter().for_each(|range| file.repo.damaged(&file.name, &file.spans.check(&range)));
            }
        }
        let done = wanted.iter().zip(before).zip(cached).map(|(((file, set), before), cached)| Fetched {
            file: file.name.to_string(),
            wanted: set.bytes(),
            cached,
            bytes: file.meter.bytes() - before.0,
            requests: file.meter.requests() - before.1,
        });
        Ok(done.collect())
    }
}

impl RemoteFile {
    /// Wanted bytes that are not here.
    fn missing(&self, wanted: &RangeSet) -> RangeSet {
        self.spans.missing(wanted)
    }
}

/// A range of one file, and the file.
struct Job<'a> {
    file: &'a RemoteFile,
    range: Range<u64>,
}

fn fetch_missing(wanted: &[&(&RemoteFile, RangeSet)], progress: &(dyn Fn(u64, u64) + Sync)) -> Result<(), HubError> {
    let mut locks = Vec::new();
    let mut jobs = Vec::new();
    for (file, set) in wanted.iter().copied() {
        let gate = file.gate.lock().unwrap_or_else(PoisonError::into_inner);
        locks.push((gate, file.repo.lock(&file.name)?));
        // Whoever had the lock may have brought them.
        file.spans.reload()?;
        let end = set.iter().last().map_or(0, |range| range.end);
        if end > file.len() {
            let (label, size) = (file.repo.label(file.name.as_str()), file.len());
            return Err(HubError::ContentRange { file: label, asked: (size, end), given: format!("bytes */{size}") });
        }
        let limits = &file.repo.hub.settings.limits;
        let runs = runs(&file.missing(set), &file.spans.held(), limits.bridge);
        jobs.extend(pieces(&runs, limits.piece).into_iter().map(|range| Job { file, range }));
    }
    let Some(Job { file: RemoteFile { repo, .. }, .. }) = jobs.first() else { return Ok(()) };
    let total: u64 = jobs.iter().map(|job| job.range.end - job.range.start).sum();
    if repo.hub.settings.offline {
        return Err(repo.offline(&format!("{}: {total} bytes of {}", repo.id, jobs[0].file.name)));
    }
    let room = repo.make_room(total)?;
    let (next, stop, failed) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let done = AtomicU64::new(0);
    let moved = |bytes: u64| progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
    moved(0);
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = job.run(&stop, &moved) {
                stop.store(true, Ordering::Relaxed);
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                // The first failure is the reason; the others stopped because of it.
                failed.get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        let others = repo.hub.settings.limits.parallel.clamp(1, jobs.len()) - 1;
        (0..others).for_each(|_| _ = scope.spawn(work));
        work();
    });
    drop((room, locks));
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

impl Job<'_> {
    /// Fetch the range and keep it, span by span.
    fn run(&self, stop: &AtomicBool, moved: &(dyn Fn(u64) + Sync)) -> Result<(), HubError> {
        if stop.load(Ordering::Relaxed) {
            return Err(HubError::Stopped);
        }
        let RemoteFile { repo, name, spans, meter, gate: _ } = self.file;
        let meters = [&repo.hub.meter, &repo.meter, meter];
        let size = repo.hub.settings.limits.span.max(1);
        let mut at = self.range.start;
        let mut pending = Vec::with_capacity(size.min((self.range.end - self.range.start) as usize));
        let result =
            repo.hub.client.range(repo.place(name, &meters), self.range.clone(), spans.version(), &mut |mut piece| {
                if stop.load(Ordering::Relaxed) {
                    return Err(HubError::Stopped);
                }
                moved(piece.len() as u64);
                while !piece.is_empty() {
                    let (now, later) = piece.split_at(piece.len().min(size - pending.len()));
                    pending.extend_from_slice(now);
                    piece = later;
                    if pending.len() == size {
                        spans.write(at, &pending)?;
                        at += size as u64;
                        pending.clear();
                    }
                }
                Ok(())
            });
        // What came before a failure is as good as what came without one.
        let kept = spans.write(at, &pending);
        result.and(kept)
    }
}
