//! Servers for comparison with slotfront, and the node behind slotfront and the other measured proxies.
//!
//! - `constant` reads a body and always sends the same answer.
//! - `floor` parses a call, applies a rate limit, looks up the result in a moka cache, and writes the answer. It
//!   checks no API keys, methods or freshness, and counts no metrics.
//! - `node` answers as a node whose chain does not advance.
//! - `fanout` sends each message that it gets over a WebSocket to all its WebSockets.
//!
//! Account data of `node` has the length that the address encodes ([`sized::address`]), or `LENGTH` bytes. The
//! slot number of a block is also its length in bytes, roughly. The method `calls` returns the number of calls for
//! accounts and lists so far.
//!
//! The arguments are the name of the server and the port. Each server prints a line when it listens.

#![expect(clippy::print_stdout, reason = "the caller waits for the output")]

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::{SinkExt as _, StreamExt as _};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use moka::sync::Cache;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use slotfront_lab::sized;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tokio_util::task::TaskTracker;

/// The length in bytes of the data of an account whose address encodes no length. An answer with one such account
/// has 247 bytes.
const LENGTH: usize = 3;
const SLOT: u64 = 400_000_000;
/// The number of calls for accounts and lists that `node` has answered.
static CALLS: AtomicU64 = AtomicU64::new(0);

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: &'a str,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

fn json(body: impl Into<Body>) -> Response {
    ([(CONTENT_TYPE, "application/json; charset=utf-8")], body.into()).into_response()
}

/// Returns an account with `length` bytes of data.
fn value(length: usize) -> String {
    use base64::Engine as _;
    let data = base64::engine::general_purpose::STANDARD.encode(vec![7; length]);
    format!(
        r#"{{"data":["{data}","base64"],"executable":false,"lamports":100000000,"owner":"11111111111111111111111111111111","rentEpoch":18446744073709551615,"space":{length}}}"#
    )
}

fn contextual(value: &str) -> String {
    format!(r#"{{"context":{{"apiVersion":"4.0.0","slot":{SLOT}}},"value":{value}}}"#)
}

fn account() -> String {
    contextual(&value(LENGTH))
}

/// Returns the account at `address`, with data of the length that the address encodes.
fn value_of(address: &Value) -> String {
    value(address.as_str().and_then(sized::size).unwrap_or(LENGTH))
}

fn enveloped(result: &str, id: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"result\":{result},\"id\":{id}}}\n")
}

/// Returns a block of about `slot` bytes, one long string.
fn block(slot: &Value) -> String {
    let length = slot.as_u64().and_then(|slot| usize::try_from(slot).ok()).unwrap_or(0);
    let hash = "1".repeat(length);
    format!(
        r#"{{"blockHeight":1,"blockTime":1,"blockhash":"11111111111111111111111111111111","parentSlot":1,"previousBlockhash":"{hash}","transactions":[]}}"#
    )
}

/// Answers as a node whose chain does not advance.
async fn node(body: Bytes) -> Response {
    let Ok(call) = serde_json::from_slice::<Call<'_>>(&body) else { return json("not JSON") };
    let params = call.params.and_then(|params| serde_json::from_str::<Vec<Value>>(params.get()).ok());
    let first = params.into_iter().flatten().next().unwrap_or_default();
    let result = match call.method {
        "getHealth" => r#""ok""#.to_owned(),
        "getSlot" => SLOT.to_string(),
        "getFirstAvailableBlock" => "0".to_owned(),
        "getGenesisHash" => r#""11111111111111111111111111111111""#.to_owned(),
        "getVersion" => r#"{"solana-core":"4.0.0","feature-set":1}"#.to_owned(),
        "getBlock" => block(&first),
        "calls" => CALLS.load(Ordering::Relaxed).to_string(),
        "getMultipleAccounts" => {
            CALLS.fetch_add(1, Ordering::Relaxed);
            let values: Vec<String> = first.as_array().into_iter().flatten().map(value_of).collect();
            contextual(&format!("[{}]", values.join(",")))
        }
        _ => {
            CALLS.fetch_add(1, Ordering::Relaxed);
            contextual(&value_of(&first))
        }
    };
    json(enveloped(&result, call.id.get()))
}

struct FloorState {
    limiter: DefaultDirectRateLimiter,
    kept: Cache<String, Bytes>,
}

/// Answers as the server `floor`, which does the minimum work of a caching proxy with a rate limit.
async fn floor(State(floor): State<Arc<FloorState>>, Path(_key): Path<String>, body: Bytes) -> Response {
    if floor.limiter.check().is_err() {
        return json("limited");
    }
    let Ok(call) = serde_json::from_slice::<Call<'_>>(&body) else { return json("not JSON") };
    let params = call.params.map_or("[]", RawValue::get);
    let key = [call.method, params].concat();
    let result = floor.kept.get(&key).unwrap_or_else(|| {
        let result = Bytes::from(account());
        floor.kept.insert(key, result.clone());
        result
    });
    let mut answer = Vec::with_capacity(result.len() + 64);
    answer.extend_from_slice(br#"{"jsonrpc":"2.0","result":"#);
    answer.extend_from_slice(&result);
    answer.extend_from_slice(br#","id":"#);
    answer.extend_from_slice(call.id.get().as_bytes());
    answer.extend_from_slice(b"}\n");
    json(answer)
}

/// Answers the handshake of a client whose key is that of the example in RFC 6455.
async fn accept_upgrade(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let accepted = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                    sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    stream.write_all(accepted.as_bytes()).await
}

/// Sends each message that it gets over a WebSocket to all its WebSockets, which share the text.
async fn fan_out(listener: TcpListener) -> Result<(), Box<dyn std::error::Error>> {
    let clients: Arc<Mutex<Vec<mpsc::UnboundedSender<Message>>>> = Arc::default();
    let tasks = TaskTracker::new();
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let clients = Arc::clone(&clients);
        tasks.spawn(async move {
            let config = WebSocketConfig::default().read_buffer_size(4 << 10).write_buffer_size(0);
            accept_upgrade(&mut stream).await?;
            let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
            let (sender, mut texts) = mpsc::unbounded_channel();
            clients.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
            loop {
                tokio::select! {
                    Some(text) = texts.recv() => socket.send(text).await?,
                    message = socket.next() => match message {
                        Some(Ok(text @ Message::Text(_))) => {
                            let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
                            clients.retain(|client| client.send(text.clone()).is_ok());
                        }
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => break Ok::<_, WsError>(()),
                    },
                }
            }
        });
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_default();
    let port = arguments.next().ok_or("usage: yardsticks constant|floor|node|fanout PORT")?.parse()?;
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    println!("listening on {}", listener.local_addr()?);
    let router = match kind.as_str() {
        "fanout" => return fan_out(listener).await,
        "constant" => {
            let answer: &'static str = enveloped(&account(), "1").leak();
            Router::new().fallback(post(move |_body: Bytes| async move { json(answer) }))
        }
        "floor" => {
            let quota = Quota::per_second(NonZeroU32::MAX);
            let state = FloorState { limiter: RateLimiter::direct(quota), kept: Cache::new(100_000) };
            Router::new().route("/v3/{key}", post(floor)).with_state(Arc::new(state))
        }
        "node" => Router::new().fallback(post(node)),
        other => return Err(format!("no such yardstick: {other:?}").into()),
    };
    axum::serve(listener, router).await?;
    Ok(())
}
