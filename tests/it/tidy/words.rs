//! The rules for doc comments, type names and test names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{members, sources};

/// The first words that a doc comment must not have: the sentence would lack a subject or a verb.
const FIRST_WORDS: [&str; 10] =
    ["What", "Whether", "Where", "Who", "Which", "Of", "So", "Else", "But", "The same"];

/// The maximum number of words in a sentence of a comment. Writers aim at 25.
const MAX_WORDS: usize = 40;

/// The maximum number of words in a test's name.
const MAX_TEST_NAME_WORDS: usize = 8;

/// The names that several types may have: the parameters of a command, and an error.
const MAY_REPEAT: [&str; 2] = ["Args", "Error"];

/// Returns the path and the text of every Rust file of the repository. The paths are relative to the repository's
/// root.
fn files() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<PathBuf> = vec![root.join("build.rs")];
    for folder in ["src", "tests", "benches", "crates", "lab", "fuzz"] {
        sources(&root.join(folder), &mut found);
    }
    // The folder `fuzz` has its own workspaces, whose build output is left out.
    found.retain(|file| !file.components().any(|part| part.as_os_str() == "target"));
    let name = |file: &Path| file.strip_prefix(root).unwrap().display().to_string();
    let mut files: Vec<_> =
        found.iter().map(|file| (name(file), fs::read_to_string(file).unwrap())).collect();
    files.sort();
    files
}

/// The marks at the beginning of a comment's lines. The last one marks a comment that is no doc comment.
const MARKS: [&str; 3] = ["///", "//!", "//"];

/// A comment, without code blocks and tables.
struct Comment {
    /// The number of the first line.
    line: usize,
    is_doc: bool,
    text: String,
}

/// Returns the comments of a file that have lines of their own.
fn comments(text: &str) -> Vec<Comment> {
    let mut comments: Vec<Comment> = Vec::new();
    let mut last_mark = None;
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let mark = MARKS.into_iter().find(|mark| line.starts_with(mark) && !line.starts_with("////"));
        if mark != last_mark && mark.is_some() {
            comments.push(Comment {
                line: number,
                is_doc: mark != MARKS.last().copied(),
                text: String::new(),
            });
            in_code = false;
        }
        last_mark = mark;
        let (Some(mark), Some(Comment { text: comment, .. })) = (mark, comments.last_mut()) else { continue };
        let line = line[mark.len()..].trim();
        if line.starts_with("```") {
            in_code = !in_code;
        }
        let is_text = !in_code && !line.starts_with(['|', '#']) && !line.starts_with("```");
        // A paragraph, an item of a list, a table and a heading end the sentence before them.
        if !is_text || line.is_empty() || line.starts_with("- ") {
            comment.push_str(" .\n");
        }
        if is_text {
            comment.push_str(line);
            comment.push('\n');
        }
    }
    comments
}

/// Returns the sentences of a comment that are too long.
fn long_sentences(comment: &str) -> Vec<String> {
    let mut long = Vec::new();
    let mut sentence: Vec<&str> = Vec::new();
    for word in comment.split_whitespace().chain(["."]) {
        sentence.push(word);
        if word.trim_end_matches([')', '"', '`', '*']).ends_with(['.', '!', '?']) {
            if sentence.len() > MAX_WORDS {
                long.push(sentence.join(" "));
            }
            sentence.clear();
        }
    }
    long
}

/// Returns true if a comment begins with one of [`FIRST_WORDS`].
fn begins_badly(comment: &str) -> bool {
    FIRST_WORDS.iter().any(|word| {
        let rest = comment.trim_start().strip_prefix(word);
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    })
}

/// Returns the names of a file's tests.
fn test_names(text: &str) -> Vec<&str> {
    let tests = ["#[test]", "#[tokio::test"].into_iter().flat_map(|attribute| text.split(attribute).skip(1));
    let name = |rest: &str| Some(rest.find("fn ")? + "fn ".len());
    let is_end = |next: char| !next.is_alphanumeric() && next != '_';
    tests.filter_map(|rest| rest[name(rest)?..].split(is_end).next()).collect()
}

