//! Who is calling: a key with its plan, its limits and what it has used. One for each key, shared by its requests.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use tokio::time::Instant;

use super::clock::Clock;
use super::keys::KeyHash;
use super::keys::scope::Scope;
use super::lease::Lease;
use super::limit::{Left, Limit, State};
use super::plan::{self, PlanTerms};
use super::quota::{Period, Used};
use super::seen::{Seen, Shown};
use super::share::{Share, SharePermit, SharedBytes};
use crate::config::Units;
use crate::error::Error;
use crate::methods::{Forwarded, Query};
use crate::pool::Caller;
use crate::telemetry::{AuthFailure, KeyMetrics, LimitReason, Metrics, Outcome};

/// The id of whoever calls in open mode.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// The caller of a request, and what the caller may do.
pub struct Principal {
    pub(crate) id: Arc<str>,
    pub(crate) validity: KeyValidity,
    /// The limits; none in open mode without a plan.
    pub(crate) limits: Option<PlanLimits>,
    /// Most calls in a batch.
    pub(crate) max_batch: usize,
    /// The prices of calls.
    pub(crate) units: Arc<Units>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) metrics: OnceLock<Arc<KeyMetrics>>,
    /// The source of `metrics`, once there is one.
    pub(crate) registry: Arc<OnceLock<Arc<Metrics>>>,
}

/// The limits of one key or client address. Each limiter owns its state, and a successor shares it.
#[derive(Debug)]
pub(crate) struct PlanLimits {
    pub(crate) terms: Arc<PlanTerms>,
    rate: Limit,
    /// The same rate over all gateways, where they have a store in common.
    lease: Option<Arc<Lease>>,
    used: Arc<Used>,
    share: Share,
    /// Written only where the plan is `monotonic`.
    seen: Seen,
}

/// The secrets of a key, and when, from where and for what they hold.
#[derive(Debug, Default)]
pub(crate) struct KeyValidity {
    pub(crate) hash: KeyHash,
    /// Secrets that were replaced, each with the time at which it ends.
    pub(crate) previous: Vec<(KeyHash, Timestamp)>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) revoked: bool,
    pub(crate) scope: Scope,
}

impl KeyValidity {
    /// Returns the hashes of all secrets of the key.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = KeyHash> {
        self.previous.iter().map(|(hash, _)| *hash).chain([self.hash])
    }

    fn in_time(&self, hash: &KeyHash, wall: impl Fn() -> Timestamp) -> Result<(), AuthFailure> {
        let ended = |end: Option<Timestamp>| end.is_some_and(|end| end <= wall());
        if self.revoked {
            return Err(AuthFailure::Revoked);
        }
        let replaced = self.previous.iter().find(|(previous, _)| previous == hash);
        let until = replaced.map(|(_, until)| *until);
        if ended(self.expires) || ended(until) { Err(AuthFailure::Expired) } else { Ok(()) }
    }

    /// Checks that the secret with this `hash` may be used now, from there.
    pub(crate) fn check(
        &self,
        hash: &KeyHash,
        client: Option<IpAddr>,
        origin: Option<&str>,
        wall: impl Fn() -> Timestamp,
    ) -> Result<(), AuthFailure> {
        self.in_time(hash, wall)?;
        let client = client.map(|client| client.to_canonical());
        let is_in =
            |list: &Vec<IpNet>| client.is_some_and(|ip| list.iter().any(|network| network.contains(&ip)));
        if self.scope.addresses.as_ref().is_some_and(|list| !is_in(list)) {
            return Err(AuthFailure::Address);
        }
        // Only browsers send an origin, and none of them can leave it out: without one it is no browser.
        if let (Some(allowed), Some(origin)) = (&self.scope.origins, origin)
            && !allowed.iter().any(|known| known == origin)
        {
            return Err(AuthFailure::Origin);
        }
        Ok(())
    }
}

impl PlanLimits {
    /// The limits of `terms`. They go on from `before`, the limits of the same holder before a reload; units go on in
    /// `used` in any case.
    pub(crate) fn new(
        terms: Arc<PlanTerms>,
        before: Option<&Self>,
        used: Arc<Used>,
        lease: impl FnOnce() -> Option<Arc<Lease>>,
    ) -> Self {
        let state = before.map_or_else(State::default, |before| before.rate.state());
        let rate = Limit::new(terms.plan.rps, Duration::from_secs(1), terms.plan.burst, state);
        let lease = before.and_then(|before| before.lease.clone()).or_else(lease);
        let share = before.map_or_else(Share::default, |before| before.share.clone());
        let seen = before.map_or_else(Seen::default, |before| before.seen.clone());
        Self { terms, rate, lease, used, share, seen }
    }

    /// Forgets the slots that were shown.
    pub(crate) fn forget_shown(&self) {
        self.seen.forget();
    }

