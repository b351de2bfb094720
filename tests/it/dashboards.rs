//! Dashboards and rules: they use existing metrics only, every panel has a description, and every alert has a
//! section of the runbook and a test.

#![expect(clippy::unwrap_used, reason = "a panic in a test shows what is wrong")]

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use slotfront::telemetry::Metrics;

/// Returns the names and contents of a folder's files whose names end in `end`.
fn files(folder: &str, end: &str) -> Vec<(String, String)> {
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
    let named = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let found: Vec<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| named(path).ends_with(end))
        .map(|path| (named(&path), std::fs::read_to_string(&path).unwrap()))
        .collect();
    assert!(!found.is_empty(), "no {end} in {folder}");
    found
}

fn dashboards() -> Vec<(String, String)> {
    files("dashboards", ".json")
}

fn rules() -> Vec<(String, String)> {
    files("deploy/prometheus", ".rules.yml")
}

/// Returns YAML without its comment lines.
fn code(yaml: &str) -> String {
    yaml.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// Returns the text after `key: ` in each line that begins with it.
fn values<'a>(yaml: &'a str, key: &str) -> Vec<&'a str> {
    let value =
        |line: &'a str| line.trim_start().trim_start_matches("- ").strip_prefix(key)?.strip_prefix(": ");
    yaml.lines().filter_map(value).collect()
}

/// Returns the metric names in a text: all words with the prefix `slotfront_`, and the names of recording rules
/// such as `job:slotfront_calls:rate5m`.
fn named_in(text: &str) -> BTreeSet<&str> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !word(c))
        .filter(|name| name.starts_with("slotfront_") || name.contains(":slotfront_"))
        .collect()
}

/// Returns the name of a series without the ending that histograms add to the metric's name.
fn metric_of(series: &str) -> &str {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| series.strip_suffix(end));
    base.unwrap_or(series)
}

#[test]
fn every_metric_named_exists() {
    let rules = rules();
    let mut known: BTreeSet<String> = Metrics::names().collect();
    known.extend(rules.iter().flat_map(|(_, text)| values(text, "record")).map(str::to_owned));
    for (file, text) in dashboards().into_iter().chain(rules.clone()) {
        let text = code(&text);
        let named = named_in(&text);
        assert!(!named.is_empty(), "{file} names no metric");
        for name in named {
            assert!(known.contains(name) || known.contains(metric_of(name)), "{file} names {name}");
        }
    }
}

#[test]
fn every_alert_has_a_runbook_section() {
    let (_, runbook) = files("deploy", "runbook.md").remove(0);
    let mut alerts = BTreeSet::new();
    for (file, text) in rules() {
        let text = code(&text);
        for alert in text.split("- alert: ").skip(1) {
            let name = alert.lines().next().unwrap();
            for key in ["severity", "summary", "description"] {
                assert_eq!(values(alert, key).len(), 1, "{file}: {name}: {key}");
            }
            let page = format!("deploy/runbook.md#{}", name.to_lowercase());
            assert_eq!(values(alert, "runbook_url"), [page], "{file}: {name}");
            let section = runbook.split("\n## ").find(|section| section.lines().next() == Some(name));
            let section = section.unwrap_or_else(|| panic!("{name} has no section in deploy/runbook.md"));
            for part in ["**Means.**", "**Callers see.**", "**Look at.**", "**Do.**"] {
                assert!(section.contains(part), "{name}: no {part} in deploy/runbook.md");
            }
            assert!(alerts.insert(name.to_owned()), "two rules are named {name}");
        }
    }
    let sections = runbook.lines().filter_map(|line| line.strip_prefix("## Slotfront"));
    for section in sections {
        assert!(
            alerts.contains(&format!("Slotfront{section}")),
            "the runbook has Slotfront{section}, no rule does"
        );
    }
}

#[test]
fn every_alert_is_tested_firing_and_not_firing() {
    let (_, tests) = files("deploy/prometheus", "rules.test.yml").remove(0);
    let mut fires = BTreeSet::new();
    let mut silent = BTreeSet::new();
    for case in tests.split("alertname: ").skip(1) {
        let (name, expected) = case.split_once('\n').unwrap();
        let silence = expected.trim_start().starts_with("exp_alerts: []");
        if silence { &mut silent } else { &mut fires }.insert(name);
    }
    for (_, text) in rules() {
        for alert in values(&text, "alert") {
            assert!(
                fires.contains(alert) && silent.contains(alert),
                "{alert} in deploy/prometheus/rules.test.yml"
            );
        }
    }
}

#[test]
fn every_panel_is_described() {
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
