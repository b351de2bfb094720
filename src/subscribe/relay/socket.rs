//! The open WebSocket of a node, and what it feeds.
//!
//! A node may accept subscriptions and never notify. So its socket is trusted only once it has announced a slot, and only
//! while it goes on announcing slots, close to the newest one.
//!
//! A node gives questions that mean the same one id, also where their texts differ, and may give one id to two kinds. So
//! what a node feeds is known by kind and id, and one of them may feed several of our questions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::super::queue::{MAX_QUEUED, context_slot};
use super::super::{CHECK_INTERVAL, Hub};
use super::request::{Refusal, RelayRequest, Ticket};
use crate::methods::{AnyMethod, Commitment, Slot, Subscription, SubscriptionMethod};
use crate::node::answer::id_number;
use crate::node::code;
use crate::node::rent_epoch::unrounded;
use crate::node::shape::member;
use crate::node::websocket::NodeSocket;
use crate::pool::member::Member;
use crate::telemetry::Unusable;

/// The maximum time for opening a socket, and for sending a call.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of slots after which a socket that announces none is lost.
const SILENT_SLOTS: u64 = 10;
/// The lowest value of that time.
const SHORTEST_SILENCE: Duration = Duration::from_secs(2);
/// The number of checks in a row that a node may fail before its socket is left.
const MAX_DOUBTS: u32 = 2;
const SLOTS_CALL: u64 = 0;

type NodeFeed = (SubscriptionMethod, u64);

/// The open socket of a node.
struct Relay {
    hub: Arc<Hub>,
    node: Arc<Member>,
    socket: NodeSocket,
    last_call: u64,
    /// The subscribing calls that the node has not answered.
    asked: HashMap<u64, RelayRequest>,
    feeds: HashMap<NodeFeed, Vec<Arc<Subscription>>>,
    ids: HashMap<Arc<Subscription>, NodeFeed>,
    /// The notifications that came before the answers to their subscribing calls.
    early: Vec<(NodeFeed, Bytes)>,
    /// The subscriptions of the node that nobody needs any more, as long as none of their kind is asked for: it might turn
    /// out to be one of them.
    unused: Vec<NodeFeed>,
    /// The newest slot that the node has announced, and the time of that.
    slot: Slot,
    heard_at: Instant,
    was_near: bool,
    doubts: u32,
}

/// Why a socket is lost.
type Loss = &'static str;

#[derive(Deserialize)]
struct NodeMessage<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<&'a str>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<NotificationParams<'a>>,
}

#[derive(Deserialize)]
struct NotificationParams<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
    #[serde(borrow)]
    subscription: &'a RawValue,
}

#[derive(Deserialize)]
struct SlotInfo {
    slot: Slot,
    parent: Slot,
}

/// Opens the socket of `node` and serves requests until it is lost. Returns the node's id and the requests that are left.
pub(super) async fn run(
    hub: Arc<Hub>,
    node: Arc<Member>,
    mut requests: mpsc::Receiver<RelayRequest>,
) -> (usize, Vec<RelayRequest>) {
    let mut left = Vec::new();
    if let Some(mut relay) = Relay::open(Arc::clone(&hub), Arc::clone(&node)).await {
        let why = relay.serve(&mut requests).await;
        let feeds = hub.feeds.interrupt(|subscription| relay.ids.contains_key(subscription));
        hub.fed_by().remove(&node.id);
        if feeds > 0 {
            hub.parts.metrics.ws_node_losses.at(()).inc();
        }
        tracing::warn!(upstream.name = node.name, why, feeds, "the WebSocket of a node is lost");
        left.extend(relay.asked.into_values());
    }
    requests.close();
    while let Some(request) = requests.recv().await {
        left.push(request);
    }
    for request in &mut left {
        request.tried.push(node.id);
    }
    (node.id, left)
}

impl Relay {
    /// Opens the socket of `node`, and waits until it announces a slot.
    async fn open(hub: Arc<Hub>, node: Arc<Member>) -> Option<Self> {
        let socket = timeout(NODE_TIMEOUT, node.client.open_socket()).await.ok()?.ok()?;
        let mut relay = Self {
            hub,
            node,
            socket,
            last_call: SLOTS_CALL,
            asked: HashMap::new(),
            feeds: HashMap::new(),
            ids: HashMap::new(),
            early: Vec::new(),
            unused: Vec::new(),
            slot: 0,
            heard_at: Instant::now(),
            was_near: false,
            doubts: 0,
        };
        relay.call(SLOTS_CALL, SubscriptionMethod::Slot.as_str(), "[]").await.ok()?;
        let silence = relay.silence();
        while relay.slot == 0 {
            let message = timeout(silence, relay.socket.next()).await.ok()?;
            relay.read(message).ok()?;
        }
        Some(relay)
    }

