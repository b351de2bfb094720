//! What clients want of a node, and what becomes of it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::super::Hub;
use crate::error::Error;
use crate::jsonrpc::{Id, reply};
use crate::methods::Subscription;
use crate::telemetry::Outcome;

/// The wish of clients that a node takes a subscription.
pub(in crate::subscribe) struct RelayRequest {
    pub(super) subscription: Arc<Subscription>,
    pub(super) replies: Vec<Reply>,
    /// The ids of the nodes that do not serve it, and what the last one has said.
    pub(super) tried: Vec<usize>,
    pub(super) refusal: Refusal,
}

pub(super) type Reply = oneshot::Sender<Result<Option<Ticket>, Refusal>>;

/// The claim of a client that waits for a feed to what the feed notifies of meanwhile. It must not be dropped under the lock
/// of the feeds.
pub(in crate::subscribe) struct Ticket {
    pub(super) hub: Arc<Hub>,
    pub(in crate::subscribe) subscription: Arc<Subscription>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.hub.feeds.lock().end_wait(&self.subscription);
    }
}

#[derive(Debug, Clone)]
pub(in crate::subscribe) enum Refusal {
    ByNode(Bytes),
    Ours(Error),
}

impl Refusal {
    pub(super) const NO_NODE: Self = Self::Ours(Error::NoUpstream(Vec::new()));

    /// Returns the answer to the refused call.
    pub(in crate::subscribe) fn write(&self, id: &Id) -> Vec<u8> {
        let mut text = Vec::with_capacity(128);
        match self {
            Self::ByNode(error) => reply::node_error(&mut text, id, error),
            Self::Ours(error) => error.write_response(&mut text, id),
        }
        text
    }

    /// Returns the outcome under which the metrics count the refused call. The error of a node is its answer.
    pub(in crate::subscribe) fn outcome(&self) -> Outcome {
        match self {
            Self::ByNode(_) => Outcome::Miss,
            Self::Ours(error) => error.outcome(),
        }
    }
}

impl RelayRequest {
    pub(super) fn new(subscription: Arc<Subscription>, replies: Vec<Reply>) -> Self {
        Self { subscription, replies, tried: Vec::new(), refusal: Refusal::NO_NODE }
    }

    /// Returns true if no client waits any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.replies.iter().all(oneshot::Sender::is_closed)
    }

    pub(super) fn refuse(self) {
        for reply in self.replies {
            // The client may have gone.
            let _ = reply.send(Err(self.refusal.clone()));
        }
    }
}
