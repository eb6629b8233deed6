//! What a Hub holds, and how it answers a request: pure, shared by the good server and the rude one.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The model that tests ask for.
pub(crate) const MODEL: &str = "some-owner/some.model_1";
/// The commit that `main` is.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file's content.
#[derive(Clone)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    /// A file that may be far larger than memory; only ranges of it are served.
    File(PathBuf),
}

/// The files of [`MODEL`].
#[derive(Clone, Default)]
pub(crate) struct Site {
    pub(crate) files: BTreeMap<String, Content>,
    /// Authorization without which every answer is 401.
    pub(crate) token: Option<String>,
}

/// A request as it was seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    /// The last part of the path.
    pub(crate) file: String,
    pub(crate) range: Option<Range<u64>>,
    pub(crate) authorization: Option<String>,
    /// All of its head, as text.
    pub(crate) head: String,
}

impl Seen {
    pub(crate) fn new(path: &str, headers: &[(String, String)]) -> Self {
        let get = |name: &str| headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v.clone());
        let range = get("range").and_then(|text| {
            let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
            Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
        });
        let head = headers.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
        let file = path.rsplit('/').next().unwrap_or_default().to_owned();
        Self { path: path.to_owned(), file, range, authorization: get("authorization"), head }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    /// The reply with a header set, in place of one of that name.
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }
}

impl Site {
    /// Every file of a folder.
    pub(crate) fn of(folder: &Path) -> Self {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let file = |entry: std::fs::DirEntry| {
            let bytes = Content::Bytes(std::fs::read(entry.path()).unwrap());
            (entry.file_name().into_string().unwrap(), bytes)
        };
        Self { files: entries.map(file).collect(), token: None }
    }

    /// The answer of a Hub that does all as it should.
    pub(crate) fn answer(&self, seen: &Seen) -> Reply {
        if self.token.is_some() && seen.authorization != self.token.as_ref().map(|token| format!("Bearer {token}")) {
            return Reply::new(401).with("x-error-code", "GatedRepo");
        }
        let Some(rest) = seen.path.strip_prefix(&format!("/{MODEL}/resolve/")) else {
            return Reply::new(404).with("x-error-code", "RepoNotFound");
        };
        let Some((revision, name)) = rest.split_once('/') else { return Reply::new(404) };
        if !["main", "refs%2Fpr%2F1", COMMIT].contains(&revision) {
            return Reply::new(404).with("x-error-code", "RevisionNotFound");
        }
        let Some(content) = self.files.get(name) else {
            return Reply::new(404).with("x-error-code", "EntryNotFound").with("x-repo-commit", COMMIT);
        };
        let size = content.size();
        let reply = Reply::new(200).with("x-repo-commit", COMMIT).with("etag", format!("\"{name}-{size}\""));
        match &seen.range {
            None => reply.body(content.read(0..size)),
            Some(range) if range.start >= size => Reply::new(416).with("content-range", format!("bytes */{size}")),
            Some(range) => {
                let range = range.start..range.end.min(size);
                let said = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                Reply { status: 206, ..reply }.with("content-range", said).body(content.read(range))
            }
        }
    }
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File(path) => std::fs::metadata(path).unwrap().len(),
        }
    }

    fn read(&self, range: Range<u64>) -> Vec<u8> {
        match self {
            Content::Bytes(bytes) => bytes[range.start as usize..range.end as usize].to_vec(),
            Content::File(path) => {
                let mut file = std::fs::File::open(path).unwrap();
                file.seek(SeekFrom::Start(range.start)).unwrap();
                let mut bytes = vec![0; (range.end - range.start) as usize];
                file.read_exact(&mut bytes).unwrap();
                bytes
            }
        }
    }
}
