//! One JSON-RPC call, built step by step.

use serde_json::{Map, Value, json};
use slotfront::jsonrpc::Params;
use slotfront::methods::{Commitment, Method, Profile, Query};
use slotfront_sim::Node;

use crate::cluster::node_answer;
use crate::reply::Reply;
use crate::request::TestRequest;

/// The name of a method that slotfront only forwards.
pub const FORWARDED: &str = "simulateTransaction";

/// Returns params of [`FORWARDED`]: a transaction of an account without lamports.
pub fn forwarded_params() -> Value {
    const TRANSACTION: &str = "AQcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcBAAABCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAA=";
    json!([TRANSACTION, { "encoding": "base64" }])
}

/// A JSON-RPC call that is not sent yet. Most functions of this type set a field of the configuration object,
/// which is the last element of the params.
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

    /// Sets a field of the configuration object.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.config.insert(field.to_owned(), value.into());
        self
    }

    pub fn commitment(self, commitment: Commitment) -> Self {
        self.with("commitment", commitment.as_str())
    }

    pub fn processed(self) -> Self {
        self.commitment(Commitment::Processed)
    }

    pub fn confirmed(self) -> Self {
        self.commitment(Commitment::Confirmed)
    }

    /// Sets the commitment finalized, which nodes also use for a call without a commitment.
    pub fn finalized(self) -> Self {
        self.commitment(Commitment::Finalized)
    }

    /// Sets the encoding of accounts or of a block.
    pub fn encoding(self, encoding: &str) -> Self {
        self.with("encoding", encoding)
    }

    /// Sets the encoding base64.
    pub fn base64(self) -> Self {
        self.encoding("base64")
    }

    pub fn json_parsed(self) -> Self {
        self.encoding("jsonParsed")
    }

    /// Sets `dataSlice`: `length` bytes of each account's data, from the byte `offset` on.
    pub fn slice(self, offset: u64, length: u64) -> Self {
        self.with("dataSlice", json!({"offset": offset, "length": length}))
    }

    /// Sets `minContextSlot`: the answer must be of this slot or a later one.
    pub fn min_context_slot(self, slot: u64) -> Self {
        self.with("minContextSlot", slot)
    }

    /// Sets `maxSupportedTransactionVersion` to 0. Without it, nodes refuse a block that has transactions of version 0.
    pub fn version_0(self) -> Self {
        self.with("maxSupportedTransactionVersion", 0)
    }

    /// Sets `transactionDetails`: `full`, `accounts`, `signatures` or `none`.
    pub fn details(self, details: &str) -> Self {
        self.with("transactionDetails", details)
    }

    /// Sets `rewards`: true for a block with its rewards.
    pub fn rewards(self, rewards: bool) -> Self {
        self.with("rewards", rewards)
    }

    pub fn limit(mut self, samples: usize) -> Self {
        self.params.push(json!(samples));
        self
    }

    /// Sets the id of the call, which is 1 by default.
    pub fn id(mut self, id: impl Into<Value>) -> Self {
        self.id = id.into();
        self
    }

    /// Sends the call with this API key instead of `dev`.
    pub fn key(mut self, key: &str) -> Self {
        self.request = self.request.key(key);
        self
    }

    /// Sends the call to this path instead of `/v3/dev`.
    pub fn path(mut self, path: &str) -> Self {
        self.request = self.request.path(path);
        self
    }

    /// Sends the call with this HTTP client, instead of [`TestGateway::client`](crate::TestGateway::client).
    pub fn client(mut self, client: &reqwest::Client) -> Self {
        self.request = self.request.client(client);
        self
    }

    /// Adds a header field to the request.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// Adds header fields to the request.
    pub fn headers(mut self, headers: &[(&str, &str)]) -> Self {
        self.request = self.request.headers(headers);
        self
    }

    /// Adds `Cache-Control: no-cache`, so that the call bypasses the cache if the key's plan allows this.
    pub fn no_cache(mut self) -> Self {
        self.request = self.request.no_cache();
        self
    }

    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns the params, with the configuration object as the last one unless it is empty.
    fn params(&self) -> Value {
        let mut params = self.params.clone();
        if !self.config.is_empty() {
            params.push(Value::Object(self.config.clone()));
        }
        Value::Array(params)
    }

    /// Returns the call as a JSON-RPC object.
    pub fn json(&self) -> Value {
        json!({"jsonrpc": "2.0", "id": self.id, "method": self.method, "params": self.params()})
    }

    /// Returns the text of the JSON-RPC object.
    pub fn body(&self) -> String {
        self.json().to_string()
    }

    pub fn request(&self) -> TestRequest {
        self.request.clone().body(self.body())
    }

    /// Sends the call, and reads the whole reply. A call can be sent several times.
    pub fn send(&self) -> impl Future<Output = Reply> + use<> {
        self.request().send()
    }

    /// Returns the call as the gateway parses it. Panics if the method is not answered through the cache.
    pub fn query(&self) -> Query {
        let method = Method::from_name(&self.method).expect("a method of the cache");
        let params = Params::Array(self.params().to_string().into());
        Query::parse(method, &params, Profile::Node).expect("params of a call")
    }

    /// Returns a node's whole JSON-RPC answer to the call, without HTTP. The faults of the node do not apply, and
    /// the node neither holds back nor counts the call.
    pub fn answer_of(&self, node: &Node) -> Value {
        let answer = node.answer(self.body().as_bytes());
        serde_json::from_slice(&answer).expect("a node answers in JSON")
    }

    /// Returns the result of a node's answer to the call, as [`Self::answer_of`] gets it. Panics if the
    /// answer is an error.
    #[track_caller]
    pub fn result_of(&self, node: &Node) -> Value {
        node_answer(node, &self.method, &self.params())
            .get("result")
            .cloned()
            .unwrap_or_else(|| panic!("no result of the node: {}", self.answer_of(node)))
    }
}
