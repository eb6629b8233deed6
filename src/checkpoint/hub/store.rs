//! `Store`: our cache of what was fetched, a folder for each model and commit.
//!
//! ```text
//! HOST/OWNER--NAME/refs/REVISION          the commit that a branch was when it was last asked for
//! HOST/OWNER--NAME/COMMIT/FILE.spans      the file's bytes, with holes
//! HOST/OWNER--NAME/COMMIT/FILE.journal    what of them is there (see `spans`)
//! HOST/OWNER--NAME/COMMIT/FILE.lock       held by the process that fetches
//! HOST/OWNER--NAME/COMMIT/FILE.absent     the commit has no such file
//! HOST/OWNER--NAME/COMMIT/use             held, shared, by every process that has the commit open; its time is the last use
//! HOST/OWNER--NAME/COMMIT/room            held, shared, by every process that fetches under a limit
//! HOST/OWNER--NAME/COMMIT/room.bytes      what the commit will hold when they have done so
//! lock                                    held while a commit's folder is entered or removed, or room is made
//! ```
//!
//! A commit's content never changes, so nothing here grows old. When a limit is given, the commits that were not used for
//! the longest time go first; one that a process has open stays.

use super::error::HubError;
use super::id::{Commit, FileName, RepoId, Revision};
use super::spans::{SpanFile, journal_bytes, unwritable, with};
use crate::image_cache::ImageCache;
use reqwest::Url;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Our cache.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// One commit's folder, held open against removal.
#[derive(Debug)]
pub(super) struct Shelf {
    folder: PathBuf,
    /// Locked, shared, as long as this lives; nothing where the cache cannot be written to and the commit is not in it.
    held: Option<File>,
    /// Files can be kept here.
    kept: bool,
}

/// One model at one commit, as [`Store::list`] finds it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Entry {
    /// Whose.
    pub host: String,
    /// `owner/name`.
    pub model: String,
    /// The commit.
    pub commit: String,
    /// Its files.
    pub files: Vec<FileEntry>,
    /// Bytes held of all files.
    pub bytes: u64,
    /// When it was last opened, in seconds since 1970.
    pub last_used: u64,
    #[serde(skip)]
    folder: PathBuf,
}

/// One file of an entry.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FileEntry {
    /// Its name.
    pub file: String,
    /// Its length.
    pub size: u64,
    /// Bytes held.
    pub held: u64,
}

/// A span that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

fn disk(path: &Path) -> impl Fn(io::Error) -> HubError {
    let path = path.display().to_string();
    move |source| HubError::Disk { path: path.clone(), source }
}

fn open_lock(path: &Path) -> Result<File, HubError> {
    if path.is_symlink() {
        let reason = "a link, which is not followed; it is none of ours";
        return Err(disk(path)(io::Error::new(io::ErrorKind::InvalidInput, reason)));
    }
    OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(disk(path))
}

/// Write a small file in place of whatever has its name: a link is replaced, and what it leads to is not written over.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

