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
use crate::fair::{Held, Watcher};
use crate::frontier::ASSUMED_SLOT_TIME;
use crate::gateway::{Gateway, Principal};
use crate::methods::{Commitment, Slot, Subscription, SubscriptionMethod};
use crate::telemetry::{CloseReason, Metrics};
use crate::tip::Watch;

/// The maximum number of bytes that wait for one client. A single longer notification may wait alone.
pub(super) const MAX_QUEUED: usize = 1 << 20;
/// The number of bytes of answers that wait for a client, from which on its next call is not read.
const MANY_ANSWERS: usize = 16 << 10;
/// The maximum number of signatures that one connection waits for. A signature that never lands is waited for until the
/// connection ends.
const MAX_SIGNATURES: usize = 1_000;
/// The time between the answer to the subscription of a signature and its first notification. A client library may lose a
/// notification that arrives in the same packet as the answer.
const AFTER_ANSWER: Duration = Duration::from_millis(10);
/// The time in which a client has to take the end of a signature, for which its heights wait.
const LONGEST_HANDING: Duration = Duration::from_millis(100);
/// The time in which a transaction lands or expires.
const USUAL_WAIT: Duration = Duration::from_mins(3);
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
        /// The time before which it is not sent.
        not_before: Instant,
        /// What waits until the notification is sent.
        end: Option<Ended>,
        _held: Held,
    },
    Ping,
}

/// The end of a watched signature on its way to a client. Heights wait until the value is dropped.
pub(super) struct Ended {
    _watch: Watch,
    /// The time until which the client has to take it.
    due: Instant,
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
    subscriptions: HashMap<u64, Subscribed>,
    /// The ids of the subscriptions. Equal params are one subscription.
    ids: HashMap<Arc<Subscription>, u64>,
    signatures: usize,
    pub(super) pauses: RefusalPauses,
    queue: VecDeque<Queued>,
    /// The times until which messages in the queue have to be sent, in order.
    dues: VecDeque<Instant>,
    queued_bytes: usize,
    /// The bytes of the answers that wait.
    answer_bytes: usize,
    closed: Option<CloseReason>,
    /// The time until which signatures that last are paid for.
    counted_at: Instant,
    pinged_at: Instant,
    unanswered_pings: u8,
    free_since: Instant,
}

/// A subscription of a client.
pub(super) struct Subscribed {
    pub(super) to: Arc<Subscription>,
    /// Counts it towards the key's plan.
    held: Option<Held>,
    /// The watch of a signature.
    watch: Option<Watch>,
    /// The time before which nothing is notified.
    not_before: Instant,
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
        principal.take()?;
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
            dues: VecDeque::new(),
            queued_bytes: 0,
            answer_bytes: 0,
            closed: None,
            counted_at: now,
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

