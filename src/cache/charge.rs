//! The price of a call.
//!
//! The price follows from what became of the call. This table is the only one, and docs/limits-and-units.md shows
//! it to operators:
//!
//! | outcome | price |
//! | --- | --- |
//! | a node worked for the call | a miss |
//! | the caller gets an answer, and no node worked for it | a hit |
//! | anything else: a refusal by slotfront, a fault of the nodes | nothing |
//!
//! Both follow the length of the answer, and a miss follows that of what a node sent if that is more, also if it was
//! refused. The length is not known ahead, so what it costs is not reserved: a quota is exceeded by what the calls under way
//! cost beyond their first MiB.
//!
//! A node worked for a call if a fetch that the call started or waited for brought a node's answer, even one that is
//! then refused to the caller or is older than a stored one. It also worked if the fetch ended at a limit of slotfront:
//! at the answer's length, the memory for answers, or the time for it ([`Debt::of`]). Otherwise callers could make
//! nodes work for nothing: with answers that are too long, with timeouts, or with batches whose answers are refused.
//!
//! What the call owes only rises, so each part of it is said once, where it is known: by the result of each fetch
//! ([`Charge::share`]), even if the caller has gone, and by the answer ([`Charge::answered`]). The price is added
//! to the usage of the caller's key when the call and its fetches have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fetched::{Fetched, FlightEnd};
use super::flight::FlightHandle;
use super::status::CacheStatus;
use crate::error::{Error, FailedAttempt};
use crate::methods::AnyMethod;

/// The party that pays for calls, usually the owner of an API key.
pub trait Payer: Send + Sync {
    /// Adds `units` to the key's usage, and gives back the units that were reserved for a call at `price`.
    fn settle(&self, price: Price, units: f64);
}

/// The number of bytes of an answer that the price of a call covers.
const PAID_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// What the call asks for.
    pub method: AnyMethod,
    /// The price of an answer from a node, up to `PAID_BYTES`.
    pub miss: f64,
    /// What each further MiB adds, if it is only begun.
    pub mib: f64,
    /// The share of the price that an answer from the cache costs.
    pub hit_factor: f64,
}

impl Price {
    fn units(self, debt: Debt, bytes: usize) -> f64 {
        let further = bytes.saturating_sub(1) / PAID_BYTES;
        #[expect(clippy::cast_precision_loss, reason = "no answer has 2^52 MiB")]
        let full = self.miss + self.mib * further as f64;
        match debt {
            Debt::Nothing => 0.0,
            Debt::Hit => full * self.hit_factor,
            Debt::Miss => full,
        }
    }
}

/// The debt of a call. Of several debts, the highest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Debt {
    Nothing,
    Hit,
    Miss,
}

impl Debt {
    /// Returns what the callers of a call to nodes owe for its `result`.
    pub(crate) fn of<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Miss,
            Err(Error::NoUpstream(attempts)) if attempts.iter().any(FailedAttempt::is_at_limit) => Self::Miss,
            Err(_) => Self::Nothing,
        }
    }
}

/// The bill of one call. Dropping it settles the call with the payer.
struct Bill {
    payer: Arc<dyn Payer>,
    price: Price,
    /// The highest debt so far in units, as the bits of an `f64`. Those of numbers that are not negative have their order.
    owed: AtomicU64,
}

impl Bill {
    fn owe(&self, debt: Debt, bytes: usize) {
        self.owed.fetch_max(self.price.units(debt, bytes).to_bits(), Ordering::Relaxed);
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        self.payer.settle(self.price, f64::from_bits(*self.owed.get_mut()));
    }
}

/// A call's access to its bill. The bill is settled once the call has dropped its charge, and the fetches that
/// share it have ended.
#[derive(Clone)]
pub struct Charge(Option<Arc<Bill>>);

impl Charge {
    pub fn new(payer: Arc<dyn Payer>, price: Price) -> Self {
        Self(Some(Arc::new(Bill { payer, price, owed: AtomicU64::default() })))
    }

    pub fn free() -> Self {
        Self(None)
    }

    /// Makes the call owe `debt` for `bytes` bytes, unless it owes more.
    pub(crate) fn owe(&self, debt: Debt, bytes: usize) {
        if let Some(bill) = &self.0 {
            bill.owe(debt, bytes);
        }
    }

    /// Makes the call owe the price of the answer that its caller gets, of `bytes` bytes.
    pub fn answered(&self, status: CacheStatus, bytes: usize) {
        self.owe(if status.is_hit() { Debt::Hit } else { Debt::Miss }, bytes);
    }

    /// Makes the call owe the price of the result of `flight`, also if the caller does not wait for it.
    pub(super) fn share(&self, flight: &FlightHandle<FlightEnd>) {
        let Some(bill) = self.0.clone() else { return };
        flight.on_result(move |FlightEnd { result, read }| {
            // Without a node's work, only who gets an answer pays for it.
            if !matches!(result, Ok(Fetched::AlreadyFresh(..))) {
                bill.owe(Debt::of(result), *read);
            }
        });
    }
}

#[cfg(test)]
mod tests {

    use bytes::Bytes;
    use parking_lot::Mutex;
    use tokio::time::Instant;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::cache::entry::{Class, Entry, EntryBody, EntryMeta, Payload, TextParts};
    use crate::cache::flight::Flights;
    use crate::cache::status::ForwardReason;
    use crate::telemetry::AttemptResult;

    const PRICE: Price = Price { method: AnyMethod::Send, miss: 2.0, mib: 1.0, hit_factor: 0.25 };
    const HIT_PRICE: f64 = 0.5;
    const HIT: CacheStatus = CacheStatus::Hit { ttl_s: 1, derived: false, stale: false };
    const MISS: CacheStatus = CacheStatus::forwarded(ForwardReason::Miss, true);

