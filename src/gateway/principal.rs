//! The caller of requests: a key with its plan, limits and usage. All requests of a key share one principal.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::clock::Period;
use super::keys::ApiKey;
use super::keys::validity::KeyValidity;
use super::known_slots::KnownSlots;
use super::limits::PlanLimits;
use super::plan;
use super::quota::{OverQuota, Use};
use super::snapshot::PrincipalContext;
use crate::cache::{Charge, Payer, Price};
use crate::config::Units;
use crate::error::Error;
use crate::fair::{CallerId, Held, Share, Watcher};
use crate::methods::{AnyMethod, Commitment, ForwardedCall, Life, Query, Slot, Subscription};
use crate::telemetry::metrics::KeyState;
use crate::telemetry::{KeyMetrics, LimitReason, Outcome};

/// The time to wait if calls in flight have reserved what is left of a quota. Some of it may come back when they end.
pub(super) const CALLS_END: Duration = Duration::from_secs(1);

/// The id of every caller in mode `open`.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// A caller, with its permissions and limits.
pub struct Principal {
    pub(crate) id: Arc<str>,
    /// The name of the key's owner, for logs, metrics and pages. Empty for a caller without a key.
    pub(crate) name: Arc<str>,
    pub(crate) validity: KeyValidity,
    /// The plan and the state of its limits. `None` in mode `open` without a plan.
    pub(crate) limits: Option<PlanLimits>,
    /// What the caller was told, and with a `monotonic` plan all that it was shown.
    known: KnownSlots,
    pub(crate) context: Arc<PrincipalContext>,
    metrics: OnceLock<Arc<KeyMetrics>>,
}

impl Principal {
    pub(crate) fn new(
        id: Arc<str>,
        name: Arc<str>,
        validity: KeyValidity,
        limits: Option<PlanLimits>,
        known: KnownSlots,
        context: &Arc<PrincipalContext>,
    ) -> Self {
        Self { id, name, validity, limits, known, context: Arc::clone(context), metrics: OnceLock::new() }
    }

    /// Creates the principal of a caller without a key.
    pub(crate) fn anonymous(limits: Option<PlanLimits>, context: &Arc<PrincipalContext>) -> Self {
        Self::new(
            Arc::from(ANONYMOUS),
            Arc::default(),
            KeyValidity::default(),
            limits,
            KnownSlots::default(),
            context,
        )
    }

    /// Returns the key's id, for logs and metrics. It is not secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns true if the caller has the properties of `key` that an operator can change.
    pub(crate) fn is(&self, key: &ApiKey) -> bool {
        let KeyValidity { expires, suspended, revoked, scope, .. } = &self.validity;
        let has_plan = self.limits.as_ref().is_some_and(|limits| limits.terms.name == key.plan);
        let states = (*suspended, *revoked) == (key.suspended.is_some(), key.revoked.is_some());
        has_plan && states && *self.name == *key.name && (expires, scope) == (&key.expires, &key.scope)
    }

    /// Returns the name of the key's owner. Empty for a caller without a key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the metrics tell of the caller.
    pub(crate) fn state(&self) -> KeyState {
        let plan = self.limits.as_ref().map(|limits| limits.terms.name.clone());
        KeyState { name: self.name.to_string(), plan, used: self.quota_shares() }
    }

    /// Returns the used share of the quota of the day and of the month, where the caller's plan has one.
    pub(crate) fn quota_shares(&self) -> [Option<f64>; 2] {
        let Some((limits, quotas)) = self.quotas() else { return [None; 2] };
        let units = limits.used.units(Period::of(self.context.clock.wall(Instant::now())));
        [0, 1].map(|at| quotas[at].map(|quota| units[at] / to_f64(quota)))
    }

    /// Returns the plan's limit on the calls in a batch, beside the server's own. `None` without one.
    pub fn max_batch(&self) -> Option<usize> {
        self.limits.as_ref()?.terms.plan.max_batch
    }

