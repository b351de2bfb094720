//! The HTTP server of a simulated node: a node's rules for requests, and faults below JSON-RPC.

use std::error::Error as _;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use slotfront_rpc::jsonrpc::envelope::{self, Element};
use slotfront_rpc::jsonrpc::{Id, reply};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer;
use super::fault::Fault;
use super::node::{self, Node};
use super::socket;

/// The maximum size of a request body in bytes, by the default of a node.
const MAX_BODY: usize = 50 * 1024;
const JSON: &str = "application/json; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
/// The pause between the last bytes of a truncated answer and the end of the connection, so that these bytes are sent.
const FLUSH: Duration = Duration::from_millis(10);
/// The number of pieces in which [`Fault::Trickle`] sends an answer.
const TRICKLE_PIECES: usize = 10;
/// The number of bytes in a piece of a [`Fault::Huge`] answer.
const PIECE: usize = 64 * 1024;
/// The maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// The pause after the server failed to accept a connection or to bind its port, before it tries again.
const RETRY: Duration = Duration::from_millis(50);
const PAGE: &str = "<html><head><title>502 Bad Gateway</title></head><body>502 Bad Gateway</body></html>\n";

/// Serves `node` on `listener` until `stop`, except while the node is down. Connections end when the node goes down,
/// and at `stop`.
pub(crate) async fn run(node: Arc<Node>, listener: TcpListener, tasks: TaskTracker, stop: CancellationToken) {
    let Ok(address) = listener.local_addr() else { return };
    let lives = async {
        let mut next = Some(listener);
        while let Some(listener) = next.take() {
            let life = stop.child_token();
            tokio::select! {
                () = accept(&node, &listener, &tasks, &life) => {}
                () = node.becomes(true) => {}
            }
            drop(listener);
            life.cancel();
            let held = hold_port(address).await;
            node.becomes(false).await;
            next = held.listen(BACKLOG).ok();
        }
    };
    stop.run_until_cancelled(lives).await;
}

/// Accepts connections forever, and serves each connection until `life` ends.
async fn accept(node: &Arc<Node>, listener: &TcpListener, tasks: &TaskTracker, life: &CancellationToken) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (node, life) = (Arc::clone(node), life.clone());
                tasks.spawn(async move { life.run_until_cancelled(connection(node, stream)).await });
            }
            // The usual reason is that no file descriptor is free. The pause gives connections time to close.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// Keeps the port of a node that is down, without listening. If the port were free, the kernel could give it to an
