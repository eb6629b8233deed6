//! `Repo`: one model at one commit, its files read from the caches or fetched from the Hub.

mod fetch;

pub use fetch::Fetched;

use super::super::files::{TEXT_CAP, read_regular};
use super::client::{Client, Found, Meter, Place, Version, Whole};
use super::error::HubError;
use super::id::{Commit, FileName, ModelId, RepoId, Revision};
use super::settings::Settings;
use super::snapshot::Snapshot;
use super::spans::SpanFile;
use super::store::{Shelf, Store};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The file that a revision is resolved by, which every model has.
const CONFIG: &str = "config.json";
/// Bytes of a weight file that are read first: the length of its header.
const FIRST: u64 = 8;

/// A way to the Hub.
pub struct Hub {
    settings: Settings,
    client: Client,
    store: Store,
    meter: Meter,
}

/// One model at one commit. Its counters say what opening and reading it has cost.
pub struct Repo {
    hub: Arc<Hub>,
    id: RepoId,
    /// The commit as a revision, which every request after the first names.
    pinned: Revision,
    commit: Commit,
    shelf: Shelf,
    snapshot: Option<Snapshot>,
    meter: Meter,
    files: Mutex<HashMap<FileName, Known>>,
    /// A file was taken as absent because nobody could be asked, and that has been said.
    guessed: AtomicBool,
}

/// What is known of a file. A file that is read holds its repo, so the repo does not hold the file.
enum Known {
    Absent,
    Snapshot { path: PathBuf },
    Remote(Weak<RemoteFile>),
}

/// Where a file's bytes are.
#[derive(Clone, Debug)]
pub enum Source {
    /// Whole, in the standard Hub cache.
    Snapshot {
        /// Where.
        path: PathBuf,
    },
    /// In our cache as far as they were fetched.
    Remote(Arc<RemoteFile>),
}

/// A file of a [`Repo`] whose bytes are fetched as they are asked for.
pub struct RemoteFile {
    repo: Arc<Repo>,
    name: FileName,
    spans: SpanFile,
    meter: Meter,
    /// Held by the thread of this process that fetches; other processes see the lock of the cache.
    gate: Mutex<()>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl fmt::Debug for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repo").field("id", &self.id).field("commit", &self.commit).finish_non_exhaustive()
    }
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile").field("name", &self.name).field("size", &self.len()).finish_non_exhaustive()
    }
}

impl Hub {
    /// A way to the Hub by these settings. No request is made.
    ///
    /// # Errors
    /// There is no directory for a cache, or the HTTP client cannot be made.
    pub fn new(mut settings: Settings) -> Result<Arc<Self>, HubError> {
        let store = Store::new(settings.spans.clone().ok_or(HubError::NoCache)?);
        let token = settings.token.take();
        let client = Client::new(&settings, token)?;
        Ok(Arc::new(Self { settings, client, store, meter: Meter::default() }))
    }

    /// A way to the Hub as this process's environment says.
    ///
    /// # Errors
    /// See [`Settings::from_env`] and [`Hub::new`].
    pub fn from_env() -> Result<Arc<Self>, HubError> {
        Self::new(Settings::from_env()?)
    }

