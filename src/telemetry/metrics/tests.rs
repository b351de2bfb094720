//! Tests of the content of `/metrics` and its bounds.

use std::fmt::Write as _;

use super::*;

/// Returns the sample lines of one metric.
fn series(text: &str, name: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
}

#[test]
fn calls_update_count_duration_and_bytes() {
    let metrics = Metrics::new();
    let method = Some(Method::GetAccountInfo.into());
    metrics.call(method, Some(Commitment::Confirmed), Outcome::Hit, Duration::from_micros(120), 247);
    let text = metrics.render();
    let requests = series(&text, "slotfront_requests_total");
    assert_eq!(
        requests,
        [r#"slotfront_requests_total{commitment="confirmed",method="getAccountInfo",outcome="hit"} 1"#]
    );
    let buckets = series(&text, "slotfront_request_duration_seconds_bucket");
    assert!(
        buckets[1].ends_with(r#"le="0.0001"} 0"#) && buckets[2].ends_with(r#"le="0.00015"} 1"#),
        "{buckets:?}"
    );
    assert!(text.contains("slotfront_response_bytes_total{method=\"getAccountInfo\"} 247\n"));
}

#[test]
fn help_texts_are_the_doc_comments() {
    let text = Metrics::new().render();
    assert!(
        text.contains("# HELP slotfront_connections Open connections on the public listener.\n"),
        "{text}"
    );
    assert!(text.contains("# TYPE slotfront_auth_failures_total counter\n"));
    assert!(text.contains(concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"")));
    #[cfg(target_os = "linux")]
    assert!(text.contains("\nprocess_resident_memory_bytes "));
}

#[test]
fn keys_beyond_the_bound_share_series() {
    let metrics = Metrics::new();
    for n in 0..100_000 {
        metrics.key(&format!("key{n}")).units.at(()).inc_by(0.5);
    }
    let text = metrics.render();
    let units = series(&text, "slotfront_key_units_total");
    assert_eq!(units.len(), KEYS_WITH_SERIES + 1);
    assert!(units.contains(&r#"slotfront_key_units_total{key="other"} 49900"#.to_owned()), "{units:?}");
    assert!(Arc::ptr_eq(&metrics.key("key99999"), &metrics.key("never seen")));
    assert!(Arc::ptr_eq(&metrics.key("key0"), &metrics.key("key0")));
}

#[test]
fn keys_have_one_plan_at_a_time_and_give_their_places_back() {
    let metrics = Metrics::new();
    metrics.set_key_places(1);
    for (plan, shown) in [(Some("large"), "large"), (Some("small"), "small"), (None, "none")] {
        metrics.key("k1");
        let state = || KeyState {
            name: "al\"ice\n".to_owned(),
            plan: plan.map(str::to_owned),
            used: [Some(0.5), None],
        };
        metrics.set_keys(|id| (id == "k1").then(state));
        let text = metrics.render();
        let expected = format!(r#"slotfront_key_info{{name="al\"ice\n",plan="{shown}",key="k1"}} 1"#);
        assert_eq!(series(&text, "slotfront_key_info"), [expected]);
        let used = r#"slotfront_key_quota_used_ratio{period="day",key="k1"} 0.5"#;
        assert_eq!(series(&text, "slotfront_key_quota_used_ratio"), [used]);
    }
    assert!(Arc::ptr_eq(&metrics.key("k2"), &metrics.key("k3")), "there is one place only");
    metrics.set_keys(|_| None);
    assert!(!Arc::ptr_eq(&metrics.key("k2"), &metrics.key("k3")), "the place of a key that is gone is free");
}

#[test]
fn removed_upstreams_lose_their_series() {
    let metrics = Metrics::new();
    metrics.upstream("a").up.set(1);
    metrics.upstream("b").slot.at(Commitment::Processed).set(7);
    let text = metrics.render();
    assert_eq!(text.matches("# TYPE slotfront_upstream_up gauge").count(), 1);
    assert_eq!(
        series(&text, "slotfront_upstream_up"),
        [r#"slotfront_upstream_up{upstream="a"} 1"#, r#"slotfront_upstream_up{upstream="b"} 0"#]
    );
    assert_eq!(
        series(&text, "slotfront_upstream_slot{"),
        [r#"slotfront_upstream_slot{commitment="processed",upstream="b"} 7"#]
    );
    metrics.retain_upstreams(|name| name == "a");
    assert!(!metrics.render().contains("upstream=\"b\""));
}

#[test]
fn hooks_run_before_each_scrape() {
    let metrics = Metrics::new();
    metrics.before_render(|metrics| metrics.cache_bytes.add(5));
    metrics.render();
    assert!(metrics.render().contains("\nslotfront_cache_bytes 10\n"));
}

#[test]
fn names_follow_prometheus_conventions() {
    for name in Metrics::names() {
        assert!(name.starts_with("slotfront_"));
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
    }
    let text = Metrics::new().render();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE slotfront_"));
    for (name, kind) in types.filter_map(|line| line.split_once(' ')) {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
    }
}

/// A metric: its name without prefix, its help text, its labels, and whether it is a histogram.
pub(super) type Described = (&'static str, &'static str, Vec<&'static str>, bool);

pub(super) fn is_some(buckets: &[f64]) -> bool {
    !buckets.is_empty()
}

const RUNBOOK: &str = "deploy/runbook.md";

/// Returns the alerts that read a metric, as links into the runbook.
fn alerts_about(metric: &str, rules: &str) -> String {
    let alerts = rules.split("- alert: ").skip(1).filter_map(|rule| {
        let (name, rule) = rule.split_once('\n')?;
        let is_part = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
        let reads = rule.match_indices(metric).any(|(at, _)| {
            let rest = &rule[at + metric.len()..];
            let end = rest.trim_start_matches("_bucket").trim_start_matches("_count");
            !is_part(end.bytes().next())
        });
        let link = || format!("[{name}](../{RUNBOOK}#{})", name.to_ascii_lowercase());
        reads.then(link)
    });
    alerts.collect::<Vec<_>>().join(", ")
}

#[test]
fn generated_page_has_every_metric() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let rules = std::fs::read_to_string(root.join("deploy/prometheus/alerts.rules.yml")).unwrap();
    let mut page = "# Metrics\n\nEvery metric of `/metrics`, made from the code (`WRITE=1 cargo test --lib generated`). The unit is the end \
        of the name: `_seconds`, `_bytes`, `_slots`, `_ratio`, and a number otherwise. A name that ends with `_total` is a \
        counter, so look at its rate. If a metric has an alert, the alert's section in the runbook says what to do when it \
        moves.\n"
        .to_owned();
    for (title, own, metrics) in [
        ("The process", None, Metrics::described()),
        ("Each upstream", Some("upstream"), UpstreamMetrics::described()),
        ("Each key", Some("key"), KeyMetrics::described()),
    ] {
        let head = "| metric | labels | what it is | alerts |\n| --- | --- | --- | --- |";
        writeln!(page, "\n## {title}\n\n{head}").unwrap();
        for (name, help, labels, is_histogram) in metrics {
            let name = format!("{PREFIX}_{name}");
            let labels: Vec<_> = own.into_iter().chain(labels).map(|label| format!("`{label}`")).collect();
            let kind = if is_histogram { " A histogram." } else { "" };
            let alerts = alerts_about(&name, &rules);
            writeln!(page, "| `{name}` | {} | {help}{kind} | {alerts} |", labels.join(", ")).unwrap();
        }
    }
    let path = root.join("docs/metrics.md");
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(std::fs::read_to_string(path).unwrap_or_default() == page, "WRITE=1 cargo test --lib generated");
}
