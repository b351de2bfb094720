//! A rate over all gateways: calls are leased from the shared store ahead of being asked for, so that none waits.
//!
//! A decision has three sources, in this order: calls that are leased, which are nobody else's; credit on what was left
//! when the store was last asked, and has come since; and, where neither gives any, a refusal. Credit is booked with
//! the next asking, so nothing that passes is lost, and what passed too much is missing afterwards.
//!
//! How much credit: all that is thought to be left, as long as that proves right. Once it does not (others were using
//! the same key at the same time, and more passed together than there was), only an eighth of it for five minutes: then
//! up to eight gateways cannot pass more than there is but for what comes between two askings. While the store is lost
//! every gateway goes by its own limiter alone, which is asked in any case.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::clock::Clock;
use super::limit::Rate;
use crate::shared::Store;
use crate::shared::limits::{Ask, Leased};

/// The most leases that wait to be renewed. A lease that finds no room asks with its next call.
const QUEUE: usize = 16_384;

/// So much of what is thought to be left may a gateway use that was wrong before.
const CAUTIOUS_PART: i64 = 8;
/// For so long.
const CAUTIOUS: Duration = Duration::from_mins(5);
/// Calls are leased for this time ahead, at least.
const AHEAD: Duration = Duration::from_millis(50);

/// The way of leases to the shared store.
pub(crate) struct LeaseClient {
    /// Set once, when the gateway is started.
    store: OnceLock<Arc<Store>>,
    queue: mpsc::Sender<Arc<Lease>>,
    clock: Arc<Clock>,
}

/// The leases that wait to be renewed.
pub(crate) type LeaseQueue = mpsc::Receiver<Arc<Lease>>;

impl LeaseClient {
    /// A client without a store, and the queue that somebody is to empty.
    pub(crate) fn new(clock: &Arc<Clock>) -> (Arc<Self>, LeaseQueue) {
        let (queue, queued) = mpsc::channel(QUEUE);
        (Arc::new(Self { store: OnceLock::new(), queue, clock: Arc::clone(clock) }), queued)
    }

    /// Gives it the store; the first one holds.
    pub(crate) fn connect(&self, store: Arc<Store>) {
        let _ = self.store.set(store);
    }

    /// The store, while it answers and takes what is booked.
    fn store(&self) -> Option<&Arc<Store>> {
        self.store.get().filter(|store| store.takes_writes())
    }

    /// Asks the store about the rate `of`.
    async fn lease(&self, of: &str, ask: Ask) -> Option<Leased> {
        self.store.get()?.lease(of, ask).await.ok()
    }

    /// Steady time.
    fn now(&self) -> Duration {
        self.clock.steady(Instant::now())
    }
}

/// One rate as this gateway has it.
pub(crate) struct Lease {
    /// The name of its holder in the store.
    of: String,
    client: Arc<LeaseClient>,
    state: Mutex<State>,
}

/// All of it, decided under one lock; times are steady.
#[derive(Debug, Default)]
struct State {
    /// Calls leased and not used.
    held: u32,
    /// Calls let through on credit, and not booked yet.
    owed: u32,
    /// Calls let through since the store was last asked.
    used: u32,
    /// Calls wanted the last time.
    wanted: u32,
    /// Whether it is being asked.
    asking: bool,
    /// What was left, and when that was so; nothing before the first answer.
    known: Option<(i64, Duration)>,
    cautious_until: Duration,
    /// For what plan it is asked.
    rate: Option<Rate>,
}

impl State {
    /// Calls that are thought to be left for all.
    fn left(&self, rate: Rate, now: Duration) -> i64 {
        let burst = i64::from(rate.burst);
        self.known.map_or(burst, |(left, at)| {
            let come = now.saturating_sub(at).as_nanos() / rate.cell.as_nanos().max(1);
            left.saturating_add(i64::try_from(come).unwrap_or(i64::MAX)).min(burst)
        })
    }

    /// Calls that may pass beyond those that are leased.
    fn credit(&self, rate: Rate, now: Duration) -> i64 {
        let left = self.left(rate, now);
        let part = if now < self.cautious_until { (left / CAUTIOUS_PART).max(1) } else { left };
        if left < 1 { 0 } else { part - i64::from(self.owed) }
    }

