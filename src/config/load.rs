//! Loads a [`Config`] from a file and the environment, or reports all problems.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::problem::{Problem, Problems, ValueOrigin, io_fault};
use super::raw::{self, Raw, RawTable};
use super::reader::{ConfigLayers, Findings, PREFIX, Section, variable};
use super::watch::read_text;
use super::{Config, Telemetry, check};

/// The maximum number of edits between an unknown name and the known name that is suggested for it.
const MAX_EDITS: usize = 3;
/// The environment variables that do not stand for one setting: the list of upstreams, and the path of the file.
const OTHER_VARIABLES: [&str; 2] = ["SLOTFRONT_UPSTREAMS", "SLOTFRONT_CONFIG"];

/// Loads the configuration: the environment overrides `file`, which overrides the defaults.
///
/// Relative paths are relative to the file's directory, or to the working directory without a file.
///
/// # Errors
/// The configuration is invalid. The error has all problems at once, and shows no secret and no upstream URL.
pub fn load(file: Option<&Path>, env: &BTreeMap<String, String>) -> Result<Config, Problems> {
    let base = file.and_then(Path::parent).unwrap_or(Path::new(""));
    let text = match file.map(read_text) {
        None => String::new(),
        Some(Ok(text)) => text,
        Some(Err(e)) => {
            let fault = io_fault(file.unwrap_or(Path::new("")), &e);
            return Err(Problems::new(file, vec![unreadable_file(&fault)]));
        }
    };
    parse(&text, env, base).map(|(config, _)| config).map_err(|list| Problems::new(file, list))
}

/// Returns `[telemetry]` of a configuration that may be invalid, with defaults where it cannot be read. It says in which form
/// problems are told.
pub fn telemetry(file: Option<&Path>, env: &BTreeMap<String, String>) -> Telemetry {
    let text = file.and_then(|file| read_text(file).ok()).unwrap_or_default();
    let table = raw::parse(&text).unwrap_or_default();
    ConfigLayers::new(&table, env, Path::new("")).root().section("telemetry")
}

/// Loads the configuration from the text of a file. Paths are relative to `base`.
///
/// # Errors
/// As for [`load`].
pub fn from_text(text: &str, env: &BTreeMap<String, String>, base: &Path) -> Result<Config, Problems> {
    parse(text, env, base).map(|(config, _)| config).map_err(|list| Problems::new(None, list))
}

/// Loads the configuration from the text of a file. Also returns the names of all known settings, and the
/// origins of their values.
pub(super) fn parse(
    text: &str,
    env: &BTreeMap<String, String>,
    base: &Path,
) -> Result<(Config, Findings), Vec<Problem>> {
    let table = raw::parse(text)?;
    let layers = ConfigLayers::new(&table, env, base);
    let root = layers.root();
    let mut config = Config::read(&root);
    let mut found = layers.finish();
    unknown_names(&table, "", &mut found);
    unknown_variables(env, &mut found);
    check::check(&mut config, &mut found);
    if found.problems.is_empty() { Ok((config, found)) } else { Err(found.problems) }
}

/// Loads the configuration without any setting but one upstream, which a configuration needs.
///
/// # Panics
/// Never: a test checks that the defaults are valid.
pub(super) fn defaults() -> (Config, Findings) {
    of_one_upstream("")
}

/// Loads the same with one listed method, by which the settings of any are declared.
pub(super) fn with_example_method() -> (Config, Findings) {
    of_one_upstream(&format!("\n[methods.{}]", super::EXAMPLE_METHOD))
}

fn of_one_upstream(rest: &str) -> (Config, Findings) {
    let text = format!("[[upstream]]\nurl = \"http://upstream.invalid\"{rest}");
    parse(&text, &BTreeMap::new(), Path::new("")).expect("the defaults are valid, as a test holds")
}

fn unreadable_file(fault: &str) -> Problem {
    let fix = "name a readable file, such as a copy of config/example.toml; a container needs it mounted, readable to its user";
    Problem::new("", ValueOrigin::Default, format!("cannot be read: {fault}"), fix)
}

/// Reports settings that no section has read. An unknown value is not shown, because it may be a misplaced secret.
fn unknown_names(table: &RawTable, path: &str, found: &mut Findings) {
    for (key, written) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if !found.known.contains(&path) {
            let near = nearest_path(&path, &found.known);
            let fix = match near {
                _ if path == "passthrough" => {
                    "list each method in a table of its own, [methods.NAME]".to_owned()
                }
                Some(known) => format!("did you mean {known}?"),
                None => "remove it".to_owned(),
            };
            found.problems.push(Problem::new(path, written.origin.clone(), "is not a setting", fix));
            continue;
        }
        if found.is_wrong(&path) {
            continue; // Settings inside a refused table are not reported.
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

/// Returns the path to suggest for the unknown setting `path`: the most similar known name in the same table. If no
/// name there is similar, returns a known setting of exactly this name in another table. `None` without such a setting.
fn nearest_path<'a>(path: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let split = |path: &'a str| path.rsplit_once('.').unwrap_or(("", path));
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let siblings = known.iter().filter(|other| split(other).0 == parent);
    nearest(name, siblings.map(|other| (split(other).1, other.as_str())))
        .or_else(|| known.iter().find(|other| split(other).1 == name).map(String::as_str))
}

/// Returns the path of the candidate whose word needs the fewest edits to become `name`. Each candidate is a pair of a
/// word and a path. `None` if no word is close.
fn nearest<'a>(name: &str, candidates: impl Iterator<Item = (&'a str, &'a str)>) -> Option<&'a str> {
    candidates
        .map(|(word, full)| (strsim::damerau_levenshtein(name, word), full))
        .filter(|(edits, _)| *edits <= MAX_EDITS.min(name.len() / 2))
        .min()
        .map(|(_, full)| full)
}

/// Reports unknown environment variables that are meant for slotfront: their names have `__`, or differ from a known
/// name only in single and double underscores. Other variables are ignored. For example, Kubernetes sets
/// `SLOTFRONT_SERVICE_HOST` for a service named slotfront.
fn unknown_variables(env: &BTreeMap<String, String>, found: &mut Findings) {
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
        let origin = ValueOrigin::Variable("the environment".to_owned());
        let fix = near.map_or_else(
            || {
                let example = variable("cache.capacity");
                format!("unset it, or correct its name: cache.capacity, for example, is {example}")
            },
            |near| format!("did you mean {near}?"),
        );
        problems.push(Problem::new(name, origin, "is not a setting", fix));
    }
    found.problems.extend(problems);
}
