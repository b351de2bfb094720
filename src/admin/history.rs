//! The last five minutes, in bounded memory, so that a page opened now shows what led here.
//!
//! Fed once a second with readings of counters; works out rates, ratios and quantiles. Knows no clock and no metric.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::methods::{Method, PerCommitment, Slot};
use crate::telemetry::Outcome;
use crate::telemetry::totals::{KeyTotals, Totals};

/// Points kept: five minutes of one a second.
const POINTS: usize = 300;
/// Rates and quantiles are taken over this long.
const WINDOW: Duration = Duration::from_mins(1);
/// Readings are kept this far apart: a dozen of them cover the window, each some 4 KiB.
const BETWEEN_MARKS: Duration = Duration::from_secs(5);
/// Most rows of "top keys".
const TOP_KEYS: usize = 8;

/// One second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// The frontier then.
    pub slots: PerCommitment<Option<Slot>>,
    /// Calls a second answered without a node call of their own: hit, stale, derived, collapsed.
    pub kept: f64,
    /// Of these, straight from the cache: hit, stale, derived. Of `kept + asked` it is the hit ratio.
    pub hits: f64,
    /// Calls a second for which a node was asked: miss, bypass.
    pub asked: f64,
    /// Upstream calls a second: those asked for, retries, hedges and refreshes; probes left out.
    pub upstream: f64,
    /// Calls a second refused: invalid, denied, limited.
    pub refused: f64,
    /// Calls a second that failed: error.
    pub failed: f64,
}

/// The last minute's traffic, and sums since start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// Seconds that rates are taken over: a minute, or less after a start.
    pub window_s: f64,
    /// Calls a second of any outcome.
    pub calls_per_s: f64,
    /// Hits, stale ones and derived ones among answers; `None` without answers.
    pub hit_ratio: Option<f64>,
    /// Answers that cost no upstream call, among answers; retries and refreshes count against it.
    pub saved_ratio: Option<f64>,
    /// Answers since start.
    pub answers_total: u64,
    /// Upstream calls since start, probes left out.
    pub upstream_calls_total: u64,
    /// By outcome, those with calls in the window.
    pub outcomes: Vec<OutcomeTraffic>,
    /// By method, busiest first, those with calls in the window.
    pub methods: Vec<MethodTraffic>,
    /// By key, busiest first.
    pub keys: Vec<KeyTraffic>,
}

/// Calls of one outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutcomeTraffic {
    /// Which.
    pub outcome: &'static str,
    /// Calls a second.
    pub calls_per_s: f64,
    /// Half were faster, in milliseconds.
    pub p50_ms: f64,
    /// One in twenty was slower, in milliseconds.
    pub p95_ms: f64,
    /// One in a hundred was slower, in milliseconds.
    pub p99_ms: f64,
}

/// Calls of one method.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MethodTraffic {
    /// Which, or `other`.
    pub method: &'static str,
    /// Calls a second.
    pub calls_per_s: f64,
    /// Hits among its answers.
    pub hit_ratio: Option<f64>,
}

/// Calls of one key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeyTraffic {
    /// The key's id, or `other`.
    pub key: String,
    /// Calls a second.
    pub calls_per_s: f64,
    /// Of these, over a limit.
    pub limited_per_s: f64,
}

/// The ring of points, and the readings that the window needs.
#[derive(Debug, Default)]
pub struct History {
    points: VecDeque<Point>,
    marks: VecDeque<(Instant, Totals)>,
    last: Option<(Instant, Totals)>,
}

impl History {
    /// Takes in one reading, made at `now`, which is `at_ms` in Unix time. Readings come in order; the first one alone
    /// makes no point, since rates need two.
    pub fn record(
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

        if self.marks.back().is_none_or(|(then, _)| now - *then >= BETWEEN_MARKS) {
            self.marks.push_back((now, totals.clone()));
        }
        // The front is the newest reading that is as old as the window, or the oldest there is.
        while self.marks.get(1).is_some_and(|(then, _)| now - *then >= WINDOW) {
            self.marks.pop_front();
        }
        self.last = Some((now, totals));
        point
    }

    /// All points, oldest first.
    pub fn points(&self) -> Vec<Point> {
        self.points.iter().copied().collect()
    }

    /// The window's traffic.
    pub fn traffic(&self) -> Traffic {
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

    /// Readings of a steady load, a second apart: each second 8 hits, 1 miss (one upstream call) and 1 refusal.
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
    fn memory_is_bounded() {
        let history = steady(1_000);
        assert_eq!(history.points.len(), POINTS);
        assert!(history.marks.len() <= 14, "{}", history.marks.len());
    }

    #[test]
    fn a_steady_load_reads_as_it_is() {
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
    fn nothing_yet_is_no_ratio() {
        assert_eq!(History::default().traffic(), Traffic::default());
        assert_eq!(steady(1).traffic().hit_ratio, None);
    }
}