impl Store {
    /// The cache in a directory, which is made when the first byte is kept.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The user's cache, by this process's environment; `None` when that names no place for one.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        let env = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self::folder_by(&env).map(Self::new)
    }

    /// Where the user's cache is by an environment that is given by a look-up.
    #[must_use]
    pub fn folder_by(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        ImageCache::folder_by(env).map(|folder| folder.join("hub"))
    }

    /// Where it is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn repo(&self, endpoint: &Url, repo: &RepoId) -> PathBuf {
        // Colons of addresses and ports are no part of a name on every system.
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
        let host: String = endpoint.host_str().unwrap_or("nowhere").chars().map(plain).collect();
        let port = endpoint.port().map(|port| format!("_{port}")).unwrap_or_default();
        let path: String = endpoint.path().trim_matches('/').chars().map(plain).collect();
        let path = if path.is_empty() { path } else { format!("_{path}") };
        self.root.join(format!("{host}{port}{path}")).join(repo.folder())
    }

    /// Enter a commit's folder, made if need be. Where nobody may write, what is there can be read.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn shelf(&self, endpoint: &Url, repo: &RepoId, commit: &Commit) -> Result<Shelf, HubError> {
        let folder = self.repo(endpoint, repo).join(commit.as_str());
        match self.enter(&folder) {
            Ok(held) => Ok(Shelf { folder, held: Some(held), kept: true }),
            Err(HubError::Disk { source, .. }) if unwritable(&source) => {
                let held = File::open(folder.join(USE)).ok().filter(|held| held.try_lock_shared().is_ok());
                Ok(Shelf { folder, held, kept: false })
            }
            Err(error) => Err(error),
        }
    }

    fn enter(&self, folder: &Path) -> Result<File, HubError> {
        fs::create_dir_all(&self.root).map_err(disk(&self.root))?;
        let door = self.door()?;
        fs::create_dir_all(folder).map_err(disk(folder))?;
        let path = folder.join(USE);
        let held = open_lock(&path)?;
        held.lock_shared().map_err(disk(&path))?;
        // A time that cannot be set costs the order of eviction, no more.
        let _ = held.set_modified(SystemTime::now());
        drop(door);
        Ok(held)
    }

    /// The commit that a revision was when it was last asked for, and when that was.
    pub(super) fn read_ref(&self, endpoint: &Url, repo: &RepoId, revision: &Revision) -> Option<(Commit, SystemTime)> {
        noted(&self.repo(endpoint, repo).join(REFS).join(revision.file()))
    }

    /// Note which commit a revision is.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn write_ref(
        &self,
        endpoint: &Url,
        repo: &RepoId,
        revision: &Revision,
        commit: &Commit,
    ) -> Result<(), HubError> {
        let folder = self.repo(endpoint, repo).join(REFS);
        let path = folder.join(revision.file());
        if noted(&path).is_some_and(|(known, _)| known == *commit) {
            // A time that cannot be set makes it look older than it is, no more.
            let file = OpenOptions::new().append(true).open(&path);
            let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
            return Ok(());
        }
        // A name of its own for every writer: threads of one process too may learn the same at the same time.
        static WRITERS: AtomicU64 = AtomicU64::new(0);
        let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
        let unfinished = folder.join(format!("{}.{}-{writer}", revision.file(), std::process::id()));
        fs::create_dir_all(&folder).map_err(disk(&folder))?;
        write_new(&unfinished, commit.as_str()).map_err(disk(&unfinished))?;
        fs::rename(&unfinished, &path).map_err(disk(&path))
    }

    /// Held while a commit's folder is entered or removed.
    fn door(&self) -> Result<File, HubError> {
        let path = self.root.join("lock");
        let door = open_lock(&path)?;
        door.lock().map_err(disk(&path))?;
        Ok(door)
    }

    /// Every model and commit in the cache, the one that was not used for the longest time first.
    #[must_use]
    pub fn list(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (host, host_folder) in folders(&self.root) {
            for (repo, repo_folder) in folders(&host_folder) {
                for (commit, folder) in folders(&repo_folder).into_iter().filter(|(name, _)| name != REFS) {
                    if commit.parse::<Commit>().is_err() {
                        continue;
                    }
                    let files = files(&folder);
                    let used = fs::metadata(folder.join(USE)).and_then(|data| data.modified()).ok();
                    let last_used = used.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
                    entries.push(Entry {
                        host: host.clone(),
                        model: repo.replacen("--", "/", 1),
                        commit,
                        bytes: files.iter().map(|file| file.held).sum(),
                        files,
                        last_used: last_used.map_or(0, |time| time.as_secs()),
                        folder,
                    });
                }
            }
        }
        entries.sort_by(|a, b| (a.last_used, &a.folder).cmp(&(b.last_used, &b.folder)));
        entries
    }

    /// Remove an entry; false when a process has it open.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn remove(&self, entry: &Entry) -> Result<bool, HubError> {
        let door = self.door()?;
        Self::remove_behind(&door, entry)
    }

    /// Remove an entry while `door` is held, so that nobody enters meanwhile.
    fn remove_behind(_door: &File, entry: &Entry) -> Result<bool, HubError> {
        let held = open_lock(&entry.folder.join(USE));
        if held.as_ref().is_ok_and(|held| held.try_lock().is_err()) {
            return Ok(false);
        }
        // Journals first: data without one is nothing.
        for file in &entry.files {
            let _ = fs::remove_file(with(&entry.folder.join(&file.file), "journal"));
        }
        drop(held);
        fs::remove_dir_all(&entry.folder).map_err(disk(&entry.folder))?;
        // Folders that are empty now go too; others stay.
        let refs = entry.folder.parent().map(|repo| repo.join(REFS));
        if let Some(repo) = entry.folder.parent()
            && folders(repo).iter().all(|(name, _)| name == REFS)
        {
            let _ = refs.map(fs::remove_dir_all);
            let _ = fs::remove_dir(repo);
            let _ = repo.parent().map(fs::remove_dir);
        }
        Ok(true)
    }

    /// Compare every span of an entry with its digest. What differs is forgotten by the next line written, and fetched
    /// again when it is needed.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn verify(&self, entry: &Entry) -> Result<Vec<Damage>, HubError> {
        let mut damage = Vec::new();
        for file in &entry.files {
            let spans = match SpanFile::open(&entry.folder.join(&file.file)) {
                Ok(Some(spans)) => spans,
                Ok(None) => continue,
                // Another process removed it meanwhile.
                Err(HubError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let bad = spans.check(&(0..spans.version().size));
            damage.extend(bad.into_iter().map(|r| Damage { file: file.file.clone(), start: r.start, end: r.end }));
        }
        Ok(damage)
    }

    /// Make room for `needed` bytes of the commit in `shelf` under a limit. The room is kept as long as the file that is
    /// returned: others that make room meanwhile count what is still on its way.
    ///
    /// # Errors
    /// [`HubError::CacheLimit`]: what is in use leaves too little room; or the operating system refuses.
    pub(super) fn make_room(&self, shelf: &Shelf, model: &RepoId, needed: u64, limit: u64) -> Result<File, HubError> {
        let door = self.door()?;
        let claimed = |entry: Entry| (entry.claimed(), entry);
        let (own, others): (Vec<_>, Vec<_>) =
            self.list().into_iter().map(claimed).partition(|(_, entry)| entry.folder == shelf.folder);
        let sum = |claims: &mut dyn Iterator<Item = u64>| claims.fold(0, u64::saturating_add);
        let own = sum(&mut own.iter().map(|(bytes, _)| *bytes)).saturating_add(needed);
        // What cannot be made to fit evicts nothing.
        let staying = sum(&mut others.iter().filter(|(_, entry)| entry.in_use()).map(|(bytes, _)| *bytes));
        let too_much = |held: u64| HubError::CacheLimit { model: model.to_string(), needed, held, limit };
        if own.saturating_add(staying) > limit {
            return Err(too_much((own - needed).saturating_add(staying)));
        }
        let mut held = sum(&mut others.iter().map(|(bytes, _)| *bytes));
        for (bytes, entry) in &others {
            if own.saturating_add(held) <= limit {
                break;
            }
            if Self::remove_behind(&door, entry)? {
                held -= bytes;
            }
        }
        if own.saturating_add(held) > limit {
            return Err(too_much((own - needed).saturating_add(held)));
        }
        let path = shelf.folder.join(ROOM);
        let bytes = shelf.folder.join(ROOM_BYTES);
        write_new(&bytes, &own.to_string()).map_err(disk(&bytes))?;
        let room = open_lock(&path)?;
        room.lock_shared().map_err(disk(&path))?;
        Ok(room)
    }
}

