//! `SpanFile`: the bytes of one remote file that are here, in a sparse file of its full length.
//!
//! Beside the data lies a journal: a line for the file's version, then a line for each span with its SHA-256 and the
//! line's own checksum. Data is written before its line, and no span is believed before its digest has been compared
//! once in this process. So a process may be killed, and a power cut may lose or tear what it likes: what the journal
//! says and the data does not show is fetched again.
//!
//! **Invariant**: bytes leave this file through [`SpanFile::bytes`] alone, which gives none that have not been compared;
//! a hole is never read as zeros.

use super::client::Version;
use super::error::HubError;
use super::ranges::RangeSet;
use memmap2::{MmapOptions, MmapRaw};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use wordline_ir::digest::hex;

/// Longest journal that is read, in bytes.
const JOURNAL: u64 = 1 << 30;

/// The bytes of one remote file that are here.
pub(super) struct SpanFile {
    stem: PathBuf,
    version: Version,
    /// None of an empty file.
    map: Option<MmapRaw>,
    files: Mutex<Files>,
    state: RwLock<State>,
}

struct Files {
    data: File,
    journal: File,
    /// Bytes of the journal that have been read or written.
    read: u64,
}

#[derive(Default)]
struct State {
    /// By first byte: one past the last, and the digest.
    spans: BTreeMap<u64, (u64, [u8; 32])>,
    /// Bytes in spans.
    held: RangeSet,
    /// Bytes whose digest was compared, or that were written, by this process.
    sound: RangeSet,
}

/// The file's data, and its journal.
pub(super) fn paths(stem: &Path) -> [PathBuf; 2] {
    [with(stem, "spans"), with(stem, "journal")]
}

