//! The two hashes of a hop, each of 32 bits, and the digest of a row.
//!
//! | hash | is | asks |
//! |---|---|---|
//! | [`act_hash`] | CRC-32 (IEEE 802.3, reflected, as in zlib and PNG) of the hidden bytes as sent | did the payload arrive intact? |
//! | [`model_hash`] | the first four bytes, little-endian, of a SHA-256 over repository, revision and tensor index | is this activation of the model that I hold a slice of? |
//! | [`row_digest`] | the first eight bytes of the SHA-256 of one row's hidden bytes | is a row the same as when it was recorded? |
//!
//! A CRC finds every error burst of up to 32 bits; against intent stands the link, which is encrypted and authenticated,
//! and the audit. Texts enter the SHA-256 with their length in front (u64, little-endian), so that no two triples run
//! together.

use sha2::{Digest, Sha256};

/// CRC-32 of the hidden bytes.
#[must_use]
pub fn act_hash(hidden: &[u8]) -> u32 {
    // Eight bytes a round, by eight tables.
    const TABLES: [[u32; 256]; 8] = tables();
    let mut crc = !0_u32;
    let mut rounds = hidden.chunks_exact(8);
    for round in &mut rounds {
        let low = u32::from_le_bytes([round[0], round[1], round[2], round[3]]) ^ crc;
        let at = |table: usize, value: u32| TABLES[table][(value & 0xff) as usize];
        crc = at(7, low) ^ at(6, low >> 8) ^ at(5, low >> 16) ^ at(4, low >> 24);
        crc ^= at(3, round[4].into()) ^ at(2, round[5].into()) ^ at(1, round[6].into()) ^ at(0, round[7].into());
    }
    for byte in rounds.remainder() {
        crc = (crc >> 8) ^ TABLES[0][((crc ^ u32::from(*byte)) & 0xff) as usize];
    }
    !crc
}

/// The tables of the reflected polynomial 0xEDB88320: table k is a byte followed by k zero bytes.
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// Which model an activation belongs to: repository, revision, and the digest of the tensor index (every tensor's name,
/// dtype, shape, file and byte range). No weight is needed.
#[must_use]
pub fn model_hash(repo: &str, revision: &str, index: &[u8; 32]) -> u32 {
    let mut hasher = Sha256::new();
    for text in [repo, revision] {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.update(index);
    let digest = hasher.finalize();
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// The digest of one row of hidden values, by their bits.
#[must_use]
pub fn row_digest(row: &[f32]) -> u64 {
    let mut bytes = Vec::with_capacity(4 * row.len());
    row.iter().for_each(|v| bytes.extend_from_slice(&v.to_bits().to_le_bytes()));
    let digest = Sha256::digest(&bytes);
    u64::from_le_bytes([digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7]])
}
