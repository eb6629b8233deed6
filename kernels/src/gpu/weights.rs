//! `DeviceMatrix`: a matrix or a stack of experts in device memory, packed once for the array unit's shaders.
//!
//! Four rows make a quad. A quad's elements lie `[groups of blocks][4 rows][2 halves of a block][blocks of the group]`,
//! 16 bytes each, so that threads that take neighbouring blocks read neighbouring bytes and a quad is one stream. A group
//! has as many blocks, up to 8, as divide the row: nothing is padded. Scales lie apart: a word for each block, with one
//! byte for each of the quad's rows, then a word for each quad with the rows' exponent bases.
//!
//! In the 4-bit formats a row's block is 16 bytes, the codes of two neighbouring columns a byte, so a quad's elements lie
//! `[groups of blocks][4 rows][blocks of the group]`. A block has two words of scales, one a half. Before the scales lies a
//! table: for each byte of codes the two levels that it names.
//!
//! A matrix that is larger than a binding may be lies in several chunks, each with whole experts or with some rows of one.

use super::device::Gpu;
use super::error::GpuError;
use super::region::Region;
use crate::format::{HALF, Weights};
use crate::matvec::{BLOCK_BYTES, LayoutError, Matrix, MatrixLayout, Stack, TILE_ROWS, ZERO};
use std::ops::Range;

/// Rows of a quad.
pub(super) const QUAD: usize = 4;
/// Quads of a tile of the host's layout.
const TILE_QUADS: usize = TILE_ROWS / QUAD;
/// Bytes that are packed and sent at a time.
const PIECE: usize = 16 << 20;

/// Why a matrix is not in device memory.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UploadError {
    /// The device fails.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The stack has no such expert.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// A part of a matrix or stack that one binding shows.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) experts: Range<usize>,
    /// Rows of each of the experts.
    pub(super) rows: Range<usize>,
    /// `[experts][quads]`.
    pub(super) elements: Region,
    /// The table of the format's levels, then `[experts]`: `[quads][blocks]`, then `[quads]`.
    pub(super) scales: Region,
}

impl Chunk {
    fn new(
        gpu: &Gpu,
        what: &str,
        layout: &MatrixLayout,
        experts: Range<usize>,
        rows: Range<usize>,
    ) -> Result<Self, GpuError> {
        let quads = rows.len().div_ceil(QUAD);
        let elements = gpu.region(what, (experts.len() * quads * quad_bytes(layout)) as u64)?;
        let table = table(layout);
        let words = table.len() + experts.len() * quads * (words_of(layout) + 1);
        let scales = gpu.region(what, 4 * words as u64)?;
        if !table.is_empty() {
            gpu.write(&scales, 0, bytemuck::cast_slice(&table))?;
        }
        Ok(Self { experts, rows, elements, scales })
    }

    pub(super) fn quads(&self) -> usize {
        self.rows.len().div_ceil(QUAD)
    }
}

/// A matrix, or a stack of experts of one shape, in device memory.
#[derive(Clone, Debug)]
pub struct DeviceMatrix {
    layout: MatrixLayout,
    experts: usize,
    chunks: Vec<Chunk>,
}

impl DeviceMatrix {
    /// Pack and upload a matrix; `what` names it in failures.
    ///
    /// # Errors
    /// Memory runs out, or the device is lost.
    pub fn matrix(gpu: &Gpu, what: &str, matrix: Matrix<'_>) -> Result<Self, UploadError> {
        Self::upload(gpu, what, matrix.layout(), 1, &|_| Ok(matrix))
    }

    /// Pack and upload a stack.
    ///
    /// # Errors
    /// Memory runs out, or the device is lost.
    pub fn stack(gpu: &Gpu, what: &str, stack: Stack<'_>) -> Result<Self, UploadError> {
        let layout = stack.layout();
        Self::upload(gpu, what, layout.matrix(), layout.experts(), &|expert| stack.expert(expert))
    }

    /// Shape of the matrix, or of one expert.
    #[must_use]
    pub fn layout(&self) -> MatrixLayout {
        self.layout
    }

