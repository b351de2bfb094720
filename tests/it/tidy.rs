//! Tests of the layering that ARCHITECTURE.md describes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// A crate of the workspace.
pub(crate) struct Member {
    /// The name of the crate, as written in code.
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
}

/// Returns the members of the workspace, beginning with the crate `slotfront`.
pub(crate) fn members() -> Vec<Member> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = |folder: &Path| -> toml::Table {
        toml::from_str(&fs::read_to_string(folder.join("Cargo.toml")).unwrap()).unwrap()
    };
    let folders = manifest(root)["workspace"]["members"].as_array().unwrap().clone();
    let folders = folders.iter().map(|folder| root.join(folder.as_str().unwrap()));
    let member = |folder: PathBuf| Member {
        name: manifest(&folder)["package"]["name"].as_str().unwrap().replace('-', "_"),
        folder,
    };
    std::iter::once(root.to_owned()).chain(folders).map(member).collect()
}

/// Returns the source files of the crate `slotfront`: the path inside `src`, and the code without tests and comments.
fn code() -> Vec<(String, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    files
        .into_iter()
        .map(|file| {
            let name = file.strip_prefix(&src).unwrap().display().to_string();
            let text = fs::read_to_string(&file).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            (name, code.collect::<Vec<_>>().join("\n"))
        })
        .filter(|(name, _)| !name.contains("tests"))
        .collect()
}

/// Asserts that the text `what` occurs only in files of the crate `slotfront` whose paths begin with one of
/// `places`.
#[track_caller]
fn only(what: &str, places: &[&str]) {
    let strangers: Vec<_> = code()
        .into_iter()
        .filter(|(name, code)| code.contains(what) && !places.iter().any(|place| name.starts_with(place)))
        .map(|(name, _)| name)
        .collect();
    assert!(strangers.is_empty(), "{what:?} is in {strangers:?}, and may be in {places:?} only");
}

/// Asserts that only the modules `places` of the crate `slotfront` use the crate `what`, however they import it.
#[track_caller]
fn only_crate(what: &str, places: &[&str]) {
    let strangers: Vec<_> = code()
        .into_iter()
        .filter(|(name, code)| words(code).any(|word| word == what) && !within(name, places))
        .map(|(name, _)| name)
        .collect();
    assert!(strangers.is_empty(), "{what} is in {strangers:?}, and may be in {places:?} only");
}

/// Returns true if the file is one of these modules, or lies inside one of them.
fn within(name: &str, layers: &[&str]) -> bool {
    layers.iter().any(|layer| name == format!("{layer}.rs") || name.starts_with(&format!("{layer}/")))
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Returns the layers that `code` uses: the names after `crate::`, or after `super::` repeated `depth` times, also
/// in braces. That many `super` lead from the file of `code` out of its layer.
fn layers_of(code: &str, depth: usize) -> BTreeSet<String> {
    let out = format!("{}::", vec!["super"; depth].join("::"));
    let mut layers = BTreeSet::new();
    for door in ["crate::", &out] {
        for (_, path) in code.match_indices(door).map(|(at, _)| code.split_at(at + door.len())) {
            let Some(group) = path.strip_prefix('{') else {
                layers.extend(words(path).next().map(ToOwned::to_owned));
                continue;
            };
            let (mut level, mut first) = (0, true);
            for token in tokens(group) {
                match token {
                    "{" => level += 1,
                    "}" if level == 0 => break,
                    "}" => level -= 1,
                    "," => first |= level == 0,
                    layer if first => {
                        layers.insert(layer.to_owned());
                        first = false;
                    }
                    _ => {}
                }
            }
        }
    }
    layers
}

/// Returns the words, braces and commas of a text.
fn tokens(code: &str) -> impl Iterator<Item = &str> {
    code.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_').flat_map(|piece| {
        let word = piece.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_');
        let [word, end] = [word, piece[word.len()..].trim()];
        [word, end]
            .into_iter()
            .filter(|token| words(token).any(|word| !word.is_empty()) || ["{", "}", ","].contains(token))
    })
}

