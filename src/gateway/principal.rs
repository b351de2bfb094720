//! The caller of requests: a key with its plan, limits and usage. All requests of a key share one principal.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::clock::Period;
use super::keys::ApiKey;
use super::keys::validity::KeyValidity;
use super::known_slots::KnownSlots;
use super::lease::Lease;
use super::limit::{Limiter, Rate, Remaining};
use super::method_rates::MethodRates;
use super::plan::{self, PlanTerms};
use super::quota::{OverQuota, Use, Used};
use super::snapshot::PrincipalContext;
use crate::cache::{Charge, Payer, Price};
use crate::config::Units;
use crate::error::Error;
use crate::fair::{CallerId, Held, Share, Watcher};
use crate::methods::{AnyMethod, Commitment, ForwardedCall, Life, Query, Slot, Subscription};
use crate::telemetry::metrics::KeyState;
use crate::telemetry::{KeyMetrics, LimitReason, Outcome};

/// The time to wait if calls in flight have reserved what is left of a quota. Some of it may come back when they end.
const CALLS_END: Duration = Duration::from_secs(1);

/// The accounts and bytes of a key that are looked at for nothing in each slot, the looks that cost a unit together, and the
/// bytes that cost another one.
const FREE_ACCOUNTS: usize = 20;
const LOOKS_OF_A_UNIT: f64 = 100.0;
const PIECE: usize = 64 << 10;

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

/// The plan of one key or client address, and the state of its limits. After a reload of the configuration the new
/// limits share that state.
pub(crate) struct PlanLimits {
    pub(crate) terms: Arc<PlanTerms>,
    rate: Limiter,
    /// The calls that this gateway has taken in advance from the shared rate. `None` if no shared store is configured.
    lease: Option<Arc<Lease>>,
    used: Arc<Used>,
    /// The id by which the pool tells callers apart.
    caller: CallerId,
    /// The permits for requests in flight that the caller holds.
    permits: Share,
    /// The bytes of answers that are not sent yet.
    unsent: Share,
    /// The bytes of bodies that are arriving, or whose calls are being answered.
    arriving: Share,
    /// The open WebSockets, and the subscriptions, of which the plan says how many there may be.
    connections: Share,
    subscriptions: Share,
    /// The looks at accounts in the newest slot, by [`Commitment::index`].
    looks: Arc<Mutex<[Looks; 3]>>,
    methods: MethodRates,
}

/// The looks of one slot that are counted so far. Each slot is a round of looks.
#[derive(Debug, Default)]
struct Looks {
    round: u64,
    accounts: usize,
    bytes: usize,
}

impl Looks {
    /// Counts a look, and returns its price in units: a part of one, and one for each further piece that is begun.
    fn units_of(&mut self, round: u64, bytes: usize) -> f64 {
        if round != self.round {
            *self = Self { round, ..Self::default() };
        }
        let before = self.bytes.div_ceil(PIECE).max(1);
        (self.accounts, self.bytes) = (self.accounts + 1, self.bytes.saturating_add(bytes));
        let pieces = self.bytes.div_ceil(PIECE).max(1) - before;
        let look = if self.accounts > FREE_ACCOUNTS { 1.0 / LOOKS_OF_A_UNIT } else { 0.0 };
        look + f64::from(u32::try_from(pieces).unwrap_or(u32::MAX))
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
        context: &PrincipalContext,
    ) -> Self {
        let rate = Rate::new(terms.plan.rps, Duration::from_secs(1), terms.plan.burst);
        let none = MethodRates::default();
        let old = before.map_or(&none, |before| &before.methods);
        let methods = MethodRates::after(old, &terms.plan.rate, context.clock.steady(Instant::now()));
        let lease = || context.lease_client.as_ref().map(|client| Lease::new(holder.to_owned(), client));
        if let Some(old) = before {
            let rate = Limiter::after(&old.rate, rate, context.clock.steady(Instant::now()));
            return Self {
                terms,
                rate,
                lease: old.lease.clone().or_else(lease),
                used,
                caller: old.caller,
                permits: old.permits.clone(),
                unsent: old.unsent.clone(),
                arriving: old.arriving.clone(),
                connections: old.connections.clone(),
                subscriptions: old.subscriptions.clone(),
                looks: Arc::clone(&old.looks),
                methods,
            };
        }
        Self {
            terms,
            rate: Limiter::new(rate),
            lease: lease(),
            used,
            caller: CallerId::fresh(),
            permits: Share::default(),
            unsent: Share::default(),
            arriving: Share::default(),
            connections: Share::default(),
            subscriptions: Share::default(),
            looks: Arc::default(),
            methods,
        }
    }

    /// Takes one call from the shared rate, if there is one, and from this gateway's own rate. `steady` is the
    /// current time as `WallClock::steady` returns it.
    ///
    /// # Errors
    /// A rate is used up. The error is the time until the next call may pass. No call is taken from either rate then.
    fn take(&self, steady: Duration) -> Result<(), Duration> {
        let Some(lease) = &self.lease else { return self.rate.take(steady) };
        let counts = lease.take(self.rate.rate(), steady)?;
        self.rate.take(steady).inspect_err(|_| {
            if counts {
                lease.give_back();
            }
        })
    }

