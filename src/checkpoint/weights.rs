//! `Weights`: every tensor of a checkpoint by name, read in place from mapped files.
//!
//! One `model.safetensors`, or several files that a `model.safetensors.index.json` lists; where both are there the
//! single file is taken, as the reference framework does. The index is believed only where the files agree: each
//! tensor it lists lies in the file it names, and the files hold no tensor that it does not list.

use super::files::{Blob, FileError, Folder};
use super::header::{Entry, Header, HeaderError, header_length};
use super::json;
use safetensors::Dtype;
use serde_json::Value;
use std::collections::BTreeMap;

/// Name of the weights in one file.
pub const SINGLE_FILE: &str = "model.safetensors";
/// Name of the list of several files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Every tensor of a checkpoint.
#[derive(Debug)]
pub struct Weights {
    pub(super) files: Vec<WeightFile>,
    tensors: BTreeMap<String, Place>,
}

/// One weight file.
#[derive(Debug)]
pub(super) struct WeightFile {
    pub(super) name: String,
    pub(super) blob: Blob,
}

/// Where a tensor lies.
#[derive(Debug)]
struct Place {
    file: usize,
    entry: Entry,
}

/// One tensor as stored.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Shape, row-major.
    pub shape: &'a [usize],
    /// Its bytes, little-endian; as many as dtype and shape take.
    pub bytes: &'a [u8],
}

/// Why a checkpoint's weights were refused.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There are no weights of a kind that can be read.
    #[error("{folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}{other}")]
    None {
        /// The folder.
        folder: String,
        /// What else is there.
        other: &'static str,
    },
    /// A file's header lies.
    #[error("{file}: {source}")]
    Header {
        /// The file.
        file: String,
        /// How.
        #[source]
        source: HeaderError,
    },
    /// The index is not JSON.
    #[error("{file}: not a JSON object: {source}")]
    IndexJson {
        /// The index.
        file: String,
        /// What the JSON reader found.
        #[source]
        source: serde_json::Error,
    },
    /// The index has no map of tensor names to file names.
    #[error("{file}: key 'weight_map' must be an object of tensor names and file names, and not empty")]
    IndexMap {
        /// The index.
        file: String,
    },
    /// The index names something that is no weight file beside it.
    #[error(
        "{file}: tensor '{tensor}' is said to lie in '{name}'; only a file of the same folder, ending in .safetensors, \
         may be named"
    )]
    IndexFileName {
        /// The index.
        file: String,
        /// The tensor.
        tensor: String,
        /// The file name given.
        name: String,
    },
    /// The index names a file that is not there.
    #[error("{file}: tensor '{tensor}' is said to lie in '{name}', which is not there")]
    IndexAbsentFile {
        /// The index.
        file: String,
        /// The first tensor that lies in it.
        tensor: String,
        /// The absent file.
        name: String,
    },
    /// A file lacks a tensor that the index says it holds.
    #[error("{file}: tensor '{tensor}' is listed in {INDEX_FILE} for this file, which does not hold it")]
    IndexMissing {
        /// The weight file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A file holds a tensor that the index does not list for it.
    #[error("{file}: holds tensor '{tensor}', which {INDEX_FILE} does not list for this file")]
    IndexUnlisted {
        /// The weight file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// Two files hold one tensor.
    #[error("tensor '{tensor}' lies in both {first} and {second}")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
}

impl Weights {
    /// The weights of a folder. Reads headers only; tensor bytes are mapped.
    ///
    /// # Errors
    /// See [`WeightsError`].
    pub fn open(folder: &Folder) -> Result<Self, WeightsError> {
        if folder.has(SINGLE_FILE) {
            return Self::open_files(folder, &[SINGLE_FILE.to_owned()]);
        }
        let Some(text) = folder.read(INDEX_FILE)? else {
            return Err(WeightsError::None { folder: folder.label(""), other: other_formats(folder) });
        };
        let listed = parse_index(&folder.label(INDEX_FILE), &text)?;
        let mut names: Vec<String> = listed.values().cloned().collect();
        names.sort();
        names.dedup();
        if let Some((tensor, name)) = listed.iter().find(|(_, name)| !folder.has(name)) {
            let (file, tensor, name) = (folder.label(INDEX_FILE), tensor.clone(), name.clone());
            return Err(WeightsError::IndexAbsentFile { file, tensor, name });
        }
        let weights = Self::open_files(folder, &names)?;
        weights.check_index(folder, &listed)?;
        Ok(weights)
    }

    /// A tensor by name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorRef<'_>> {
        let Place { file, entry } = self.tensors.get(name)?;
        // The header's ranges were checked against the file's length when it was opened.
        let range = usize::try_from(entry.bytes.start).ok()?..usize::try_from(entry.bytes.end).ok()?;
        let bytes = self.files[*file].blob.bytes().get(range)?;
        Some(TensorRef { dtype: entry.dtype, shape: &entry.shape, bytes })
    }

    /// Every tensor's file name and header entry, by tensor name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.tensors.values().map(|place| (self.files[place.file].name.as_str(), &place.entry))
    }

    /// File that holds a tensor.
    #[must_use]
    pub fn file_of(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|place| self.files[place.file].name.as_str())
    }

    /// Bytes of all tensors as stored.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.tensors.values().map(|place| place.entry.bytes.end - place.entry.bytes.start).sum()
    }

    fn open_files(folder: &Folder, names: &[String]) -> Result<Self, WeightsError> {
        let mut weights = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for (file, name) in names.iter().enumerate() {
            let blob = folder.map(name)?;
            let header = read_header(blob.bytes())
                .map_err(|source| WeightsError::Header { file: folder.label(name), source })?;
            weights.files.push(WeightFile { name: name.clone(), blob });
            for entry in header.tensors {
                let tensor = entry.name.clone();
                if let Some(first) = weights.tensors.insert(tensor.clone(), Place { file, entry }) {
                    let (first, second) = (folder.label(&weights.files[first.file].name), folder.label(name));
                    return Err(WeightsError::Duplicate { tensor, first, second });
                }
            }
        }
        Ok(weights)
    }

    fn check_index(&self, folder: &Folder, listed: &BTreeMap<String, String>) -> Result<(), WeightsError> {
        for (tensor, file) in listed {
            if self.file_of(tensor) != Some(file) {
                return Err(WeightsError::IndexMissing { file: folder.label(file), tensor: tensor.clone() });
            }
        }
        match self.entries().find(|(_, entry)| !listed.contains_key(&entry.name)) {
            Some((file, entry)) => {
                Err(WeightsError::IndexUnlisted { file: folder.label(file), tensor: entry.name.clone() })
            }
            None => Ok(()),
        }
    }
}

