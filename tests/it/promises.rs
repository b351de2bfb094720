//! The tests that docs/guarantees.md and SECURITY.md name exist, and the README names the commands.

use std::collections::BTreeSet;
use std::path::Path;

use crate::pages::markdown::Page;

/// The files that name tests.
const PAGES: [&str; 2] = ["docs/guarantees.md", "SECURITY.md"];

/// Returns the name of every function in the Rust and Python files of the folders that contain tests.
fn declared_functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in ["src", "crates", "tests", "fuzz"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut names);
    }
    names
}

fn collect(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let ends = |end| path.extension().is_some_and(|extension| extension == end);
        if path.is_dir() {
            if !path.ends_with("target") && !path.ends_with("corpus") {
                collect(&path, names);
            }
        } else if ends("rs") || ends("py") {
            let text = std::fs::read_to_string(&path).unwrap();
            let words = ["fn ", "def "].into_iter().flat_map(|word| text.split(word).skip(1));
            names.extend(words.map(|rest| {
                rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned()
            }));
        }
    }
}

/// Returns the names of tests on a page: inline code of at least four words that are joined by underscores.
fn named(page: &str) -> Vec<String> {
    let is_name = |code: &String| {
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        // Names of metrics have the same form as names of tests.
        code.split('_').count() >= 4 && code.chars().all(word) && !code.starts_with("slotfront_")
    };
    Page::parse(page).code.into_iter().filter(is_name).collect()
}

#[test]
fn every_test_that_a_page_names_is_there() {
    let declared = declared_functions();
    for page in PAGES {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
        let named = named(&text);
        assert!(named.len() >= 15, "{page} names {}", named.len());
        let gone: Vec<_> = named.iter().filter(|name| !declared.contains(*name)).collect();
        assert!(gone.is_empty(), "{page}: {gone:?}");
    }
}

/// The README is read from the top, so both commands stand on its first screen.
#[test]
fn the_readme_begins_with_both_commands() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let first_screen: Vec<_> = text.lines().take(24).collect();
    for command in ["cargo run -- dev ", "tests/run "] {
        assert!(first_screen.iter().any(|line| line.starts_with(command)), "{command}: {first_screen:?}");
    }
}

#[test]
fn every_promise_and_every_attack_names_its_test() {
    for (page, heading) in [("docs/guarantees.md", "# Guarantees"), ("SECURITY.md", "## Attacks")] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
        let (_, rest) = text.split_once(heading).unwrap_or_else(|| panic!("{page} lacks {heading}"));
        let section = rest.split("\n## ").next().unwrap_or_default();
        let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
        assert!(rows.len() >= 12, "{page}: {} rows", rows.len());
        for row in rows {
            assert!(!named(row).is_empty() || row.contains("`tests/real/"), "{page}: no test: {row}");
        }
    }
}
