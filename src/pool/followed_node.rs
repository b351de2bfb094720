//! A node as a source of blocks, for following the chain.
//!
//! Requests for blocks take no place of a caller and no part of `pool.max_buffered`. A node that refuses such
//! a request is not faulty, so these requests do not affect its breaker.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Pool;
use super::call::QUIET_BY_DEFAULT;
use super::member::Member;
use crate::node::client::MAX_BLOCK_BYTES;
use crate::node::{Fault, NodeReply, code};

/// A node as a source of blocks.
#[derive(Clone)]
pub struct FollowedNode {
    member: Arc<Member>,
    pool: Arc<Pool>,
}

impl FollowedNode {
    pub(super) fn new(member: Arc<Member>, pool: Arc<Pool>) -> Self {
        Self { member, pool }
    }

    /// Returns the node's number in the frontier.
    pub fn id(&self) -> usize {
        self.member.id
    }

    /// Returns the node's tier.
    pub fn tier(&self) -> u8 {
        self.member.tier
    }

    /// Asks the node once.
    ///
    /// # Errors
    /// The fault of the request. [`Fault::TooManyRequests`] without a request while the node wants no calls,
    /// or if its rate limit is reached.
    pub async fn ask(&self, method: &str, params: Value, timeout: Duration) -> Result<NodeReply, Fault> {
        let (member, now) = (&self.member, Instant::now());
        if member.quiet_left(now).is_some() || !member.take_rate(now) {
            return Err(Fault::TooManyRequests(None));
        }
        let id = self.pool.next_id();
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let answer = member.client.ask(body.to_string().into(), timeout, MAX_BLOCK_BYTES).await;
        if let Err(Fault::TooManyRequests(wait)) = answer {
            member.quiet_for(wait.unwrap_or(QUIET_BY_DEFAULT), Instant::now());
        }
        let answer = answer?;
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
