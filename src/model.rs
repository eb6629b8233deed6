//! `Model`: what MODEL names on the command line, a checkpoint with the settings that come with it.

use crate::checkpoint::hub::{Hub, HubError, ModelId};
use crate::checkpoint::{Checkpoint, CheckpointError, FileError, Folder, WeightsError};
use crate::generate::chat::{ChatError, ChatTemplate, SpecialTokens};
use crate::generate::config::{GenerationConfig, GenerationConfigError, token_ids};
use crate::tokenizer::{Tokenizer, TokenizerError};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// MODEL that names the checkpoint inside the program.
pub const DEMO: &str = "demo";

/// The files of the checkpoint inside the program.
const DEMO_FILES: &[(&str, &[u8])] = &[
    ("README.md", include_bytes!("../demo/README.md")),
    ("config.json", include_bytes!("../demo/config.json")),
    ("generation_config.json", include_bytes!("../demo/generation_config.json")),
    ("golden.json", include_bytes!("../demo/golden.json")),
    ("model.safetensors", include_bytes!("../demo/model.safetensors")),
    ("tokenizer.json", include_bytes!("../demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../demo/tokenizer_config.json")),
    ("val.txt", include_bytes!("../demo/val.txt")),
];

/// A checkpoint with the settings that come with it.
#[derive(Debug)]
pub struct Model {
    /// As the command line gave it.
    pub name: String,
    /// The checkpoint.
    pub checkpoint: Checkpoint,
}

/// Why a model or a file that comes with it was refused.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// The checkpoint was refused.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file that the work needs is not there.
    #[error("{file}: not there; {needed}")]
    Absent {
        /// The file.
        file: String,
        /// What it is needed for.
        needed: &'static str,
    },
    /// A JSON file is none.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: String,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// The generation settings were refused.
    #[error("{file}: {source}")]
    Generation {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: GenerationConfigError,
    },
    /// The tokenizer was refused.
    #[error("{file}: {source}")]
    Tokenizer {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: TokenizerError,
    },
    /// The ids that end a text are none.
    #[error("{file}: key 'eos_token_id' is {given}; it must be a token id or a list of them")]
    Ending {
        /// The file.
        file: String,
        /// The value.
        given: String,
    },
    /// The chat template was refused.
    #[error("{file}: {source}")]
    Chat {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: ChatError,
    },
}

impl Model {
    /// The model of this name: the checkpoint inside the program for `demo`, else the one in the directory of this name,
    /// else the one on the Hub, reached as the environment says.
    ///
    /// # Errors
    /// The checkpoint was refused.
    pub fn open(name: &str) -> Result<Self, ModelFileError> {
        Self::open_by(name, Hub::from_env)
    }

    /// [`Model::open`] with a way to the Hub, which is asked for only when the name is one of the Hub's: `owner/name` or
    /// `owner/name@revision`, and nothing on disk is called so.
    ///
    /// # Errors
    /// The checkpoint was refused.
    pub fn open_by(name: &str, hub: impl FnOnce() -> Result<Arc<Hub>, HubError>) -> Result<Self, ModelFileError> {
        let folder = if name == DEMO {
            Folder::Embedded { name: DEMO, files: DEMO_FILES }
        } else if let Some(model) = on_hub(name) {
            let repo = hub().and_then(|hub| hub.open(&model));
            Folder::Hub(repo.map_err(|error| CheckpointError::File(error.into()))?)
        } else {
            Folder::open(name).map_err(CheckpointError::File)?
        };
        Ok(Self { name: name.to_owned(), checkpoint: Checkpoint::from_folder(folder)? })
    }

    /// A file of the checkpoint; `None` when it is not there.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, ModelFileError> {
        Ok(self.checkpoint.folder.read(name).map_err(CheckpointError::from)?)
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// There is none, or one that cannot be read exactly.
    pub fn tokenizer(&self) -> Result<Tokenizer, ModelFileError> {
        let file = self.label(TOKENIZER);
        let needed = "text needs it: give token ids with --ids, or add the file";
        let bytes = self.file(TOKENIZER)?.ok_or_else(|| ModelFileError::Absent { file: file.clone(), needed })?;
        Tokenizer::from_json(&bytes).map_err(|source| ModelFileError::Tokenizer { file, source })
    }

