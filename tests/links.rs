//! What documents point at: files, headings, and the tests that hold the invariants.

use crate::support::root;
use std::path::{Path, PathBuf};

/// Markdown files at the root and in docs/.
fn documents() -> Vec<PathBuf> {
    let folders = [root().to_owned(), root().join("docs")];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|e| e.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "md")).collect()
}

/// Targets of a document's links, `](target)`.
fn links(document: &str) -> impl Iterator<Item = &str> {
    document.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// A heading's anchor, as forges make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// A link into the repository that leads nowhere; none when it leads somewhere, or out.
fn broken(link: &str, document: &Path) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (file, section) = link.split_once('#').map_or((link, None), |(file, section)| (file, Some(section)));
    let target = if file.is_empty() { document.to_owned() } else { document.parent()?.join(file) };
    if !target.exists() {
        return Some(format!("there is no {}", target.display()));
    }
    let section = section?;
    let text = std::fs::read_to_string(&target).unwrap_or_default();
    let mut headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
    (!headings.any(|heading| anchor(heading) == section))
        .then(|| format!("{} has no heading {section}", target.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let mut count = 0;
    for document in documents() {
        for link in links(&std::fs::read_to_string(&document).unwrap()) {
            assert_eq!(broken(link, &document), None, "{}: ({link})", document.display());
            count += 1;
        }
    }
    assert!(count >= 7, "{count} links");
}

/// docs/architecture.md names the test that holds each invariant; each is there.
#[test]
fn every_invariant_has_its_test() {
    fn sources(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, text);
            } else if path.extension().is_some_and(|e| e == "rs") {
                *text += &std::fs::read_to_string(&path).unwrap();
            }
        }
    }
    let mut code = String::new();
    for folder in ["tests", "ir/src", "lowering/src", "kernels/src", "engine/src"] {
        sources(&root().join(folder), &mut code);
    }
    let document = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let section = document.split("## Invariants").nth(1).and_then(|s| s.split("\n## ").next()).unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() > 8, "{} invariants", rows.len());
    for row in rows {
        let holder = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let names: Vec<&str> = holder.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            let test = code.contains(&format!("fn {name}("));
            assert!(test || root().join(name).exists(), "no test and no file is called {name}");
        }
    }
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let readme = root().join("README.md");
    assert!(broken("docs/no-such.md", &readme).is_some() && broken("docs/architecture.md#no-such", &readme).is_some());
    assert_eq!(broken("docs/architecture.md#invariants", &readme), None);
    assert_eq!(links("[a](b.md), [c](d.md#e)").collect::<Vec<_>>(), ["b.md", "d.md#e"]);
}
