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
use super::plan::{self, Terms};
use super::quota::{Period, Used};
use super::seen::{Seen, Shown};
use super::share::{Held, HeldBytes, Share};
use super::standing::Standing;
use crate::config::Units;
use crate::error::Error;
use crate::methods::{Forwarded, Query};
use crate::pool::Caller;
use crate::telemetry::{AuthFailure, KeyMetrics, LimitReason, Metrics, Outcome};

/// The id of whoever calls in open mode.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Who is calling, and what they may do.
///
/// Among a hundred thousand keys none of this is in the processor's cache when its call comes, and each line of memory
/// is waited for. So what every call reads stands first and together.
#[repr(C)]
pub struct Principal {
    /// Of the key that it is; nothing in open mode.
    pub(crate) hash: KeyHash,
    pub(crate) pass: Pass,
    pub(crate) clock: Arc<Clock>,
    /// The limits; none in open mode without a plan.
    pub(crate) bounds: Option<Bounds>,
    /// Most calls in a batch.
    pub(crate) max_batch: usize,
    pub(crate) metrics: OnceLock<Arc<KeyMetrics>>,
    /// What calls cost.
    pub(crate) units: Arc<Units>,
    pub(crate) id: Arc<str>,
    /// Where `metrics` come from, once there is such a place.
    pub(crate) registry: Arc<OnceLock<Arc<Metrics>>>,
}

/// A plan, and how much of it is used; in the order in which calls read it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Bounds {
    pub(crate) terms: Arc<Terms>,
    pub(crate) rate: Limit,
    /// Written only where the plan is `monotonic`.
    pub(crate) seen: Seen,
    /// Of the places in flight.
    pub(crate) share: Share,
    /// The same rate over all gateways, where they have a store in common.
    pub(crate) lease: Option<Arc<Lease>>,
}

/// When and from where a key holds, and for what.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) expires: Option<Timestamp>,
    pub(crate) revoked: bool,
    /// What narrows it; most keys have nothing that does.
    pub(crate) scope: Option<Box<Scope>>,
}

impl Pass {
    fn in_time(&self, until: Option<Timestamp>, wall: impl Fn() -> Timestamp) -> Result<(), AuthFailure> {
        let ended = |end: Option<Timestamp>| end.is_some_and(|end| end <= wall());
        if self.revoked {
            return Err(AuthFailure::Revoked);
        }
        if ended(self.expires) || ended(until) { Err(AuthFailure::Expired) } else { Ok(()) }
    }

    /// Whether a key that ends at `until` (replaced keys do) may be used now, from there.
    pub(crate) fn check(
        &self,
        until: Option<Timestamp>,
        client: Option<IpAddr>,
        origin: Option<&str>,
        wall: impl Fn() -> Timestamp,
    ) -> Result<(), AuthFailure> {
        self.in_time(until, wall)?;
        let Some(scope) = &self.scope else { return Ok(()) };
        let client = client.map(|client| client.to_canonical());
        let is_in =
            |list: &Vec<IpNet>| client.is_some_and(|ip| list.iter().any(|network| network.contains(&ip)));
        if scope.addresses.as_ref().is_some_and(|list| !is_in(list)) {
            return Err(AuthFailure::Address);
        }
        // Only browsers send an origin, and none of them can leave it out: without one it is no browser.
        if let (Some(allowed), Some(origin)) = (&scope.origins, origin)
            && !allowed.iter().any(|known| known == origin)
        {
            return Err(AuthFailure::Origin);
        }
        Ok(())
    }
}

impl Bounds {
    /// What `terms` allow, of one who stands at `standing`; going on where `before` is, if there is such.
    pub(crate) fn new(
        terms: Arc<Terms>,
        before: Option<&Self>,
        standing: Arc<Standing>,
        lease: impl FnOnce() -> Option<Arc<Lease>>,
    ) -> Self {
        let state = State(Arc::clone(&standing));
        let rate = Limit::new(terms.plan.rps, Duration::from_secs(1), terms.plan.burst, state);
        let seen = before.map_or_else(Seen::default, |before| before.seen.clone());
        let lease = before.and_then(|before| before.lease.clone()).or_else(lease);
        Self { terms, rate, seen, share: Share(standing), lease }
    }

    /// Takes one call of the rate: of that over all gateways, where there is such, and of this gateway's own, which
    /// holds in any case. What the one gives and the other does not is given back.
    fn take(&self, steady: Duration) -> Result<(), Duration> {
        let Some(lease) = &self.lease else { return self.rate.take(steady) };
        let counts = lease.take(self.rate.as_rate(), steady)?;
        self.rate.take(steady).inspect_err(|_| {
            if counts {
                lease.give_back();
            }
        })
    }

    /// What is used of the quotas.
    pub(crate) fn used(&self) -> &Used {
        &self.share.0.used
    }

    /// What is left of the rate.
    pub(crate) fn left(&self, steady: Duration) -> Left {
        let own = self.rate.left(steady);
        let shared = self.lease.as_ref().and_then(|lease| lease.left(self.rate.as_rate(), steady));
        Left { calls: shared.map_or(own.calls, |shared| shared.min(own.calls)), ..own }
    }

    /// The quota that is used up, if one is, and how long until its window ends. The longer wait is named.
    fn exhausted(&self, wall: impl Fn() -> Timestamp) -> Option<(LimitReason, u64, Duration)> {
        let (daily, monthly) = (self.terms.plan.daily_units, self.terms.plan.monthly_units);
        if daily.is_none() && monthly.is_none() {
            return None;
        }
        let wall = wall();
        let (day, month) = self.used().units(Period::of(wall));
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
        self.bounds.as_ref().is_some_and(|bounds| bounds.terms.plan.bypass_cache)
    }