    /// What the checkpoint asks of whoever writes text with it. Ending ids come from generation_config.json, else from
    /// config.json.
    ///
    /// # Errors
    /// generation_config.json is there and is refused.
    pub fn generation(&self) -> Result<GenerationConfig, ModelFileError> {
        let mut config = match self.file(GENERATION)? {
            None => GenerationConfig::default(),
            Some(bytes) => GenerationConfig::parse(&String::from_utf8_lossy(&bytes))
                .map_err(|source| ModelFileError::Generation { file: self.label(GENERATION), source })?,
        };
        if config.eos.is_empty() {
            let config_json = &self.checkpoint.config;
            let places = [config_json.get("eos_token_id"), config_json.pointer("/text_config/eos_token_id")];
            if let Some(given) = places.into_iter().flatten().find(|value| !value.is_null()) {
                config.eos = token_ids(given).ok_or_else(|| ModelFileError::Ending {
                    file: self.label("config.json"),
                    given: given.to_string(),
                })?;
            }
        }
        Ok(config)
    }

    /// The chat template; `None` when the checkpoint has none.
    ///
    /// # Errors
    /// It is there and is not well-formed.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, ModelFileError> {
        let settings = self.json(TOKENIZER_CONFIG)?.unwrap_or_default();
        let (file, source) = match self.file(CHAT_JINJA)? {
            Some(bytes) => (CHAT_JINJA, Some(String::from_utf8_lossy(&bytes).into_owned())),
            None => (TOKENIZER_CONFIG, template_of(&settings)),
        };
        let Some(source) = source else { return Ok(None) };
        ChatTemplate::new(&source, special_tokens(&settings))
            .map(Some)
            .map_err(|source| ModelFileError::Chat { file: self.label(file), source })
    }

    fn json(&self, name: &str) -> Result<Option<Value>, ModelFileError> {
        let Some(bytes) = self.file(name)? else { return Ok(None) };
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Some).map_err(|source| ModelFileError::Json { file: self.label(name), source })
    }

    /// A file's name as messages show it.
    #[must_use]
    pub fn label(&self, name: &str) -> String {
        self.checkpoint.folder.label(name)
    }
}

/// The model on the Hub that a name means; none when something on disk is called so, or no model can be.
#[must_use]
pub fn on_hub(name: &str) -> Option<ModelId> {
    if Path::new(name).exists() { None } else { name.parse().ok() }
}

impl ModelFileError {
    /// Why the Hub did not give the model, where that is the reason.
    #[must_use]
    pub fn hub(&self) -> Option<&HubError> {
        match self {
            Self::Checkpoint(
                CheckpointError::File(FileError::Hub(error))
                | CheckpointError::Weights(WeightsError::File(FileError::Hub(error))),
            ) => Some(error),
            _ => None,
        }
    }
}

/// The text files beside the config that commands read.
pub const TEXT_FILES: [&str; 4] = [TOKENIZER, TOKENIZER_CONFIG, GENERATION, CHAT_JINJA];

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";
const CHAT_JINJA: &str = "chat_template.jinja";

/// `chat_template` of a tokenizer_config.json: a text, or a list of named ones of which `default` is meant.
fn template_of(settings: &Value) -> Option<String> {
    match settings.get("chat_template")? {
        Value::String(source) => Some(source.clone()),
        Value::Array(named) => {
            let default = named.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))?;
            default.get("template").and_then(Value::as_str).map(str::to_owned)
        }
        _ => None,
    }
}

/// Every `…_token` of a tokenizer_config.json: a text, or an object with `content`.
fn special_tokens(settings: &Value) -> SpecialTokens {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(token) => token.get("content").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let entries = settings.as_object().into_iter().flatten();
    let texts = entries.filter(|(key, _)| key.ends_with("_token")).filter_map(|(key, v)| Some((key.clone(), text(v)?)));
    SpecialTokens { texts: texts.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_come_as_a_text_or_as_a_list() {
        assert_eq!(template_of(&json!({"chat_template": "a"})).as_deref(), Some("a"));
        let named =
            json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
        assert_eq!(template_of(&named).as_deref(), Some("d"));
        assert_eq!(template_of(&json!({"chat_template": null})), None);
        assert_eq!(template_of(&json!({})), None);
    }

    #[test]
    fn special_tokens_come_as_texts_or_objects() {
        let settings = json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null,
            "add_bos_token": true});
        let expected = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(special_tokens(&settings).texts, expected);
    }
}