    pub(crate) fn used(&self) -> &Used {
        &self.used
    }

    /// Returns the part of the rate that is left. The number of calls is the lower of two numbers: the calls left
    /// of the shared rate, and those left of this gateway's own rate. The time is that of the own rate.
    pub(crate) fn left(&self, steady: Duration) -> Remaining {
        let own = self.rate.left(steady);
        let shared = self.lease.as_ref().and_then(|lease| lease.left(self.rate.rate(), steady));
        Remaining { calls: shared.map_or(own.calls, |shared| shared.min(own.calls)), ..own }
    }

    /// Returns the quotas of the day and the month. `None` if the plan has neither, so that no units are reserved.
    fn quotas(&self) -> Option<[Option<u64>; 2]> {
        let quotas = [self.terms.plan.daily_units, self.terms.plan.monthly_units];
        Some(quotas).filter(|quotas| *quotas != [None; 2])
    }
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
        self.limits.as_ref().map(|limits| limits.caller).unwrap_or_default()
    }

    /// Returns who watches the chain from `address`. Callers without a plan are told apart by their addresses.
    pub fn watcher(&self, address: Option<IpAddr>) -> Watcher {
        Watcher { caller: self.caller(), address: address.filter(|_| self.limits.is_none()) }
    }

    /// Takes one of the `free` permits for requests in flight. `None` if that would exceed the key's fair share, or if
    /// no permit is free. A caller without a plan may take any free permit.
    pub fn hold(&self, free: usize) -> Option<Held> {
        let Some(limits) = &self.limits else { return (free > 0).then(Held::uncounted) };
        limits.permits.hold(1, free)
    }

    /// Takes `bytes` of the `free` bytes for unsent answers. Dropping the result gives them back. `None` if the
    /// bytes would exceed the key's fair share. The bytes of a caller without a plan are not counted.
    pub fn hold_bytes(&self, bytes: usize, free: usize) -> Option<Held> {
        let Some(limits) = &self.limits else { return Some(Held::uncounted()) };
        limits.unsent.hold(bytes, free)
    }

    /// Returns the caller's share of the memory for bodies. `None` for a caller without a plan.
    pub(crate) fn arriving(&self) -> Option<Share> {
        self.limits.as_ref().map(|limits| limits.arriving.clone())
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
        self.take_of(query.method().into())?;
        self.reserve(plan::price(self.units(), query))
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

    /// Takes one of the WebSockets that the plan allows. Dropping the result gives it back.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the plan allows none, [`Error::Limited`] if the key has as many as it may.
    pub fn hold_connection(&self) -> Result<Held, Error> {
        let Some(limits) = &self.limits else { return Ok(Held::uncounted()) };
        match limits.terms.plan.connections {
            0 => Err(Error::Forbidden("a WebSocket".to_owned())),
            limit => limits.connections.hold_one_of(limit).ok_or_else(|| {
                self.limited(LimitReason::Connections, format!("{limit} open WebSockets"), CALLS_END)
            }),
        }
    }

    /// Takes one of the subscriptions that the plan allows. `None` if the key has as many as it may.
    pub fn hold_subscription(&self) -> Option<Held> {
        let Some(limits) = &self.limits else { return Some(Held::uncounted()) };
        limits.subscriptions.hold_one_of(limits.terms.plan.subscriptions)
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
        self.take_of(method)?;
        self.reserve(plan::price_of(self.units(), method))
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

    /// Checks that the plan and the key allow a subscription now.
    ///
    /// # Errors
    /// As for [`Self::allows_subscription`], and [`Error::Limited`] if nothing is left of the method's own rate.
    pub fn admit_subscription(&self, to: &Subscription) -> Result<(), Error> {
        self.allows_subscription(to)?;
        self.take_of(AnyMethod::Subscription(to.method()))
    }

    /// Reserves the price of a subscription.
    ///
    /// # Errors
    /// [`Error::Limited`] if too little is left of a quota.
    pub fn charge_subscription(self: &Arc<Self>, to: &Subscription) -> Result<Charge, Error> {
        self.reserve(plan::price_of(self.units(), AnyMethod::Subscription(to.method())))
    }

    /// Takes one call from the method's own rate, if the plan has one.
    ///
    /// # Errors
    /// [`Error::Limited`] if it is used up. The error names the limit and the time to wait.
    fn take_of(&self, method: AnyMethod) -> Result<(), Error> {
        let Some(limits) = &self.limits else { return Ok(()) };
        limits.methods.take(method, || self.context.clock.steady(Instant::now())).map_err(|wait| {
            let rate = limits.terms.plan.rate.get(&method).map(ToString::to_string).unwrap_or_default();
            self.limited(LimitReason::Method, format!("{rate} of {}", method.as_str()), wait)
        })
    }

    /// Returns the prices of calls.
    fn units(&self) -> &Units {
        self.limits.as_ref().map_or(&self.context.units, |limits| &limits.terms.units)
    }

    /// Adds the price of a notification to the key's usage.
    pub fn charge_notification(&self) {
        let price = self.units().notification;
        if price > 0 {
            self.book("notification", to_f64(price));
        }
    }

    /// Adds the price of a look at a watched account of this length. The first looks of a slot and their bytes are free.
    pub fn charge_look(&self, at: Commitment, round: u64, bytes: usize) {
        let (price, Some(limits)) = (self.units().looks, &self.limits) else { return };
        if price > 0 {
            let mut looks = limits.looks.lock().unwrap_or_else(PoisonError::into_inner);
            self.book("looks", to_f64(price) * looks[at.index()].units_of(round, bytes));
        }
    }

    /// Adds the price of this number of looks at signatures that are waited for although they will hardly land.
    pub fn charge_lasting(&self, looks: f64) {
        let price = self.units().looks;
        if price > 0 && looks > 0.0 {
            self.book("looks", to_f64(price) * looks / LOOKS_OF_A_UNIT);
        }
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
        self.take_of(AnyMethod::Send)?;
        self.reserve(plan::price_of(self.units(), AnyMethod::Send))
    }

    /// Reserves the highest price of a call. Dropping the charge turns the units into used ones, or gives them back.
    ///
    /// # Errors
    /// [`Error::Limited`] if too little is left of a quota. The error names the quota and the time to wait.
    fn reserve(self: &Arc<Self>, price: Price) -> Result<Charge, Error> {
        if let Some((limits, quotas)) = self.quotas() {
            let wall = self.context.clock.wall(Instant::now());
            let reserved = limits.used.reserve(Period::of(wall), price.miss, quotas);
            reserved.map_err(|over| self.over_quota(over, quotas, wall))?;
        }
        Ok(Charge::new(Arc::clone(self) as _, price))
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
    fn quotas(&self) -> Option<(&PlanLimits, [Option<u64>; 2])> {
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
    pub fn take(&self, now: Instant) -> Result<(), Error> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let per_second = limits.terms.plan.rps;
        limits
            .take(self.context.clock.steady(now))
            .map_err(|wait| self.limited(LimitReason::Rate, format!("{per_second} calls a second"), wait))
    }

    /// Takes one call from the rate, without an error if the rate is used up. Used for calls that are refused or
    /// ignored in any case.
    pub fn note_call(&self, now: Instant) {
        if let Some(limits) = &self.limits {
            let _ = limits.take(self.context.clock.steady(now));
        }
    }

    /// Returns the slots that the caller knows of.
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

    fn limited(&self, reason: LimitReason, limit: String, retry_after: Duration) -> Error {
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

    /// Counts a finished call in the key's metrics.
    pub fn count(&self, outcome: Outcome) {
        self.metrics().requests.at(outcome).inc();
    }

    fn metrics(&self) -> &KeyMetrics {
        self.metrics.get_or_init(|| self.context.metrics.key(&self.id))
    }

    /// Returns the value of the header `RateLimit-Policy`. `None` for a caller without a plan.
    pub fn policy(&self) -> Option<&str> {
        self.limits.as_ref().map(|limits| &*limits.terms.policy)
    }

    /// Appends the value of the header `RateLimit` to `out`, such as `"rate";r=199;t=1, "day";r=999990;t=3600`. `r` is
    /// the part of a limit that is left at `now`, without the units that calls in flight have reserved. `t` is the number of seconds until the whole limit is free again.
    pub fn write_left(&self, out: &mut Vec<u8>, now: Instant) {
        let Some(limits) = &self.limits else { return };
        let mut write = |before: &str, left: u64, until: Duration| {
            out.extend_from_slice(before.as_bytes());
            out.extend_from_slice(itoa::Buffer::new().format(left).as_bytes());
            out.extend_from_slice(b";t=");
            out.extend_from_slice(itoa::Buffer::new().format(seconds(until)).as_bytes());
        };
        let rate = limits.left(self.context.clock.steady(now));
        write("\"rate\";r=", rate.calls.into(), rate.full_in);
        let Some(quotas) = limits.quotas() else { return };
        let wall = self.context.clock.wall(now);
        let (used, ends) = (limits.used.units(Period::of(wall)), Period::ends_in(wall));
        let reserved = limits.used.reserved();
        for (at, name) in [", \"day\";r=", ", \"month\";r="].into_iter().enumerate() {
            if let Some(quota) = quotas[at] {
                write(name, quota.saturating_sub(ceiling(used[at] + reserved)), ends[at]);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_cost_by_number_and_length_beyond_what_is_free() {
        let day = |accounts: usize, bytes: usize| -> f64 {
            let mut looks = Looks::default();
            (1..=10)
                .flat_map(|slot| (0..accounts).map(move |_| slot))
                .map(|slot| looks.units_of(slot, bytes))
                .sum()
        };
        for (accounts, bytes, expected) in
            [(20, 200, 0.0), (120, 200, 10.0), (1, 10 << 20, 10.0 * 159.0), (2, 64 << 10, 10.0)]
        {
            let units = day(accounts, bytes);
            assert!((units - expected).abs() < 1e-6, "{accounts} accounts of {bytes} bytes: {units}");
        }
    }
}
