//! Fair shares of a limited supply, such as permits: no single holder can take everything. A holder is an API key, a
//! client address or a caller.
//!
//! The rule is that of the dynamic threshold (Choudhury and Hahne, 1998): each holder may have up to [`WEIGHT`] times
//! as much as is free. So a single holder gets slightly less than the whole, and the more of them there are, the less
//! is free for each, without a list of who is active. A holder above its share gets nothing until enough is given back.

pub(crate) mod queue;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

/// The maximum number of units that one key or caller may have, as a multiple of the free units. With 8, a
/// single caller gets 8/9 of all, and two that want everything get 8/17 each. The other 1/9 or 1/17 stays
/// free for the next caller.
const WEIGHT: usize = 8;

/// Returns true if a key or caller may have `all` units in total. `free` is the number of free units just
/// before the last of these units is taken.
pub(crate) fn may_hold(all: usize, free: usize) -> bool {
    all <= free.saturating_mul(WEIGHT)
}

/// The share of one key or client address in one supply. Clones stand for the same share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Share(Arc<AtomicUsize>);

impl Share {
    /// Takes `units` of the supply, of which `free` are free. `None` if that would exceed the fair share.
    pub(crate) fn hold(&self, units: usize, free: usize) -> Option<Held> {
        let before = self.0.fetch_add(units, Ordering::Relaxed);
        let held = Held { of: Some(self.clone()), units };
        may_hold(before.saturating_add(units), free).then_some(held)
    }

    pub(crate) fn hold_nothing(&self) -> Held {
        Held { of: Some(self.clone()), units: 0 }
    }

    /// Takes one unit of a supply of which the holder may have `limit` in all. `None` if the holder has as many.
    pub(crate) fn hold_one_of(&self, limit: usize) -> Option<Held> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let held = Held { of: Some(self.clone()), units: 1 };
        (before < limit).then_some(held)
    }
}

