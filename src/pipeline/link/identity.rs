//! `Identity`: the key pair that a device keeps, its name on every link.

use super::super::plan::Key;
use iroh::{PublicKey, SecretKey, Signature};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Key files that are looked at for a free one.
const FILES: usize = 64;

/// The key pair of a device.
pub struct Identity {
    pub(super) secret: SecretKey,
    /// Held locked for as long as the key is in use.
    _file: Option<File>,
}

impl std::fmt::Debug for Identity {
    /// Shows the public key alone.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.secret.public())
    }
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read or written.
    #[error("the identity {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file holds no key.
    #[error("the identity {}: {given} bytes are no key of 32; move the file away and a new one is made", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        given: usize,
    },
    /// Another process uses it.
    #[error("the identity {} is in use by another process", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
}

impl Identity {
    /// A key that nothing keeps.
    #[must_use]
    pub fn fresh() -> Self {
        Self { secret: SecretKey::generate(), _file: None }
    }

    /// The key in this file, made when the file is not there. The file is locked, for two processes with one key are one
    /// device to everybody else.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn open(path: &Path) -> Result<Self, IdentityError> {
        let io = |source| IdentityError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(IdentityError::Busy { path: path.to_owned() }),
            Err(std::fs::TryLockError::Error(source)) => return Err(io(source)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let secret = match <[u8; 32]>::try_from(bytes.as_slice()) {
            Ok(bytes) => SecretKey::from_bytes(&bytes),
            Err(_) if bytes.is_empty() => {
                let secret = SecretKey::generate();
                file.rewind()
                    .and_then(|()| file.write_all(&secret.to_bytes()))
                    .and_then(|()| file.sync_all())
                    .map_err(io)?;
                secret
            }
            Err(_) => return Err(IdentityError::Length { path: path.to_owned(), given: bytes.len() }),
        };
        Ok(Self { secret, _file: Some(file) })
    }

    /// The first key of a folder that no other process uses, so that a device keeps its name and several processes on it
    /// have one each.
    ///
    /// # Errors
    /// As [`Identity::open`].
    pub fn of_folder(folder: &Path) -> Result<Self, IdentityError> {
        let mut last = Err(IdentityError::Busy { path: folder.to_owned() });
        for number in 0..FILES {
            last = Self::open(&folder.join(format!("{number}.key")));
            if !matches!(last, Err(IdentityError::Busy { .. })) {
                break;
            }
        }
        last
    }

    /// The public key.
    #[must_use]
    pub fn key(&self) -> Key {
        *self.secret.public().as_bytes()
    }

    /// A signature over a claim.
    #[must_use]
    pub fn sign(&self, claim: &[u8]) -> [u8; 64] {
        self.secret.sign(claim).to_bytes()
    }

    /// A secret of this identity's own for a purpose, the same each time.
    #[must_use]
    pub fn secret_for(&self, purpose: &str) -> [u8; 32] {
        use sha2::Digest as _;
        let mut hasher = sha2::Sha256::new();
        hasher.update(self.secret.to_bytes());
        hasher.update(purpose.as_bytes());
        hasher.finalize().into()
    }

    /// Whether a signature over a claim is this key's.
    #[must_use]
    pub fn verify(key: &Key, claim: &[u8], signature: &[u8; 64]) -> bool {
        PublicKey::from_bytes(key).is_ok_and(|key| key.verify(claim, &Signature::from_bytes(signature)).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_kept_and_two_processes_have_two() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let (first, second) = (Identity::of_folder(&path).unwrap(), Identity::of_folder(&path).unwrap());
        assert_ne!(first.key(), second.key());
        let key = first.key();
        drop(first);
        assert_eq!(Identity::of_folder(&path).unwrap().key(), key);
        assert!(matches!(Identity::open(&path.join("1.key")), Err(IdentityError::Busy { .. })));
        std::fs::write(path.join("2.key"), b"short").unwrap();
        assert!(matches!(Identity::open(&path.join("2.key")), Err(IdentityError::Length { given: 5, .. })));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(path.join("1.key")).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn signatures_are_of_one_key_over_one_claim() {
        let (mine, other) = (Identity::fresh(), Identity::fresh());
        let signature = mine.sign(b"claim");
        assert!(Identity::verify(&mine.key(), b"claim", &signature));
        assert!(!Identity::verify(&mine.key(), b"clain", &signature));
        assert!(!Identity::verify(&other.key(), b"claim", &signature));
        assert!(!Identity::verify(&[0xff; 32], b"claim", &signature));
        assert!(!format!("{mine:?}").contains(&wordline_ir::digest::hex(&mine.secret.to_bytes())));
    }
}
