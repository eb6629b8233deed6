//! `Image`: an image's bytes, checked, and the tensors in them.

use super::layout::{Form, ImageLayout, LayoutError, Place};
use super::{Digest, FIXED, HEADER_DIGEST, MAGIC, VERSION, sha256};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use wordline_ir::{Program, TensorId};
use wordline_kernels::matvec::{Matrix, Stack};

/// Images up to this many bytes are checked whole when they are opened; larger ones chunk by chunk as they are first
/// read, so that opening one does not read it.
const WHOLE: usize = 64 << 20;

/// Why bytes are not the image of a program.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// The program's tensors have no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The bytes do not begin as an image does; also what is left of a build that was interrupted.
    #[error("not a weight image, or one whose build was interrupted; build it again")]
    Magic,
    /// Another version of the format.
    #[error("the weight image has version {given}, this program reads version {expected}; build it again")]
    Version {
        /// The image's.
        given: u32,
        /// What is read.
        expected: u32,
    },
    /// The bytes end early or go on.
    #[error("the weight image has {given} bytes, it should have {expected}; build it again")]
    Length {
        /// Bytes given.
        given: usize,
        /// Bytes of the layout.
        expected: usize,
    },
    /// The image was built for another tensor table or weight format.
    #[error("the weight image was built for another program; build it again")]
    Program,
    /// The image was built from another checkpoint.
    #[error("the weight image was built from another checkpoint; build it again")]
    Content,
    /// The header is not the one that was written.
    #[error("the weight image's header is damaged; build it again")]
    Header,
    /// A tensor's bytes are not those that were written.
    #[error("weight image: the bytes of tensor '{tensor}' are not those that were written; build the image again")]
    Damaged {
        /// The tensor.
        tensor: String,
    },
    /// A command names a tensor that the image does not hold.
    #[error("the weight image does not hold tensor '{tensor}', which the program's commands use")]
    Missing {
        /// The tensor.
        tensor: String,
    },
}

/// A weight image that belongs to a program.
pub struct Image {
    bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
    layout: ImageLayout,
    content: Digest,
    names: Vec<String>,
    /// Which chunks have been checked.
    checked: Vec<AtomicBool>,
    /// The plain tensors' values, by tensor; empty for matrices.
    plain: Vec<Vec<f32>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("bytes", &self.layout.bytes()).finish_non_exhaustive()
    }
}

impl Image {
    /// Open the image of a program with all its tensors, from a mapped file or a buffer. `content`, where given, is the checkpoint it must come from.
    ///
    /// # Errors
    /// The bytes are not a whole image of this program and this content; where the image is small, or a tensor plain,
    /// also a byte that was altered.
    pub fn open(
        program: &Program,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        content: Option<Digest>,
    ) -> Result<Self, ImageError> {
        Self::with(program, ImageLayout::of(program)?, Box::new(bytes), content, WHOLE)
    }

    /// Open an image that holds only what the program's commands use ([`ImageLayout::of_used`]).
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn open_used(
        program: &Program,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        content: Option<Digest>,
    ) -> Result<Self, ImageError> {
        Self::with(program, ImageLayout::of_used(program)?, Box::new(bytes), content, WHOLE)
    }

    /// Open an image as a large one: matrices are checked on first touch.
    #[cfg(test)]
    pub(crate) fn open_large(program: &Program, bytes: Vec<u8>) -> Result<Self, ImageError> {
        Self::with(program, ImageLayout::of(program)?, Box::new(bytes), None, 0)
    }

    fn with(
        program: &Program,
        layout: ImageLayout,
        bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
        expected: Option<Digest>,
        whole: usize,
    ) -> Result<Self, ImageError> {
        let content = check_header(&layout, (*bytes).as_ref(), expected)?;
        let names = program.tensors.iter().map(|t| t.name.clone()).collect();
        let checked = (0..layout.chunks()).map(|_| AtomicBool::new(false)).collect();
        let mut image = Self { bytes, layout, content, names, checked, plain: Vec::new() };
        let small = image.layout.bytes() <= whole;
        for index in 0..image.names.len() {
            let place = &image.layout.places()[index];
            let plain = place.form == Form::Plain;
            if small || plain {
                image.check(index, 0..place.len)?;
            }
            let values = if plain { floats(&image.bytes()[place.range()]) } else { Vec::new() };
            image.plain.push(values);
        }
        Ok(image)
    }

    /// Where the tensors lie.
    #[must_use]
    pub fn layout(&self) -> &ImageLayout {
        &self.layout
    }

    /// The checkpoint's identity, as the image's builder gave it.
    #[must_use]
    pub fn content(&self) -> Digest {
        self.content
    }

