//! `Header`: what one safetensors file says it holds, believed only after every claim is checked.
//!
//! Layout of a file: u64 header length (little-endian) | JSON header | tensor bytes. A tensor's bytes lie at
//! `8 + header length + data_offsets`. The codec is pure: it takes bytes and the file's length, never a file, so the
//! same checks hold for a file on disk and for a range of a remote one.
//!
//! The `safetensors` crate supplies the dtypes. Its own reader is not used: it keeps the last of two equal tensor names
//! without a word, and its errors do not say which tensor lies.
//!
//! **Policy**: as the format says, tensor bytes are packed. They start at offset 0 and end at the file's end, no two
//! tensors share a byte and no byte belongs to none.

use safetensors::Dtype;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Longest header accepted, in bytes: the cap that the format's reference reader has.
pub const HEADER_CAP: u64 = 100_000_000;

/// Most dimensions a tensor may have.
pub const RANK_CAP: usize = 8;

/// Bytes that hold the header's length.
const LENGTH_BYTES: u64 = 8;

/// Where and what one tensor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Element type as stored.
    pub dtype: Dtype,
    /// Shape as stored, row-major.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the file's start.
    pub bytes: Range<u64>,
}

/// The checked header of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their bytes.
    pub tensors: Vec<Entry>,
    /// Free text pairs.
    pub metadata: BTreeMap<String, String>,
}

/// How a header lies.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// No room for the header's length.
    #[error("{given} bytes are too few for a safetensors file, which starts with 8 bytes of header length")]
    TooShort {
        /// The file's length.
        given: u64,
    },
    /// The header claims to be longer than any real one.
    #[error("header length {given} is over the cap of {limit} bytes")]
    OverCap {
        /// The claim.
        given: u64,
        /// [`HEADER_CAP`].
        limit: u64,
    },
    /// The header would reach past the file's end.
    #[error("header length {given} reaches past the end: {limit} bytes follow the length")]
    PastEnd {
        /// The claim.
        given: u64,
        /// Bytes there are.
        limit: u64,
    },
    /// Not the JSON object that the format asks for.
    #[error("the header is not a JSON object of tensors: {source}")]
    Json {
        /// What the JSON reader found, with the tensor where one was being read.
        #[source]
        source: serde_json::Error,
    },
    /// Two tensors have one name.
    #[error("tensor '{tensor}' is listed twice")]
    Duplicate {
        /// The name.
        tensor: String,
    },
    /// An element type that the format does not know.
    #[error("tensor '{tensor}': dtype '{dtype}' is unknown")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// What stands there.
        dtype: String,
    },
    /// More dimensions than a weight has.
    #[error("tensor '{tensor}': {given} dimensions, at most {limit} are accepted")]
    Rank {
        /// The tensor.
        tensor: String,
        /// Dimensions.
        given: usize,
        /// [`RANK_CAP`].
        limit: usize,
    },
    /// The shape's size in bits does not fit a machine word, or is no whole number of bytes.
    #[error("tensor '{tensor}': shape {shape:?} of {dtype} has no size in whole bytes that a machine can address")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its dtype.
        dtype: Dtype,
    },
    /// The offsets run backwards.
    #[error("tensor '{tensor}': its bytes end at {end}, before they start at {start}")]
    Backwards {
        /// The tensor.
        tensor: String,
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// The offsets reach out of the file.
    #[error("tensor '{tensor}': its bytes end at {given}, the file holds {limit} bytes of tensors")]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// One past the last byte.
        given: u64,
        /// Tensor bytes in the file.
        limit: u64,
    },
    /// The byte range is not as long as shape and dtype say.
    #[error("tensor '{tensor}': {given} bytes are given, {shape:?} of {dtype} takes {expected}")]
    Size {
        /// The tensor.
        tensor: String,
        /// Bytes by the offsets.
        given: u64,
        /// Bytes by shape and dtype.
        expected: u64,
        /// Its shape.
        shape: Vec<usize>,
        /// Its dtype.
        dtype: Dtype,
    },
    /// Two tensors share bytes.
    #[error("tensors '{first}' and '{second}' overlap at byte {at}")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
        /// First shared byte.
        at: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {start}..{end} belong to no tensor (before '{before}')")]
    Gap {
        /// First byte of the gap.
        start: u64,
        /// One past its last.
        end: u64,
        /// The tensor after it, or "the end of the file".
        before: String,
    },
}

