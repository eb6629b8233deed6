//! `Weights`: every tensor of a checkpoint by name, read in place from mapped files, or fetched as it is asked for.
//!
//! One `model.safetensors`, or several files that a `model.safetensors.index.json` lists; where both are there the
//! single file is taken, as the reference framework does. The index is believed only where the files agree: each
//! tensor it lists lies in the file it names, and the files hold no tensor that it does not list.

use super::files::{Blob, FileError, Folder, Stamp};
use super::header::{Entry, Header, HeaderError, header_length};
use super::hub::ranges::RangeSet;
use super::hub::{Fetched, Repo};
use super::json;
use super::mxfp4::{self, Pair};
use safetensors::Dtype;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Headers that are read at a time.
const PARALLEL: usize = 8;

/// Name of the weights in one file.
pub const SINGLE_FILE: &str = "model.safetensors";
/// Name of the list of several files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Every tensor of a checkpoint.
#[derive(Debug)]
pub struct Weights {
    pub(super) files: Vec<WeightFile>,
    tensors: BTreeMap<String, Place>,
    /// Matrices that two tensors are together.
    pairs: BTreeMap<String, Pair>,
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
    blob: &'a Blob,
    range: &'a Range<u64>,
    scales: Option<(&'a Blob, &'a Range<u64>)>,
}

