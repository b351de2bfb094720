//! A node of the pool as a source of blocks for following.
//!
//! Requests for blocks count neither as calls in flight nor against `pool.max_buffered`. A node that refuses such
//! a request is not faulty, so these requests affect neither its breaker nor the calls of callers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Pool;
use super::member::Member;
use crate::node::client::MAX_BLOCK_BYTES;
use crate::node::{Fault, NodeReply, code};

/// A node of the pool that is asked for blocks, to learn which accounts each block writes.
#[derive(Clone)]
pub struct FollowedNode {
    /// The node in the pool.
    pub member: Arc<Member>,
    pub(super) pool: Arc<Pool>,
}

impl FollowedNode {
    /// Sends one request to the node, without retries. While the node wants none of these requests, or at most half of its
    /// rate limit is left, nothing is sent: the rest is for callers.
    ///
    /// # Errors
    /// The request failed or was not sent, or the node is no longer known to belong to the pool's cluster.
    pub async fn ask(&self, method: &str, params: Value, timeout: Duration) -> Result<NodeReply, Fault> {
        let (member, sent_at) = (&self.member, Instant::now());
        let quiet = &member.state.quiet_for_follower;
        if quiet.left((), sent_at).is_some() || !member.take_spare_rate() {
            return Err(Fault::TooManyRequests(None));
        }
        let id = self.pool.next_id();
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let reply = match member.client.ask(body.to_string().into(), timeout, MAX_BLOCK_BYTES).await {
            Ok(answer) => answer.read(id, Ok).await,
            Err(fault) => Err(fault),
        };
        // The node may belong to another cluster by now.
        if reply.is_ok() && self.pool.nodes.cluster.unidentified(member).is_some() {
            return Err(Fault::Foreign);
        }
        match reply {
            Err(Fault::TooManyRequests(wanted)) => quiet.refused((), wanted, sent_at, Instant::now()),
            Ok(NodeReply::Error {
                code: code::METHOD_NOT_FOUND | code::TRANSACTION_HISTORY_NOT_AVAILABLE,
                ..
            }) => member.state.refuses_blocks.store(true, Ordering::Relaxed),
            _ => {}
        }
        reply
    }
}
