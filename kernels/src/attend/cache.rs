//! The cache of one sequence and layer: keys and values quantised once, when they are appended.
//!
//! Positions lie in pages of 32, so a page is a block of the product with the values. A page holds, per key head:
//!
//! | bytes | what |
//! |---|---|
//! | 2 tiles | the keys of 16 positions each, as [`MatrixLayout`] packs 16 rows |
//! | 32 a block of 32 value elements | scale exponent of each position's values, i8; then to the next multiple of 64 |
//! | 512 a tile of 16 value elements | their integers biased by 128, `[8 quads][16 elements][4 positions]` |
//!
//! Memory grows page by page. A ring (a windowed layer's cache) has a fixed number of pages: position `p` lies in page
//! `(p / 32) mod pages`, and takes the place of the position a lap before.

use crate::format::{BLOCK, Cause, EXP_MIN, Limbs, max_bits, pow2_exponent, quantise_pow2};
use crate::matvec::{LayoutError, MatrixLayout, TILE_ROWS, ZERO, tile_parts};

/// Elements of a value tile and block.
const TILE_BYTES: usize = BLOCK * TILE_ROWS;

/// Why a cache has no layout or a row cannot be appended.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum CacheError {
    /// The shape has no cache.
    #[error("a cache of {kv_heads} heads of {head_dim} keys and {v_dim} values keeping {keep:?} positions: {reason}")]
    Shape {
        /// Key and value heads.
        kv_heads: usize,
        /// Dimension of a key.
        head_dim: usize,
        /// Dimension of a value.
        v_dim: usize,
        /// Positions kept.
        keep: Option<usize>,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The keys or values of a row have another length.
    #[error("{given} {what} are appended to a cache that takes {expected} a position")]
    Values {
        /// "keys" or "values".
        what: &'static str,
        /// Elements given.
        given: usize,
        /// Elements of a position.
        expected: usize,
    },
    /// A key or value has no int8 form.
    #[error("{what} of head {head}, block {block}: {cause}")]
    Quant {
        /// "keys" or "values".
        what: &'static str,
        /// Head.
        head: usize,
        /// Block along the head.
        block: usize,
        /// Why.
        cause: Cause,
    },
}

/// Shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheLayout {
    kv_heads: usize,
    v_dim: usize,
    /// The keys of 16 positions.
    keys: MatrixLayout,
    /// Pages of a ring.
    ring: Option<usize>,
}

impl CacheLayout {
    /// A cache of `kv_heads` keys of `head_dim` and values of `v_dim` a position. With `keep` it is a ring that holds
    /// at least the last `keep` positions: a layer with a window needs `window - 1` and the rows of the largest step.
    ///
    /// # Errors
    /// A size is zero or out of reach.
    pub fn new(kv_heads: usize, head_dim: usize, v_dim: usize, keep: Option<usize>) -> Result<Self, CacheError> {
        let refuse = |reason| CacheError::Shape { kv_heads, head_dim, v_dim, keep, reason };
        if kv_heads == 0 || v_dim == 0 || keep == Some(0) {
            return Err(refuse("every size must be at least 1"));
        }
        let keys = MatrixLayout::new(TILE_ROWS, head_dim).map_err(|error| match error {
            LayoutError::Empty { .. } => refuse("every size must be at least 1"),
            _ => refuse("the heads are too wide"),
        })?;
        let layout = Self { kv_heads, v_dim, keys, ring: keep.map(|keep| keep.div_ceil(BLOCK)) };
        if v_dim > 1 << 20 || kv_heads > 1 << 16 {
            return Err(refuse("the heads are too wide or too many"));
        }
        Ok(layout)
    }

    /// Key and value heads.
    #[must_use]
    pub const fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Dimension of a key.
    #[must_use]
    #[inline]
    pub const fn head_dim(&self) -> usize {
        self.keys.cols()
    }

    /// Dimension of a value.
    #[must_use]
    #[inline]
    pub const fn v_dim(&self) -> usize {
        self.v_dim
    }

    /// Bytes of one position, its share of a page's padding included.
    #[must_use]
    pub const fn position_bytes(&self) -> usize {
        self.page_bytes() / BLOCK
    }

    /// Bytes of a page of 32 positions.
    #[must_use]
    #[inline]
    pub const fn page_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Pages of a ring; `None`: as many as there are positions.
    #[must_use]
    pub const fn ring(&self) -> Option<usize> {
        self.ring
    }