    /// The cache of fetched bytes.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What all models opened through this have cost.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Open a model: resolve its revision to a commit, which holds from then on. One request, and none when the revision
    /// is a commit or the network may not be used.
    ///
    /// # Errors
    /// See [`HubError`]. When the Hub does not answer, the commit that the revision was last time is taken, with a remark.
    pub fn open(self: &Arc<Self>, model: &ModelId) -> Result<Arc<Repo>, HubError> {
        let ModelId { repo: id, revision } = model;
        let meter = Meter::default();
        let (commit, config) = match revision.commit() {
            Some(commit) => (commit, None),
            None if self.settings.offline => {
                let what = || format!("{id}: which commit revision '{revision}' is");
                let unknown = || HubError::Offline { what: what(), model: model.to_string() };
                (self.last_commit(id, revision).ok_or_else(unknown)?, None)
            }
            None => match self.resolve(id, revision, &meter) {
                Ok((commit, config)) => (commit, Some(config)),
                Err(error) if error.is_outage() => {
                    let Some(commit) = self.last_commit(id, revision) else { return Err(error) };
                    self.remark(&format!(
                        "{error}; commit {commit} of the cache is used, which '{revision}' was last time"
                    ));
                    (commit, None)
                }
                Err(error) => return Err(error),
            },
        };
        let shelf = self.store.shelf(&self.settings.endpoint, id, &commit)?;
        let snapshot = self.settings.snapshots.as_ref().map(|root| Snapshot::new(root, id, &commit));
        let files = Mutex::default();
        let pinned = Revision::from(&commit);
        let (hub, id, guessed) = (Arc::clone(self), id.clone(), AtomicBool::new(false));
        let repo = Arc::new(Repo { hub, id, pinned, commit, shelf, snapshot, meter, files, guessed });
        if let Some(whole) = config
            && repo.shelf.is_kept()
        {
            self.store.write_ref(&self.settings.endpoint, &repo.id, revision, &repo.commit)?;
            repo.keep_whole(&CONFIG.parse::<FileName>()?, &whole)?;
        }
        Ok(repo)
    }

    /// Ask the Hub which commit a revision is, by its config, which is needed anyway.
    fn resolve(&self, id: &RepoId, revision: &Revision, meter: &Meter) -> Result<(Commit, Whole), HubError> {
        let file = CONFIG.parse::<FileName>()?;
        let meters = [&self.meter, meter];
        let place = Place { repo: id, revision, file: &file, meters: &meters };
        let label = || format!("{id}@{revision}/{file}");
        let mut whole = match self.client.whole(place, TEXT_CAP)? {
            Found::Here(whole) => whole,
            Found::Absent { stated } => return Err(HubError::NoFile { file: label(), stated }),
        };
        let host = || self.settings.endpoint.host_str().unwrap_or_default().to_owned();
        let commit = whole.commit.take().ok_or_else(|| HubError::NoCommit { file: label(), host: host() })?;
        Ok((commit, whole))
    }

    /// The commit that a revision was when it was last asked for, by the Hub's own client or by us.
    fn last_commit(&self, id: &RepoId, revision: &Revision) -> Option<Commit> {
        let ours = self.store.read_ref(&self.settings.endpoint, id, revision);
        let theirs = self.settings.snapshots.as_ref().and_then(|root| Snapshot::read_ref(root, id, revision));
        let latest = [theirs, ours].into_iter().flatten().max_by_key(|(_, noted)| *noted);
        latest.map(|(commit, _)| commit)
    }

    fn remark(&self, text: &str) {
        (self.settings.remarks)(text);
    }
}

impl Repo {
    /// The model.
    #[must_use]
    pub fn id(&self) -> &RepoId {
        &self.id
    }

    /// The commit that all files are of.
    #[must_use]
    pub fn commit(&self) -> &Commit {
        &self.commit
    }

    /// What tells this model at this commit from every other: endpoint, model, commit.
    #[must_use]
    pub fn stamp(&self) -> String {
        format!("{} {} {}", self.hub.settings.endpoint, self.id, self.commit)
    }

    /// What opening and reading this model has cost so far.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// A file's name as messages show it: where the standard cache has a copy, which nobody holds to a digest, the copy's
    /// path, for it is what has to be looked at.
    #[must_use]
    pub fn label(&self, name: &str) -> String {
        let copy = name.parse::<FileName>().ok().and_then(|name| self.in_snapshot(&name));
        copy.map_or_else(|| format!("{}/{name}", self.id), |path| path.display().to_string())
    }