    /// Experts; a matrix is one.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Bytes that a product with the matrix, or with one expert, streams.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let quads = self.layout.rows().div_ceil(QUAD);
        (quads * (quad_bytes(&self.layout) + 4 * (words_of(&self.layout) + 1))) as u64
    }

    /// A matrix of no particular values, for measurements: memory and layout alone.
    ///
    /// # Errors
    /// Memory runs out, or the device is lost.
    pub fn blank(gpu: &Gpu, what: &str, layout: MatrixLayout) -> Result<Self, GpuError> {
        let limit = gpu.facts().binding_limit.min(gpu.facts().buffer_limit) as usize;
        let chunks =
            split(&layout, 1, limit).into_iter().map(|(experts, rows)| Chunk::new(gpu, what, &layout, experts, rows));
        Ok(Self { layout, experts: 1, chunks: chunks.collect::<Result<_, _>>()? })
    }

    /// The memory that holds it.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.chunks.iter().flat_map(|chunk| [&chunk.elements, &chunk.scales])
    }

    pub(super) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    fn upload<'a>(
        gpu: &Gpu,
        what: &str,
        layout: MatrixLayout,
        experts: usize,
        expert: &dyn Fn(usize) -> Result<Matrix<'a>, LayoutError>,
    ) -> Result<Self, UploadError> {
        let limit = gpu.facts().binding_limit.min(gpu.facts().buffer_limit) as usize;
        let chunks = split(&layout, experts, limit).into_iter().map(|(experts, rows)| {
            let chunk = Chunk::new(gpu, what, &layout, experts, rows)?;
            for (at, number) in chunk.experts.clone().enumerate() {
                send(gpu, &chunk, at, expert(number)?)?;
            }
            Ok::<_, UploadError>(chunk)
        });
        Ok(Self { layout, experts, chunks: chunks.collect::<Result<_, _>>()? })
    }
}

/// Whole experts to a chunk, or whole tiles of one expert where it is larger than the limit.
fn split(layout: &MatrixLayout, experts: usize, limit: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let rows = layout.rows();
    let whole = rows.div_ceil(QUAD) * quad_bytes(layout);
    let each = limit / whole;
    if each > 0 {
        let range = |first: usize| (first..(first + each).min(experts), 0..rows);
        return (0..experts).step_by(each).map(range).collect();
    }
    // One tile of the longest row is 16 MiB, below any device's limit.
    let step = (limit / (TILE_QUADS * quad_bytes(layout))).max(1) * TILE_ROWS;
    let parts = |e: usize| (0..rows).step_by(step).map(move |r| (e..e + 1, r..(r + step).min(rows)));
    (0..experts).flat_map(parts).collect()
}

/// Pack one expert's rows of a chunk and send them, a piece at a time.
fn send(gpu: &Gpu, chunk: &Chunk, at: usize, matrix: Matrix<'_>) -> Result<(), GpuError> {
    let layout = matrix.layout();
    let (words, quads, bytes) = (words_of(&layout), chunk.quads(), quad_bytes(&layout));
    let first_quad = chunk.rows.start / QUAD;
    let piece = (PIECE / bytes / TILE_QUADS).max(1) * TILE_QUADS;
    let mut elements = vec![0_u32; piece.min(quads) * bytes / 4];
    let mut scales = vec![0_u32; quads * (words + 1)];
    let (codes, bases) = scales.split_at_mut(quads * words);
    for first in (0..quads).step_by(piece) {
        let n = piece.min(quads - first);
        let part = &mut elements[..n * bytes / 4];
        let jobs = part.chunks_mut(bytes / 4).zip(codes[first * words..].chunks_mut(words)).zip(&mut bases[first..]);
        let jobs: Vec<_> = jobs.enumerate().collect();
        in_threads(jobs, |(i, ((elements, codes), base))| {
            pack(&matrix, first_quad + first + i, elements, codes, base);
        });
        gpu.write(&chunk.elements, ((at * quads + first) * bytes) as u64, bytemuck::cast_slice(part))?;
        // What is written waits in host memory until it is submitted.
        gpu.queue().submit([]);
        if quads > piece {
            gpu.wait(None)?;
        }
    }
    let offset = table(&layout).len() + at * scales.len();
    gpu.write(&chunk.scales, 4 * offset as u64, bytemuck::cast_slice(&scales))
}

/// Run `job` on every item, on as many threads as there are processors.
fn in_threads<T: Send>(items: Vec<T>, job: impl Fn(T) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if threads == 1 || items.len() < 2 * threads {
        return items.into_iter().for_each(job);
    }
    let each = items.len().div_ceil(threads);
    let mut items = items.into_iter();
    let job = &job;
    std::thread::scope(|scope| {
        loop {
            let part: Vec<T> = items.by_ref().take(each).collect();
            if part.is_empty() {
                break;
            }
            scope.spawn(move || part.into_iter().for_each(job));
        }
    });
}

