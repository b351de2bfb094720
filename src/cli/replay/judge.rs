//! The comparison of two answers to one call, by the same rules by which `[verify]` compares a cache hit with
//! a node's answer.

use crate::cache::class::Class;
use crate::cache::entry::Payload;
use crate::cache::verify::compare;
use crate::methods::{Query, Slot};
use crate::node::{Contextual, NodeReply, code};
use crate::telemetry::VerifyResult;

/// The answer that slotfront or the node gave to a recorded call.
#[derive(Debug, Clone)]
pub(super) struct SideAnswer {
    reply: NodeReply,
    /// The context slot of the answer. `None` if the answer has no context.
    pub(super) slot: Option<Slot>,
}

impl SideAnswer {
    pub(super) fn new(reply: NodeReply) -> Self {
        let slot = match &reply {
            NodeReply::Result(result) => Contextual::split(result).map(|parts| parts.slot),
            NodeReply::Error { .. } => None,
        };
        Self { reply, slot }
    }
}

/// Compares slotfront's answer `ours` with the node's answer `theirs`. `query` is `None` for a method that slotfront
/// does not cache. Different answers to such a method give `Moved`, because it is unknown how its answers may change.
pub(super) fn compare_answers(query: Option<&Query>, ours: &SideAnswer, theirs: &SideAnswer) -> VerifyResult {
    if ours.reply == theirs.reply {
        return VerifyResult::Equal;
    }
    let Some(query) = query else { return VerifyResult::Moved };
    let payload = match &ours.reply {
        NodeReply::Result(result) => Payload::Result(result.clone().into()),
        NodeReply::Error { code, body } => Payload::Error { code: *code, body: body.clone() },
    };
    // If an answer has no context slot, the node's answer counts as the later one.
    let slot = |answer: &SideAnswer, absent| answer.slot.unwrap_or(absent);
    compare(query, class(query, &ours.reply), &payload, slot(ours, 0), &theirs.reply, slot(theirs, 1))
}

/// Returns the class that a cache entry with slotfront's answer `ours` would have. The class decides how long an answer
/// may be served.
fn class(query: &Query, ours: &NodeReply) -> Class {
    match (query, ours) {
        (Query::Account(_) | Query::Accounts(_) | Query::Balance(_), _) => {
            Class::Account(query.commitment().unwrap_or_default())
        }
        (Query::Fee(_), _) => Class::Fee(query.commitment().unwrap_or_default()),
        (Query::Votes(_), _) => Class::Votes(query.commitment().unwrap_or_default()),
        (Query::Samples(_), _) => Class::Samples,
        (Query::ClusterNodes, _) => Class::ClusterNodes,
        (
            Query::Block(_),
            NodeReply::Error { code: code::SLOT_SKIPPED | code::LONG_TERM_STORAGE_SLOT_SKIPPED, .. },
        ) => Class::SkippedUnconfirmed,
        (Query::Block(block), NodeReply::Error { code: code::BLOCK_NOT_AVAILABLE, .. }) => {
            Class::NotYet(block.slot, block.commitment)
        }
        (Query::Block(_), _) => Class::BlockFinal,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::jsonrpc::Params;
    use crate::methods::{Method, Profile};

    fn told(text: &str) -> SideAnswer {
        SideAnswer::new(NodeReply::parse(&Bytes::copy_from_slice(text.as_bytes()), 1).unwrap())
    }

    fn account(slot: u64, lamports: u64) -> SideAnswer {
        told(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"context":{{"slot":{slot}}},"value":{{"data":["","base64"],"lamports":{lamports}}}}}}}"#
        ))
    }

    #[test]
    fn only_contradictions_are_mismatches() {
        use VerifyResult::{Equal, Mismatch, Moved};
        let query = |method: &str, params: &'static str| {
            let method = Method::from_name(method).unwrap();
            Query::parse(method, &Params::Array(params.into()), Profile::Node).unwrap()
        };
        let key = r#"["11111111111111111111111111111111",{"encoding":"base64","commitment":"confirmed"}]"#;
        let accounts = query("getAccountInfo", key);
        let block = query("getBlock", "[5]");
        let result = |text: &str| told(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{text}}}"#));
        let error = |code: i32| {
            told(&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"m"}}}}"#))
        };
        for (name, query, ours, theirs, expected) in [
            ("the same", Some(&accounts), account(5, 1), account(5, 1), Equal),
            ("the same later", Some(&accounts), account(5, 1), account(9, 1), Equal),
            ("other, later", Some(&accounts), account(5, 1), account(9, 2), Moved),
            ("other, at the same slot", Some(&accounts), account(5, 1), account(5, 2), Mismatch),
            (
                "another block",
                Some(&block),
                result(r#"{"blockhash":"a"}"#),
                result(r#"{"blockhash":"b"}"#),
                Mismatch,
            ),
            (
                "a block said to be skipped",
                Some(&block),
                error(-32007),
                result(r#"{"blockhash":"b"}"#),
                Mismatch,
            ),
            ("skipped, in other words", Some(&block), error(-32007), error(-32009), Equal),
            ("not there yet, and there", Some(&block), error(-32004), result(r#"{"blockhash":"b"}"#), Moved),
            ("none of the eight", None, result("5"), result("6"), Moved),
            ("none of the eight, the same", None, result("5"), result("5"), Equal),
        ] {
            assert_eq!(compare_answers(query, &ours, &theirs), expected, "{name}");
        }
    }
}
