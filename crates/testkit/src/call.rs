//! One JSON-RPC call, written as it reads.

use serde_json::{Map, Value, json};
use slotfront::jsonrpc::Params;
use slotfront::methods::{Commitment, Method, Profile, Query};
use slotfront_sim::Node;

use crate::cluster::node_answer;
use crate::reply::Reply;
use crate::request::TestRequest;

/// A call that is not sent yet: its params grow by methods named like the fields of its configuration.
#[derive(Clone)]
#[must_use = "a call does nothing until it is sent"]
pub struct TestCall {
    request: TestRequest,
    id: Value,
    method: String,
    params: Vec<Value>,
    config: Map<String, Value>,
}

impl TestCall {
    pub(crate) fn new(request: TestRequest, method: &str, params: Vec<Value>) -> Self {
        Self { request, id: json!(1), method: method.to_owned(), params, config: Map::new() }
    }

    /// Sets a field of the configuration, which is the last of the params.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.config.insert(field.to_owned(), value.into());
        self
    }

    /// Asks at this commitment.
    pub fn commitment(self, commitment: Commitment) -> Self {
        self.with("commitment", commitment.as_str())
    }

    /// Asks at processed.
    pub fn processed(self) -> Self {
        self.commitment(Commitment::Processed)
    }

    /// Asks at confirmed.
    pub fn confirmed(self) -> Self {
        self.commitment(Commitment::Confirmed)
    }

    /// Asks at finalized, by name. A call without a commitment is at finalized, too.
    pub fn finalized(self) -> Self {
        self.commitment(Commitment::Finalized)
    }

    /// Asks for accounts or a block in this encoding.
    pub fn encoding(self, encoding: &str) -> Self {
        self.with("encoding", encoding)
    }

    /// Asks for accounts in base64.
    pub fn base64(self) -> Self {
        self.encoding("base64")
    }

    /// Asks for parsed accounts or transactions.
    pub fn json_parsed(self) -> Self {
        self.encoding("jsonParsed")
    }

    /// Asks for a part of each account's data.
    pub fn slice(self, offset: u64, length: u64) -> Self {
        self.with("dataSlice", json!({"offset": offset, "length": length}))
    }

    /// Asks for an answer of this slot or a later one.
    pub fn min_context_slot(self, slot: u64) -> Self {
        self.with("minContextSlot", slot)
    }

    /// Accepts transactions of version 0 in a block.
    pub fn version_0(self) -> Self {
        self.with("maxSupportedTransactionVersion", 0)
    }

    /// Asks for this much of a block's transactions: `full`, `accounts`, `signatures` or `none`.
    pub fn details(self, details: &str) -> Self {
        self.with("transactionDetails", details)
    }

    /// Asks for a block with or without its rewards.
    pub fn rewards(self, rewards: bool) -> Self {
        self.with("rewards", rewards)
    }

    /// Asks for this many samples at most.
    pub fn limit(mut self, samples: usize) -> Self {
        self.params.push(json!(samples));
        self
    }

    /// Asks for one validator's vote account.
    pub fn vote_account(self, key: impl ToString) -> Self {
        self.with("votePubkey", key.to_string())
    }

    /// Replaces the id 1.
    pub fn id(mut self, id: impl Into<Value>) -> Self {
        self.id = id.into();
        self
    }

    /// Replaces the key `dev`.
    pub fn key(mut self, key: &str) -> Self {
        self.request = self.request.key(key);
        self
    }

    /// Sends to another path than that of a key.
    pub fn path(mut self, path: &str) -> Self {
        self.request = self.request.path(path);
        self
    }

    /// Sends by another client than the gateway's own.
    pub fn client(mut self, client: &reqwest::Client) -> Self {
        self.request = self.request.client(client);
        self
    }

    /// Adds a header field.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// Adds header fields.
    pub fn headers(mut self, headers: &[(&str, &str)]) -> Self {
        self.request = self.request.headers(headers);
        self
    }

    /// Asks for an answer past the cache.
    pub fn no_cache(mut self) -> Self {
        self.request = self.request.no_cache();
        self
    }

    /// Returns the name of the method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns the params.
    pub fn params(&self) -> Value {
        let mut params = self.params.clone();
        if !self.config.is_empty() {
            params.push(Value::Object(self.config.clone()));
        }
        Value::Array(params)
    }

    /// Returns the call as an element of a batch.
    pub fn json(&self) -> Value {
        json!({"jsonrpc": "2.0", "id": self.id, "method": self.method, "params": self.params()})
    }

    /// Returns the call as it is posted.
    pub fn body(&self) -> String {
        self.json().to_string()
    }

    /// Returns the HTTP request that makes the call.
    pub fn request(&self) -> TestRequest {
        self.request.clone().body(self.body())
    }

    /// Makes the call, and reads the whole reply. A call may be made again.
    pub fn send(&self) -> impl Future<Output = Reply> + use<> {
        self.request().send()
    }

    /// Returns the call as the gateway parses it.
    pub fn query(&self) -> Query {
        let method = Method::from_name(&self.method).expect("one of the eight methods");
        let params = Params::Array(self.params().to_string().into());
        Query::parse(method, &params, Profile::Node).expect("params of a call")
    }

    /// Returns a node's own answer to the call. The node counts no call, and has no faults and holds meanwhile.
    pub fn answer_of(&self, node: &Node) -> Value {
        let answer = node.answer(self.body().as_bytes());
        serde_json::from_slice(&answer).expect("a node answers in JSON")
    }

    /// Returns the result that a node itself has for the call.
    #[track_caller]
    pub fn result_of(&self, node: &Node) -> Value {
        node_answer(node, &self.method, &self.params())
            .get("result")
            .cloned()
            .unwrap_or_else(|| panic!("no result of the node: {}", self.answer_of(node)))
    }
}
