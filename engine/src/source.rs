//! `WeightSource`: where the values of a program's tensors come from.

use std::collections::HashMap;
use std::ops::Range;
use wordline_ir::Tensor;

/// Why a weight could not be read.
#[derive(Debug, thiserror::Error)]
#[error("tensor '{tensor}': {reason}")]
pub struct SourceError {
    /// The program tensor's name.
    pub tensor: String,
    /// What is wrong, in the source's words.
    pub reason: String,
}

impl SourceError {
    /// An error about this tensor.
    #[must_use]
    pub fn new(tensor: &Tensor, reason: impl Into<String>) -> Self {
        Self { tensor: tensor.name.clone(), reason: reason.into() }
    }
}

/// Values of a program's tensors, row by row, as their views say: rows picked, transposed, one added where the view
/// says so, widened to f32. Several threads read at once.
pub trait WeightSource: Sync {
    /// Rows `rows` of the tensor's view into `out`, row-major, `rows.len() * tensor.cols` values.
    ///
    /// # Errors
    /// The source does not hold the tensor or could not read it.
    fn read_rows(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError>;
}

impl<T: WeightSource + ?Sized + Send> WeightSource for std::sync::Arc<T> {
    fn read_rows(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        (**self).read_rows(tensor, rows, out)
    }
}

/// Weights held in memory, by the program tensor's name, row-major.
#[derive(Clone, Debug, Default)]
pub struct MemorySource {
    tensors: HashMap<String, Vec<f32>>,
}

impl MemorySource {
    /// A source that holds nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hold these values under a tensor's name, in place of any before.
    pub fn insert(&mut self, name: impl Into<String>, values: Vec<f32>) {
        self.tensors.insert(name.into(), values);
    }

    /// The values of a tensor.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.tensors.get(name).map(Vec::as_slice)
    }
}

impl WeightSource for MemorySource {
    fn read_rows(&self, tensor: &Tensor, rows: Range<usize>, out: &mut [f32]) -> Result<(), SourceError> {
        let values = self.get(&tensor.name).ok_or_else(|| SourceError::new(tensor, "not in the source"))?;
        let (start, end) = (rows.start * tensor.cols, rows.end * tensor.cols);
        let held = values.get(start..end).filter(|held| held.len() == out.len());
        let held = held.ok_or_else(|| {
            SourceError::new(tensor, format!("rows {rows:?} asked for, {} values held", values.len()))
        })?;
        out.copy_from_slice(held);
        Ok(())
    }
}
