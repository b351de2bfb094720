//! The traffic of the last five minutes, for the status page.
//!
//! A reading of the counters is added once a second. Rates, ratios and quantiles are computed from the readings.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::methods::{Method, PerCommitment, Slot};
use crate::telemetry::Outcome;
use crate::telemetry::totals::{KeyTotals, Totals};

/// The maximum number of points in the charts of the status page: one point per second for five minutes.
const POINTS: usize = 300;
/// The period before the newest reading over which rates and quantiles are computed.
const WINDOW: Duration = Duration::from_mins(1);
/// The interval between two readings of the counters that are kept for a minute. A kept reading takes about 4 KiB
/// of memory.
const MARK_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum number of API keys that the status page lists.
const TOP_KEYS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Point {
    pub at_ms: u64,
    /// The newest slot that was known at that time, at each commitment.
    pub slots: PerCommitment<Option<Slot>>,
    /// The calls per second that were answered without an upstream call of their own: outcomes hit, carried,
    /// stale, derived and collapsed.
    pub kept: f64,
    /// The part of `kept` that was answered from the cache: outcomes hit, carried, stale and derived. The hit
    /// ratio is `hits / (kept + asked)`.
    pub hits: f64,
    /// The calls per second for which a node was asked: outcomes miss and bypass.
    pub asked: f64,
    /// The calls per second to upstreams. They include retries and refreshes, but not passthrough calls
    /// and probes.
    pub upstream: f64,
    /// The calls per second that were refused: outcomes invalid, denied and limited.
    pub refused: f64,
    /// The calls per second that failed: outcome error.
    pub failed: f64,
}

