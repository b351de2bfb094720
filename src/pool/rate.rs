//! Token buckets: the budget for retries, and the rate limit of a node, `upstream.rps`, with a short fair queue of the
//! calls that find it empty. Without a budget, retries would triple the load of a pool that is down.
//!
//! Without a queue, each new token goes to whoever asks next. A caller that asks a hundred times a second then leaves
//! almost nothing to one that asks once. In the queue, each token goes to the waiting caller that has had least. This
//! is start-time fair queueing (Goyal, Vin and Cheng, 1996): each call has a turn, one after the turn of its caller's
//! call before, and the lowest turn is first. Over time, callers that want more than their share get equal shares,
//! and the others get all that they ask for.
//!
//! A call is let into the queue only if it would get a token within about half a second (or [`FEW`] tokens). So a
//! caller that asks too often fills the queue with its own late turns and gets nothing more in, while others still get
//! in before them. This also bounds the queue: with `n` places, the caller that comes `k`th can have about `n / k` calls
//! in it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::call_context::CallContext;
use super::lock;
use crate::fair::CallerId;

/// The lowest number of calls that may wait before another call, however low the rate is. With fewer places, a caller
/// that asks for little would lose calls that happen to come close together.
const FEW: usize = 16;
/// The highest number of calls that may wait before another call. It bounds the memory, and the time to find a place.
const MANY: usize = 256;
/// The number of turns that a caller may save up while it asks for less than its share. They let it make a few calls at
/// once. A caller that was away for longer begins with the same number.
const CREDIT: u64 = 8;
const CALLERS: usize = 1024;

/// The number of retries a second that are always allowed, so that a quiet pool can retry at all.
pub(super) const RETRIES_PER_SECOND: f64 = 10.0;
/// The highest number of tokens in a budget for retries. A busy pool uses up this number of tokens in
/// about a second.
pub(super) const MAX_TOKENS: f64 = 100.0;

/// The rate limit of one node.
#[derive(Debug)]
pub(super) struct NodeRate {
    per_second: f64,
    /// The number of calls that may wait before another call.
    places: usize,
    bucket: Budget,
    queue: Mutex<Queue>,
}

/// The calls that wait for a token, and the turns of the callers.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<QueuePlace, Arc<Notify>>,
    arrivals: u64,
    /// The highest turn that has got a token.
    turn: u64,
    /// The next turn of each caller. A caller that is not listed has saved up all of its [`CREDIT`].
    next: HashMap<CallerId, u64>,
}

/// The turn of a waiting call, and its number in the order of arrival. The call with the lowest place is first.
type QueuePlace = (u64, u64);

impl NodeRate {
    /// Creates the limit of a node that takes `rps` calls a second. The bucket holds at most the tokens of one second.
    pub(super) fn new(rps: u32) -> Self {
        let per_second = f64::from(rps);
        Self {
            per_second,
            places: (rps as usize / 2).clamp(FEW, MANY),
            bucket: Budget::new(0.0, per_second, per_second),
            queue: Mutex::default(),
        }
    }

    pub(super) fn left(&self, now: Instant) -> f64 {
        self.bucket.left(now)
    }

    /// Takes a token for a call. Returns false if there is none, or if other calls wait for one.
    pub(super) fn take(&self, context: &CallContext, now: Instant) -> bool {
        if context.is_background {
            return self.take_spare(0.0, now);
        }
        let mut queue = lock(&self.queue);
        let taken = queue.waiting.is_empty() && self.bucket.withdraw(now);
        if taken {
            let turn = queue.begin(context.caller);
            queue.reach(turn);
        }
        taken
    }

    /// Takes a token for a call that no caller waits for. Returns false if a call waits for a token, or if not more than
    /// `kept` tokens are left.
    pub(super) fn take_spare(&self, kept: f64, now: Instant) -> bool {
        lock(&self.queue).waiting.is_empty() && self.left(now) > kept && self.bucket.withdraw(now)
    }

    /// Returns the time after which a call of this context would get a token in the queue. `None` if the call may not
    /// wait: no caller waits for its answer, too many calls are before it, or its deadline is earlier.
    pub(super) fn time_to_wait(&self, context: &CallContext, now: Instant) -> Option<Duration> {
        let queue = lock(&self.queue);
        let turn = queue.next_turn(context.caller);
        let before = queue.waiting.range(..=(turn, u64::MAX)).take(self.places).count();
        if context.is_background || before == self.places {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "there are few places")]
        let missing = (before as f64 + 1.0 - self.left(now)).max(0.0);
        let wait = Duration::from_secs_f64(missing / self.per_second);
        (now + wait < context.deadline).then_some(wait)
    }

    /// Waits in the queue for a token, and takes it. Returns false if the call may not wait, or at its deadline.
    /// Dropping the future frees the place.
    pub(super) async fn wait(&self, context: &CallContext) -> bool {
        if self.time_to_wait(context, Instant::now()).is_none() {
            return false;
        }
        let waiting = WaitingCall::new(self, context.caller);
        loop {
            let now = Instant::now();
            let Err(next) = waiting.take_if_first(now, context.deadline) else { return true };
            if now >= context.deadline {
                return false;
            }
            let _ = timeout_at(next, waiting.is_first.notified()).await;
        }
    }

    /// Gives back the token of a call that was not sent.
    pub(super) fn give_back(&self, now: Instant) {
        self.bucket.give_back(now);
        lock(&self.queue).wake_first();
    }
}

