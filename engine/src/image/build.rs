//! Building an image: chunks in parallel into bytes that the caller supplies, the header last.

use super::layout::{Form, ImageLayout, Place};
use super::{Digest, FIXED, HEADER_DIGEST, MAGIC, VERSION, sha256};
use crate::source::{SourceError, WeightSource};
use crate::team::Team;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use wordline_ir::{Program, Tensor};
use wordline_kernels::flush::flush_all;
use wordline_kernels::matvec::{LayoutError, MatrixLayout};

/// Why an image could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A weight could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A matrix holds a value that has no int8 form.
    #[error("tensor '{tensor}': {source}")]
    Matrix {
        /// The tensor.
        tensor: String,
        /// Where and why.
        source: LayoutError,
    },
    /// A plain tensor holds a value that no unit can work with.
    #[error("tensor '{tensor}': row {row}: {value} is not a finite number")]
    Plain {
        /// The tensor.
        tensor: String,
        /// Its row.
        row: usize,
        /// The value.
        value: f32,
    },
    /// The bytes to build into, or the layout, are not this program's.
    #[error("the image takes {need} bytes, {given} were given")]
    Size {
        /// Bytes of the layout.
        need: usize,
        /// Bytes given.
        given: usize,
    },
    /// The caller's progress function asked to stop.
    #[error("the build was stopped")]
    Stopped,
}

/// Told after each chunk how many bytes of tensors are built and how many there are; false stops the build.
pub type Progress<'a> = dyn Fn(usize, usize) -> bool + Sync + 'a;

/// One chunk to build.
struct Job<'a> {
    tensor: &'a Tensor,
    place: &'a Place,
    chunk: usize,
    out: &'a mut [u8],
    digest: &'a mut Digest,
}

/// Build the weight image of a program into `out`, [`ImageLayout::bytes`] long: a mapped file or a buffer. `content`
/// names the checkpoint and comes back from the image. On an error, and until the very end, `out` has no header and is
/// no image.
///
/// # Errors
/// A weight that cannot be read or quantised, by tensor name; a wrong length; a stop.
pub fn build_into(
    program: &Program,
    layout: &ImageLayout,
    source: &dyn WeightSource,
    content: Digest,
    out: &mut [u8],
    team: &mut Team,
    progress: &Progress<'_>,
) -> Result<(), BuildError> {
    if out.len() != layout.bytes() || program.tensors.len() != layout.places().len() {
        return Err(BuildError::Size { need: layout.bytes(), given: out.len() });
    }
    let (header, payload) = out.split_at_mut(layout.header_bytes());
    header.fill(0);
    let mut digests = vec![Digest::default(); layout.chunks()];
    let jobs = Mutex::new(jobs(program, layout, payload, &mut digests).into_iter());
    let (failed, stop, done) = (Mutex::new(None), AtomicBool::new(false), AtomicUsize::new(0));
    let total = layout.places().iter().map(|place| place.len).sum();
    let members = team.members();
    team.run(usize::MAX, members, &|_| {
        let mut values = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(job) = jobs.lock().unwrap_or_else(PoisonError::into_inner).next() else { return };
            let bytes = job.out.len();
            let built = job.run(source, &mut values).and_then(|()| {
                let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
                if progress(done, total) { Ok(()) } else { Err(BuildError::Stopped) }
            });
            if let Err(error) = built {
                stop.store(true, Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    write_header(layout, content, &digests, header);
    Ok(())
}

/// The chunks of all tensors, each with its part of the image.
fn jobs<'a>(
    program: &'a Program,
    layout: &'a ImageLayout,
    mut payload: &'a mut [u8],
    mut digests: &'a mut [Digest],
) -> Vec<Job<'a>> {
    let mut jobs = Vec::with_capacity(layout.chunks());
    let mut at = layout.header_bytes();
    for (tensor, place) in program.tensors.iter().zip(layout.places()) {
        for chunk in 0..place.chunks() {
            let range = place.chunk_range(chunk);
            let (gap, rest) = std::mem::take(&mut payload).split_at_mut(range.start - at);
            gap.fill(0);
            let (out, rest) = rest.split_at_mut(range.len());
            (payload, at) = (rest, range.end);
            let Some((digest, rest)) = std::mem::take(&mut digests).split_first_mut() else { return jobs };
            digests = rest;
            jobs.push(Job { tensor, place, chunk, out, digest });
        }
    }
    payload.fill(0);
    jobs
}

impl Job<'_> {
    fn run(self, source: &dyn WeightSource, values: &mut Vec<f32>) -> Result<(), BuildError> {
        let Job { tensor, place, chunk, out, digest } = self;
        let part_bytes = place.form.part_bytes(tensor.cols);
        let first = chunk * (place.chunk / part_bytes);
        match place.form {
            Form::Plain => {
                values.resize(out.len() / size_of::<f32>(), 0.0);
                source.read_rows(tensor, first..first + values.len() / tensor.cols, values)?;
                if let Some(at) = values.iter().position(|v| !v.is_finite()) {
                    let (row, value) = (first + at / tensor.cols, values[at]);
                    return Err(BuildError::Plain { tensor: tensor.name.clone(), row, value });
                }
                flush_all(values);
                for (bytes, value) in out.chunks_exact_mut(size_of::<f32>()).zip(values) {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
            Form::Matrix(matrix) => pack(tensor, matrix, first, source, values, out)?,
            Form::Stack(stack) => pack(tensor, stack.matrix(), first, source, values, out)?,
        }
        *digest = sha256(out);
        Ok(())
    }
}

/// Pack the tiles from `first` on; tiles of a stack count through its experts.
fn pack(
    tensor: &Tensor,
    matrix: MatrixLayout,
    first: usize,
    source: &dyn WeightSource,
    values: &mut Vec<f32>,
    out: &mut [u8],
) -> Result<(), BuildError> {
    for (tile, out) in (first..).zip(out.chunks_exact_mut(matrix.tile_bytes())) {
        let (expert, tile) = (tile / matrix.tiles(), tile % matrix.tiles());
        let rows = matrix.tile_rows(tile);
        values.resize(rows.len() * matrix.cols(), 0.0);
        let start = expert * matrix.rows();
        source.read_rows(tensor, start + rows.start..start + rows.end, values)?;
        matrix.pack_tile(tile, values, out).map_err(|mut source| {
            if let LayoutError::Quant(error) = &mut source {
                error.row += start;
            }
            BuildError::Matrix { tensor: tensor.name.clone(), source }
        })?;
    }
    Ok(())
}

/// Write the whole header; its magic comes last of all.
fn write_header(layout: &ImageLayout, content: Digest, digests: &[Digest], header: &mut [u8]) {
    let mut bytes = Vec::with_capacity(header.len());
    bytes.extend([0; MAGIC.len()]);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((layout.places().len() as u32).to_le_bytes());
    bytes.extend((layout.bytes() as u64).to_le_bytes());
    bytes.extend(layout.identity());
    bytes.extend(content);
    bytes.extend([0; HEADER_DIGEST.end - HEADER_DIGEST.start]);
    debug_assert_eq!(bytes.len(), FIXED);
    for place in layout.places() {
        for number in [place.offset, place.len, place.chunk, place.first_chunk] {
            bytes.extend((number as u64).to_le_bytes());
        }
    }
    bytes.extend(digests.iter().flatten());
    bytes.resize(header.len(), 0);
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    let digest = sha256(&bytes);
    bytes[HEADER_DIGEST].copy_from_slice(&digest);
    header[MAGIC.len()..].copy_from_slice(&bytes[MAGIC.len()..]);
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
}
