//! `spec_digest`: the SHA-256 that names a [`Spec`] in a program's identity, and `hex`: how a digest is written.

use crate::Spec;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// SHA-256 of the Spec's canonical JSON, in 64 lowercase hexadecimal digits.
///
/// Canonical JSON has no white space, object keys in byte order, and every number as the shortest decimal of its f64:
/// the digest depends on the facts and not on the order in which a struct declares them.
#[must_use]
pub fn spec_digest(spec: &Spec) -> String {
    // A Spec is made of strings, numbers, lists and options: none of them can fail to become JSON.
    let facts = serde_json::to_value(spec).unwrap_or(Value::Null);
    let mut text = String::new();
    canonical(&facts, &mut text);
    hex(&Sha256::digest(text.as_bytes()))
}

/// Bytes as lowercase hexadecimal digits, two a byte.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "," });
                canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            out.push('{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "," });
                let _ = write!(out, "{}:", Value::from(key.as_str()));
                canonical(item, out);
            }
            out.push('}');
        }
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}