fn read_header(bytes: &[u8]) -> Result<Header, HeaderError> {
    let length = header_length(bytes, bytes.len() as u64)?;
    Header::parse(&bytes[8..8 + length], bytes.len() as u64)
}

/// Tensor name to file name. `metadata.total_size` is not compared with the files: savers count tied tensors in two
/// ways.
fn parse_index(file: &str, text: &[u8]) -> Result<BTreeMap<String, String>, WeightsError> {
    let value = json::parse(text).map_err(|source| WeightsError::IndexJson { file: file.to_owned(), source })?;
    let bad_map = || WeightsError::IndexMap { file: file.to_owned() };
    let map = value.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty()).ok_or_else(bad_map)?;
    map.iter()
        .map(|(tensor, name)| {
            let name = name.as_str().ok_or_else(bad_map)?.to_owned();
            if is_plain_weight_file(&name) {
                return Ok((tensor.clone(), name));
            }
            Err(WeightsError::IndexFileName { file: file.to_owned(), tensor: tensor.clone(), name })
        })
        .collect()
}

/// A file name that cannot leave the folder it stands in, on any system.
fn is_plain_weight_file(name: &str) -> bool {
    name.strip_suffix(".safetensors").is_some_and(|stem| !stem.is_empty())
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+'))
}

/// What to say when the weights are there in a form that is not read.
fn other_formats(folder: &Folder) -> &'static str {
    if folder.has("pytorch_model.bin") || folder.has("pytorch_model.bin.index.json") {
        return "; pytorch_model.bin is not read because unpickling runs code: save the model as safetensors";
    }
    "; the weights must be safetensors files"
}
