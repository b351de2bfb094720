//! Subscriptions that only a node can serve, over one WebSocket to a node, each question once for all clients.
//!
//! A node may accept subscriptions and never notify. So its socket is trusted only once it has announced a slot, and only
//! while it goes on announcing slots. When the socket is lost, all clients that it fed are closed, because nobody knows what
//! they have missed; they subscribe anew, at another node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::client::context_slot;
use super::{CHECK_INTERVAL, Hub};
use crate::error::Error;
use crate::jsonrpc::{Id, reply};
use crate::methods::{Commitment, Slot, Subscription, SubscriptionMethod};
use crate::node::answer::id_number;
use crate::node::rent_epoch::unrounded;
use crate::node::websocket::NodeSocket;
use crate::pool::member::Member;

/// The maximum time that a client waits until a node has taken its subscription.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum time for opening a socket, and for sending a call.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// The number of slots after which a socket that announces none is lost.
const SILENT_SLOTS: u64 = 10;
/// The lowest value of that time.
const SHORTEST_SILENCE: Duration = Duration::from_secs(2);
/// The id of the call that subscribes to slots.
const SLOTS_CALL: u64 = 0;

/// A client's wish that a node takes a subscription.
pub(super) struct RelayRequest {
    subscription: Arc<Subscription>,
    reply: Reply,
}

type Reply = oneshot::Sender<Result<(), Refusal>>;

/// The refusal of a subscription.
#[derive(Debug, Clone)]
pub(super) enum Refusal {
    /// The node's error object.
    ByNode(Bytes),
    Ours(Error),
}

impl Refusal {
    const NO_NODE: Self = Self::Ours(Error::NoUpstream(Vec::new()));

    /// Returns the answer to the refused call.
    pub(super) fn write(&self, id: &Id) -> Vec<u8> {
        let mut text = Vec::with_capacity(128);
        match self {
            Self::ByNode(error) => reply::node_error(&mut text, id, error),
            Self::Ours(error) => error.write_response(&mut text, id),
        }
        text
    }
}

/// Waits until a node feeds the subscription.
///
/// # Errors
/// No upstream has a WebSocket, none can be reached in time, or the node refuses the subscription.
pub(super) async fn ready(hub: &Hub, subscription: &Arc<Subscription>) -> Result<(), Refusal> {
    if nodes(hub).is_empty() {
        return Err(Refusal::Ours(Error::NoSocket(subscription.method().as_str())));
    }
    if hub.feeds.lock().keep(subscription) {
        return Ok(());
    }
    let (reply, answer) = oneshot::channel();
    let request = RelayRequest { subscription: Arc::clone(subscription), reply };
    hub.relay.try_send(request).map_err(|_| Refusal::NO_NODE)?;
    let answer = timeout(READY_TIMEOUT, answer).await.map_err(|_| Refusal::NO_NODE)?;
    answer.unwrap_or(Err(Refusal::NO_NODE))
}

/// Asks for a node's socket without a subscription of it, because it announces slots sooner than polls do.
pub(super) fn prefer_socket(hub: &Hub) {
    let (reply, _) = oneshot::channel();
    // If it cannot be asked for, polls announce the slots.
    let _ = hub.relay.try_send(RelayRequest { subscription: Arc::new(Subscription::Slot), reply });
}

/// Returns the nodes that have a WebSocket, the best first.
fn nodes(hub: &Hub) -> Vec<Arc<Member>> {
    let (pool, now) = (&hub.parts.pool, Instant::now());
    let mut nodes: Vec<_> = pool.members().iter().filter(|member| member.has_socket()).cloned().collect();
    nodes.sort_by_key(|member| (!pool.reasons(member, now).is_empty(), member.tier));
    nodes
}

