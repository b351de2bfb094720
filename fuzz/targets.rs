//! The fuzz targets. Each function takes any bytes and panics if a rule does not hold.
//!
//! They are run by `cargo fuzz` (`fuzz/all_targets`), and on seeds and their mutations by the integration tests.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use slotfront::cache::Sizes;
use slotfront::cache::derive::{self, block, list};
use slotfront::cache::entry::{Payload, TextParts};
use slotfront::cache::key::LookupPlan;
use slotfront::error::Error;
use slotfront::frontier::Frontier;
use slotfront::jsonrpc::envelope::{self, Element, Request};
use slotfront::jsonrpc::{Call, Params, reply};
use slotfront::methods::{
    AccountEncoding, AccountForm, BlockDetails, BlockEncoding, Commitment, DataSlice, Method, Profile,
    Pubkey, Query, Slot,
};
use slotfront::node::{Contextual, NodeReply, answer, shape};
use tokio::time::Instant;

/// The longest input. Longer inputs reach no other code.
const MAX_BYTES: usize = 64 * 1024;

fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(text)))
}

/// Parses a request body, and writes an answer to each of its calls.
pub(crate) fn envelope(data: &[u8]) {
    let body = Bytes::copy_from_slice(&data[..data.len().min(MAX_BYTES)]);
    let elements = match envelope::parse(&body) {
        Request::ParseError => return,
        Request::One(element) => vec![element],
        Request::Batch(elements) => elements,
    };
    // An accepted body is valid JSON, of a depth that a node accepts.
    let _: Box<RawValue> = serde_json::from_slice(&body).expect("JSON");
    for element in elements {
        let (id, error) = match element {
            Element::Notification => continue,
            Element::Refused { id, error } => (id, Error::from(error)),
            Element::Call(Call { id, method, params }) => {
                if let Params::Array(text) | Params::Object(text) = &params {
                    json(text);
                }
                if let Some(method) = str::from_utf8(&method).ok().and_then(Method::from_name) {
                    let _ = Query::parse(method, &params, Profile::Node);
                }
                (id, Error::MethodNotFound)
            }
        };
        let mut answers = [Vec::new(), Vec::new(), Vec::new()];
        error.write_response(&mut answers[0], &id);
        reply::result(&mut answers[1], &id, b"[1]");
        reply::node_error(&mut answers[2], &id, br#"{"code":1,"message":""}"#);
        let ids = answers.each_ref().map(|answer| json(answer)["id"].clone());
        assert!(ids.iter().all(|one| *one == ids[0]), "{ids:?}");
        // An answer is one line, for any id.
        assert!(answers.iter().all(|answer| !answer.contains(&b'\n') && !answer.contains(&b'\r')));
    }
}

/// Parses params to a query, its canonical params to the same query, and makes lookup plans at different frontiers.
pub(crate) fn params(data: &[u8]) {
    let [which, profile, far @ 1..=255, text @ ..] = data else { return };
    let methods = Method::ALL;
    let method = methods[usize::from(*which) % methods.len()];
    let profile = if profile % 2 == 0 { Profile::Node } else { Profile::Spec };
    let mut body =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}","params":"#, method.as_str()).into_bytes();
    body.extend_from_slice(&text[..text.len().min(MAX_BYTES)]);
    body.push(b'}');
    let Request::One(Element::Call(call)) = envelope::parse(&body.into()) else { return };
    match Query::parse(method, &call.params, profile) {
        Ok(query) => {
            let canonical = query.params_json();
            json(canonical.as_bytes());
            let again = Query::parse(method, &Params::Array(canonical.clone().into()), Profile::Node);
            assert_eq!(again.as_ref(), Ok(&query), "{canonical}");
            let frontier = Frontier::new(1);
            let now = Instant::now();
            for commitment in Commitment::ALL {
                let slot: Slot = u64::MAX / u64::from(*far);
                frontier.probed(frontier.era(), 0, commitment, slot, now);
            }
            for frontier in [&frontier, &Frontier::new(1)] {
                let plan = LookupPlan::new(&query, frontier, &Sizes::default());
                assert_eq!(
                    plan.upstream.min_context_slot(),
                    None,
                    "the upstream call has no caller's condition"
                );
                json(plan.upstream.params_json().as_bytes());
            }
        }
        Err(error) => {
            let mut text = Vec::new();
            Error::Params(error).write_response(&mut text, &call.id);
            assert!(
                json(&text)["error"]["code"].as_i64().is_some_and(|code| code == -32602 || code == -32600)
            );
        }
    }
}

