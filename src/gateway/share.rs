//! The fair share of each key in the permits for requests in flight, and in the bytes for answers that are not sent
//! yet. By the rule of [`crate::fair`], no key can take everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fair::may_hold;

/// The share of one holder (a key or a client address) in a limited supply. Clones stand for the same share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Share(Arc<Holdings>);

#[derive(Debug)]
struct Holdings {
    /// The number that identifies the key or client address in this process, never 0.
    holder: usize,
    /// The units that the holder has taken, by [`Supply`].
    units: [AtomicUsize; 2],
}

/// What a key or a client address may hold a share of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Supply {
    Permits,
    /// Bytes of answers that are not sent yet.
    Bytes,
}

impl Default for Holdings {
    fn default() -> Self {
        static HOLDERS: AtomicUsize = AtomicUsize::new(1);
        Self { holder: HOLDERS.fetch_add(1, Ordering::Relaxed), units: Default::default() }
    }
}

impl Share {
    pub(crate) fn holder(&self) -> usize {
        self.0.holder
    }

    /// Takes `units` of a supply of which `free` are free. `None` if that would exceed the fair share of the key or
    /// client address.
    pub(crate) fn hold(&self, supply: Supply, units: usize, free: usize) -> Option<Held> {
        let before = self.0.units[supply as usize].fetch_add(units, Ordering::Relaxed);
        let held = Held { of: Some((Arc::clone(&self.0), supply)), units };
        may_hold(before.saturating_add(units), free).then_some(held)
    }
}

/// Units that count towards the share of a key or client address. Dropping the value gives them back.
#[derive(Debug)]
pub struct Held {
    of: Option<(Arc<Holdings>, Supply)>,
    units: usize,
}

impl Held {
    /// Returns a value that counts nothing, for a caller without a plan.
    pub(crate) fn uncounted() -> Self {
        Self { of: None, units: 0 }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((holdings, supply)) = &self.of {
            holdings.units[*supply as usize].fetch_sub(self.units, Ordering::Relaxed);
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
        let mut held: Vec<Vec<Held>> = (0..keys).map(|_| Vec::new()).collect();
        let (mut taken, mut moved) = (0, true);
        while moved {
            moved = false;
            for (key, share) in shares.iter().enumerate() {
                if let Some(place) = share.hold(Supply::Permits, 1, places - taken) {
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
        let held = hog.hold(Supply::Bytes, 800, 900);
        assert!(held.is_some() && hog.hold(Supply::Bytes, 1, 100).is_none());
        assert!(other.hold(Supply::Bytes, 100, 100).is_some());
        drop(held);
        assert!(hog.hold(Supply::Bytes, 100, 100).is_some());
    }

    #[test]
    fn holders_above_their_share_get_nothing_more() {
        let (hog, other) = (Share::default(), Share::default());
        let mut held: Vec<_> = (0..18).map(|taken| hog.hold(Supply::Permits, 1, 20 - taken)).collect();
        assert!(held.iter().all(Option::is_some) && hog.hold(Supply::Permits, 1, 2).is_none());
        let mut theirs = vec![other.hold(Supply::Permits, 1, 2), other.hold(Supply::Permits, 1, 1)];
        assert!(theirs.iter().all(Option::is_some));
        for free in 1..=5 {
            held.pop();
            assert!(
                hog.hold(Supply::Permits, 1, 1).is_none(),
                "place {free} that came free is not the hog's"
            );
            theirs.push(other.hold(Supply::Permits, 1, 1));
            assert!(theirs.iter().all(Option::is_some));
        }
    }
}
