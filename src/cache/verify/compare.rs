//! The comparison of a hit with a node's later answer to the same call.
//!
//! Only answers that cannot both be true are a mismatch. Answers without a slot (votes, samples, nodes,
//! errors that depend on an account) may have changed between the hit and the later answer. At finalized a
//! node's answer may show data of up to two slots after its context slot. A node that joined late may report
//! a slot as skipped although another node has its block.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;

use super::super::entry::{Class, Payload};
use crate::methods::{AccountEncoding, Commitment, Query, Slot};
use crate::node::{Contextual, NodeReply, code};
use crate::telemetry::VerifyResult;

/// The largest size of an account in bytes. Data that unpacks to more belongs to no account.
const MAX_ACCOUNT_BYTES: u64 = 10 << 20;
const SKIPPED: [i32; 2] = [code::SLOT_SKIPPED, code::LONG_TERM_STORAGE_SLOT_SKIPPED];

pub(super) fn is_same_state(class: Class, hit_slot: Slot, again_slot: Slot) -> bool {
    match class {
        Class::Account(commitment) | Class::Fee(commitment) => {
            hit_slot == again_slot && commitment != Commitment::Finalized
        }
        _ => true,
    }
}

/// Compares `hit`, which answered `query`, with a node's answer that shows the same state of the cluster.
pub(super) fn compare_states(query: &Query, class: Class, hit: &Payload, again: &NodeReply) -> VerifyResult {
    match are_equal(query, hit, again) {
        Some(true) => VerifyResult::Equal,
        Some(false) if contradicts(class, hit, again) => VerifyResult::Mismatch,
        _ => VerifyResult::Moved,
    }
}

/// Returns true if both answers say the same, apart from parts that may differ. `None` if an answer cannot be parsed.
fn are_equal(query: &Query, hit: &Payload, again: &NodeReply) -> Option<bool> {
    match (hit, again) {
        (Payload::Result(hit), NodeReply::Result(again)) => {
            let hit = hit.whole();
            let value = |text: &Bytes| Some(Contextual::split(text)?.value);
            if hit == *again || value(&hit).is_some_and(|hit| value(again) == Some(hit)) {
                Some(true)
            } else {
                Some(comparable(query, &hit)? == comparable(query, again)?)
            }
        }
        (Payload::Error { code, body }, NodeReply::Error { code: again, body: other }) => match query {
            // For a block the code is enough. The message changes from version to version.
            Query::Block(_) => Some(code == again || (SKIPPED.contains(code) && SKIPPED.contains(again))),
            _ => Some(code == again && parsed(body)? == parsed(other)?),
        },
        _ => Some(false),
    }
}

/// Returns true if a hit and a node's different answer cannot both be true of one state.
fn contradicts(class: Class, hit: &Payload, again: &NodeReply) -> bool {
    let something = matches!(again, NodeReply::Result(result) if result.as_ref() != b"null");
    match (class, hit) {
        (Class::BlockFinal | Class::BlockConfirmed, Payload::Result(_)) => {
            something || matches!(again, NodeReply::Error { code: code::UNSUPPORTED_TRANSACTION_VERSION, .. })
        }
        (Class::Account(_) | Class::Fee(_), Payload::Result(_))
        | (Class::BlockFinal | Class::BlockConfirmed | Class::Skipped, Payload::Error { .. }) => something,
        // Long-term storage is filled with a delay, so a missing block may still come.
        (Class::SkippedUnconfirmed, Payload::Error { code, .. }) => {
            something && *code != code::LONG_TERM_STORAGE_SLOT_SKIPPED
        }
        _ => false,
    }
}

/// Returns a result without the parts that may differ: its context, the compression of its data, and the
/// order of unordered lists. Slots are compared separately.
fn comparable(query: &Query, result: &Bytes) -> Option<Value> {
    Some(match query {
        Query::Account(_) => unpacked(parsed(&Contextual::split(result)?.value)?),
        Query::Accounts(_) => match parsed(&Contextual::split(result)?.value)? {
            Value::Array(accounts) => accounts.into_iter().map(unpacked).collect(),
            other => other,
        },
        Query::Balance(_) | Query::Supply(_) | Query::Lamports(_) | Query::Fee(_) => {
            parsed(&Contextual::split(result)?.value)?
        }
        Query::Votes(_) => {
            let mut votes = parsed(result)?;
            for list in ["current", "delinquent"] {
                sort_by_member(votes.get_mut(list)?, "votePubkey");
            }
            votes
        }
        Query::ClusterNodes => {
            let mut nodes = parsed(result)?;
            sort_by_member(&mut nodes, "pubkey");
            nodes
        }
        _ if query.has_context() => parsed(&Contextual::split(result)?.value)?,
        _ => parsed(result)?,
    })
}

