//! `ImageCache`: weight images on disk, each built once and mapped from then on.
//!
//! An image lies under a name that is a digest of everything it is made from, so a changed checkpoint or changed
//! numerics is another file and an image never has to be compared with its source. It is built under a temporary name,
//! flushed, and renamed: a file under its final name is whole, however the program that wrote it ended. A lock file
//! beside it makes a second builder wait for the first and then take its image.

use memmap2::{Mmap, MmapMut};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Names the directory of weight images.
pub const ENV: &str = "WORDLINE_CACHE";

/// A directory of weight images.
#[derive(Clone, Debug)]
pub struct ImageCache {
    folder: PathBuf,
}

/// Why the cache gave no image.
#[derive(Debug, thiserror::Error)]
pub enum CacheError<E: std::error::Error + 'static> {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// File or directory.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Building failed.
    #[error(transparent)]
    Build(E),
}

impl ImageCache {
    /// A cache in this directory, which is made when the first image is written.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The user's cache: `$WORDLINE_CACHE`, or `wordline` under `$XDG_CACHE_HOME` or `$HOME/.cache`. `None` when the
    /// environment names none.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        let env = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self::folder_by(&env).map(Self::new)
    }

    /// Where the user's cache is by an environment that is given by a look-up.
    #[must_use]
    pub fn folder_by(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let dir = |name: &str| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let absolute = |path: &PathBuf| path.is_absolute();
        dir(ENV)
            .or_else(|| dir("XDG_CACHE_HOME").filter(absolute).map(|d| d.join("wordline")))
            .or_else(|| dir("HOME").filter(absolute).map(|d| d.join(".cache").join("wordline")))
    }

    /// Every image in the cache, with its length in bytes.
    #[must_use]
    pub fn list(&self) -> Vec<(PathBuf, u64)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let images = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "image"));
        let mut found: Vec<_> = images.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len()))).collect();
        found.sort();
        found
    }

    /// Remove every image. One that a program has mapped stays readable for it.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn clean(&self) -> io::Result<()> {
        self.list().iter().try_for_each(|(path, _)| fs::remove_file(path))
    }

    /// The directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the image of a key lies.
    #[must_use]
    pub fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.image"))
    }

    /// The image of `key`, a digest in hex of all that it is made from: mapped when it is there, else built. `build`
    /// gets `len` zeroed bytes of a mapped file.
    ///
    /// # Errors
    /// The directory or a file in it cannot be read or written, or `build` failed. Nothing is left under the image's
    /// name then.
    pub fn get<E: std::error::Error + 'static>(
        &self,
        key: &str,
        len: usize,
        build: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Mmap, CacheError<E>> {
        let path = self.path(key);
        if let Some(image) = map_existing(&path, len).map_err(|source| at(&path, source))? {
            return Ok(image);
        }
        fs::create_dir_all(&self.folder).map_err(|source| at(&self.folder, source))?;
        let lock = self.folder.join(format!("{key}.lock"));
        let held = OpenOptions::new().create(true).truncate(false).write(true).open(&lock);
        let held = held.and_then(|file| file.lock().map(|()| file)).map_err(|source| at(&lock, source))?;
        // Another builder may have finished while this one waited.
        let image = match map_existing(&path, len).map_err(|source| at(&path, source))? {
            Some(image) => image,
            None => self.build(key, &path, len, build)?,
        };
        drop(held);
        Ok(image)
    }

    /// Remove an image that turned out to be damaged, so that it is built again.
    pub fn discard(&self, key: &str) {
        let _ = fs::remove_file(self.path(key));
    }

    /// Build under a temporary name, under the key's lock.
    fn build<E: std::error::Error + 'static>(
        &self,
        key: &str,
        path: &Path,
        len: usize,
        build: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Mmap, CacheError<E>> {
        // The name is free: only the holder of the key's lock uses it, and an interrupted build's file is emptied.
        let unfinished = Unfinished(self.folder.join(format!("{key}.unfinished")));
        let io = |source| at(&unfinished.0, source);
        let mut options = OpenOptions::new();
        let mut file = options.create(true).truncate(true).read(true).write(true).open(&unfinished.0).map_err(io)?;
        fill(&mut file, len).map_err(io)?;
        // SAFETY: nobody else opens the unfinished file: the key's lock is held. Any byte is a valid `u8`.
        let mut bytes = unsafe { MmapMut::map_mut(&file) }.map_err(io)?;
        build(&mut bytes).map_err(CacheError::Build)?;
        bytes.flush().map_err(io)?;
        drop(bytes);
        file.sync_all().map_err(io)?;
        let image = map(&file).map_err(io)?;
        fs::rename(&unfinished.0, path).map_err(|source| at(path, source))?;
        // The rename itself must outlive a power cut; where directories cannot be flushed the next run builds again.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(image)
    }
}

