//! A client: one open WebSocket with its subscriptions and its queue.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::pauses::RefusalPauses;
use super::queue::{Ended, Notification, Queue, Queued};
use crate::error::Error;
use crate::fair::{Held, Watcher};
use crate::frontier::ASSUMED_SLOT_TIME;
use crate::gateway::{Gateway, Principal};
use crate::methods::{Subscription, SubscriptionMethod};
use crate::telemetry::{CloseReason, Metrics};
use crate::tip::Watch;

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

/// What the writer of a connection does next.
pub(super) enum NextMessage {
    Send(Queued),
    Close(CloseReason),
}

pub struct SocketClient {
    pub(super) id: u64,
    key: Box<str>,
    address: Option<IpAddr>,
    origin: Option<Box<str>>,
    metrics: Arc<Metrics>,
    state: Mutex<ClientState>,
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
    queue: Queue,
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
    held: Option<Held>,
    watch: Option<Watch>,
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
            queue: Queue::default(),
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
        self.state.lock()
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
    pub(super) fn answer(&self, text: Bytes) {
        self.push(&mut self.state(), Queued::Answer(text));
    }

    /// Waits while many answers wait for the client, so that it is not heard before it has read them.
    pub(super) async fn few_answers(&self) {
        while self.state().queue.has_many_answers() {
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
        if !state.queue.push(message) {
            return self.end(state, CloseReason::Lagged);
        }
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
            state.queue = Queue::default();
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
                match state.queue.pop(Instant::now()) {
                    Ok(message) => {
                        self.answered.notify_waiters();
                        return NextMessage::Send(message);
                    }
                    Err(until) => until,
                }
            };
            wait(self.wake.notified(), until).await;
        }
    }

    /// Returns true if a message waits that may be sent now.
    pub(super) fn has_more(&self) -> bool {
        self.state().queue.has_more(Instant::now())
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
                due.or(state.queue.due())
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
