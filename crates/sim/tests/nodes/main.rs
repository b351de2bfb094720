//! Tests of simulated nodes: their answers, and their faults on a real socket. `tests/real/oracle` compares their
//! accounts and blocks with what the node's own crates write, and `tests/real/judges` all answers with the public
//! specifications.
//!
//! The cargo package leaves these tests out, because some of them read `tests/fixtures` of the repository.

#![expect(clippy::unwrap_used, reason = "a panic in a test shows its line")]

mod answers;
mod contract;
mod http;
mod sending;
mod small;
mod socket;

use std::sync::Arc;

use serde_json::{Value, json};
use slotfront_sim::{Cluster, Node, Settings};

/// The number of slots that a cluster has passed before a test starts, enough for the first block of an epoch to
/// be final.
const HISTORY: u64 = 110;

/// Creates a simulated cluster that advances only by calls of [`Cluster::step`].
fn cluster() -> Arc<Cluster> {
    Cluster::new(Settings { slot_time: None, history_slots: HISTORY, ..Settings::default() })
}

/// Returns the answer of a node to one call.
fn call(node: &Node, method: &str, params: &Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let answer = node.answer(body.to_string().as_bytes());
    serde_json::from_slice(&answer).unwrap()
}

#[track_caller]
fn result(node: &Node, method: &str, params: &Value) -> Value {
    let mut answer = call(node, method, params);
    assert!(answer.get("error").is_none(), "{method} {params}: {answer}");
    answer["result"].take()
}

#[track_caller]
fn code(node: &Node, method: &str, params: &Value) -> i64 {
    let answer = call(node, method, params);
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method} {params}: {answer}"))
}