    /// Lets a call pass, or says how long until one may.
    fn take(&mut self, rate: Rate, now: Duration) -> Result<(), Duration> {
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

    /// Whether the store is to be asked: before what is leased is used up, and for what is owed.
    fn is_due(&self, rate: Rate, now: Duration) -> bool {
        let low = self.held <= self.wanted / 2;
        !self.asking && (self.owed > 0 || (low && self.left(rate, now) > 0))
    }

    /// What it is asked for.
    fn ask(&mut self, rate: Rate) -> Ask {
        let ahead = u32::try_from(AHEAD.as_nanos() / rate.cell.as_nanos().max(1)).unwrap_or(u32::MAX);
        self.wanted = self.used.saturating_mul(2).max(ahead).clamp(1, rate.burst);
        self.used = 0;
        let want = self.wanted.saturating_sub(self.held);
        Ask { used: self.owed.into(), want, cell: rate.cell, burst: rate.burst }
    }

    /// It has answered: `booked` calls are no longer owed.
    fn answered(&mut self, booked: u32, leased: Leased, now: Duration) {
        self.owed = self.owed.saturating_sub(booked);
        self.held = self.held.saturating_add(leased.calls);
        if leased.left < 0 && booked > 0 {
            self.cautious_until = now + CAUTIOUS;
        }
        self.known = Some((leased.left, now));
        self.asking = false;
    }

    /// It has not: whether anything was booked is not known. What was leased may be lost with it.
    fn failed(&mut self) {
        (self.owed, self.held, self.used, self.asking) = (0, 0, 0, false);
        self.known = None;
    }
}

impl Lease {
    /// A lease with nothing leased, for the holder `of`.
    pub(crate) fn new(of: String, client: &Arc<LeaseClient>) -> Arc<Self> {
        Arc::new(Self { of, client: Arc::clone(client), state: Mutex::default() })
    }

    /// Lets a call pass, or says how long until one may; says whether it counts here, which it does not while the store
    /// is lost: then all pass.
    pub(crate) fn take(self: &Arc<Self>, rate: Rate, now: Duration) -> Result<bool, Duration> {
        if self.client.store().is_none() {
            return Ok(false);
        }
        let mut state = self.lock();
        state.rate = Some(rate);
        let taken = state.take(rate, now);
        if state.is_due(rate, now) {
            state.asking = true;
            drop(state);
            if self.client.queue.try_send(Arc::clone(self)).is_err() {
                self.lock().asking = false;
            }
        }
        taken.map(|()| true)
    }

    /// A call that counts here did not pass after all.
    pub(crate) fn give_back(&self) {
        let mut state = self.lock();
        state.held = state.held.saturating_add(1);
        state.used = state.used.saturating_sub(1);
    }

