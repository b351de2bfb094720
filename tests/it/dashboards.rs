//! Dashboards say only what `/metrics` can show, and every panel explains itself.

#![expect(clippy::unwrap_used, reason = "a test says by its panic what is wrong")]

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use slotfront::telemetry::Metrics;

/// Every dashboard: its file name and its content.
fn dashboards() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let named = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    files
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| (named(&path), std::fs::read_to_string(&path).unwrap()))
        .collect()
}

/// The metric names in a text: whatever begins with our prefix.
fn named_in(text: &str) -> BTreeSet<&str> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !word(c)).filter(|name| name.starts_with("slotfront_")).collect()
}

/// A histogram's series are named after it.
fn metric_of(series: &str) -> &str {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| series.strip_suffix(end));
    base.unwrap_or(series)
}

#[test]
fn every_metric_named_exists() {
    let known: BTreeSet<String> = Metrics::names().collect();
    for (file, text) in dashboards() {
        let named = named_in(&text);
        assert!(!named.is_empty(), "{file} names no metric");
        for name in named {
            assert!(known.contains(name) || known.contains(metric_of(name)), "{file} names {name}");
        }
    }
}

#[test]
fn every_panel_has_title_unit_description_and_the_chosen_datasource() {
    for (file, text) in dashboards() {
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        let mut ids = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{file}: {title}: id used twice");
            if panel["type"] == "row" {
                continue;
            }
            assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{file}: {title}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{file}: {title}: no unit");
            for target in panel["targets"].as_array().unwrap() {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{file}: {title}");
            }
        }
    }
}
