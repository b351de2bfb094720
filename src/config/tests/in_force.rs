//! Every setting of the schema, changed by a reload: exactly what the reload tells is in force.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use toml_edit::{DocumentMut, Item};

use crate::config::reload::InForce;
use crate::config::schema::declared;
use crate::config::{Config, from_text};

const PEM: &str = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
/// What the tables of a setting need so that the setting has a part in the configuration.
const BASE: &str = "
    [methods.getAsset]
    [plans.standard]
    [shared]
    url = \"redis://store.example\"
    [[upstream]]
    url = \"http://a.example\"
    name = \"a\"
    [[upstream]]
    url = \"http://b.example\"
    name = \"b\"";
/// Settings that are valid only together with another one.
const PAIRS: [(&str, &str); 3] = [
    ("server.tls.cert", "server.tls.key"),
    ("server.tls.key", "server.tls.cert"),
    ("server.proxy_protocol", "server.trusted_proxies"),
];

/// Values of every kind of setting. The first that a setting takes, and that is not its default, is its other value.
fn candidates() -> Vec<Value> {
    let mut all = vec![json!(true), json!(false)];
    all.extend([3, 7, 40, 65_536].map(|n| json!(n)));
    all.push(json!(0.3));
    let words = [
        "45s",
        "7s",
        "900ms",
        "300ms",
        "5m",
        "3h",
        "48h",
        "100MiB",
        "20MiB",
        "2GiB",
        "2/min",
        "spec",
        "open",
        "shadow",
        "off",
        "json",
        "scans",
        "unchecked",
        "standard",
        "pem",
        "127.0.0.1:7777",
        "http://c.example",
        "ws://c.example",
        "rediss://c.example",
        "debug",
        "4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi",
        "another-word-of-some-length",
    ];
    all.extend(words.map(|word| json!(word)));
    let lists = [
        "finalized",
        "getSlot",
        "a",
        "10.0.0.0/8",
        "https://app.example",
        "So11111111111111111111111111111111111111112",
    ];
    all.extend(lists.map(|item| json!([item])));
    all.push(json!({ "x-name": "value" }));
    all
}

fn load(document: &DocumentMut, base: &Path) -> Option<Config> {
    let config = from_text(&document.to_string(), &BTreeMap::new(), base).ok()?;
    Some(Config { warnings: Vec::new(), ..config })
}

fn put(document: &mut DocumentMut, path: &str, value: &Value) {
    let written = match value {
        Value::Object(_) => "{ x-name = \"value\" }".to_owned(),
        other => other.to_string(),
    };
    let value: toml_edit::Value = written.parse().unwrap();
    let mut at: &mut Item = document.as_item_mut();
    for part in path.split('.') {
        at = match part.strip_suffix("[0]") {
            Some(list) => &mut at[list][0],
            None => &mut at[part],
        };
    }
    *at = toml_edit::value(value);
}

/// Returns the configuration in which the setting at `path`, which takes values of `kind`, has another value than in
/// `before`.
fn changed(path: &str, kind: Option<&str>, before: &Config, base: &Path) -> Option<Config> {
    let with = |value: &Value| {
        let mut document: DocumentMut = BASE.parse().unwrap();
        put(&mut document, path, value);
        let pair = PAIRS.iter().find(|(one, _)| *one == path).map(|(_, other)| *other);
        if let Some(other) = pair {
            let value = if other.ends_with("proxies") { json!(["10.0.0.0/8"]) } else { json!("pem") };
            put(&mut document, other, &value);
        }
        load(&document, base).filter(|new| new != before)
    };
    let is_of_kind = |value: &&Value| match kind {
        Some("integer" | "number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        _ => true,
    };
    candidates().iter().filter(is_of_kind).find_map(with)
}

#[test]
fn exactly_what_a_reload_tells_is_in_force() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("pem"), PEM).unwrap();
    let before = load(&BASE.parse().unwrap(), dir.path()).unwrap();
    let (mut live, mut waiting) = (0, 0);
    for setting in declared().iter().filter(|setting| !setting.schema.is_null()) {
        let path = &setting.path;
        let new = changed(path, setting.schema["type"].as_str(), &before, dir.path())
            .unwrap_or_else(|| panic!("{path}: no other value"));
        let in_force = InForce::new(before.clone());
        let (next, changes) = in_force.after(&new);
        let tells = |name: &String| {
            path.strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let is_pair = PAIRS.iter().any(|(one, _)| one == path);
        let names = changes.at_once.iter().chain(&changes.after_restart);
        assert!(is_pair || names.clone().all(tells), "{path}: {changes:?}");
        assert!(names.clone().any(tells), "{path}: {changes:?}");
        match (changes.at_once.is_empty(), changes.after_restart.is_empty()) {
            (false, true) => {
                assert_eq!(next, new, "{path} is told to be in force");
                live += 1;
            }
            (true, false) => {
                assert_eq!(next, before, "{path} is told to wait for a restart");
                waiting += 1;
            }
            _ => panic!("{path}: {changes:?}"),
        }
        in_force.put(next);
        let again = in_force.after(&new).1;
        assert!(again.at_once.is_empty(), "{path} is in force");
        assert_eq!(again.after_restart, changes.after_restart, "{path} still waits");
    }
    assert!(live > 50 && waiting > 50, "{live} and {waiting} settings");
}