fn parsed(json: &Bytes) -> Option<Value> {
    serde_json::from_slice(json).ok()
}

fn sort_by_member(list: &mut Value, member: &str) {
    if let Value::Array(list) = list {
        list.sort_by(|a, b| a[member].as_str().cmp(&b[member].as_str()));
    }
}

/// Returns an account without the members that only some versions of nodes write. Its base64+zstd data is unpacked,
/// because the packed bytes depend on the version of the compressor.
fn unpacked(mut account: Value) -> Value {
    if let Some(members) = account.as_object_mut() {
        members.retain(|member, _| !["rentEpoch", "space"].contains(&member.as_str()));
    }
    let Some(data) = account.get_mut("data") else { return account };
    let plain = match data.as_array().map(Vec::as_slice) {
        Some([Value::String(text), Value::String(encoding)])
            if encoding == AccountEncoding::Base64Zstd.as_str() =>
        {
            unpack(text)
        }
        _ => None,
    };
    if let Some(plain) = plain {
        *data = Value::from(STANDARD.encode(plain));
    }
    account
}

fn unpack(text: &str) -> Option<Vec<u8>> {
    let packed = STANDARD.decode(text).ok()?;
    let mut plain = Vec::new();
    let bound = MAX_ACCOUNT_BYTES + 1;
    zstd::stream::Decoder::new(&packed[..]).ok()?.take(bound).read_to_end(&mut plain).ok()?;
    (plain.len() as u64 <= MAX_ACCOUNT_BYTES).then_some(plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::jsonrpc::Params;
    use crate::methods::{FeeQuery, Method, Profile};
    use VerifyResult::{Equal, Mismatch, Moved};

    const KEY: &str = "11111111111111111111111111111111";
    /// The context slot of the hit.
    const SLOT: Slot = 100;
    const CONFIRMED: Class = Class::Account(Commitment::Confirmed);
    const FINALIZED: Class = Class::Account(Commitment::Finalized);

    fn query(method: Method) -> Query {
        let params = match method {
            Method::GetFeeForMessage => {
                let (message, commitment) = (Bytes::from_static(b"message"), Commitment::Confirmed);
                return Query::Fee(FeeQuery { message, commitment, min_context_slot: None });
            }
            Method::GetBlock => "[7]".to_owned(),
            Method::GetMultipleAccounts => format!(r#"[["{KEY}","{KEY}"]]"#),
            Method::GetAccountInfo | Method::GetTokenAccountBalance => format!(r#"["{KEY}"]"#),
            _ => "[]".to_owned(),
        };
        Query::parse(method, &Params::Array(params.into()), Profile::Node).unwrap()
    }

    /// An answer of the cache or of a node.
    #[derive(Debug, Clone)]
    enum TestAnswer {
        Result(Value),
        Error(i32, &'static str),
    }
    use TestAnswer::Error;

    fn error(code: i32, message: &str) -> Bytes {
        json!({ "code": code, "message": message }).to_string().into()
    }

    fn value(value: &Value) -> TestAnswer {
        TestAnswer::Result(json!({ "context": { "slot": SLOT, "apiVersion": "4.0.0" }, "value": value }))
    }

    /// Asserts that the hit `hit` and a node's answer `again`, at slot `at`, compare as expected.
    #[track_caller]
    fn check(
        method: Method,
        class: Class,
        hit: &TestAnswer,
        again: &TestAnswer,
        at: Slot,
        expected: VerifyResult,
    ) {
        let payload = match hit {
            TestAnswer::Result(value) => Payload::Result(Bytes::from(value.to_string()).into()),
            Error(code, message) => Payload::Error { code: *code, body: error(*code, message) },
        };
        let reply = match again {
            // A node of another version may write the same answer like this.
            TestAnswer::Result(value) => {
                NodeReply::Result(format!("{value:#}").replace("\"4.0.0\"", "\"4.1.0\"").into())
            }
            Error(code, message) => NodeReply::Error { code: *code, body: error(*code, message) },
        };
        let result = match compare_states(&query(method), class, &payload, &reply) {
            VerifyResult::Mismatch if !is_same_state(class, SLOT, at) => VerifyResult::Moved,
            result => result,
        };
        assert_eq!(result, expected, "{method:?} {class:?}: {hit:?} against {again:?} at {at}");
    }

    #[test]
    fn answers_with_a_slot_contradict_at_that_slot() {
        let [one, two] =
            [1, 2].map(|lamports| value(&json!({ "lamports": lamports, "data": ["", "base64"] })));
        let nothing = value(&Value::Null);
        for (class, hit, again, at, expected) in [
            (CONFIRMED, &one, &one, SLOT, Equal),
            (CONFIRMED, &one, &one, SLOT + 1, Equal),
            (CONFIRMED, &one, &two, SLOT, Mismatch),
            (CONFIRMED, &one, &nothing, SLOT, Mismatch),
            (CONFIRMED, &nothing, &one, SLOT, Mismatch),
            (CONFIRMED, &one, &two, SLOT + 1, Moved),
            (CONFIRMED, &one, &two, SLOT - 1, Moved),
            (Class::Account(Commitment::Processed), &one, &two, SLOT, Mismatch),
            (FINALIZED, &one, &one, SLOT, Equal),
            (FINALIZED, &one, &two, SLOT, Moved),
            (FINALIZED, &one, &two, SLOT + 2, Moved),
        ] {
            check(Method::GetAccountInfo, class, hit, again, at, expected);
        }
        let [list, other] = [1, 2].map(|n| value(&json!([null, { "lamports": n }])));
        let [amount, more] = [1, 2].map(|n| value(&json!({ "amount": n.to_string() })));
        let [fee, dearer] = [1, 2].map(|n| value(&json!(n)));
        for (method, class, hit, differs) in [
            (Method::GetMultipleAccounts, CONFIRMED, &list, &other),
            (Method::GetTokenAccountBalance, CONFIRMED, &amount, &more),
            (Method::GetFeeForMessage, Class::Fee(Commitment::Confirmed), &fee, &dearer),
        ] {
            check(method, class, hit, hit, SLOT + 1, Equal);
            check(method, class, hit, differs, SLOT, Mismatch);
            check(method, class, hit, differs, SLOT + 1, Moved);
        }
    }

    #[test]
    fn packed_data_is_compared_unpacked() {
        let packed = |data: &[u8], level| STANDARD.encode(zstd::stream::encode_all(data, level).unwrap());
        let account = |text: String| json!({ "data": [text, "base64+zstd"], "lamports": 1 });
        let data = b"a long text, a long text, a long text, and a short one".repeat(200);
        let (quick, small) = (account(packed(&data, 1)), account(packed(&data, 19)));
        assert_ne!(quick, small, "other bytes for the same data");
        let (other, torn) = (account(packed(&data[1..], 1)), account("AAAA".to_owned()));
        for (again, expected) in [(&quick, Equal), (&small, Equal), (&other, Mismatch), (&torn, Mismatch)] {
            check(Method::GetAccountInfo, CONFIRMED, &value(&quick), &value(again), SLOT, expected);
            let list = |account: &Value| value(&json!([account, null]));
            check(Method::GetMultipleAccounts, CONFIRMED, &list(&quick), &list(again), SLOT, expected);
        }
        let flood = packed(&vec![0; 1 + (10 << 20)], 1);
        assert!(unpack(&flood).is_none() && unpack(&packed(&data, 1)) == Some(data));
    }

    #[test]
    fn members_of_some_versions_do_not_count() {
        let account = |lamports: u64| json!({ "lamports": lamports, "rentEpoch": 1, "space": 0 });
        for (other, expected) in [
            (json!({ "lamports": 1, "rentEpoch": 0, "space": 0 }), Equal),
            (json!({ "lamports": 1, "rentEpoch": 1 }), Equal),
            (account(2), Mismatch),
        ] {
            check(Method::GetAccountInfo, CONFIRMED, &value(&account(1)), &value(&other), SLOT, expected);
        }
    }

    #[test]
    fn answers_without_a_slot_never_contradict() {
        let vote = |key: &str, last: u64| json!({ "votePubkey": key, "lastVote": last });
        let votes = |current: &[Value], delinquent: &[Value]| {
            TestAnswer::Result(json!({ "current": current, "delinquent": delinquent }))
        };
        let (a, b) = (vote("a", 1), vote("b", 1));
        let all = votes(&[a.clone(), b.clone()], &[]);
        for (again, expected) in [
            (votes(&[b.clone(), a.clone()], &[]), Equal),
            (votes(std::slice::from_ref(&a), &[b]), Moved),
            (votes(&[a, vote("b", 2)], &[]), Moved),
        ] {
            check(Method::GetVoteAccounts, Class::Votes(Commitment::Confirmed), &all, &again, SLOT, expected);
        }
        let nodes = |keys: &[&str]| {
            TestAnswer::Result(keys.iter().map(|key| json!({ "pubkey": key, "rpc": null })).collect())
        };
        for (again, expected) in [(nodes(&["b", "a"]), Equal), (nodes(&["a"]), Moved)] {
            let hit = nodes(&["a", "b"]);
            check(Method::GetClusterNodes, Class::ClusterNodes, &hit, &again, SLOT, expected);
        }
        let samples =
            |slots: &[u64]| TestAnswer::Result(slots.iter().map(|n| json!({ "slot": n })).collect());
        for (again, expected) in [(samples(&[2, 1]), Equal), (samples(&[3, 2]), Moved)] {
            let (method, hit) = (Method::GetRecentPerformanceSamples, samples(&[2, 1]));
            check(method, Class::Samples, &hit, &again, SLOT, expected);
        }
        // These errors depend on an account.
        let (missing, other) =
            (Error(-32602, "could not find account"), Error(-32602, "not a Token account"));
        let amount = value(&json!({ "amount": "1" }));
        for (hit, again, expected) in [
            (&missing, &missing, Equal),
            (&missing, &other, Moved),
            (&missing, &amount, Moved),
            (&amount, &missing, Moved),
        ] {
            check(Method::GetTokenAccountBalance, CONFIRMED, hit, again, SLOT, expected);
        }
    }

    #[test]
    fn final_blocks_and_skipped_slots_never_change() {
        let [block, other] = [1, 2].map(|height| TestAnswer::Result(json!({ "blockHeight": height })));
        let null = TestAnswer::Result(Value::Null);
        let (skipped, lacking) = (Error(-32007, "skipped, or missing"), Error(-32009, "skipped in storage"));
        let (version, reworded) = (Error(-32015, "version (0)"), Error(-32015, "version 0"));
        let (not_yet, cleaned) = (Error(-32004, "not available"), Error(-32001, "cleaned up"));
        let not_yet_at = Class::NotYet(7, Commitment::Confirmed);
        for (class, hit, again, expected) in [
            (Class::BlockFinal, &block, &block, Equal),
            (Class::BlockFinal, &block, &other, Mismatch),
            (Class::BlockFinal, &block, &version, Mismatch),
            (Class::BlockFinal, &version, &block, Mismatch),
            (Class::BlockFinal, &version, &reworded, Equal),
            (Class::BlockConfirmed, &block, &other, Mismatch),
            (Class::BlockConfirmed, &block, &block, Equal),
            // A node that joined late may report a slot as skipped although another node has its block.
            (Class::BlockFinal, &block, &skipped, Moved),
            (Class::BlockFinal, &block, &lacking, Moved),
            (Class::BlockFinal, &block, &not_yet, Moved),
            (Class::BlockFinal, &block, &cleaned, Moved),
            (Class::BlockFinal, &block, &null, Moved),
            (Class::BlockFinal, &version, &null, Moved),
            (Class::Skipped, &skipped, &skipped, Equal),
            (Class::Skipped, &skipped, &lacking, Equal),
            (Class::Skipped, &skipped, &block, Mismatch),
            (Class::Skipped, &lacking, &block, Mismatch),
            (Class::Skipped, &skipped, &null, Moved),
            (Class::Skipped, &skipped, &cleaned, Moved),
            (Class::SkippedUnconfirmed, &skipped, &block, Mismatch),
            (Class::SkippedUnconfirmed, &lacking, &block, Moved),
            (not_yet_at, &not_yet, &not_yet, Equal),
            (not_yet_at, &not_yet, &block, Moved),
        ] {
            // The slot of the node does not matter.
            for at in [SLOT, SLOT + 5] {
                check(Method::GetBlock, class, hit, again, at, expected);
            }
        }
    }

    #[test]
    fn refusals_prove_nothing() {
        let hit = value(&json!({ "lamports": 1 }));
        for again in [
            Error(-32016, "Minimum context slot has not been reached"),
            Error(-32600, "Encoded binary (base 58) data should be less than 128 bytes"),
            TestAnswer::Result(json!("no account's answer")),
            TestAnswer::Result(Value::Null),
        ] {
            check(Method::GetAccountInfo, CONFIRMED, &hit, &again, SLOT, Moved);
        }
    }
}
