//! The answers that the pool gives for all its nodes: their health, version and oldest block.
//!
//! A caller of getHealth asks if calls are answered, which does not depend on a single node. The oldest block is the one
//! up to which routing finds a node, so that a caller may rely on it.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::member::Member;
use super::{Pool, PoolReply};
use crate::methods::Method;
use crate::node::{NodeReply, code};

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
        let result = |result: Value| NodeReply::Result(result.to_string().into());
        let body = match method {
            Method::GetHealth if is_healthy => result(json!("ok")),
            Method::GetHealth => {
                let (code, message) = (code::NODE_UNHEALTHY, "Node is unhealthy");
                let body = json!({ "code": code, "message": message, "data": { "numSlotsBehind": null } });
                NodeReply::Error { code, body: body.to_string().into() }
            }
            Method::GetVersion => {
                let (version, member) =
                    members().filter_map(|m| Some((m.version()?, m))).min_by_key(|(v, _)| rank(v))?;
                result(json!({ "feature-set": member.feature_set(), "solana-core": *version }))
            }
            _ => result(json!(members().filter_map(Member::first_available).min()?)),
        };
        let (node, slot, finalized, is_short) = (NO_NODE, 0, 0, false);
        Some(PoolReply { node, body, sent_at: now, slot, finalized, is_short, blocks: None })
    }
}

/// Returns the place of a version in the order of versions. Those of Agave come first, because Firedancer counts its
/// versions, `0.708.40000`, in another way, which cannot be compared. A pre-release comes before its release.
fn rank(version: &str) -> (bool, Vec<u64>) {
    let is_agave =
        version.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u64| major > 0);
    // Alpha, beta and rc are in the order of the alphabet.
    let number = |part: &str| part.parse().unwrap_or_else(|_| part.bytes().next().map_or(0, u64::from));
    let mut numbers: Vec<u64> = version.split(['.', '-']).map(number).collect();
    if !version.contains('-') {
        numbers.push(u64::MAX);
    }
    (!is_agave, numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_within_one_scheme() {
        for (versions, lowest) in [
            (&["4.0.2", "4.0.10", "4.1.0"][..], "4.0.2"),
            (&["0.708.40000", "4.0.0", "3.1.9"], "3.1.9"),
            (&["0.505.20216", "10.0.0"], "10.0.0"),
            (&["0.708.40000", "0.505.20216", "0.1001.1"], "0.505.20216"),
            (&["4.1.0", "4.1.0-rc.0", "4.1.0-beta.2", "4.1.0-alpha.10"], "4.1.0-alpha.10"),
            (&["4.1.0-alpha.4", "4.0.9"], "4.0.9"),
            (&["unknown", "4.0.0"], "4.0.0"),
            (&["unknown"], "unknown"),
        ] {
            for order in [versions.to_vec(), versions.iter().rev().copied().collect()] {
                assert_eq!(
                    order.into_iter().min_by_key(|version| rank(version)),
                    Some(lowest),
                    "{versions:?}"
                );
            }
        }
    }
}
