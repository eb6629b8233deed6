//! What subcommands print: results on standard output, remarks on standard error.

use super::failure::Failure;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};

/// Print text as it is; shown at once, so that streamed text appears token by token.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn text(text: &str) -> Result<(), Failure> {
    Ok(raw(text)?)
}

/// [`text`] with the operating system's own error.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn raw(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Print bytes as they are.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Print a value and end the line.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn line(value: impl fmt::Display) -> Result<(), Failure> {
    text(&format!("{value}\n"))
}

/// Print a report as JSON.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn json(report: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report).map_err(|e| Failure::fault(format!("cannot write JSON: {e}")))?;
    line(text)
}

/// A remark on standard error. When nobody listens there, the work goes on.
pub(super) fn note(remark: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{remark}");
}
