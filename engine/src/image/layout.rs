//! `ImageLayout`: where everything in an image lies, computed up front from the program alone.

use super::{ALIGN, CHUNK, Digest, FIXED, VERSION, sha256};
use std::ops::Range;
use wordline_ir::{Program, Tensor, TensorId, TensorKind, WeightFormat};
use wordline_kernels::format::Weights;
use wordline_kernels::matvec::{MatrixLayout, StackLayout};

/// Why a program's tensors have no layout.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LayoutError {
    /// The array unit has no layout for a matrix.
    #[error("tensor '{tensor}': {source}")]
    Matrix {
        /// The tensor.
        tensor: String,
        /// Why.
        source: wordline_kernels::matvec::LayoutError,
    },
    /// The image would not be addressable.
    #[error("the weight image of {bytes} bytes is larger than this machine can address")]
    TooLarge {
        /// Bytes.
        bytes: u128,
    },
}

/// Where a tensor lies in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// First byte.
    pub offset: usize,
    /// Bytes; 0 when the image does not hold the tensor.
    pub len: usize,
    /// Bytes of a chunk; the last may be shorter.
    pub chunk: usize,
    /// Number of the tensor's first chunk among all chunks.
    pub first_chunk: usize,
    /// How the bytes are read.
    pub form: Form,
}

/// How a tensor's bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tiles of one matrix.
    Matrix(MatrixLayout),
    /// Tiles of a stack of experts.
    Stack(StackLayout),
    /// f32 values.
    Plain,
}

impl Form {
    fn of(tensor: &Tensor, weights: Weights) -> Result<Self, wordline_kernels::matvec::LayoutError> {
        Ok(match tensor.kind {
            TensorKind::Matrix => Form::Matrix(MatrixLayout::of(weights, tensor.rows, tensor.cols)?),
            TensorKind::Stack { experts } => {
                let rows = tensor.rows.checked_div(experts).unwrap_or(0);
                Form::Stack(StackLayout::of(weights, experts, rows, tensor.cols)?)
            }
            TensorKind::Plain => Form::Plain,
        })
    }

    /// Bytes of the smallest part that stands by itself: a tile, or one row of a plain tensor.
    pub(crate) fn part_bytes(&self, cols: usize) -> usize {
        match self {
            Form::Matrix(matrix) => matrix.tile_bytes(),
            Form::Stack(stack) => stack.matrix().tile_bytes(),
            Form::Plain => cols * size_of::<f32>(),
        }
    }

    fn bytes(&self, tensor: &Tensor) -> usize {
        match self {
            Form::Matrix(matrix) => matrix.bytes(),
            Form::Stack(stack) => stack.bytes(),
            // `verify` bounds the elements of a program far below an address.
            Form::Plain => tensor.rows * tensor.cols * size_of::<f32>(),
        }
    }
}

impl Place {
    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.len.div_ceil(self.chunk.max(1))
    }

    /// The tensor's bytes.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// The bytes of one of its chunks.
    pub(crate) fn chunk_range(&self, chunk: usize) -> Range<usize> {
        let start = self.offset + (chunk * self.chunk).min(self.len);
        start..(start + self.chunk).min(self.offset + self.len)
    }
}

/// Where everything in a program's weight image lies.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageLayout {
    places: Vec<Place>,
    chunks: usize,
    header: usize,
    bytes: usize,
    identity: Digest,
}

impl ImageLayout {
    /// The layout of an image with every tensor of the program.
    ///
    /// # Errors
    /// A tensor or the whole is too large for this machine.
    pub fn of(program: &Program) -> Result<Self, LayoutError> {
        Self::with(program, |_| true)
    }

    /// The layout of an image with the tensors that the program's commands name: what one stage of a pipeline holds,
    /// under the whole program's tensor numbers.
    ///
    /// # Errors
    /// As [`ImageLayout::of`].
    pub fn of_used(program: &Program) -> Result<Self, LayoutError> {
        let mut used = vec![false; program.tensors.len()];
        for (_, id) in program.commands.iter().flat_map(|c| c.tensors()) {
            if let Some(used) = used.get_mut(id.index()) {
                *used = true;
            }
        }
        Self::with(program, |index| used[index])
    }

    fn with(program: &Program, held: impl Fn(usize) -> bool) -> Result<Self, LayoutError> {
        let mut places = Vec::with_capacity(program.tensors.len());
        let weights = stored(program.identity.numerics.weights);
        let (mut chunks, mut at) = (0_usize, 0_u128);
        for (index, tensor) in program.tensors.iter().enumerate() {
            let refuse = |source| LayoutError::Matrix { tensor: tensor.name.clone(), source };
            let form = Form::of(tensor, weights).map_err(refuse)?;
            let len = if held(index) { form.bytes(tensor) } else { 0 };
            let part = form.part_bytes(tensor.cols);
            let chunk = (CHUNK / part).max(1) * part;
            // Offsets count from the end of the header until its length is known.
            let place = Place { offset: at as usize, len, chunk, first_chunk: chunks, form };
            chunks += place.chunks();
            places.push(place);
            at = (at + len as u128).next_multiple_of(ALIGN as u128);
            if at > isize::MAX as u128 {
                return Err(LayoutError::TooLarge { bytes: at });
            }
        }
        let header = (FIXED + 32 * (places.len() + chunks)).next_multiple_of(ALIGN);
        let bytes = header as u128 + at;
        if bytes > isize::MAX as u128 {
            return Err(LayoutError::TooLarge { bytes });
        }
        places.iter_mut().for_each(|place| place.offset += header);
        let identity = identity(program, &places);
        Ok(Self { places, chunks, header, bytes: bytes as usize, identity })
    }

    /// Bytes of the image.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the image before its first tensor.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.header
    }

    /// Chunks of all tensors.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Identity of the layout: equal for two programs exactly when an image built for one serves the other. It is made
    /// of the tensor table with its views, of the weight format and of the image's version; commands are not part.
    #[must_use]
    pub fn identity(&self) -> Digest {
        self.identity
    }

    /// Where each tensor lies, by [`TensorId`].
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Where one tensor lies; `None` when the image does not hold it.
    #[must_use]
    pub fn place(&self, id: TensorId) -> Option<&Place> {
        self.places.get(id.index()).filter(|place| place.len > 0)
    }
}

/// How a program's weight format reads to the kernels.
pub(crate) fn stored(weights: WeightFormat) -> Weights {
    match weights {
        WeightFormat::Int8 => Weights::Int8,
        WeightFormat::Code4 => Weights::Code4,
        WeightFormat::E2m1 => Weights::E2m1,
    }
}

fn identity(program: &Program, places: &[Place]) -> Digest {
    #[derive(serde::Serialize)]
    struct Identity<'a> {
        version: u32,
        weights: WeightFormat,
        tensors: &'a [Tensor],
        held: Vec<bool>,
    }
    let identity = Identity {
        version: VERSION,
        weights: program.identity.numerics.weights,
        tensors: &program.tensors,
        held: places.iter().map(|place| place.len > 0).collect(),
    };
    // Plain data: writing it as JSON cannot fail.
    sha256(&serde_json::to_vec(&identity).unwrap_or_default())
}
