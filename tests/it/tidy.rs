//! The layering that ARCHITECTURE.md describes, held by test.

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

/// Every source file as its path inside `src` and its code, tests and comments left out.
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

#[track_caller]
fn only(what: &str, places: &[&str]) {
    let strangers: Vec<_> = code()
        .into_iter()
        .filter(|(name, code)| code.contains(what) && !places.iter().any(|place| name.starts_with(place)))
        .map(|(name, _)| name)
        .collect();
    assert!(strangers.is_empty(), "{what:?} stands in {strangers:?}, and may only in {places:?}");
}

#[test]
fn nothing_below_http_knows_axum() {
    only("axum::", &["http", "admin", "app"]);
}

#[test]
fn nothing_above_node_knows_reqwest() {
    only("reqwest::", &["node"]);
}

#[test]
fn codes_of_ours_are_born_in_one_place() {
    for code in -32096..=-32090 {
        only(&code.to_string(), &["error.rs"]);
    }
}

#[test]
fn rooms_call_downwards_only() {
    let rooms = ["http", "gateway", "jsonrpc", "methods", "cache", "pool", "node", "frontier"];
    for (above, room) in rooms.iter().enumerate() {
        for stranger in &rooms[..above] {
            // The vocabulary of `methods` and the usable words of `jsonrpc` are handed down as values.
            if matches!(*stranger, "methods" | "jsonrpc") {
                continue;
            }
            let uses = code().into_iter().filter(|(name, code)| {
                let own = name.starts_with(&format!("{room}/")) || *name == format!("{room}.rs");
                own && code.contains(&format!("crate::{stranger}::"))
            });
            let uses: Vec<_> = uses.map(|(name, _)| name).collect();
            assert!(uses.is_empty(), "{room} uses {stranger}, which is above it: {uses:?}");
        }
    }
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let long: Vec<_> =
        code().into_iter().filter(|(_, code)| code.lines().count() > 420).map(|(name, _)| name).collect();
    assert!(long.is_empty(), "{long:?}");
}
