//! Compares the parsing of params with the recorded answers of a node. Also checks that different forms of the
//! same call give equal queries.
//!
//! The cargo package leaves this test out, because the test reads `tests/fixtures` of the repository.

#![expect(clippy::unwrap_used, reason = "a panic in a test shows its line")]

use bytes::Bytes;
use serde_json::{Value, json};
use slotfront_rpc::jsonrpc::envelope::{self, Element, EnvelopeError, Request};
use slotfront_rpc::jsonrpc::{Id, Params, reply};
use slotfront_rpc::methods::{Method, Profile, Query};

const CASES: &str = include_str!("../../../tests/fixtures/contract-cases.json");
const RECORDED_ERRORS: &str = include_str!("../../../tests/fixtures/param-errors.jsonl");

/// The outcome of parsing a call: no answer, an error answer, or a query for which slotfront asks a node.
enum Outcome {
    Silence,
    Refusal(String),
    Asks(Query),
}

fn outcome(element: Element) -> Outcome {
    let mut out = Vec::new();
    match element {
        Element::Notification => return Outcome::Silence,
        Element::Refused { id, error } => reply::envelope_refusal(&mut out, &id, error),
        Element::Call(call) => {
            let method = str::from_utf8(&call.method).ok().and_then(Method::from_name);
            match method.map(|method| Query::parse(method, &call.params, Profile::Node)) {
                None => reply::refusal(&mut out, &call.id, -32601, "Method not found", None),
                Some(Ok(query)) => return Outcome::Asks(query),
                Some(Err(error)) => {
                    let data = error.data.map(|data| Value::from(data).to_string());
                    reply::refusal(&mut out, &call.id, error.code, &error.message, data.as_deref());
                }
            }
        }
    }
    Outcome::Refusal(String::from_utf8(out).unwrap())
}

#[track_caller]
fn one(body: &str) -> Outcome {
    match envelope::parse(&Bytes::copy_from_slice(body.as_bytes())) {
        Request::One(element) => outcome(element),
        Request::ParseError => outcome(Element::Refused { id: Id::Null, error: EnvelopeError::Parse }),
        Request::Batch(_) => panic!("a batch: {body}"),
    }
}

/// Returns true for an error that slotfront leaves to the node, because the error depends on the node's state or
/// version.
fn needs_a_node(error: &Value) -> bool {
    const STATE: [&str; 3] = ["could not find account", "not a Token account", "invalid transaction message"];
    // Node versions differ in these errors.
    const VERSIONS: &str = "versions::VersionedMessage: ";
    let text = error["message"].as_str().or(error["message_prefix"].as_str()).unwrap();
    let codes = [-32004, -32016].map(Value::from);
    codes.contains(&error["code"])
        || STATE.iter().any(|state| text.contains(state))
        || text.starts_with("Encoded binary")
        || (error["message_prefix"].is_string() && text.ends_with(VERSIONS))
}

/// Checks that `found`, the outcome of the recorded call `name`, is the outcome that `expect` describes.
#[track_caller]
fn check(name: &str, expect: &Value, found: &Outcome) {
    match found {
        Outcome::Silence => assert!(expect["body_empty"] == json!(true), "{name}: silence"),
        Outcome::Asks(query) => {
            let asked = expect.get("result_shape").is_some() || needs_a_node(&expect["error"]);
            assert!(asked, "{name}: asks a node for {query:?}");
        }
        Outcome::Refusal(text) => {
            let reply: Value = serde_json::from_str(text).unwrap();
            let (want, got) = (&expect["error"], &reply["error"]);
            assert_eq!(got["code"], want["code"], "{name}: {text}");
            match want["message_prefix"].as_str() {
                Some(prefix) => {
                    assert!(got["message"].as_str().unwrap().starts_with(prefix), "{name}: {text}");
                }
                None => assert_eq!(got["message"], want["message"], "{name}"),
            }
            assert_eq!(got.get("data"), want.get("data"), "{name}");
            assert_eq!(reply.get("id"), expect.get("id"), "{name}");
            assert_eq!(reply.get("jsonrpc").is_none(), expect["jsonrpc_absent"] == json!(true), "{name}");
        }
    }
}