/// Make a file `len` zeros long by writing them: a full disk is then an error here, not a signal in the mapped file.
fn fill(file: &mut File, len: usize) -> io::Result<()> {
    let zeros = vec![0; len.min(1 << 20)];
    let mut left = len;
    while left > 0 {
        let now = left.min(zeros.len());
        file.write_all(&zeros[..now])?;
        left -= now;
    }
    file.flush()
}

fn at<E: std::error::Error + 'static>(path: &Path, source: io::Error) -> CacheError<E> {
    CacheError::Io { path: path.display().to_string(), source }
}

fn map_existing(path: &Path, len: usize) -> io::Result<Option<Mmap>> {
    // A pipe or a device under this name is not opened: that could wait for ever.
    match fs::metadata(path) {
        Ok(data) if data.is_file() && data.len() == len as u64 => map(&File::open(path)?).map(Some),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: an image under its final name is never written again, only replaced by another file; the unfinished one
    // mapped here is renamed, not written. Any byte is a valid `u8`, and the image's digests tell altered ones.
    unsafe { Mmap::map(file) }
}

/// A file that is removed unless it has been renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn write(text: &'static [u8]) -> impl Fn(&mut [u8]) -> io::Result<()> {
        move |out| {
            assert!(out.iter().all(|b| *b == 0));
            out.copy_from_slice(text);
            Ok(())
        }
    }

    #[test]
    fn an_image_is_built_once_and_mapped_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ImageCache::new(folder.path().join("a/b"));
        assert_eq!(&cache.get("k", 5, write(b"image")).unwrap()[..], b"image");
        let again = cache.get("k", 5, |_| -> io::Result<()> { panic!("built twice") }).unwrap();
        assert_eq!(&again[..], b"image");
        assert_eq!(&cache.get("other", 1, write(b"2")).unwrap()[..], b"2");
        cache.discard("k");
        assert_eq!(&cache.get("k", 5, write(b"again")).unwrap()[..], b"again");
    }

    #[test]
    fn a_failed_build_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ImageCache::new(folder.path());
        let half = |out: &mut [u8]| {
            out[..1000].fill(1);
            Err(io::Error::other("stopped"))
        };
        assert!(matches!(cache.get("k", 3 << 20, half), Err(CacheError::Build(_))));
        assert!(!cache.path("k").exists() && !folder.path().join("k.unfinished").exists());
        assert_eq!(&cache.get("k", 5, write(b"whole")).unwrap()[..], b"whole");
    }

    #[test]
    fn the_rest_of_a_killed_build_is_never_used() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ImageCache::new(folder.path());
        fs::write(folder.path().join("k.unfinished"), b"half an image, and longer than the whole").unwrap();
        assert_eq!(&cache.get("k", 5, write(b"whole")).unwrap()[..], b"whole");
    }

    #[test]
    fn an_image_of_another_length_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ImageCache::new(folder.path());
        fs::write(cache.path("k"), b"").unwrap();
        assert_eq!(&cache.get("k", 4, write(b"good")).unwrap()[..], b"good");
        assert_eq!(fs::read(cache.path("k")).unwrap(), b"good");
    }

    #[test]
    fn builders_at_the_same_time_share_one_build() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ImageCache::new(folder.path());
        let (builds, barrier) = (AtomicUsize::new(0), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    let build = |out: &mut [u8]| {
                        builds.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(30));
                        write(b"image")(out)
                    };
                    assert_eq!(&cache.get("k", 5, build).unwrap()[..], b"image");
                });
            }
        });
        assert_eq!(builds.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), b"").unwrap();
        let cache = ImageCache::new(folder.path().join("file/cache"));
        let error = cache.get("k", 1, write(b"1")).unwrap_err().to_string();
        assert!(error.contains("file/cache"), "{error}");
    }
}
