//! The rule by which gateways share a rate, without input and output.
//!
//! A leased call is reserved for this gateway in the shared store, so that no request waits for the store. Each call of a
//! client uses up one leased call. If none is left, the client's call uses credit: the calls that were left at the store's
//! last answer, and those that the rate has added since. Without credit the call is refused. Used credit is owed, and
//! reported with the next request to the store, so a gateway pays back what it has overspent.
//!
//! Usually all calls that are estimated to be left count as credit. If the store reports an overdraft (more used
//! calls than the rate allows), other gateways use the same key. For the next five minutes only an eighth of the
//! estimated calls counts as credit. Up to eight gateways together then stay within the rate. Before the store
//! reports the overdraft, calls may exceed the rate. The gateway's own limiter applies as well. While the store is
//! unreachable, that limiter alone decides.
//!
//! | what happens | held | owed | what is left for all |
//! | --- | --- | --- | --- |
//! | a call finds a leased one | −1 | | |
//! | a call finds none, but credit | | +1 | |
//! | the store answers | + what it leased | − what was reported | as the store says |
//! | the store does not answer | 0 | 0 | unknown: the whole burst |
//! | nobody has called for a while | 0, given back | | as the store says |

use std::time::Duration;

use crate::limiter::Rate;
use crate::redis_store::limits::{LeaseRequest, Leased};

/// The divisor of the estimated number of calls left. The division applies after all gateways together have
/// exceeded a shared rate. The quotient is the number of calls that this gateway lets pass without reserving them
/// in the store first.
const CAUTIOUS_PART: i64 = 8;
/// The time for which this gateway is careful after all gateways together have exceeded a shared rate. During this
/// time it lets fewer calls pass that are not reserved (leased) in the store.
const CAUTIOUS: Duration = Duration::from_mins(5);
/// The number of bursts by which all gateways together can have exceeded a rate: what the store keeps is no more.
const MAX_OVERDRAFT: i64 = 16;
/// The minimum time for which calls are leased in advance. At least as many calls are leased as pass in this time
/// at the full rate, but at most the burst.
const AHEAD: Duration = Duration::from_millis(50);

/// The calls that this gateway has leased from one shared rate. Times count from any one point.
#[derive(Debug, Default)]
pub(super) struct LeaseState {
    /// The number of leased calls that are not used yet.
    held: u32,
    /// The number of calls that passed without being leased, and that the store has not counted yet.
    owed: u32,
    /// The number of calls that passed since the last request to the store, or the last [`Self::give_back_idle`].
    used: u32,
    /// The number of unused leased calls that this gateway should have had after the last request to the store.
    wanted: u32,
    /// True while a request to the store is queued or in flight.
    asking: bool,
    /// The number of calls that were left for all gateways at the store's last answer, and the time of that answer.
    /// `None` before the first answer.
    known: Option<(i64, Duration)>,
    /// The time until which fewer calls may pass without being leased, because all gateways together have exceeded
    /// the rate.
    cautious_until: Duration,
    /// The rate of the plan at the last call. `None` before the first call.
    rate: Option<Rate>,
}

impl LeaseState {
    /// Returns the estimated number of calls of the rate that are left for all gateways. Negative if the gateways
    /// have used more calls than the rate allows.
    fn left(&self, rate: Rate, now: Duration) -> i64 {
        let burst = i64::from(rate.burst);
        self.known.map_or(burst, |(left, at)| {
            let come = now.saturating_sub(at).as_nanos() / rate.cell.as_nanos().max(1);
            left.saturating_add(i64::try_from(come).unwrap_or(i64::MAX)).min(burst)
        })
    }

    /// Notes the rate of the plan. If it has changed, the used calls carry over, but at most the new burst, as in the
    /// gateway's own limiter and in the store.
    fn follow(&mut self, rate: Rate, now: Duration) {
        if let Some(old) = self.rate.replace(rate).filter(|old| *old != rate && self.known.is_some()) {
            let used = i64::from(old.burst) - self.left(old, now);
            self.known = Some((i64::from(rate.burst) - used.min(rate.burst.into()), now));
        }
    }

