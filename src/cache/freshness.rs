//! The one rule for serving: may an entry be served to a caller now?
//!
//! [`FreshnessPolicy::serves`] is the only place that decides this. A [`ServeRule`] says what the caller needs, and
//! the [`Verdict`] says whether the entry gives it, or why it does not.
//!
//! The rule holds no state of the cache. It depends on the settings, the time and the frontier, that is, the
//! newest known slot at each commitment. When the frontier moves, all entries too far behind it stop being fresh
//! at once, without a scan. The time limit always holds. The limit in slots is only as exact as the gateway's
//! knowledge of the newest slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{Class, EntryMeta};
use super::status::CacheStatus;
use crate::config::{self, Assemble};
use crate::frontier::Frontier;
use crate::methods::{Commitment, Query, Slot};
use crate::telemetry::StaleCause;

/// How far past its limits of age and lag an entry may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    Fresh,
    /// Slightly past the limits, because a fresh answer is being fetched.
    Stale,
    /// Up to the limit of age that holds while no node answers.
    InFault,
    /// Like [`Self::InFault`], and the entry may even be below the floor of one of its accounts.
    LastResort,
}

/// What an entry must be to be served to a caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServeRule {
    pub(super) limit: Limit,
    /// The lowest slot. 0 if any slot will do.
    pub(super) min_slot: Slot,
    /// The lowest slot of an answer that may be another in each slot and shows no slot. 0 if any slot will do.
    pub(super) told: Slot,
    /// An answer for which a node was asked since then, which is when the caller arrived, may have any age and lag.
    pub(super) asked_since: Option<Instant>,
}

impl ServeRule {
    /// Returns the rule that allows this `limit` at any slot.
    pub(super) const fn within(limit: Limit) -> Self {
        Self { limit, min_slot: 0, told: 0, asked_since: None }
    }

    /// Returns the rule for callers who have arrived at `arrived_at`.
    pub(super) fn asked_since(self, arrived_at: Instant) -> Self {
        Self { asked_since: Some(arrived_at), ..self }
    }

    /// Returns the rule for a caller of `query` who knows of `slot`.
    pub(super) fn knowing(self, query: &Query, slot: Option<Slot>) -> Self {
        let slot = slot.unwrap_or(0);
        if query.has_context() { self.at_least(slot) } else { Self { told: self.told.max(slot), ..self } }
    }

    /// Returns the rule that also asks for at least `slot`.
    pub(super) fn at_least(self, slot: Slot) -> Self {
        Self { min_slot: self.min_slot.max(slot), ..self }
    }

    /// Returns the rule for accounts that were shown at the slot `floor`.
    pub(super) fn above(self, floor: Slot) -> Self {
        if self.limit == Limit::LastResort { self } else { self.at_least(floor) }
    }
}

/// The answer to the question whether an entry may be served. The lower, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Yes: the entry is within its limits of age and lag.
    Fresh,
    /// Yes: a node was asked for the entry after the caller arrived.
    AskedSince,
    /// Yes: the entry is slightly past a limit, and a fresh answer is being fetched.
    Stale(StaleCause),
    /// Yes: no node answers.
    InFault(StaleCause),
    /// No.
    No(StaleCause),
}

impl Verdict {
    pub(super) fn is_yes(self) -> bool {
        !matches!(self, Self::No(_))
    }

    pub(super) fn cause(self) -> Option<StaleCause> {
        match self {
            Self::Fresh | Self::AskedSince => None,
            Self::Stale(cause) | Self::InFault(cause) | Self::No(cause) => Some(cause),
        }
    }
}

/// The limits of age and lag for every class of answers, from the settings.
pub(super) struct FreshnessPolicy {
    settings: config::CacheSettings,
    frontier: Arc<Frontier>,
}

impl FreshnessPolicy {
    /// Creates the rules from these settings. An answer's slot is compared with the newest slot in `frontier`.
    pub(super) fn new(settings: config::CacheSettings, frontier: Arc<Frontier>) -> Self {
        Self { settings, frontier }
    }

    /// Returns whether `rule` allows an entry with this `meta` to be served at `now`.
    pub(super) fn serves(&self, rule: &ServeRule, meta: &EntryMeta, now: Instant) -> Verdict {
        let may_change = matches!(meta.class, Class::OneSlot(_) | Class::Absent(..));
        if meta.slot < rule.min_slot || may_change && meta.slot < rule.told {
            return Verdict::No(StaleCause::Floor);
        }
        let verdict = self.assess(meta, now);
        match verdict {
            Verdict::Fresh => verdict,
            _ if rule.asked_since.is_some_and(|since| meta.sent_at >= since) => Verdict::AskedSince,
            Verdict::Stale(cause) if rule.limit < Limit::Stale => Verdict::No(cause),
            Verdict::InFault(cause) if rule.limit < Limit::InFault => Verdict::No(cause),
            _ => verdict,
        }
    }