/// A supply of bytes that all holders together must not exceed, and how many of them are in use.
#[derive(Debug)]
pub struct ByteBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl ByteBudget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Replaces the limit. Bytes that are already taken stay taken.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns the number of bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn free(&self) -> usize {
        self.limit().saturating_sub(self.used())
    }

    /// Takes `bytes` bytes. Returns false, and takes nothing, if more than `limit` bytes would then be in use.
    pub(crate) fn take(&self, bytes: usize, limit: usize) -> bool {
        let within = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes that are taken of a budget. Dropping the value gives them back.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl Taken {
    /// Takes `bytes` bytes of `budget`. `None` if more than `limit` bytes would then be in use.
    pub(crate) fn of(budget: &Arc<ByteBudget>, bytes: usize, limit: usize) -> Option<Self> {
        budget.take(bytes, limit).then(|| Self { budget: Arc::clone(budget), bytes })
    }

    pub(crate) fn nothing_of(budget: &Arc<ByteBudget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Returns how many bytes of the budget are free.
    pub(crate) fn free(&self) -> usize {
        self.budget.free()
    }

    /// Takes `bytes` more bytes. Returns false, and takes nothing, if that would exceed the budget.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let fits = self.budget.take(bytes, self.budget.limit());
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The bytes of a text that several holders keep, although it is in memory once. They are taken once, by the first of the
/// holders, and given back when the last one leaves.
#[derive(Debug, Default)]
pub struct TakenOnce(Mutex<Weak<Taken>>);

impl TakenOnce {
    /// Returns a holder's part in the bytes, which are `bytes` of `budget`. `None` if nobody else holds them, and more than
    /// `limit` bytes would then be in use.
    pub(crate) fn take(&self, budget: &Arc<ByteBudget>, bytes: usize, limit: usize) -> Option<Arc<Taken>> {
        let mut of_all = self.0.lock();
        if let Some(taken) = of_all.upgrade() {
            return Some(taken);
        }
        let taken = Arc::new(Taken::of(budget, bytes, limit)?);
        *of_all = Arc::downgrade(&taken);
        Some(taken)
    }
}

/// A clone counts for itself.
impl Clone for TakenOnce {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Units that count towards a share. Dropping the value gives them back.
#[derive(Debug)]
pub struct Held {
    of: Option<Share>,
    units: usize,
}

impl Held {
    /// Returns a value that counts nothing, for a caller without a plan.
    pub(crate) fn uncounted() -> Self {
        Self { of: None, units: 0 }
    }

    /// Takes `units` more units of the supply, of which `free` are free. Returns false, and takes nothing, if the holder
    /// would then exceed its fair share.
    pub(crate) fn grow(&mut self, units: usize, free: usize) -> bool {
        let Some(share) = &self.of else { return true };
        let Some(mut more) = share.hold(units, free) else { return false };
        self.units += std::mem::take(&mut more.units);
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(Share(held)) = &self.of {
            held.fetch_sub(self.units, Ordering::Relaxed);
        }
    }
}

/// A caller, identified by a number that no other caller has at the same time. The default stands for no
/// particular caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CallerId(usize);

impl CallerId {
    pub fn fresh() -> Self {
        static CALLERS: AtomicUsize = AtomicUsize::new(1);
        Self(CALLERS.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the caller with this number. 0 stands for no particular caller.
    #[cfg(test)]
    pub(crate) fn numbered(number: usize) -> Self {
        Self(number)
    }
}

/// Who watches the chain and asks how high it is: a caller, and its address if all callers without a plan are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Watcher {
    pub(crate) caller: CallerId,
    pub(crate) address: Option<IpAddr>,
}

/// The units of one supply that each caller holds. Callers that hold nothing are not listed, and neither is the
/// default caller, which is not limited to a share.
#[derive(Debug, Default)]
pub(crate) struct CallerHoldings(Mutex<HashMap<CallerId, usize>>);

impl CallerHoldings {
    pub(crate) fn add(&self, caller: CallerId, units: usize) {
        if caller != CallerId::default() {
            *self.lock().entry(caller).or_default() += units;
        }
    }

    pub(crate) fn remove(&self, caller: CallerId, units: usize) {
        let mut holdings = self.lock();
        if let Some(held) = holdings.get_mut(&caller) {
            *held -= units;
            if *held == 0 {
                holdings.remove(&caller);
            }
        }
    }

    /// Returns true if `caller` may take `units` more units. All callers together hold `all` units, and `free` are
    /// free.
    pub(crate) fn may_add(&self, caller: CallerId, units: usize, all: usize, free: usize) -> bool {
        let Some(left) = free.checked_sub(units) else { return false };
        let fits = |held: usize| may_hold(held.saturating_add(units), left.saturating_add(1));
        // The total is compared first, without the lock. If all units in use together fit into one share, the caller's
        // own units do, too.
        let own = || self.lock().get(&caller).copied().unwrap_or_default();
        caller == CallerId::default() || fits(all) || fits(own())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CallerId, usize>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `caller` take pieces of `units` units until it gets no more. Returns what all callers then hold.
    fn fill(
        holdings: &CallerHoldings,
        caller: CallerId,
        units: usize,
        mut all: usize,
        limit: usize,
    ) -> usize {
        while holdings.may_add(caller, units, all, limit - all) {
            holdings.add(caller, units);
            all += units;
        }
        all
    }

    #[test]
    fn caller_takes_its_share() {
        let (one, other) = (CallerId::numbered(1), CallerId::numbered(2));
        for (units, limit, taken) in [(1, 9, 8), (1, 1, 1), (1, 900, 800), (10, 900, 800), (64, 900, 768)] {
            let holdings = CallerHoldings::default();
            let all = fill(&holdings, one, units, 0, limit);
            assert_eq!(all, taken, "of {limit}, {units} at once");
            if all < limit {
                assert!(holdings.may_add(other, 1, all, limit - all), "{limit}");
            }
            assert_eq!(fill(&holdings, CallerId::default(), 1, all, limit), limit, "{limit}");
        }
    }

    #[test]
    fn callers_without_units_are_not_listed() {
        let (holdings, one) = (CallerHoldings::default(), CallerId::numbered(1));
        for caller in [one, CallerId::default()] {
            holdings.add(caller, 8);
            holdings.add(caller, 2);
            holdings.remove(caller, 8);
        }
        assert_eq!(holdings.lock().iter().collect::<Vec<_>>(), [(&one, &2)]);
        holdings.remove(one, 2);
        assert!(holdings.lock().is_empty() && !holdings.may_add(one, 1, 9, 0));
    }

    /// Lets `keys` keys take permits in turn until no key gets another. `places` is the number of all permits.
    /// Returns the number of permits of each key, and the number of free permits.
    fn filled(keys: usize, places: usize) -> (Vec<usize>, usize) {
        let shares: Vec<_> = (0..keys).map(|_| Share::default()).collect();
        let mut held: Vec<Vec<Held>> = (0..keys).map(|_| Vec::new()).collect();
        let (mut taken, mut moved) = (0, true);
        while moved {
            moved = false;
            for (key, share) in shares.iter().enumerate() {
                if let Some(place) = share.hold(1, places - taken) {
                    held[key].push(place);
                    (taken, moved) = (taken + 1, true);
                }
            }
        }
        (held.iter().map(Vec::len).collect(), places - taken)
    }

    #[test]
    fn greedy_keys_get_equal_shares_and_leave_some() {
        for (keys, places, each, left) in [
            (1, 10_000, 8_889, 1_111),
            (2, 10_000, 4_706, 588),
            (8, 10_000, 1_231, 152),
            (1, 9, 9, 0),
            (1, 1, 1, 0),
        ] {
            let (held, free) = filled(keys, places);
            assert!(held.iter().all(|n| n.abs_diff(each) <= 1), "{keys} keys, {places} places: {held:?}");
            assert!(free.abs_diff(left) <= keys, "{keys} keys, {places} places: {free} free");
        }
    }

    #[test]
    fn one_key_takes_eight_times_the_free_bytes() {
        let (hog, other) = (Share::default(), Share::default());
        let held = hog.hold(800, 900);
        assert!(held.is_some() && hog.hold(1, 100).is_none());
        assert!(other.hold(100, 100).is_some());
        drop(held);
        assert!(hog.hold(100, 100).is_some());
    }

    #[test]
    fn holders_above_their_share_get_nothing_more() {
        let (hog, other) = (Share::default(), Share::default());
        let mut held: Vec<_> = (0..18).map(|taken| hog.hold(1, 20 - taken)).collect();
        assert!(held.iter().all(Option::is_some) && hog.hold(1, 2).is_none());
        let mut theirs = vec![other.hold(1, 2), other.hold(1, 1)];
        assert!(theirs.iter().all(Option::is_some));
        for free in 1..=5 {
            held.pop();
            assert!(hog.hold(1, 1).is_none(), "place {free} that came free is not the hog's");
            theirs.push(other.hold(1, 1));
            assert!(theirs.iter().all(Option::is_some));
        }
    }
}