/// outgoing connection. A connection to the node could then even connect to itself.
async fn hold_port(address: SocketAddr) -> TcpSocket {
    let hold = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok::<_, std::io::Error>(socket)
    };
    loop {
        match hold() {
            Ok(socket) => return socket,
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// The error that makes the server reset the connection, for [`Fault::Reset`].
#[derive(Debug, thiserror::Error)]
#[error("a simulated fault reset the connection")]
struct Reset;

/// The error that ends the body of an answer early, for [`Fault::Truncated`].
#[derive(Debug, thiserror::Error)]
#[error("a simulated fault cut the answer")]
struct Cut;

async fn connection(node: Arc<Node>, stream: TcpStream) {
    // Replies are sent at once, without waiting for more data.
    let _ = stream.set_nodelay(true);
    let becomes_socket = AtomicBool::new(false);
    let service = service_fn(|request| Box::pin(respond(&node, &becomes_socket, request)));
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let ended = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    let reset =
        |error: hyper::Error| error.source().and_then(|cause| cause.downcast_ref::<Reset>()).is_some();
    if becomes_socket.load(Ordering::Relaxed) {
        let parts = connection.into_parts();
        socket::run(Arc::clone(&node), parts.io.into_inner(), parts.read_buf.to_vec()).await;
    } else if ended.is_err_and(reset) {
        // The connection closes without a linger time, so the kernel drops unsent data and sends a TCP reset.
        let _ = connection.into_parts().io.into_inner().set_zero_linger();
    }
}

/// The name under which holds and faults concern calls that search the history.
pub const HISTORY_SEARCH: &str = "a search of the history";
/// What these calls contain.
const SEARCHES: &[u8] = b"\"searchTransactionHistory\":true";

/// Answers a request. Sets `becomes_socket` if the connection is a WebSocket from then on.
async fn respond(
    node: &Node,
    becomes_socket: &AtomicBool,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Reset> {
    if request.uri().path() == "/health" {
        let health = node.view(|view| answer::health(view).is_ok());
        return Ok(Response::new(ResponseBody::from(if health { "ok" } else { "behind" })));
    }
    let upgrade = socket::is_asked(&request).then(|| socket::accept(&request));
    let body = match upgrade {
        Some(_) => Bytes::new(),
        None => match read(request).await {
            Ok(body) => body,
            Err(refused) => return Ok(*refused),
        },
    };
    let request = envelope::parse(&body);
    let methods = match upgrade {
        Some(_) => vec![socket::UPGRADE_NAME.to_owned()],
        None => node::methods(&request),
    };
    node.count(&methods);
    let mut affected = methods.clone();
    if body.windows(SEARCHES.len()).any(|text| text == SEARCHES) {
        affected.push(HISTORY_SEARCH.to_owned());
    }
    node.holds.pass(&affected).await;
    let fault = node.faults.take(&affected);
    let text = |status, text: String| Ok(plain(StatusCode::from_u16(status).unwrap_or_default(), text));
    match &fault {
        Some(Fault::Latency(wait)) => tokio::time::sleep(*wait).await,
        Some(Fault::Hang) => std::future::pending::<()>().await,
        Some(Fault::Status429 { retry_after_s }) => {
            let mut refused = plain(StatusCode::TOO_MANY_REQUESTS, "Too many requests\n".to_owned());
            refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from(*retry_after_s));
            return Ok(refused);
        }
        Some(Fault::Status(status)) => return text(*status, format!("status {status}\n")),
        Some(Fault::Html) => {
            let mut page = plain(StatusCode::BAD_GATEWAY, PAGE.to_owned());
            page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
            return Ok(page);
        }
        Some(Fault::Reset) => return Err(Reset),
        Some(Fault::Huge(bytes)) => return Ok(json(ResponseBody::huge(*bytes, &request))),
        Some(Fault::Body { content_type, text }) => {
            let mut body = Response::new(ResponseBody::from(*text));
            body.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            return Ok(body);
        }
        _ if !node.implements(&methods) => {
            let mut refused = Response::new(ResponseBody::from(Vec::new()));
            *refused.status_mut() = StatusCode::NOT_IMPLEMENTED;
            return Ok(refused);
        }
        _ => {}
    }
    if let Some(upgrade) = upgrade {
        becomes_socket.store(true, Ordering::Relaxed);
        return Ok(upgrade);
    }
    let answer = node.reply(&request, fault.as_ref());
    let status = match fault {
        Some(Fault::Provider(status)) if !answer.starts_with(br#"{"jsonrpc":"2.0","result":"#) => status,
        _ => 200,
    };
    let mut response = json(match fault {
        Some(Fault::Truncated) => ResponseBody::truncated(answer),
        Some(Fault::Half) => answer[..answer.len() / 2].to_vec().into(),
        Some(Fault::Trickle(pause)) => ResponseBody::trickle(answer, pause),
        _ => answer.into(),
    });
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    Ok(response)
}

/// Reads the body of a call, or refuses the request as a node does. The error is boxed because a response is large.
async fn read(request: Request<Incoming>) -> Result<Bytes, Box<Response<ResponseBody>>> {
    let refuse = |status, words: &str| Err(Box::new(plain(status, words.to_owned())));
    match *request.method() {
        Method::POST => {}
        Method::OPTIONS => {
            let mut options = json(ResponseBody::from(Vec::new()));
            options.headers_mut().insert(ALLOW, HeaderValue::from_static("OPTIONS, POST"));
            options.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
            return Err(Box::new(options));
        }
        _ => {
            let words = "Used HTTP Method is not allowed. POST or OPTIONS is required\n";
            return refuse(StatusCode::METHOD_NOT_ALLOWED, words);
        }
    }
    let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let accepted = ["application/json", JSON, "application/json;charset=utf-8"];
    if !accepted.iter().any(|accepted| content_type.eq_ignore_ascii_case(accepted.as_bytes())) {
        let words = "Supplied content type is not allowed. Content-Type: application/json is required\n";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, words);
    }
    let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "request body size exceeds allowed maximum");
        }
        Err(_) => return refuse(StatusCode::BAD_REQUEST, "request body could not be read"),
    };
    match std::str::from_utf8(&body) {
        Ok(_) => Ok(body),
        Err(error) => {
            let at = error.valid_up_to();
            refuse(StatusCode::BAD_REQUEST, &format!("utf-8 encoding error at byte {at} in request body"))
        }
    }
}