    /// Returns how far past its limits of age and lag an answer is.
    fn assess(&self, meta: &EntryMeta, now: Instant) -> Verdict {
        let age = now.saturating_duration_since(meta.sent_at);
        let (ttl, commitment) = (self.ttl(meta.class), commitment(meta.class));
        let lag = commitment.map_or(0, |c| self.frontier.slot(c).saturating_sub(meta.slot));
        let max_lag = commitment.map_or(u64::MAX, |c| self.max_lag_slots(c));
        let is_over = match meta.class {
            Class::NotYet(slot, commitment) => self.frontier.slot(commitment) >= slot,
            Class::Absent(slot, commitment) => self.frontier.slot(commitment) > slot,
            _ => false,
        };
        if is_over {
            return Verdict::No(StaleCause::Lag);
        }
        let (in_time, in_slots) = (age <= ttl, lag <= max_lag);
        if in_time && in_slots {
            return Verdict::Fresh;
        }
        let cause = if in_slots { StaleCause::Ttl } else { StaleCause::Lag };
        let stretch = stretched_at(meta.class).map_or(0.0, |c| *self.settings.stale_while_revalidate.get(c));
        let is_stale = (in_time || age <= ttl.mul_f64(1.0 + stretch))
            && (in_slots || lag <= stretched(max_lag, stretch))
            && stretch > 0.0;
        match (is_stale, self.fault_limit(meta.class)) {
            (true, _) => Verdict::Stale(cause),
            (false, Some(limit)) if age <= limit => Verdict::InFault(cause),
            _ => Verdict::No(cause),
        }
    }

    /// Returns the status with which a stored entry is served. `derived` is true if the answer was made from answers
    /// to other calls.
    pub(super) fn hit_status(
        &self,
        verdict: Verdict,
        meta: &EntryMeta,
        derived: bool,
        now: Instant,
    ) -> CacheStatus {
        let left = || self.ttl_left_s(meta, now);
        match verdict {
            Verdict::Fresh if meta.carried => CacheStatus::Carried,
            Verdict::Fresh => CacheStatus::Hit { ttl_s: left().max(0), derived, stale: false },
            // Another caller's fetch brought it while this caller waited.
            Verdict::AskedSince => CacheStatus::Collapsed,
            // An entry that lags too many slots may have time left. The status reports no time left for it.
            Verdict::Stale(_) => CacheStatus::Hit { ttl_s: left().min(0), derived, stale: true },
            Verdict::InFault(_) | Verdict::No(_) => CacheStatus::StaleIfError { ttl_s: left().min(0) },
        }
    }

    /// Returns the commitment of an answer, and by how many slots the answer is behind the newest known slot.
    /// `None` if the answer's class is limited in time only, as vote accounts are.
    pub(super) fn slots_behind(&self, meta: &EntryMeta) -> Option<(Commitment, u64)> {
        let commitment = commitment(meta.class)?;
        Some((commitment, self.frontier.slot(commitment).saturating_sub(meta.slot)))
    }

    pub(super) fn max_lag_slots(&self, commitment: Commitment) -> u64 {
        *self.settings.max_lag_slots.get(commitment)
    }

    /// Returns the setting `cache.assemble`: the rule for lists that are assembled from stored accounts.
    pub(super) fn assemble(&self) -> Assemble {
        self.settings.assemble
    }

    /// Returns the age up to which an answer of a class may be served while no node answers. `None` if it may not.
    fn fault_limit(&self, class: Class) -> Option<Duration> {
        let rules = &self.settings.stale_if_error;
        match class {
            Class::Account(c) | Class::Fee(c) | Class::Votes(c) | Class::OneSlot(c) => match c {
                Commitment::Processed => None,
                Commitment::Confirmed => Some(rules.confirmed),
                Commitment::Finalized => Some(rules.finalized),
            },
            Class::Samples | Class::ClusterNodes | Class::Scan => Some(rules.finalized),
            Class::BlockFinal | Class::Skipped => Some(rules.block.unwrap_or(Duration::MAX)),
            Class::BlockConfirmed => Some(rules.confirmed),
            Class::NotYet(..) | Class::SkippedUnconfirmed | Class::Absent(..) | Class::Uncached => None,
        }
    }