/// Parses the body of a node's answer, splits its result, and derives every other form from it.
pub(crate) fn answer(data: &[u8]) {
    let [shape, rest @ ..] = data else { return };
    let body = Bytes::copy_from_slice(&rest[..rest.len().min(MAX_BYTES)]);
    let reply = NodeReply::parse(&body, 1);
    if let Ok(reply) = &reply {
        whole_response(&body, reply);
    }
    let result = match reply {
        Err(_) => return,
        Ok(NodeReply::Error { body, .. }) => {
            json(&body);
            let _ = (answer::error_context_slot(&body), answer::first_available_block(&body));
            return;
        }
        Ok(NodeReply::Result(result)) => result,
    };
    let deep = serde_json::from_slice::<Value>(&result).is_err();
    // Results that serde cannot read, such as over 127 levels, are passed on unchanged. Derived texts must be JSON.
    let check = |made: &[u8]| {
        if !deep {
            json(made);
        }
    };
    if let Some(parts) = Contextual::split(&result) {
        check(&parts.context);
        check(&parts.value);
        for element in shape::elements(&parts.value).unwrap_or_default() {
            check(&element);
        }
    }
    let count = usize::from(*shape % 5);
    for kept in forms(DataSlice { offset: 1, length: 9 }) {
        if let Some(single) = list::read_single(&result, kept) {
            for asked in forms(DataSlice { offset: 2, length: 3 }) {
                if let Ok((body, _)) = list::write_single(&result, &single.value, asked) {
                    check(&body.whole());
                }
            }
        }
        if let Some((context, singles)) = list::read_list(&result, kept, count) {
            assert_eq!(singles.len(), count);
            let values: Vec<_> = singles.into_iter().map(|single| single.value).collect();
            for asked in forms(DataSlice { offset: 2, length: 3 }) {
                if let Ok((body, _)) = list::write_list(&context, &values, asked) {
                    check(&body.whole());
                }
            }
        }
    }
    if let Some(head) = derive::Picked::First(usize::from(*shape)).of(&result) {
        check(&head);
    }
    if let Some(only) = derive::vote_account(&result, &Pubkey([*shape; 32])) {
        check(&only);
    }
    let height = Some(block::OwnHeight::Null);
    for asked in shapes() {
        let whole = block::reshape(&result, asked, height);
        let places = block::places(&result, 5, asked.encoding);
        let single =
            |(signature, place)| block::SingleTransaction { signature, asked, place }.make(&result, height);
        for made in places.into_iter().map(single).chain([whole]).flatten() {
            match made {
                Payload::Result(made) => check(&made.whole()),
                Payload::Error { body, .. } => check(&body),
            }
        }
    }
}

/// Compares the parsed parts of a node's body with those that serde finds.
fn whole_response(body: &[u8], reply: &NodeReply) {
    // Parts are passed on unchanged, so the whole body must be JSON.
    let _: &RawValue = serde_json::from_slice(body).expect("JSON");
    // Nesting and numbers beyond serde's limits are accepted.
    let Ok(read) = serde_json::from_slice::<Value>(body) else { return };
    assert_eq!((&read["jsonrpc"], &read["id"]), (&Value::from("2.0"), &Value::from(1)));
    let (name, part, other) = match reply {
        NodeReply::Result(result) => ("result", result, "error"),
        NodeReply::Error { body, .. } => ("error", body, "result"),
    };
    assert_eq!((read.get(name), read.get(other)), (Some(&json(part)), None));
}