    /// Takes one call of the rate: of that over all gateways, where there is such, and of this gateway's own, which
    /// holds in any case. What the one gives and the other does not is given back.
    fn take(&self, steady: Duration) -> Result<(), Duration> {
        let Some(lease) = &self.lease else { return self.rate.take(steady) };
        let counts = lease.take(self.rate.rate(), steady)?;
        self.rate.take(steady).inspect_err(|_| {
            if counts {
                lease.give_back();
            }
        })
    }

    /// Returns what is used of the quotas.
    pub(crate) fn used(&self) -> &Used {
        &self.used
    }

    /// What is left of the rate.
    pub(crate) fn left(&self, steady: Duration) -> Left {
        let own = self.rate.left(steady);
        let shared = self.lease.as_ref().and_then(|lease| lease.left(self.rate.rate(), steady));
        Left { calls: shared.map_or(own.calls, |shared| shared.min(own.calls)), ..own }
    }

    /// The quota that is used up, if one is, and how long until its window ends. The longer wait is named.
    fn exhausted(&self, wall: impl Fn() -> Timestamp) -> Option<(LimitReason, u64, Duration)> {
        let (daily, monthly) = (self.terms.plan.daily_units, self.terms.plan.monthly_units);
        if daily.is_none() && monthly.is_none() {
            return None;
        }
        let wall = wall();
        let (day, month) = self.used.units(Period::of(wall));
        let reached = |used: f64, quota: Option<u64>| quota.filter(|quota| used >= to_f64(*quota));
        if let Some(quota) = reached(month, monthly) {
            return Some((LimitReason::Month, quota, Period::ends_in(wall).1));
        }
        reached(day, daily).map(|quota| (LimitReason::Day, quota, Period::ends_in(wall).0))
    }
}