    /// Returns who watches what the client subscribes to.
    pub(super) fn watcher(&self) -> Watcher {
        self.principal().watcher(self.address)
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
                Err(due) => drop(wait(self.paused.notified(), due).await),
            }
        }
    }

    /// Queues a notification. `free` is the number of bytes that are left for all clients.
    pub(super) fn notify(&self, id: u64, notification: &Arc<Notification>, free: usize, is_last: bool) {
        let mut state = self.state();
        if state.closed.is_some() {
            return;
        }
        let now = Instant::now();
        let not_before = state.subscriptions.get(&id).map_or(now, |to| to.not_before);
        let ended = if is_last { state.remove(id) } else { None };
        let due = not_before.max(now) + LONGEST_HANDING;
        let end = ended.and_then(|ended| Some(Ended { _watch: ended.watch?, due }));
        self.metrics.ws_notifications.at(notification.method).inc();
        state.principal.charge_notification();
        if let Some((commitment, slot)) = notification.told {
            state.principal.known_slots().tell(commitment, slot);
        }
        match state.principal.hold_bytes(notification.text.len(), free) {
            Some(held) if free > 0 => {
                let shared = Arc::clone(notification);
                self.push(&mut state, Queued::Notification { shared, id, not_before, end, _held: held });
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
        state.dues.extend(message.due());
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
            state.subscriptions.values_mut().for_each(|of| (of.held, of.watch) = (None, None));
            (state.queue, state.dues, state.queued_bytes) = (VecDeque::new(), VecDeque::new(), 0);
            state.pauses = RefusalPauses::default();
            self.wake.notify_one();
        }
    }

    /// Waits for the next message to send, or for the end. Only the writer of the connection may call this.
    pub(super) async fn next(&self) -> NextMessage {
        loop {
            let until = {
                let mut state = self.state();
                if let Some(reason) = state.closed {
                    return NextMessage::Close(reason);
                }
                let until = state.queue.front().and_then(|message| message.waits_until(Instant::now()));
                if until.is_none()
                    && let Some(message) = state.queue.pop_front()
                {
                    state.queued_bytes -= message.len();
                    if message.due().is_some() {
                        state.dues.pop_front();
                    }
                    if let Queued::Answer(text) = &message {
                        state.answer_bytes -= text.len();
                        self.answered.notify_waiters();
                    }
                    return NextMessage::Send(message);
                }
                until
            };
            wait(self.wake.notified(), until).await;
        }
    }

    /// Returns true if a message waits that may be sent now.
    pub(super) fn has_more(&self) -> bool {
        self.state().queue.front().is_some_and(|message| message.waits_until(Instant::now()).is_none())
    }

    /// Waits until the connection is to be closed, while the writer waits for the socket with a message that has to be sent
    /// until `due`.
    pub(super) async fn closed(&self, due: Option<Instant>) -> CloseReason {
        loop {
            let due = {
                let state = self.state();
                if let Some(reason) = state.closed {
                    return reason;
                }
                due.or(state.dues.front().copied())
            };
            if !wait(self.wake.notified(), due).await {
                self.close(CloseReason::Lagged);
            }
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
        state.principal.take().is_ok()
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
        if now.saturating_duration_since(state.counted_at) >= PING {
            let waited = now.saturating_duration_since(state.counted_at);
            state.counted_at = now;
            state.charge_lasting(now, waited);
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
        let mut count = |Subscribed { to, held, .. }: &mut Subscribed| {
            *held = None;
            *held = principal.hold_subscription();
            held.is_some() && principal.allows_subscription(to).is_ok()
        };
        self.connection.is_some() && self.subscriptions.values_mut().all(&mut count)
    }

    pub(super) fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Lets the client pay for the signatures that it has waited for so long that they will hardly land, which were asked for
    /// during the last `time`.
    fn charge_lasting(&self, now: Instant, time: Duration) {
        if self.signatures > 0 {
            let is_lasting = |of: &&Subscribed| of.watch.is_some() && of.not_before + USUAL_WAIT < now;
            let lasting = self.subscriptions.values().filter(is_lasting).map(|_| 1.0).sum::<f64>();
            self.principal.charge_lasting(lasting * time.div_duration_f64(ASSUMED_SLOT_TIME));
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Returns the id of the subscription, if the client has it.
    pub(super) fn id_of(&self, subscription: &Subscription) -> Option<u64> {
        self.ids.get(subscription).copied()
    }

    /// Adds a subscription. Returns false if the key or the connection has as many as it may.
    pub(super) fn add(
        &mut self,
        id: u64,
        subscription: &Arc<Subscription>,
        watch: impl FnOnce() -> Option<Watch>,
    ) -> bool {
        let is_signature = subscription.method() == SubscriptionMethod::Signature;
        if is_signature && self.signatures == MAX_SIGNATURES {
            return false;
        }
        let Some(held) = self.principal.hold_subscription() else { return false };
        self.signatures += usize::from(is_signature);
        let wait = if is_signature { AFTER_ANSWER } else { Duration::ZERO };
        let (to, not_before) = (Arc::clone(subscription), Instant::now() + wait);
        self.subscriptions.insert(id, Subscribed { to, held: Some(held), watch: watch(), not_before });
        self.ids.insert(Arc::clone(subscription), id);
        true
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Subscribed> {
        let removed = self.subscriptions.remove(&id)?;
        self.ids.remove(&removed.to);
        self.signatures -= usize::from(removed.to.method() == SubscriptionMethod::Signature);
        Some(removed)
    }

    /// Removes all subscriptions, and returns them.
    pub(super) fn remove_all(&mut self) -> Vec<(u64, Arc<Subscription>)> {
        (self.ids, self.signatures) = (HashMap::new(), 0);
        self.subscriptions.drain().map(|(id, of)| (id, of.to)).collect()
    }
}

/// Waits for `event`, or until `until`. Returns true if the event has come.
async fn wait(event: impl Future<Output = ()>, until: Option<Instant>) -> bool {
    if let Some(until) = until {
        return timeout_at(until, event).await.is_ok();
    }
    event.await;
    true
}
