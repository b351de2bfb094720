//! Params against what a node answered: the contract's cases, recorded errors, and properties of canonical form.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::error::Error;
use crate::jsonrpc::envelope::{self, Element, Request};
use crate::jsonrpc::reply;

const CASES: &str = include_str!("../../tests/fixtures/contract-cases.json");
const RECORDED_ERRORS: &str = include_str!("../../tests/fixtures/param-errors.jsonl");

/// What becomes of one call before any node is asked.
enum Outcome {
    Silence,
    Refusal(String),
    Asks(Query),
}

fn outcome(element: Element) -> Outcome {
    let (id, error) = match element {
        Element::Notification => return Outcome::Silence,
        Element::Refused { id, error } => (id, error),
        Element::Call(call) => {
            let verdict = match str::from_utf8(&call.method).ok().and_then(Method::from_name) {
                None => Err(Error::MethodNotFound),
                Some(method) => Query::parse(method, &call.params, Profile::Node).map_err(Error::Params),
            };
            match verdict {
                Ok(query) => return Outcome::Asks(query),
                Err(error) => (call.id, error),
            }
        }
    };
    let mut out = Vec::new();
    reply::refusal(&mut out, &id, &error);
    Outcome::Refusal(String::from_utf8(out).unwrap())
}

#[track_caller]
fn one(body: &str) -> Outcome {
    match envelope::parse(&Bytes::copy_from_slice(body.as_bytes())) {
        Request::One(element) => outcome(element),
        Request::ParseError => {
            outcome(Element::Refused { id: crate::jsonrpc::Id::Null, error: Error::Parse })
        }
        Request::Batch(_) => panic!("a batch: {body}"),
    }
}

/// What a node says of itself, not of the call.
fn needs_a_node(error: &Value) -> bool {
    const STATE: [&str; 3] = ["could not find account", "not a Token account", "invalid transaction message"];
    // Not by us: node versions differ on it.
    const VERSIONS: &str = "versions::VersionedMessage: ";
    let text = error["message"].as_str().or(error["message_prefix"].as_str()).unwrap();
    let codes = [-32004, -32016].map(Value::from);
    codes.contains(&error["code"])
        || STATE.iter().any(|state| text.contains(state))
        || text.starts_with("Encoded binary")
        || (error["message_prefix"].is_string() && text.ends_with(VERSIONS))
}

/// Checks one expectation of a case; `found` is what became of the call.
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
fn every_contract_case_is_answered_as_a_node_answers() {
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
