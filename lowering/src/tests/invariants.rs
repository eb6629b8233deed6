//! Invariants of the room that its sources show.

/// Every source file of the crate, tests excluded, by path.
const SOURCES: &[(&str, &str)] = &[
    ("author.rs", include_str!("../author.rs")),
    ("author/attention.rs", include_str!("../author/attention.rs")),
    ("author/check.rs", include_str!("../author/check.rs")),
    ("author/delta.rs", include_str!("../author/delta.rs")),
    ("author/ffn.rs", include_str!("../author/ffn.rs")),
    ("author/moe.rs", include_str!("../author/moe.rs")),
    ("author/parts.rs", include_str!("../author/parts.rs")),
    ("blocks.rs", include_str!("../blocks.rs")),
    ("blocks/reader.rs", include_str!("../blocks/reader.rs")),
    ("fuse.rs", include_str!("../fuse.rs")),
    ("lift.rs", include_str!("../lift.rs")),
    ("rules.rs", include_str!("../rules.rs")),
];

/// The oracle's sources.
const HAND: &[&str] = &[include_str!("../hand.rs"), include_str!("../hand/tables.rs")];

/// Words of the path that the oracle must not know.
const PATH: &[&str] = &["author", "lift", "fuse", "rules", "blocks", "lower_graph", "StepGraph", "graph"];

fn use_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with("//") && (line.contains("crate::") || line.starts_with("use ") || line.contains("super::"))
    })
}

#[test]
fn the_oracle_knows_nothing_of_the_path_it_judges() {
    for line in HAND.iter().flat_map(|text| use_lines(text)) {
        assert!(!line.contains("crate::") && !line.contains("super::"), "the oracle reaches into its crate: {line}");
        for word in PATH {
            assert!(!line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == *word), "the oracle: {line}");
        }
    }
}

#[test]
fn the_path_knows_nothing_of_the_oracle() {
    for (path, text) in SOURCES {
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            assert!(!line.contains("hand"), "{path} names the oracle: {line}");
        }
    }
    let lib = include_str!("../lib.rs");
    let lower = lib.split("pub fn lower(").nth(1).expect("lower is in lib.rs");
    assert!(!lower.contains("hand"), "lower calls the oracle");
}

#[test]
fn nothing_past_the_spec_reads_the_family() {
    for (path, text) in SOURCES.iter().chain([&("hand.rs", include_str!("../hand.rs"))]) {
        for line in text.lines().filter(|line| line.contains("family")) {
            assert!(line.contains("family: spec.family.clone()"), "{path} reads the family: {line}");
        }
    }
}
