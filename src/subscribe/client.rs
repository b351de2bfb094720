//! A client: one open WebSocket with its subscriptions, and the messages that wait to be sent.
//!
//! The queue is bounded in bytes for each client, for each key by its fair share, and in all. A client beyond a bound is
//! closed, so that it connects anew: a notification that is left out would be a silent gap. The bounds are those of
//! notifications. Answers stay few, because a client that does not read them is not heard.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::pauses::RefusalPauses;
use crate::error::Error;
use crate::fair::Held;
use crate::gateway::{Gateway, Principal};
use crate::methods::{AnyMethod, Commitment, Slot, Subscription, SubscriptionMethod};
use crate::telemetry::{CloseReason, Metrics};

/// The maximum number of bytes that wait for one client. A single longer notification may wait alone.
pub(super) const MAX_QUEUED: usize = 1 << 20;
/// The number of bytes of answers that wait for a client, from which on its next call is not read.
const MANY_ANSWERS: usize = 16 << 10;
/// The maximum number of signatures that one connection waits for. A signature that never lands is waited for until the
/// connection ends.
const MAX_SIGNATURES: usize = 1_000;
/// The interval of pings. A client that answers neither of two is gone.
const PING: Duration = Duration::from_secs(20);
/// The interval at which a client may send a message that is no call, such as a ping, without using its rate.
const FREE_INTERVAL: Duration = Duration::from_secs(1);

/// The notification of one change, for all its subscribers. The subscription's id follows the text.
#[derive(Debug)]
pub(super) struct Notification {
    pub(super) method: SubscriptionMethod,
    pub(super) text: Bytes,
    /// The slot of what has happened, and the commitment at which it has.
    told: Option<(Commitment, Slot)>,
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

/// Returns the slot of the context with which the results of most notifications begin.
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
        _held: Held,
    },
    Ping,
}

impl Queued {
    fn len(&self) -> usize {
        match self {
            Self::Answer(text) => text.len(),
            Self::Notification { shared, .. } => shared.text.len(),
            Self::Ping => 0,
        }
    }
}

/// What the writer of a connection does next.
pub(super) enum NextMessage {
    Send(Queued),
    Close(CloseReason),
}

/// An open WebSocket.
pub struct SocketClient {
    pub(super) id: u64,
    key: Box<str>,
    address: Option<IpAddr>,
    origin: Option<Box<str>>,
    metrics: Arc<Metrics>,
    state: Mutex<ClientState>,
    /// Wakes the writer of the connection.
    wake: Notify,
    /// Wakes those who answer the client's calls once few answers wait.
    answered: Notify,
    /// Wakes whoever answers the calls that have waited, once another one waits.
    paused: Notify,
}

pub(super) struct ClientState {
    principal: Arc<Principal>,
    /// The connection, counted towards the key's plan until it is to be closed.
    connection: Option<Held>,
    /// The subscriptions, each counted towards the key's plan until the connection is to be closed.
    subscriptions: HashMap<u64, (Arc<Subscription>, Option<Held>)>,
    /// The ids of the subscriptions. Equal params are one subscription.
    ids: HashMap<Arc<Subscription>, u64>,
    signatures: usize,
    pub(super) pauses: RefusalPauses,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    /// The bytes of the answers that wait.
    answer_bytes: usize,
    closed: Option<CloseReason>,
    pinged_at: Instant,
    unanswered_pings: u8,
    free_since: Instant,
}

