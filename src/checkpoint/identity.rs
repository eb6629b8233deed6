//! What a checkpoint's weights are called: digests that change when the tensors, or the bytes behind them, do.

use super::files::{FileError, Stamp};
use super::weights::Weights;
use sha2::{Digest, Sha256};
use wordline_ir::digest::hex;

/// Weight files of at most this many bytes in all are hashed whole.
pub const WHOLE_LIMIT: u64 = 256 << 20;

/// Pieces of a larger file that are hashed, evenly spaced, first and last included.
const SAMPLES: usize = 64;
/// Bytes in each piece.
const SAMPLE_BYTES: usize = 64 << 10;

impl Weights {
    /// SHA-256 over the tensor index: every tensor's name, dtype, shape, file and byte range. Needs no tensor byte.
    #[must_use]
    pub fn index_digest(&self) -> String {
        hex(&self.index_hasher().finalize())
    }

    /// SHA-256 over the tensor index and the content of the files: the key of a weight image.
    ///
    /// Up to [`WHOLE_LIMIT`] the content is every byte, so equal copies have equal identities. A larger checkpoint is
    /// too long to hash at every start: its content is, for each file, the system's record of it (device, inode,
    /// length, modification and change time to the nanosecond) and 64 pieces of its bytes. A write to the file moves
    /// its change time, which no program can set back; a copy of such a checkpoint is another one.
    ///
    /// What was fetched from the Hub is known by endpoint, model, commit and etags, and no byte of it is read. A copy in the
    /// standard Hub cache is held to no digest by anyone, so it is known by its content, as a directory is.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn identity(&self) -> Result<String, FileError> {
        self.identity_within(WHOLE_LIMIT)
    }

    /// [`Self::identity`] with another length up to which files are hashed whole.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn identity_within(&self, whole_limit: u64) -> Result<String, FileError> {
        let mut hasher = self.index_hasher();
        let total: u64 = self.files.iter().map(|file| file.blob.len()).sum();
        for file in &self.files {
            match &file.blob.stamp {
                Stamp::Commit(stamp) => {
                    field(&mut hasher, stamp.as_bytes());
                    hasher.update(file.blob.len().to_le_bytes());
                }
                Stamp::Record(stamp) | Stamp::Copy(stamp) if total > whole_limit => {
                    field(&mut hasher, stamp.as_bytes());
                    hasher.update(samples(file.blob.slice(0..file.blob.len())?));
                }
                Stamp::Record(_) | Stamp::Copy(_) | Stamp::Fixed => {
                    hasher.update(Sha256::digest(file.blob.slice(0..file.blob.len())?))
                }
            }
        }
        Ok(hex(&hasher.finalize()))
    }

    /// Identity of a part of the checkpoint: the tensor index, and the content of these stored tensors alone. Of a large
    /// part the content is what [`Weights::identity`] takes of a large checkpoint. No byte of another tensor is read, and
    /// of a model on the Hub none at all: its files are known by their stamps.
    ///
    /// # Errors
    /// A tensor cannot be read.
    pub fn part_identity(&self, tensors: &std::collections::BTreeSet<&str>) -> Result<String, FileError> {
        let mut hasher = self.index_hasher();
        if !self.is_local() {
            for file in &self.files {
                if let Stamp::Commit(stamp) | Stamp::Copy(stamp) = &file.blob.stamp {
                    field(&mut hasher, stamp.as_bytes());
                }
            }
            tensors.iter().for_each(|name| field(&mut hasher, name.as_bytes()));
            return Ok(hex(&hasher.finalize()));
        }
        let names = tensors.iter().flat_map(|name| self.stored_names(name));
        let parts = names.filter_map(|name| Some((name, self.tensor(name)?.bytes())));
        let parts = parts.map(|(name, bytes)| Ok((name, bytes?))).collect::<Result<Vec<_>, FileError>>()?;
        let total: u64 = parts.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        for file in &self.files {
            if total > WHOLE_LIMIT {
                let stamp = if let Stamp::Record(stamp) = &file.blob.stamp { stamp } else { "" };
                field(&mut hasher, stamp.as_bytes());
            }
        }
        for (name, bytes) in parts {
            field(&mut hasher, name.as_bytes());
            if total <= WHOLE_LIMIT { hasher.update(Sha256::digest(bytes)) } else { hasher.update(samples(bytes)) }
        }
        Ok(hex(&hasher.finalize()))
    }

    fn index_hasher(&self) -> Sha256 {
        let mut hasher = Sha256::new();
        for (file, entry) in self.entries() {
            field(&mut hasher, entry.name.as_bytes());
            field(&mut hasher, entry.dtype.to_string().as_bytes());
            field(&mut hasher, file.as_bytes());
            hasher.update((entry.shape.len() as u64).to_le_bytes());
            entry.shape.iter().for_each(|dim| hasher.update((*dim as u64).to_le_bytes()));
            hasher.update(entry.bytes.start.to_le_bytes());
            hasher.update(entry.bytes.end.to_le_bytes());
        }
        hasher
    }
}

/// A text with its length, so that no two lists of texts hash alike.
fn field(hasher: &mut Sha256, text: &[u8]) {
    hasher.update((text.len() as u64).to_le_bytes());
    hasher.update(text);
}

fn samples(bytes: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let last = bytes.len().saturating_sub(SAMPLE_BYTES);
    for sample in 0..SAMPLES {
        // In 128 bits: the product may not fit 64.
        let start = (last as u128 * sample as u128 / (SAMPLES as u128 - 1)) as usize;
        hasher.update(&bytes[start..bytes.len().min(start + SAMPLE_BYTES)]);
    }
    hasher.finalize().into()
}