    #[inline]
    pub(crate) const fn keys(&self) -> &MatrixLayout {
        &self.keys
    }

    #[inline]
    pub(crate) const fn head_bytes(&self) -> usize {
        self.values_at() + self.v_dim.div_ceil(TILE_ROWS) * TILE_BYTES
    }

    /// Where the value exponents lie in a head's part of a page, and the value integers.
    #[inline]
    pub(crate) const fn exponents_at(&self) -> usize {
        self.keys.tile_bytes() * (BLOCK / TILE_ROWS)
    }

    #[inline]
    pub(crate) const fn values_at(&self) -> usize {
        self.exponents_at() + (self.v_dim.div_ceil(BLOCK) * BLOCK).next_multiple_of(64)
    }
}

/// A cache line, so that tiles start at one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The cache of one sequence and layer.
#[derive(Clone, Debug)]
pub struct Cache {
    layout: CacheLayout,
    /// Pages, one after the other.
    lines: Vec<Line>,
    len: usize,
}

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(layout: CacheLayout) -> Self {
        Self { layout, lines: Vec::new(), len: 0 }
    }

    /// Make room for this many positions, so that appending them allocates nothing. Memory that is not written yet takes
    /// no page of the system.
    pub fn reserve(&mut self, positions: usize) {
        let pages = self.layout.ring.unwrap_or(usize::MAX).min(positions.div_ceil(BLOCK));
        let lines = pages * self.layout.page_bytes() / size_of::<Line>();
        self.lines.reserve(lines.saturating_sub(self.lines.len()));
    }

    /// Its layout.
    #[must_use]
    pub fn layout(&self) -> &CacheLayout {
        &self.layout
    }

    /// Positions appended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when nothing was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first position that is still held.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.layout.ring.map_or(0, |pages| self.len.saturating_sub(pages * BLOCK))
    }

    /// Bytes of memory that hold positions.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Every byte that holds positions, in the order of the pages: two caches that took the same rows hold equal bytes.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        self.as_bytes()
    }

    /// Become the cache that had seen `len` positions and then held these bytes, as [`Cache::content`] gives them; what
    /// is no whole number of its pages is left out.
    pub fn restore(&mut self, len: usize, content: &[u8]) {
        let pages = content.len() / self.layout.page_bytes();
        self.lines.clear();
        self.lines.resize(pages * self.layout.page_bytes() / size_of::<Line>(), Line([0; 64]));
        let bytes = self.bytes_mut();
        bytes.copy_from_slice(&content[..bytes.len()]);
        self.len = len;
    }

    /// Forget every position, keeping the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Quantise one position's keys `[kv_heads, head_dim]` and values `[kv_heads, v_dim]` and store them.
    ///
    /// # Errors
    /// A length is wrong or a block has no int8 form; no position was appended then.
    pub fn append(&mut self, keys: &[f32], values: &[f32]) -> Result<(), CacheError> {
        let CacheLayout { kv_heads, v_dim, keys: tile, .. } = self.layout;
        for (what, given, expected) in
            [("keys", keys.len(), kv_heads * tile.cols()), ("values", values.len(), kv_heads * v_dim)]
        {
            if given != expected {
                return Err(CacheError::Values { what, given, expected });
            }
        }
        let (page, slot) = (self.page_index(self.len / BLOCK), self.len % BLOCK);
        let lines = self.layout.page_bytes() / size_of::<Line>();
        if self.lines.len() < (page + 1) * lines {
            self.lines.resize((page + 1) * lines, Line([0; 64]));
        }
        let (layout, head_bytes) = (self.layout, self.layout.head_bytes());
        let bytes = &mut self.bytes_mut()[page * layout.page_bytes()..][..layout.page_bytes()];
        for (head, bytes) in bytes.chunks_exact_mut(head_bytes).enumerate() {
            let tile_bytes = &mut bytes[slot / TILE_ROWS * tile.tile_bytes()..][..tile.tile_bytes()];
            let key = &keys[head * tile.cols()..][..tile.cols()];
            tile.pack_row(slot % TILE_ROWS, key, tile_bytes).map_err(|(block, cause)| CacheError::Quant {
                what: "keys",
                head,
                block,
                cause,
            })?;
            let value = &values[head * v_dim..][..v_dim];
            let (exponents, integers) =
                bytes[layout.exponents_at()..].split_at_mut(layout.values_at() - layout.exponents_at());
            pack_value(value, slot, exponents, integers).map_err(|(block, cause)| CacheError::Quant {
                what: "values",
                head,
                block,
                cause,
            })?;
        }
        self.len += 1;
        Ok(())
    }

    /// The bases, scale bytes and elements of the keys in one half of a page.
    #[inline]
    pub(crate) fn keys(&self, page: usize, head: usize, half: usize) -> (&[u8; TILE_ROWS], &[u8], &[u8]) {
        let tile = self.layout.keys.tile_bytes();
        tile_parts(&self.layout.keys, &self.head(page, head)[half * tile..][..tile])
    }

    /// The exponents of one block of value elements, one a position of the page, as i8.
    #[inline]
    pub(crate) fn exponents(&self, page: usize, head: usize, block: usize) -> &[u8; BLOCK] {
        let (blocks, _) = self.head(page, head)[self.layout.exponents_at()..].as_chunks();
        &blocks[block]
    }

    /// The integers of one tile of value elements from a page on, and the bytes from one page to the next.
    #[inline]
    pub(crate) fn values(&self, page: usize, head: usize, tile: usize) -> (&[u8], usize) {
        let at = self.head_at(page, head) + self.layout.values_at() + tile * TILE_BYTES;
        (&self.as_bytes()[at..], self.layout.page_bytes())
    }

    /// How many pages from this one on lie one after the other.
    #[inline]
    pub(crate) fn contiguous(&self, page: usize) -> usize {
        self.layout.ring.map_or(usize::MAX, |pages| pages - page % pages)
    }

    #[inline]
    fn page_index(&self, page: usize) -> usize {
        self.layout.ring.map_or(page, |pages| page % pages)
    }

    #[inline]
    fn head_at(&self, page: usize, head: usize) -> usize {
        self.page_index(page) * self.layout.page_bytes() + head * self.layout.head_bytes()
    }

    #[inline]
    fn head(&self, page: usize, head: usize) -> &[u8] {
        &self.as_bytes()[self.head_at(page, head)..][..self.layout.head_bytes()]
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: a `Line` is 64 bytes without padding, and u8 has no alignment.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), size_of_val(self.lines.as_slice())) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`, and any byte is a valid part of a `Line`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), size_of_val(self.lines.as_slice())) }
    }
}

/// Quantise one position's value of one head, a power-of-two scale a block, into column `slot` of a page.
fn pack_value(value: &[f32], slot: usize, exponents: &mut [u8], integers: &mut [u8]) -> Result<(), (usize, Cause)> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { pack_value_avx2(value, slot, exponents, integers) };
    }
    pack_blocks(value, slot, exponents, integers)
}

/// [`pack_blocks`] compiled for AVX2: the same integer operations.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn pack_value_avx2(
    value: &[f32],
    slot: usize,
    exponents: &mut [u8],
    integers: &mut [u8],
) -> Result<(), (usize, Cause)> {
    pack_blocks(value, slot, exponents, integers)
}

#[inline(always)]
fn pack_blocks(value: &[f32], slot: usize, exponents: &mut [u8], integers: &mut [u8]) -> Result<(), (usize, Cause)> {
    for (block, part) in value.chunks(BLOCK).enumerate() {
        let e = max_bits(part).and_then(|max| pow2_exponent(max, Limbs::One)).map_err(|cause| (block, cause))?;
        exponents[block * BLOCK + slot] = e as i8 as u8;
        let mut q = [0; BLOCK];
        for (q, v) in q.iter_mut().zip(part) {
            *q = quantise_pow2(*v, e) as i8 as u8 ^ ZERO;
        }
        for (tile, q) in q[..part.len()].chunks(TILE_ROWS).enumerate() {
            let quad = &mut integers[(block * (BLOCK / TILE_ROWS) + tile) * TILE_BYTES + slot / 4 * TILE_ROWS * 4..];
            for (bytes, q) in quad.chunks_exact_mut(4).zip(q) {
                bytes[slot % 4] = *q;
            }
        }
    }
    Ok(())
}

// Value exponents are stored in a byte.
const _: () = assert!(EXP_MIN >= i8::MIN as i32);
