//! Reads metrics back as numbers for the status page: totals since the start, and changes between two readings.
//!
//! This module keeps no counts of its own, so requests pay nothing for the status page. Quantiles are estimated
//! from histogram buckets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::labels::{Label, Outcome};
use super::metrics::{LATENCY, Metrics};
use super::sharded::ShardedHistogram;
use crate::methods::{Commitment, Method};

const OUTCOMES: usize = Outcome::ALL.len();
const METHODS: usize = Method::ALL.len() + 1;
/// The position of method `other`, under which attempts of passthrough calls are counted.
const OTHER_METHOD: usize = Method::ALL.len();

/// The counts of calls since the start of the process, or between two readings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Totals {
    /// The number of calls, by position of `Option<Method>` (the last is `other`) and [`Outcome::index`].
    pub calls: [[u64; OUTCOMES]; METHODS],
    pub durations: [Durations; OUTCOMES],
    /// The number of attempts on upstreams, without passthrough calls and probes.
    pub upstream_calls: u64,
    /// The number of answers served at a newer slot than they were fetched at. If `follow.mode` is `shadow`, the
    /// number of upstream calls that `on` would have saved.
    pub carried: u64,
    pub keys: BTreeMap<Arc<str>, KeyTotals>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeyTotals {
    pub calls: u64,
    pub limited: u64,
}

/// A histogram of durations, with the buckets of `request_duration_seconds` and one more for longer durations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Durations([u64; LATENCY.len() + 1]);

impl Totals {
    /// Returns the counts since the start of the process.
    pub(crate) fn read(metrics: &Metrics) -> Self {
        let mut totals = Self::default();
        let commitments = <Option<Commitment>>::COUNT;
        for (position, counter) in metrics.requests.used() {
            let (method, outcome) = (position / (commitments * OUTCOMES), position % OUTCOMES);
            totals.calls[method][outcome] += counter.get();
        }
        for (position, histogram) in metrics.request_duration.used() {
            totals.durations[position % OUTCOMES].add(histogram);
        }
        totals.carried = metrics.follow_carried.used().map(|(_, counter)| counter.get()).sum();
        metrics.each_upstream(|upstream| {
            let results = <super::AttemptResult as Label>::COUNT;
            let calls = upstream.requests.used().filter(|(position, _)| position / results != OTHER_METHOD);
            totals.upstream_calls += calls.map(|(_, counter)| counter.get()).sum::<u64>();
        });
        metrics.each_key(|id, key| {
            let calls = key.requests.used().map(|(_, counter)| counter.get()).sum();
            let limited = key.limited.used().map(|(_, counter)| counter.get()).sum();
            totals.keys.insert(Arc::clone(id), KeyTotals { calls, limited });
        });
        totals
    }

    /// Returns the change since `earlier`, a reading of the same metrics. The change of a count that fell is zero.
    #[must_use]
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut change = self.clone();
        for (now, then) in change.calls.as_flattened_mut().iter_mut().zip(earlier.calls.as_flattened()) {
            *now = now.saturating_sub(*then);
        }
        for (now, then) in change.durations.iter_mut().zip(&earlier.durations) {
            for (now, then) in now.0.iter_mut().zip(&then.0) {
                *now = now.saturating_sub(*then);
            }
        }
        // The sum falls when an upstream is removed together with its series.
        change.upstream_calls = self.upstream_calls.saturating_sub(earlier.upstream_calls);
        change.carried = self.carried.saturating_sub(earlier.carried);
        for (id, now) in &mut change.keys {
            let then = earlier.keys.get(id).copied().unwrap_or_default();
            now.calls = now.calls.saturating_sub(then.calls);
            now.limited = now.limited.saturating_sub(then.limited);
        }
        change
    }

    /// Returns the number of calls with this outcome, over all methods.
    pub(crate) fn outcome(&self, outcome: Outcome) -> u64 {
        self.calls.iter().map(|by_outcome| by_outcome[outcome.index()]).sum()
    }

    /// Returns the number of calls with an outcome for which `counts` returns true, over all methods.
    pub(crate) fn outcomes(&self, counts: impl Fn(Outcome) -> bool) -> u64 {
        Outcome::ALL.into_iter().filter(|outcome| counts(*outcome)).map(|outcome| self.outcome(outcome)).sum()
    }
}

impl Durations {
    fn add(&mut self, histogram: &ShardedHistogram) {
        for (count, more) in self.0.iter_mut().zip(histogram.counts()) {
            *count += more;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Estimates the quantile `q` (from 0 to 1) in seconds, by interpolation within a bucket. For a quantile above all
    /// bounds, returns the highest bound. `None` if there are no durations.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count() as f64;
        let mut below = 0;
        for (position, count) in self.0.iter().copied().enumerate().filter(|(_, count)| *count > 0) {
            if (below + count) as f64 >= rank {
                let lower = position.checked_sub(1).map_or(0.0, |before| LATENCY[before]);
                let upper = LATENCY.get(position).copied().unwrap_or(lower);
                return Some(lower + (upper - lower) * (rank - below as f64) / count as f64);
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::AttemptResult;
    use crate::telemetry::family::Labels;

    #[test]
    fn totals_equal_the_counts() {
        let metrics = Metrics::new();
        let method = Some(Method::GetBlock);
        metrics.call(method, Some(Commitment::Finalized), Outcome::Hit, Duration::from_micros(120), 10);
        let before = Totals::read(&metrics);
        metrics.call(method, Some(Commitment::Confirmed), Outcome::Hit, Duration::from_micros(80), 10);
        metrics.call(None, None, Outcome::Invalid, Duration::from_secs(99), 10);
        metrics.upstream("a").requests.at((None, AttemptResult::Ok)).inc();
        metrics.upstream("a").requests.at((method, AttemptResult::Timeout)).inc();
        metrics.key("k1").requests.at(Outcome::Hit).inc();

        let change = Totals::read(&metrics).since(&before);
        assert_eq!((change.outcome(Outcome::Hit), change.outcomes(|_| true)), (1, 2));
        assert_eq!(change.calls[OTHER_METHOD][Outcome::Invalid.index()], 1);
        assert_eq!(change.upstream_calls, 1, "passthrough attempts are excluded");
        assert_eq!(change.keys["k1"], KeyTotals { calls: 1, limited: 0 });
        assert_eq!(change.durations[Outcome::Hit.index()].count(), 1);
        assert_eq!(change.durations[Outcome::Invalid.index()].quantile(0.5), Some(30.0));
    }

    #[test]
    fn quantiles_are_within_their_bucket() {
        let mut durations = Durations::default();
        assert_eq!(durations.quantile(0.5), None);
        durations.0[1] = 100; // 50 to 100 µs
        durations.0[6] = 1; // 0.5 to 1 ms
        let near = |q: f64, seconds: f64| (durations.quantile(q).unwrap() - seconds).abs() < 1e-6;
        assert!(near(0.5, 0.000_075_25), "{:?}", durations.quantile(0.5));
        assert!(near(1.0, 0.001));
    }

    #[test]
    fn request_counter_positions_match() {
        type RequestLabels = (Option<Method>, Option<Commitment>, Outcome);
        let position = (Some(Method::GetVoteAccounts), None::<Commitment>, Outcome::Miss).place();
        assert_eq!(position / (<Option<Commitment>>::COUNT * OUTCOMES), Method::GetVoteAccounts.index());
        assert_eq!(position % OUTCOMES, Outcome::Miss.index());
        assert_eq!(RequestLabels::COMBINATIONS, METHODS * <Option<Commitment>>::COUNT * OUTCOMES);
    }
}