impl Entry {
    /// A process has it open.
    fn in_use(&self) -> bool {
        is_locked(&self.folder.join(USE))
    }

    /// The bytes that it holds, or will hold once those who fetch now have done so.
    fn claimed(&self) -> u64 {
        let coming = is_locked(&self.folder.join(ROOM)).then(|| fs::read_to_string(self.folder.join(ROOM_BYTES)));
        coming.and_then(|text| text.ok()?.parse().ok()).unwrap_or(0).max(self.bytes)
    }
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|held| held.try_lock().is_err())
}

const USE: &str = "use";
const ROOM: &str = "room";
const ROOM_BYTES: &str = "room.bytes";
const REFS: &str = "refs";

impl Shelf {
    /// What a file's data, journal and lock are named after.
    pub(super) fn stem(&self, file: &FileName) -> PathBuf {
        self.folder.join(file.as_str())
    }

    /// The commit is known to have no such file.
    pub(super) fn lacks(&self, file: &FileName) -> bool {
        with(&self.stem(file), "absent").symlink_metadata().is_ok_and(|data| data.is_file())
    }

    /// Note that the commit has no such file.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn note_absent(&self, file: &FileName) -> Result<(), HubError> {
        let path = with(&self.stem(file), "absent");
        let made = match OpenOptions::new().write(true).create_new(true).open(&path) {
            // Another process has noted it meanwhile; what is no file is in the way.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.lacks(file) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => write_new(&path, ""),
            made => made.map(drop),
        };
        made.map_err(disk(&path))
    }

    /// Files can be kept here.
    pub(super) fn is_kept(&self) -> bool {
        self.kept && self.held.is_some()
    }

    /// Take the lock under which a file is made or written to; none where nobody writes. `waiting` is called when another
    /// process has it.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn lock(&self, file: &FileName, waiting: impl FnOnce()) -> Result<Option<File>, HubError> {
        if !self.is_kept() {
            return Ok(None);
        }
        let path = with(&self.stem(file), "lock");
        let lock = open_lock(&path)?;
        if lock.try_lock().is_err() {
            waiting();
            lock.lock().map_err(disk(&path))?;
        }
        Ok(Some(lock))
    }
}

/// The commit in a file, and when it was written there.
pub(super) fn noted(path: &Path) -> Option<(Commit, SystemTime)> {
    let commit = String::from_utf8(super::super::files::read_regular(path, 64).ok()?).ok()?.trim().parse().ok()?;
    Some((commit, fs::metadata(path).ok()?.modified().ok()?))
}

/// The directories in a directory, by name.
fn folders(path: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    found.sort();
    found
}

fn files(folder: &Path) -> Vec<FileEntry> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut files: Vec<_> = names
        .filter_map(|name| {
            let file = name.strip_suffix(".journal")?.to_owned();
            let (version, held) = journal_bytes(&folder.join(&file))?;
            Some(FileEntry { file, size: version.size, held })
        })
        .collect();
    files.sort_by(|a, b| a.file.cmp(&b.file));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_note_at_once_that_a_file_is_absent() {
        let root = tempfile::tempdir().unwrap();
        let file: FileName = "chat_template.jinja".parse().unwrap();
        let shelf = || Shelf { folder: root.path().to_owned(), held: None, kept: true };
        for _ in 0..200 {
            std::thread::scope(|scope| {
                for noted in [(); 4].map(|()| scope.spawn(|| shelf().note_absent(&file))) {
                    noted.join().unwrap().unwrap();
                }
            });
            assert!(shelf().lacks(&file));
            fs::remove_file(root.path().join("chat_template.jinja.absent")).unwrap();
        }
    }
}