impl Principal {
    /// The key's id, as it stands in logs and metrics; no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Most calls in a batch: the plan's bound or the server's, whichever is lower.
    pub fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// Whether `Cache-Control: no-cache` is obeyed.
    pub fn bypass_cache(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.terms.plan.bypass_cache)
    }

    /// Returns the caller as the pool tells callers apart, the same after a reload.
    pub fn caller(&self) -> Caller {
        self.limits.as_ref().map_or_else(Caller::default, |limits| Caller::numbered(limits.share.holder()))
    }

    /// One place in flight, if `free` are free and it is within this key's share of them (`gateway::share`). Without a
    /// plan nobody is told apart, and whoever comes gets what is free.
    pub fn hold(&self, free: usize) -> Option<SharePermit> {
        self.limits.as_ref().map_or_else(|| SharePermit::of_nobody(free), |limits| limits.share.hold(free))
    }

    /// So many bytes of answers on their way out, if they are within this key's share when `free` are free. Without a plan
    /// nobody is told apart.
    pub fn hold_bytes(&self, bytes: usize, free: usize) -> Option<SharedBytes> {
        let Some(limits) = &self.limits else { return Some(SharedBytes::of_nobody()) };
        limits.share.hold_bytes(bytes, free)
    }

    /// Whether the plan and the key allow this call.
    ///
    /// # Errors
    /// [`Error::Forbidden`], naming the method, commitment or number of accounts.
    pub fn admit(&self, query: &Query) -> Result<(), Error> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let methods = self.validity.scope.methods.as_deref();
        plan::admit(&limits.terms.plan, methods, query)
    }

    /// The call as it may go to a node, if the plan and the key allow it. Where the plan names commitments, only the one
    /// that was judged is in it.
    ///
    /// # Errors
    /// [`Error::Forbidden`], naming the method or commitment.
    pub fn admit_forwarded(&self, call: Forwarded) -> Result<Forwarded, Error> {
        let Some(limits) = &self.limits else { return Ok(call) };
        let methods = self.validity.scope.methods.as_deref();
        let plan = &limits.terms.plan;
        plan::admit_forwarded(plan, methods, &call)?;
        Ok(if plan.commitments.is_some() { call.canonical() } else { call })
    }

    /// Takes one call of the rate, and sees whether there are units left; they are booked afterwards.
    ///
    /// # Errors
    /// [`Error::Limited`], naming the limit and when to come back.
    pub fn take(&self, now: Instant) -> Result<(), Error> {
        let Some(limits) = &self.limits else { return Ok(()) };
        if let Some((reason, quota, ends_in)) = limits.exhausted(|| self.clock.wall(now)) {
            return Err(self.limited(reason, format!("{quota} units a {}", reason.as_str()), ends_in));
        }
        let per_second = limits.terms.plan.rps;
        limits
            .take(self.clock.steady(now))
            .map_err(|wait| self.limited(LimitReason::Rate, format!("{per_second} calls a second"), wait))
    }

    /// Takes one call of the rate, if one is left, for what is refused in any case.
    pub fn note_call(&self, now: Instant) {
        if let Some(limits) = &self.limits {
            let _ = limits.take(self.clock.steady(now));
        }
    }

    /// What this caller has been shown at the query's commitment, where the plan is `monotonic`; the answer's slot is
    /// noted there. `None` too for answers that show no slot.
    pub fn shown(&self, query: &Query) -> Option<Shown> {
        let limits = self.limits.as_ref().filter(|limits| limits.terms.plan.monotonic)?;
        query.commitment().filter(|_| query.has_context()).map(|commitment| limits.seen.at(commitment))
    }

    fn limited(&self, reason: LimitReason, limit: String, retry_after: Duration) -> Error {
        if let Some(metrics) = self.metrics() {
            metrics.limited.at(reason).inc();
        }
        Error::Limited { limit, reason: reason.as_str(), retry_after }
    }

    /// Books a call that is not answered yet, once it is told whether the answer is a hit; its caller may have gone by then.
    pub fn charge_on_landing(self: &Arc<Self>, query: &Query) -> impl FnOnce(bool) + Send + Sync + use<> {
        let (principal, hit, miss) =
            (Arc::clone(self), plan::units(&self.units, query, true), plan::units(&self.units, query, false));
        move |is_hit| principal.book(if is_hit { hit } else { miss })
    }

    /// Books what a call that was paid as a hit costs more, once it is told that its next answer is none.
    pub fn charge_hit_anew_on_landing(
        self: &Arc<Self>,
        query: &Query,
    ) -> impl FnOnce(bool) + Send + Sync + use<> {
        let (hit, miss) = (plan::units(&self.units, query, true), plan::units(&self.units, query, false));
        let principal = Arc::clone(self);
        move |is_hit| {
            if !is_hit {
                principal.book(miss - hit);
            }
        }
    }

    /// Returns true if what is booked counts towards anything: the caller has a plan.
    pub fn has_plan(&self) -> bool {
        self.limits.is_some()
    }

    /// Books what a forwarded call cost.
    pub fn charge_forwarded(&self, call: &Forwarded) {
        self.book(plan::forwarded_units(&self.units, call));
    }

    /// Books units.
    pub(crate) fn book(&self, units: f64) {
        let wall = self.clock.wall(Instant::now());
        if let Some(limits) = &self.limits {
            limits.used.book(Period::of(wall), units);
        }
        if let Some(metrics) = self.metrics() {
            metrics.units.at(()).inc_by(units);
        }
    }

    /// Counts a call that has ended.
    pub fn count(&self, metrics: &Metrics, outcome: Outcome) {
        self.metrics.get_or_init(|| metrics.key(&self.id)).requests.at(outcome).inc();
    }

    fn metrics(&self) -> Option<&Arc<KeyMetrics>> {
        let registry = self.registry.get()?;
        Some(self.metrics.get_or_init(|| registry.key(&self.id)))
    }

    /// `RateLimit-Policy`: what there is. Nothing without limits.
    pub fn policy(&self) -> Option<&str> {
        self.limits.as_ref().map(|limits| &*limits.terms.policy)
    }

    /// Writes `RateLimit`, what is left of that at `now`, at the end of `out`: `"rate";r=199;t=1, "day";r=999990;t=3600`,
    /// so much is left, until all is there again in so many seconds.
    pub fn write_left(&self, out: &mut Vec<u8>, now: Instant) {
        let Some(limits) = &self.limits else { return };
        let mut write = |before: &str, left: u64, until: Duration| {
            out.extend_from_slice(before.as_bytes());
            out.extend_from_slice(itoa::Buffer::new().format(left).as_bytes());
            out.extend_from_slice(b";t=");
            out.extend_from_slice(itoa::Buffer::new().format(seconds(until)).as_bytes());
        };
        let rate = limits.left(self.clock.steady(now));
        write("\"rate\";r=", rate.calls.into(), rate.full_in);
        let (daily, monthly) = (limits.terms.plan.daily_units, limits.terms.plan.monthly_units);
        if daily.is_none() && monthly.is_none() {
            return;
        }
        let wall = self.clock.wall(now);
        let (day, month) = limits.used.units(Period::of(wall));
        let (day_ends, month_ends) = Period::ends_in(wall);
        let left = |quota: u64, used: f64| quota.saturating_sub(ceiling(used));
        if let Some(quota) = daily {
            write(", \"day\";r=", left(quota, day), day_ends);
        }
        if let Some(quota) = monthly {
            write(", \"month\";r=", left(quota, month), month_ends);
        }
    }
}

impl std::fmt::Debug for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Principal").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Whole seconds, rounded up: at the time named it is true.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Whole units, rounded up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is meant"
)]
fn ceiling(units: f64) -> u64 {
    units.ceil() as u64
}

#[expect(clippy::cast_precision_loss, reason = "quotas past 2^53 units are no limit at all")]
pub(crate) fn to_f64(units: u64) -> f64 {
    units as f64
}