#[test]
fn contract_cases_are_answered_like_a_node() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    let mut checked = 0;
    for case in cases.iter().filter(|case| !case["name"].as_str().unwrap().starts_with("http-")) {
        let (name, expect) = (case["name"].as_str().unwrap(), &case["expect"]);
        let body = Bytes::copy_from_slice(case["request"].as_str().unwrap().as_bytes());
        match envelope::parse(&body) {
            Request::One(element) => check(name, expect, &outcome(element)),
            Request::ParseError => check(name, expect, &one(case["request"].as_str().unwrap())),
            Request::Batch(elements) => {
                let answered: Vec<_> =
                    elements.into_iter().map(outcome).filter(|o| !matches!(o, Outcome::Silence)).collect();
                let expected = expect["batch"].as_array().map_or(&[][..], Vec::as_slice);
                assert_eq!(answered.len(), expected.len(), "{name}");
                answered.iter().zip(expected).for_each(|(found, expect)| check(name, expect, found));
            }
        }
        checked += 1;
    }
    assert!(checked > 140, "{checked} cases");
}

#[test]
fn recorded_errors_are_repeated_byte_for_byte() {
    for line in RECORDED_ERRORS.lines() {
        let exchange: Value = serde_json::from_str(line).unwrap();
        let Outcome::Refusal(reply) = one(&exchange["request"].to_string()) else {
            panic!("not refused: {line}")
        };
        assert_eq!(reply, exchange["response"].as_str().unwrap(), "{line}");
    }
}