/// Serves requests over the socket of one node at a time. Opens it with the first request.
pub(super) async fn run(hub: Arc<Hub>, mut requests: mpsc::Receiver<RelayRequest>) {
    let (mut lost, mut failures) = (None, 0);
    while let Some(request) = requests.recv().await {
        let mut waiting = Some(request);
        while waiting.is_some() || hub.feeds.has(&Subscription::Slot) {
            let nodes = nodes(&hub);
            let node = nodes.iter().find(|node| Some(node.id) != lost).or(nodes.first());
            let Some(node) = node.filter(|_| failures < nodes.len()) else {
                (waiting, failures) = (None, 0);
                tokio::time::sleep(CHECK_INTERVAL).await;
                continue;
            };
            lost = Some(node.id);
            let Some(mut relay) = Relay::open(Arc::clone(&hub), Arc::clone(node)).await else {
                failures += 1;
                continue;
            };
            failures = 0;
            let why = relay.serve(&mut requests, waiting.take()).await;
            let interrupted =
                hub.feeds.interrupt(|subscription| matches!(subscription, Subscription::Relayed { .. }));
            if interrupted > 0 {
                hub.parts.metrics.ws_node_losses.at(()).inc();
            }
            tracing::warn!(
                upstream.name = node.name,
                why,
                feeds = interrupted,
                "the WebSocket of a node is lost"
            );
        }
    }
}

/// The open socket of a node.
struct Relay {
    hub: Arc<Hub>,
    node: Arc<Member>,
    socket: NodeSocket,
    last_call: u64,
    /// The subscribing calls that the node has not answered, each with all who wait for it.
    asked: HashMap<u64, (Arc<Subscription>, Vec<Reply>)>,
    /// The subscriptions by the node's ids, and the reverse.
    subscriptions: HashMap<u64, Arc<Subscription>>,
    ids: HashMap<Arc<Subscription>, u64>,
    /// The time of the last announcement of a slot.
    heard_at: Instant,
}

/// Why a socket is lost.
type Loss = &'static str;

/// A message of a node.
#[derive(Deserialize)]
struct NodeMessage<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
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
    subscription: u64,
}

#[derive(Deserialize)]
struct SlotInfo {
    slot: Slot,
    parent: Slot,
}

impl Relay {
    /// Opens the socket of `node`, and waits until it announces a slot.
    async fn open(hub: Arc<Hub>, node: Arc<Member>) -> Option<Self> {
        let socket = timeout(NODE_TIMEOUT, node.open_socket()).await.ok()?.ok()?;
        let mut relay = Self {
            hub,
            node,
            socket,
            last_call: SLOTS_CALL,
            asked: HashMap::new(),
            subscriptions: HashMap::new(),
            ids: HashMap::new(),
            heard_at: Instant::now(),
        };
        relay.call(SLOTS_CALL, SubscriptionMethod::Slot.as_str(), "[]").await.ok()?;
        let (opened_at, silence) = (relay.heard_at, relay.silence());
        while relay.heard_at == opened_at {
            let message = timeout(silence, relay.socket.next()).await.ok()?;
            relay.read(message).ok()?;
        }
        Some(relay)
    }

    /// Serves requests until the socket is lost.
    async fn serve(
        &mut self,
        requests: &mut mpsc::Receiver<RelayRequest>,
        first: Option<RelayRequest>,
    ) -> Loss {
        if let Some(request) = first
            && let Err(loss) = self.subscribe(request).await
        {
            return loss;
        }
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

    /// Returns the time after which a socket that announces no slot is lost.
    fn silence(&self) -> Duration {
        self.hub.parts.frontier.time_of(SILENT_SLOTS).max(SHORTEST_SILENCE)
    }

    async fn call(&mut self, id: u64, method: &str, params: &str) -> Result<(), Loss> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let sent = timeout(NODE_TIMEOUT, self.socket.send(Message::text(text))).await;
        sent.map_err(|_| "it takes no calls")?.map_err(|_| "it is closed")
    }