    /// A text file, whole; `None` when the commit has none of this name.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn read(&self, name: &FileName) -> Result<Option<Vec<u8>>, HubError> {
        if let Some(path) = self.in_snapshot(name) {
            let file = path.display().to_string();
            return match read_regular(&path, TEXT_CAP + 1) {
                Ok(bytes) if bytes.len() as u64 > TEXT_CAP => Err(HubError::TooLong { file, limit: TEXT_CAP }),
                Ok(bytes) => Ok(Some(bytes)),
                Err(source) => Err(HubError::Disk { path: file, source }),
            };
        }
        if let Some(bytes) = self.held_whole(name)? {
            return Ok(Some(bytes));
        }
        if self.lacks(name)? {
            return Ok(None);
        }
        let meters = [&self.hub.meter, &self.meter];
        match self.hub.client.whole(self.place(name, &meters), TEXT_CAP)? {
            Found::Here(whole) => {
                self.keep_whole(name, &whole)?;
                Ok(Some(whole.bytes))
            }
            Found::Absent { stated } => {
                self.note_absent(name, stated)?;
                Ok(None)
            }
        }
    }

    /// A file to be read by ranges; `None` when the commit has none of this name. The first time, unless a cache has it,
    /// one request asks for its first bytes and learns its length.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn file(self: &Arc<Self>, name: &FileName) -> Result<Option<Source>, HubError> {
        if let Some(known) = self.known(name) {
            return Ok(known);
        }
        let found = self.find(name)?;
        // Another thread may have been as quick: what it found is kept, for readers share one file's state.
        if let Some(known) = self.known(name) {
            return Ok(known);
        }
        let known = match &found {
            None => Known::Absent,
            Some(Source::Snapshot { path }) => Known::Snapshot { path: path.clone() },
            Some(Source::Remote(file)) => Known::Remote(Arc::downgrade(file)),
        };
        self.files().insert(name.clone(), known);
        Ok(found)
    }

    fn known(&self, name: &FileName) -> Option<Option<Source>> {
        match self.files().get(name)? {
            Known::Absent => Some(None),
            Known::Snapshot { path } => Some(Some(Source::Snapshot { path: path.clone() })),
            Known::Remote(file) => Some(Some(Source::Remote(file.upgrade()?))),
        }
    }

    fn find(self: &Arc<Self>, name: &FileName) -> Result<Option<Source>, HubError> {
        if let Some(path) = self.in_snapshot(name) {
            return Ok(Some(Source::Snapshot { path }));
        }
        let remote = |spans| {
            let (repo, name, meter, gate) = (Arc::clone(self), name.clone(), Meter::default(), Mutex::default());
            Some(Source::Remote(Arc::new(RemoteFile { repo, name, spans, meter, gate })))
        };
        let stem = self.shelf.stem(name);
        let _lock = self.lock(name)?;
        if let Some(spans) = SpanFile::open(&stem)? {
            return Ok(remote(spans));
        }
        if self.lacks(name)? {
            return Ok(None);
        }
        let meters = [&self.hub.meter, &self.meter];
        let (bytes, version) = match self.hub.client.first(self.place(name, &meters), FIRST)? {
            Found::Here(first) => first,
            Found::Absent { stated } => {
                self.note_absent(name, stated)?;
                return Ok(None);
            }
        };
        let spans = SpanFile::create(&stem, version)?;
        spans.write(0, &bytes)?;
        Ok(remote(spans))
    }

    /// True when a file is known to be absent without asking the Hub.
    fn lacks(&self, name: &FileName) -> Result<bool, HubError> {
        if self.shelf.lacks(name) || self.snapshot.as_ref().is_some_and(|snapshot| snapshot.lacks(name)) {
            return Ok(true);
        }
        if !self.hub.settings.offline {
            return Ok(false);
        }
        // A snapshot that was made whole lacks what the commit lacks, but it does not say so, and nobody can be asked.
        if self.snapshot.as_ref().is_some_and(Snapshot::is_there) {
            if !self.guessed.swap(true, Ordering::Relaxed) {
                self.hub.remark(&format!(
                    "{}: HF_HUB_OFFLINE forbids asking the Hub, so files that the copy in the standard cache lacks are \
                     taken as not there, {name} first",
                    self.id
                ));
            }
            return Ok(true);
        }
        Err(self.offline(&format!("{}/{name}", self.id)))
    }

    fn offline(&self, what: &str) -> HubError {
        HubError::Offline { what: what.to_owned(), model: format!("{}@{}", self.id, self.commit) }
    }

    fn in_snapshot(&self, name: &FileName) -> Option<PathBuf> {
        self.snapshot.as_ref()?.file(name)
    }

    /// A whole file out of our cache; `None` when not all of it is there and sound.
    fn held_whole(&self, name: &FileName) -> Result<Option<Vec<u8>>, HubError> {
        let Some(spans) = SpanFile::open(&self.shelf.stem(name))? else { return Ok(None) };
        let all = 0..spans.version().size;
        if all.end > TEXT_CAP || !spans.held().holds(&all) {
            return Ok(None);
        }
        let forgotten = spans.check(&all);
        self.damaged(name, &forgotten);
        Ok(spans.bytes(&all).map(<[u8]>::to_vec))
    }

    /// Keep a text file for later runs, where there is a cache to keep it in and nothing of it can be lacking. A copy that
    /// is whole and sound stays: others may be reading it.
    fn keep_whole(&self, name: &FileName, whole: &Whole) -> Result<(), HubError> {
        let Whole { bytes, etag, proven, .. } = whole;
        if !proven || !self.shelf.is_kept() {
            return Ok(());
        }
        let _lock = self.lock(name)?;
        if self.held_whole(name)?.is_some() {
            return Ok(());
        }
        let _room = self.make_room(bytes.len() as u64)?;
        let spans = SpanFile::create(&self.shelf.stem(name), Version { size: bytes.len() as u64, etag: etag.clone() })?;
        let size = self.hub.settings.limits.span.max(1);
        bytes.chunks(size).enumerate().try_for_each(|(i, piece)| spans.write((i * size) as u64, piece))
    }

    /// Remember that the commit has no such file, once the Hub has said just that.
    fn note_absent(&self, name: &FileName, stated: bool) -> Result<(), HubError> {
        if stated && self.shelf.is_kept() { self.shelf.note_absent(name) } else { Ok(()) }
    }

    fn lock(&self, name: &FileName) -> Result<Option<File>, HubError> {
        self.shelf.lock(name, || {
            self.hub.remark(&format!("{}/{name}: another process is fetching it; waiting for what it brings", self.id));
        })
    }

    /// Room in the cache, kept as long as what is returned; none has to be made where there is no limit.
    fn make_room(&self, needed: u64) -> Result<Option<File>, HubError> {
        let limit = self.hub.settings.cache_limit;
        limit.map(|limit| self.hub.store.make_room(&self.shelf, &self.id, needed, limit)).transpose()
    }

    fn damaged(&self, name: &FileName, spans: &[Range<u64>]) {
        if let Some(first) = spans.first() {
            let (bytes, id) = (spans.iter().map(|span| span.end - span.start).sum::<u64>(), &self.id);
            self.hub.remark(&format!(
                "{id}/{name}: {bytes} bytes of the cache, the first at {}, are not what was written there; they are fetched again",
                first.start
            ));
        }
    }

    fn place<'a>(&'a self, file: &'a FileName, meters: &'a [&'a Meter]) -> Place<'a> {
        Place { repo: &self.id, revision: &self.pinned, file, meters }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<FileName, Known>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteFile {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.spans.version().size
    }

    /// True when it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its etag, when the Hub gave one.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        self.spans.version().etag.as_deref()
    }

    /// Forget what the cache holds of it: what came makes no sense, and another time something else may come.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn forget(&self) -> Result<(), HubError> {
        let _lock = self.repo.lock(&self.name)?;
        SpanFile::remove(&self.repo.shelf.stem(&self.name))
    }

    /// The model that it belongs to.
    #[must_use]
    pub fn repo(&self) -> &Arc<Repo> {
        &self.repo
    }

    /// What reading it has cost, but for the request that found it.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The bytes of a range within the file, fetched if they are not here.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn bytes(&self, range: Range<u64>) -> Result<&[u8], HubError> {
        if let Some(bytes) = self.spans.bytes(&range) {
            return Ok(bytes);
        }
        Repo::fetch(&[(self, std::iter::once(range.clone()).collect())], &|_, _| {})?;
        let (file, Range { start, end }) = (self.repo.label(self.name.as_str()), range.clone());
        self.spans.bytes(&range).ok_or(HubError::Unsound { file, start, end })
    }
}
