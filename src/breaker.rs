//! A circuit breaker. While it is closed, all calls pass; while it is open, none does; half-open, it lets a single call
//! through as a trial.
//!
//! The pool has one for each node, and the shared store has one. Functions that depend on the time take the present
//! time as `now`.

use std::collections::VecDeque;

use serde::Serialize;
use tokio::time::Instant;

use crate::config;

/// The number of recent calls from which the failure rate is computed.
const WINDOW: usize = 50;
/// The fewest recent calls from which a failure rate is computed. With fewer, the rate does not open the breaker.
const MIN_OUTCOMES: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BreakerState {
    /// Every call passes.
    Closed,
    /// One call passes as a trial. A success of the trial closes the breaker, and a failure opens it again.
    HalfOpen,
    /// No call passes.
    Open,
}

#[derive(Debug)]
pub struct Breaker {
    settings: config::BreakerSettings,
    /// The number of calls that have failed since the last success.
    consecutive: u32,
    /// The results of the newest calls. `true` is a success.
    recent: VecDeque<bool>,
    opened: Option<Instant>,
    /// True while the trial of a half-open breaker is under way.
    on_trial: bool,
}

impl Breaker {
    pub fn new(settings: config::BreakerSettings) -> Self {
        Self { settings, consecutive: 0, recent: VecDeque::new(), opened: None, on_trial: false }
    }

    /// Replaces the settings, and keeps the results of the calls so far.
    pub fn set(&mut self, settings: config::BreakerSettings) {
        self.settings = settings;
    }

    /// Returns the state at `now`. An open breaker becomes half-open by the passing of time alone.
    pub fn state(&self, now: Instant) -> BreakerState {
        match self.opened {
            None => BreakerState::Closed,
            Some(at) if now.duration_since(at) >= self.settings.open => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        }
    }

    /// Returns true if the breaker is closed. Unlike the result of [`Self::state`], this result does not depend on
    /// the time.
    pub fn is_closed(&self) -> bool {
        self.opened.is_none()
    }

    /// Returns true if a call may pass: always while closed, and while half-open until the trial begins.
    pub fn admits(&self, now: Instant) -> bool {
        match self.state(now) {
            BreakerState::Closed => true,
            BreakerState::HalfOpen => !self.on_trial,
            BreakerState::Open => false,
        }
    }

    /// Notes that a call begins. Returns true if the call is the trial of a half-open breaker.
    pub fn started(&mut self, now: Instant) -> bool {
        let is_trial = self.state(now) == BreakerState::HalfOpen && !self.on_trial;
        self.on_trial |= is_trial;
        is_trial
    }

    /// Notes that the trial has ended with neither success nor failure. The breaker opens again. Otherwise one call
    /// after the other would be a trial without a result.
    pub fn trial_was_vain(&mut self, now: Instant) {
        self.on_trial = false;
        if self.opened.is_some() {
            self.opened = Some(now);
        }
    }

    /// Notes that a call has succeeded, which closes the breaker.
    pub fn succeeded(&mut self) {
        self.consecutive = 0;
        if self.opened.take().is_some() {
            self.recent.clear();
        }
        self.on_trial = false;
        self.remember(true);
    }

    /// Notes that a call has failed, and returns true if this failure opens the breaker.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.consecutive = self.consecutive.saturating_add(1);
        self.remember(false);
        let was = self.state(now);
        self.on_trial = false;
        if was == BreakerState::Open {
            return false;
        }
        if was == BreakerState::HalfOpen || self.consecutive >= self.settings.failures || self.rate_exceeded()
        {
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
        let settings = config::BreakerSettings {
            failures: 3,
            failure_rate: 0.5,
            slow: 4.0,
            open: Duration::from_secs(5),
        };
        (Breaker::new(settings), Instant::now())
    }

    #[tokio::test]
    async fn opens_after_failures_and_closes_after_one_trial() {
        let (mut breaker, t0) = breaker();
        assert!(!breaker.failed(t0));
        assert!(!breaker.failed(t0));
        assert!(breaker.failed(t0));
        let at = |s| t0 + Duration::from_secs(s);
        assert!(!breaker.admits(at(4)));
        assert!(breaker.admits(at(5)));
        breaker.started(at(5));
        assert!(!breaker.admits(at(5)), "one trial only");
        assert!(breaker.failed(at(6)), "a failed trial opens it again");
        assert_eq!(breaker.state(at(10)), BreakerState::Open);
        assert_eq!(breaker.state(at(11)), BreakerState::HalfOpen);
        breaker.started(at(11));
        breaker.succeeded();
        assert_eq!(breaker.state(at(11)), BreakerState::Closed);
    }

    #[tokio::test]
    async fn opens_at_a_failure_rate() {
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
    async fn trial_without_a_result_opens_it_again() {
        let (mut breaker, t0) = breaker();
        for _ in 0..3 {
            breaker.failed(t0);
        }
        let at = |s| t0 + Duration::from_secs(s);
        assert!(breaker.started(at(5)) && !breaker.started(at(5)), "one trial only");
        breaker.trial_was_vain(at(6));
        assert_eq!([6, 10, 11].map(|s| breaker.admits(at(s))), [false, false, true]);
        assert!(breaker.started(at(11)));
        breaker.succeeded();
        breaker.trial_was_vain(at(11));
        assert_eq!(breaker.state(at(11)), BreakerState::Closed, "another call has closed it");
    }
}
