//! `Shape`: a model by its config alone, for work that needs no weights: pricing it, or running it on random ones.
//!
//! A config gives a `Spec` through the reader that real checkpoints go through; what a weight file would show stands in
//! for it as [`Published`](crate::checkpoint::arch::Published) says. `shapes.json` holds the configs of published
//! models, as far as they decide sizes and arithmetic.

use crate::checkpoint::arch::{self, ArchError, Loaded, Note};
use crate::checkpoint::{CONFIG_FILE, FileError, Folder, json};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use wordline_ir::Spec;

const SHAPES: &str = include_str!("shapes.json");

/// Most names that an error suggests.
const SUGGESTED: usize = 3;

/// A model without its weights.
#[derive(Debug)]
pub struct Shape {
    /// The name it was asked for by, or its config's path.
    pub name: String,
    /// config.json.
    pub config: Value,
    /// The facts that everything downstream works from.
    pub spec: Spec,
    /// Config keys that were there and changed nothing in `spec`, with reasons.
    pub notes: Vec<Note>,
}

/// Why there is no shape.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    /// No shape of this name.
    #[error("there is no shape '{name}'{close}")]
    Unknown {
        /// The name given.
        name: String,
        /// Names close to it, or all of them.
        close: String,
    },
    /// A config could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A config gives no `Spec`.
    #[error("{config}: {source}")]
    Config {
        /// The shape's name or the config's path.
        config: String,
        /// Why.
        #[source]
        source: Box<ArchError>,
    },
    /// The list of shapes inside the program is no object of configs.
    #[error("the list of shapes is damaged: {0}")]
    List(#[source] serde_json::Error),
}

/// The names of all shapes, families side by side, small ones first.
///
/// # Errors
/// [`ShapeError::List`].
pub fn names() -> Result<Vec<String>, ShapeError> {
    Ok(list()?.into_iter().map(|(name, _)| name).collect())
}

fn list() -> Result<Map<String, Value>, ShapeError> {
    serde_json::from_str(SHAPES).map_err(ShapeError::List)
}

impl Shape {
    /// The published model of this name.
    ///
    /// # Errors
    /// [`ShapeError::Unknown`], which lists names that are close.
    pub fn named(name: &str) -> Result<Self, ShapeError> {
        let mut shapes = list()?;
        match shapes.swap_remove(name) {
            Some(config) => Self::of(name.to_owned(), config),
            None => Err(ShapeError::Unknown { name: name.to_owned(), close: close(name, shapes.keys()) }),
        }
    }

    /// The model of a config.json, given by its path or by that of the directory that holds it. No weight file is
    /// looked for.
    ///
    /// # Errors
    /// It is not there or cannot be read; or it gives no `Spec`, by the key.
    pub fn of_config(path: &Path) -> Result<Self, ShapeError> {
        let path = if path.is_dir() { path.join(CONFIG_FILE) } else { path.to_owned() };
        let absent = || FileError::Absent { file: path.display().to_string() };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(absent)?;
        let folder = Folder::Disk(path.parent().map(Path::to_owned).unwrap_or_else(PathBuf::new));
        let text = folder.read(name)?.ok_or_else(absent)?;
        let config = path.display().to_string();
        match json::parse(&text) {
            Ok(value) => Self::of(config, value),
            Err(source) => {
                Err(ShapeError::Config { config, source: Box::new(ArchError::NotAnObject { source: Some(source) }) })
            }
        }
    }

    fn of(name: String, config: Value) -> Result<Self, ShapeError> {
        match arch::load_config(&config) {
            Ok(Loaded { spec, notes }) => Ok(Self { name, config, spec, notes }),
            Err(source) => Err(ShapeError::Config { config: name, source: Box::new(source) }),
        }
    }
}

/// The names that are close to a wrong one, or all names when none is.
fn close<'a>(given: &str, names: impl Iterator<Item = &'a String>) -> String {
    let given = given.to_lowercase();
    let names: Vec<&str> = names.map(String::as_str).collect();
    let mut scored: Vec<(f64, &str)> = names
        .iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(&given, name), *name))
        .filter(|(score, name)| *score >= 0.6 || name.starts_with(&given))
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    match scored.as_slice() {
        [] => format!("; there are {}", names.join(", ")),
        _ => {
            let close: Vec<String> = scored.iter().take(SUGGESTED).map(|(_, name)| format!("'{name}'")).collect();
            format!("; did you mean {}?", close.join(" or "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_brings_close_ones() {
        let names = ["alpha-1b".to_owned(), "alpha-7b".to_owned(), "beta".to_owned()];
        let close = |given: &str| super::close(given, names.iter());
        assert_eq!(close("Alpha-2b"), "; did you mean 'alpha-1b' or 'alpha-7b'?");
        assert_eq!(close("alpha"), "; did you mean 'alpha-1b' or 'alpha-7b'?");
        assert_eq!(close("q"), "; there are alpha-1b, alpha-7b, beta");
    }

    #[test]
    fn a_config_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Shape::of_config(folder.path()).unwrap_err().to_string();
        assert!(error.contains("config.json: not there"), "{error}");
        let error = Shape::of_config(Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("config.json"), "{error}");
        let file = folder.path().join("config.json");
        std::fs::write(&file, "{").unwrap();
        let error = Shape::of_config(&file).unwrap_err().to_string();
        assert!(error.contains("not a JSON object"), "{error}");
    }
}