/// The header's length from a file's first bytes.
///
/// # Errors
/// [`HeaderError::TooShort`], [`HeaderError::OverCap`], [`HeaderError::PastEnd`].
pub fn header_length(first: &[u8], file_length: u64) -> Result<usize, HeaderError> {
    let length = first.first_chunk::<8>().filter(|_| file_length >= LENGTH_BYTES);
    let length = u64::from_le_bytes(*length.ok_or(HeaderError::TooShort { given: file_length })?);
    if length > HEADER_CAP {
        return Err(HeaderError::OverCap { given: length, limit: HEADER_CAP });
    }
    let limit = file_length - LENGTH_BYTES;
    if length > limit {
        return Err(HeaderError::PastEnd { given: length, limit });
    }
    usize::try_from(length).map_err(|_| HeaderError::OverCap { given: length, limit: HEADER_CAP })
}

impl Header {
    /// The header of a file from its JSON text and the file's length.
    ///
    /// # Errors
    /// See [`HeaderError`]: every way a header can contradict itself or the file.
    pub fn parse(json: &[u8], file_length: u64) -> Result<Self, HeaderError> {
        let raw: RawHeader = serde_json::from_slice(json).map_err(|source| HeaderError::Json { source })?;
        let data_start = LENGTH_BYTES + json.len() as u64;
        let data_length = file_length.saturating_sub(data_start);
        let mut tensors =
            raw.tensors.into_iter().map(|(name, raw)| entry(name, raw, data_length)).collect::<Result<Vec<_>, _>>()?;
        unique(&mut tensors)?;
        packed(&mut tensors, data_length)?;
        for tensor in &mut tensors {
            tensor.bytes = tensor.bytes.start + data_start..tensor.bytes.end + data_start;
        }
        Ok(Self { tensors, metadata: raw.metadata })
    }
}

/// One tensor, its bytes still counted from the first tensor byte.
fn entry(name: String, raw: RawEntry, data_length: u64) -> Result<Entry, HeaderError> {
    let dtype = Dtype::deserialize(IntoDeserializer::<de::value::Error>::into_deserializer(raw.dtype.as_str()));
    let dtype = dtype.map_err(|_| HeaderError::Dtype { tensor: name.clone(), dtype: raw.dtype })?;
    if raw.shape.len() > RANK_CAP {
        return Err(HeaderError::Rank { tensor: name, given: raw.shape.len(), limit: RANK_CAP });
    }
    let bits = raw.shape.iter().try_fold(dtype.bitsize() as u64, |bits, &dim| bits.checked_mul(dim));
    let shape = raw.shape.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>();
    let (Some(bits), Some(shape)) = (bits.filter(|bits| bits % 8 == 0), shape) else {
        return Err(HeaderError::Shape { tensor: name, shape: raw.shape, dtype });
    };
    let (start, end) = raw.data_offsets;
    let Some(given) = end.checked_sub(start) else {
        return Err(HeaderError::Backwards { tensor: name, start, end });
    };
    if end > data_length {
        return Err(HeaderError::OutOfFile { tensor: name, given: end, limit: data_length });
    }
    let expected = bits / 8;
    if given != expected {
        return Err(HeaderError::Size { tensor: name, given, expected, shape, dtype });
    }
    Ok(Entry { name, dtype, shape, bytes: start..end })
}

fn unique(tensors: &mut [Entry]) -> Result<(), HeaderError> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    match tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(HeaderError::Duplicate { tensor: pair[0].name.clone() }),
        None => Ok(()),
    }
}

fn packed(tensors: &mut [Entry], data_length: u64) -> Result<(), HeaderError> {
    // Empty tensors hold no byte: they stand before the tensor that starts where they do.
    tensors.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    let mut end = 0;
    let mut last = "";
    for tensor in tensors.iter() {
        let start = tensor.bytes.start;
        if start < end {
            return Err(HeaderError::Overlap { first: last.to_owned(), second: tensor.name.clone(), at: start });
        }
        if start > end {
            return Err(HeaderError::Gap { start: end, end: start, before: tensor.name.clone() });
        }
        end = tensor.bytes.end;
        last = &tensor.name;
    }
    if end < data_length {
        return Err(HeaderError::Gap { start: end, end: data_length, before: "the end of the file".to_owned() });
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header as text, names repeated if the file repeats them.
#[derive(Default)]
struct RawHeader {
    tensors: Vec<(String, RawEntry)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader::default();
        let mut metadata = false;
        while let Some(name) = entries.next_key::<String>()? {
            if name != "__metadata__" {
                let entry = entries.next_value_seed(Named::<RawEntry>(&name, std::marker::PhantomData))?;
                header.tensors.push((name, entry));
            } else if std::mem::replace(&mut metadata, true) {
                return Err(A::Error::custom("'__metadata__' stands twice"));
            } else {
                header.metadata = entries.next_value_seed(Named(&name, std::marker::PhantomData))?;
            }
        }
        Ok(header)
    }
}

/// Reads a value; an error names the entry it belongs to.
struct Named<'a, T>(&'a str, std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Named<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<T, D::Error> {
        T::deserialize(reader).map_err(|error| D::Error::custom(format_args!("entry '{}': {error}", self.0)))
    }
}