    /// Calls that would pass now, where the store says so.
    pub(crate) fn left(&self, rate: Rate, now: Duration) -> Option<u32> {
        self.client.store()?;
        let state = self.lock();
        let left = state.left(rate, now).saturating_sub(state.owed.into()).max(0) + i64::from(state.held);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Asks the store, and takes in what it says. Says whether anything is leased now.
    pub(crate) async fn ask(&self) -> bool {
        let (ask, booked) = {
            let mut state = self.lock();
            let Some(rate) = state.rate else { return false };
            (state.ask(rate), state.owed)
        };
        let answer = self.client.lease(&self.of, ask).await;
        let mut state = self.lock();
        match answer {
            Some(leased) => state.answered(booked, leased, self.client.now()),
            None => state.failed(),
        }
        state.held > 0
    }

    /// Gives back what was leased and is not used. Says whether anything still is leased.
    pub(crate) async fn settle(&self) -> bool {
        let (back, rate) = {
            let mut state = self.lock();
            let idle = state.used == 0 && !state.asking;
            state.used = 0;
            let (true, Some(rate)) = (idle && state.held > 0, state.rate) else { return state.held > 0 };
            (std::mem::take(&mut state.held), rate)
        };
        let ask = Ask { used: -i64::from(back), want: 0, cell: rate.cell, burst: rate.burst };
        if let Some(leased) = self.client.lease(&self.of, ask).await {
            self.lock().known = Some((leased.left, self.client.now()));
        }
        self.lock().held > 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("of", &self.of).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// 100 a second, 20 at once.
    const RATE: Rate = Rate { cell: Duration::from_millis(10), burst: 20 };

    /// The store, as its script counts; see `src/shared/lease.lua`.
    #[derive(Default)]
    struct Store {
        rest: Duration,
    }

    impl Store {
        fn lease(&mut self, ask: Ask, now: Duration) -> Leased {
            let cell = i64::try_from(ask.cell.as_nanos()).unwrap();
            let nanos = |d: Duration| i64::try_from(d.as_nanos()).unwrap();
            let (now, burst) = (nanos(now), i64::from(ask.burst));
            let mut rest = (nanos(self.rest).max(now) + ask.used * cell).max(now);
            let left = (now + burst * cell - rest).div_euclid(cell);
            let calls = if left > 0 { i64::from(ask.want).min(((left + 1) / 2).max(1)) } else { 0 };
            rest += calls * cell;
            self.rest = Duration::from_nanos(u64::try_from(rest).unwrap());
            let wait = if left < 1 { rest + cell - burst * cell - now } else { 0 };
            Leased {
                calls: u32::try_from(calls).unwrap(),
                left: left - calls,
                wait: Duration::from_nanos(u64::try_from(wait).unwrap()),
            }
        }
    }

    fn asks(state: &mut State, store: &mut Store, now: Duration) {
        if state.is_due(RATE, now) {
            let booked = state.owed;
            let ask = state.ask(RATE);
            let leased = store.lease(ask, now);
            state.answered(booked, leased, now);
        }
    }

    #[test]
    fn one_gateway_alone_has_its_whole_burst_at_once_and_then_the_rate() {
        let (mut state, mut store, now) = (State::default(), Store::default(), MS(1000));
        let at_once = (0..50).filter(|_| state.take(RATE, now).is_ok()).count();
        assert_eq!(at_once, 20, "before the store was even asked");
        asks(&mut state, &mut store, now);
        assert!(state.take(RATE, now).is_err());
        let mut passed = 0;
        for ms in 1001..=2000 {
            passed += u32::from(state.take(RATE, MS(ms)).is_ok());
            asks(&mut state, &mut store, MS(ms));
        }
        assert!((95..=101).contains(&passed), "{passed} in a second");
        assert_eq!(state.cautious_until, Duration::ZERO, "it was never wrong");
    }

    #[test]
    fn four_gateways_under_a_flood_pass_what_one_would() {
        let (mut states, mut store) =
            ([const { None }; 4].map(|_: Option<()>| State::default()), Store::default());
        let mut passed = 0;
        // A call a millisecond at each, for ten seconds; the store is asked once in three milliseconds.
        for ms in 0..10_000 {
            for (i, state) in states.iter_mut().enumerate() {
                passed += u32::from(state.take(RATE, MS(1000 + ms)).is_ok());
                if (ms + i as u64).is_multiple_of(3) {
                    asks(state, &mut store, MS(1000 + ms));
                }
            }
        }
        assert!((970..=1_025).contains(&passed), "{passed} where 1,020 are allowed");
    }

    #[test]
    fn what_was_passed_too_much_is_missing_afterwards() {
        let (mut states, mut store, now) = ([State::default(), State::default()], Store::default(), MS(1000));
        for state in &mut states {
            while state.take(RATE, now).is_ok() {}
        }
        for state in &mut states {
            asks(state, &mut store, now);
        }
        assert!(states[1].cautious_until > now, "it has learnt that it is not alone");
        let mut passed = 0;
        for ms in 1..=1000 {
            for state in &mut states {
                passed += u32::from(state.take(RATE, now + MS(ms)).is_ok());
                asks(state, &mut store, now + MS(ms));
            }
        }
        assert!(passed <= 82, "{passed}: of a second's hundred calls twenty were passed before");
    }

    #[test]
    fn a_store_that_fails_leaves_nothing_behind() {
        let mut state = State::default();
        state.take(RATE, MS(1)).unwrap();
        state.asking = true;
        state.failed();
        assert!(!state.asking && state.owed == 0 && state.known.is_none());
    }
}