/// Pack quad `quad` of the matrix.
fn pack(matrix: &Matrix<'_>, quad: usize, elements: &mut [u32], codes: &mut [u32], base: &mut u32) {
    let layout = matrix.layout();
    let group = group(&layout);
    let (bases, bytes, blocks) = matrix.tile_parts(quad / TILE_QUADS);
    let r0 = quad % TILE_QUADS * QUAD;
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    *base = word(&bases[r0..]);
    if layout.weights().book().is_some() {
        // Scale bytes lie by halves, as the words are wanted; each half's 16 codes become 8 bytes.
        for (code, bytes) in codes.iter_mut().zip(bytes.chunks_exact(TILE_ROWS)) {
            *code = word(&bytes[r0..]);
        }
        for (block, data) in blocks.chunks_exact(layout.block_bytes()).enumerate() {
            let place = block / group * group * QUAD * 4 + block % group * 4;
            for r in 0..QUAD {
                let code = |half: usize, column: usize| {
                    let byte = data[(column / 4 * TILE_ROWS + r0 + r) * 4 + column % 4];
                    byte >> (4 * half) & 15
                };
                let pair = |i: usize| {
                    let (half, column) = (i / (HALF / 2), i % (HALF / 2) * 2);
                    code(half, column) | code(half, column + 1) << 4
                };
                for (i, element) in elements[place + r * group * 4..][..4].iter_mut().enumerate() {
                    *element = u32::from_le_bytes(std::array::from_fn(|k| pair(4 * i + k)));
                }
            }
        }
        return;
    }
    let zero = u32::from_le_bytes([ZERO; 4]);
    for (block, (code, data)) in codes.iter_mut().zip(blocks.chunks_exact(BLOCK_BYTES)).enumerate() {
        *code = word(&bytes[block * TILE_ROWS + r0..]);
        let place = block / group * group * QUAD * 8 + block % group * 4;
        for (columns, line) in data.chunks_exact(TILE_ROWS * 4).enumerate() {
            for (r, bytes) in line[r0 * 4..][..QUAD * 4].chunks_exact(4).enumerate() {
                let at = place + (r * 2 + columns / 4) * group * 4 + columns % 4;
                elements[at] = word(bytes) ^ zero;
            }
        }
    }
}

/// Bytes of a quad's elements.
fn quad_bytes(layout: &MatrixLayout) -> usize {
    QUAD * layout.block_bytes() / TILE_ROWS * layout.blocks()
}

/// Words with the scales of a quad's blocks.
fn words_of(layout: &MatrixLayout) -> usize {
    scale_words(layout.weights(), layout.blocks() as u32) as usize
}

/// Words with the scales of a quad's blocks.
pub(super) fn scale_words(weights: Weights, blocks: u32) -> u32 {
    if weights.book().is_some() { 2 * blocks } else { blocks }
}

/// Words before the scales: the levels of every pair of codes.
pub(super) fn table_words(weights: Weights) -> u32 {
    if weights.book().is_some() { 256 } else { 0 }
}

/// The levels that each byte of two codes names, the lower half's in the lower byte; of int8 none.
fn table(layout: &MatrixLayout) -> Vec<u32> {
    let Some(book) = layout.weights().book() else { return Vec::new() };
    let level = |code: u32| u32::from(book.levels[(code & 15) as usize] as u8);
    (0..table_words(layout.weights())).map(|byte| level(byte) | level(byte >> 4) << 8).collect()
}

/// Blocks of a group.
pub(super) fn group(layout: &MatrixLayout) -> usize {
    1 << layout.blocks().trailing_zeros().min(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_row_of_every_expert_once_within_the_limit() {
        for (rows, cols, experts, limit) in
            [(151_936, 1024, 1, 128 << 20), (17, 96, 5, 4096), (640, 64, 3, 16 << 10), (48, 32, 8, 1 << 20)]
        {
            let layout = MatrixLayout::new(rows, cols).unwrap();
            let chunks = split(&layout, experts, limit);
            let mut seen = vec![0; rows * experts];
            for (e, r) in &chunks {
                assert!(e.len() * r.len().div_ceil(QUAD) * quad_bytes(&layout) <= limit, "{e:?} {r:?}");
                assert!(r.start.is_multiple_of(TILE_ROWS) && (e.len() == 1 || r.len() == rows));
                e.clone().for_each(|e| r.clone().for_each(|r| seen[e * rows + r] += 1));
            }
            assert!(seen.iter().all(|n| *n == 1), "{rows} x {cols}, {experts} experts");
        }
    }
}
