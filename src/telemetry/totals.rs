//! Reads metrics back as numbers for the status page: totals since the start.
//!
//! This module keeps no counts of its own, so requests pay nothing for the status page.

use std::collections::BTreeMap;

use serde::Serialize;

use super::metrics::{LATENCY, Metrics};

/// The counts of calls since the start of the process.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Totals {
    /// The number of calls, by method and outcome.
    pub calls: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    pub durations: Durations,
    /// The number of attempts on upstreams, without probes. The reads of the tip and forwarded calls are among them, as
    /// their answers are among `calls`.
    pub upstream_calls: u64,
    /// The number of answers served at a newer slot than they were fetched at. If `follow.mode` is `shadow`, the
    /// number of upstream calls that `on` would have saved.
    pub carried: u64,
    pub keys: BTreeMap<String, KeyTotals>,
}

/// Returns the number of calls by outcome, and of the attempts on upstreams, since the start.
pub(crate) fn outcomes(metrics: &Metrics) -> (BTreeMap<&'static str, u64>, u64) {
    let mut outcomes = BTreeMap::new();
    for (labels, counter) in metrics.requests.used() {
        *outcomes.entry(labels[2]).or_default() += counter.get();
    }
    let mut upstream_calls = 0;
    metrics.each_upstream(|upstream| {
        upstream_calls += upstream.requests.used().map(|(_, counter)| counter.get()).sum::<u64>();
    });
    (outcomes, upstream_calls)
}

/// The histograms of `request_duration_seconds`.
#[derive(Debug, Serialize)]
pub(crate) struct Durations {
    pub bounds_s: [f64; LATENCY.len()],
    /// The number of calls in each bucket, by outcome. The last counts the calls above all bounds.
    pub counts: BTreeMap<&'static str, [u64; LATENCY.len() + 1]>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct KeyTotals {
    /// The name of the key's owner.
    pub name: String,
    pub calls: u64,
    /// The number of calls that were refused because of the key's rate or quota.
    pub limited: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Self { bounds_s: LATENCY, counts: BTreeMap::new() }
    }
}

impl Totals {
    pub(crate) fn read(metrics: &Metrics) -> Self {
        let mut totals = Self::default();
        for (labels, counter) in metrics.requests.used() {
            let outcomes = totals.calls.entry(labels[0]).or_default();
            *outcomes.entry(labels[2]).or_default() += counter.get();
        }
        for (labels, histogram) in metrics.request_duration.used() {
            let counts = totals.durations.counts.entry(labels[1]).or_default();
            counts.iter_mut().zip(histogram.counts()).for_each(|(count, more)| *count += more);
        }
        totals.carried = metrics.follow_carried.used().map(|(_, counter)| counter.get()).sum();
        totals.upstream_calls = outcomes(metrics).1;
        metrics.each_key(|id, key| {
            let calls = key.requests.used().map(|(_, counter)| counter.get()).sum();
            let limited = key.limited.used().map(|(_, counter)| counter.get()).sum();
            totals.keys.insert(id.to_string(), KeyTotals { name: key.plan.name(), calls, limited });
        });
        totals
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::methods::{AnyMethod, Commitment, Method};
    use crate::telemetry::{AttemptResult, Outcome};

    #[test]
    fn totals_equal_the_counts() {
        let metrics = Metrics::new();
        let method = AnyMethod::Own(Method::GetBlock);
        for (commitment, micros) in [(Commitment::Finalized, 120), (Commitment::Confirmed, 80)] {
            metrics.call(Some(method), Some(commitment), Outcome::Hit, Duration::from_micros(micros), 10);
        }
        metrics.call(None, None, Outcome::Invalid, Duration::from_secs(99), 10);
        metrics.upstream("a").requests.at((AnyMethod::Send, AttemptResult::Ok)).inc();
        metrics.upstream("a").requests.at((method, AttemptResult::Timeout)).inc();
        metrics.key("k1").requests.at(Outcome::Hit).inc();

        let totals = Totals::read(&metrics);
        assert_eq!(totals.calls["getBlock"], BTreeMap::from([("hit", 2)]));
        assert_eq!(totals.calls["other"], BTreeMap::from([("invalid", 1)]));
        assert_eq!(totals.upstream_calls, 2, "answers of every method are counted, too");
        assert_eq!(totals.keys["k1"], KeyTotals { name: String::new(), calls: 1, limited: 0 });
        let Durations { bounds_s, counts } = totals.durations;
        assert_eq!((bounds_s[1], bounds_s[2], &counts["hit"][..4]), (0.000_1, 0.000_15, &[0, 1, 1, 0][..]));
        assert_eq!(counts["invalid"].last(), Some(&1), "above all bounds");
    }
}
