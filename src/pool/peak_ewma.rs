//! The peak-EWMA latency of a node, and the quantiles of a method's latencies.
//!
//! A peak-EWMA rises at once with a slow answer, and decays slowly with fast answers and with time. The algorithm
//! is that of Twitter's Finagle ("Beyond Round Robin", 2017). A node that was slow once gets no calls that could
//! lower its peak, so time alone must lower it. All functions take the time as `now`.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::lock;
use crate::methods::AnyMethod;

/// The time in which the weight of an old answer falls to 1/e. This is Finagle's default.
const DECAY: Duration = Duration::from_secs(10);
/// The latency of a node before its first answer, in seconds. It is small, so that a new node gets calls. No
/// latency counts as lower than this. Otherwise a node whose peak has decayed would still lose to a node with half
/// this latency.
const UNMEASURED_S: f64 = 0.001;

/// The peak-EWMA latency of one node, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct PeakEwma {
    seconds: f64,
    at: Option<Instant>,
}

impl Default for PeakEwma {
    fn default() -> Self {
        Self { seconds: UNMEASURED_S, at: None }
    }
}

impl PeakEwma {
    pub fn observe(&mut self, latency: Duration, now: Instant) {
        let (latency, kept) = (latency.as_secs_f64(), self.kept(now));
        let faded = self.seconds * kept;
        self.seconds = if latency > faded { latency } else { faded + latency * (1.0 - kept) };
        self.at = Some(now);
    }

    /// Replaces the value with `latency`, the latency of the first answer after the node was down.
    pub fn restart(&mut self, latency: Duration, now: Instant) {
        *self = Self { seconds: latency.as_secs_f64(), at: Some(now) };
    }

    pub fn is_measured(&self) -> bool {
        self.at.is_some()
    }

    /// Returns the peak-EWMA latency as of `now`, in seconds.
    pub fn seconds(&self, now: Instant) -> f64 {
        (self.seconds * self.kept(now)).max(UNMEASURED_S)
    }

    /// Returns the cost of choosing this node: its latency in seconds, times `in_flight` plus one.
    #[expect(clippy::cast_precision_loss, reason = "in-flight counts are far below 2^52")]
    pub fn load(&self, in_flight: usize, now: Instant) -> f64 {
        self.seconds(now) * (in_flight as f64 + 1.0)
    }

    /// Returns the share of the last value that still counts at `now`, from 0 to 1.
    fn kept(&self, now: Instant) -> f64 {
        self.at.map_or(0.0, |at| (-now.saturating_duration_since(at).div_duration_f64(DECAY)).exp())
    }
}

/// The quantiles of the latencies of the most recent answers.
#[derive(Debug, Default)]
pub struct Quantiles {
    window: Vec<Duration>,
    next: usize,
    /// A sorted copy of the window, updated after every [`EVERY`] answers.
    sorted: Vec<Duration>,
}

const WINDOW: usize = 256;
/// The number of answers between two sorts of the window. A sort takes some microseconds.
const EVERY: usize = 32;

impl Quantiles {
    pub fn observe(&mut self, latency: Duration) {
        if self.window.len() < WINDOW {
            self.window.push(latency);
        } else {
            self.window[self.next % WINDOW] = latency;
        }
        self.next = self.next.wrapping_add(1);
        if self.next.is_multiple_of(EVERY) {
            self.sorted.clone_from(&self.window);
            self.sorted.sort_unstable();
        }
    }

    /// Returns the latency that a `share` of the answers, from 0.0 to 1.0, did not exceed. `None` before the first
    /// 32 answers.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a position in a window of 256"
    )]
    pub fn at(&self, share: f64) -> Option<Duration> {
        let last = self.sorted.len().checked_sub(1)?;
        Some(self.sorted[((self.sorted.len() as f64 * share) as usize).min(last)])
    }
}

#[derive(Debug)]
pub(super) struct Latencies([Mutex<Quantiles>; AnyMethod::COUNT]);

impl Default for Latencies {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Latencies {
    pub(super) fn observe(&self, method: AnyMethod, latency: Duration) {
        lock(&self.0[method.index()]).observe(latency);
    }

    /// Returns the usual time of a method, which 95 % of the answers did not exceed. `None` before the first 32 answers to
    /// the method.
    pub(super) fn usual(&self, method: AnyMethod) -> Option<Duration> {
        lock(&self.0[method.index()]).at(0.95)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rises_at_once_and_falls_slowly() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut ewma = PeakEwma::default();
        ewma.observe(ms(10), start);
        ewma.observe(ms(500), start + ms(10));
        assert!((ewma.seconds(start + ms(10)) - 0.5).abs() < 1e-9);
        let second = start + ms(1010);
        ewma.observe(ms(10), second);
        assert!((0.44..0.47).contains(&ewma.seconds(second)), "{}", ewma.seconds(second));
        let minute = start + Duration::from_mins(1);
        ewma.observe(ms(10), minute);
        assert!(ewma.seconds(minute) < 0.02, "{}", ewma.seconds(minute));
        assert!((ewma.load(3, minute) / ewma.load(0, minute) - 4.0).abs() < 1e-9);
    }

    #[tokio::test]
    async fn peak_fades_without_calls() {
        let start = Instant::now();
        let (mut slow, mut fast) = (PeakEwma::default(), PeakEwma::default());
        slow.observe(Duration::from_millis(240), start);
        for (after_s, at_least, at_most) in [(0, 0.24, 0.24), (10, 0.08, 0.09), (30, 0.011, 0.013)] {
            let seconds = slow.seconds(start + Duration::from_secs(after_s));
            assert!((at_least..=at_most).contains(&seconds), "after {after_s} s: {seconds}");
        }
        let later = start + Duration::from_mins(1);
        fast.observe(Duration::from_micros(200), later);
        assert!(slow.load(0, later) <= fast.load(0, later));
    }

    #[test]
    fn p95_needs_a_window_and_ignores_outliers() {
        let mut p95 = Quantiles::default();
        for i in 0..31 {
            p95.observe(Duration::from_millis(i));
        }
        assert_eq!(p95.at(0.95), None);
        for i in 31..320 {
            p95.observe(Duration::from_millis(if i % 50 == 0 { 9000 } else { 20 }));
        }
        assert_eq!(p95.at(0.95), Some(Duration::from_millis(20)));
        assert_eq!(p95.at(1.0), Some(Duration::from_secs(9)));
    }

    #[test]
    fn old_latencies_leave_the_window() {
        let (slow, fast) = (Duration::from_secs(9), Duration::from_millis(20));
        let mut quantiles = Quantiles::default();
        (0..WINDOW + EVERY).for_each(|_| quantiles.observe(slow));
        (0..WINDOW - 1).for_each(|_| quantiles.observe(fast));
        assert_eq!(quantiles.at(1.0), Some(slow));
        quantiles.observe(fast);
        assert_eq!(quantiles.at(1.0), Some(fast));
    }
}
