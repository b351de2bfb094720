//! The way from a file and an environment to a [`Config`], or to everything that is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::problem::{Origin, Problem, Problems};
use super::raw::{self, Raw, Table};
use super::reader::{Found, PREFIX, Sheet, variable};
use super::{Config, check, sections};

/// Names further apart than this many edits are no misspellings of each other.
const MAX_EDITS: usize = 3;
/// The two that stand for no single setting: the list of upstreams, and the command line's own.
const OTHER_VARIABLES: [&str; 2] = ["SLOTFRONT_UPSTREAMS", "SLOTFRONT_CONFIG"];

/// Reads the configuration: defaults, over them `file`, over that the environment.
///
/// Relative paths are relative to the file, or to the working directory where there is none.
///
/// # Errors
/// All that is wrong, at once. No secret and no upstream's address is part of it.
pub fn load(file: Option<&Path>, env: &BTreeMap<String, String>) -> Result<Config, Problems> {
    let base = file.and_then(Path::parent).unwrap_or(Path::new(""));
    let text = match file.map(std::fs::read_to_string) {
        None => String::new(),
        Some(Ok(text)) => text,
        Some(Err(e)) => return Err(Problems::new(file, vec![unreadable(&e)])),
    };
    parse(&text, env, base).map(|(config, _)| config).map_err(|list| Problems::new(file, list))
}

/// [`load`] from text, in which paths are relative to `base`.
///
/// # Errors
/// As [`load`].
pub fn from_text(text: &str, env: &BTreeMap<String, String>, base: &Path) -> Result<Config, Problems> {
    parse(text, env, base).map(|(config, _)| config).map_err(|list| Problems::new(None, list))
}

/// [`load`] from text; also what the reading found, which lists every known name.
pub(super) fn parse(
    text: &str,
    env: &BTreeMap<String, String>,
    base: &Path,
) -> Result<(Config, Found), Vec<Problem>> {
    let table = raw::parse(text)?;
    let sheet = Sheet::new(&table, env, base);
    let mut config = sections::read(&sheet.root());
    let mut found = sheet.finish();
    unknown_names(&table, "", &mut found);
    unknown_variables(env, &mut found);
    check::check(&mut config, &mut found);
    if found.problems.is_empty() { Ok((config, found)) } else { Err(found.problems) }
}

fn unreadable(e: &std::io::Error) -> Problem {
    Problem {
        path: String::new(),
        value: None,
        origin: Origin::Default,
        rule: format!("cannot be read: {}", e.kind()),
        fix: "name a readable file; config/example.toml is one to start from".to_owned(),
    }
}

/// Whatever was not asked for does not exist. An unknown value may be a secret in the wrong place: it is not shown.
fn unknown_names(table: &Table, path: &str, found: &mut Found) {
    for (key, written) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if !found.known.contains(&path) {
            found.problems.push(Problem {
                fix: nearest_path(&path, &found.known)
                    .map_or_else(|| "remove it".to_owned(), |known| format!("did you mean {known}?")),
                path,
                value: None,
                origin: written.origin.clone(),
                rule: "is no setting".to_owned(),
            });
            continue;
        }
        if found.is_wrong(&path) {
            continue; // What is inside something that is refused as a whole need not be named.
        }
        match &written.raw {
            Raw::Table(table) => unknown_names(table, &path, found),
            Raw::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    if let (true, Raw::Table(table)) = (found.known.contains(&path), &item.raw) {
                        unknown_names(table, &path, found);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The nearest name in the same table, else the same name in another table.
fn nearest_path<'a>(path: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let split = |path: &'a str| path.rsplit_once('.').unwrap_or(("", path));
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let siblings = known.iter().filter(|other| split(other).0 == parent);
    nearest(name, siblings.map(|other| (split(other).1, other.as_str())))
        .or_else(|| known.iter().find(|other| split(other).1 == name).map(String::as_str))
}

/// The candidate whose word is fewest edits from `name`.
fn nearest<'a>(name: &str, candidates: impl Iterator<Item = (&'a str, &'a str)>) -> Option<&'a str> {
    candidates
        .map(|(word, full)| (strsim::damerau_levenshtein(name, word), full))
        .filter(|(edits, _)| *edits <= MAX_EDITS.min(name.len() / 2))
        .min()
        .map(|(_, full)| full)
}

/// Variables with `__` can only be meant for us. The others may be anybody's: Kubernetes itself sets
/// `SLOTFRONT_SERVICE_HOST` beside a service of our name. But one that lacks only an underscore is a slip.
fn unknown_variables(env: &BTreeMap<String, String>, found: &mut Found) {
    let known = |name: &str| found.variables.contains(name) || OTHER_VARIABLES.contains(&name);
    let mut problems = Vec::new();
    for name in env.keys().filter(|name| name.starts_with(PREFIX) && !known(name)) {
        let collapsed = name.replace("__", "_");
        let slip = found.variables.iter().find(|other| other.replace("__", "_") == collapsed);
        if slip.is_none() && !name.contains("__") {
            continue;
        }
        let near = slip
            .map(String::as_str)
            .or_else(|| nearest(name, found.variables.iter().map(|other| (other.as_str(), other.as_str()))));
        problems.push(Problem {
            path: name.clone(),
            value: None,
            origin: Origin::Variable("the environment".to_owned()),
            rule: "is no setting".to_owned(),
            fix: near.map_or_else(
                || format!("unset it; cache.capacity, for example, is {}", variable("cache.capacity")),
                |near| format!("did you mean {near}?"),
            ),
        });
    }
    found.problems.extend(problems);
}