    /// Returns the longest time for which an answer that shows accounts at `commitment` may be served, whether
    /// nodes answer or not.
    pub(super) fn longest_life(&self, commitment: Commitment) -> Duration {
        let stretch = 1.0 + *self.settings.stale_while_revalidate.get(commitment);
        let ttl = self.ttl(Class::Account(commitment)).mul_f64(stretch);
        match commitment {
            Commitment::Processed => ttl,
            Commitment::Confirmed => ttl.max(self.settings.stale_if_error.confirmed),
            Commitment::Finalized => ttl.max(self.settings.stale_if_error.finalized),
        }
    }

    /// Returns the number of seconds until the answer reaches its time limit, rounded towards zero. Negative
    /// once the limit has passed.
    fn ttl_left_s(&self, meta: &EntryMeta, now: Instant) -> i64 {
        let (age, ttl) = (now.saturating_duration_since(meta.sent_at), self.ttl(meta.class));
        let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
        if age <= ttl { seconds(ttl.saturating_sub(age)) } else { -seconds(age.saturating_sub(ttl)) }
    }

    pub(super) fn ttl(&self, class: Class) -> Duration {
        let ttl = &self.settings.ttl;
        match class {
            Class::Account(c) => *ttl.account.get(c),
            Class::Fee(c) => *ttl.fee.get(c),
            Class::Votes(c) => *ttl.vote_accounts.get(c),
            Class::Samples => ttl.performance_samples,
            Class::ClusterNodes => ttl.cluster_nodes,
            // As long as an account at processed, which is about one slot.
            Class::OneSlot(_) | Class::Absent(..) => ttl.account.processed,
            Class::Scan => ttl.scan,
            Class::Uncached => Duration::ZERO,
            Class::BlockFinal => ttl.block_finalized,
            Class::BlockConfirmed => ttl.block_confirmed,
            Class::NotYet(..) => ttl.no_block_not_yet,
            Class::Skipped => ttl.no_block_skipped,
            Class::SkippedUnconfirmed => ttl.no_block_unconfirmed,
        }
    }
}

/// Returns the commitment at which answers of the class are compared with the newest known slot. `None` for
/// classes that are limited in time only. Vote accounts are such a class, although they change with every slot.
const fn commitment(class: Class) -> Option<Commitment> {
    match class {
        Class::Account(c) | Class::Fee(c) => Some(c),
        _ => None,
    }
}

