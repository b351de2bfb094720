//! Peak-EWMA latency of one node: rises at once with a slow answer, decays slowly with fast ones.
//!
//! The method of Twitter's Finagle ("Beyond Round Robin", 2017). Pure: `now` is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// How fast old answers stop counting; Finagle's default.
const DECAY: Duration = Duration::from_secs(10);
/// What a node counts as before its first answer, in seconds: small, so that a new node gets its share.
const UNMEASURED_S: f64 = 0.001;

/// Latency of one node, in seconds.
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
    /// Takes one answer's latency in.
    pub fn observe(&mut self, latency: Duration, now: Instant) {
        let latency = latency.as_secs_f64();
        let kept = self.at.map_or(0.0, |at| (-now.duration_since(at).div_duration_f64(DECAY)).exp());
        self.seconds =
            if latency > self.seconds { latency } else { self.seconds * kept + latency * (1.0 - kept) };
        self.at = Some(now);
    }

    /// The latency as it counts now, in seconds.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// What choosing this node costs, with `in_flight` calls under way there already.
    #[expect(clippy::cast_precision_loss, reason = "in-flight counts are far below 2^52")]
    pub fn load(&self, in_flight: usize) -> f64 {
        self.seconds * (in_flight as f64 + 1.0)
    }
}

/// The 95th percentile of a method's recent latencies, over a window of answers.
#[derive(Debug, Default)]
pub struct P95 {
    window: Vec<Duration>,
    next: usize,
    value: Option<Duration>,
}

/// Answers that the percentile looks back on.
const WINDOW: usize = 256;
/// Answers between two computations: sorting 256 numbers is some microseconds.
const EVERY: usize = 32;

impl P95 {
    /// Takes one answer's latency in.
    pub fn observe(&mut self, latency: Duration) {
        if self.window.len() < WINDOW {
            self.window.push(latency);
        } else {
            self.window[self.next % WINDOW] = latency;
        }
        self.next = self.next.wrapping_add(1);
        if self.next.is_multiple_of(EVERY) {
            let mut sorted = self.window.clone();
            sorted.sort_unstable();
            self.value = Some(sorted[sorted.len() * 95 / 100]);
        }
    }

    /// The percentile; `None` before the first [`EVERY`] answers.
    pub fn get(&self) -> Option<Duration> {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_answer_counts_at_once_and_fast_ones_bring_it_down_slowly() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut ewma = PeakEwma::default();
        ewma.observe(ms(10), start);
        ewma.observe(ms(500), start + ms(10));
        assert!((ewma.seconds() - 0.5).abs() < 1e-9);
        ewma.observe(ms(10), start + ms(1010));
        assert!((0.44..0.47).contains(&ewma.seconds()), "{}", ewma.seconds());
        ewma.observe(ms(10), start + Duration::from_mins(1));
        assert!(ewma.seconds() < 0.02, "{}", ewma.seconds());
        assert!((ewma.load(3) / ewma.load(0) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn p95_is_known_after_a_window_and_ignores_the_top_twentieth() {
        let mut p95 = P95::default();
        for i in 0..31 {
            p95.observe(Duration::from_millis(i));
        }
        assert_eq!(p95.get(), None);
        for i in 31..320 {
            p95.observe(Duration::from_millis(if i % 50 == 0 { 9000 } else { 20 }));
        }
        assert_eq!(p95.get(), Some(Duration::from_millis(20)));
    }
}