    /// Returns true if the caller's answers say which node gave them and what made them a miss.
    pub fn explains(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.terms.plan.explain)
    }

    /// Returns true if the caller may bypass the cache with `Cache-Control: no-cache`.
    pub fn bypass_cache(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.terms.plan.bypass_cache)
    }

    /// Returns the id by which the pool tells callers apart. The id stays the same after a reload.
    pub fn caller(&self) -> CallerId {
        self.limits.as_ref().map(|limits| limits.holds.caller).unwrap_or_default()
    }

    /// Returns who watches the chain from `address`. Callers without a plan are told apart by their addresses.
    pub fn watcher(&self, address: Option<IpAddr>) -> Watcher {
        Watcher { caller: self.caller(), address: address.filter(|_| self.limits.is_none()) }
    }

    /// Takes one of the `free` permits for requests in flight. `None` if that would exceed the key's fair share, or if
    /// no permit is free. A caller without a plan may take any free permit.
    pub fn hold(&self, free: usize) -> Option<Held> {
        let Some(limits) = &self.limits else { return (free > 0).then(Held::uncounted) };
        limits.holds.permits.hold(1, free)
    }

    /// Takes `bytes` of the `free` bytes for unsent answers. Dropping the result gives them back. `None` if the
    /// bytes would exceed the key's fair share. The bytes of a caller without a plan are not counted.
    pub fn hold_bytes(&self, bytes: usize, free: usize) -> Option<Held> {
        let Some(limits) = &self.limits else { return Some(Held::uncounted()) };
        limits.holds.unsent.hold(bytes, free)
    }

    /// Returns the caller's share of the memory for bodies. `None` for a caller without a plan.
    pub(crate) fn arriving(&self) -> Option<Share> {
        self.limits.as_ref().map(|limits| limits.holds.arriving.clone())
    }

    /// Checks that the plan and the key allow a call, and reserves its price.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the plan or the key does not allow the call. The error names what is refused.
    /// [`Error::Limited`] if too little is left of the method's own rate or of a quota.
    pub fn admit(self: &Arc<Self>, query: &Query) -> Result<Charge, Error> {
        match &self.limits {
            Some(limits) => plan::admit(&limits.terms, self.validity.scope.methods.as_deref(), query)?,
            None => self.allows(AnyMethod::Own(query.method()), query.commitment())?,
        }
        self.charge(plan::price(self.units(), query))
    }

    /// Checks that the plan and the key allow a call that is forwarded, and reserves its price. Returns the call to send with
    /// its charge. If the plan restricts commitments, the call is rewritten so that a node can read only the commitment
    /// that was checked.
    ///
    /// # Errors
    /// As for [`Self::admit`].
    pub fn admit_forwarded(
        self: &Arc<Self>,
        mut call: ForwardedCall,
    ) -> Result<(ForwardedCall, Charge), Error> {
        let charge = self.admit_other(call.method, Some(call.commitment))?;
        if self.limits.as_ref().is_some_and(|limits| limits.terms.plan.commitments.is_some()) {
            call = call.canonical();
        }
        Ok((call, charge))
    }

    /// Checks that the plan and the key allow a method.
    ///
    /// # Errors
    /// [`Error::Forbidden`], which names the method or the commitment.
    pub fn allows(&self, method: AnyMethod, commitment: Option<Commitment>) -> Result<(), Error> {
        let Some(limits) = &self.limits else {
            // Without a plan, what a plan opens that names no methods.
            return if method.is_usual() {
                Ok(())
            } else {
                Err(Error::Forbidden(method.as_str().to_owned()))
            };
        };
        plan::admit_method(&limits.terms, self.validity.scope.methods.as_deref(), method, commitment)
    }

    /// Checks that the plan and the key allow a method that the cache does not answer, and reserves its price.
    ///
    /// # Errors
    /// As for [`Self::admit`].
    pub fn admit_other(
        self: &Arc<Self>,
        method: AnyMethod,
        commitment: Option<Commitment>,
    ) -> Result<Charge, Error> {
        self.allows(method, commitment)?;
        self.charge(plan::price_of(self.units(), method))
    }

    /// Checks that the plan and the key allow a subscription.
    ///
    /// # Errors
    /// [`Error::Forbidden`], which names what is refused.
    pub fn allows_subscription(&self, to: &Subscription) -> Result<(), Error> {
        let methods = self.validity.scope.methods.as_deref();
        match &self.limits {
            Some(limits) => plan::admit_subscription(&limits.terms, methods, to),
            None => self.allows(AnyMethod::Subscription(to.method()), to.commitment()),
        }
    }

    /// Takes one call from the method's own rate, if the plan has one.
    ///
    /// # Errors
    /// [`Error::Limited`] if it is used up. The error names the limit and the time to wait.
    pub(super) fn take_of(&self, method: AnyMethod) -> Result<(), Error> {
        let Some(limits) = &self.limits else { return Ok(()) };
        limits.take_of(method).map_err(|wait| {
            let rate = limits.terms.plan.rate.get(&method).map(ToString::to_string).unwrap_or_default();
            self.limited(LimitReason::Method, format!("{rate} of {}", method.as_str()), wait)
        })
    }

    pub(super) fn units(&self) -> &Units {
        self.limits.as_ref().map_or(&self.context.units, |limits| &limits.terms.units)
    }

    /// Checks that the plan and the key allow to send transactions. Without a plan nobody may.
    ///
    /// # Errors
    /// [`Error::Forbidden`], which names the method.
    pub fn may_send(&self) -> Result<(), Error> {
        let methods = self.validity.scope.methods.as_deref();
        let has_plan = self.limits.as_ref().is_some_and(|limits| limits.terms.plan.send);
        let may_send = has_plan && methods.is_none_or(|list| list.contains(&AnyMethod::Send));
        if may_send { Ok(()) } else { Err(Error::Forbidden(AnyMethod::Send.as_str().to_owned())) }
    }

    /// Reserves the price of a transaction.
    ///
    /// # Errors
    /// [`Error::Limited`] if too little is left of the method's own rate or of a quota.
    pub fn admit_send(self: &Arc<Self>) -> Result<Charge, Error> {
        self.charge(plan::price_of(self.units(), AnyMethod::Send))
    }

    /// Reserves the highest price of a call, and takes it from the rate of its method.
    ///
    /// # Errors
    /// [`Error::Limited`] if too little is left of the rate or of a quota. Then nothing is taken from either.
    pub(super) fn charge(self: &Arc<Self>, price: Price) -> Result<Charge, Error> {
        self.reserve(price)?;
        self.take_of(price.method).inspect_err(|_| {
            if let Some((limits, _)) = self.quotas() {
                limits.used.release(price.miss);
            }
        })?;
        Ok(Charge::new(Arc::clone(self) as _, price))
    }

    /// Reserves the highest price of a call. Settling its charge turns the units into used ones, or gives them back.
    ///
    /// # Errors
    /// [`Error::Limited`] if too little is left of a quota. The error names the quota and the time to wait.
    pub(super) fn reserve(&self, price: Price) -> Result<(), Error> {
        if let Some((limits, quotas)) = self.quotas() {
            let wall = self.context.clock.wall(Instant::now());
            let reserved = limits.used.reserve(Period::of(wall), price.miss, quotas);
            reserved.map_err(|over| self.over_quota(over, quotas, wall))?;
        }
        Ok(())
    }

    /// Checks that something is left of each quota, apart from what calls in flight may use. Whoever stays connected does not
    /// book at each gateway, so the shared store is asked for the totals.
    ///
    /// # Errors
    /// [`Error::Limited`] if a quota is used up.
    pub fn check_quotas(&self, now: Instant) -> Result<(), Error> {
        let Some((limits, quotas)) = self.quotas() else { return Ok(()) };
        limits.used.request_totals();
        let wall = self.context.clock.wall(now);
        let used_up = limits.used.used_up(Period::of(wall), quotas);
        used_up.map_or(Ok(()), |over| Err(self.over_quota(over, quotas, wall)))
    }

    /// Returns the limits and the quotas of the day and the month. `None` if there is neither.
    pub(super) fn quotas(&self) -> Option<(&PlanLimits, [Option<u64>; 2])> {
        let limits = self.limits.as_ref()?;
        Some((limits, limits.quotas()?))
    }

    fn over_quota(&self, over: OverQuota, quotas: [Option<u64>; 2], wall: Timestamp) -> Error {
        let reason = if over.is_monthly { LimitReason::Month } else { LimitReason::Day };
        let at = usize::from(over.is_monthly);
        let (quota, ends_in) = (quotas[at].unwrap_or_default(), Period::ends_in(wall)[at]);
        let wait = if over.may_pass_soon { CALLS_END } else { ends_in };
        self.limited(reason, format!("{quota} units a {}", reason.as_str()), wait)
    }

    /// Takes one call from the rate.
    ///
    /// # Errors
    /// [`Error::Limited`] if the rate is used up. The error names the limit and the time to wait.
    pub fn take(&self) -> Result<(), Error> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let per_second = limits.terms.plan.rps;
        limits
            .rate
            .take()
            .map_err(|wait| self.limited(LimitReason::Rate, format!("{per_second} calls a second"), wait))
    }

    /// Takes one call from the rate, without an error if the rate is used up. Used for calls that are refused or
    /// ignored in any case.
    pub fn note_call(&self) {
        if let Some(limits) = &self.limits {
            let _ = limits.rate.take();
        }
    }

    pub fn known_slots(&self) -> &KnownSlots {
        &self.known
    }

    /// Returns the slot below which a stored answer to `query` would be older than what the caller knows. `None` if there
    /// is none, or if the answer to `query` has neither a context slot nor a part in past blocks. A scan costs a node seconds, so it is made anew for a
    /// `monotonic` plan only. `believes` says whether any node may be at a slot.
    pub fn known_slot(&self, query: &Query, believes: impl FnOnce(Commitment, Slot) -> bool) -> Option<Slot> {
        let is_scan = query.plain().is_some_and(|call| call.life == Life::Scan);
        let shown = commitment_of_context(query).or_else(|| commitment_of_history(query));
        let commitment = shown.filter(|_| !is_scan || self.is_monotonic())?;
        self.known.highest(commitment, |slot| believes(commitment, slot))
    }

    fn is_monotonic(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.terms.plan.monotonic)
    }

    /// Records that the answer to `query` has shown `slot` to the caller, if its plan is `monotonic` and the answer has a
    /// context slot.
    pub fn note_shown(&self, query: &Query, slot: Slot) {
        if let Some(commitment) = commitment_of_context(query).filter(|_| self.is_monotonic()) {
            self.known.raise(commitment, slot);
        }
    }

    pub(super) fn limited(&self, reason: LimitReason, limit: String, retry_after: Duration) -> Error {
        self.metrics().limited.at(reason).inc();
        Error::Limited { limit, reason: reason.as_str(), retry_after }
    }

    /// Adds units that belong to no call to the usage of the current day and month, and to the key's metrics. `what` names
    /// them in the usage file.
    pub(super) fn book(&self, what: &'static str, units: f64) {
        self.used(Use { method: what, calls: 0, units, reserved: 0.0 });
    }

    fn used(&self, what: Use) {
        if let Some(limits) = &self.limits {
            limits.used.book(Period::of(self.context.clock.wall(Instant::now())), what);
        }
        if what.units > 0.0 {
            self.metrics().units.at(()).inc_by(what.units);
        }
    }

    /// Returns true if the caller has a plan. Without a plan nothing is charged.
    pub fn has_plan(&self) -> bool {
        self.limits.is_some()
    }

    pub fn count(&self, outcome: Outcome) {
        self.metrics().requests.at(outcome).inc();
    }

    fn metrics(&self) -> &KeyMetrics {
        self.metrics.get_or_init(|| self.context.metrics.key(&self.id))
    }
}

/// Returns the commitment of an answer about past blocks, which may lack what the caller was told of. `None` for other
/// answers.
fn commitment_of_history(query: &Query) -> Option<Commitment> {
    match query.known() {
        Query::Transaction(_) | Query::Page(_) | Query::Blocks(_) => query.commitment(),
        Query::BlockTime(_) => Some(Commitment::Processed),
        _ => None,
    }
}

/// Returns the commitment of the slot in the context of an answer. `None` if the answer has no context.
fn commitment_of_context(query: &Query) -> Option<Commitment> {
    query.commitment().filter(|_| query.has_context())
}

impl std::fmt::Debug for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Principal").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Returns `time` in whole seconds, rounded up.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is meant"
)]
pub(crate) fn ceiling(units: f64) -> u64 {
    units.ceil() as u64
}

#[expect(clippy::cast_precision_loss, reason = "quotas beyond 2^53 units are no limit")]
pub(crate) fn to_f64(units: u64) -> f64 {
    units as f64
}

impl Payer for Principal {
    fn settle(&self, price: Price, units: f64) {
        let reserved = if self.quotas().is_some() { price.miss } else { 0.0 };
        self.used(Use { method: price.method.as_str(), calls: 1, units, reserved });
    }
}
