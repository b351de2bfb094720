//! The `OpenRPC` 1.3 document of the methods that slotfront answers itself, made from the descriptions in the methods' modules.
//!
//! The document describes the behaviour under the setting `compat.profile = "node"`. Schemas list the stable
//! members and allow others, because newer nodes add some.

use serde_json::{Map, Value, json};

use super::description::{Description, Param, schema};
use super::{AccountEncoding, BASE58_TOO_LONG, BASE58_TOO_LONG_CODE, Commitment, Method, TipMethod};

/// The service that the document describes.
#[derive(Debug)]
pub struct Service {
    /// The name of the service.
    pub title: &'static str,
    /// The release of the service.
    pub version: &'static str,
    /// A description of the service in one sentence.
    pub description: &'static str,
    /// The licence of the service as an SPDX expression.
    pub licence: &'static str,
    /// The errors of the service, which any method can return.
    pub errors: Vec<ServiceError>,
}

/// An error that the service itself returns, without calling a node.
#[derive(Debug)]
pub struct ServiceError {
    /// The name of the error under `components.errors`.
    pub name: &'static str,
    /// The JSON-RPC code of the error.
    pub code: i32,
    /// The JSON-RPC message, with braces around the parts that vary.
    pub message: String,
}

/// Returns the descriptions of all methods, by name.
fn methods() -> impl Iterator<Item = (&'static str, Description)> {
    let tip = TipMethod::ALL.into_iter().map(|method| (method.as_str(), method.describe()));
    Method::ALL.into_iter().map(|method| (method.as_str(), method.describe())).chain(tip)
}

/// Returns the document of a service at `server_url` (`https://host/v3/${apiKey}`, without a real key).
pub fn document(service: &Service, server_url: &str) -> Value {
    json!({
        "openrpc": "1.3.2",
        "info": {
            "title": service.title,
            "version": service.version,
            "description": service.description,
            "license": { "name": service.licence },
        },
        "servers": [{
            "name": "gateway",
            "url": server_url,
            "variables": { "apiKey": { "default": "dev", "description": "The caller's API key." } },
        }],
        "methods": methods().map(|(name, description)| method_object(name, description, &service.errors)).collect::<Vec<_>>(),
        "components": { "schemas": schemas(), "errors": errors(&service.errors) },
    })
}

fn method_object(name: &str, description: Description, service: &[ServiceError]) -> Value {
    let Description { summary, params, result, errors, example, example_result } = description;
    let names = params.iter().map(|param| param.name);
    let values = example.as_array().into_iter().flatten();
    let example_params: Vec<_> =
        names.zip(values).map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let params: Vec<_> = params
        .into_iter()
        .map(|Param { name, summary, required, schema }| {
            json!({ "name": name, "summary": summary, "required": required, "schema": schema })
        })
        .collect();
    let errors: Vec<_> = ["InvalidParams"]
        .iter()
        .chain(errors)
        .copied()
        .chain(service.iter().map(|error| error.name))
        .map(|name| json!({ "$ref": format!("#/components/errors/{name}") }))
        .collect();
    json!({
        "name": name,
        "summary": summary,
        "paramStructure": "by-position",
        "params": params,
        "result": { "name": "result", "schema": result },
        "errors": errors,
        "examples": [{
            "name": name,
            "params": example_params,
            "result": { "name": "result", "value": example_result },
        }],
    })
}

/// The errors that nodes can return for these methods: the name under `components.errors`, the code, the message.
const NODES: [(&str, i32, &str); 15] = [
    ("InvalidParams", -32602, "Invalid params"),
    ("BlockCleanedUp", -32001, "Block cleaned up, does not exist on node"),
    ("BlockNotAvailable", -32004, "Block not available for slot"),
    ("SlotSkipped", -32007, "Slot was skipped, or missing due to ledger jump to recent snapshot"),
    ("LongTermStorageSlotSkipped", -32009, "Slot was skipped, or missing in long-term storage"),
    ("TransactionHistoryNotAvailable", -32011, "Transaction history is not available from this node"),
    ("BlockStatusNotAvailableYet", -32014, "Block status not yet available for slot"),
    (
        "UnsupportedTransactionVersion",
        -32015,
        "Transaction version is not supported by the requesting client",
    ),
    ("MinContextSlotNotReached", -32016, "Minimum context slot has not been reached"),
    ("NodeUnhealthy", -32005, "Node is unhealthy"),
    ("NoSnapshot", -32008, "No snapshot"),
    ("EpochRewardsPeriodActive", -32017, "Epoch rewards period still active at slot"),
    ("SlotNotEpochBoundary", -32018, "Rewards cannot be found because slot is not the epoch boundary"),
    ("FilterTransactionNotFound", -32020, "Transaction not found"),
    ("Base58TooLarge", BASE58_TOO_LONG_CODE, BASE58_TOO_LONG),
];

