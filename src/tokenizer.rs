//! `Tokenizer`: text to token ids and back, as a checkpoint's tokenizer.json says.
//!
//! The `tokenizers` crate reads the file and does the work, with its pure-Rust regex engine. Byte-level vocabularies
//! also take bytes that are not UTF-8 and give back the exact bytes of any ids.

use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Text to ids and back.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Byte of each character that byte-level vocabularies write bytes with; `None` for other vocabularies.
    bytes: Option<HashMap<char, u8>>,
}

/// Why a tokenizer was refused, or a text could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Not a tokenizer.json that the `tokenizers` crate can read.
    #[error("not a tokenizer that can be read: {reason}")]
    Read {
        /// In the crate's words.
        reason: String,
    },
    /// A part of it draws lots, so that one text has several encodings.
    #[error("key 'model.dropout' is {given}: encoding would be random; remove it")]
    Random {
        /// The value.
        given: String,
    },
    /// A text that it cannot encode.
    #[error("the text cannot be encoded: {reason}")]
    Encode {
        /// In the crate's words.
        reason: String,
    },
    /// Bytes that are not UTF-8, and no vocabulary of bytes to write them with.
    #[error("byte {byte:#04x} at {at} is not UTF-8, and this vocabulary has no token for it")]
    Byte {
        /// The byte.
        byte: u8,
        /// Where it stands.
        at: usize,
    },
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab())
    }
}

impl Tokenizer {
    /// The tokenizer of a tokenizer.json's text. Truncation and padding that the file asks for are switched off: a
    /// prompt is never cut or filled up.
    ///
    /// # Errors
    /// [`TokenizerError::Read`], [`TokenizerError::Random`].
    pub fn from_json(text: &[u8]) -> Result<Self, TokenizerError> {
        let read = |reason: String| TokenizerError::Read { reason };
        let json: Value = serde_json::from_slice(text).map_err(|error| read(error.to_string()))?;
        let dropout = json.pointer("/model/dropout").filter(|value| !value.is_null() && value.as_f64() != Some(0.0));
        if let Some(given) = dropout {
            return Err(TokenizerError::Random { given: given.to_string() });
        }
        let byte_level = mentions_type(json.get("decoder"), "ByteLevel");
        let inner = contained(|| serde_json::from_value::<tokenizers::Tokenizer>(json)).map_err(read)?;
        let mut inner = inner.map_err(|error| read(error.to_string()))?;
        inner.with_truncation(None).map_err(|error| read(error.to_string()))?;
        inner.with_padding(None);
        Ok(Self { inner, bytes: byte_level.then(byte_of_char) })
    }

    /// Ids of a text; `special` adds what the file puts around a text (a first token, in most files that have any).
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let refused = |reason| TokenizerError::Encode { reason };
        let encoding = contained(|| self.inner.encode_fast(text, special)).map_err(refused)?;
        Ok(encoding.map_err(|error| refused(error.to_string()))?.get_ids().to_vec())
    }

    /// Text of ids; `skip_special` leaves special tokens out. Ids without a token give nothing, bytes that are not
    /// UTF-8 give U+FFFD, and so does a decoder that fails.
    #[must_use]
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let text = contained(|| self.inner.decode(ids, skip_special)).ok().and_then(Result::ok);
        text.unwrap_or_else(|| char::REPLACEMENT_CHARACTER.to_string())
    }

    /// Ids of bytes, without special tokens: runs of UTF-8 as [`Self::encode`] has them, any other byte as the token of
    /// that byte.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`]; [`TokenizerError::Byte`] when the vocabulary is not byte-level.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        let mut at = 0;
        for chunk in bytes.utf8_chunks() {
            if !chunk.valid().is_empty() {
                ids.extend(self.encode(chunk.valid(), false)?);
            }
            at += chunk.valid().len();
            for &byte in chunk.invalid() {
                ids.push(self.byte_token(byte).ok_or(TokenizerError::Byte { byte, at })?);
                at += 1;
            }
        }
        Ok(ids)
    }

    /// Bytes of ids, special tokens included; `None` when the vocabulary is not byte-level or an id has no token.
    #[must_use]
    pub fn decode_bytes(&self, ids: &[u32]) -> Option<Vec<u8>> {
        let byte_of = self.bytes.as_ref()?;
        let added = self.inner.get_added_tokens_decoder();
        let mut bytes = Vec::new();
        for id in ids {
            match added.get(id) {
                // Added tokens are written as they are, not in the byte alphabet.
                Some(token) => bytes.extend_from_slice(token.content.as_bytes()),
                None => {
                    for c in self.token(*id)?.chars() {
                        bytes.push(*byte_of.get(&c)?);
                    }
                }
            }
        }
        Some(bytes)
    }

    /// How a token is written in the vocabulary.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token as the vocabulary writes it.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Number of tokens, added ones included. The model's vocabulary may be larger.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    fn byte_token(&self, byte: u8) -> Option<u32> {
        let (c, _) = self.bytes.as_ref()?.iter().find(|(_, b)| **b == byte)?;
        self.id(c.encode_utf8(&mut [0; 4]))
    }
}

/// Run the `tokenizers` crate on what a checkpoint brought. It panics on some files it can read and not use (a pattern
/// that is empty, a template that names a token it does not list): that is the file's fault, so it is told as one.
fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    crate::quiet::quietly(|| catch_unwind(AssertUnwindSafe(work))).map_err(|panic| {
        let what = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        format!("a part of it cannot be used ({})", what.unwrap_or("no reason given"))
    })
}

/// True when a part of tokenizer.json, or one of the parts in it, is of this type.
fn mentions_type(part: Option<&Value>, kind: &str) -> bool {
    let Some(part) = part else { return false };
    part.get("type").and_then(Value::as_str) == Some(kind)
        || part
            .get("decoders")
            .and_then(Value::as_array)
            .is_some_and(|parts| parts.iter().any(|part| part.get("type").and_then(Value::as_str) == Some(kind)))
}

/// The byte alphabet of byte-level vocabularies: bytes that print as one Latin-1 character stand for themselves, the
/// others in ascending order for the characters from U+0100 on.
fn byte_of_char() -> HashMap<char, u8> {
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=u8::MAX).filter(|byte| !prints(*byte)).zip('\u{100}'..);
    let printing = (0..=u8::MAX).filter(|byte| prints(*byte)).map(|byte| (byte, char::from(byte)));
    printing.chain(others).map(|(byte, c)| (c, byte)).collect()
}