    async fn serve(&mut self, requests: &mut mpsc::Receiver<RelayRequest>) -> Loss {
        let mut check_at = Instant::now() + CHECK_INTERVAL;
        loop {
            let silent_at = self.heard_at + self.silence();
            let done = tokio::select! {
                message = self.socket.next() => self.read(message),
                Some(request) = requests.recv() => self.subscribe(request).await,
                () = tokio::time::sleep_until(silent_at) => Err("it announces no slots"),
                () = tokio::time::sleep_until(check_at) => {
                    check_at = Instant::now() + CHECK_INTERVAL;
                    self.check().await
                }
            };
            if let Err(loss) = done {
                return loss;
            }
        }
    }

    fn silence(&self) -> Duration {
        self.hub.parts.frontier.time_of(SILENT_SLOTS).max(SHORTEST_SILENCE)
    }

    async fn call(&mut self, id: u64, method: &str, params: &str) -> Result<(), Loss> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let sent = timeout(NODE_TIMEOUT, self.socket.send(Message::text(text))).await;
        sent.map_err(|_| "it takes no calls")?.map_err(|_| "it is closed")
    }

    async fn subscribe(&mut self, request: RelayRequest) -> Result<(), Loss> {
        let subscription = Arc::clone(&request.subscription);
        let Subscription::Relayed { method, params, .. } = &*subscription else { return Ok(()) };
        if self.ids.contains_key(&subscription) {
            self.accept(request);
            return Ok(());
        }
        if let Some(asked) = self.asked.values_mut().find(|asked| asked.subscription == subscription) {
            asked.replies.extend(request.replies);
            return Ok(());
        }
        self.last_call += 1;
        self.asked.insert(self.last_call, request);
        self.call(self.last_call, method.as_str(), params).await
    }

    /// Lets the clients go on who wait for a feed, which begins with what has come early.
    fn accept(&mut self, request: RelayRequest) {
        let (hub, subscription) = (&self.hub, request.subscription);
        hub.feeds.lock().open(&subscription, request.replies.len());
        for reply in request.replies {
            let ticket = Ticket { hub: Arc::clone(hub), subscription: Arc::clone(&subscription) };
            // The client may have gone.
            let _ = reply.send(Ok(Some(ticket)));
        }
        let of = self.ids.get(&subscription).copied();
        for (_, result) in self.early.extract_if(.., |(feed, _)| Some(*feed) == of) {
            publish(hub, self.node.id, &subscription, &result);
        }
    }

    /// Returns true if a call of this kind waits for its answer.
    fn is_asked(&self, method: SubscriptionMethod) -> bool {
        self.asked.values().any(|asked| asked.subscription.method() == method)
    }

    /// Ends the node's subscriptions that have no subscriber any more, and looks whether the node is still to be used.
    async fn check(&mut self) -> Result<(), Loss> {
        for subscription in self.hub.feeds.remove_idle(|of| self.ids.contains_key(of)) {
            let Some(feed) = self.ids.remove(&subscription) else { continue };
            let questions = self.feeds.entry(feed).or_default();
            questions.retain(|of| *of != subscription);
            if questions.is_empty() {
                self.feeds.remove(&feed);
                self.unused.push(feed);
            }
        }
        for feed @ (method, id) in std::mem::take(&mut self.unused) {
            if self.is_asked(method) {
                self.unused.push(feed);
            } else if !self.feeds.contains_key(&feed) {
                self.last_call += 1;
                self.call(self.last_call, &format!("{}Unsubscribe", method.kind()), &format!("[{id}]"))
                    .await?;
            }
        }
        if !SubscriptionMethod::ALL.into_iter().any(|method| self.is_asked(method)) {
            self.early.clear();
        }
        let (pool, now) = (&self.hub.parts.pool, Instant::now());
        let member = pool.members().of(self.node.id).cloned();
        let Some(member) =
            member.filter(|now| now.upstream.ws_url == self.node.upstream.ws_url && !now.is_drained())
        else {
            return Err("the node is not used any more");
        };
        let is_behind = pool.is_behind(self.slot) && self.was_near;
        let is_better = |of: &Arc<Member>| of.upstream.ws_url.is_some() && pool.reasons(of, now).is_empty();
        let is_avoided = pool.reasons(&member, now).iter().any(|reason| *reason != Unusable::Busy);
        let is_worse = is_avoided && pool.members().iter().any(is_better);
        if self.ids.is_empty() {
            self.hub.fed_by().remove(&self.node.id);
        }
        self.doubts = if is_behind || is_worse { self.doubts + 1 } else { 0 };
        match self.doubts {
            MAX_DOUBTS.. if is_behind => Err("it has fallen behind"),
            MAX_DOUBTS.. => Err("another node is better"),
            _ => Ok(()),
        }
    }

    /// Reads a message of the node. An answer lets the clients of its request go on, and a notification goes to all
    /// subscribers.
    fn read<E>(&mut self, message: Option<Result<Message, E>>) -> Result<(), Loss> {
        let Some(Ok(message)) = message else { return Err("it is closed") };
        let Message::Text(text) = message else { return Ok(()) };
        let text = unrounded(text.into());
        let message: NodeMessage<'_> =
            serde_json::from_slice(&text).map_err(|_| "its messages are no JSON-RPC")?;
        if let Some(NotificationParams { result, subscription }) = message.params {
            let kind = message.method.and_then(SubscriptionMethod::from_notification);
            let feed = kind.zip(id_number(subscription)).ok_or("its notifications have no kind or no id")?;
            return self.hear(feed, result);
        }
        let (call, id) = (message.id.and_then(id_number), message.result.and_then(id_number));
        if call == Some(SLOTS_CALL) {
            return id.map(|_| ()).ok_or("it announces no slots");
        }
        let Some(request) = call.and_then(|call| self.asked.remove(&call)) else { return Ok(()) };
        match (id, message.error) {
            (Some(id), _) => self.taken(request, id),
            (None, error) => self.refused(request, error),
        }
        Ok(())
    }

    fn hear(&mut self, feed: NodeFeed, result: &RawValue) -> Result<(), Loss> {
        if feed.0 == SubscriptionMethod::Slot {
            let SlotInfo { slot, parent } =
                serde_json::from_str(result.get()).map_err(|_| "it announces slots in an unknown form")?;
            (self.slot, self.heard_at) = (slot, Instant::now());
            self.was_near |= !self.hub.parts.pool.is_behind(slot);
            if !self.ids.is_empty() {
                self.hub.fed_by().insert(self.node.id, slot);
            }
            if self.hub.parts.frontier.believes(Commitment::Processed, slot) {
                self.hub.note_slot(slot, Some(parent));
            }
            return Ok(());
        }
        let result = result.get().as_bytes();
        if let Some(fed) = self.feeds.get(&feed) {
            for subscription in fed {
                publish(&self.hub, self.node.id, subscription, result);
            }
        } else if self.is_asked(feed.0)
            && self.early.iter().map(|(_, result)| result.len()).sum::<usize>() < MAX_QUEUED
        {
            self.early.push((feed, Bytes::copy_from_slice(result)));
        }
        // Otherwise it was on its way when its subscription ended.
        Ok(())
    }

    /// Notes that the node has taken a subscription under `id`.
    fn taken(&mut self, request: RelayRequest, id: u64) {
        let (subscription, feed) = (Arc::clone(&request.subscription), (request.subscription.method(), id));
        // Another node may feed it meanwhile.
        let is_fed = self.hub.feeds.lock().keep(&subscription);
        if is_fed || request.is_given_up() {
            self.unused.push(feed);
        } else {
            self.feeds.entry(feed).or_default().push(Arc::clone(&subscription));
            self.ids.insert(subscription, feed);
        }
        if is_fed || self.ids.contains_key(&request.subscription) {
            self.accept(request);
        }
    }

    /// Lets another node be asked for what this one refuses, unless every node would.
    fn refused(&self, mut request: RelayRequest, error: Option<&RawValue>) {
        if let Some(error) = error {
            request.refusal = Refusal::ByNode(Bytes::copy_from_slice(error.get().as_bytes()));
        }
        let code = error.and_then(|error| member(error.get().as_bytes(), "code"));
        if code == Some(code::INVALID_PARAMS) {
            return request.refuse();
        }
        if code == Some(code::METHOD_NOT_FOUND) {
            self.node.set_lacking(AnyMethod::Subscription(request.subscription.method()));
        }
        request.tried.push(self.node.id);
        if let Err(error) = self.hub.relay.try_send(request) {
            error.into_inner().refuse();
        }
    }
}

/// Hands a notification of `node` to all subscribers. What they were shown by it, reads do not go back behind.
fn publish(hub: &Hub, node: usize, subscription: &Subscription, result: &[u8]) {
    if let Some((at, slot)) = subscription.commitment().zip(context_slot(result)) {
        let frontier = &hub.parts.frontier;
        frontier.answered(frontier.era(), node, at, slot, Instant::now());
        hub.parts.tip.raise(at, slot);
    }
    hub.feeds.publish(subscription, result, false);
}