#[test]
fn imports_are_seen_however_they_are_written() {
    for (code, depth, expected) in [
        ("use crate::cache::{CacheAnswer, CallOptions};", 1, &["cache"][..]),
        (
            "use crate::{pool::{Pool, select}, cache, node::client::Client as C};",
            1,
            &["cache", "node", "pool"],
        ),
        ("use crate::{\n    frontier::Frontier,\n    http,\n};", 1, &["frontier", "http"]),
        ("use super::super::pool::Pool; use super::key;", 2, &["pool"]),
        ("crate::gateway::units(1)", 1, &["gateway"]),
    ] {
        let layers: Vec<_> = layers_of(code, depth).into_iter().collect();
        assert_eq!(layers, expected, "{code}");
    }
}

#[test]
fn nothing_below_http_knows_axum() {
    only_crate("axum", &["http", "admin", "app"]);
}

#[test]
fn nothing_above_node_knows_reqwest() {
    // The trace collector is not a node: no call depends on it.
    only_crate("reqwest", &["node", "telemetry/otlp"]);
}

#[test]
fn nothing_but_the_redis_store_knows_redis() {
    // The settings name the URL scheme `redis`, which is not the crate.
    only_crate("redis", &["redis_store", "config/sections/shared"]);
}

#[test]
fn codes_of_ours_are_born_in_one_place() {
    for code in -32096..=-32090 {
        only(&code.to_string(), &["error.rs"]);
    }
}

/// The layers, in the order in which a request passes them.
const LAYERS: [&str; 14] = [
    "cli",
    "app",
    "admin",
    "http",
    "subscribe",
    "gateway",
    "send",
    "tip",
    "cache",
    "follow",
    "pool",
    "frontier",
    "node",
    "redis_store",
];

/// The modules that every layer may use. Each comes before those that it uses.
const FOUNDATIONS: [&str; 11] = [
    "error",
    "tls",
    "telemetry",
    "breaker",
    "config",
    "chunks",
    "coding",
    "fair",
    "limiter",
    "low_priority",
    "sync",
];

/// Checks that a layer uses only later layers and foundations, and a foundation only later foundations.
#[test]
fn layers_call_downwards_only() {
    let order = [&LAYERS[..], &FOUNDATIONS].concat();
    let code = code();
    for (above, layer) in order.iter().enumerate() {
        for stranger in &order[..above] {
            let uses = code.iter().filter(|(name, code)| {
                let depth = name.split('/').count();
                within(name, &[layer]) && layers_of(code, depth).contains(*stranger)
            });
            let uses: Vec<_> = uses.map(|(name, _)| name).collect();
            assert!(uses.is_empty(), "{layer} uses {stranger}, which is above it: {uses:?}");
        }
    }
}

#[test]
fn every_module_is_a_layer_or_foundation() {
    let named: BTreeSet<_> = [&LAYERS[..], &FOUNDATIONS].concat().into_iter().map(str::to_owned).collect();
    let files = code().into_iter().map(|(name, _)| name);
    let modules: BTreeSet<_> = files
        .filter_map(|name| Some(name.split('/').next()?.trim_end_matches(".rs").to_owned()))
        .filter(|module| !["lib", "main"].contains(&module.as_str()))
        .collect();
    assert_eq!(named, modules);
}

/// Checks that no member of the workspace depends on a crate that its row of this table denies.
#[test]
fn members_know_as_little_as_they_can() {
    for (member, denied) in [
        ("crates/rpc", &["slotfront", "slotfront-sim", "tokio", "hyper", "axum", "http"][..]),
        ("crates/sim", &["slotfront", "slotfront-testkit", "reqwest", "axum", "moka"]),
        (".", &["slotfront-testkit", "slotfront-lab"]),
        ("crates/testkit", &["slotfront-lab", "axum", "hyper", "moka"]),
    ] {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(member).join("Cargo.toml");
        let manifest: toml::Table = toml::from_str(&fs::read_to_string(manifest).unwrap()).unwrap();
        let dependencies = manifest["dependencies"].as_table().unwrap();
        let known: Vec<_> = denied.iter().filter(|name| dependencies.contains_key(**name)).collect();
        assert!(known.is_empty(), "{member} depends on {known:?}");
    }
}
