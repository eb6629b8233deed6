//! The run hash: SHA-256 over the bits of every logit of a fixed prompt and 16 greedy steps. Every backend and every
//! machine must find the same one for a model.

use crate::generate::sampler::argmax;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use wordline_engine::{EngineModel, Row, StepError};
use wordline_ir::digest::hex;

/// Ids of the fixed prompt.
pub const PROMPT: usize = 12;
/// Greedy steps after it.
pub const STEPS: usize = 16;

/// The pinned run hashes, by the fixture's name.
///
/// # Errors
/// The list inside the program is no JSON object of texts.
pub fn pins() -> Result<BTreeMap<String, String>, serde_json::Error> {
    serde_json::from_str(include_str!("run_hashes.json"))
}

/// The pinned run hashes in the 4-bit formats of weights, by the format's name and the fixture's.
///
/// # Errors
/// As [`pins`].
pub fn coded_pins() -> Result<BTreeMap<String, BTreeMap<String, String>>, serde_json::Error> {
    serde_json::from_str(include_str!("run_hashes_4bit.json"))
}

/// The fixed prompt for a vocabulary: spread over it, the same for every model of its size.
#[must_use]
pub fn prompt(vocab: usize) -> Vec<u32> {
    (1..=PROMPT as u64).map(|i| (i * 7919 % vocab.max(1) as u64) as u32).collect()
}

/// The run hash of a model, in hex.
///
/// Logits are hashed position by position, by id, each as the four little-endian bytes of its f32.
///
/// # Errors
/// The engine's.
pub fn run_hash(engine: &mut EngineModel, vocab: usize) -> Result<String, StepError> {
    let seq = engine.open();
    let mut hasher = Sha256::new();
    let mut rows: Vec<Row> = prompt(vocab).into_iter().map(|token| Row { seq, token, logits: true }).collect();
    let mut result = Ok(());
    for _ in 0..=STEPS {
        match engine.step(&rows) {
            Ok(logits) => {
                logits.values().iter().for_each(|l| hasher.update(l.to_bits().to_le_bytes()));
                let last = logits.row(logits.len().saturating_sub(1)).and_then(argmax);
                rows = last.map(|token| Row { seq, token, logits: true }).into_iter().collect();
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    engine.release(seq);
    result.map(|()| hex(&hasher.finalize()))
}
