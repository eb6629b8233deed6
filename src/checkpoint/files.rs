//! `Folder`: the files of one checkpoint, on disk, embedded in the program, or on the Hub.

use super::hub::remote::Source;
use super::hub::{FileName, HubError, RemoteFile, Repo};
use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest text file read whole (config, tokenizer, index), in bytes.
pub const TEXT_CAP: u64 = 512 << 20;

/// Where a checkpoint's files are.
#[derive(Clone, Debug)]
pub enum Folder {
    /// A directory.
    Disk(PathBuf),
    /// Files that are part of the program.
    Embedded {
        /// What the checkpoint is called.
        name: &'static str,
        /// File names and contents.
        files: &'static [(&'static str, &'static [u8])],
    },
    /// A model on the Hub, at one commit.
    Hub(Arc<Repo>),
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path is no directory.
    #[error("{path}: not a directory; give the folder that holds config.json and the weights")]
    NotADirectory {
        /// The path.
        path: String,
    },
    /// The operating system refused.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is not there.
    #[error("{file}: not there")]
    Absent {
        /// The file.
        file: String,
    },
    /// A text file of a size that no real one has.
    #[error("{file}: {given} bytes, at most {limit} are read")]
    TooLong {
        /// The file.
        file: String,
        /// Its length.
        given: u64,
        /// [`TEXT_CAP`].
        limit: u64,
    },
    /// Bytes past a file's end.
    #[error("bytes {start}..{end} of a file of {limit}")]
    PastEnd {
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
        /// The file's length.
        limit: u64,
    },
    /// The Hub did not give it.
    #[error(transparent)]
    Hub(Box<HubError>),
}

impl From<HubError> for FileError {
    fn from(error: HubError) -> Self {
        Self::Hub(Box::new(error))
    }
}

/// One file's bytes: mapped, embedded, or fetched as they are asked for.
#[derive(Debug)]
pub struct Blob {
    bytes: Bytes,
    /// What changes when the bytes do, as one line of text.
    pub(super) stamp: Stamp,
}

/// What changes when a file's bytes do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    /// Nothing: the bytes are part of the program.
    Fixed,
    /// The system's record: device, inode, length, change times.
    Record(String),
    /// A file of a commit, fetched and compared: endpoint, model, commit and, where known, the etag.
    Commit(String),
    /// A file of a commit out of the standard Hub cache, which may be spoilt: the system's record.
    Copy(String),
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Embedded(&'static [u8]),
    Remote(Arc<RemoteFile>),
}

impl Blob {
    /// The file's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.bytes {
            Bytes::Mapped(map) => map.len() as u64,
            Bytes::Embedded(bytes) => bytes.len() as u64,
            Bytes::Remote(file) => file.len(),
        }
    }

    /// True when the file holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forget what a cache of ours holds of the bytes, for they make no sense.
    pub(super) fn forget(&self) {
        if let Bytes::Remote(file) = &self.bytes {
            // What cannot be removed is found wanting again the next time.
            let _ = file.forget();
        }
    }

    /// A range of the bytes; those of a file on the Hub are fetched if they are not here.
    ///
    /// # Errors
    /// [`FileError::PastEnd`], [`FileError::Hub`].
    pub fn slice(&self, range: Range<u64>) -> Result<&[u8], FileError> {
        let past = || FileError::PastEnd { start: range.start, end: range.end, limit: self.len() };
        let here = |bytes: &'_ [u8]| -> Option<Range<usize>> {
            let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
            (range.start <= range.end && range.end <= bytes.len()).then_some(range)
        };
        match &self.bytes {
            Bytes::Mapped(map) => here(map).map(|range| &map[range]).ok_or_else(past),
            Bytes::Embedded(bytes) => here(bytes).map(|range| &bytes[range]).ok_or_else(past),
            Bytes::Remote(file) if range.start <= range.end && range.end <= file.len() => Ok(file.bytes(range)?),
            Bytes::Remote(_) => Err(past()),
        }
    }

    /// The file on the Hub whose bytes are fetched as they are asked for; none of a file that is here.
    pub(super) fn remote(&self) -> Option<&RemoteFile> {
        match &self.bytes {
            Bytes::Remote(file) => Some(file),
            Bytes::Mapped(_) | Bytes::Embedded(_) => None,
        }
    }
}

