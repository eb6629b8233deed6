//! The program file: a program as bytes, with a version and a checksum.
//!
//! ```text
//!  bytes            holds
//!  8                magic "WORDLINE"
//!  4                version, little-endian
//!  8                length H of the tables, little-endian
//!  H                tables: JSON with identity, max_pos, slots, tensors, ropes
//!  8                number N of words, little-endian
//!  32 N             words, each with bits 7:0 first
//!  32               SHA-256 of everything before it
//! ```
//!
//! The codec is pure: bytes in, bytes out. Reading allocates in proportion to the bytes given, whatever lengths they claim.

use crate::command::DecodeError;
use crate::digest::hex;
use crate::program::{Identity, Program, SlotInfo, Tensor};
use crate::spec::Rope;
use crate::{ProgramError, Word};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// First bytes of a program file.
pub const MAGIC: [u8; 8] = *b"WORDLINE";

/// Version of the file form that this build writes, and the newest that it reads.
pub const FILE_VERSION: u32 = 1;

/// Version of the JSON form that this build writes, and the newest that it reads.
pub const SCHEMA_VERSION: u64 = 1;

const WORD_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 32;

/// Why a program cannot be written, or bytes are no program. The first two are about writing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// A command does not fit a word.
    #[error(transparent)]
    Word(#[from] ProgramError),
    /// JSON holds no such number. `verify` refuses such a recipe too.
    #[error("rotary table {rope} holds a number that is not finite; correct the recipe")]
    NotFinite {
        /// Index in `Program::ropes`.
        rope: usize,
    },
    /// Another kind of file.
    #[error("this is no program file: it does not begin with \"WORDLINE\"")]
    Magic,
    /// A newer form.
    #[error(
        "the program has version {given}, this build reads up to {known}; use a newer build or lower the model again"
    )]
    Newer {
        /// Version given.
        given: u64,
        /// Newest version read.
        known: u64,
    },
    /// A version that never was.
    #[error("the program has version {given}, which does not exist; the file is damaged, get it again")]
    Version {
        /// Version given.
        given: u64,
    },
    /// The bytes end before the file does.
    #[error("the file is truncated: {given} bytes where {what} needs {needed}; get it again")]
    Truncated {
        /// What does not fit.
        what: &'static str,
        /// Bytes that it needs, from the file's start.
        needed: u128,
        /// Bytes given.
        given: usize,
    },
    /// Bytes follow the file's end.
    #[error("{extra} bytes follow the end of the program; the file is damaged, get it again")]
    Trailing {
        /// Bytes too many.
        extra: usize,
    },
    /// The checksum is that of other bytes.
    #[error("the file was altered: its checksum is {held}, its bytes give {found}; get it again")]
    Altered {
        /// The checksum it holds, in hex.
        held: String,
        /// The checksum of its bytes, in hex.
        found: String,
    },
    /// The tables are not what this version holds, though the checksum is right.
    #[error("the tables are malformed: {0}; write the file again")]
    Tables(String),
    /// A word is no command, though the checksum is right.
    #[error("word {index} ({word}): {source}; write the file again")]
    Decode {
        /// Which word, from 0.
        index: usize,
        /// The word.
        word: Word,
        /// Why.
        source: DecodeError,
    },
    /// JSON's words are not those of its commands.
    #[error("word {index} is not that of command {index}; change the commands and leave \"words\" out")]
    Disagree {
        /// Which, from 0.
        index: usize,
    },
}

#[derive(Serialize)]
struct TablesOut<'a> {
    identity: &'a Identity,
    max_pos: usize,
    slots: &'a [SlotInfo],
    tensors: &'a [Tensor],
    ropes: &'a [Rope],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TablesIn {
    identity: Identity,
    max_pos: usize,
    slots: Vec<SlotInfo>,
    tensors: Vec<Tensor>,
    ropes: Vec<Rope>,
}

/// The program's bytes.
///
/// # Errors
/// A command does not fit a word, or a rotary recipe holds a number that is not finite.
pub fn to_bytes(program: &Program) -> Result<Vec<u8>, FileError> {
    let words = program.words()?;
    finite(program)?;
    let Program { identity, max_pos, slots, tensors, ropes, commands: _ } = program;
    let tables = TablesOut { identity, max_pos: *max_pos, slots, tensors, ropes };
    let tables = serde_json::to_vec(&tables).map_err(|e| FileError::Tables(e.to_string()))?;
    let mut bytes = Vec::with_capacity(60 + tables.len() + words.len() * WORD_BYTES);
    bytes.extend(MAGIC);
    bytes.extend(FILE_VERSION.to_le_bytes());
    bytes.extend((tables.len() as u64).to_le_bytes());
    bytes.extend(tables);
    bytes.extend((words.len() as u64).to_le_bytes());
    words.iter().for_each(|word| bytes.extend(word.to_bytes()));
    let checksum = Sha256::digest(&bytes);
    bytes.extend(checksum);
    Ok(bytes)
}

