//! One WebSocket connection: one task, which reads the client's calls and writes what waits for the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::stream::{FuturesUnordered, SplitSink};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::io::InspectReader;

use super::client::{NextMessage, SocketClient};
use super::queue::Queued;
use super::{Hub, protocol};
use crate::telemetry::CloseReason;

/// The maximum length of a client's message, as on a node.
const MAX_MESSAGE: usize = 4_096;
/// The maximum number of bytes that arrive without ending a message: those of the longest, sent in frames of one byte. A
/// client could send frames without any byte for ever, and none of them would be a call.
const MAX_UNENDED: usize = 8 * MAX_MESSAGE;
/// The memory in which messages arrive. An idle connection keeps it.
const READ_BYTES: usize = 4_096;
/// The number of bytes that are collected before they are written.
const WRITE_BYTES: usize = 4_096;
/// The length of a frame. A longer text is sent in several, so that a client that reads slowly holds one frame of it, and
/// the text itself stays shared.
const FRAME_BYTES: usize = 16 * 1024;
/// The maximum number of a client's messages that are being answered. Most are at once.
const MAX_ANSWERS: usize = 64;
/// The maximum time for which a client may take to answer the close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the client of an open WebSocket until it ends or `stop` does. `read` holds bytes that were read from the socket
/// before. Returns the socket, to be closed.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    hub: Arc<Hub>,
    client: Arc<SocketClient>,
    socket: S,
    read: Vec<u8>,
    stop: impl Future<Output = ()>,
) -> S {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(WRITE_BYTES)
        .max_write_buffer_size(WRITE_BYTES + 4 * FRAME_BYTES)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let unended = Arc::new(AtomicUsize::new(0));
    let socket = InspectReader::new(socket, {
        let (client, unended) = (Arc::clone(&client), Arc::clone(&unended));
        move |bytes: &[u8]| {
            if unended.fetch_add(bytes.len(), Ordering::Relaxed) > MAX_UNENDED {
                client.close(CloseReason::TooLong);
            }
        }
    });
    let socket = WebSocketStream::from_partially_read(socket, read, Role::Server, Some(config)).await;
    let _connected = Connected::new(&hub, &client);
    let (mut sink, source) = socket.split();
    let mut source = source.inspect(|_| unended.store(0, Ordering::Relaxed));
    let reason = tokio::select! {
        reason = read_calls(&hub, &client, &mut source) => reason,
        reason = write_messages(&client, &mut sink) => reason,
        () = stop => CloseReason::Away,
    };
    // From here on nobody else decides why the connection ends.
    client.close(reason);
    hub.parts.metrics.ws_closes.at(reason).inc();
    // Both halves are of one socket, so this never fails.
    let Ok(mut socket) = source.into_inner().reunite(sink) else {
        unreachable!("both halves are of one socket")
    };
    if let Some(frame) = frame_of(reason) {
        let closing = async {
            let _ = socket.close(Some(frame)).await;
            while let Some(Ok(_)) = socket.next().await {}
        };
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
    }
    socket.into_inner().into_inner()
}

/// A client that is listed at the hub. Dropping the value ends its subscriptions, also if the connection's task is cut.
struct Connected<'a> {
    hub: &'a Hub,
    client: &'a Arc<SocketClient>,
}

impl<'a> Connected<'a> {
    fn new(hub: &'a Hub, client: &'a Arc<SocketClient>) -> Self {
        hub.connected().insert(client.id, Arc::clone(client));
        Self { hub, client }
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.hub.connected().remove(&self.client.id);
        self.hub.feeds.leave_all(self.client);
    }
}

/// Returns the frame that tells the client why. `None` if the client has gone. The code is never 1000, after which client
/// libraries do not connect again.
fn frame_of(reason: CloseReason) -> Option<CloseFrame> {
    let (code, text) = match reason {
        CloseReason::Client | CloseReason::Dead => return None,
        CloseReason::Away => (CloseCode::Away, "the server stops; connect again"),
        CloseReason::Protocol => (CloseCode::Protocol, "not a WebSocket message, or not UTF-8"),
        CloseReason::TooLong => (CloseCode::Size, "a message has at most 4096 bytes"),
        CloseReason::Policy => (CloseCode::Policy, "the API key does not allow this connection any more"),
        CloseReason::Restart => (CloseCode::Restart, "notifications may be missing; subscribe again"),
        CloseReason::Lagged => (CloseCode::Again, "notifications are read too slowly"),
        CloseReason::Rate => (CloseCode::Again, "too many calls, or a quota is used up"),
    };
    Some(CloseFrame { code, reason: text.into() })
}

