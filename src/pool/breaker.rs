//! The circuit breaker of one node: closed passes, open rejects, half-open lets one probe through.
//!
//! A state machine without a clock of its own: `now` is an argument.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::config;

/// Outcomes that the failure rate looks back on.
const WINDOW: usize = 50;
/// Fewer outcomes than this say nothing about a rate.
const MIN_OUTCOMES: usize = 20;

/// What the breaker lets through, for pages and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Everything passes.
    Closed,
    /// One probe passes, the next outcome decides.
    HalfOpen,
    /// Nothing passes.
    Open,
}

impl State {
    /// The word for pages and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// The circuit breaker of one node.
#[derive(Debug)]
pub struct Breaker {
    settings: config::Breaker,
    consecutive: u32,
    recent: VecDeque<bool>,
    opened: Option<Instant>,
    probing: bool,
}

impl Breaker {
    /// A closed breaker.
    pub fn new(settings: config::Breaker) -> Self {
        Self { settings, consecutive: 0, recent: VecDeque::new(), opened: None, probing: false }
    }

    /// Goes by other settings from now on; what it has seen stays.
    pub fn set(&mut self, settings: config::Breaker) {
        self.settings = settings;
    }

    /// Where it stands.
    pub fn state(&self, now: Instant) -> State {
        match self.opened {
            None => State::Closed,
            Some(at) if now.duration_since(at) >= self.settings.open => State::HalfOpen,
            Some(_) => State::Open,
        }
    }

    /// Whether it is closed, at whatever time.
    pub fn is_closed(&self) -> bool {
        self.opened.is_none()
    }

    /// Whether a call may go: half-open, only while no probe is under way.
    pub fn admits(&self, now: Instant) -> bool {
        match self.state(now) {
            State::Closed => true,
            State::HalfOpen => !self.probing,
            State::Open => false,
        }
    }

    /// A call goes to the node: half-open, it is the probe. Returns whether it is.
    pub fn started(&mut self, now: Instant) -> bool {
        let half_open = self.state(now) == State::HalfOpen;
        self.probing |= half_open;
        half_open
    }

    /// A call that says nothing of the node's health has ended; a probe's place is free again.
    pub fn released(&mut self) {
        self.probing = false;
    }

    /// A call has succeeded: an open breaker closes.
    pub fn succeeded(&mut self) {
        self.consecutive = 0;
        if self.opened.take().is_some() {
            self.recent.clear();
        }
        self.probing = false;
        self.remember(true);
    }

    /// A call has failed. Returns whether this has just opened the breaker.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.consecutive = self.consecutive.saturating_add(1);
        self.remember(false);
        let was = self.state(now);
        self.probing = false;
        if was == State::Open {
            return false;
        }
        if was == State::HalfOpen || self.consecutive >= self.settings.failures || self.rate_exceeded() {
            self.opened = Some(now);
            return true;
        }
        false
    }

    fn remember(&mut self, success: bool) {
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(success);
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 50 outcomes")]
    fn rate_exceeded(&self) -> bool {
        let failures = self.recent.iter().filter(|success| !**success).count();
        self.recent.len() >= MIN_OUTCOMES
            && failures as f64 / self.recent.len() as f64 >= self.settings.failure_rate
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn breaker() -> (Breaker, Instant) {
        let settings =
            config::Breaker { failures: 3, failure_rate: 0.5, slow: 4.0, open: Duration::from_secs(5) };
        (Breaker::new(settings), Instant::now())
    }

    #[tokio::test]
    async fn opens_on_consecutive_failures_and_half_opens_with_one_probe() {
        let (mut breaker, t0) = breaker();
        assert!(!breaker.failed(t0));
        assert!(!breaker.failed(t0));
        assert!(breaker.failed(t0));
        let at = |s| t0 + Duration::from_secs(s);
        assert!(!breaker.admits(at(4)));
        assert!(breaker.admits(at(5)));
        breaker.started(at(5));
        assert!(!breaker.admits(at(5)), "one probe only");
        assert!(breaker.failed(at(6)), "a failed probe opens again");
        assert_eq!(breaker.state(at(10)), State::Open);
        assert_eq!(breaker.state(at(11)), State::HalfOpen);
        breaker.started(at(11));
        breaker.succeeded();
        assert_eq!(breaker.state(at(11)), State::Closed);
    }

    #[tokio::test]
    async fn opens_on_the_failure_rate_over_enough_outcomes() {
        let (mut breaker, now) = breaker();
        let mut opened_after = None;
        for i in 1..=40 {
            if i % 2 == 1 {
                breaker.succeeded();
            } else if breaker.failed(now) {
                opened_after = Some(i);
                break;
            }
        }
        assert_eq!(opened_after, Some(20));
    }

    #[tokio::test]
    async fn a_probe_that_says_nothing_gives_its_place_back() {
        let (mut breaker, now) = breaker();
        for _ in 0..3 {
            breaker.failed(now);
        }
        let later = now + Duration::from_secs(5);
        breaker.started(later);
        breaker.released();
        assert!(breaker.admits(later));
    }
}
