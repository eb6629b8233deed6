//! Names of the Hub: repo ids, revisions, commits and file names, held to strict rules before one meets a URL or a path.
//!
//! The rules are those of the Hub where it has some, and tighter where it has none: no name can leave the folder or the
//! URL segment that it is put into, on any system.

use std::fmt;
use std::str::FromStr;

/// Longest part of a repo id.
const PART: usize = 96;
/// Longest revision.
const REVISION: usize = 200;
/// Longest file name.
const FILE: usize = 200;

/// A name that breaks the rules of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no {kind}: {rule}")]
pub struct IdError {
    /// What it should have been.
    pub kind: &'static str,
    /// What it is, cut to a readable length.
    pub given: String,
    /// The rule that it breaks.
    pub rule: &'static str,
}

impl IdError {
    fn new(kind: &'static str, given: &str, rule: &'static str) -> Self {
        let short = given.char_indices().nth(120).map_or(given.len(), |(at, _)| at);
        Self { kind, given: given[..short].to_owned(), rule }
    }
}

/// A model on the Hub: `owner/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoId(String);

/// A branch, tag, reference or commit, as people write it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(String);

/// A commit's full hash: 40 lower-case hex digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Commit(String);

/// A file at the top of a repo.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileName(String);

/// What MODEL names on the Hub: `owner/name` or `owner/name@revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    /// The repo.
    pub repo: RepoId,
    /// The revision; `main` when none was given.
    pub revision: Revision,
}

impl FromStr for RepoId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let refuse = |rule| Err(IdError::new("model on the Hub", text, rule));
        let Some((owner, name)) = text.split_once('/') else { return refuse("it must read owner/name") };
        for part in [owner, name] {
            if part.is_empty() || part.len() > PART {
                return refuse("owner and name have 1 to 96 characters each");
            }
            if !part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
                return refuse("owner and name hold only letters, digits, '-', '_' and '.'");
            }
            if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
                return refuse("neither owner nor name begins or ends with '-' or '.'");
            }
            if part.contains("--") || part.contains("..") {
                return refuse("'--' and '..' stand in no name");
            }
        }
        if name.ends_with(".git") {
            return refuse("no name ends in .git");
        }
        Ok(Self(text.to_owned()))
    }
}

impl RepoId {
    /// The name of a folder for this model: `--` stands in no id, so no two ids share one.
    #[must_use]
    pub fn folder(&self) -> String {
        self.0.replace('/', "--")
    }

    /// Owner and name.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or((&self.0, ""))
    }
}

impl FromStr for Revision {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let refuse = |rule| Err(IdError::new("revision", text, rule));
        if text.is_empty() || text.len() > REVISION {
            return refuse("it has 1 to 200 characters");
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b'+')) {
            return refuse("it holds only letters, digits, '-', '_', '.', '+' and '/'");
        }
        for part in text.split('/') {
            if part.is_empty() || part.starts_with(['.', '-']) || part.ends_with('.') || part.contains("..") {
                return refuse("no part between '/' is empty, begins with '.' or '-', ends with '.' or holds '..'");
            }
            if part.ends_with(".lock") {
                return refuse("no part ends in .lock");
            }
        }
        Ok(Self(text.to_owned()))
    }
}

impl Revision {
    /// The commit, when the revision is one.
    #[must_use]
    pub fn commit(&self) -> Option<Commit> {
        self.0.parse().ok()
    }

    /// The name of a file for this revision: '%' stands in no revision.
    #[must_use]
    pub(super) fn file(&self) -> String {
        self.0.replace('/', "%2F")
    }
}

impl Default for Revision {
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl From<&Commit> for Revision {
    fn from(commit: &Commit) -> Self {
        Self(commit.0.clone())
    }
}

impl FromStr for Commit {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.len() == 40 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Ok(Self(text.to_owned()));
        }
        Err(IdError::new("commit", text, "it has 40 lower-case hex digits"))
    }
}

impl FromStr for FileName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let refuse = |rule| Err(IdError::new("file name", text, rule));
        if text.is_empty() || text.len() > FILE {
            return refuse("it has 1 to 200 characters");
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+')) {
            return refuse("it holds only letters, digits, '-', '_', '.' and '+'");
        }
        if text.starts_with('.') || text.ends_with('.') {
            return refuse("it neither begins nor ends with '.'");
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for ModelId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (repo, revision) = match text.split_once('@') {
            Some((repo, revision)) => (repo, revision.parse()?),
            None => (text, Revision::default()),
        };
        Ok(Self { repo: repo.parse()?, revision })
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repo, self.revision)
    }
}

macro_rules! text {
    ($($kind:ty),+) => { $(
        impl $kind {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+ };
}

text!(RepoId, Revision, Commit, FileName);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_that_the_hub_has_are_taken() {
        for id in ["HuggingFaceTB/SmolLM2-135M", "a/b", "_x/y_", "0/1.5B", "Qwen/Qwen2.5-0.5B"] {
            assert_eq!(id.parse::<RepoId>().unwrap().as_str(), id);
        }
        let id: ModelId = "a/b@refs/pr/1".parse().unwrap();
        assert_eq!((id.repo.as_str(), id.revision.as_str()), ("a/b", "refs/pr/1"));
        assert_eq!("a/b".parse::<ModelId>().unwrap().revision.as_str(), "main");
        assert_eq!("a/b".parse::<RepoId>().unwrap().folder(), "a--b");
    }

    #[test]
    fn ids_that_could_leave_a_url_or_a_path_are_refused() {
        let long = format!("a/{}", "b".repeat(97));
        let bad = [
            "",
            "a",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a/b..c",
            "./b",
            "a/.b",
            "a/b.",
            "-a/b",
            "a/b-",
            "a--x/b",
            "http://a/b",
            "a/b?x",
            "a/b#x",
            "a/%2e",
            "a/b c",
            "a/b\n",
            "a\\b/c",
            "a/b.git",
            "ä/b",
            "a/b\0",
            "a:b/c",
            &long,
        ];
        for id in bad {
            assert!(id.parse::<RepoId>().is_err(), "{id:?}");
        }
    }

    #[test]
    fn revisions_and_files_are_held_to_their_rules() {
        for good in ["main", "v1.0", "refs/pr/12", "feature/x_y", "0123456789012345678901234567890123456789"] {
            assert!(good.parse::<Revision>().is_ok(), "{good}");
        }
        let long = "r".repeat(201);
        for bad in [
            "", "/", "a/", "/a", "a//b", "..", "a/../b", ".a", "a/.b", "a?b", "a#b", "a%2fb", "a b", "a\n", "a@b",
            "a\\b", "x.lock", "-x", "a:b", &long,
        ] {
            assert!(bad.parse::<Revision>().is_err(), "{bad:?}");
        }
        assert!("model-00001-of-00002.safetensors".parse::<FileName>().is_ok());
        for bad in ["", ".", "..", ".x", "a/b", "a\\b", "a b", "x.", "a%b", "a:b"] {
            assert!(bad.parse::<FileName>().is_err(), "{bad:?}");
        }
        assert!("A123456789012345678901234567890123456789".parse::<Commit>().is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_taken_is_one_plain_segment(text in "[ -~]{0,12}/[ -~]{0,12}") {
            if let Ok(id) = text.parse::<RepoId>() {
                let folder = id.folder();
                prop_assert!(!folder.contains(['/', '\\', ':', '?', '#', '%', '@']) && !folder.contains(".."));
                prop_assert!(!folder.starts_with('.'));
            }
        }
    }
}
