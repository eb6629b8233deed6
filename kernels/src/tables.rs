//! The table of int8 products: 65,536 products of two int8, a file that is checked whole before anything computes.
//!
//! Entry `(a & 255) * 256 + (b & 255)` is `a * b` as a little-endian i16. The file is made by
//! `cargo run -p wordline-kernels --example make_tables` and embedded. A device whose units multiply by table uploads
//! these very bytes.

/// Entries.
pub const ENTRIES: usize = 1 << 16;

pub(crate) static EMBEDDED: &[u8] = include_bytes!("../tables/mul.bin");

/// Why a table is not the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// There is nothing in it.
    #[error("the table of products is missing; make it with `cargo run -p wordline-kernels --example make_tables`")]
    Missing,
    /// It has another length.
    #[error("the table of products has {given} bytes, not {expected}; make it anew")]
    Length {
        /// Bytes given.
        given: usize,
        /// Bytes of a whole table.
        expected: usize,
    },
    /// An entry is not the product.
    #[error("the table of products says {a} * {b} = {given}, not {expected}; make it anew")]
    Altered {
        /// First factor.
        a: i8,
        /// Second factor.
        b: i8,
        /// Entry found.
        given: i16,
        /// Their product.
        expected: i16,
    },
}

/// A table of products that has been checked whole.
#[derive(Clone, Copy, Debug)]
pub struct MulTable<'a>(&'a [u8]);

impl MulTable<'static> {
    /// The embedded table.
    ///
    /// # Errors
    /// As [`MulTable::check`].
    pub fn embedded() -> Result<Self, TableError> {
        Self::check(EMBEDDED)
    }
}

impl<'a> MulTable<'a> {
    /// Hold every entry to the product of its factors.
    ///
    /// # Errors
    /// The table is missing, short, long or altered.
    pub fn check(bytes: &'a [u8]) -> Result<Self, TableError> {
        let expected = 2 * ENTRIES;
        if bytes.is_empty() {
            return Err(TableError::Missing);
        }
        if bytes.len() != expected {
            return Err(TableError::Length { given: bytes.len(), expected });
        }
        for (index, entry) in bytes.chunks_exact(2).enumerate() {
            let (a, b) = ((index >> 8) as u8 as i8, index as u8 as i8);
            let (given, expected) = (i16::from_le_bytes([entry[0], entry[1]]), product(a, b));
            if given != expected {
                return Err(TableError::Altered { a, b, given, expected });
            }
        }
        Ok(Self(bytes))
    }

    /// The bytes, for upload.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// The integer definition of an entry.
const fn product(a: i8, b: i8) -> i16 {
    a as i16 * b as i16
}

/// A whole table's bytes, by the definition.
#[must_use]
pub fn make() -> Vec<u8> {
    (0..ENTRIES).flat_map(|index| product((index >> 8) as u8 as i8, index as u8 as i8).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_what_the_command_makes() {
        assert_eq!(EMBEDDED, make());
        MulTable::embedded().unwrap();
    }

    #[test]
    fn a_missing_short_or_long_table_is_refused() {
        let whole = make();
        assert_eq!(MulTable::check(&[]).unwrap_err(), TableError::Missing);
        for given in [2, 131_070, 131_071] {
            let error = MulTable::check(&whole[..given]).unwrap_err();
            assert_eq!(error, TableError::Length { given, expected: 131_072 });
        }
        let mut long = whole;
        long.push(0);
        assert!(matches!(MulTable::check(&long), Err(TableError::Length { given: 131_073, .. })));
    }

    #[test]
    fn one_changed_bit_anywhere_is_refused() {
        let mut table = make();
        for byte in (0..table.len()).step_by(977).chain([0, 131_071]) {
            for bit in 0..8 {
                table[byte] ^= 1 << bit;
                let error = MulTable::check(&table).unwrap_err();
                let TableError::Altered { a, b, .. } = error else { panic!("{error}") };
                let index = usize::from(a as u8) * 256 + usize::from(b as u8);
                assert_eq!(index, byte / 2);
                table[byte] ^= 1 << bit;
            }
        }
    }
}
