//! The answers that the pool gives for all its nodes: their health, version and oldest block.
//!
//! A caller of getHealth asks if calls are answered, which does not depend on a single node. The oldest block is the one
//! up to which routing finds a node, so that a caller may rely on it.

use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use super::member::Member;
use super::{Pool, PoolReply};
use crate::methods::Method;
use crate::node::{NodeReply, code};

/// The node index of an answer that came from no single node.
const NO_NODE: usize = usize::MAX;

impl Pool {
    /// Returns the answer to `method`, which the pool gives itself. `None` if no node has told what it needs.
    pub(super) fn own_answer(&self, method: Method) -> Option<PoolReply> {
        let now = Instant::now();
        let standing = self.standing(now);
        let usable: Vec<_> = standing.iter().filter(|(_, unusable)| unusable.is_none()).collect();
        let is_healthy = !usable.is_empty();
        // Without a usable node, calls still go to the others.
        let asked = if is_healthy { usable } else { standing.iter().collect() };
        let members = || asked.iter().map(|(member, _)| &**member);
        let result = match method {
            Method::GetHealth if is_healthy => json!("ok"),
            Method::GetHealth => {
                let (code, message) = (code::NODE_UNHEALTHY, "Node is unhealthy");
                let body = json!({ "code": code, "message": message, "data": { "numSlotsBehind": null } });
                let body = NodeReply::Error { code, body: body.to_string().into() };
                return Some(PoolReply {
                    node: NO_NODE,
                    body,
                    sent_at: now,
                    slot: 0,
                    finalized: 0,
                    is_short: false,
                });
            }
            Method::GetVersion => {
                let (version, member) =
                    members().filter_map(|m| Some((m.version()?, m))).min_by_key(|(v, _)| numbers(v))?;
                json!({ "feature-set": member.feature_set(), "solana-core": *version })
            }
            _ => json!(members().filter_map(Member::first_available).min()?),
        };
        let body = NodeReply::Result(Bytes::from(result.to_string()));
        Some(PoolReply { node: NO_NODE, body, sent_at: now, slot: 0, finalized: 0, is_short: false })
    }
}

/// Returns the numbers of a version, by which versions are compared.
fn numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-']).map(|part| part.parse().unwrap_or(0)).collect()
}
