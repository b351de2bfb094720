//! A queue in which callers have turns, so that those who want more than their share of a supply get equal shares, and the
//! others get all that they ask for.
//!
//! This is start-time fair queueing (Goyal, Vin and Cheng, 1996): each call has a turn, one after the turn of its caller's
//! call before, and the lowest turn is first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::Notify;

use super::CallerId;

/// The number of turns that a caller may save up while it asks for less than its share. They let it make a few calls at
/// once. A caller that was away for longer begins with the same number.
const CREDIT: u64 = 8;
pub(crate) const CALLERS: usize = 1024;

/// The calls that wait, and the turns of the callers.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    pub(crate) waiting: BTreeMap<QueuePlace, Arc<Notify>>,
    arrivals: u64,
    /// The highest turn that was served.
    turn: u64,
    /// The next turn of each caller. A caller that is not listed has saved up all of its [`CREDIT`].
    pub(crate) next: HashMap<CallerId, u64>,
}

/// The turn of a waiting call, and its number in the order of arrival. The call with the lowest place is first.
pub(crate) type QueuePlace = (u64, u64);

impl FairQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of calls that the next call of `caller` would wait for, at most `most`.
    pub(crate) fn before(&self, caller: CallerId, most: usize) -> usize {
        self.waiting.range(..=(self.next_turn(caller), u64::MAX)).take(most).count()
    }

    /// Adds a call of `caller` to those that wait. It is notified when it may have become the first.
    pub(crate) fn join(&mut self, caller: CallerId) -> (QueuePlace, Arc<Notify>) {
        self.arrivals += 1;
        let (place, is_first) = ((self.begin(caller), self.arrivals), Arc::new(Notify::new()));
        self.waiting.insert(place, Arc::clone(&is_first));
        (place, is_first)
    }

    /// Serves a call of `caller` that need not wait.
    pub(crate) fn pass(&mut self, caller: CallerId) {
        let turn = self.begin(caller);
        self.reach(turn);
    }

    pub(crate) fn is_first(&self, place: QueuePlace) -> bool {
        self.waiting.first_key_value().is_some_and(|(first, _)| *first == place)
    }

    /// Serves the first call, and wakes the one after it.
    pub(crate) fn serve_first(&mut self) {
        if let Some(((turn, _), _)) = self.waiting.pop_first() {
            self.reach(turn);
        }
        self.wake_first();
    }

    /// Takes a call of `caller` out that waits no longer. It did not get its turn, so the caller's next one need not come
    /// later for it.
    pub(crate) fn leave(&mut self, caller: CallerId, place: QueuePlace) {
        if self.waiting.remove(&place).is_some() {
            if let Some(next) = self.next.get_mut(&caller) {
                *next = next.saturating_sub(1);
            }
            self.wake_first();
        }
    }

    /// Returns the turn that the next call of `caller` gets.
    fn next_turn(&self, caller: CallerId) -> u64 {
        let next = self.next.get(&caller).copied().unwrap_or_default();
        next.max(self.turn.saturating_sub(CREDIT))
    }

    /// Gives the next call of `caller` its turn.
    fn begin(&mut self, caller: CallerId) -> u64 {
        let turn = self.next_turn(caller);
        self.next.insert(caller, turn + 1);
        while self.next.len() > CALLERS {
            // A caller that is as far behind as an unknown one need not be listed. If all are ahead, time goes on.
            let behind = self.turn.saturating_sub(CREDIT);
            self.next.retain(|_, next| *next > behind);
            self.turn += u64::from(self.next.len() > CALLERS);
        }
        turn
    }

    /// Notes that a call with this turn was served.
    fn reach(&mut self, turn: u64) {
        self.turn = self.turn.max(turn);
    }

    /// Wakes the first waiting call, which then watches the supply.
    pub(crate) fn wake_first(&self) {
        if let Some((_, first)) = self.waiting.first_key_value() {
            first.notify_one();
        }
    }
}
