//! Drafts: checkpoints in memory, edited and written to a folder of their own.

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use wordline::checkpoint::{Checkpoint, CheckpointError};
use wordline_ir::spec::{Part, View};

/// A file or folder of the repository.
pub(super) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Every checkpoint folder among the fixtures, and the demo.
pub(super) fn fixtures() -> Vec<PathBuf> {
    let mut found = vec![repository("demo"), repository("tests/fixtures/storyteller-llama")];
    for set in ["given", "extra"] {
        let folders = std::fs::read_dir(repository("tests/fixtures").join(set)).unwrap();
        found.extend(folders.map(|entry| entry.unwrap().path()).filter(|path| path.join("config.json").is_file()));
    }
    found.sort();
    assert!(found.len() >= 11 + 20, "{} fixtures", found.len());
    found
}

/// One stored tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

impl Stored {
    /// f32 values.
    pub(super) fn f32(shape: &[usize], values: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    /// Rows `start..end`.
    pub(super) fn rows(&self, start: usize, end: usize) -> Self {
        let row = self.bytes.len() / self.shape[0];
        let shape = [&[end - start], &self.shape[1..]].concat();
        Self { dtype: self.dtype, shape, bytes: self.bytes[start * row..end * row].to_vec() }
    }

    /// Tensors one above the other.
    pub(super) fn stack(parts: &[&Stored]) -> Self {
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let bytes = parts.iter().flat_map(|part| part.bytes.clone()).collect();
        Self { dtype: parts[0].dtype, shape: [&[rows], &parts[0].shape[1..]].concat(), bytes }
    }

    /// The same bytes as another shape.
    pub(super) fn reshaped(&self, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), ..self.clone() }
    }
}

/// A checkpoint to edit.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) config: Value,
    pub(super) tensors: BTreeMap<String, Stored>,
}

impl Draft {
    /// A copy of a fixture, its shards joined.
    pub(super) fn of(folder: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let mut tensors = BTreeMap::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.starts_with("model") || !name.ends_with(".safetensors") {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                let (dtype, shape, bytes) = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                tensors.insert(name.to_owned(), Stored { dtype, shape, bytes });
            }
        }
        Self { config, tensors }
    }

    /// A copy of `tests/fixtures/given/NAME`.
    pub(super) fn given(name: &str) -> Self {
        Self::of(&repository("tests/fixtures/given").join(name))
    }

    /// The value at a key of the config.
    pub(super) fn key(&mut self, key: &str) -> &mut Value {
        &mut self.config[key]
    }

    /// The config without a key.
    pub(super) fn without(mut self, key: &str) -> Self {
        self.config.as_object_mut().unwrap().shift_remove(key).unwrap_or_else(|| panic!("no key {key}"));
        self
    }

    /// The config with a key set.
    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.config[key] = value.into();
        self
    }

    /// The draft with a tensor added or replaced.
    pub(super) fn tensor(mut self, name: &str, stored: Stored) -> Self {
        self.tensors.insert(name.to_owned(), stored);
        self
    }

    /// Take a tensor out.
    pub(super) fn take(&mut self, name: &str) -> Stored {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Every name changed.
    pub(super) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        self.tensors = self.tensors.into_iter().map(|(name, stored)| (rename(&name), stored)).collect();
        self
    }

    /// The draft in a folder.
    pub(super) fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        let views = self
            .tensors
            .iter()
            .map(|(name, stored)| (name, TensorView::new(stored.dtype, stored.shape.clone(), &stored.bytes).unwrap()));
        std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        folder
    }

    /// The checkpoint of the draft. The files stay mapped after their folder is gone.
    pub(super) fn open(&self) -> Result<Checkpoint, CheckpointError> {
        let folder = self.write();
        Checkpoint::open(folder.path())
    }

    /// The message with which the draft is refused.
    pub(super) fn refusal(&self) -> String {
        match self.open() {
            Ok(checkpoint) => panic!("accepted: {:?}", checkpoint.spec),
            Err(error) => error.to_string(),
        }
    }
}

/// Every value of a view.
pub(super) fn values(checkpoint: &Checkpoint, view: &View) -> Vec<f32> {
    let mut out = vec![0.0; view.rows() * view.cols()];
    checkpoint.weights.read_view_rows(view, 0..view.rows(), &mut out).unwrap();
    out
}

/// Every part of every view in a value that serialises (a Spec or a piece of one).
pub(super) fn parts(of: &impl serde::Serialize) -> Vec<Part> {
    fn walk(value: &Value, found: &mut Vec<Part>) {
        match value {
            Value::Object(map) if map.contains_key("tensor") && map.contains_key("transpose") => {
                found.push(serde_json::from_value(value.clone()).unwrap());
            }
            Value::Object(map) => map.values().for_each(|value| walk(value, found)),
            Value::Array(items) => items.iter().for_each(|value| walk(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&serde_json::to_value(of).unwrap(), &mut found);
    found
}

/// Assert that a message holds every one of these words.
#[track_caller]
pub(super) fn names(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
}
