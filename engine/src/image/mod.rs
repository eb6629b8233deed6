//! The weight image: a program's tensors in the order of `Program::tensors`, laid out for streaming, checked by digest.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `WLIMAGE` and a zero |
//! | 4, 4 | version; number of tensors |
//! | 8 | bytes of the whole image |
//! | 32 | identity of the layout: the program's tensor table, its weight format and the version |
//! | 32 | identity of the content: the checkpoint, as whoever built the image names it |
//! | 32 | SHA-256 of the header with these 32 bytes zero |
//! | 32 a tensor | offset, length, bytes of a chunk, number of its first chunk: u64 each |
//! | 32 a chunk | SHA-256 of the chunk |
//! | from the next multiple of 64 | the tensors, each at a multiple of 64 |
//!
//! Numbers are little-endian. A matrix or a stack is a run of the array unit's tiles, a plain tensor is f32 after
//! `r()`. A chunk is about a megabyte of whole tiles of one tensor. SHA-256 because processors have instructions for
//! it, so that hashing keeps up with a disk, and because the digests double as the content's identity between devices.
//!
//! The header is written last: an image whose build was interrupted has none and is refused.

mod build;
mod layout;
mod open;

pub use build::{BuildError, Progress, build_into};
#[cfg(feature = "gpu")]
pub(crate) use layout::stored;
pub use layout::{Form, ImageLayout, LayoutError, Place};
pub use open::{Image, ImageError};

/// First bytes of every image.
pub(crate) const MAGIC: [u8; 8] = *b"WLIMAGE\0";
/// Version of the image's format, the array unit's tiles included.
pub const VERSION: u32 = 1;
/// Bytes of the header before its tables.
pub(crate) const FIXED: usize = 120;
/// Where the header's own digest stands.
pub(crate) const HEADER_DIGEST: std::ops::Range<usize> = 88..120;
/// Alignment of tensors.
pub(crate) const ALIGN: usize = 64;
/// Bytes that a chunk is meant to have.
pub(crate) const CHUNK: usize = 1 << 20;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).into()
}
