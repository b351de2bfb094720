//! Who a call is for, as far as the pool tells callers apart: for fair shares of a node, and for what is slow.

use std::collections::HashMap;
use std::sync::Mutex;

use super::lock;
use crate::fair::may_hold_more;
use crate::methods::Method;

/// A caller by a number that no other has at the same time; the default is nobody in particular.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Caller(usize);

impl Caller {
    /// The caller with this number; 0 is nobody in particular.
    pub fn numbered(number: usize) -> Self {
        Self(number)
    }
}

/// How many of a node's places each caller holds; only those who hold one are listed.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<Caller, usize>>);

impl Places {
    /// Counts one place more.
    pub(super) fn take(&self, caller: Caller) {
        *lock(&self.0).entry(caller).or_default() += 1;
    }

    /// Counts one place less.
    pub(super) fn give_back(&self, caller: Caller) {
        let mut places = lock(&self.0);
        if let Some(held) = places.get_mut(&caller) {
            *held -= 1;
            if *held == 0 {
                places.remove(&caller);
            }
        }
    }

    /// Whether `caller` may have one more of the node's places, of which so many are `taken` and `free`. Nobody in
    /// particular gets whatever is free.
    pub(super) fn may_take(&self, caller: Caller, taken: usize, free: usize) -> bool {
        // The caller holds no more than all that are taken.
        let held = || lock(&self.0).get(&caller).copied().unwrap_or_default();
        free > 0 && (caller == Caller::default() || may_hold_more(taken, free) || may_hold_more(held(), free))
    }
}

/// The last caller and method that a node was slow for.
///
/// A slow call counts against its node only where the slow call before it was of another caller or another method.
/// Otherwise one caller's heavy calls could make a node look dead.
#[derive(Debug, Default)]
pub(super) struct Slowness(Mutex<Option<(Caller, Option<Method>)>>);

impl Slowness {
    /// Notes a slow call; returns whether it counts against the node.
    pub(super) fn counts(&self, caller: Caller, method: Option<Method>) -> bool {
        let before = lock(&self.0).replace((caller, method));
        before.is_some_and(|before| before != (caller, method))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_calls_count_by_turns_only() {
        let (slowness, block) = (Slowness::default(), Some(Method::GetBlock));
        let (one, other) = (Caller::numbered(1), Caller::numbered(2));
        for (caller, method, expected) in [
            (one, block, false),
            (one, block, false),
            (other, block, true),
            (other, block, false),
            (other, None, true),
            (one, None, true),
        ] {
            assert_eq!(slowness.counts(caller, method), expected, "{caller:?}, {method:?}");
        }
    }

    #[test]
    fn a_caller_takes_its_share_and_gives_it_back() {
        let (places, hog, other) = (Places::default(), Caller::numbered(1), Caller::numbered(2));
        let all = 9;
        let mut taken = 0;
        while places.may_take(hog, taken, all - taken) {
            places.take(hog);
            taken += 1;
        }
        assert_eq!(taken, 8, "one of nine is left");
        assert!(places.may_take(other, taken, all - taken) && places.may_take(Caller::default(), taken, 1));
        places.give_back(hog);
        places.take(other);
        for _ in 0..7 {
            places.give_back(hog);
        }
        assert_eq!(lock(&places.0).keys().collect::<Vec<_>>(), [&other]);
        assert!(!places.may_take(other, all, 0));
    }
}