    async fn subscribe(&mut self, RelayRequest { subscription, reply }: RelayRequest) -> Result<(), Loss> {
        let Subscription::Relayed { method, params, .. } = &*subscription else { return Ok(()) };
        if self.hub.feeds.lock().keep(&subscription) {
            let _ = reply.send(Ok(()));
            return Ok(());
        }
        if let Some((_, replies)) = self.asked.values_mut().find(|(asked, _)| *asked == subscription) {
            replies.push(reply);
            return Ok(());
        }
        self.last_call += 1;
        self.asked.insert(self.last_call, (Arc::clone(&subscription), vec![reply]));
        self.call(self.last_call, method.as_str(), params).await
    }

    /// Ends the node's subscriptions that have no subscriber any more, and looks whether the node is still to be used.
    async fn check(&mut self) -> Result<(), Loss> {
        self.asked.retain(|_, (_, replies)| !replies.iter().all(oneshot::Sender::is_closed));
        for subscription in self.hub.feeds.remove_idle() {
            if let Some(id) = self.ids.remove(&subscription) {
                self.subscriptions.remove(&id);
                self.last_call += 1;
                let method = format!("{}Unsubscribe", subscription.method().kind());
                self.call(self.last_call, &method, &format!("[{id}]")).await?;
            }
        }
        let members = self.hub.parts.pool.members();
        let is_used =
            members.of(self.node.id).is_some_and(|now| now.has_socket_of(&self.node) && !now.is_drained());
        if is_used { Ok(()) } else { Err("the node is not used any more") }
    }

    /// Reads a message of the node. An answer lets the client of its request go on, and a notification goes to all
    /// subscribers.
    fn read<E>(&mut self, message: Option<Result<Message, E>>) -> Result<(), Loss> {
        let Some(Ok(message)) = message else { return Err("it is closed") };
        let Message::Text(text) = message else { return Ok(()) };
        let text = unrounded(text.into());
        let message: NodeMessage<'_> =
            serde_json::from_slice(&text).map_err(|_| "its messages are no JSON-RPC")?;
        if let Some(NotificationParams { result, subscription: id }) = message.params {
            match self.subscriptions.get(&id).map(|subscription| &**subscription) {
                Some(Subscription::Slot) => {
                    let SlotInfo { slot, parent } = serde_json::from_str(result.get())
                        .map_err(|_| "it announces slots in an unknown form")?;
                    self.heard_at = Instant::now();
                    if self.hub.parts.frontier.believes(Commitment::Processed, slot) {
                        self.hub.note_slot(slot, Some(parent));
                    }
                }
                Some(subscription) => {
                    let result = result.get().as_bytes();
                    if let Some((at, slot)) = subscription.commitment().zip(context_slot(result)) {
                        let frontier = &self.hub.parts.frontier;
                        frontier.answered(frontier.era(), self.node.id, at, slot, Instant::now());
                    }
                    self.hub.feeds.publish(subscription, result, false);
                }
                // A notification may be on its way when its subscription ends.
                None => {}
            }
            return Ok(());
        }
        let (call, id) = (message.id.and_then(id_number), message.result.and_then(id_number));
        if call == Some(SLOTS_CALL) {
            let id = id.ok_or("it announces no slots")?;
            self.subscriptions.insert(id, Arc::new(Subscription::Slot));
            return Ok(());
        }
        let Some((subscription, replies)) = call.and_then(|call| self.asked.remove(&call)) else {
            return Ok(());
        };
        let taken = match (id, message.error) {
            (Some(id), _) => {
                self.hub.feeds.lock().open(&subscription);
                self.subscriptions.insert(id, Arc::clone(&subscription));
                self.ids.insert(subscription, id);
                Ok(())
            }
            (None, Some(error)) => Err(Refusal::ByNode(Bytes::copy_from_slice(error.get().as_bytes()))),
            (None, None) => Err(Refusal::NO_NODE),
        };
        for reply in replies {
            // The client may have gone.
            let _ = reply.send(taken.clone());
        }
        Ok(())
    }
}