    /// Returns the number of further calls that may pass without being leased from the store.
    fn credit(&self, rate: Rate, now: Duration) -> i64 {
        let left = self.left(rate, now);
        let part = if now < self.cautious_until { (left / CAUTIOUS_PART).max(1) } else { left };
        if left < 1 { 0 } else { part - i64::from(self.owed) }
    }

    /// Takes a leased call. If none is left, lets the call pass on credit: the store counts it later.
    ///
    /// # Errors
    /// No leased call and no credit is left. The error is the time until a call may pass.
    pub(super) fn take(&mut self, rate: Rate, now: Duration) -> Result<(), Duration> {
        self.follow(rate, now);
        if self.held > 0 {
            self.held -= 1;
        } else if self.credit(rate, now) > 0 {
            self.owed += 1;
        } else {
            let missing = u32::try_from(1 - self.left(rate, now)).unwrap_or(1).max(1);
            return Err(rate.cell.saturating_mul(missing));
        }
        self.used += 1;
        Ok(())
    }

    /// Gives back a call that was taken, because the gateway's own limiter has refused it.
    pub(super) fn give_back(&mut self) {
        self.held = self.held.saturating_add(1);
        self.used = self.used.saturating_sub(1);
    }

    pub(super) fn passing(&self, rate: Rate, now: Duration) -> u32 {
        let left = self.left(rate, now).saturating_sub(self.owed.into()).max(0) + i64::from(self.held);
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    pub(super) fn holds_calls(&self) -> bool {
        self.held > 0
    }

    /// Notes that a request to the store is queued, if one is due. Returns true if it was due: it reports calls that passed
    /// without a leased call, or leases more calls because few leased calls are left.
    pub(super) fn begin(&mut self, rate: Rate, now: Duration) -> bool {
        let low = self.held <= self.wanted / 2;
        let is_due = !self.asking && (self.owed > 0 || (low && self.left(rate, now) > 0));
        self.asking |= is_due;
        is_due
    }

    /// Notes that the request found no place in the queue. The next call tries again.
    pub(super) fn not_queued(&mut self) {
        self.asking = false;
    }

    /// Returns the next request to the store. The request reports the calls that passed without a leased call, and
    /// leases calls for the near future. `None` before the first call.
    pub(super) fn ask(&mut self) -> Option<LeaseRequest> {
        let rate = self.rate?;
        let ahead = u32::try_from(AHEAD.as_nanos() / rate.cell.as_nanos().max(1)).unwrap_or(u32::MAX);
        self.wanted = self.used.saturating_mul(2).max(ahead).clamp(1, rate.burst);
        self.used = 0;
        let want = self.wanted.saturating_sub(self.held);
        Some(LeaseRequest { used: self.owed.into(), want, cell: rate.cell, burst: rate.burst })
    }

    /// Applies the store's answer to the request `ask`, as far as it can be true.
    pub(super) fn answered(&mut self, ask: LeaseRequest, leased: Leased, now: Duration) {
        let booked = u32::try_from(ask.used).unwrap_or_default();
        self.owed = self.owed.saturating_sub(booked);
        self.held = self.held.saturating_add(leased.calls.min(ask.want));
        if leased.left < 0 && booked > 0 {
            self.cautious_until = now + CAUTIOUS;
        }
        self.heard(ask, leased, now);
        self.asking = false;
    }

    fn heard(&mut self, ask: LeaseRequest, leased: Leased, now: Duration) {
        let burst = i64::from(ask.burst);
        self.known = Some((leased.left.clamp(-MAX_OVERDRAFT * burst, burst), now));
    }

    /// Forgets the leased calls and the calls that the store should still count, because a request has failed. The
    /// store may or may not have counted these calls.
    pub(super) fn failed(&mut self) {
        (self.owed, self.held, self.used, self.asking) = (0, 0, 0, false);
        self.known = None;
    }

    /// Takes the leased calls, to give them back to the store, if no call has passed since this function or [`Self::ask`]
    /// last ran. Returns the request to the store.
    pub(super) fn give_back_idle(&mut self) -> Option<LeaseRequest> {
        let idle = std::mem::take(&mut self.used) == 0 && !self.asking;
        let rate = self.rate.filter(|_| idle && self.held > 0)?;
        let back = std::mem::take(&mut self.held);
        Some(LeaseRequest { used: -i64::from(back), want: 0, cell: rate.cell, burst: rate.burst })
    }

    /// Applies the store's answer to the request `ask` of [`Self::give_back_idle`].
    pub(super) fn given_back(&mut self, ask: LeaseRequest, leased: Leased, now: Duration) {
        self.heard(ask, leased, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// A rate of 100 calls a second, with at most 20 calls in one burst.
    const RATE: Rate = Rate { cell: Duration::from_millis(10), burst: 20 };

    /// A model of `src/redis_store/lease.lua`. By this script, the shared store gives each gateway a number of calls in
    /// advance, out of one rate limit.
    #[derive(Default)]
    struct StoreModel {
        rest: Duration,
    }

    impl StoreModel {
        fn lease(&mut self, ask: LeaseRequest, now: Duration) -> Leased {
            let cell = i64::try_from(ask.cell.as_nanos()).unwrap();
            let nanos = |d: Duration| i64::try_from(d.as_nanos()).unwrap();
            let (now, burst) = (nanos(now), i64::from(ask.burst));
            let mut rest = (nanos(self.rest).max(now) + ask.used * cell).max(now);
            let left = (now + burst * cell - rest).div_euclid(cell);
            let calls = if left > 0 { i64::from(ask.want).min(((left + 1) / 2).max(1)) } else { 0 };
            rest += calls * cell;
            self.rest = Duration::from_nanos(u64::try_from(rest).unwrap());
            Leased { calls: u32::try_from(calls).unwrap(), left: left - calls }
        }
    }

    fn ask_if_due(state: &mut LeaseState, store: &mut StoreModel, now: Duration) {
        if state.begin(RATE, now) {
            let ask = state.ask().unwrap();
            let leased = store.lease(ask, now);
            state.answered(ask, leased, now);
        }
    }

    #[test]
    fn one_gateway_passes_its_burst_then_the_rate() {
        let (mut state, mut store, now) = (LeaseState::default(), StoreModel::default(), MS(1000));
        let at_once = (0..50).filter(|_| state.take(RATE, now).is_ok()).count();
        assert_eq!(at_once, 20, "before the store was even asked");
        ask_if_due(&mut state, &mut store, now);
        assert!(state.take(RATE, now).is_err());
        let mut passed = 0;
        for ms in 1001..=2000 {
            passed += u32::from(state.take(RATE, MS(ms)).is_ok());
            ask_if_due(&mut state, &mut store, MS(ms));
        }
        assert!((95..=101).contains(&passed), "{passed} in a second");
        assert_eq!(state.cautious_until, Duration::ZERO, "no overdraft");
    }

    #[test]
    fn four_gateways_pass_what_one_would() {
        let (mut states, mut store) =
            ([const { None }; 4].map(|_: Option<()>| LeaseState::default()), StoreModel::default());
        let mut passed = 0;
        // Each gateway gets a call each millisecond for ten seconds, and asks the store every three milliseconds.
        for ms in 0..10_000 {
            for (i, state) in states.iter_mut().enumerate() {
                passed += u32::from(state.take(RATE, MS(1000 + ms)).is_ok());
                if (ms + i as u64).is_multiple_of(3) {
                    ask_if_due(state, &mut store, MS(1000 + ms));
                }
            }
        }
        assert!((970..=1_025).contains(&passed), "{passed} where 1,020 are allowed");
    }

    #[test]
    fn overspent_calls_are_paid_back() {
        let (mut states, mut store, now) =
            ([LeaseState::default(), LeaseState::default()], StoreModel::default(), MS(1000));
        for state in &mut states {
            while state.take(RATE, now).is_ok() {}
        }
        for state in &mut states {
            ask_if_due(state, &mut store, now);
        }
        assert!(states[1].cautious_until > now, "an overdraft reduces the credit");
        let mut passed = 0;
        for ms in 1..=1000 {
            for state in &mut states {
                passed += u32::from(state.take(RATE, now + MS(ms)).is_ok());
                ask_if_due(state, &mut store, now + MS(ms));
            }
        }
        assert!(passed <= 82, "{passed}: of a second's hundred calls twenty were passed before");
    }

    #[test]
    fn refusal_names_the_time_until_a_call() {
        for (left, expected) in [(0, RATE.cell), (-3, 4 * RATE.cell)] {
            let mut state = LeaseState { known: Some((left, MS(1))), ..LeaseState::default() };
            assert_eq!(state.take(RATE, MS(1)), Err(expected), "{left} left");
        }
    }

    #[test]
    fn a_changed_rate_carries_calls_and_no_time() {
        let second = |calls| Duration::from_secs(1) / calls;
        let rate = |rps, burst| Rate { cell: second(rps), burst };
        // The old rate, the calls that are left of it, the new rate, and the calls that are left of that.
        for (old, known, new, left) in [
            (rate(1, 100), 0, rate(100, 200), 100),
            (rate(1, 100), 70, rate(100, 200), 170),
            (rate(100, 200), 0, rate(1, 5), 0),
            (rate(100, 200), 197, rate(1, 5), 2),
            (rate(1, 100), -300, rate(100, 200), 0),
        ] {
            let known = Some((known, MS(1)));
            let mut state = LeaseState { known, rate: Some(old), ..LeaseState::default() };
            state.follow(new, MS(1));
            assert_eq!(state.left(new, MS(1)), left, "{old:?} with {known:?} left, then {new:?}");
        }
    }

    #[test]
    fn failed_requests_clear_the_lease() {
        let mut state = LeaseState::default();
        state.take(RATE, MS(1)).unwrap();
        state.asking = true;
        state.failed();
        assert!(!state.asking && state.owed == 0 && state.known.is_none());
    }

    #[test]
    fn idle_lease_gives_its_calls_back() {
        for (name, held, used, asking, expected) in [
            ("a call has passed", 3, 1, false, 3),
            ("a request is under way", 3, 0, true, 3),
            ("idle", 3, 0, false, 0),
            ("nothing is leased", 0, 0, false, 0),
        ] {
            let mut state = LeaseState { held, used, asking, rate: Some(RATE), ..LeaseState::default() };
            let back = state.give_back_idle().map(|ask| ask.used);
            assert_eq!(back, (held > expected).then_some(-3), "{name}");
            assert_eq!((state.held, state.used), (expected, 0), "{name}");
        }
    }

    #[test]
    fn what_the_store_says_is_bounded_by_what_it_can_be() {
        let mut state = LeaseState::default();
        state.take(RATE, MS(1)).unwrap();
        let ask = state.ask().unwrap();
        state.answered(ask, Leased { calls: u32::MAX, left: i64::MAX }, MS(1));
        assert!(state.held == ask.want && state.passing(RATE, MS(1)) <= 40, "{state:?}");
        state.answered(ask, Leased { calls: 0, left: i64::MIN }, MS(1));
        while state.take(RATE, MS(1)).is_ok() {}
        assert!(state.take(RATE, MS(1)).unwrap_err() < 20 * 20 * RATE.cell);
        assert!(state.take(RATE, MS(4000)).is_ok(), "and it ends");
    }
}
