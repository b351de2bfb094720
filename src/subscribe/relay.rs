//! Subscriptions that only a node can serve, over one WebSocket to a node, each question once for all clients.
//!
//! A client's wish (`request`) goes to the best node that may serve it, whose socket (`socket`) is opened with its first one.
//! When the socket is lost or left, all clients that it fed are closed, because nobody knows what they have missed; they
//! subscribe anew, at another node. What one node does not serve, the next one is asked for.

mod request;
mod socket;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::{CHECK_INTERVAL, Hub, MAX_RELAY_REQUESTS};
use crate::error::Error;
use crate::methods::{AnyMethod, Subscription, SubscriptionMethod};
use crate::pool::member::Member;
use request::Refusal;
pub(super) use request::{RelayRequest, Ticket};

/// The maximum time that a client waits until a node has taken its subscription.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until a node feeds the subscription.
///
/// # Errors
/// No upstream has a WebSocket, none can be reached in time, or the nodes refuse the subscription.
pub(super) async fn ready(hub: &Hub, subscription: &Arc<Subscription>) -> Result<Option<Ticket>, Refusal> {
    if nodes(hub, subscription.method(), None).is_empty() {
        return Err(Refusal::Ours(Error::NoSocket(subscription.method().as_str())));
    }
    if hub.feeds.lock().keep(subscription) {
        return Ok(None);
    }
    let (reply, answer) = oneshot::channel();
    let request = RelayRequest::new(Arc::clone(subscription), vec![reply]);
    hub.relay.try_send(request).map_err(|_| Refusal::NO_NODE)?;
    let answer = timeout(READY_TIMEOUT, answer).await.map_err(|_| Refusal::NO_NODE)?;
    answer.unwrap_or(Err(Refusal::NO_NODE))
}

/// Asks for a node's socket without a subscription of it, because it announces slots sooner than polls do.
pub(super) fn prefer_socket(hub: &Hub) {
    // If it cannot be asked for, polls announce the slots.
    let _ = hub.relay.try_send(RelayRequest::new(Arc::new(Subscription::Slot), Vec::new()));
}

/// Returns the nodes that have a WebSocket and may serve `method`, the best first. `lost` is the node whose socket was lost
/// last.
fn nodes(hub: &Hub, method: SubscriptionMethod, lost: Option<usize>) -> Vec<Arc<Member>> {
    let (pool, now) = (&hub.parts.pool, Instant::now());
    let may_serve = |member: &&Arc<Member>| {
        member.upstream.ws_url.is_some()
            && !member.is_drained()
            && !member.lacks(AnyMethod::Subscription(method))
    };
    let mut nodes: Vec<_> = pool.members().iter().filter(may_serve).cloned().collect();
    nodes.sort_by_key(|member| {
        (!pool.reasons(member, now).is_empty(), Some(member.id) == lost, member.upstream.tier)
    });
    nodes
}

/// Serves requests over the sockets of nodes, each of which is opened with its first request.
pub(super) async fn run(hub: Arc<Hub>, mut requests: mpsc::Receiver<RelayRequest>) {
    let (mut open, mut running) =
        (HashMap::<usize, mpsc::Sender<RelayRequest>>::new(), FuturesUnordered::new());
    let mut lost = None;
    loop {
        let mut placed = tokio::select! {
            Some(request) = requests.recv() => vec![request],
            Some((node, left)) = running.next() => {
                open.remove(&node);
                lost = Some(node);
                left
            }
            // Whoever watches slots gets them sooner from a socket.
            () = tokio::time::sleep(CHECK_INTERVAL), if open.is_empty() && hub.feeds.has(&Subscription::Slot) => {
                vec![RelayRequest::new(Arc::new(Subscription::Slot), Vec::new())]
            }
        };
        placed.retain(|request| {
            !request.is_given_up() || *request.subscription == Subscription::Slot && open.is_empty()
        });
        for request in placed {
            let nodes = nodes(&hub, request.subscription.method(), lost);
            let Some(node) = nodes.into_iter().find(|node| !request.tried.contains(&node.id)) else {
                request.refuse();
                continue;
            };
            let sender = open.entry(node.id).or_insert_with(|| {
                let (sender, receiver) = mpsc::channel(MAX_RELAY_REQUESTS);
                running.push(socket::run(Arc::clone(&hub), node, receiver));
                sender
            });
            if let Err(error) = sender.try_send(request) {
                error.into_inner().refuse();
            }
        }
    }
}