/// The traffic of the last minute, and totals since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Traffic {
    /// The period in seconds over which rates and ratios are computed: about 60, and less in the first minute
    /// after a start.
    pub window_s: f64,
    pub calls_per_s: f64,
    /// The share of answers with the outcome hit, carried, stale or derived. `None` without answers.
    pub hit_ratio: Option<f64>,
    /// The share of upstream calls that the cache saves: 1 minus the upstream calls per answer, and at least 0.
    /// `None` without answers.
    pub saved_ratio: Option<f64>,
    /// The share of answers that were carried: served at a newer slot than they were fetched at. If `follow.mode`
    /// is `shadow`, the upstream calls that `on` would have saved, per answer. `None` without answers.
    pub carried_ratio: Option<f64>,
    pub answers_total: u64,
    /// The number of calls to upstreams since the start, without passthrough calls and probes.
    pub upstream_calls_total: u64,
    pub outcomes: Vec<OutcomeTraffic>,
    /// The methods that were called in the last minute, busiest first.
    pub methods: Vec<MethodTraffic>,
    /// The eight busiest API keys of the last minute, busiest first.
    pub keys: Vec<KeyTraffic>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct OutcomeTraffic {
    pub outcome: &'static str,
    pub calls_per_s: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct MethodTraffic {
    /// The name of the method, or `other` for methods that are not cached.
    pub method: &'static str,
    pub calls_per_s: f64,
    /// The share of the method's answers with the outcome hit, carried, stale or derived. `None` without answers.
    pub hit_ratio: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct KeyTraffic {
    /// The key's id. All keys without metrics of their own are counted together as `other`.
    pub key: String,
    pub calls_per_s: f64,
    /// The calls per second that were refused because of the key's rate or quota.
    pub limited_per_s: f64,
}

/// The points of the last five minutes, and the readings of the counters over the last minute.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
    marks: VecDeque<(Instant, Totals)>,
    last: Option<(Instant, Totals)>,
}

impl History {
    /// Adds a reading of the counters, made at `now`, which is `at_ms` in Unix time. Readings must come in the order of
    /// their times. Returns the new point, or `None` for the first reading, because a rate needs two readings.
    pub(crate) fn record(
        &mut self,
        now: Instant,
        at_ms: u64,
        totals: Totals,
        slots: PerCommitment<Option<Slot>>,
    ) -> Option<Point> {
        let last = self.last.as_ref();
        let point = last.map(|(then, before)| point(at_ms, slots, &totals.since(before), now - *then));
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.extend(point);

        if self.marks.back().is_none_or(|(then, _)| now - *then >= MARK_INTERVAL) {
            self.marks.push_back((now, totals.clone()));
        }
        // The front of `marks` becomes the newest reading that is at least as old as the window. Without such a
        // reading, the front stays the oldest reading.
        while self.marks.get(1).is_some_and(|(then, _)| now - *then >= WINDOW) {
            self.marks.pop_front();
        }
        self.last = Some((now, totals));
        point
    }

    /// Returns the points of the last five minutes, oldest first.
    pub(crate) fn points(&self) -> Vec<Point> {
        self.points.iter().copied().collect()
    }

    /// Returns the traffic of the last minute, and the totals since the start. Before the first reading, all
    /// numbers are zero, all ratios are `None`, and all lists are empty.
    pub(crate) fn traffic(&self) -> Traffic {
        match (self.marks.front(), &self.last) {
            (Some((then, before)), Some((now, totals))) => {
                traffic(totals, &totals.since(before), *now - *then)
            }
            _ => Traffic::default(),
        }
    }
}

fn point(at_ms: u64, slots: PerCommitment<Option<Slot>>, change: &Totals, took: Duration) -> Point {
    let rate = |counts: fn(Outcome) -> bool| per_second(change.outcomes(counts), took);
    Point {
        at_ms,
        slots,
        kept: rate(|o| o.is_hit() || o == Outcome::Collapsed),
        hits: rate(Outcome::is_hit),
        asked: rate(|o| matches!(o, Outcome::Miss | Outcome::Bypass)),
        upstream: per_second(change.upstream_calls, took),
        refused: rate(|o| matches!(o, Outcome::Invalid | Outcome::Denied | Outcome::Limited)),
        failed: rate(|o| o == Outcome::Error),
    }
}

fn traffic(totals: &Totals, change: &Totals, took: Duration) -> Traffic {
    let answers = change.outcomes(Outcome::is_answer);
    Traffic {
        window_s: took.as_secs_f64(),
        calls_per_s: per_second(change.outcomes(|_| true), took),
        hit_ratio: ratio(change.outcomes(Outcome::is_hit), answers),
        saved_ratio: ratio(answers.saturating_sub(change.upstream_calls), answers),
        carried_ratio: ratio(change.carried, answers),
        answers_total: totals.outcomes(Outcome::is_answer),
        upstream_calls_total: totals.upstream_calls,
        outcomes: Outcome::ALL
            .into_iter()
            .filter_map(|outcome| outcome_traffic(change, outcome, took))
            .collect(),
        methods: methods(change, took),
        keys: keys(change, took),
    }
}

fn outcome_traffic(change: &Totals, outcome: Outcome, took: Duration) -> Option<OutcomeTraffic> {
    let durations = &change.durations[outcome.index()];
    Some(OutcomeTraffic {
        outcome: outcome.as_str(),
        calls_per_s: per_second(change.outcome(outcome), took),
        p50_ms: durations.quantile(0.5)? * 1e3,
        p95_ms: durations.quantile(0.95)? * 1e3,
        p99_ms: durations.quantile(0.99)? * 1e3,
    })
}

fn methods(change: &Totals, took: Duration) -> Vec<MethodTraffic> {
    let mut rows = Vec::new();
    for (position, by_outcome) in change.calls.iter().enumerate() {
        let sum = |counts: fn(Outcome) -> bool| -> u64 {
            Outcome::ALL.into_iter().filter(|o| counts(*o)).map(|o| by_outcome[o.index()]).sum()
        };
        let calls = sum(|_| true);
        if calls > 0 {
            rows.push(MethodTraffic {
                method: Method::ALL.get(position).map_or("other", |method| method.as_str()),
                calls_per_s: per_second(calls, took),
                hit_ratio: ratio(sum(Outcome::is_hit), sum(Outcome::is_answer)),
            });
        }
    }
    rows.sort_by(|a, b| b.calls_per_s.total_cmp(&a.calls_per_s));
    rows
}

fn keys(change: &Totals, took: Duration) -> Vec<KeyTraffic> {
    let mut rows: Vec<_> = change.keys.iter().filter(|(_, key)| key.calls > 0).collect();
    rows.sort_by_key(|(_, key)| std::cmp::Reverse(key.calls));
    rows.truncate(TOP_KEYS);
    let row = |(id, KeyTotals { calls, limited }): (&std::sync::Arc<str>, &KeyTotals)| KeyTraffic {
        key: id.to_string(),
        calls_per_s: per_second(*calls, took),
        limited_per_s: per_second(*limited, took),
    };
    rows.into_iter().map(row).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn per_second(count: u64, took: Duration) -> f64 {
    if took.is_zero() { 0.0 } else { count as f64 / took.as_secs_f64() }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the history of a steady load: 8 hits, 1 miss with one upstream call and 1 refusal each second.
    fn steady(seconds: u32) -> History {
        let (mut history, mut totals, start) = (History::default(), Totals::default(), Instant::now());
        for second in 0..seconds {
            let now = start + Duration::from_secs(second.into());
            history.record(now, u64::from(second) * 1000, totals.clone(), PerCommitment::default());
            let by_outcome = &mut totals.calls[Method::GetBlock.index()];
            by_outcome[Outcome::Hit.index()] += 8;
            by_outcome[Outcome::Miss.index()] += 1;
            by_outcome[Outcome::Limited.index()] += 1;
            totals.upstream_calls += 1;
            totals.keys.entry("k1".into()).or_default().calls += 10;
        }
        history
    }

    #[test]
    fn history_memory_is_bounded() {
        let history = steady(1_000);
        assert_eq!(history.points.len(), POINTS);
        assert!(history.marks.len() <= 14, "{}", history.marks.len());
    }

    #[test]
    fn steady_load_gives_exact_rates() {
        for seconds in [3, 30, 200] {
            let history = steady(seconds);
            let point = history.points().pop().unwrap();
            assert_eq!((point.kept, point.asked, point.refused, point.failed), (8.0, 1.0, 1.0, 0.0));
            assert_eq!((point.hits, point.upstream), (8.0, 1.0));
            let traffic = history.traffic();
            assert!(traffic.window_s <= 65.0);
            assert!((traffic.calls_per_s - 10.0).abs() < 1e-9);
            assert_eq!((traffic.hit_ratio, traffic.saved_ratio), (Some(8.0 / 9.0), Some(8.0 / 9.0)));
            assert_eq!(traffic.methods[0].method, "getBlock");
            assert_eq!(traffic.keys[0].key, "k1");
        }
    }

    #[test]
    fn ratios_need_answers() {
        assert_eq!(History::default().traffic(), Traffic::default());
        assert_eq!(steady(1).traffic().hit_ratio, None);
    }
}
