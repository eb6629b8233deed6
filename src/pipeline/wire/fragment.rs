//! Fragments (-5): a message longer than a link takes, in parts of 48 KB, put together again in bounded memory.
//!
//! Parts of several messages may come in any order and interleaved. Every part but the last is full, so the whole message's
//! length is known from any part; a part that contradicts an earlier one gives the message up.

use super::bytes::{Reader, Writer};
use super::{FRAGMENT, MAX_MESSAGE, WireError};
use std::collections::HashMap;

/// Bytes of a fragment, its header included: a link with a limit of 48 KiB carries it.
pub const FRAGMENT_BYTES: usize = 48 << 10;
/// Bytes of a fragment's header.
pub const FRAGMENT_HEADER: usize = 16;
/// Bytes of the message in a full fragment.
const PART: usize = FRAGMENT_BYTES - FRAGMENT_HEADER;
/// Messages that may be unfinished at the same time.
pub const MAX_UNFINISHED: usize = 64;

/// A message as a link with a limit of [`FRAGMENT_BYTES`] takes it: itself, or its fragments under the number `id`.
#[must_use]
pub fn fragments(id: u32, message: Vec<u8>) -> Vec<Vec<u8>> {
    if message.len() <= FRAGMENT_BYTES {
        return vec![message];
    }
    let total = message.len().div_ceil(PART) as u32;
    let part = |(index, part): (u32, &[u8])| {
        let mut out = Writer::new(FRAGMENT);
        out.u32(id).u32(index).u32(total).bytes(part);
        out.0
    };
    (0..).zip(message.chunks(PART)).map(part).collect()
}

/// Puts fragments together.
#[derive(Debug, Default)]
pub struct Reassembly {
    unfinished: HashMap<u32, Unfinished>,
    bytes: usize,
}

#[derive(Debug)]
struct Unfinished {
    parts: Vec<Option<Vec<u8>>>,
    missing: usize,
    bytes: usize,
}

impl Reassembly {
    /// A reassembly that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held of unfinished messages, at most [`MAX_MESSAGE`].
    #[must_use]
    pub fn held(&self) -> usize {
        self.bytes
    }

    /// Take what a link gave: a whole message comes back at once, a fragment when it was the last one missing.
    ///
    /// # Errors
    /// The fragment is none, contradicts an earlier one, or would take more memory than there is for it. Its message is
    /// given up.
    pub fn take(&mut self, frame: Vec<u8>) -> Result<Option<Vec<u8>>, WireError> {
        if frame.first_chunk::<4>().is_none_or(|first| i32::from_le_bytes(*first) != FRAGMENT) {
            return Ok(Some(frame));
        }
        let mut reader = Reader::new("fragment", &frame[4..]);
        let (id, index, total) = (reader.u32("message")?, reader.u32("index")?, reader.u32("total")?);
        let result = self.part(id, index as usize, total as usize, reader.rest());
        if result.is_err() {
            self.forget(id);
        }
        result
    }

    fn part(&mut self, id: u32, index: usize, total: usize, part: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
        let refuse = |what| Err(WireError::Fragment { id, index: index as u64, total: total as u64, what });
        let last = index + 1 == total;
        let most = MAX_MESSAGE.div_ceil(PART);
        match (index, total, part.len()) {
            (_, total, _) if !(2..=most).contains(&total) => return refuse("a total that no message has"),
            (index, total, _) if index >= total => return refuse("an index past the total"),
            (_, _, PART) => {}
            (_, _, 1..PART) if last => {}
            _ => return refuse("a length that its place does not have"),
        }
        if !self.unfinished.contains_key(&id) && self.unfinished.len() == MAX_UNFINISHED {
            return refuse("too many unfinished messages");
        }
        if self.bytes + part.len() > MAX_MESSAGE {
            return refuse("more unfinished bytes than are kept");
        }
        let fresh = || Unfinished { parts: vec![None; total], missing: total, bytes: 0 };
        let message = self.unfinished.entry(id).or_insert_with(fresh);
        if message.parts.len() != total {
            return refuse("another total than its message's");
        }
        if message.parts[index].replace(part.to_vec()).is_some() {
            return refuse("an index that was there already");
        }
        message.missing -= 1;
        message.bytes += part.len();
        self.bytes += part.len();
        if message.missing > 0 {
            return Ok(None);
        }
        let parts = self.forget(id).map(|message| message.parts).unwrap_or_default();
        Ok(Some(parts.into_iter().flatten().flatten().collect()))
    }

    fn forget(&mut self, id: u32) -> Option<Unfinished> {
        let message = self.unfinished.remove(&id)?;
        self.bytes -= message.bytes;
        Some(message)
    }
}
