//! The ISA reference is docs/isa.md.

use crate::command::OPS;
use crate::isa_reference;
use crate::word::FIELDS;

#[test]
fn docs_isa_md_is_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/isa.md");
    let text = isa_reference();
    if std::env::var_os("WORDLINE_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let held = std::fs::read_to_string(path).unwrap_or_default();
    assert!(held == text, "docs/isa.md is not what the tables say; WORDLINE_BLESS=1 writes it anew");
}

#[test]
fn it_has_every_command_field_and_slot() {
    let text = isa_reference();
    for op in OPS {
        let section = text.split(&format!("\n### {}\n", op.mnemonic)).nth(1).expect(op.mnemonic);
        let section = section.split("\n### ").next().unwrap();
        assert!(section.contains(&format!("Opcode {}, ", op.code)) && section.contains(op.doc), "{}", op.mnemonic);
        for (field, place) in op.places() {
            let bits = place.bits();
            let row = format!("| {} | {}:{} | {} |", field.name, bits.first + bits.width - 1, bits.first, bits.name);
            assert!(section.contains(&row), "{}: {row}", op.mnemonic);
        }
    }
    for field in FIELDS {
        assert!(text.contains(&format!(
            "| {}:{} | {} | {} |",
            field.first + field.width - 1,
            field.first,
            field.width,
            field.name
        )));
    }
    assert!(text.contains("| 255:215 | 41 | spare | 0 |"));
}
