//! Reading programs from files in any of their forms (binary, JSON, text), and writing results to files.

use super::failure::{Failure, chain};
use super::out;
use std::io::Read;
use std::path::Path;
use wordline_ir::{Program, file, text};

/// Longest program file read, in bytes: far above the largest program the word can index.
const CAP: u64 = 1 << 30;

/// A program in whichever form the file has; `-` is standard input.
pub(super) fn read_program(path: &Path) -> Result<Program, Failure> {
    let bytes = read_bytes(path)?;
    let at = |failure: Failure| failure.at(path.display());
    if bytes.starts_with(&file::MAGIC) {
        return file::from_bytes(&bytes).map_err(|e| at(Failure::refused(chain(&e))));
    }
    if bytes.is_empty() {
        return Err(at(Failure::refused("the file is empty; a program file or program text was expected")));
    }
    let source = String::from_utf8(bytes).map_err(|_| {
        at(Failure::refused("neither a program file (it does not begin as one) nor UTF-8 text")
            .hint("programs are written by `wordline lower MODEL --format bin -o FILE` and `wordline asm`"))
    })?;
    if source.trim_start().starts_with('{') {
        return file::from_json(&source).map_err(|e| at(Failure::refused(chain(&e))));
    }
    text::parse(&source).map_err(|e| at(Failure::refused(chain(&e))))
}

/// A file's bytes; `-` is standard input.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let refuse = |e: std::io::Error| Failure::refused(e).at(path.display());
    let reader: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(refuse)?)
    };
    let mut bytes = Vec::new();
    reader.take(CAP + 1).read_to_end(&mut bytes).map_err(refuse)?;
    if bytes.len() as u64 > CAP {
        return Err(Failure::refused(format!("longer than {CAP} bytes")).at(path.display()));
    }
    Ok(bytes)
}

/// A file of UTF-8 text; `-` is standard input.
pub(super) fn read_text(path: &Path) -> Result<String, Failure> {
    String::from_utf8(read_bytes(path)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::refused(format!("not UTF-8 text: byte {at} begins no character")).at(path.display())
    })
}

/// Write a result to a file, or to standard output without one.
pub(super) fn write(path: Option<&Path>, bytes: &[u8]) -> Result<(), Failure> {
    match path {
        None => out::bytes(bytes),
        Some(path) => std::fs::write(path, bytes).map_err(|e| Failure::refused(e).at(path.display())),
    }
}
