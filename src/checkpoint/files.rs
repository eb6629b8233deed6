//! `Folder`: the files of one checkpoint, on disk or embedded in the program.

use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

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
}

/// A whole file's bytes, mapped or embedded.
#[derive(Debug)]
pub struct Blob {
    bytes: Bytes,
    /// Length and change times of a file on disk, as one line of text; empty when embedded.
    pub(super) stamp: String,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

impl Blob {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Embedded(bytes) => bytes,
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
        }
    }

    /// True when the folder holds a file of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Disk(folder) => folder.join(name).is_file(),
            Self::Embedded { files, .. } => files.iter().any(|(file, _)| *file == name),
        }
    }

    /// A text file's bytes; `None` when it is not there.
    ///
    /// # Errors
    /// [`FileError::Io`], [`FileError::TooLong`].
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let Self::Disk(folder) = self else {
            return Ok(self.embedded(name).map(<[u8]>::to_vec));
        };
        let io = |source| FileError::Io { file: self.label(name), source };
        let file = match open_regular(&folder.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let mut bytes = Vec::new();
        let given = file.take(TEXT_CAP + 1).read_to_end(&mut bytes).map_err(io)? as u64;
        if given > TEXT_CAP {
            return Err(FileError::TooLong { file: self.label(name), given, limit: TEXT_CAP });
        }
        Ok(Some(bytes))
    }

    /// A file's bytes, mapped when it is on disk.
    ///
    /// # Errors
    /// [`FileError::Absent`], [`FileError::Io`].
    pub fn map(&self, name: &str) -> Result<Blob, FileError> {
        let Self::Disk(folder) = self else {
            let bytes = self.embedded(name).ok_or_else(|| FileError::Absent { file: self.label(name) })?;
            return Ok(Blob { bytes: Bytes::Embedded(bytes), stamp: String::new() });
        };
        map(&folder.join(name)).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => FileError::Absent { file: self.label(name) },
            _ => FileError::Io { file: self.label(name), source },
        })
    }

    fn embedded(&self, name: &str) -> Option<&'static [u8]> {
        match self {
            Self::Disk(_) => None,
            Self::Embedded { files, .. } => files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes),
        }
    }
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
    let stamp = stamp(&file.metadata()?);
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
