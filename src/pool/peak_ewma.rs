//! Peak-EWMA latency of one node: rises at once with a slow answer, decays slowly with fast ones and with time.
//!
//! The method of Twitter's Finagle ("Beyond Round Robin", 2017). Pure: `now` is an argument. Time alone must bring a
//! peak down, since a node that was slow once gets no calls that could: so a new connection's handshake counts as a
//! peak like any other, and is forgotten like one.

use std::time::Duration;

use tokio::time::Instant;

/// How fast old answers stop counting; Finagle's default.
const DECAY: Duration = Duration::from_secs(10);
/// What a node counts as before its first answer, in seconds: small, so that a new node gets its share. Nothing counts
/// as less, else a node whose peak has faded would still stand behind one that answers in half of this.
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
        let (latency, kept) = (latency.as_secs_f64(), self.kept(now));
        let faded = self.seconds * kept;
        self.seconds = if latency > faded { latency } else { faded + latency * (1.0 - kept) };
        self.at = Some(now);
    }

    /// Forgets all but this answer's latency: the node is another than it was, since it was down.
    pub fn restart(&mut self, latency: Duration, now: Instant) {
        *self = Self { seconds: latency.as_secs_f64(), at: Some(now) };
    }

    /// The latency as it counts now, in seconds.
    pub fn seconds(&self, now: Instant) -> f64 {
        (self.seconds * self.kept(now)).max(UNMEASURED_S)
    }

    /// What choosing this node costs, with `in_flight` calls under way there already.
    #[expect(clippy::cast_precision_loss, reason = "in-flight counts are far below 2^52")]
    pub fn load(&self, in_flight: usize, now: Instant) -> f64 {
        self.seconds(now) * (in_flight as f64 + 1.0)
    }

    /// The share of the last value that still counts.
    fn kept(&self, now: Instant) -> f64 {
        self.at.map_or(0.0, |at| (-now.saturating_duration_since(at).div_duration_f64(DECAY)).exp())
    }
}

/// Quantiles of a method's recent latencies, over a window of answers.
#[derive(Debug, Default)]
pub struct Quantiles {
    window: Vec<Duration>,
    next: usize,
    /// The window in order, as it was when it was last put in order.
    sorted: Vec<Duration>,
}

/// Answers that the quantiles look back on.
const WINDOW: usize = 256;
/// Answers between two orderings: sorting 256 numbers is some microseconds.
const EVERY: usize = 32;

impl Quantiles {
    /// Takes one answer's latency in.
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

    /// What the given share of answers, 0.0 to 1.0, was not slower than; `None` before the first 32 answers.
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
    async fn a_peak_fades_without_calls_and_a_faded_node_stands_level_with_a_fast_one() {
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
    fn p95_is_known_after_a_window_and_ignores_the_top_twentieth() {
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
}
