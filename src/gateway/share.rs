//! The fair share of each key in the permits for requests in flight, and in the bytes for answers that are not sent
//! yet. By the rule of [`crate::fair`], no key can take everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fair::{may_hold, may_hold_more};

/// The share of one holder (a key or a client address) in a limited supply. Clones stand for the same share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Share(Arc<Holdings>);

/// The permits and bytes that one key or client address has taken.
#[derive(Debug)]
struct Holdings {
    /// The number that identifies the key or client address in this process.
    holder: usize,
    permits: AtomicUsize,
    bytes: AtomicUsize,
}

impl Default for Holdings {
    /// Creates the holdings of a new key or client address, which has taken nothing.
    fn default() -> Self {
        static HOLDERS: AtomicUsize = AtomicUsize::new(1);
        let holder = HOLDERS.fetch_add(1, Ordering::Relaxed);
        Self { holder, permits: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }
}

impl Share {
    /// Returns the number that identifies the key or client address, unique in this process and never 0.
    pub(crate) fn holder(&self) -> usize {
        self.0.holder
    }

    /// Takes one of the `free` permits that limit requests or connections. `None` if that would exceed the fair
    /// share of the key or client address.
    pub(crate) fn hold(&self, free: usize) -> Option<SharePermit> {
        let before = self.0.permits.fetch_add(1, Ordering::Relaxed);
        let permit = SharePermit(Some(Arc::clone(&self.0)));
        may_hold_more(before, free).then_some(permit)
    }

    /// Takes `bytes` of the `free` bytes for answers that are not sent yet. `None` if that would exceed the fair
    /// share of the key or client address.
    pub(crate) fn hold_bytes(&self, bytes: usize, free: usize) -> Option<SharedBytes> {
        let before = self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        let held = SharedBytes { bytes, holding: Some(Arc::clone(&self.0)) };
        may_hold(before.saturating_add(bytes), free).then_some(held)
    }
}

/// The bytes of unsent answers that count towards the share of a key or client address. Dropping the value gives
/// them back.
#[derive(Debug)]
pub struct SharedBytes {
    bytes: usize,
    holding: Option<Arc<Holdings>>,
}

impl SharedBytes {
    /// Returns a value that counts no bytes, for a caller without a plan.
    pub(crate) fn uncounted() -> Self {
        Self { bytes: 0, holding: None }
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        if let Some(holding) = &self.holding {
            holding.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// A permit for a request or connection. It counts towards the share of the key or client address. Dropping the
/// value gives it back.
#[derive(Debug)]
pub struct SharePermit(Option<Arc<Holdings>>);

impl SharePermit {
    /// Takes one of the `free` permits for requests, for a caller without a plan. `None` if no permit is free.
    pub(crate) fn uncounted(free: usize) -> Option<Self> {
        (free > 0).then_some(Self(None))
    }
}

impl Drop for SharePermit {
    fn drop(&mut self) {
        if let Some(holding) = &self.0 {
            holding.permits.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `keys` keys take permits in turn until no key gets another. `places` is the number of all permits.
    /// Returns the number of permits of each key, and the number of free permits.
    fn filled(keys: usize, places: usize) -> (Vec<usize>, usize) {
        let shares: Vec<_> = (0..keys).map(|_| Share::default()).collect();
        let mut held: Vec<Vec<SharePermit>> = (0..keys).map(|_| Vec::new()).collect();
        let (mut taken, mut moved) = (0, true);
        while moved {
            moved = false;
            for (key, share) in shares.iter().enumerate() {
                if let Some(place) = share.hold(places - taken) {
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
        let held = hog.hold_bytes(800, 900);
        assert!(held.is_some() && hog.hold_bytes(1, 100).is_none());
        assert!(other.hold_bytes(100, 100).is_some());
        drop(held);
        assert!(hog.hold_bytes(100, 100).is_some());
    }

    #[test]
    fn holders_above_their_share_get_nothing_more() {
        let (hog, other) = (Share::default(), Share::default());
        let mut held: Vec<_> = (0..18).map(|taken| hog.hold(20 - taken)).collect();
        assert!(held.iter().all(Option::is_some) && hog.hold(2).is_none());
        let mut theirs = vec![other.hold(2), other.hold(1)];
        assert!(theirs.iter().all(Option::is_some));
        for free in 1..=5 {
            held.pop();
            assert!(hog.hold(1).is_none(), "place {free} that came free is not the hog's");
            theirs.push(other.hold(1));
            assert!(theirs.iter().all(Option::is_some));
        }
    }
}
