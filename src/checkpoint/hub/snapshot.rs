//! `Snapshot`: one commit in the standard Hub cache, as the Hub's own client and the reference framework leave it.
//!
//! `models--OWNER--NAME/refs/REVISION` holds a commit, `snapshots/COMMIT/FILE` the file (often a link into `blobs`), and
//! `.no_exist/COMMIT/FILE` says that the commit has no such file. Files under their final name are whole. Nothing is
//! written here.

use super::id::{Commit, FileName, RepoId, Revision};
use super::store::noted;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// One commit in the standard Hub cache.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    folder: PathBuf,
    absent: PathBuf,
}

impl Snapshot {
    /// The commit's place under the cache `root`.
    pub(super) fn new(root: &Path, repo: &RepoId, commit: &Commit) -> Self {
        let repo = root.join(format!("models--{}", repo.folder()));
        Self {
            folder: repo.join("snapshots").join(commit.as_str()),
            absent: repo.join(".no_exist").join(commit.as_str()),
        }
    }

    /// The commit that a revision was when the Hub's own client last asked, and when that was noted.
    pub(super) fn read_ref(root: &Path, repo: &RepoId, revision: &Revision) -> Option<(Commit, SystemTime)> {
        let path = root.join(format!("models--{}", repo.folder())).join("refs").join(revision.as_str());
        noted(&path)
    }

    /// A file's path, when it is there.
    pub(super) fn file(&self, name: &FileName) -> Option<PathBuf> {
        Some(self.folder.join(name.as_str())).filter(|path| path.is_file())
    }

    /// The commit is known to have no such file.
    pub(super) fn lacks(&self, name: &FileName) -> bool {
        self.absent.join(name.as_str()).is_file()
    }

    /// The commit is there, at least in part.
    pub(super) fn is_there(&self) -> bool {
        self.folder.is_dir()
    }
}