/// Returns the commitment whose setting of `cache.stale_while_revalidate` applies to the class. `None` if an
/// answer of the class is never served past its limits while a fresh one is fetched.
const fn stretched_at(class: Class) -> Option<Commitment> {
    match class {
        Class::Account(c) | Class::Fee(c) | Class::Votes(c) => Some(c),
        _ => None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a bound of some slots times a small factor"
)]
fn stretched(slots: u64, factor: f64) -> u64 {
    (slots as f64 * (1.0 + factor)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::methods::{PerCommitment, Slot};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn rules(frontier: Frontier) -> FreshnessPolicy {
        let any = ([127, 0, 0, 1], 0);
        FreshnessPolicy::new(Config::dev(any.into(), any.into(), Vec::new()).cache, Arc::new(frontier))
    }

    fn meta(class: Class, slot: Slot, sent_at: Instant) -> EntryMeta {
        EntryMeta { slot, sent_at, class, derived: false, carried: false, node: None }
    }

    #[tokio::test]
    async fn both_bounds_hold_and_stretch_together() {
        use Commitment::{Confirmed, Finalized, Processed};
        use Verdict::{Fresh, InFault, No, Stale};
        let t0 = Instant::now();
        for (name, class, age, lag, expected) in [
            ("young and near", Class::Account(Processed), MS(400), 1, Fresh),
            (
                "processed is never stretched in time",
                Class::Account(Processed),
                MS(401),
                1,
                No(StaleCause::Ttl),
            ),
            ("nor in slots", Class::Account(Processed), MS(10), 2, No(StaleCause::Lag)),
            ("confirmed at its bounds", Class::Account(Confirmed), MS(800), 2, Fresh),
            ("past its ttl by half", Class::Account(Confirmed), MS(1200), 2, Stale(StaleCause::Ttl)),
            ("past its lag by half", Class::Account(Confirmed), MS(800), 3, Stale(StaleCause::Lag)),
            ("past both", Class::Account(Confirmed), MS(1200), 3, Stale(StaleCause::Lag)),
            ("too old", Class::Account(Confirmed), MS(1201), 0, InFault(StaleCause::Ttl)),
            ("too far behind", Class::Account(Confirmed), MS(0), 4, InFault(StaleCause::Lag)),
            ("finalized at its bounds", Class::Account(Finalized), MS(5000), 12, Fresh),
            ("finalized, one slot past", Class::Account(Finalized), MS(5000), 13, Stale(StaleCause::Lag)),
            ("votes have no slot bound", Class::Votes(Finalized), MS(10_000), 500, Fresh),
            ("votes past their ttl", Class::Votes(Finalized), MS(15_000), 500, Stale(StaleCause::Ttl)),
            ("votes at processed", Class::Votes(Processed), MS(1_001), 0, No(StaleCause::Ttl)),
            ("a final block only ages", Class::BlockFinal, Duration::from_hours(24), 1_000_000, Fresh),
            ("samples", Class::Samples, MS(15_001), 0, InFault(StaleCause::Ttl)),
        ] {
            let frontier = Frontier::new(1);
            for c in Commitment::ALL {
                frontier.probed(frontier.era(), 0, c, 1_000_000, t0);
            }
            let meta = meta(class, 1_000_000 - lag, t0);
            assert_eq!(rules(frontier).assess(&meta, t0 + age), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn not_yet_expires_when_the_frontier_arrives() {
        let (rules, t0) = (rules(Frontier::new(1)), Instant::now());
        let meta = meta(Class::NotYet(101, Commitment::Confirmed), 100, t0);
        rules.frontier.probed(rules.frontier.era(), 0, Commitment::Confirmed, 100, t0);
        assert_eq!(rules.assess(&meta, t0 + MS(200)), Verdict::Fresh);
        rules.frontier.probed(rules.frontier.era(), 0, Commitment::Confirmed, 101, t0);
        assert_eq!(rules.assess(&meta, t0 + MS(1)), Verdict::No(StaleCause::Lag));
    }

    #[tokio::test]
    async fn stale_if_error_depends_on_commitment() {
        let (rules, t0) = (rules(Frontier::new(1)), Instant::now());
        for (class, age_s, expected) in [
            (Class::Account(Commitment::Processed), 0, false),
            (Class::Account(Commitment::Confirmed), 10, true),
            (Class::Account(Commitment::Confirmed), 11, false),
            (Class::Account(Commitment::Finalized), 60, true),
            (Class::Account(Commitment::Finalized), 61, false),
            (Class::BlockFinal, 1_000_000, true),
            (Class::NotYet(1, Commitment::Confirmed), 0, false),
        ] {
            let (now, stored) = (t0 + Duration::from_secs(age_s), meta(class, 1, t0));
            let rule = ServeRule::within(Limit::InFault);
            rules.frontier.probed(rules.frontier.era(), 0, Commitment::Confirmed, 9, t0);
            rules.frontier.probed(rules.frontier.era(), 0, Commitment::Processed, 9, t0);
            let verdict = rules.serves(&rule, &stored, now);
            assert_eq!(verdict.is_yes(), expected, "{class:?} after {age_s} s: {verdict:?}");
        }
    }

    #[tokio::test]
    async fn ttl_left_rounds_towards_zero() {
        let (rules, t0) = (rules(Frontier::new(1)), Instant::now());
        let meta = meta(Class::Account(Commitment::Finalized), 1, t0);
        for (age, expected) in [(0, 5), (100, 4), (4100, 0), (5900, 0), (6000, -1), (7999, -2)] {
            assert_eq!(rules.ttl_left_s(&meta, t0 + MS(age)), expected, "{age} ms");
        }
    }

    #[tokio::test]
    async fn longest_life_covers_refetches_and_faults() {
        let any = ([127, 0, 0, 1], 0).into();
        let mut settings = Config::dev(any, any, Vec::new()).cache;
        settings.stale_while_revalidate = PerCommitment::uniform(0.5);
        settings.stale_if_error.confirmed = MS(0);
        let ttl = settings.ttl.account;
        let rules = FreshnessPolicy::new(settings, Arc::new(Frontier::new(1)));
        for (commitment, expected) in [
            (Commitment::Processed, ttl.processed.mul_f64(1.5)),
            (Commitment::Confirmed, ttl.confirmed.mul_f64(1.5)),
            (Commitment::Finalized, rules.settings.stale_if_error.finalized),
        ] {
            assert_eq!(rules.longest_life(commitment), expected, "{commitment}");
        }
    }
}