/// Reads and answers calls until the connection ends. No call waits for another one.
async fn read_calls(
    hub: &Arc<Hub>,
    client: &Arc<SocketClient>,
    source: &mut (impl StreamExt<Item = Result<Message, tungstenite::Error>> + Unpin),
) -> CloseReason {
    let mut answers = FuturesUnordered::new();
    loop {
        let message = tokio::select! {
            biased;
            Some(answered) = answers.next() => {
                if let Err(reason) = answered {
                    return reason;
                }
                continue;
            }
            body = client.next_late() => {
                answers.push(answer(hub, client, body, true));
                continue;
            }
            message = next_message(client, source), if answers.len() < MAX_ANSWERS => message,
        };
        let Some(message) = message else { return CloseReason::Client };
        let body = match message {
            Ok(Message::Text(text)) => Bytes::from(text),
            Ok(Message::Binary(body)) if str::from_utf8(&body).is_ok() => body,
            Ok(Message::Binary(_)) => return CloseReason::Protocol,
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_)) => {
                if client.heard(false, Instant::now()) {
                    continue;
                }
                return CloseReason::Rate;
            }
            Err(tungstenite::Error::Capacity(_)) => return CloseReason::TooLong,
            Err(tungstenite::Error::Protocol(
                tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
            )) => {
                return CloseReason::Client;
            }
            Err(tungstenite::Error::Protocol(_) | tungstenite::Error::Utf8(_)) => {
                return CloseReason::Protocol;
            }
            Err(_) => return CloseReason::Client,
        };
        answers.push(answer(hub, client, body, false));
    }
}

async fn answer(
    hub: &Arc<Hub>,
    client: &Arc<SocketClient>,
    body: Bytes,
    has_waited: bool,
) -> Result<(), CloseReason> {
    protocol::answer(hub, client, &body, has_waited).await
}

async fn next_message<M>(
    client: &SocketClient,
    source: &mut (impl StreamExt<Item = M> + Unpin),
) -> Option<M> {
    client.few_answers().await;
    source.next().await
}

async fn write_messages<S: AsyncRead + AsyncWrite + Unpin>(
    client: &SocketClient,
    sink: &mut SplitSink<WebSocketStream<S>, Message>,
) -> CloseReason {
    loop {
        let message = match client.next().await {
            NextMessage::Send(message) => message,
            NextMessage::Close(reason) => return reason,
        };
        let due = message.due();
        let sending = async {
            send(sink, &message).await?;
            if due.is_none() && client.has_more() { Ok(()) } else { sink.flush().await }
        };
        tokio::select! {
            biased;
            sent = sending => {
                if sent.is_err() {
                    return CloseReason::Client;
                }
            }
            // A client that reads too slowly is closed while the socket takes nothing.
            reason = client.closed(due) => return reason,
        }
    }
}

/// Hands a message to the socket, in frames of bounded length.
async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut SplitSink<WebSocketStream<S>, Message>,
    message: &Queued,
) -> Result<(), tungstenite::Error> {
    let (mut text, tail) = match message {
        Queued::Ping => return sink.feed(Message::Ping(Bytes::new())).await,
        Queued::Answer(text) => (text.clone(), String::new()),
        Queued::Notification { shared, id, .. } => (shared.text.clone(), format!("{id}}}}}")),
    };
    let mut opcode = Data::Text;
    loop {
        let is_last = text.len() + tail.len() <= FRAME_BYTES;
        let piece = if is_last {
            Bytes::from([&text, tail.as_bytes()].concat())
        } else {
            text.copy_to_bytes(text.len().min(FRAME_BYTES))
        };
        sink.feed(Message::Frame(Frame::message(piece, OpCode::Data(opcode), is_last))).await?;
        if is_last {
            return Ok(());
        }
        opcode = Data::Continue;
    }
}
