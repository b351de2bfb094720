//! The files made from the declarations of settings: the example and the schema. With the variable `WRITE` set, the
//! test writes them.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use crate::config::reader::Declared;
use crate::config::schema::{declared, schema};

/// The length of a line of comment in the example.
const WIDTH: usize = 118;

#[test]
fn generated_files_equal_the_declarations() {
    check("config/schema.json", |_| format!("{:#}\n", sorted(schema())));
    check("config/example.toml", |old| example(old.split_once("\n\n").unwrap().0));
}

#[track_caller]
fn check(file: &str, generate: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let new = generate(&old);
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(path, new).unwrap();
    } else if old != new {
        let line = old.lines().zip(new.lines()).find(|(old, new)| old != new);
        panic!("{file} is not as declared, first at {line:?}. Write it: WRITE=1 cargo test --lib generated");
    }
}

/// Sorts the keys of all objects, which may otherwise be in the order of their insertion, as other crates decide.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let map: std::collections::BTreeMap<_, _> = map.into_iter().collect();
            map.into_iter().map(|(key, value)| (key, sorted(value))).collect()
        }
        Value::Array(list) => list.into_iter().map(sorted).collect(),
        other => other,
    }
}

/// A setting or a table as people read it. A table whose settings have no help of their own is one line.
struct Line {
    /// The table that has a header in the example.
    section: String,
    /// The name inside the section; empty for the section itself.
    name: String,
    help: String,
    /// The default, or an example, as in the file.
    value: Option<String>,
    is_default: bool,
}

fn lines() -> Vec<Line> {
    let all = declared();
    let inside = |table: &Declared| {
        let prefix = table.path.clone() + ".";
        all.iter().filter(move |one| one.path.starts_with(&prefix)).collect::<Vec<_>>()
    };
    let is_section =
        |one: &&Declared| one.schema.is_null() && inside(one).iter().any(|one| !one.help.is_empty());
    let sections: Vec<_> = all.iter().filter(is_section).map(|section| section.path.as_str()).collect();
    let line = |one: &Declared| {
        let holds = |section: &&&str| {
            one.path.strip_prefix(**section).is_some_and(|name| name.is_empty() || name.starts_with('.'))
        };
        let first = one.path.split('.').next().unwrap_or_default();
        let section = sections.iter().filter(holds).max_by_key(|section| section.len()).unwrap_or(&first);
        let value = |one: &Declared| one.default.as_ref().or(one.example.as_ref()).map(toml);
        let parts = inside(one);
        let inline = || {
            let part =
                |part: &&Declared| format!("{} = {}", &part.path[one.path.len() + 1..], value(part).unwrap());
            format!("{{ {} }}", parts.iter().map(part).collect::<Vec<_>>().join(", "))
        };
        Line {
            section: (*section).to_owned(),
            name: one.path[section.len()..].trim_start_matches('.').to_owned(),
            help: one.help.clone(),
            value: value(one).or_else(|| (!sections.contains(&one.path.as_str())).then(inline)),
            is_default: one.default.is_some() || parts.iter().any(|part| part.default.is_some()),
        }
    };
    all.iter().filter(|one| !one.help.is_empty()).map(line).collect()
}

fn toml(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let parts: Vec<_> = map.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            format!("{{ {} }}", parts.join(", "))
        }
        other => other.to_string(),
    }
}

fn example(head: &str) -> String {
    let mut text = head.to_owned() + "\n";
    let mut section = String::new();
    for line in lines() {
        let is_new = line.section != section;
        section.clone_from(&line.section);
        // Whoever copies the example lists no method by that.
        let is_only_shown = section.starts_with("methods.");
        let header = match section.strip_suffix("[0]") {
            Some(list) => format!("[[{list}]]\n"),
            None if is_only_shown => format!("# [{section}]\n"),
            None => format!("[{section}]\n"),
        };
        if is_new {
            text.push('\n');
        }
        if is_new && !line.name.is_empty() {
            text += &header;
        }
        text += &comment(&line.help);
        if line.name.is_empty() {
            text += &header;
        }
        if let Some(value) = line.value {
            let is_needed = line.is_default && !is_only_shown
                || section == "upstream[0]" && ["name", "url"].contains(&&*line.name);
            writeln!(text, "{}{} = {value}", if is_needed { "" } else { "# " }, line.name).unwrap();
        }
    }
    text
}

fn comment(help: &str) -> String {
    let mut text = "#".to_owned();
    let mut column = 1;
    for word in help.split(' ') {
        if column + 1 + word.len() > WIDTH {
            text += "\n#";
            column = 1;
        }
        text = text + " " + word;
        column += 1 + word.len();
    }
    text + "\n"
}
