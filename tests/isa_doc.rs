//! docs/isa.md is the text that `wordline isa` prints.

use crate::support::{root, run};

/// Set to write the document anew.
const BLESS: &str = "WORDLINE_BLESS";

#[test]
fn the_document_is_what_the_program_prints() {
    let printed = run(&["isa"]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    let file = root().join("docs/isa.md");
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(&file, &printed.out).unwrap();
    }
    let held = std::fs::read_to_string(&file).unwrap();
    assert!(held == printed.out, "docs/isa.md is not what `wordline isa` prints; run the test with {BLESS}=1");
}

#[test]
fn micro_programs_print() {
    let printed = run(&["isa", "--micro"]);
    assert!(printed.code == 0 && printed.out.contains("norm"), "{}{}", printed.out, printed.err);
}
