//! The JSON-RPC envelope, against `jsonrpc-core`, the server of a node. Both answer the same body with the method `echo`,
//! which returns its params, and the answers are compared as text.

use bytes::Bytes;
use jsonrpc_core::{IoHandler, Value};
use slotfront_rpc::jsonrpc::envelope::{self, Element, EnvelopeError, Request};
use slotfront_rpc::jsonrpc::{Call, Id, Params, reply};

use crate::draw::{Draw, shuffled};

/// The server of a node, with one method.
pub struct Server(IoHandler);

impl Server {
    pub fn new() -> Self {
        let mut io = IoHandler::new();
        io.add_sync_method("echo", |params: jsonrpc_core::Params| Ok(Value::from(params)));
        Self(io)
    }

    /// Judges one case. Returns whether a call of its body was answered with a result.
    ///
    /// # Errors
    /// The difference, if there is one.
    pub fn judge(&self, seed: u64, case: u64) -> Result<bool, String> {
        let body = random(&mut Draw::of_case(seed, case));
        let (ours, node) = (ours(&body), self.0.handle_request_sync(&body).unwrap_or_default());
        if ours == node {
            Ok(node.contains("\"result\""))
        } else {
            Err(format!("body {body:?}: {ours}, node: {node}"))
        }
    }
}

/// Answers a body with slotfront's envelope and replies.
fn ours(body: &str) -> String {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let mut out = Vec::new();
    match envelope::parse(&body) {
        Request::ParseError => reply::envelope_refusal(&mut out, &Id::Null, EnvelopeError::Parse),
        Request::One(element) => out = answer(&element).unwrap_or_default(),
        Request::Batch(elements) => {
            let answers: Vec<Vec<u8>> = elements.iter().filter_map(answer).collect();
            if !answers.is_empty() {
                out = [b"[", &answers.join(&b","[..])[..], b"]"].concat();
            }
        }
    }
    String::from_utf8(out).expect("answers are text")
}

fn answer(element: &Element) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match element {
        Element::Notification => return None,
        Element::Refused { id, error } => reply::envelope_refusal(&mut out, id, *error),
        Element::Call(Call { id, method, params }) if method == "echo" => {
            let value = match params {
                Params::None => Value::Null,
                Params::Array(text) | Params::Object(text) => {
                    serde_json::from_slice(text).expect("params of a well-formed body")
                }
            };
            reply::result(&mut out, id, value.to_string().as_bytes());
        }
        Element::Call(Call { id, .. }) => reply::refusal(&mut out, id, -32_601, "Method not found", None),
    }
    Some(out)
}

/// The values that members of a call have. The first ones are valid.
const VERSIONS: [&str; 9] =
    [r#""2.0""#, r#""2.0""#, "null", r#""2.\u0030""#, r#""1.0""#, "2.0", r#""""#, "[]", "true"];
const METHODS: [&str; 9] = [
    r#""echo""#,
    r#""echo""#,
    r#""getSlot""#,
    r#""ech\u006f""#,
    "\"\u{e9}\\n\"",
    r#""""#,
    "null",
    "1",
    r#"["echo"]"#,
];
const IDS: [&str; 20] = [
    "1",
    "0",
    r#""a""#,
    "null",
    "18446744073709551615",
    r#""a\"\\\/\u00e9\n""#,
    r#""\ud83d\ude00""#,
    r#""""#,
    "18446744073709551616",
    "-1",
    "-0",
    "1.0",
    "1e2",
    "01",
    "[]",
    "{}",
    "true",
    r#""\ud800""#,
    "\"\u{7f}\u{e9}\"",
    "1e999",
];
const VALUES: [&str; 22] = [
    "[]",
    "[1,2]",
    "{}",
    r#"{"a":1}"#,
    "null",
    r#"[{"a":[1.50,-0,1e3]}]"#,
    r#"{"a":1,"a":2}"#,
    "[1e999]",
    "[-0.0]",
    r#"["\u0041\ud83d\ude00"]"#,
    r#"["\ud800"]"#,
    "[18446744073709551616]",
    "[01]",
    "[1,]",
    "1",
    r#""a""#,
    "true",
    "[[[]]]",
    r#"[0.1e-400, 123456789012345678901234567890]"#,
    r#"{"\u0061":null,"b":[true,false]}"#,
    "[\"\t\"]",
    "[ 1 , 2 ]",
];
/// Pieces that mutations insert.
const PIECES: [&str; 24] = [
    "{", "}", "[", "]", ",", ":", "\"", "\\", "null", "true", "0", "-", "1", ".", "e", " ", "\n", "\u{b}",
    "\u{a0}", "\\u0041", "\u{feff}", "\0", "//", "\"id\":1",
];

/// Returns a body: a call, a batch, or something that resembles one of them.
fn random(draw: &mut Draw) -> String {
    let mut body = match draw.below(10) {
        0 | 1 => {
            let calls: Vec<_> = (0..draw.below(4)).map(|_| element(draw)).collect();
            format!("[{}]", calls.join(","))
        }
        2 => draw.pick(&VALUES).to_string(),
        _ => element(draw),
    };
    if draw.once_in(200) {
        let depth = 120 + draw.below(16);
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{nested}}}"#);
    }
    if draw.once_in(8) {
        body = format!("{}{body}{}", draw.pick(&PIECES), draw.pick(&PIECES));
    }
    if draw.once_in(3) {
        for _ in 0..1 + draw.below(3) {
            mutate(draw, &mut body);
        }
    }
    body
}

/// Changes the text once: removes, inserts or repeats a part of it.
fn mutate(draw: &mut Draw, text: &mut String) {
    let mut places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    places.push(text.len());
    let first = draw.below(places.len());
    let (at, end) = (places[first], places[(first + draw.below(8)).min(places.len() - 1)]);
    match draw.below(5) {
        0 => text.truncate(at),
        1 => drop(text.drain(at..end)),
        2 => text.insert_str(at, &text[at..end].to_owned()),
        _ => text.insert_str(at, PIECES[draw.below(PIECES.len())]),
    }
}

fn element(draw: &mut Draw) -> String {
    let space = if draw.once_in(6) { *draw.pick(&[" ", "\n", "\t", "\r\n  "]) } else { "" };
    // Most members are valid, because one fault hides the others.
    let value = |draw: &mut Draw, from: &[&'static str], valid: usize| {
        let end = if draw.once_in(10) { from.len() } else { valid };
        from[draw.below(end)]
    };
    let version = value(draw, &VERSIONS, 2);
    let method = value(draw, &METHODS, 3);
    let params = value(draw, &VALUES, 6);
    let id = value(draw, &IDS, 8);
    if draw.once_in(8) {
        let members = &[version, method, params, id, "1"][..*draw.pick(&[0, 1, 2, 3, 4, 4, 4, 5])];
        return format!("[{space}{}{space}]", members.join(&format!("{space},")));
    }
    let mut members = vec![("jsonrpc", version), ("method", method), ("params", params), ("id", id)];
    members.retain(|_| !draw.once_in(24));
    if draw.once_in(20) {
        members.push((*draw.pick(&["jsonrpc", "method", "params", "id", "x", "ID", "\\u0069d", ""]), id));
    }
    if draw.once_in(2) {
        members = shuffled(draw, members);
    }
    let members: Vec<_> =
        members.iter().map(|(name, value)| format!(r#"{space}"{name}"{space}:{space}{value}"#)).collect();
    format!("{{{}{space}}}", members.join(","))
}
