//! The messages that wait to be sent to a client.
//!
//! The queue is bounded in bytes for each client, for each key by its fair share, and in all. A client beyond a bound is
//! closed, so that it connects anew: a notification that is left out would be a silent gap. The bounds are those of
//! notifications. Answers stay few, because a client that does not read them is not heard.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::time::Instant;

use crate::fair::Held;
use crate::methods::{Commitment, Slot, Subscription, SubscriptionMethod};
use crate::tip::Watch;

/// The maximum number of bytes that wait for one client. A single longer notification may wait alone.
pub(super) const MAX_QUEUED: usize = 1 << 20;
/// The number of bytes of answers that wait for a client, from which on its next call is not read.
const MANY_ANSWERS: usize = 16 << 10;

/// The notification of one change, for all its subscribers. The subscription's id follows the text.
#[derive(Debug)]
pub(super) struct Notification {
    pub(super) method: SubscriptionMethod,
    pub(super) text: Bytes,
    pub(super) told: Option<(Commitment, Slot)>,
    /// The bytes of all notifications that wait, in which this one counts once.
    queued: Arc<AtomicUsize>,
}

impl Notification {
    /// Creates the notification with `result`, JSON text, which is the last one if `is_last` is true.
    pub(super) fn new(
        subscription: &Subscription,
        result: &[u8],
        is_last: bool,
        queued: &Arc<AtomicUsize>,
    ) -> Self {
        let method = subscription.method();
        let head =
            format!(r#"{{"jsonrpc":"2.0","method":"{}Notification","params":{{"result":"#, method.kind());
        let text = Bytes::from([head.as_bytes(), result, br#","subscription":"#].concat());
        queued.fetch_add(text.len(), Ordering::Relaxed);
        // That a transaction was received says nothing of the commitment that its subscription waits for.
        let at = subscription.commitment().filter(|_| is_last || method != SubscriptionMethod::Signature);
        Self { method, text, told: at.zip(context_slot(result)), queued: Arc::clone(queued) }
    }
}

pub(super) fn context_slot(result: &[u8]) -> Option<Slot> {
    let rest = str::from_utf8(result.strip_prefix(br#"{"context":{"slot":"#)?).ok()?;
    rest.split_once(|next: char| !next.is_ascii_digit())?.0.parse().ok()
}

impl Drop for Notification {
    fn drop(&mut self) {
        self.queued.fetch_sub(self.text.len(), Ordering::Relaxed);
    }
}

/// A message that waits to be sent.
pub(super) enum Queued {
    /// The answer to a call or a batch.
    Answer(Bytes),
    /// A notification with the id of its subscription. Its bytes count towards the key's share until it is sent.
    Notification {
        shared: Arc<Notification>,
        id: u64,
        not_before: Instant,
        end: Option<Ended>,
        _held: Held,
    },
    Ping,
}

/// The end of a watched signature on its way to a client. Heights wait until the value is dropped.
pub(super) struct Ended {
    pub(super) _watch: Watch,
    pub(super) due: Instant,
}

impl Queued {
    fn len(&self) -> usize {
        match self {
            Self::Answer(text) => text.len(),
            Self::Notification { shared, .. } => shared.text.len(),
            Self::Ping => 0,
        }
    }

    /// Returns the time until which the client has to take the message. `None` if nobody waits for that.
    pub(super) fn due(&self) -> Option<Instant> {
        if let Self::Notification { end: Some(end), .. } = self { Some(end.due) } else { None }
    }

    /// Returns the time until which the message has to wait. `None` if it may be sent now.
    fn waits_until(&self, now: Instant) -> Option<Instant> {
        if let Self::Notification { not_before, .. } = self {
            Some(*not_before).filter(|time| *time > now)
        } else {
            None
        }
    }
}

/// The messages that wait for one client, in order.
#[derive(Default)]
pub(super) struct Queue {
    messages: VecDeque<Queued>,
    /// The times until which messages in the queue have to be sent, in order.
    dues: VecDeque<Instant>,
    bytes: usize,
    /// The bytes of the answers among them.
    answer_bytes: usize,
}

impl Queue {
    /// Adds a message. Returns false if it finds no room.
    pub(super) fn push(&mut self, message: Queued) -> bool {
        if !self.messages.is_empty() && self.bytes + message.len() > MAX_QUEUED {
            return false;
        }
        self.bytes += message.len();
        if let Queued::Answer(text) = &message {
            self.answer_bytes += text.len();
        }
        self.dues.extend(message.due());
        self.messages.push_back(message);
        true
    }

    /// Removes the next message that may be sent now.
    ///
    /// # Errors
    /// None may. The error is the time until which the next one has to wait, `None` if there is none.
    pub(super) fn pop(&mut self, now: Instant) -> Result<Queued, Option<Instant>> {
        if let Some(until) = self.messages.front().and_then(|message| message.waits_until(now)) {
            return Err(Some(until));
        }
        let message = self.messages.pop_front().ok_or(None)?;
        self.bytes -= message.len();
        if message.due().is_some() {
            self.dues.pop_front();
        }
        if let Queued::Answer(text) = &message {
            self.answer_bytes -= text.len();
        }
        Ok(message)
    }

    /// Returns true if a message may be sent now.
    pub(super) fn has_more(&self, now: Instant) -> bool {
        self.messages.front().is_some_and(|message| message.waits_until(now).is_none())
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.dues.front().copied()
    }

    pub(super) fn has_many_answers(&self) -> bool {
        self.answer_bytes >= MANY_ANSWERS
    }
}