fn errors(service: &[ServiceError]) -> Map<String, Value> {
    let nodes = NODES.iter().copied();
    nodes
        .chain(service.iter().map(|error| (error.name, error.code, error.message.as_str())))
        .map(|(name, code, message)| (name.to_owned(), json!({ "code": code, "message": message })))
        .collect()
}

/// Returns the schemas that several methods share, by name.
fn schemas() -> Value {
    let u64 = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX });
    json!({
        "Pubkey": {
            "description": "An account address: 32 bytes in base58.",
            "type": "string",
            "pattern": "^[1-9A-HJ-NP-Za-km-z]{32,44}$",
        },
        "U64": u64,
        "Slot": { "description": "A position in the chain's time; it may hold no block.", "allOf": [schema("U64")] },
        "Lamports": { "description": "10^-9 SOL. May exceed 2^53.", "allOf": [schema("U64")] },
        "Commitment": {
            "description": "How settled the state is that is read.",
            "enum": Commitment::ALL,
        },
        "MinContextSlot": {
            "description": "The answer must be of this slot or a later one.",
            "allOf": [schema("Slot")],
        },
        "Context": {
            "type": "object",
            "required": ["slot"],
            "properties": {
                "slot": schema("Slot"),
                "apiVersion": { "description": "The answering node's release.", "type": "string" },
            },
        },
        "AccountEncoding": { "enum": AccountEncoding::ALL.map(AccountEncoding::as_str) },
        "DataSlice": {
            "description": "A part of the data, in bytes; clipped to the data.",
            "type": "object",
            "required": ["offset", "length"],
            "properties": { "offset": schema("U64"), "length": schema("U64") },
        },
        "Account": {
            "type": "object",
            "required": ["data", "executable", "lamports", "owner", "rentEpoch", "space"],
            "properties": {
                "data": {
                    "description": "As the encoding says.",
                    "oneOf": [
                        { "description": "binary", "type": "string" },
                        {
                            "description": "[text, encoding]",
                            "type": "array",
                            "items": { "type": "string" },
                            "minItems": 2,
                            "maxItems": 2,
                        },
                        {
                            "description": "jsonParsed, where the node knows the owner program",
                            "type": "object",
                            "required": ["program", "parsed", "space"],
                        },
                    ],
                },
                "executable": { "type": "boolean" },
                "lamports": schema("Lamports"),
                "owner": schema("Pubkey"),
                "rentEpoch": schema("U64"),
                "space": { "description": "Full length of the data in bytes, also of a slice.", "allOf": [schema("U64")] },
            },
        },
        "TokenAmount": {
            "type": "object",
            "required": ["amount", "decimals", "uiAmountString"],
            "properties": {
                "amount": { "description": "In the token's smallest unit, a u64 as text.", "type": "string" },
                "decimals": { "type": "integer", "minimum": 0, "maximum": u8::MAX },
                "uiAmount": { "description": "Inexact; prefer uiAmountString.", "type": ["number", "null"] },
                "uiAmountString": { "description": "In whole tokens.", "type": "string" },
            },
        },
        "Reward": {
            "type": "object",
            "required": ["pubkey", "lamports", "postBalance"],
            "properties": {
                "pubkey": schema("Pubkey"),
                "lamports": { "description": "Credited, or debited where negative.", "type": "integer" },
                "postBalance": schema("Lamports"),
                "rewardType": { "type": ["string", "null"] },
                "commission": { "description": "In percent.", "type": ["integer", "null"] },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::jsonrpc::Params;
    use crate::methods::{Profile, Query, TipQuery};

    const URL: &str = "https://rpc.example/v3/${apiKey}";

    fn document() -> Value {
        let overloaded = ServiceError { name: "Overloaded", code: -32094, message: "Overloaded".to_owned() };
        let (title, version, licence) = ("gateway", "1.0.0", "MIT");
        let service = Service { title, version, description: "A gateway", licence, errors: vec![overloaded] };
        super::document(&service, URL)
    }

    fn parse(method: Method, params: &[Value]) -> Query {
        let text = Bytes::from(Value::from(params).to_string());
        Query::parse(method, &Params::Array(text), Profile::Node).unwrap()
    }

    /// Calls `visit` for `value` and all nested values.
    fn walk(value: &Value, visit: &mut impl FnMut(&Value)) {
        visit(value);
        match value {
            Value::Array(array) => array.iter().for_each(|v| walk(v, visit)),
            Value::Object(map) => map.values().for_each(|v| walk(v, visit)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        walk(&document, &mut |value| {
            if let Some(path) = value["$ref"].as_str() {
                assert!(document.pointer(path.trim_start_matches('#')).is_some(), "{path}");
            }
        });
    }

    #[test]
    fn the_document_has_what_openrpc_requires() {
        let document = document();
        assert_eq!(document["servers"][0]["url"], URL);
        assert_eq!(document["components"]["errors"]["Overloaded"]["code"], -32094);
        let methods = document["methods"].as_array().unwrap();
        assert_eq!(methods.len(), Method::ALL.len() + TipMethod::ALL.len());
        for method in methods {
            let name = method["name"].as_str().unwrap();
            assert!(Method::from_name(name).is_some() || TipMethod::from_name(name).is_some());
            assert!(method["result"]["name"].is_string() && method["result"]["schema"].is_object());
            let params = method["params"].as_array().unwrap();
            assert!(params.iter().all(|param| param["name"].is_string() && param["schema"].is_object()));
            let optional_first =
                params.windows(2).any(|two| two[0]["required"] == false && two[1]["required"] == true);
            assert!(!optional_first, "required params come first");
            let example = &method["examples"][0];
            assert!(example["params"].as_array().unwrap().len() <= params.len());
            assert!(!example["result"]["value"].is_null());
        }
        for error in document["components"]["errors"].as_object().unwrap().values() {
            assert!(error["code"].is_i64() && error["message"].is_string());
        }
    }

    #[test]
    fn every_example_is_a_call_that_we_take() {
        for method in Method::ALL {
            let example = method.describe().example;
            let query = parse(method, example.as_array().unwrap());
            assert_eq!(query.method(), method);
            for query in [query.clone(), query.with_min_context_slot(Some(7))] {
                let written: Vec<Value> = serde_json::from_str(&query.params_json()).unwrap();
                assert_eq!(parse(method, &written), query, "canonical params parse to the same query");
            }
        }
        for method in TipMethod::ALL {
            let example = Params::Array(method.describe().example.to_string().into());
            assert_eq!(TipQuery::parse(method, &example).map(|query| query.method()), Ok(method));
        }
    }

    #[test]
    fn documented_defaults_are_the_ones_that_hold() {
        for method in Method::ALL {
            let Description { params, example, .. } = method.describe();
            let mut bare: Vec<Value> = example.as_array().unwrap().clone();
            bare.truncate(params.iter().filter(|param| param.required).count());
            let mut spelt = bare.clone();
            for Param { schema, .. } in params.iter().filter(|param| !param.required) {
                let members = schema["anyOf"][0]["properties"].as_object().map(|members| {
                    let defaults =
                        members.iter().map(|(name, schema)| (name.clone(), schema["default"].clone()));
                    Value::from(defaults.collect::<Map<_, _>>())
                });
                spelt.push(members.unwrap_or_else(|| schema["default"].clone()));
            }
            let written: Value = serde_json::from_str(&parse(method, &bare).params_json()).unwrap();
            assert_eq!(parse(method, &bare), parse(method, &spelt), "{method:?}");
            // Each member of a canonical call is documented with its default.
            let documented = spelt.last().and_then(Value::as_object);
            for (name, value) in
                written.as_array().unwrap().last().and_then(Value::as_object).into_iter().flatten()
            {
                assert_eq!(documented.and_then(|d| d.get(name)), Some(value), "{method:?} {name}");
            }
        }
    }
}