    /// Who is calling, as the pool tells callers apart: by where their standing is kept, which a reload leaves in place.
    pub fn caller(&self) -> Caller {
        let number = |bounds: &Bounds| Arc::as_ptr(&bounds.share.0).addr();
        self.bounds.as_ref().map_or_else(Caller::default, |bounds| Caller::numbered(number(bounds)))
    }

    /// One place in flight, if `free` are free and it is within this key's share of them (`gateway::share`). Without a
    /// plan nobody is told apart, and whoever comes gets what is free.
    pub fn hold(&self, free: usize) -> Option<Held> {
        self.bounds.as_ref().map_or_else(|| Held::of_nobody(free), |bounds| bounds.share.hold(free))
    }

    /// So many bytes of answers on their way out, if they are within this key's share when `free` are free. Without a plan
    /// nobody is told apart.
    pub fn hold_bytes(&self, bytes: usize, free: usize) -> Option<HeldBytes> {
        let Some(bounds) = &self.bounds else { return Some(HeldBytes::of_nobody()) };
        bounds.share.hold_bytes(bytes, free)
    }

    /// Whether the plan and the key allow this call.
    ///
    /// # Errors
    /// [`Error::Forbidden`], naming the method, commitment or number of accounts.
    pub fn admit(&self, query: &Query) -> Result<(), Error> {
        let Some(bounds) = &self.bounds else { return Ok(()) };
        let methods = self.pass.scope.as_ref().and_then(|scope| scope.methods.as_deref());
        plan::admit(&bounds.terms.plan, methods, query)
    }

    /// The call as it may go to a node, if the plan and the key allow it. Where the plan names commitments, only the one
    /// that was judged is in it.
    ///
    /// # Errors
    /// [`Error::Forbidden`], naming the method or commitment.
    pub fn admit_forwarded(&self, call: Forwarded) -> Result<Forwarded, Error> {
        let Some(bounds) = &self.bounds else { return Ok(call) };
        let methods = self.pass.scope.as_ref().and_then(|scope| scope.methods.as_deref());
        let plan = &bounds.terms.plan;
        plan::admit_forwarded(plan, methods, &call)?;
        Ok(if plan.commitments.is_some() { call.canonical() } else { call })
    }

    /// Takes one call of the rate, and sees whether there are units left; they are booked afterwards.
    ///
    /// # Errors
    /// [`Error::Limited`], naming the limit and when to come back.
    pub fn take(&self, now: Instant) -> Result<(), Error> {
        let Some(bounds) = &self.bounds else { return Ok(()) };
        if let Some((reason, quota, ends_in)) = bounds.exhausted(|| self.clock.wall(now)) {
            return Err(self.limited(reason, format!("{quota} units a {}", reason.as_str()), ends_in));
        }
        let per_second = bounds.terms.plan.rps;
        bounds
            .take(self.clock.steady(now))
            .map_err(|wait| self.limited(LimitReason::Rate, format!("{per_second} calls a second"), wait))
    }

    /// Takes one call of the rate, if one is left, for what is refused in any case.
    pub fn note_call(&self, now: Instant) {
        if let Some(bounds) = &self.bounds {
            let _ = bounds.take(self.clock.steady(now));
        }
    }

    /// What this caller has been shown at the query's commitment, where the plan is `monotonic`; the answer's slot is
    /// noted there. `None` too for answers that show no slot.
    pub fn shown(&self, query: &Query) -> Option<Shown> {
        let bounds = self.bounds.as_ref().filter(|bounds| bounds.terms.plan.monotonic)?;
        query.commitment().filter(|_| query.has_context()).map(|commitment| bounds.seen.at(commitment))
    }

    fn limited(&self, reason: LimitReason, limit: String, retry_after: Duration) -> Error {
        if let Some(metrics) = self.metrics() {
            metrics.limited.at(reason).inc();
        }
        Error::Limited { limit, reason: reason.as_str(), retry_after }
    }

    /// Books what the call cost.
    pub fn charge(&self, query: &Query, hit: bool) {
        self.book(plan::units(&self.units, query, hit));
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
        self.bounds.is_some()
    }

    /// Books what a forwarded call cost.
    pub fn charge_forwarded(&self, call: &Forwarded) {
        self.book(plan::forwarded_units(&self.units, call));
    }

    /// Books units.
    pub(crate) fn book(&self, units: f64) {
        let wall = self.clock.wall(Instant::now());
        if let Some(bounds) = &self.bounds {
            bounds.used().book(Period::of(wall), units);
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
        self.bounds.as_ref().map(|bounds| &*bounds.terms.policy)
    }

    /// Writes `RateLimit`, what is left of that at `now`, at the end of `out`: `"rate";r=199;t=1, "day";r=999990;t=3600`,
    /// so much is left, until all is there again in so many seconds.
    pub fn write_left(&self, out: &mut Vec<u8>, now: Instant) {
        let Some(bounds) = &self.bounds else { return };
        let mut write = |before: &str, left: u64, until: Duration| {
            out.extend_from_slice(before.as_bytes());
            out.extend_from_slice(itoa::Buffer::new().format(left).as_bytes());
            out.extend_from_slice(b";t=");
            out.extend_from_slice(itoa::Buffer::new().format(seconds(until)).as_bytes());
        };
        let rate = bounds.left(self.clock.steady(now));
        write("\"rate\";r=", rate.calls.into(), rate.full_in);
        let (daily, monthly) = (bounds.terms.plan.daily_units, bounds.terms.plan.monthly_units);
        if daily.is_none() && monthly.is_none() {
            return;
        }
        let wall = self.clock.wall(now);
        let (day, month) = bounds.used().units(Period::of(wall));
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