fn plain(status: StatusCode, text: String) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(text.into_bytes()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response
}

fn json(payload: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(payload);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

enum ResponseBody {
    Whole(Bytes),
    /// The first bytes of a reply. The connection then ends, although a Content-Length of `promised` bytes was sent.
    Truncated {
        sent: Bytes,
        promised: u64,
        flush: Pin<Box<Sleep>>,
    },
    /// A reply that is sent in pieces of `piece` bytes, with a pause between two pieces. `left` is the part not sent
    /// yet.
    Trickle {
        left: Bytes,
        piece: usize,
        between: Duration,
        pause: Pin<Box<Sleep>>,
    },
    /// A reply that consists of a beginning, a long text, and an end. `left` is the number of bytes of the text
    /// that are not sent yet.
    Huge {
        head: Bytes,
        left: usize,
        tail: Bytes,
    },
}

impl Default for ResponseBody {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl From<Vec<u8>> for ResponseBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Whole(bytes.into())
    }
}

impl From<&'static str> for ResponseBody {
    fn from(text: &'static str) -> Self {
        Self::Whole(Bytes::from_static(text.as_bytes()))
    }
}

impl ResponseBody {
    fn truncated(answer: Vec<u8>) -> Self {
        let promised = answer.len() as u64;
        let sent = Bytes::from(answer);
        Self::Truncated {
            sent: sent.slice(..sent.len() / 2),
            promised,
            flush: Box::pin(tokio::time::sleep(FLUSH)),
        }
    }

    fn trickle(answer: Vec<u8>, between: Duration) -> Self {
        let piece = answer.len().div_ceil(TRICKLE_PIECES).max(1);
        let pause = Box::pin(tokio::time::sleep(Duration::ZERO));
        Self::Trickle { left: answer.into(), piece, between, pause }
    }

    /// Returns the body of an answer whose result is a text of `bytes` bytes. The answer to a single call has the
    /// id of the call. The answer to a batch has the id null.
    fn huge(bytes: usize, request: &envelope::Request) -> Self {
        let id = match request {
            envelope::Request::One(Element::Call(call)) => &call.id,
            _ => &Id::Null,
        };
        let (head, tail) = reply::head_and_tail(id);
        let head = [&head[..], b"\""].concat().into();
        Self::Huge { head, left: bytes, tail: [b"\"", &tail[..], b"\n"].concat().into() }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let piece = match self.get_mut() {
            Self::Whole(bytes) => std::mem::take(bytes),
            Self::Truncated { sent, flush, .. } => {
                if sent.is_empty() {
                    ready!(flush.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(Cut)));
                }
                std::mem::take(sent)
            }
            Self::Trickle { left, piece, between, pause } => {
                if left.is_empty() {
                    return Poll::Ready(None);
                }
                ready!(pause.as_mut().poll(cx));
                pause.as_mut().reset(Instant::now() + *between);
                left.split_to((*piece).min(left.len()))
            }
            Self::Huge { head, .. } if !head.is_empty() => std::mem::take(head),
            Self::Huge { left, tail, .. } if *left == 0 => std::mem::take(tail),
            Self::Huge { left, .. } => {
                let piece = Bytes::from(vec![b'x'; (*left).min(PIECE)]);
                *left -= piece.len();
                piece
            }
        };
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Truncated { promised, .. } => SizeHint::with_exact(*promised),
            Self::Trickle { left, .. } => SizeHint::with_exact(left.len() as u64),
            Self::Huge { .. } => SizeHint::default(),
        }
    }
}