impl<'a> TensorRef<'a> {
    /// Its bytes, little-endian; as many as dtype and shape take. A tensor on the Hub is fetched if it is not here.
    ///
    /// # Errors
    /// [`FileError::Hub`].
    pub fn bytes(&self) -> Result<&'a [u8], FileError> {
        self.blob.slice(self.range.clone())
    }

    /// Of 4-bit floats stored as MXFP4, a power of two (E8M0) for each 32 of a row: together they are values.
    ///
    /// # Errors
    /// As [`TensorRef::bytes`].
    pub fn scales(&self) -> Result<Option<&'a [u8]>, FileError> {
        self.scales.map(|(blob, range)| blob.slice(range.clone())).transpose()
    }

    /// It has scales: see [`TensorRef::scales`].
    #[must_use]
    pub fn is_scaled(&self) -> bool {
        self.scales.is_some()
    }
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
        if folder.has(SINGLE_FILE)? {
            return Self::open_files(folder, &[SINGLE_FILE.to_owned()]);
        }
        let Some(text) = folder.read(INDEX_FILE)? else {
            return Err(WeightsError::None { folder: folder.label(""), other: other_formats(folder)? });
        };
        let listed = parse_index(&folder.label(INDEX_FILE), &text)?;
        let mut names: Vec<String> = listed.values().cloned().collect();
        names.sort();
        names.dedup();
        let weights = Self::open_files(folder, &names).map_err(|error| match error {
            WeightsError::File(FileError::Absent { file }) => {
                let absent = listed.iter().find(|(_, name)| folder.label(name) == file);
                let (tensor, name) =
                    absent.map_or_else(Default::default, |(tensor, name)| (tensor.clone(), name.clone()));
                WeightsError::IndexAbsentFile { file: folder.label(INDEX_FILE), tensor, name }
            }
            other => other,
        })?;
        weights.check_index(folder, &listed)?;
        Ok(weights)
    }

    /// A tensor by name; where two tensors are one matrix in MXFP4, also by its name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorRef<'_>> {
        let Some(pair) = self.pairs.get(name) else { return self.stored(name) };
        let [blocks, scales] = [self.stored(&pair.stored[0])?, self.stored(&pair.stored[1])?];
        let (blob, range, scales) = (blocks.blob, blocks.range, Some((scales.blob, scales.range)));
        Some(TensorRef { dtype: Dtype::F4, shape: &pair.shape, blob, range, scales })
    }

    /// The names under which a tensor's bytes are stored: its own, or those of the two tensors that it is.
    pub fn stored_names<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let pair = self.pairs.get(name);
        let own = pair.is_none().then_some(name);
        own.into_iter().chain(pair.into_iter().flat_map(|pair| pair.stored.iter().map(String::as_str)))
    }

    /// Every tensor that a model may ask for: two that are one matrix are that matrix.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let parts: std::collections::HashSet<&str> =
            self.pairs.values().flat_map(|pair| pair.stored.iter().map(String::as_str)).collect();
        let whole = self.tensors.keys().map(String::as_str).filter(move |name| !parts.contains(name));
        whole.chain(self.pairs.keys().map(String::as_str))
    }

    /// Values of all tensors together.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let count = |shape: &[usize]| shape.iter().map(|dim| *dim as u64).product::<u64>();
        self.names().filter_map(|name| self.tensor(name)).map(|tensor| count(tensor.shape)).sum()
    }

    fn stored(&self, name: &str) -> Option<TensorRef<'_>> {
        let Place { file, entry } = self.tensors.get(name)?;
        let (blob, range) = (&self.files[*file].blob, &entry.bytes);
        Some(TensorRef { dtype: entry.dtype, shape: &entry.shape, blob, range, scales: None })
    }

    /// Bring tensors here, by name, in as few requests as their places allow: see [`Repo::fetch`]. Names that are unknown
    /// are passed over; tensors of a checkpoint that is here cost nothing. Reading a tensor that was not fetched this
    /// way fetches it alone.
    ///
    /// # Errors
    /// [`FileError::Hub`].
    pub fn fetch<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Vec<Fetched>, FileError> {
        let mut wanted = vec![RangeSet::default(); self.files.len()];
        for name in names {
            for Place { file, entry } in self.stored_names(name).filter_map(|name| self.tensors.get(name)) {
                wanted[*file].insert(entry.bytes.clone());
            }
        }
        let wanted: Vec<_> =
            self.files.iter().zip(wanted).filter_map(|(file, set)| Some((file.blob.remote()?, set))).collect();
        Ok(Repo::fetch(&wanted, progress)?)
    }

    /// True when values can be compared without moving them over a network.
    pub(super) fn is_local(&self) -> bool {
        self.files.iter().all(|file| !matches!(file.blob.stamp, Stamp::Commit(_) | Stamp::Copy(_)))
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
        let mut weights = Self { files: Vec::new(), tensors: BTreeMap::new(), pairs: BTreeMap::new() };
        for (file, (name, opened)) in names.iter().zip(open_all(folder, names)).enumerate() {
            let (blob, header) = opened?;
            weights.files.push(WeightFile { name: name.clone(), blob });
            for entry in header.tensors {
                let tensor = entry.name.clone();
                if let Some(first) = weights.tensors.insert(tensor.clone(), Place { file, entry }) {
                    let (first, second) = (folder.label(&weights.files[first.file].name), folder.label(name));
                    return Err(WeightsError::Duplicate { tensor, first, second });
                }
            }
        }
        weights.pairs = mxfp4::pairs(weights.tensors.values().map(|place| &place.entry));
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

type Opened = Result<(Blob, Header), WeightsError>;

/// Each file with its header, in the order of the names. Headers on the Hub are asked for side by side.
fn open_all(folder: &Folder, names: &[String]) -> Vec<Opened> {
    let open = |name: &String| {
        let blob = folder.map(name)?;
        let header = read_header(&blob, || folder.label(name)).inspect_err(|error| {
            if let WeightsError::Header { .. } = error {
                blob.forget();
            }
        })?;
        Ok((blob, header))
    };
    if folder.repo().is_none() || names.len() < 2 {
        return names.iter().map(open).collect();
    }
    let (next, opened) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL.min(names.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(name) = names.get(number) else { break };
                    let result = open(name);
                    opened.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(number, result);
                }
            });
        }
    });
    opened.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).into_values().collect()
}

/// The header of a file, by exactly its bytes: the length first, then as much as that says.
fn read_header(blob: &Blob, label: impl Fn() -> String) -> Result<Header, WeightsError> {
    let lies = |source| WeightsError::Header { file: label(), source };
    let first = blob.slice(0..blob.len().min(8))?;
    let length = header_length(first, blob.len()).map_err(lies)? as u64;
    Header::parse(blob.slice(8..8 + length)?, blob.len()).map_err(lies)
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
fn other_formats(folder: &Folder) -> Result<&'static str, FileError> {
    Ok(if folder.has("pytorch_model.bin")? || folder.has("pytorch_model.bin.index.json")? {
        "; pytorch_model.bin is not read because unpickling runs code: save the model as safetensors"
    } else {
        "; the weights must be safetensors files"
    })
}