impl Folder {
    /// The folder at a path.
    ///
    /// # Errors
    /// [`FileError::NotADirectory`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let path = path.into();
        if path.is_dir() {
            Ok(Self::Disk(path))
        } else {
            Err(FileError::NotADirectory { path: path.display().to_string() })
        }
    }

    /// A file's name as messages show it.
    #[must_use]
    pub fn label(&self, name: &str) -> String {
        match self {
            Self::Disk(folder) => folder.join(name).display().to_string(),
            Self::Embedded { name: model, .. } => format!("{model}/{name}"),
            Self::Hub(repo) => repo.label(name),
        }
    }

    /// True when the folder holds a file of this name. On the Hub that is asked once, by the file's first bytes.
    ///
    /// # Errors
    /// [`FileError::Hub`].
    pub fn has(&self, name: &str) -> Result<bool, FileError> {
        Ok(match self {
            Self::Disk(folder) => folder.join(name).is_file(),
            Self::Embedded { files, .. } => files.iter().any(|(file, _)| *file == name),
            Self::Hub(repo) => repo.file(&file_name(name)?)?.is_some(),
        })
    }

    /// The model on the Hub, where the folder is one.
    #[must_use]
    pub fn repo(&self) -> Option<&Arc<Repo>> {
        match self {
            Self::Hub(repo) => Some(repo),
            Self::Disk(_) | Self::Embedded { .. } => None,
        }
    }

    /// A text file's bytes; `None` when it is not there.
    ///
    /// # Errors
    /// [`FileError::Io`], [`FileError::TooLong`], [`FileError::Hub`].
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let path = match self {
            Self::Disk(folder) => folder.join(name),
            Self::Embedded { .. } => return Ok(self.embedded(name).map(<[u8]>::to_vec)),
            Self::Hub(repo) => return Ok(repo.read(&file_name(name)?)?),
        };
        match read_regular(&path, TEXT_CAP + 1) {
            Ok(bytes) if bytes.len() as u64 > TEXT_CAP => {
                Err(FileError::TooLong { file: self.label(name), given: bytes.len() as u64, limit: TEXT_CAP })
            }
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FileError::Io { file: self.label(name), source }),
        }
    }

    /// A file's bytes, mapped when it is on disk; of a file on the Hub none has moved yet but its first few.
    ///
    /// # Errors
    /// [`FileError::Absent`], [`FileError::Io`], [`FileError::Hub`].
    pub fn map(&self, name: &str) -> Result<Blob, FileError> {
        let absent = || FileError::Absent { file: self.label(name) };
        let mapped = |path: &Path| {
            map(path).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => absent(),
                _ => FileError::Io { file: self.label(name), source },
            })
        };
        match self {
            Self::Disk(folder) => mapped(&folder.join(name)),
            Self::Embedded { .. } => {
                let bytes = self.embedded(name).ok_or_else(absent)?;
                Ok(Blob { bytes: Bytes::Embedded(bytes), stamp: Stamp::Fixed })
            }
            Self::Hub(repo) => match repo.file(&file_name(name)?)?.ok_or_else(absent)? {
                Source::Snapshot { path } => {
                    let Blob { bytes, stamp } = mapped(&path)?;
                    Ok(Blob {
                        bytes,
                        stamp: if let Stamp::Record(record) = stamp { Stamp::Copy(record) } else { stamp },
                    })
                }
                Source::Remote(file) => {
                    let stamp = format!("{} {}", repo.stamp(), file.etag().unwrap_or("-"));
                    Ok(Blob { stamp: Stamp::Commit(stamp), bytes: Bytes::Remote(file) })
                }
            },
        }
    }

    fn embedded(&self, name: &str) -> Option<&'static [u8]> {
        match self {
            Self::Disk(_) | Self::Hub(_) => None,
            Self::Embedded { files, .. } => files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes),
        }
    }
}

fn file_name(name: &str) -> Result<FileName, HubError> {
    Ok(name.parse::<FileName>()?)
}

/// The bytes of a regular file, at most `cap` of them.
pub(super) fn read_regular(path: &Path, cap: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(cap).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Open a regular file. A pipe or a device is refused before it is opened, for opening it can wait for ever.
fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

fn map(path: &Path) -> io::Result<Blob> {
    let file = open_regular(path)?;
    let stamp = Stamp::Record(stamp(&file.metadata()?));
    // SAFETY: the map is read only as `u8`, any value of which is valid, and never past its own length. A process that
    // writes to the file meanwhile can change the values read, which the identity's change times show on the next
    // open; one that shortens it ends this process by a signal, as it would for any mapped file.
    let map = unsafe { Mmap::map(&file)? };
    Ok(Blob { bytes: Bytes::Mapped(map), stamp })
}

/// What changes about a file when its bytes do: the change time is set by the system and cannot be set back.
#[cfg(unix)]
fn stamp(data: &std::fs::Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    let (dev, ino, len) = (data.dev(), data.ino(), data.len());
    format!("{dev} {ino} {len} {}.{} {}.{}", data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec())
}

#[cfg(not(unix))]
fn stamp(data: &std::fs::Metadata) -> String {
    format!("{} {:?}", data.len(), data.modified().ok())
}