impl SocketClient {
    /// Creates the client of a connection that `key` may open from `address` and `origin`.
    ///
    /// # Errors
    /// The errors of [`Gateway::authenticate`], and the limit of the plan that does not allow the connection.
    pub(super) fn new(
        id: u64,
        (key, address, origin): (&str, Option<IpAddr>, Option<&str>),
        gateway: &Gateway,
        metrics: Arc<Metrics>,
        now: Instant,
    ) -> Result<Self, Error> {
        let principal = gateway.authenticate(key, address, origin, now)?;
        principal.take(now)?;
        principal.check_quotas(now)?;
        let connection = Some(principal.hold_connection()?);
        let state = ClientState {
            principal,
            connection,
            subscriptions: HashMap::new(),
            ids: HashMap::new(),
            signatures: 0,
            pauses: RefusalPauses::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            answer_bytes: 0,
            closed: None,
            pinged_at: now,
            unanswered_pings: 0,
            free_since: now,
        };
        Ok(Self {
            id,
            key: key.into(),
            address,
            origin: origin.map(Into::into),
            metrics,
            state: Mutex::new(state),
            wake: Notify::new(),
            answered: Notify::new(),
            paused: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn principal(&self) -> Arc<Principal> {
        Arc::clone(&self.state().principal)
    }

    /// Returns true if `id` is a subscription of this client.
    pub(super) fn has(&self, id: u64) -> bool {
        self.state().subscriptions.contains_key(&id)
    }

    /// Queues an answer.
    pub(super) fn answer(&self, state: &mut ClientState, text: Bytes) {
        state.answer_bytes += text.len();
        self.push(state, Queued::Answer(text));
    }

    /// Waits while many answers wait for the client, so that it is not heard before it has read them.
    pub(super) async fn few_answers(&self) {
        while self.state().answer_bytes >= MANY_ANSWERS {
            self.answered.notified().await;
        }
    }

    /// Returns true if the message with the hash `asked` has to wait. [`Self::next_late`] then returns it in time.
    ///
    /// # Errors
    /// Too many messages wait.
    pub(super) fn has_to_wait(&self, asked: u64, message: &Bytes, now: Instant) -> Result<bool, CloseReason> {
        let has_to_wait = self.state().pauses.wait(asked, message, now).ok_or(CloseReason::Rate)?;
        self.paused.notify_one();
        Ok(has_to_wait)
    }

    /// Waits for the next message whose pause is over. Only one task may call this.
    pub(super) async fn next_late(&self) -> Bytes {
        loop {
            let next = self.state().pauses.next(Instant::now());
            match next {
                Ok(message) => return message,
                Err(None) => self.paused.notified().await,
                Err(Some(due)) => drop(timeout_at(due, self.paused.notified()).await),
            }
        }
    }

    /// Queues a notification. `free` is the number of bytes that are left for all clients.
    pub(super) fn notify(&self, id: u64, notification: &Arc<Notification>, free: usize, is_last: bool) {
        let mut state = self.state();
        if state.closed.is_some() {
            return;
        }
        if is_last {
            state.remove(id);
        }
        self.metrics.ws_notifications.at(notification.method).inc();
        state.principal.charge_notification();
        if let Some((commitment, slot)) = notification.told {
            state.principal.known_slots().tell(commitment, slot);
        }
        match state.principal.hold_bytes(notification.text.len(), free) {
            Some(held) if free > 0 => {
                let shared = Arc::clone(notification);
                self.push(&mut state, Queued::Notification { shared, id, _held: held });
            }
            _ => self.end(&mut state, CloseReason::Lagged),
        }
    }

    fn push(&self, state: &mut ClientState, message: Queued) {
        if state.closed.is_some() {
            return;
        }
        if !state.queue.is_empty() && state.queued_bytes + message.len() > MAX_QUEUED {
            return self.end(state, CloseReason::Lagged);
        }
        state.queued_bytes += message.len();
        state.queue.push_back(message);
        self.wake.notify_one();
    }

    /// Closes the connection, unless it is to be closed already.
    pub(super) fn close(&self, reason: CloseReason) {
        self.end(&mut self.state(), reason);
    }

    fn end(&self, state: &mut ClientState, reason: CloseReason) {
        if state.closed.is_none() {
            state.closed = Some(reason);
            state.connection = None;
            state.subscriptions.values_mut().for_each(|(_, held)| *held = None);
            (state.queue, state.queued_bytes) = (VecDeque::new(), 0);
            state.pauses = RefusalPauses::default();
            self.wake.notify_one();
        }
    }

    /// Waits for the next message to send, or for the end. Only the writer of the connection may call this.
    pub(super) async fn next(&self) -> NextMessage {
        loop {
            {
                let mut state = self.state();
                if let Some(reason) = state.closed {
                    return NextMessage::Close(reason);
                }
                if let Some(message) = state.queue.pop_front() {
                    state.queued_bytes -= message.len();
                    if let Queued::Answer(text) = &message {
                        state.answer_bytes -= text.len();
                        self.answered.notify_waiters();
                    }
                    return NextMessage::Send(message);
                }
            }
            self.wake.notified().await;
        }
    }

    /// Returns true if a message waits to be sent.
    pub(super) fn has_more(&self) -> bool {
        !self.state().queue.is_empty()
    }

    /// Waits until the connection is to be closed, while the writer waits for the socket.
    pub(super) async fn closed(&self) -> CloseReason {
        loop {
            if let Some(reason) = self.state().closed {
                return reason;
            }
            self.wake.notified().await;
        }
    }

    /// Records that something was heard of the client. If it is no call, returns false if there was too much of it.
    pub(super) fn heard(&self, is_call: bool, now: Instant) -> bool {
        let mut state = self.state();
        state.unanswered_pings = 0;
        if is_call || now.saturating_duration_since(state.free_since) >= FREE_INTERVAL {
            if !is_call {
                state.free_since = now;
            }
            return true;
        }
        state.principal.take(now).is_ok()
    }

    /// Checks that the client may stay: its key, its plan, its quotas, and that it answers pings. Called each second.
    pub(super) fn check(&self, gateway: &Gateway, now: Instant) {
        let known = gateway.authenticate_again(&self.key, self.address, self.origin.as_deref(), now);
        let mut state = self.state();
        let may_stay = known.is_some_and(|principal| {
            let is_new = !Arc::ptr_eq(&principal, &state.principal);
            state.principal = principal;
            !is_new || state.count_anew()
        });
        if !may_stay {
            return self.end(&mut state, CloseReason::Policy);
        }
        if state.principal.check_quotas(now).is_err() {
            return self.end(&mut state, CloseReason::Rate);
        }
        if now.saturating_duration_since(state.pinged_at) >= PING {
            if state.unanswered_pings == 2 {
                return self.end(&mut state, CloseReason::Dead);
            }
            state.unanswered_pings += 1;
            state.pinged_at = now;
            self.push(&mut state, Queued::Ping);
        }
    }
}

impl ClientState {
    /// Counts what the client has towards the plan in force, which may not be the one under which it came. Returns false if
    /// the plan does not allow it.
    fn count_anew(&mut self) -> bool {
        let principal = &self.principal;
        // Given back first, because both plans may count in one place.
        self.connection = None;
        self.connection = principal.hold_connection().ok();
        let mut count = |(subscription, held): &mut (Arc<Subscription>, Option<Held>)| {
            *held = None;
            *held = principal.hold_subscription();
            let method = AnyMethod::Subscription(subscription.method());
            held.is_some() && principal.allows(method, subscription.commitment()).is_ok()
        };
        self.connection.is_some() && self.subscriptions.values_mut().all(&mut count)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Returns the id of the subscription, if the client has it.
    pub(super) fn id_of(&self, subscription: &Subscription) -> Option<u64> {
        self.ids.get(subscription).copied()
    }

    /// Adds a subscription. Returns false if the key or the connection has as many as it may.
    pub(super) fn add(&mut self, id: u64, subscription: &Arc<Subscription>) -> bool {
        let is_signature = subscription.method() == SubscriptionMethod::Signature;
        if is_signature && self.signatures == MAX_SIGNATURES {
            return false;
        }
        let Some(held) = self.principal.hold_subscription() else { return false };
        self.signatures += usize::from(is_signature);
        self.subscriptions.insert(id, (Arc::clone(subscription), Some(held)));
        self.ids.insert(Arc::clone(subscription), id);
        true
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Arc<Subscription>> {
        let (subscription, _) = self.subscriptions.remove(&id)?;
        self.ids.remove(&subscription);
        self.signatures -= usize::from(subscription.method() == SubscriptionMethod::Signature);
        Some(subscription)
    }

    /// Removes all subscriptions, and returns them.
    pub(super) fn remove_all(&mut self) -> Vec<(u64, Arc<Subscription>)> {
        (self.ids, self.signatures) = (HashMap::new(), 0);
        self.subscriptions.drain().map(|(id, (subscription, _))| (id, subscription)).collect()
    }
}
