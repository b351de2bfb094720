//! Two answers to one call, held against each other as `verify` holds a hit against a node. Pure.

use crate::cache::class::Class;
use crate::cache::entry::Payload;
use crate::cache::verify::compare;
use crate::methods::{Query, Slot};
use crate::node::{Contextual, NodeReply};
use crate::telemetry::VerifyResult;

/// What one side said.
#[derive(Debug, Clone)]
pub(super) struct Told {
    reply: NodeReply,
    /// The slot of its context, where it has one.
    pub(super) slot: Option<Slot>,
}

impl Told {
    pub(super) fn new(reply: NodeReply) -> Self {
        let slot = match &reply {
            NodeReply::Result(result) => Contextual::split(result).map(|parts| parts.slot),
            NodeReply::Error { .. } => None,
        };
        Self { reply, slot }
    }
}

/// How slotfront's answer stands to the node's. A call of none of the eight is compared as text, and proves nothing
/// where it differs, since nothing is known of how it may change.
pub(super) fn judge(query: Option<&Query>, ours: &Told, theirs: &Told) -> VerifyResult {
    if ours.reply == theirs.reply {
        return VerifyResult::Equal;
    }
    let Some(query) = query else { return VerifyResult::Moved };
    let payload = match &ours.reply {
        NodeReply::Result(result) => Payload::Result(result.clone().into()),
        NodeReply::Error { code, body } => Payload::Error { code: *code, body: body.clone() },
    };
    // Without a slot of its own an answer is compared as one of any slot.
    let slot = |told: &Told, absent| told.slot.unwrap_or(absent);
    compare(query, class(query, &ours.reply), &payload, slot(ours, 0), &theirs.reply, slot(theirs, 1))
}

/// What kind of entry slotfront's answer would be.
fn class(query: &Query, ours: &NodeReply) -> Class {
    match (query, ours) {
        (Query::Account(_) | Query::Accounts(_) | Query::Balance(_), _) => {
            Class::Account(query.commitment().unwrap_or_default())
        }
        (Query::Fee(_), _) => Class::Fee(query.commitment().unwrap_or_default()),
        (Query::Votes(_), _) => Class::Votes(query.commitment().unwrap_or_default()),
        (Query::Samples(_), _) => Class::Samples,
        (Query::ClusterNodes, _) => Class::ClusterNodes,
        (Query::Block(_), NodeReply::Error { code: -32007 | -32009, .. }) => Class::SkippedUnconfirmed,
        (Query::Block(block), NodeReply::Error { code: -32004, .. }) => {
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

    fn told(text: &str) -> Told {
        Told::new(NodeReply::parse(&Bytes::copy_from_slice(text.as_bytes()), 1).unwrap())
    }

    fn account(slot: u64, lamports: u64) -> Told {
        told(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"context":{{"slot":{slot}}},"value":{{"data":["","base64"],"lamports":{lamports}}}}}}}"#
        ))
    }

    #[test]
    fn only_what_cannot_both_be_true_is_a_mismatch() {
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
            assert_eq!(judge(query, &ours, &theirs), expected, "{name}");
        }
    }
}
