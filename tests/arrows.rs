//! The rooms and their walls: which crate may depend on which, and what no file of a room may hold. Read from the
//! manifests and the sources, so that a broken invariant fails here and not in a review.

use crate::support::root;
use std::path::{Path, PathBuf};

/// A room, and the rooms that it may depend on.
const ROOMS: [(&str, &[&str]); 5] =
    [("ir", &[]), ("kernels", &[]), ("lowering", &["ir"]), ("engine", &["ir", "kernels"]), ("twin", &["ir"])];

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every Rust file below a directory.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// A file's code: without comments, and without its test module, which stands last in a file.
fn code(path: &Path) -> String {
    let text = read(path);
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// A room's library code: files of test modules left out.
fn library(room: &str) -> Vec<(PathBuf, String)> {
    let test = |path: &PathBuf| {
        let is = |part: &str| matches!(part, "tests" | "tests.rs" | "testing" | "testing.rs");
        path.components().any(|c| c.as_os_str().to_str().is_some_and(is))
    };
    let files = sources(&root().join(room).join("src")).into_iter().filter(|p| !test(p));
    files
        .map(|path| {
            let code = code(&path);
            (path, code)
        })
        .collect()
}

/// Rooms that a manifest names among its dependencies for building (not for tests).
fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.to_owned();
        } else if section.contains("dependencies") && !section.contains("dev-") && line.starts_with("wordline-") {
            let name = line["wordline-".len()..].split(['.', ' ', '=']).next().unwrap_or_default();
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn manifests_name_the_rooms_that_they_may() {
    for (room, allowed) in ROOMS {
        let found = dependencies(&read(&root().join(room).join("Cargo.toml")));
        for name in &found {
            assert!(allowed.contains(&name.as_str()), "{room}/Cargo.toml depends on {name}");
        }
    }
    let product = dependencies(&read(&root().join("Cargo.toml")));
    for room in ["ir", "lowering", "kernels", "engine"] {
        assert!(product.iter().any(|name| name == room), "the product uses {room}: {product:?}");
    }
}

/// The fuzz targets are a workspace of their own, which nothing here builds with the fuzzer: its manifest asks for what the product
/// has, names every target, and every target is in the example that is built here.
#[test]
fn fuzz_targets_are_those_that_are_built_here() {
    let (product, fuzz) = (read(&root().join("Cargo.toml")), read(&root().join("fuzz/Cargo.toml")));
    let asked: Vec<&str> =
        fuzz.split("[dependencies]\n").nth(1).unwrap().split("\n\n").next().unwrap().lines().collect();
    assert!(asked.len() > 1, "{asked:?}");
    for line in asked.iter().filter(|line| !line.starts_with("libfuzzer-sys")) {
        assert!(
            product.lines().any(|own| own == *line),
            "fuzz/Cargo.toml asks for {line}, the product for another one"
        );
    }
    let example = read(&root().join("fuzz/on_stable.rs"));
    let mut targets = 0;
    for path in sources(&root().join("fuzz/fuzz_targets")) {
        if read(&path).contains("fuzz_target!") {
            let file = format!("\"fuzz_targets/{}\"", path.file_name().unwrap().to_str().unwrap());
            assert!(fuzz.contains(&file) && example.contains(&file), "{file} is not built");
            targets += 1;
        }
    }
    assert_eq!((targets, fuzz.matches("[[bin]]").count()), (2, 2));
}

#[test]
fn sources_use_the_rooms_that_they_may() {
    for (room, allowed) in ROOMS {
        for (path, code) in library(room) {
            for (name, _) in ROOMS {
                let uses = code.contains(&format!("wordline_{name}"));
                assert!(!uses || allowed.contains(&name), "{}: uses {name}", path.display());
            }
            assert!(!code.contains("wordline::"), "{}: uses the product", path.display());
        }
    }
}

#[test]
fn rooms_below_the_product_do_no_input_or_output() {
    const FORBIDDEN: [&str; 12] = [
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
        "std::io",
        "println!",
        "eprintln!",
        "print!(",
        "eprint!(",
        "File::open",
        "memmap2",
        "Instant::now",
    ];
    for (room, _) in ROOMS {
        for (path, code) in library(room) {
            for word in FORBIDDEN {
                // Building a table writes a file; that is a program beside the room, not the room.
                let program = path.components().any(|c| c.as_os_str() == "bin");
                assert!(program || !code.contains(word), "{}: holds {word}", path.display());
            }
        }
    }
}

/// A file of tests, or one in a folder of them.
fn is_test(path: &Path) -> bool {
    let own = path.strip_prefix(root()).unwrap_or(path);
    own.ends_with("tests.rs") || own.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn family_names_appear_under_arch_alone() {
    const FAMILIES: [&str; 8] = ["llama", "mistral", "qwen", "gpt2", "gemma", "phi3", "phi-3", "deepseek"];
    let arch = root().join("src/checkpoint/arch");
    let files = ROOMS.iter().flat_map(|(room, _)| library(room)).chain(
        sources(&root().join("src")).into_iter().filter(|p| !is_test(p)).map(|path| {
            let code = code(&path);
            (path, code)
        }),
    );
    for (path, code) in
        files.filter(|(path, _)| !path.starts_with(&arch) && *path != root().join("src/checkpoint/arch.rs"))
    {
        for line in code.lines() {
            let lower = line.to_lowercase();
            for family in FAMILIES {
                // `llama3` is also the published name of a frequency scaling, a fact that a Spec holds.
                let scaling = lower.replace("llama3", "");
                assert!(!scaling.contains(family), "{}: names {family}: {line}", path.display());
            }
        }
    }
}

#[test]
fn nothing_reads_the_family_past_the_spec() {
    for room in ["lowering", "engine", "kernels"] {
        for (path, code) in library(room) {
            // A target's family is no model's.
            for line in code.lines().filter(|line| line.replace("target_family", "").contains("family")) {
                let label = line.contains("family: spec.family.clone()");
                assert!(label, "{}: {line}", path.display());
            }
        }
    }
}

#[test]
fn the_oracle_imports_nothing_of_the_path_it_judges() {
    let path_modules = ["author", "lift", "fuse", "blocks", "rules"];
    let lowering = root().join("lowering/src");
    let (oracle, path): (Vec<_>, Vec<_>) = library("lowering")
        .into_iter()
        .partition(|(p, _)| p.starts_with(lowering.join("hand")) || p.ends_with("hand.rs"));
    assert!(!oracle.is_empty() && path.len() > 5);
    for (file, code) in oracle {
        for word in words(&code) {
            assert!(
                !matches!(word, "crate" | "StepGraph" | "lower_graph" | "graph"),
                "{}: names {word}",
                file.display()
            );
        }
        for module in path_modules {
            for used in [format!("{module}::"), format!("crate::{module}"), format!("super::{module}")] {
                assert!(!code.contains(&used), "{}: uses {used}", file.display());
            }
        }
    }
    for (file, code) in path.iter().filter(|(p, _)| !p.ends_with("lib.rs")) {
        assert!(!code.contains("hand::") && !code.contains("hand_lowering"), "{}: uses the oracle", file.display());
    }
}

#[test]
fn the_oracles_program_reaches_no_engine() {
    for dir in ["src", "engine/src", "twin/src"] {
        for path in sources(&root().join(dir)) {
            let calls = code(&path).contains("hand_lowering");
            assert!(!calls || path.ends_with("cli/diff.rs"), "{}: calls hand_lowering", path.display());
        }
    }
    let diff = code(&root().join("src/cli/diff.rs"));
    assert!(diff.contains("hand_lowering") && !diff.contains("EngineModel") && !diff.contains("Setup"));
}

/// Files outside `ir/` that take commands apart or make them, and why.
const COMMANDS: [(&str, &str); 8] = [
    ("engine/src/sequencer.rs", "the one dispatch"),
    ("engine/src/model", "which tables positions and tokens index"),
    ("engine/src/int8/mod.rs", "which convolutions there are"),
    ("engine/src/gpu/device.rs", "which tensors the device multiplies and which it looks up"),
    ("lowering/src/blocks", "the readers make commands"),
    ("lowering/src/hand", "the oracle makes commands"),
    ("twin/src/subject.rs", "what a command costs, kind by kind"),
    ("lowering/src/split.rs", "which layer a command belongs to"),
];

#[test]
fn the_product_runs_verified_programs_alone() {
    let files = sources(&root().join("src")).into_iter().map(|path| {
        let code = code(&path);
        (path, code)
    });
    for (path, code) in files.chain(library("engine")).filter(|(path, _)| !path.ends_with("sequencer.rs")) {
        assert!(!code.contains("Sequencer::unverified"), "{}: calls Sequencer::unverified", path.display());
    }
}

#[test]
fn there_is_one_forward_pass() {
    let product = sources(&root().join("src")).into_iter().map(|path| {
        let code = code(&path);
        (path, code)
    });
    let rooms = ["engine", "kernels", "lowering", "twin"].into_iter().flat_map(library);
    for (path, code) in rooms.chain(product) {
        // The command line's own enum of subcommands, and child processes, have the same name.
        if !code.contains("Command::") || !code.contains("wordline_ir") {
            continue;
        }
        let place = path.strip_prefix(root()).unwrap().to_str().unwrap();
        let allowed = COMMANDS.iter().any(|(file, _)| {
            place.strip_prefix(file).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
        });
        assert!(allowed, "{place} looks at kinds of commands");
    }
    // And of these only the sequencer looks at all of them: the others pick a kind or two.
    for (path, code) in library("engine") {
        let kinds = code.matches("Command::").count();
        assert_eq!(
            kinds >= 19,
            path.ends_with("sequencer.rs"),
            "{}: {kinds} mentions of kinds of commands",
            path.display()
        );
    }
}

#[test]
fn the_int8_units_know_no_reference_and_no_f64() {
    let int8 = root().join("engine/src/int8");
    let files: Vec<_> = library("engine").into_iter().filter(|(path, _)| path.starts_with(&int8)).collect();
    assert!(files.len() >= 4, "{} files", files.len());
    for (path, code) in files {
        for word in words(&code) {
            let reference = matches!(word, "reference" | "Reference" | "ReferenceUnits" | "Linear" | "Product" | "f64");
            assert!(!reference, "{}: names {word}", path.display());
        }
    }
    // The words are those of the reference: without them this test would hold nothing.
    let reference = code(&root().join("engine/src/reference/linear.rs"));
    assert!(["Linear", "Product", "f64"].iter().all(|word| words(&reference).any(|w| w == *word)));
}

#[test]
fn facts_return_no_command_and_no_node() {
    let parts = ["Command", "Node", "Block", "Prim", "StepGraph", "Graph", "Program", "Slot", "Word", "Cut"];
    let mut functions = 0;
    for file in ["spec.rs", "numerics.rs"] {
        let code = code(&root().join("ir/src").join(file));
        assert!(code.contains("pub struct"), "{file} holds no facts");
        for line in code.lines().map(str::trim) {
            let imports = line.starts_with("use ") && (line.contains("crate::") || line.contains("super::"));
            assert!(!imports && !line.contains("crate::"), "{file} reaches for more than facts: {line}");
        }
        for signature in code.split("pub fn ").chain(code.split("pub const fn ")).filter_map(|s| s.split('{').next()) {
            let Some((_, result)) = signature.split_once("->") else { continue };
            functions += 1;
            assert!(!words(result).any(|word| parts.contains(&word)), "{file}: returns {}", result.trim());
        }
    }
    assert!(functions > 5, "{functions} functions were looked at");
}

/// Identifiers and keywords of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[test]
fn every_dependency_is_used_and_has_its_reason_written_down() {
    let document = read(&root().join("docs/dependencies.md"));
    let mut named = std::collections::BTreeSet::new();
    for room in ["", "ir", "lowering", "kernels", "engine", "twin"] {
        let manifest = read(&root().join(room).join("Cargo.toml"));
        let all: Vec<String> = ["src", "tests", "benches"]
            .iter()
            .map(|dir| root().join(room).join(dir))
            .filter(|dir| dir.is_dir())
            .flat_map(|dir| sources(&dir))
            .map(|path| read(&path))
            .collect();
        for name in crates(&manifest) {
            assert!(document.contains(&format!("`{name}`")), "docs/dependencies.md says nothing of {name}");
            let ident = name.replace('-', "_");
            let used =
                all.iter().any(|code| code.contains(&format!("{ident}::")) || code.contains(&format!("use {ident}")));
            assert!(used, "{room}/Cargo.toml names {name}, which nothing there uses");
            named.insert(name);
        }
    }
    let workspace = read(&root().join("Cargo.toml"));
    let listed = workspace.split("[workspace.dependencies]").nth(1).and_then(|s| s.split("\n[").next()).unwrap();
    for line in listed.lines().filter(|line| line.contains('=') && !line.starts_with("wordline")) {
        let name = line.split([' ', '=']).next().unwrap();
        assert!(named.contains(name), "the workspace lists {name}, which no room names");
    }
}

/// Crates of a package's manifest, the workspace's own left out.
fn crates(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]")
            && !section.contains("workspace")
            && line.contains("workspace = true")
        {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if !name.starts_with("wordline") {
                found.push(name.to_owned());
            }
        }
    }
    found
}
