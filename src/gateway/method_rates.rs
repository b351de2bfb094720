//! The rates of single methods that a plan sets, for one key or client address.

use std::collections::BTreeMap;
use std::time::Duration;

use super::limit::{Limiter, Rate};
use crate::config::CallRate;
use crate::methods::AnyMethod;

/// A limiter of each method with a rate. Plans name few methods, so they are searched in turn.
#[derive(Debug, Default)]
pub(crate) struct MethodRates(Vec<(AnyMethod, Limiter)>);

impl MethodRates {
    /// Creates the limiters of `rates`. They continue from those of `before` at the time `now`.
    pub(crate) fn after(before: &Self, rates: &BTreeMap<AnyMethod, CallRate>, now: Duration) -> Self {
        let limiter = |(method, CallRate { calls, period, .. }): (&AnyMethod, &CallRate)| {
            let rate = Rate::new(*calls, *period, *calls);
            let old = before.of(*method);
            (*method, old.map_or_else(|| Limiter::new(rate), |old| Limiter::after(old, rate, now)))
        };
        Self(rates.iter().map(limiter).collect())
    }

    /// Takes one call of `method` at the time `now`.
    ///
    /// # Errors
    /// The method has a rate, which is used up. The error is the time until the next call may pass.
    pub(crate) fn take(&self, method: AnyMethod, now: impl FnOnce() -> Duration) -> Result<(), Duration> {
        self.of(method).map_or(Ok(()), |limiter| limiter.take(now()))
    }

    fn of(&self, method: AnyMethod) -> Option<&Limiter> {
        self.0.iter().find(|(limited, _)| *limited == method).map(|(_, limiter)| limiter)
    }
}
