//! Memory that the members of a team write at the same time, each its own part.

/// A slice cut in chunks that different threads may hold at once.
pub(crate) struct Parts<T> {
    base: *mut T,
    len: usize,
    chunk: usize,
}

// SAFETY: a `Parts` only hands out disjoint chunks, each to one thread (the contract of `get`).
unsafe impl<T: Send> Sync for Parts<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<T> {}

impl<T> Parts<T> {
    pub(crate) fn new(data: &mut [T], chunk: usize) -> Self {
        Self { base: data.as_mut_ptr(), len: data.len(), chunk }
    }

    pub(super) fn count(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// # Safety
    /// While the slice given to `new` is borrowed, each part is taken at most once.
    #[expect(clippy::mut_from_ref, reason = "disjoint chunks of one exclusive borrow, by the caller's promise")]
    pub(crate) unsafe fn get(&self, part: usize) -> &mut [T] {
        let start = (part * self.chunk).min(self.len);
        let len = self.chunk.min(self.len - start);
        // SAFETY: start + len lies within the slice; the caller takes each part once, so no two overlap.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}

/// The rows of a slot, of which different threads may write different columns at once.
pub(crate) struct Columns<'a> {
    base: *mut f32,
    rows: usize,
    width: usize,
    borrow: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: segments handed out are disjoint by the contract of `segment`.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    /// Rows of `width` elements; a rest shorter than a row is left out.
    pub(crate) fn new(values: &'a mut [f32], width: usize) -> Self {
        let rows = values.len().checked_div(width).unwrap_or(0);
        Self { base: values.as_mut_ptr(), rows, width, borrow: std::marker::PhantomData }
    }

    /// Columns `start .. start + len` of a row, cut to the row's end.
    ///
    /// # Safety
    /// No two segments that overlap are held at once.
    #[expect(clippy::mut_from_ref, reason = "disjoint segments of one exclusive borrow, by the caller's promise")]
    pub(crate) unsafe fn segment(&self, row: usize, start: usize, len: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let start = start.min(self.width);
        let len = len.min(self.width - start);
        // SAFETY: the segment lies within row `row`; the caller holds no other that overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.width + start), len) }
    }
}
