//! The WebSocket of a simulated node: subscriptions, and the notifications of each block that the node reaches.
//!
//! What a connection gets depends only on the chain, not on the time at which its task runs: it looks at each block in
//! turn, and a block decides what is processed, confirmed and final. A slow reader thus gets everything late, and
//! nothing waits for him in memory.

mod session;
mod subscription;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use hyper::{Method, Request, Response, StatusCode};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use slotfront_rpc::jsonrpc::envelope;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::fault::Fault;
use super::node::{self, Node};
use session::Session;

/// The name under which faults and counters know the beginning of a connection.
pub(crate) const UPGRADE_NAME: &str = "upgrade";
/// The maximum size of a message from a client in bytes, by the default of a node.
const MAX_MESSAGE: usize = 4_096;
/// The text that a WebSocket server hashes together with the client's key (RFC 6455).
const SALT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Returns true if a request asks for a WebSocket.
pub(crate) fn is_asked(request: &Request<impl Sized>) -> bool {
    let header = |name: HeaderName| request.headers().get(name).map_or(&b""[..], HeaderValue::as_bytes);
    request.method() == Method::GET
        && header(UPGRADE).eq_ignore_ascii_case(b"websocket")
        && header(SEC_WEBSOCKET_VERSION) == b"13"
        && !header(SEC_WEBSOCKET_KEY).is_empty()
}

/// Returns the response that makes the connection of `request` a WebSocket.
pub(crate) fn accept<B: Default>(request: &Request<impl Sized>) -> Response<B> {
    let key = request.headers().get(SEC_WEBSOCKET_KEY).map_or(&b""[..], HeaderValue::as_bytes);
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, SALT.as_bytes()].concat());
    let mut response = Response::new(B::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accepted) = HeaderValue::try_from(BASE64.encode(hash)) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    }
    response
}

/// Serves a WebSocket until it ends. `read` has the bytes that came with the request.
pub(crate) async fn run(node: Arc<Node>, stream: TcpStream, read: Vec<u8>) {
    let config = WebSocketConfig::default()
        .read_buffer_size(MAX_MESSAGE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let mut socket = WebSocketStream::from_partially_read(stream, read, Role::Server, Some(config)).await;
    let mut news = node.news();
    let mut session = node.view(Session::new);
    loop {
        node.wakes().await;
        // A subscription gets no block that the node had before, so blocks come before messages.
        loop {
            let texts = node.view(|view| session.blocks(view));
            if texts.is_empty() {
                break;
            }
            for text in texts {
                if socket.feed(Message::text(text)).await.is_err() {
                    return;
                }
            }
        }
        if socket.flush().await.is_err() {
            return;
        }
        let message = tokio::select! {
            message = socket.next() => message,
            // The wait cannot fail, because the node keeps the sender alive.
            _ = news.changed() => continue,
        };
        let message = match message {
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => message.into_data(),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            // The library has an answer to a close, and sends it with the next flush. Without it, client libraries take
            // the connection for lost and open another.
            Some(Ok(Message::Close(_))) => {
                let _ = socket.flush().await;
                return;
            }
            // A message that is too long ends the connection without a close.
            _ => return,
        };
        let request = envelope::parse(&message);
        let methods = node::methods(&request);
        node.count(&methods);
        node.holds.pass(&methods).await;
        let fault = node.faults.take(&methods);
        match &fault {
            Some(Fault::Latency(wait)) => tokio::time::sleep(*wait).await,
            Some(Fault::Hang) => continue,
            Some(Fault::Reset) => {
                let _ = socket.get_ref().set_zero_linger();
                return;
            }
            _ => {}
        }
        let mut answer = node::answer_each(&request, |out, call| {
            node.view(|view| session.answer(view, out, call, fault.as_ref()));
        });
        // Over HTTP an answer ends with a line feed.
        answer.pop();
        let text = String::from_utf8(answer).unwrap_or_default();
        if !text.is_empty() && socket.send(Message::text(text)).await.is_err() {
            return;
        }
    }
}