/// Returns the breaches of the rules in a file.
fn findings(name: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for Comment { line, is_doc, text } in comments(text) {
        if is_doc && begins_badly(&text) {
            findings.push(format!("{name}:{line}: begins badly: {}", text.lines().next().unwrap_or("")));
        }
        for sentence in long_sentences(&text) {
            findings.push(format!("{name}:{line}: a sentence of over {MAX_WORDS} words: {sentence}"));
        }
    }
    for test in test_names(text) {
        if test.split('_').count() > MAX_TEST_NAME_WORDS {
            findings.push(format!("{name}: a test name of over {MAX_TEST_NAME_WORDS} words: {test}"));
        }
    }
    findings
}

#[test]
fn comments_and_test_names_follow_the_rules() {
    let wrong: Vec<_> = files().iter().flat_map(|(name, text)| findings(name, text)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the name of the type that a line defines.
fn type_name(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1,
        Some(rest) => rest,
        None => line,
    };
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let name = kinds.into_iter().find_map(|kind| line.trim_start_matches(' ').strip_prefix(kind))?;
    name.split(|next: char| !next.is_alphanumeric() && next != '_').next()
}

/// Returns the names of the types that a text defines outside of functions, tests and implementations.
fn type_names(text: &str) -> Vec<&str> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    text.lines().filter(|line| !line.starts_with(' ')).filter_map(type_name).collect()
}

#[test]
fn type_names_are_used_once_in_each_crate() {
    let mut repeated = BTreeMap::new();
    for member in members() {
        let mut files = Vec::new();
        sources(&member.folder.join("src"), &mut files);
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for file in files {
            let path = file.strip_prefix(member.folder.join("src")).unwrap().display().to_string();
            let is_test = path.contains("test") || path.starts_with("cache/model");
            if is_test {
                continue;
            }
            for name in type_names(&fs::read_to_string(&file).unwrap()) {
                places.entry(name.to_owned()).or_default().push(path.clone());
            }
        }
        let several = places
            .into_iter()
            .filter(|(name, places)| places.len() > 1 && !MAY_REPEAT.contains(&name.as_str()));
        repeated.extend(several.map(|(name, places)| (name, (member.name.clone(), places))));
    }
    assert!(repeated.is_empty(), "{repeated:#?}");
}

#[test]
fn breaches_of_the_rules_are_found() {
    let long = ["word"; MAX_WORDS + 1].join(" ");
    for (text, expected) in [
        ("/// Returns the slot.\nfn f() {}", 0),
        ("/// Whether it is.\nfn f() {}", 1),
        ("/// Whatever it is.\nfn f() {}", 0),
        ("    /// The same for others.\n", 1),
        ("//! What is kept.\n//!\n//! More.\n", 1),
        ("// Where it is.\n", 0),
        (&format!("/// {long}.\n"), 1),
        (&format!("/// Short. {long}\n/// and more.\n"), 1),
        (&format!("    // {long}\n    // and more.\n"), 1),
        (&format!("// Short.\nfn f() {{}}\n// {long}.\n"), 1),
        (&format!("fn f() {{}} // {long}.\n"), 0),
        (&format!("/// ```text\n/// {long}\n/// ```\n"), 0),
        (&format!("/// | {long} |\n"), 0),
        ("@[test]\nfn one_two_three_four_five_six_seven_eight() {}", 0),
        ("@[test]\nfn one_two_three_four_five_six_seven_eight_nine() {}", 1),
        (
            "@[tokio::test(start_paused = true)]\nasync fn one_two_three_four_five_six_seven_eight_nine() {}",
            1,
        ),
    ] {
        // The texts have `@` in place of `#`, so that this file itself contains no tests of such names.
        assert_eq!(findings("file.rs", &text.replace('@', "#")).len(), expected, "{text}");
    }
    let text = "pub struct A;\npub(crate) enum B {}\ntype C = u8;\nimpl T for A {\n    type D = u8;\n}\nfn f() {\n    struct E;\n}\n#[cfg(test)]\nmod tests {\nstruct F;\n}";
    assert_eq!(type_names(text), ["A", "B", "C"]);
}
