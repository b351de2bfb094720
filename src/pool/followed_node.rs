//! A node of the pool as a source of blocks for following.
//!
//! Requests for blocks count neither as calls in flight nor against `pool.max_buffered`. A node that refuses such
//! a request is not faulty, so these requests affect neither its breaker nor the calls of callers.

use std::sync::Arc;
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
    member: Arc<Member>,
    pool: Arc<Pool>,
}

impl FollowedNode {
    pub(super) fn new(member: Arc<Member>, pool: Arc<Pool>) -> Self {
        Self { member, pool }
    }

    /// Returns the node's id in the pool and in [`Frontier`](crate::frontier::Frontier), which tracks the
    /// nodes' slots.
    pub fn id(&self) -> usize {
        self.member.id
    }

    /// Returns the node's tier.
    pub fn tier(&self) -> u8 {
        self.member.tier
    }

    /// Counts a request against the node's rate limit. If at most half of the limit is left, returns false and counts
    /// nothing: the rest is for callers.
    pub fn take_spare_rate(&self) -> bool {
        self.member.take_spare_rate(Instant::now())
    }

    /// Sends one request to the node, without retries. [`Self::take_spare_rate`] must have counted it.
    ///
    /// # Errors
    /// The request failed, or the node is no longer known to belong to the pool's cluster.
    pub async fn ask(&self, method: &str, params: Value, timeout: Duration) -> Result<NodeReply, Fault> {
        let member = &self.member;
        let id = self.pool.next_id();
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let answer = member.client.ask(body.to_string().into(), timeout, MAX_BLOCK_BYTES).await?;
        let reply = if answer.is_long() {
            let parsed = tokio::task::spawn_blocking(move || answer.reply(id));
            parsed.await.unwrap_or(Err(Fault::BadJson))?
        } else {
            answer.reply(id)?
        };
        // The node may belong to another cluster by now.
        if self.pool.nodes.cluster.unidentified(member).is_some() {
            return Err(Fault::Foreign);
        }
        if let NodeReply::Error {
            code: code::METHOD_NOT_FOUND | code::TRANSACTION_HISTORY_NOT_AVAILABLE,
            ..
        } = reply
        {
            member.set_refusing_blocks();
        }
        Ok(reply)
    }
}
