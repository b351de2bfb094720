//! The limits of one key or client address: its rates, which may hold over all replicas, its quotas, and what it holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::looks::Looks;
use super::plan::PlanTerms;
use super::quota::Used;
use super::replicas::{Lease, LeaseClient};
use crate::config::CallRate;
use crate::fair::{CallerId, Share};
use crate::limiter::{Limiter, Rate, Remaining};
use crate::methods::AnyMethod;

/// The plan of one key or client address, and the state of its limits. After a reload of the configuration the new
/// limits share that state.
pub(crate) struct PlanLimits {
    pub(crate) terms: Arc<PlanTerms>,
    pub(super) rate: SharedLimiter,
    /// The rates of the methods that have one. Plans name few, so they are searched in turn.
    methods: Vec<(AnyMethod, SharedLimiter)>,
    pub(super) used: Arc<Used>,
    pub(super) holds: Arc<Holdings>,
}

/// What a caller holds of supplies that all share. It stays the caller's over a reload.
pub(super) struct Holdings {
    pub(super) caller: CallerId,
    pub(super) permits: Share,
    /// The bytes of answers that are not sent yet.
    pub(super) unsent: Share,
    /// The bytes of bodies that are arriving, or whose calls are being answered.
    pub(super) arriving: Share,
    /// The open WebSockets, and the subscriptions, of which the plan says how many there may be.
    pub(super) connections: Share,
    pub(super) subscriptions: Share,
    /// The looks at accounts in the newest slot, by [`crate::methods::Commitment::index`].
    pub(super) looks: Mutex<[Looks; 3]>,
}

impl Default for Holdings {
    fn default() -> Self {
        Self {
            caller: CallerId::fresh(),
            permits: Share::default(),
            unsent: Share::default(),
            arriving: Share::default(),
            connections: Share::default(),
            subscriptions: Share::default(),
            looks: Mutex::default(),
        }
    }
}

impl PlanLimits {
    /// Creates the limits of the plan `terms` for `holder`, a key or a client address. Their state continues from
    /// `before`, the same caller's limits before a reload. `used` holds the units used so far.
    pub(crate) fn new(
        terms: Arc<PlanTerms>,
        before: Option<&Self>,
        used: Arc<Used>,
        holder: &str,
        client: Option<&Arc<LeaseClient>>,
    ) -> Self {
        let rate = Rate::new(terms.plan.rps, Duration::from_secs(1), terms.plan.burst);
        let methods = Self::methods(&terms.plan.rate, before, holder, client);
        Self {
            rate: SharedLimiter::new(rate, before.map(|before| &before.rate), || holder.to_owned(), client),
            methods,
            terms,
            used,
            holds: before.map(|before| Arc::clone(&before.holds)).unwrap_or_default(),
        }
    }

    fn methods(
        rates: &BTreeMap<AnyMethod, CallRate>,
        before: Option<&Self>,
        holder: &str,
        client: Option<&Arc<LeaseClient>>,
    ) -> Vec<(AnyMethod, SharedLimiter)> {
        let limiter = |(method, CallRate { calls, period, .. }): (&AnyMethod, &CallRate)| {
            let old = before.and_then(|before| before.of(*method));
            let name = || format!("{holder}/{}", method.as_str());
            (*method, SharedLimiter::new(Rate::new(*calls, *period, *calls), old, name, client))
        };
        rates.iter().map(limiter).collect()
    }

    fn of(&self, method: AnyMethod) -> Option<&SharedLimiter> {
        self.methods.iter().find(|(limited, _)| *limited == method).map(|(_, limiter)| limiter)
    }

    /// Takes one call from the method's own rate, if it has one.
    ///
    /// # Errors
    /// The rate is used up. The error is the time until the next call may pass.
    pub(super) fn take_of(&self, method: AnyMethod) -> Result<(), Duration> {
        self.of(method).map_or(Ok(()), SharedLimiter::take)
    }

    /// Returns the quotas of the day and the month. `None` if the plan has neither, so that no units are reserved.
    pub(super) fn quotas(&self) -> Option<[Option<u64>; 2]> {
        let quotas = [self.terms.plan.daily_units, self.terms.plan.monthly_units];
        Some(quotas).filter(|quotas| *quotas != [None; 2])
    }
}

/// A limiter of this gateway, and the part of the same rate that it has leased from the shared store.
pub(super) struct SharedLimiter {
    own: Arc<Limiter>,
    /// `None` if no shared store is configured.
    lease: Option<Arc<Lease>>,
}

impl SharedLimiter {
    /// Creates the limiter that continues from `before`. `name` names the rate in the store.
    fn new(
        rate: Rate,
        before: Option<&Self>,
        name: impl FnOnce() -> String,
        client: Option<&Arc<LeaseClient>>,
    ) -> Self {
        let known = before.and_then(|before| before.lease.clone());
        Self {
            own: match before {
                Some(before) => Limiter::after(&before.own, rate),
                None => Arc::new(Limiter::new(rate)),
            },
            lease: known.or_else(|| client.map(|client| Lease::new(name(), client))),
        }
    }

    /// Takes one call, of the shared rate and of this gateway's own.
    ///
    /// # Errors
    /// A rate is used up. The error is the time until the next call may pass. No call is taken from either rate then.
    pub(super) fn take(&self) -> Result<(), Duration> {
        let Some(lease) = &self.lease else { return self.own.take() };
        let counts = lease.take(self.own.rate())?;
        self.own.take().inspect_err(|_| {
            if counts {
                lease.give_back();
            }
        })
    }

    /// Returns what is left. The number of calls is the lower one of both rates. The time is that of the own rate.
    pub(super) fn left(&self) -> Remaining {
        let own = self.own.left();
        let shared = self.lease.as_ref().and_then(|lease| lease.left(self.own.rate()));
        Remaining { calls: shared.map_or(own.calls, |shared| shared.min(own.calls)), ..own }
    }
}
