//! Every fixture opens, and its Spec says what is special about it.

use std::path::{Path, PathBuf};
use wordline::checkpoint::Checkpoint;

pub(super) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}
#[test]
fn all() {
    for d in std::fs::read_dir(fixtures().join("given")).unwrap() {
        let d = d.unwrap().path();
        if d.is_dir() {
            match Checkpoint::open(&d) {
                Ok(c) => println!("{} ok {:?}", d.display(), c.notes.len()),
                Err(e) => println!("{} {e}", d.display()),
            }
        }
    }
}