    /// Digest of a tensor: SHA-256 over the digests of its chunks.
    #[must_use]
    pub fn digest(&self, id: TensorId) -> Option<Digest> {
        let place = self.layout.place(id)?;
        let start = self.chunk_digest(place.first_chunk).start;
        Some(sha256(&self.bytes()[start..start + 32 * place.chunks()]))
    }

    /// Check every byte that has not been checked yet.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] by the first tensor that is.
    pub fn check_all(&self) -> Result<(), ImageError> {
        (0..self.names.len()).try_for_each(|index| self.check(index, 0..self.layout.places()[index].len))
    }

    /// The program's commands name only tensors that the image holds.
    ///
    /// # Errors
    /// [`ImageError::Missing`].
    pub fn serves(&self, program: &Program) -> Result<(), ImageError> {
        let missing =
            program.commands.iter().flat_map(|c| c.tensors()).find(|(_, id)| self.layout.place(*id).is_none());
        match missing {
            None => Ok(()),
            Some((_, id)) => Err(ImageError::Missing {
                tensor: self.names.get(id.index()).cloned().unwrap_or_else(|| id.index().to_string()),
            }),
        }
    }

    /// A plain tensor's values; empty when it is none.
    pub(crate) fn plain(&self, id: TensorId) -> &[f32] {
        self.plain.get(id.index()).map_or(&[], Vec::as_slice)
    }

    /// A matrix whose bytes may not have been checked: see [`Image::touch`].
    pub(crate) fn matrix(&self, id: TensorId) -> Option<Matrix<'_>> {
        let place = self.layout.place(id)?;
        let Form::Matrix(layout) = place.form else { return None };
        Matrix::new(layout, &self.bytes()[place.range()]).ok()
    }

    /// A stack whose bytes may not have been checked: see [`Image::touch`].
    pub(crate) fn stack(&self, id: TensorId) -> Option<Stack<'_>> {
        let place = self.layout.place(id)?;
        let Form::Stack(layout) = place.form else { return None };
        Stack::new(layout, &self.bytes()[place.range()]).ok()
    }

    /// Check the chunks that hold these tiles of a matrix or stack, unless they have been.
    ///
    /// # Errors
    /// [`ImageError::Damaged`].
    pub(crate) fn touch(&self, id: TensorId, tiles: Range<usize>) -> Result<(), ImageError> {
        let Some(place) = self.layout.place(id) else { return Ok(()) };
        let tile = place.form.part_bytes(0);
        self.check(id.index(), tiles.start * tile..tiles.end * tile)
    }

    fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Check the chunks of a tensor that hold these of its bytes.
    fn check(&self, index: usize, bytes: Range<usize>) -> Result<(), ImageError> {
        let place = &self.layout.places()[index];
        let chunks = bytes.start / place.chunk..bytes.end.div_ceil(place.chunk).min(place.chunks());
        chunks.into_iter().try_for_each(|chunk| self.check_chunk(index, place, chunk))
    }

    #[inline]
    fn check_chunk(&self, index: usize, place: &Place, chunk: usize) -> Result<(), ImageError> {
        let number = place.first_chunk + chunk;
        if self.checked[number].load(Ordering::Relaxed) {
            return Ok(());
        }
        let bytes = self.bytes();
        if bytes[self.chunk_digest(number)] != sha256(&bytes[place.chunk_range(chunk)]) {
            return Err(ImageError::Damaged { tensor: self.names[index].clone() });
        }
        self.checked[number].store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Where a chunk's digest stands.
    fn chunk_digest(&self, number: usize) -> Range<usize> {
        let start = FIXED + 32 * (self.layout.places().len() + number);
        start..start + 32
    }
}

/// Check everything before the tensors; returns the content's identity.
fn check_header(layout: &ImageLayout, bytes: &[u8], expected: Option<Digest>) -> Result<Digest, ImageError> {
    if bytes.len() < FIXED || bytes[..MAGIC.len()] != MAGIC {
        return Err(ImageError::Magic);
    }
    let digest_at = |at: usize| -> Digest { std::array::from_fn(|i| bytes[at + i]) };
    let version = u32::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
    if version != VERSION {
        return Err(ImageError::Version { given: version, expected: VERSION });
    }
    if digest_at(24) != layout.identity() {
        return Err(ImageError::Program);
    }
    if bytes.len() != layout.bytes() {
        return Err(ImageError::Length { given: bytes.len(), expected: layout.bytes() });
    }
    let mut header = bytes[..layout.header_bytes()].to_vec();
    header[HEADER_DIGEST].fill(0);
    if sha256(&header)[..] != bytes[HEADER_DIGEST] {
        return Err(ImageError::Header);
    }
    let content = digest_at(56);
    if expected.is_some_and(|expected| expected != content) {
        return Err(ImageError::Content);
    }
    Ok(content)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