#[test]
fn legacy_and_ignored_forms_fold_into_one_query() {
    let key = r#""SysvarC1ock11111111111111111111111111111111""#;
    let cases = [
        (Method::GetBlock, "[5]", r#"[5,"json"]"#),
        (Method::GetBlock, r#"[5,{"encoding":"base58"}]"#, r#"[5,"base58"]"#),
        (Method::GetBlock, r#"[5,{"encoding":"base58"}]"#, r#"[5,{"base58":null}]"#),
        (Method::GetBlock, "[5]", r#"[5,{"commitment":"max","minContextSlot":"x"}]"#),
        (
            Method::GetBlock,
            r#"[5,{"transactionDetails":"signatures"}]"#,
            r#"[5,{"transactionDetails":"signatures","encoding":"base64","maxSupportedTransactionVersion":0}]"#,
        ),
        (
            Method::GetBlock,
            r#"[5,{"transactionDetails":"accounts","maxSupportedTransactionVersion":0}]"#,
            r#"[5,{"transactionDetails":"accounts","encoding":"base64","maxSupportedTransactionVersion":0}]"#,
        ),
        (Method::GetAccountInfo, "[KEY]", "[KEY,null]"),
        (
            Method::GetAccountInfo,
            "[KEY]",
            r#"[KEY,{"encoding":"binary","commitment":{"commitment":"confirmed"}}]"#,
        ),
        (
            Method::GetAccountInfo,
            r#"[KEY,{"commitment":"confirmed"}]"#,
            r#"[KEY,{"commitment":{"confirmed":null}}]"#,
        ),
        (
            Method::GetAccountInfo,
            r#"[KEY,{"encoding":"base64","dataSlice":{"offset":1,"length":2}}]"#,
            r#"[KEY,{"dataSlice":[1,2],"encoding":{"base64":null}}]"#,
        ),
        (Method::GetMultipleAccounts, "[[KEY]]", r#"[[KEY],{"encoding":"base64"}]"#),
        (Method::GetTokenAccountBalance, r#"[KEY,{"commitment":"confirmed"}]"#, r#"[KEY,["confirmed"]]"#),
        (Method::GetTokenAccountBalance, "[KEY]", r#"[KEY,{"commitment":"finalized","minContextSlot":9}]"#),
        (Method::GetVoteAccounts, "[]", r#"[{"delinquentSlotDistance":128,"votePubkey":null}]"#),
        (Method::GetRecentPerformanceSamples, "[]", "[720]"),
        (Method::GetBalance, "[KEY]", r#"[KEY,{"commitment":"max","foo":null}]"#),
        (Method::GetTokenSupply, r#"[KEY,{"commitment":"confirmed"}]"#, r#"[KEY,["confirmed"]]"#),
        (Method::GetBlocks, r#"[5,{"commitment":"confirmed"}]"#, r#"[5,null,{"commitment":"confirmed"}]"#),
        (Method::GetBlocks, "[5]", r#"[5,null,{"commitment":"recent"}]"#),
        (
            Method::GetBlocks,
            r#"[5,{"commitment":"confirmed","minContextSlot":7}]"#,
            r#"[5,{"commitment":"processed"},{"commitment":"confirmed","minContextSlot":7}]"#,
        ),
        (Method::GetBlocks, "[5]", r#"[5,{"commitment":"confirmed","minContextSlot":7},{}]"#),
        (Method::GetBlocks, r#"[5,{"commitment":"confirmed"}]"#, r#"[5,{"commitment":"confirmed"},null]"#),
        (Method::GetBlocksWithLimit, "[5,6]", "[5,6,null]"),
        (
            Method::GetLeaderSchedule,
            r#"[null,{"identity":KEY}]"#,
            r#"[{"identity":KEY,"commitment":"finalized"}]"#,
        ),
        // Here a node reads the first of two configs.
        (
            Method::GetLeaderSchedule,
            r#"[{"identity":KEY}]"#,
            r#"[{"identity":KEY},{"commitment":"confirmed"}]"#,
        ),
        (Method::GetTransaction, "[SIGNATURE]", r#"[SIGNATURE,"json"]"#),
        (Method::GetTransaction, r#"[SIGNATURE,{"encoding":"base64"}]"#, r#"[SIGNATURE,{"base64":null}]"#),
        (Method::GetSignaturesForAddress, "[KEY]", r#"[KEY,{"limit":1000,"before":null}]"#),
        (Method::GetRecentPrioritizationFees, "[[KEY]]", "[[KEY,KEY]]"),
        (Method::GetRecentPrioritizationFees, "[]", "[[]]"),
        (Method::GetInflationReward, "[[KEY]]", r#"[[KEY],{"epoch":null}]"#),
        (Method::GetMinimumBalanceForRentExemption, "[5]", r#"[5,{"commitment":"finalized"}]"#),
        (
            Method::GetProgramAccounts,
            r#"[KEY,{"filters":[{"dataSize":5},{"memcmp":{"offset":1,"bytes":"1"}}]}]"#,
            r#"[KEY,{"withContext":false,"filters":[{"memcmp":{"bytes":"1","offset":1}},{"dataSize":5},{"dataSize":5}]}]"#,
        ),
        (
            Method::GetProgramAccounts,
            r#"[KEY,{"filters":[{"memcmp":{"offset":1,"bytes":"5T"}}]}]"#,
            r#"[KEY,{"filters":[{"memcmp":{"offset":1,"bytes":[1,2]}},{"memcmp":{"offset":1,"bytes":[1,2],"encoding":"bytes"}},{"memcmp":{"offset":1,"bytes":"AQI=","encoding":"base64"}},{"memcmp":{"offset":1,"bytes":"5T","encoding":"bytes"}}]}]"#,
        ),
        (
            Method::GetTokenAccountsByOwner,
            r#"[KEY,{"mint":KEY}]"#,
            r#"[KEY,{"mint":KEY},{"encoding":"binary"}]"#,
        ),
        (Method::GetSupply, "[]", r#"[{"excludeNonCirculatingAccountsList":false}]"#),
    ];
    for (method, plain, odd) in cases {
        let parse = |params: &str| {
            let signature = r#""5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW""#;
            let params = Bytes::from(params.replace("KEY", key).replace("SIGNATURE", signature));
            Query::parse(method, &Params::Array(params), Profile::Node)
        };
        assert!(parse(plain).is_ok(), "{plain}");
        assert_eq!(parse(plain), parse(odd), "{odd}");
    }
}