/// The program of a file's bytes. It is well formed; whether it is sound is for [`verify`](crate::verify::verify) to say.
///
/// # Errors
/// The bytes are another kind of file, a newer version, truncated, altered, or no program.
pub fn from_bytes(bytes: &[u8]) -> Result<Program, FileError> {
    let mut reader = Reader { bytes, at: 0 };
    let magic = reader.take(MAGIC.len() as u64, "the magic");
    match magic {
        Ok(magic) if magic == MAGIC => {}
        Err(error) if MAGIC.starts_with(bytes) => return Err(error),
        _ => return Err(FileError::Magic),
    }
    let version = u64::from(u32::from_le_bytes(reader.array("the version")?));
    check_version(version, FILE_VERSION.into())?;
    let length = u64::from_le_bytes(reader.array("the length of the tables")?);
    let tables = reader.take(length, "the tables")?;
    let count = u64::from_le_bytes(reader.array("the number of words")?);
    let words = reader.take(count.saturating_mul(WORD_BYTES as u64), "the words")?;
    let found = Sha256::digest(&bytes[..reader.at]);
    let held: [u8; CHECKSUM_BYTES] = reader.array("the checksum")?;
    if reader.at < bytes.len() {
        return Err(FileError::Trailing { extra: bytes.len() - reader.at });
    }
    if held != found[..] {
        return Err(FileError::Altered { held: hex(&held), found: hex(&found) });
    }
    let tables: TablesIn = serde_json::from_slice(tables).map_err(|e| FileError::Tables(e.to_string()))?;
    let TablesIn { identity, max_pos, slots, tensors, ropes } = tables;
    let decode = |(index, bytes): (usize, &[u8; WORD_BYTES])| {
        let word = Word::from_bytes(*bytes);
        word.decode().map_err(|source| FileError::Decode { index, word, source })
    };
    let commands = words.as_chunks().0.iter().enumerate().map(decode).collect::<Result<_, _>>()?;
    Ok(Program { identity, max_pos, slots, tensors, ropes, commands })
}

#[derive(Serialize)]
struct JsonOut<'a> {
    schema: u64,
    #[serde(flatten)]
    program: &'a Program,
    words: Vec<Word>,
}

/// The program as JSON: `schema`, the fields of [`Program`], and each command's word in hex.
///
/// # Errors
/// As [`to_bytes`].
pub fn to_json(program: &Program) -> Result<serde_json::Value, FileError> {
    let words = program.words()?;
    finite(program)?;
    let document = JsonOut { schema: SCHEMA_VERSION, program, words };
    serde_json::to_value(document).map_err(|e| FileError::Tables(e.to_string()))
}

/// The program of its JSON form. `words` may be left out; where they stand they must be the commands' own.
///
/// # Errors
/// Not JSON, a newer schema, a field missing or malformed, or words that are not the commands'.
pub fn from_json(text: &str) -> Result<Program, FileError> {
    let malformed = |e: serde_json::Error| FileError::Tables(e.to_string());
    let value: serde_json::Value = serde_json::from_str(text).map_err(malformed)?;
    let schema = value.get("schema").and_then(serde_json::Value::as_u64);
    check_version(schema.ok_or_else(|| FileError::Tables("\"schema\" is missing".to_owned()))?, SCHEMA_VERSION)?;
    let words: Option<Vec<Word>> =
        value.get("words").map(|words| serde_json::from_value(words.clone())).transpose().map_err(malformed)?;
    let program: Program = serde_json::from_value(value).map_err(malformed)?;
    if let Some(given) = words {
        let own = program.words()?;
        let same = given.iter().zip(&own).take_while(|(a, b)| a == b).count();
        if same < given.len().max(own.len()) {
            return Err(FileError::Disagree { index: same });
        }
    }
    Ok(program)
}

fn check_version(given: u64, known: u64) -> Result<(), FileError> {
    match given {
        0 => Err(FileError::Version { given }),
        _ if given > known => Err(FileError::Newer { given, known }),
        _ => Ok(()),
    }
}

/// JSON has no infinity and no NaN.
fn finite(program: &Program) -> Result<(), FileError> {
    match program.ropes.iter().position(|rope| !rope.is_finite()) {
        Some(rope) => Err(FileError::NotFinite { rope }),
        None => Ok(()),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64, what: &'static str) -> Result<&'a [u8], FileError> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(length).ok().and_then(|length| rest.get(..length)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => {
                let needed = self.at as u128 + u128::from(length);
                Err(FileError::Truncated { what, needed, given: self.bytes.len() })
            }
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FileError> {
        let taken = self.take(N as u64, what)?;
        // `take` gives as many bytes as it was asked for.
        Ok(std::array::from_fn(|i| taken[i]))
    }
}