/// Writes an account as a node does, derives every form from it, and checks that each form has the same bytes.
pub(crate) fn account(data: &[u8]) {
    let [offset, length, long, bytes @ ..] = data else { return };
    let bytes = &bytes[..bytes.len().min(MAX_BYTES)];
    let scale = if long % 2 == 0 { 1 } else { 200 };
    let slice = DataSlice { offset: u64::from(*offset) * scale, length: u64::from(*length) * scale };
    let text = Bytes::from(format!(
        r#"{{"context":{{"slot":5}},"value":{{"data":["{}","base64"],"executable":false,"lamports":1,"owner":"{}","rentEpoch":0,"space":{}}}}}"#,
        BASE64.encode(bytes),
        Pubkey([1; 32]),
        bytes.len()
    ));
    let whole = AccountForm { encoding: AccountEncoding::Base64, slice: None };
    let single = list::read_single(&text, whole).expect("the form of a node");
    for asked in forms(slice) {
        let part = match asked.slice {
            None => bytes,
            Some(DataSlice { offset, length }) => {
                let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                &bytes[within(offset)..within(offset.saturating_add(length))]
            }
        };
        let made = list::write_single(&text, &single.value, asked);
        let base58 = matches!(asked.encoding, AccountEncoding::Base58 | AccountEncoding::Binary);
        let Ok((body, _)): Result<(TextParts, bool), _> = made else {
            let parsed = asked.encoding == AccountEncoding::JsonParsed;
            assert!(parsed || (base58 && part.len() > 128), "{asked:?} of {} bytes", part.len());
            continue;
        };
        let data = json(&body.whole())["value"]["data"].clone();
        let (text, encoding) = match &data {
            Value::String(text) => (text.clone(), "binary".to_owned()),
            list => (list[0].as_str().unwrap().to_owned(), list[1].as_str().unwrap().to_owned()),
        };
        let read = match encoding.as_str() {
            "base64" => BASE64.decode(text).unwrap(),
            "base64+zstd" => zstd::decode_all(&BASE64.decode(text).unwrap()[..]).unwrap(),
            _ => bs58::decode(text).into_vec().unwrap(),
        };
        assert_eq!(read, part, "{asked:?}");
    }
}

/// Reads a configuration twice. Both must be accepted, or be refused with the same message.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(&data[..data.len().min(MAX_BYTES)]) else { return };
    let read = || slotfront::config::from_text(text, &BTreeMap::new(), std::path::Path::new("/nowhere"));
    match (read(), read()) {
        (Ok(one), Ok(other)) => assert_eq!(format!("{one:?}"), format!("{other:?}")),
        (Err(one), Err(other)) => {
            assert_eq!(one.to_string(), other.to_string());
            assert!(!one.to_string().is_empty());
        }
        _ => panic!("accepted once and refused once"),
    }
}

fn forms(slice: DataSlice) -> Vec<AccountForm> {
    use AccountEncoding::{Base58, Base64, Base64Zstd, Binary, JsonParsed};
    let encodings = [Base58, Base64, Base64Zstd, Binary, JsonParsed];
    let form = |encoding| [None, Some(slice)].map(|slice| AccountForm { encoding, slice });
    encodings.into_iter().flat_map(form).collect()
}

fn shapes() -> Vec<block::BlockShape> {
    use BlockDetails::{Accounts, Full, None, Signatures};
    use BlockEncoding::{Base58, Base64, Binary, Json, JsonParsed};
    let shape = |(details, encoding)| {
        let version =
            move |(rewards, max_version)| block::BlockShape { details, encoding, rewards, max_version };
        [(true, Some(0)), (true, Option::None), (false, Some(0))].map(version)
    };
    let forms = [
        (Full, JsonParsed),
        (Full, Json),
        (Full, Base64),
        (Full, Base58),
        (Full, Binary),
        (Accounts, Json),
        (Signatures, Json),
        (None, Json),
    ];
    forms.into_iter().flat_map(shape).collect()
}