/// `stem.ending`, whatever dots the stem holds.
pub(super) fn with(stem: &Path, ending: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn disk(path: &Path) -> impl FnOnce(io::Error) -> HubError {
    let path = path.display().to_string();
    |source| HubError::Disk { path, source }
}

impl SpanFile {
    /// The file that is there; `None` when there is none, or nothing of it can be believed, or another process is just
    /// putting a new one in its place.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn open(stem: &Path) -> Result<Option<Self>, HubError> {
        let [data, journal] = paths(stem);
        let text = match super::super::files::read_regular(&journal, JOURNAL) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(disk(&journal)(error)),
        };
        let first = text.split_inclusive(|b| *b == b'\n').next().unwrap_or_default();
        // A link is not followed: what it leads to would be written over.
        let ours = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_file());
        let (Some(version), true) = (line(first).and_then(header), ours(&data) && ours(&journal)) else {
            return Ok(None);
        };
        match Self::over(stem, version) {
            Err(HubError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// A new file with nothing in it. What was there before is left to whoever has it open.
    ///
    /// # Errors
    /// The operating system refuses; nothing is left behind then. A server can claim a length that no system can take.
    pub(super) fn create(stem: &Path, version: Version) -> Result<Self, HubError> {
        Self::remove(stem)?;
        Self::begin(stem, version).inspect_err(|_| _ = Self::remove(stem))
    }

    fn begin(stem: &Path, version: Version) -> Result<Self, HubError> {
        let [data, journal] = paths(stem);
        let options = || OpenOptions::new().create_new(true).write(true).to_owned();
        let file = options().open(&data).map_err(disk(&data))?;
        file.set_len(version.size).map_err(disk(&data))?;
        let text = sealed(&format!("spans-1 {} {}", version.size, version.etag.as_deref().unwrap_or("-")));
        let written = options().open(&journal).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(disk(&journal))?;
        Self::over(stem, version)
    }

    /// Remove a file and its journal. Whoever has them open keeps them.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn remove(stem: &Path) -> Result<(), HubError> {
        let [data, journal] = paths(stem);
        // The journal goes first: data without one is nothing.
        for path in [&journal, &data] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(disk(path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn over(stem: &Path, version: Version) -> Result<Self, HubError> {
        let [data_path, journal_path] = paths(stem);
        let data = open(&data_path, OpenOptions::new().read(true).write(true)).map_err(disk(&data_path))?;
        // A file that was cut becomes whole again; what it lost is a hole now, and fails its digest.
        if data.metadata().map_err(disk(&data_path))?.len() != version.size {
            data.set_len(version.size).map_err(disk(&data_path))?;
        }
        let map = match version.size {
            0 => None,
            _ => Some(MmapOptions::new().map_raw_read_only(&data).map_err(disk(&data_path))?),
        };
        let journal = open(&journal_path, OpenOptions::new().read(true).append(true)).map_err(disk(&journal_path))?;
        let files = Mutex::new(Files { data, journal, read: 0 });
        let file = Self { stem: stem.to_owned(), version, map, files, state: RwLock::default() };
        file.reload()?;
        Ok(file)
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// Read what other processes have added to the journal.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn reload(&self) -> Result<(), HubError> {
        let [_, path] = paths(&self.stem);
        let mut files = self.files();
        let mut text = Vec::new();
        let Files { journal, read, .. } = &mut *files;
        journal.seek(SeekFrom::Start(*read)).map_err(disk(&path))?;
        journal.take(JOURNAL).read_to_end(&mut text).map_err(disk(&path))?;
        // A line that is being written is read another time.
        let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        *read += whole as u64;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for text in text[..whole].split_inclusive(|b| *b == b'\n') {
            let Some((range, digest)) = line(text).and_then(span) else { continue };
            // The line of a span that this process wrote, or has compared, brings nothing new.
            let known = state.spans.get(&range.start) == Some(&(range.end, digest));
            if range.end <= self.version.size && !(known && state.sound.holds(&range)) {
                state.add(range, digest, false);
            }
        }
        Ok(())
    }

    /// Bytes of a range, each compared with its digest; `None` where some are not here.
    pub(super) fn bytes(&self, range: &Range<u64>) -> Option<&[u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        if !self.state.read().unwrap_or_else(PoisonError::into_inner).sound.holds(range) {
            return None;
        }
        self.raw(range)
    }

    /// Compare the spans that meet a range with their digests, unless that is done, and forget those that differ.
    /// Returns what was forgotten.
    pub(super) fn check(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let unsure: Vec<(Range<u64>, [u8; 32])> = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            state.meeting(range).filter(|(span, _)| !state.sound.holds(span)).collect()
        };
        let mut forgotten = Vec::new();
        for (span, digest) in unsure {
            let sound = self.digest(&span).is_some_and(|found| found == digest);
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            // Another thread may have replaced the span meanwhile; then this verdict is about nothing.
            if state.spans.get(&span.start) != Some(&(span.end, digest)) || state.sound.holds(&span) {
                continue;
            }
            if sound {
                state.sound.insert(span);
            } else {
                state.forget(&span);
                forgotten.push(span);
            }
        }
        forgotten
    }

    /// The bytes of `wanted` that are not here.
    pub(super) fn missing(&self, wanted: &RangeSet) -> RangeSet {
        wanted.without(&self.state.read().unwrap_or_else(PoisonError::into_inner).held)
    }

    /// What is here.
    pub(super) fn held(&self) -> RangeSet {
        self.state.read().unwrap_or_else(PoisonError::into_inner).held.clone()
    }

    /// Keep bytes from `start` on: the data first, then its line.
    ///
    /// # Errors
    /// The operating system refuses; the bytes are not here then.
    pub(super) fn write(&self, start: u64, bytes: &[u8]) -> Result<(), HubError> {
        let end = start + bytes.len() as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        let [data_path, journal_path] = paths(&self.stem);
        let mut files = self.files();
        files.data.seek(SeekFrom::Start(start)).map_err(disk(&data_path))?;
        files.data.write_all(bytes).map_err(disk(&data_path))?;
        // A line that a killed process left unfinished ends before this one begins.
        let text = format!("\n{}", sealed(&format!("{start} {end} {}", hex(&digest))));
        files.journal.write_all(text.as_bytes()).map_err(disk(&journal_path))?;
        drop(files);
        self.state.write().unwrap_or_else(PoisonError::into_inner).add(start..end, digest, true);
        Ok(())
    }

    /// The digest of a span by plain reads: a hole that a full disk cannot fill is read as zeros, where a map would end
    /// the process by a signal.
    fn digest(&self, span: &Range<u64>) -> Option<[u8; 32]> {
        let mut hasher = Sha256::new();
        let mut piece = vec![0; (1 << 20).min(usize::try_from(span.end - span.start).ok()?)];
        let mut at = span.start;
        while at < span.end {
            let length = piece.len().min((span.end - at) as usize);
            let mut files = self.files();
            files.data.seek(SeekFrom::Start(at)).ok()?;
            files.data.read_exact(&mut piece[..length]).ok()?;
            drop(files);
            hasher.update(&piece[..length]);
            at += length as u64;
        }
        Some(hasher.finalize().into())
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes as they are in the file.
    fn raw(&self, range: &Range<u64>) -> Option<&[u8]> {
        let map = self.map.as_ref()?;
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        if start > end || end > map.len() {
            return None;
        }
        // SAFETY: the range lies in the map, which lives as long as `self`. Only bytes that the journal lists are read,
        // as `u8`, of which any value is valid; this program does not write to bytes that are listed, but for a span
        // that failed its digest, of which no reference was given out. Another program that writes to the file breaks
        // this as it would for any mapped file; what it wrote before the check fails the digest.
        Some(unsafe { std::slice::from_raw_parts(map.as_ptr().add(start), end - start) })
    }
}

/// Open a file as asked, or to read alone where no more is allowed: what is here is of use in a cache that cannot change.
fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    match options.open(path) {
        Err(error) if unwritable(&error) => File::open(path),
        other => other,
    }
}

/// The system lets nobody write here, or not us.
pub(super) fn unwritable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

impl State {
    fn add(&mut self, range: Range<u64>, digest: [u8; 32], sound: bool) {
        // A span that shares bytes with a new one was written over.
        let old: Vec<_> = self.meeting(&range).map(|(span, _)| span).collect();
        old.iter().for_each(|span| self.forget(span));
        self.spans.insert(range.start, (range.end, digest));
        self.held.insert(range.clone());
        if sound {
            self.sound.insert(range);
        }
    }

    fn forget(&mut self, span: &Range<u64>) {
        self.spans.remove(&span.start);
        self.held.remove(span.clone());
        self.sound.remove(span.clone());
    }

    /// The spans that share a byte with a range. Spans are disjoint.
    fn meeting(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, [u8; 32])> {
        let start = range.start;
        self.spans
            .range(..range.end)
            .rev()
            .map(|(&s, &(e, digest))| (s..e, digest))
            .take_while(move |(span, _)| span.end > start)
    }
}

/// A line of the journal: its text and the text's checksum.
fn sealed(text: &str) -> String {
    format!("{text} {}\n", seal(text))
}

fn seal(text: &str) -> String {
    hex(&Sha256::digest(text)[..8])
}

/// The text of a line whose checksum is right.
fn line(bytes: &[u8]) -> Option<&str> {
    let (text, sum) = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.rsplit_once(' ')?;
    (seal(text) == sum).then_some(text)
}

fn header(text: &str) -> Option<Version> {
    let mut parts = text.split(' ');
    let (kind, size, etag) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    (kind == "spans-1" && parts.next().is_none())
        .then(|| Version { size, etag: (etag != "-").then(|| etag.to_owned()) })
}

fn span(text: &str) -> Option<(Range<u64>, [u8; 32])> {
    let mut parts = text.split(' ');
    let (start, end): (u64, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let digest = parts.next()?;
    if start >= end || digest.len() != 64 || parts.next().is_some() {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digest.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((start..end, bytes))
}

/// What a journal says is held: the file's version and the number of bytes. `None` when there is no journal.
pub(super) fn journal_bytes(stem: &Path) -> Option<(Version, u64)> {
    let [_, journal] = paths(stem);
    let text = super::super::files::read_regular(&journal, JOURNAL).ok()?;
    let mut lines = text.split_inclusive(|b| *b == b'\n');
    let version = header(line(lines.next()?)?)?;
    let held: RangeSet = lines.filter_map(|text| Some(span(line(text)?)?.0)).collect();
    Some((version, held.bytes()))
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one run are meant")]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn version(size: u64) -> Version {
        Version { size, etag: Some("e".to_owned()) }
    }

    fn set(range: Range<u64>) -> RangeSet {
        std::iter::once(range).collect()
    }

    fn made() -> (TempDir, PathBuf, SpanFile) {
        let folder = TempDir::new().unwrap();
        let stem = folder.path().join("model.safetensors");
        let file = SpanFile::create(&stem, version(1000)).unwrap();
        (folder, stem, file)
    }

    #[test]
    fn a_hole_is_never_read() {
        let (_folder, stem, file) = made();
        assert_eq!(file.bytes(&(0..1)), None);
        file.write(10, &[7; 20]).unwrap();
        assert_eq!(file.bytes(&(10..30)).unwrap(), [7; 20]);
        assert_eq!(file.bytes(&(12..13)).unwrap(), [7]);
        for hole in [9..11, 29..31, 0..1000, 990..1001, 30..31] {
            assert_eq!(file.bytes(&hole), None, "{hole:?}");
        }
        // In another process nothing is believed before it is compared.
        let again = SpanFile::open(&stem).unwrap().unwrap();
        assert_eq!(again.version(), &version(1000));
        assert_eq!(again.bytes(&(10..30)), None);
        assert!(again.check(&(0..1000)).is_empty());
        assert_eq!(again.bytes(&(10..30)).unwrap(), [7; 20]);
        assert_eq!(again.missing(&set(5..35)).iter().collect::<Vec<_>>(), [5..10, 30..35]);
        assert_eq!(journal_bytes(&stem).unwrap(), (version(1000), 20));
    }

    #[test]
    fn altered_bytes_are_forgotten_and_can_be_written_again() {
        let (_folder, stem, file) = made();
        file.write(0, &[1; 100]).unwrap();
        file.write(100, &[2; 100]).unwrap();
        drop(file);
        let mut bytes = std::fs::read(paths(&stem)[0].clone()).unwrap();
        bytes[50] ^= 1;
        std::fs::write(paths(&stem)[0].clone(), &bytes).unwrap();
        let file = SpanFile::open(&stem).unwrap().unwrap();
        assert_eq!(file.check(&(0..200)), [0..100]);
        assert_eq!(file.bytes(&(100..200)).unwrap(), [2; 100]);
        assert_eq!(file.bytes(&(0..1)), None);
        assert_eq!(file.missing(&set(0..200)), set(0..100));
        file.write(0, &[1; 100]).unwrap();
        let again = SpanFile::open(&stem).unwrap().unwrap();
        assert!(again.check(&(0..200)).is_empty(), "the later line rules");
        assert!(again.bytes(&(0..200)).is_some());
    }

    #[test]
    fn every_cut_of_a_journal_is_survived() {
        let (_folder, stem, file) = made();
        file.write(0, &[1; 100]).unwrap();
        file.write(200, &[2; 100]).unwrap();
        drop(file);
        let journal = paths(&stem)[1].clone();
        let whole = std::fs::read(&journal).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&journal, &whole[..cut]).unwrap();
            let Some(file) = SpanFile::open(&stem).unwrap() else {
                assert!(cut < 40, "the version's line is whole at {cut}");
                continue;
            };
            // What is lost is missing; the next line stands apart from the torn one.
            let missing = file.missing(&set(0..300));
            assert!(missing.bytes() >= 100 && file.check(&(0..1000)).is_empty());
            file.write(400, &[3; 10]).unwrap();
            let again = SpanFile::open(&stem).unwrap().unwrap();
            assert!(again.check(&(0..1000)).is_empty());
            assert_eq!(again.bytes(&(400..410)).unwrap(), [3; 10], "cut at {cut}");
            // A line that lacked its end alone is whole by the beginning of the next, and its bytes met their digest.
            let now = again.missing(&set(0..300));
            let ended = whole.get(cut) == Some(&b'\n') && now.without(&missing).bytes() == 0;
            assert!(now == missing || ended, "cut at {cut}: {now:?}, before {missing:?}");
        }
    }

    #[test]
    fn any_flipped_byte_of_a_journal_costs_bytes_and_never_truth() {
        let (_folder, stem, file) = made();
        let content: Vec<u8> = (0..200_u8).collect();
        file.write(0, &content[..100]).unwrap();
        file.write(100, &content[100..]).unwrap();
        drop(file);
        let journal = paths(&stem)[1].clone();
        let whole = std::fs::read(&journal).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&journal, &bytes).unwrap();
            let Some(file) = SpanFile::open(&stem).unwrap() else { continue };
            file.check(&(0..1000));
            for byte in 0..200 {
                if let Some(found) = file.bytes(&(byte..byte + 1)) {
                    assert_eq!(found, &content[byte as usize..][..1], "flip at {at}");
                }
            }
        }
    }

    #[test]
    fn two_handles_share_what_either_writes() {
        let (_folder, stem, one) = made();
        let two = SpanFile::open(&stem).unwrap().unwrap();
        one.write(0, &[5; 10]).unwrap();
        assert_eq!(two.missing(&set(0..10)), set(0..10));
        two.reload().unwrap();
        assert_eq!(two.missing(&set(0..10)).bytes(), 0);
        assert!(two.check(&(0..10)).is_empty());
        assert_eq!(two.bytes(&(0..10)).unwrap(), [5; 10]);
        one.reload().unwrap();
        assert!(one.bytes(&(0..10)).is_some(), "its own line does not make it unsure");
        // A file that was cut short does not end the process by a signal.
        File::options().write(true).open(&paths(&stem)[0]).unwrap().set_len(5).unwrap();
        let three = SpanFile::open(&stem).unwrap().unwrap();
        assert_eq!(three.check(&(0..10)), [0..10]);
    }

    /// A lie about the length must not be found, and believed, by the next run.
    #[test]
    fn a_length_that_no_system_can_take_leaves_nothing_behind() {
        // Some file systems refuse such a file; in memory it can be made, and not mapped.
        let memory = Some(Path::new("/dev/shm")).filter(|path| path.is_dir());
        for root in [Some(std::env::temp_dir().as_path()), memory].into_iter().flatten() {
            let folder = TempDir::new_in(root).unwrap();
            let stem = folder.path().join("x");
            for size in [u64::MAX, 1 << 62, (1 << 47) + 5] {
                assert!(matches!(SpanFile::create(&stem, version(size)), Err(HubError::Disk { .. })), "{size}");
                assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{size} in {}", root.display());
            }
            assert!(SpanFile::open(&stem).unwrap().is_none());
        }
    }

    #[test]
    fn an_empty_file_has_its_bytes() {
        let folder = TempDir::new().unwrap();
        let file = SpanFile::create(&folder.path().join("x"), version(0)).unwrap();
        assert_eq!(file.bytes(&(0..0)), Some(&[][..]));
        assert_eq!(file.bytes(&(0..1)), None);
    }
}
