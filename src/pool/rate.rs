//! The rate limit of a node, `upstream.rps`, with a short fair queue of the calls that find it used up.
//!
//! Without a queue, each call that becomes free goes to whoever asks next. A caller that asks a hundred times a second then
//! leaves almost nothing to one that asks once.
//!
//! A call is let into the queue only if its turn would come within about half a second (or after [`FEW`] calls). So a
//! caller that asks too often fills the queue with its own late turns and gets nothing more in, while others still get
//! in before them. This also bounds the queue: with `n` places, the caller that comes `k`th can have about `n / k` calls
//! in it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::call_context::CallContext;
use super::lock;
use crate::fair::CallerId;
use crate::fair::queue::{FairQueue, QueuePlace};
use crate::limiter::{Limiter, Rate};

/// The lowest number of calls that may wait before another call, however low the rate is. With fewer places, a caller
/// that asks for little would lose calls that happen to come close together.
const FEW: usize = 16;
/// The highest number of calls that may wait before another call. It bounds the memory, and the time to find a place.
const MANY: usize = 256;

#[derive(Debug)]
pub(super) struct NodeRate {
    /// The number of calls that may wait before another call.
    places: usize,
    limiter: Limiter,
    queue: Mutex<FairQueue>,
}

impl NodeRate {
    /// Creates the limit of a node that takes `rps` calls a second, and at most these in one burst.
    pub(super) fn new(rps: u32) -> Self {
        let limiter = Limiter::new(Rate::new(rps, Duration::from_secs(1), rps));
        Self { places: (rps as usize / 2).clamp(FEW, MANY), limiter, queue: Mutex::default() }
    }

    pub(super) fn left(&self) -> u32 {
        self.limiter.left().calls
    }

    /// Counts a call. Returns false if the limit is reached, or if other calls wait for it.
    pub(super) fn take(&self, context: &CallContext) -> bool {
        if context.is_background {
            return self.take_spare(0);
        }
        let mut queue = lock(&self.queue);
        let taken = queue.is_empty() && self.limiter.take().is_ok();
        if taken {
            queue.pass(context.caller);
        }
        taken
    }

    /// Counts a call that no caller waits for. Returns false if a call waits, or if not more than `kept` calls are left.
    pub(super) fn take_spare(&self, kept: u32) -> bool {
        lock(&self.queue).is_empty() && self.left() > kept && self.limiter.take().is_ok()
    }

    /// Returns the time after which a call of this context would have its turn in the queue. `None` if the call may not
    /// wait: no caller waits for its answer, too many calls are before it, or its deadline is earlier.
    pub(super) fn time_to_wait(&self, context: &CallContext, now: Instant) -> Option<Duration> {
        let before = lock(&self.queue).before(context.caller, self.places);
        if context.is_background || before == self.places {
            return None;
        }
        let wait = self.limiter.time_for(u32::try_from(before + 1).unwrap_or(u32::MAX));
        (now + wait < context.deadline).then_some(wait)
    }

    /// Waits in the queue, and counts the call. Returns false if the call may not wait, or at its deadline. Dropping the
    /// future frees the place.
    pub(super) async fn wait(&self, context: &CallContext) -> bool {
        if self.time_to_wait(context, Instant::now()).is_none() {
            return false;
        }
        let waiting = WaitingCall::new(self, context.caller);
        loop {
            let now = Instant::now();
            let Err(wait) = waiting.take_if_first() else { return true };
            if now >= context.deadline {
                return false;
            }
            let next = wait.map_or(context.deadline, |wait| context.deadline.min(now + wait));
            let _ = timeout_at(next, waiting.is_first.notified()).await;
        }
    }

    /// Takes back a call that was not sent.
    pub(super) fn give_back(&self) {
        self.limiter.give_back(1.0);
        lock(&self.queue).wake_first();
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
        let (place, is_first) = lock(&rate.queue).join(caller);
        Self { rate, caller, place, is_first }
    }

    /// Counts the call if it is the first and the limit allows it.
    ///
    /// # Errors
    /// It does not count. The error is the time to try again if the call is the first; otherwise it is notified.
    fn take_if_first(&self) -> Result<(), Option<Duration>> {
        let mut queue = lock(&self.rate.queue);
        if !queue.is_first(self.place) {
            return Err(None);
        }
        // A wait of zero, by rounding, would not let time pass.
        self.rate.limiter.take().map_err(|wait| Some(wait.max(Duration::from_micros(1))))?;
        queue.serve_first();
        Ok(())
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        lock(&self.rate.queue).leave(self.caller, self.place);
    }
}

#[cfg(test)]
mod tests;