impl Queue {
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

    /// Notes that a call with this turn has got a token.
    fn reach(&mut self, turn: u64) {
        self.turn = self.turn.max(turn);
    }

    /// Wakes the first waiting call, which then watches the bucket.
    fn wake_first(&self) {
        if let Some((_, first)) = self.waiting.first_key_value() {
            first.notify_one();
        }
    }
}

/// A call in the queue. Dropping it frees its place.
struct WaitingCall<'a> {
    rate: &'a NodeRate,
    caller: CallerId,
    place: QueuePlace,
    /// Notified when the call may have become the first.
    is_first: Arc<Notify>,
}

impl<'a> WaitingCall<'a> {
    fn new(rate: &'a NodeRate, caller: CallerId) -> Self {
        let mut queue = lock(&rate.queue);
        queue.arrivals += 1;
        let place = (queue.begin(caller), queue.arrivals);
        let is_first = Arc::new(Notify::new());
        queue.waiting.insert(place, Arc::clone(&is_first));
        Self { rate, caller, place, is_first }
    }

    /// Takes a token if the call is the first and there is one.
    ///
    /// # Errors
    /// Nothing is taken. The error is the time to try again unless notified before: that of the next token if the call is
    /// the first, but at most `deadline`.
    fn take_if_first(&self, now: Instant, deadline: Instant) -> Result<(), Instant> {
        let mut queue = lock(&self.rate.queue);
        if queue.waiting.first_key_value().is_none_or(|(first, _)| *first != self.place) {
            return Err(deadline);
        }
        if !self.rate.bucket.withdraw(now) {
            let missing = (1.0 - self.rate.left(now)) / self.rate.per_second;
            // A wait of zero, by rounding, would not let time pass.
            let next = now + Duration::from_secs_f64(missing).max(Duration::from_micros(1));
            return Err(next.min(deadline));
        }
        queue.waiting.pop_first();
        queue.reach(self.place.0);
        queue.wake_first();
        Ok(())
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.rate.queue);
        if queue.waiting.remove(&self.place).is_some() {
            // The caller did not get this turn, so its next call need not come later for it.
            if let Some(next) = queue.next.get_mut(&self.caller) {
                *next = next.saturating_sub(1);
            }
            queue.wake_first();
        }
    }
}

/// A token bucket. Time and [`Budget::deposit`] add tokens, and [`Budget::withdraw`] takes them.
#[derive(Debug)]
pub(super) struct Budget {
    per_second: f64,
    max_tokens: f64,
    tokens: Mutex<Tokens>,
}

#[derive(Debug)]
struct Tokens {
    /// The part of a token that each call adds.
    share: f64,
    left: f64,
    refilled: Option<Instant>,
}

impl Budget {
    /// Creates a budget that starts with `per_second` tokens. Each call adds `share` tokens, and each second adds
    /// `per_second` tokens, up to `max_tokens` in total.
    pub(super) fn new(share: f64, per_second: f64, max_tokens: f64) -> Self {
        let tokens = Tokens { share, left: per_second, refilled: None };
        Self { per_second, max_tokens, tokens: Mutex::new(tokens) }
    }

    pub(super) fn set_share(&self, share: f64) {
        lock(&self.tokens).share = share;
    }

    pub(super) fn deposit(&self, now: Instant) {
        self.update(now, |tokens| tokens.left += tokens.share);
    }

    /// Takes one token. If less than one token is left, returns false and takes nothing.
    pub(super) fn withdraw(&self, now: Instant) -> bool {
        self.update(now, |tokens| {
            let enough = tokens.left >= 1.0;
            tokens.left -= if enough { 1.0 } else { 0.0 };
            enough
        })
    }

    fn left(&self, now: Instant) -> f64 {
        self.update(now, |tokens| tokens.left)
    }

    /// Gives back the token of an attempt that was not made.
    fn give_back(&self, now: Instant) {
        self.update(now, |tokens| tokens.left += 1.0);
    }

    fn update<T>(&self, now: Instant, change: impl FnOnce(&mut Tokens) -> T) -> T {
        let mut tokens = lock(&self.tokens);
        let since =
            tokens.refilled.replace(now).map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        tokens.left = (tokens.left + since * self.per_second).min(self.max_tokens);
        let result = change(&mut tokens);
        tokens.left = tokens.left.min(self.max_tokens);
        result
    }
}

#[cfg(test)]
mod tests;