    /// A payer that records the units of each settled call.
    #[derive(Default)]
    struct TestPayer(Mutex<Vec<f64>>);

    impl Payer for TestPayer {
        fn settle(&self, price: Price, units: f64) {
            assert_eq!(price, PRICE);
            self.0.lock().push(units);
        }
    }

    impl TestPayer {
        #[track_caller]
        fn has_settled(&self, expected: &[f64], case: &str) {
            assert_eq!(*self.0.lock(), expected, "{case}");
        }
    }

    /// Returns a charge, and the payer to whose usage the price is added.
    fn charge() -> (Charge, Arc<TestPayer>) {
        let payer = Arc::<TestPayer>::default();
        (Charge::new(Arc::clone(&payer) as Arc<dyn Payer>, PRICE), payer)
    }

    fn entry() -> Arc<Entry> {
        let meta = EntryMeta {
            slot: 1,
            sent_at: Instant::now(),
            class: Class::Samples,
            derived: false,
            carried: false,
            node: None,
        };
        let text = TextParts::One(Bytes::from_static(b"[]"));
        let body = EntryBody::Verbatim(Payload::Result(text));
        Arc::new(Entry::new(body, meta, None))
    }

    fn failed(reasons: &[AttemptResult]) -> Result<Fetched, Error> {
        let attempt = |reason: &AttemptResult| FailedAttempt::new("a".to_owned(), *reason);
        Err(Error::NoUpstream(reasons.iter().map(attempt).collect()))
    }

    /// Returns the results that a fetch may have, with the units that each costs a caller who gets no answer.
    fn results() -> Vec<(Result<Fetched, Error>, f64)> {
        use AttemptResult as Is;
        let mut results = vec![
            (Ok(Fetched::New(entry(), true)), PRICE.miss),
            (Ok(Fetched::KeptNewer(entry(), None)), PRICE.miss),
            (Ok(Fetched::AlreadyFresh(entry(), None)), 0.0),
            (Err(Error::Overloaded), 0.0),
            (failed(&[]), 0.0),
            (failed(&[Is::Connect, Is::TooLarge]), PRICE.miss),
        ];
        results.extend(
            [Is::TooLarge, Is::BuffersFull, Is::Timeout, Is::Cancelled].map(|is| (failed(&[is]), PRICE.miss)),
        );
        let faults = [
            Is::Connect,
            Is::Reset,
            Is::Status429,
            Is::Status3xx,
            Is::Status4xx,
            Is::Status5xx,
            Is::BadJson,
            Is::WrongId,
        ];
        results.extend(faults.map(|is| (failed(&[is]), 0.0)));
        results.extend(
            [Is::UnknownCode, Is::Unhealthy, Is::Behind, Is::Incapable, Is::Foreign]
                .map(|is| (failed(&[is]), 0.0)),
        );
        results
    }

    #[tokio::test]
    async fn fetches_cost_what_their_results_cost() {
        for (result, cost) in results() {
            for leaves_early in [false, true] {
                let tasks = TaskTracker::new();
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let flight =
                    Flights::<u8, _>::new(tasks.clone()).start_unshared(async { receiver.await.unwrap() });
                let (charge, payer) = charge();
                charge.share(&flight);
                let waiting = (!leaves_early).then_some(charge);
                payer.has_settled(&[], "the price is not known yet");
                sender.send(FlightEnd { result: result.clone(), read: 5 }).unwrap();
                tasks.close();
                tasks.wait().await;
                drop(waiting);
                payer.has_settled(&[cost], &format!("left early: {leaves_early}: {result:?}"));
            }
        }
    }

    #[tokio::test]
    async fn fetch_that_dies_costs_nothing() {
        let flight = Flights::<u8, FlightEnd>::new(TaskTracker::new())
            .start_unshared(async { panic!("the fetch died") });
        let (charge, payer) = charge();
        charge.share(&flight);
        drop(charge);
        assert!(flight.result().await.is_none());
        payer.has_settled(&[0.0], "what was reserved is given back");
    }

    #[test]
    fn highest_debt_of_a_call_counts_once() {
        type Step = fn(&Charge);
        let cases: [(&[Step], f64); 11] = [
            (&[|charge| charge.answered(HIT, 1 << 20)], 0.5),
            (&[|charge| charge.answered(HIT, (1 << 20) + 1)], 0.75),
            (&[|charge| charge.answered(MISS, 80 << 20)], 81.0),
            (&[|charge| charge.owe(Debt::Miss, 3 << 20), |charge| charge.answered(HIT, 9)], 4.0),
            (&[|charge| charge.owe(Debt::Miss, 9), |charge| charge.answered(HIT, 30 << 20)], 7.75),
            (&[], 0.0),
            (&[|charge| charge.answered(HIT, 9)], HIT_PRICE),
            (&[|charge| charge.answered(MISS, 9)], PRICE.miss),
            (&[|charge| charge.owe(Debt::Miss, 9), |charge| charge.answered(HIT, 9)], PRICE.miss),
            (&[|charge| charge.answered(HIT, 9), |charge| charge.owe(Debt::Nothing, 9 << 20)], HIT_PRICE),
            (&[|charge| charge.answered(MISS, 9), |charge| charge.owe(Debt::Miss, 9)], PRICE.miss),
        ];
        for (number, (steps, cost)) in cases.into_iter().enumerate() {
            let (charge, payer) = charge();
            for step in steps {
                step(&charge);
            }
            payer.has_settled(&[], "a call is settled when it ends");
            drop(charge);
            payer.has_settled(&[cost], &format!("case {number}"));
        }
    }
}
