//! Rows of a [`View`]: picked, transposed, widened and shifted straight from the mapped bytes, a few rows at a time.

use super::files::FileError;
use super::weights::{TensorRef, Weights};
use super::{mxfp4, widen};
use safetensors::Dtype;
use std::ops::Range;
use wordline_engine::source::{SourceError, WeightSource};
use wordline_ir::Tensor;
use wordline_ir::spec::{Part, View};

/// Why rows of a view could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// No such tensor.
    #[error("the checkpoint holds no tensor '{tensor}'")]
    Missing {
        /// Its name.
        tensor: String,
    },
    /// The view was made for another shape.
    #[error("tensor '{tensor}' is stored as {found:?}, the view was made for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Shape as stored.
        found: Vec<usize>,
        /// Shape in the view.
        expected: Vec<usize>,
    },
    /// The stored type is no weight's.
    #[error("tensor '{tensor}' is stored as {dtype}, which is no weight's type")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Type as stored.
        dtype: Dtype,
    },
    /// The tensor's bytes cannot be read.
    #[error("tensor '{tensor}': {source}")]
    File {
        /// The tensor.
        tensor: String,
        /// Why.
        #[source]
        source: FileError,
    },
    /// A row range reaches outside its tensor, or the rows asked for outside the view.
    #[error("rows {start}..{end} of {what}, which has {limit}")]
    Rows {
        /// Whose rows.
        what: String,
        /// First row.
        start: usize,
        /// One past the last.
        end: usize,
        /// Rows there are.
        limit: usize,
    },
    /// Parts of unlike width, or an output that is not rows * columns long.
    #[error("{what}: {given} values in place of {expected}")]
    Width {
        /// Whose width.
        what: String,
        /// Given.
        given: usize,
        /// Needed.
        expected: usize,
    },
}

impl Weights {
    /// Rows `rows` of a view into `out`, row-major, `rows.len() * view.cols()` values.
    ///
    /// A part's shape is the stored one, or the stored one with its leading dimensions multiplied together.
    ///
    /// # Errors
    /// See [`ViewError`]: the view is checked against the file, whoever made it.
    pub fn read_view_rows(&self, view: &View, rows: Range<usize>, out: &mut [f32]) -> Result<(), ViewError> {
        let cols = view.cols();
        let expected = rows.len().saturating_mul(cols);
        if out.len() != expected {
            return Err(ViewError::Width { what: "the output".to_owned(), given: out.len(), expected });
        }
        let mut rest = &mut out[..];
        // Rows of the view that the segments before this one hold.
        let mut before = 0usize;
        for (part, segment) in view.parts.iter().flat_map(|part| part.rows.iter().map(move |rows| (part, rows))) {
            let after = before.saturating_add(segment.len());
            let (first, last) = (rows.start.max(before), rows.end.min(after));
            if first < last {
                let (now, later) = std::mem::take(&mut rest).split_at_mut((last - first) * cols);
                let start = segment.start + (first - before);
                self.read_part_rows(part, start..start + (last - first), cols, now)?;
                rest = later;
            }
            before = after;
        }
        if !rest.is_empty() || rows.end > before {
            let (start, end) = (rows.start, rows.end);
            return Err(ViewError::Rows { what: "the view".to_owned(), start, end, limit: before });
        }
        if view.add_one {
            out.iter_mut().for_each(|value| *value += 1.0);
        }
        Ok(())
    }

    fn read_part_rows(&self, part: &Part, rows: Range<usize>, cols: usize, out: &mut [f32]) -> Result<(), ViewError> {
        let name = &part.tensor;
        let tensor = self.tensor(name).ok_or_else(|| ViewError::Missing { tensor: name.clone() })?;
        if !same_elements(tensor.shape, &part.shape) {
            let (tensor, found, expected) = (name.clone(), tensor.shape.to_vec(), part.shape.clone());
            return Err(ViewError::Shape { tensor, found, expected });
        }
        if part.cols() != cols {
            return Err(ViewError::Width { what: format!("a row of '{name}'"), given: part.cols(), expected: cols });
        }
        let limit = if part.transpose { part.shape.get(1) } else { part.shape.first() }.copied().unwrap_or(0);
        if rows.end > limit {
            return Err(ViewError::Rows { what: format!("'{name}'"), start: rows.start, end: rows.end, limit });
        }
        let bytes = tensor.bytes().map_err(|source| ViewError::File { tensor: name.clone(), source })?;
        let scales = tensor.scales().map_err(|source| ViewError::File { tensor: name.clone(), source })?;
        let read = if let Some(scales) = scales {
            let (count, first) = (rows.len(), rows.start);
            if part.transpose {
                (0..cols).try_for_each(|col| {
                    mxfp4::scatter(bytes, scales, col * limit + first, count, out.get_mut(col..)?, cols)
                })
            } else {
                mxfp4::scatter(bytes, scales, first * cols, count * cols, out, 1)
            }
        } else if part.transpose {
            columns(tensor, bytes, limit, rows, cols, out)
        } else {
            plain(tensor, bytes, rows, cols, out)
        };
        read.ok_or_else(|| ViewError::Dtype { tensor: name.clone(), dtype: tensor.dtype })
    }
}

impl WeightSource for Weights {
    fn read_rows(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        self.read_view_rows(&tensor.view, rows, out).map_err(|error| SourceError::new(tensor, error.to_string()))
    }
}

/// Equal shapes, or equal once all dimensions but the last are multiplied together.
fn same_elements(stored: &[usize], viewed: &[usize]) -> bool {
    let flat = |shape: &[usize]| Some((shape.split_last()?.1.iter().product::<usize>(), *shape.last()?));
    stored == viewed || (viewed.len() == 2 && stored.len() > 2 && flat(stored) == flat(viewed))
}

fn plain(tensor: TensorRef<'_>, bytes: &[u8], rows: Range<usize>, cols: usize, out: &mut [f32]) -> Option<()> {
    let row = cols.checked_mul(widen::size(tensor.dtype)?)?;
    widen::widen(tensor.dtype, bytes.get(rows.start * row..rows.end * row)?, out)
}

/// Stored columns as rows: each stored row holds one value of every row wanted, side by side.
fn columns(
    tensor: TensorRef<'_>,
    bytes: &[u8],
    stored_cols: usize,
    rows: Range<usize>,
    cols: usize,
    out: &mut [f32],
) -> Option<()> {
    let size = widen::size(tensor.dtype)?;
    for col in 0..cols {
        let first = col * stored_cols;
        let bytes = bytes.get((first + rows.start) * size..(first + rows.end) * size)?;
        widen::scatter(tensor.dtype, bytes, out.get_mut(col..)?, cols)?;
    }
    Some(())
}
