//! `Reader` and `Writer`: little-endian fields of a message, every length bounded and checked before it is believed.

use super::WireError;

/// Fields of a message, one after the other.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    message: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, message }
    }

    pub(super) fn take(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], WireError> {
        let message = self.message;
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated { message, field })?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let taken = self.take(field, N)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self, field: &'static str) -> Result<i32, WireError> {
        self.array(field).map(i32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub(super) fn f64(&mut self, field: &'static str) -> Result<f64, WireError> {
        self.array(field).map(f64::from_le_bytes)
    }

    /// A count of things that follow, each of at least `each` bytes.
    pub(super) fn count(&mut self, field: &'static str, limit: usize, each: usize) -> Result<usize, WireError> {
        let given = self.u16(field)?.into();
        self.within(field, given, limit)?;
        if given * each > self.rest.len() {
            return Err(WireError::Truncated { message: self.message, field });
        }
        Ok(given)
    }

    /// Text with its length in front.
    pub(super) fn text(&mut self, field: &'static str, limit: usize) -> Result<String, WireError> {
        let given = self.u32(field)? as usize;
        self.within(field, given, limit)?;
        let bytes = self.take(field, given)?;
        let text = std::str::from_utf8(bytes).map_err(|_| WireError::Text { message: self.message, field })?;
        Ok(text.to_owned())
    }

    /// f32 values up to the end, by their bits.
    pub(super) fn values(&mut self, field: &'static str) -> Result<Vec<f32>, WireError> {
        let (message, given) = (self.message, self.rest.len());
        if !given.is_multiple_of(4) {
            return Err(WireError::Ragged { message, field, given });
        }
        let bytes = std::mem::take(&mut self.rest);
        Ok(bytes.chunks_exact(4).map(|b| f32::from_bits(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect())
    }

    /// What is left, whole.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Nothing may be left.
    pub(super) fn end(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            given => Err(WireError::Trailing { message: self.message, given }),
        }
    }

    pub(super) fn within(&self, field: &'static str, given: usize, limit: usize) -> Result<(), WireError> {
        if given <= limit {
            return Ok(());
        }
        Err(WireError::Limit { message: self.message, field, given: given as u64, limit: limit as u64 })
    }
}

/// Appends fields to a message.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn new(sentinel: i32) -> Self {
        Self(sentinel.to_le_bytes().to_vec())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn i32(&mut self, value: i32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn f64(&mut self, value: f64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Text with its length in front, cut at the limit between two characters: no reader is sent what it must refuse.
    pub(super) fn text(&mut self, text: &str, limit: usize) -> &mut Self {
        let text = &text[..text.floor_char_boundary(limit)];
        self.u32(text.len() as u32).bytes(text.as_bytes())
    }

    /// f32 values by their bits.
    pub(super) fn values(&mut self, values: &[f32]) -> &mut Self {
        self.0.reserve(4 * values.len());
        values.iter().for_each(|v| self.0.extend_from_slice(&v.to_bits().to_le_bytes()));
        self
    }
}
