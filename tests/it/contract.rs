//! The recorded contract of a real node (Agave v4.0.0): each recorded request is sent through the gateway.

use base64::Engine;
use serde_json::Value;
use slotfront_testkit::TestGateway;

/// The recorded requests that slotfront answers differently from a node on purpose;
/// docs/node-contract.md lists them.
const DIFFERENT: [&str; 2] = [
    "http-any-path",    // the path carries the API key
    "http-origin-null", // CORS has settings of its own
];

#[tokio::test]
async fn every_case_is_answered_as_a_node_answers() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../fixtures/contract-cases.json")).unwrap();
    let gateway = TestGateway::start().await;
    let mut off = Vec::new();
    for case in cases.iter().filter(|case| !DIFFERENT.contains(&case["name"].as_str().unwrap())) {
        let (status, text) = send(&gateway, case).await;
        let differences =
            compare(&case["expect"], status, &text, &serde_json::from_str(&text).unwrap_or_default());
        off.extend(differences.into_iter().map(|d| format!("{}: {d}", case["name"])));
    }
    assert!(off.is_empty(), "{} differences:\n{}", off.len(), off.join("\n"));
    assert!(cases.len() > 150, "{} cases are too few", cases.len());
}

async fn send(gateway: &TestGateway, case: &Value) -> (u16, String) {
    let mut body = match case["request_base64"].as_str() {
        Some(text) => base64::engine::general_purpose::STANDARD.decode(text).unwrap(),
        None => case["request"].as_str().unwrap().as_bytes().to_vec(),
    };
    let pad_to = case["pad_to"].as_u64().map_or(0, |n| usize::try_from(n).unwrap());
    body.resize(body.len().max(pad_to), b' ');
    let verb = case["http_method"].as_str().unwrap_or("POST").parse().unwrap();
    let mut request = gateway.client.request(verb, &gateway.url).body(body);
    match case["headers"].as_object() {
        Some(headers) => {
            for (name, value) in headers {
                request = request.header(name, value.as_str().unwrap());
            }
        }
        None => request = request.header("content-type", "application/json"),
    }
    let reply = gateway.send(request).await;
    (reply.status, reply.text)
}

/// Returns every difference between an answer and the expected one.
fn compare(expect: &Value, status: u16, text: &str, answer: &Value) -> Vec<String> {
    if u64::from(status) != expect["http"].as_u64().unwrap_or(200) {
        return vec![format!("HTTP {status}: {text}")];
    }
    if let Some(expected) = expect["body_text"].as_str() {
        return if text == expected { vec![] } else { vec![format!("body {text:?}")] };
    }
    if expect["body_empty"] == true {
        return if text.is_empty() { vec![] } else { vec![format!("body {text:?}")] };
    }
    if let Some(expected) = expect["batch"].as_array() {
        let Some(answers) = answer.as_array().filter(|answers| answers.len() == expected.len()) else {
            return vec![format!("no batch of {}: {text}", expected.len())];
        };
        return expected.iter().zip(answers).flat_map(|(e, a)| compare(e, 200, "", a)).collect();
    }
    let mut off = Vec::new();
    if expect.get("id").is_some_and(|id| answer.get("id") != Some(id)) {
        off.push(format!("id in {text}"));
    }
    if answer.get("jsonrpc").is_none() != (expect["jsonrpc_absent"] == true) {
        off.push(format!("jsonrpc in {text}"));
    }
    if let Some(error) = expect.get("error") {
        let got = &answer["error"];
        if got["code"] != error["code"] {
            off.push(format!("code in {answer}"));
        }
        if error.get("message").is_some_and(|message| *message != got["message"]) {
            off.push(format!("message in {answer}"));
        }
        let prefix = error["message_prefix"].as_str().unwrap_or("");
        if !got["message"].as_str().unwrap_or("").starts_with(prefix) {
            off.push(format!("message in {answer}, not {prefix}…"));
        }
        match error.get("data") {
            Some(data @ Value::Object(_)) => shape(data, &got["data"], "data", &mut off),
            Some(data) if *data != got["data"] => off.push(format!("data in {answer}")),
            _ => {}
        }
    }
    if let Some(expected) = expect.get("result_shape") {
        match answer.get("result") {
            Some(result) => shape(expected, result, "result", &mut off),
            None => off.push(format!("no result: {answer} {text}")),
        }
    }
    off
}

/// Adds to `off` every difference of `got` from the shape `want`. A shape consists of type names, `{"eq": value}`,
/// arrays, tuples and objects.
fn shape(want: &Value, got: &Value, at: &str, off: &mut Vec<String>) {
    match want {
        Value::Object(members) if members.len() == 1 && members.contains_key("eq") => {
            if *got != members["eq"] {
                off.push(format!("{at}: {got}, not {}", members["eq"]));
            }
        }
        Value::Object(members) => {
            for (name, want) in members {
                match got.get(name.trim_end_matches('?')) {
                    Some(got) => shape(want, got, &format!("{at}.{name}"), off),
                    None if name.ends_with('?') => {}
                    None => off.push(format!("{at}.{name}: absent")),
                }
            }
        }
        Value::Array(wants) => {
            let Some(gots) = got.as_array() else { return off.push(format!("{at}: {got}, not an array")) };
            match wants.first().and_then(Value::as_str) {
                Some("array") => gots.iter().for_each(|got| shape(&wants[1], got, at, off)),
                first => {
                    let wants = if first == Some("tuple") { &wants[1..] } else { wants };
                    if wants.len() != gots.len() {
                        return off.push(format!("{at}: {} elements", gots.len()));
                    }
                    wants.iter().zip(gots).for_each(|(want, got)| shape(want, got, at, off));
                }
            }
        }
        want => {
            let kinds = want.as_str().unwrap_or_else(|| panic!("no shape: {want}"));
            if !kinds.split('|').any(|kind| is(kind, got)) {
                off.push(format!("{at}: {got}, not {kinds}"));
            }
        }
    }
}

fn is(kind: &str, got: &Value) -> bool {
    match kind {
        "any" => true,
        "null" => got.is_null(),
        "string" => got.is_string(),
        "object" => got.is_object(),
        "array" => got.is_array(),
        "bool" | "boolean" => got.is_boolean(),
        "number" => got.is_number(),
        _ if kind.starts_with('u') => got.is_u64(),
        _ => got.is_i64() || got.is_u64(),
    }
}
