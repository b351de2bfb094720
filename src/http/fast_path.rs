//! The fast path: plain requests of HTTP/1.1 to the hot route, read and answered on the socket itself.
//!
//! Most requests are alike: a POST whose length is given, of a few hundred bytes, on a connection that is kept. For these
//! hyper's general machine is most of what a hit costs. Whatever is not plain (chunks, an expectation, an origin, another
//! route, a fault) is left to hyper with every byte that was read, and the connection stays there. So this reads a
//! subset, decides no refusal of HTTP itself, and two readers never differ on where a request ends.
//!
//! A connection's clocks and signals cost a request nothing: they are looked at when the task is woken and there is
//! nothing to read.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice};
use std::net::IpAddr;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::caller::{self, Caller};
use super::listener::{IDLE_TIMEOUT, LAST_MOMENT};
use super::reply::{JOINED_BYTES, Reply, Value};
use super::request_id::{self, RequestId};
use super::signal::{Given, Signal};
use super::stream::WRITE_STALL;
use super::{Front, body, rpc};

/// What a plain request begins with; the blank and the slash alone say that the method ends there.
const BEGINNING: &[u8] = b"POST /";
/// Room for a usual request, so that most come with one read.
const READ_BYTES: usize = 4096;
/// A longer head is no usual one.
const MAX_HEAD: usize = 4096;
/// A longer body is no usual one; also what is read ahead of a client that does not wait for its answers.
const MAX_BODY: usize = 64 * 1024;
/// More fields than clients and two proxies send.
const MAX_FIELDS: usize = 32;
/// Pieces of a long answer that are written at once.
const VECTORS: usize = 16;

/// How a connection left the fast path.
pub(super) enum After {
    /// It is over.
    Ended,
    /// hyper goes on, from what was read and not served.
    Hyper {
        /// What was read.
        read: Bytes,
        /// Whether nothing was served yet.
        first: bool,
    },
}

/// What has come of a request.
enum Head {
    /// Not enough to tell.
    Partial,
    /// A plain request, if its body comes.
    Plain(Plain),
    /// hyper's.
    Other,
}

/// A plain request's head.
struct Plain {
    /// Where the API key stands.
    key: Range<usize>,
    /// Where the body stands.
    body: Range<usize>,
    caller: Caller,
}

/// One connection on the fast path.
struct Connection<'a, S> {
    socket: &'a mut S,
    read: BytesMut,
    /// The client has said that it sends no more, while calls of its were waiting.
    ended: bool,
    written: Vec<u8>,
    stop: Given,
    /// When waiting for more to read ends.
    due: Instant,
    /// Fires at `due` or before, and is then set anew.
    clock: Pin<Box<Sleep>>,
    /// Whether the task's waker is with `clock` and `stop`.
    registered: bool,
}

/// What waiting for more to read came to.
enum More {
    Read,
    /// The client is gone, or was waited for in vain.
    End,
}

/// Serves plain requests of `client` until the connection ends or is hyper's.
///
/// # Errors
/// The socket's, and a client that takes no more of its answer.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    front: &Arc<Front>,
    socket: &mut S,
    client: IpAddr,
    stop: &Signal,
) -> io::Result<After> {
    let server = &front.config.server;
    // Nobody connects to say nothing.
    let due = Instant::now() + server.header_timeout;
    let mut connection = Connection {
        socket,
        read: BytesMut::with_capacity(READ_BYTES),
        ended: false,
        written: Vec::with_capacity(1024),
        stop: stop.given(),
        due,
        clock: Box::pin(tokio::time::sleep_until(due)),
        registered: false,
    };
    let (mut first, mut begun) = (true, true);
    loop {
        let plain = match head(&connection.read, front, client) {
            Head::Plain(plain) => plain,
            Head::Other => return Ok(After::Hyper { read: connection.read.freeze(), first }),
            Head::Partial => {
                // A head that has begun must end.
                if !begun && !connection.read.is_empty() {
                    begun = true;
                    connection.due = Instant::now() + server.header_timeout;
                }
                match connection.more(first).await? {
                    More::Read => continue,
                    More::End => return Ok(After::Ended),
                }
            }
        };
        let started = Instant::now();
        if connection.read.len() < plain.body.end {
            connection.due = started + server.body_timeout;
            while connection.read.len() < plain.body.end {
                match connection.more(false).await {
                    Ok(More::Read) => {}
                    // hyper meets the same end, and has an answer to it.
                    Ok(More::End) => return Ok(After::Hyper { read: connection.read.freeze(), first }),
                    Err(error) if error.kind() == ErrorKind::TimedOut => {
                        connection.write(&mut body::late(), &plain.caller.id).await?;
                        return Ok(After::Ended);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        // Room that one request needed is not kept by a connection that may idle.
        let large = plain.body.end > 4 * READ_BYTES;
        let request = connection.read.split_to(plain.body.end).freeze();
        let key = str::from_utf8(&request[plain.key]).unwrap_or_default();
        let body = request.slice(plain.body);
        let Some(mut reply) =
            connection.while_there(rpc::serve(front, &plain.caller, key, body, started)).await
        else {
            return Ok(After::Ended);
        };
        reply.last |= stop.is_given();
        connection.write(&mut reply, &plain.caller.id).await?;
        // A stop that came meanwhile has woken the writing; nobody else would hear of it.
        let last = reply.last || stop.is_given();
        // The place in flight was held until the kernel had the answer.
        drop(reply);
        if last {
            return Ok(After::Ended);
        }
        if connection.read.is_empty() && large {
            connection.read = BytesMut::new();
        }
        (first, begun) = (false, false);
        connection.due = Instant::now() + IDLE_TIMEOUT;
    }
}

/// What stands at the front of `read`.
fn head(read: &[u8], front: &Front, client: IpAddr) -> Head {
    let known = read.len().min(BEGINNING.len());
    if read[..known] != BEGINNING[..known] {
        return Head::Other;
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(read) {
        Ok(httparse::Status::Complete(length)) => length,
        // A head that comes byte by byte is read from its start each time: a long one is hyper's, which knows better.
        Ok(httparse::Status::Partial) if read.len() < MAX_HEAD => return Head::Partial,
        Ok(httparse::Status::Partial) | Err(_) => return Head::Other,
    };
    let (Some(1), Some(path)) = (request.version, request.path) else { return Head::Other };
    // Anything but plain segments might be another path to somebody else.
    let is_plain = path.bytes().all(|byte| IN_PATHS[usize::from(byte)]);
    let Some(key) = super::route(path, front).filter(|_| is_plain) else { return Head::Other };
    let (mut hosts, mut media, mut size) = (0, 0, None);
    for httparse::Header { name, value } in &*request.headers {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        // By length first: a field is compared with few names, most with none.
        let plain = match name.len() {
            4 if is("host") => {
                hosts += 1;
                true
            }
            12 if is("content-type") => {
                media += 1;
                caller::is_json(value)
            }
            14 if is("content-length") => {
                let length = digits(value);
                length.is_some() && size.replace(length).is_none()
            }
            10 if is("connection") => value.eq_ignore_ascii_case(b"keep-alive"),
            6 => !is("origin") && !is("expect"),
            7 => !is("upgrade"),
            17 => !is("transfer-encoding"),
            _ => true,
        };
        if !plain {
            return Head::Other;
        }
    }
    let (1, 1, Some(size)) = (hosts, media, size.flatten().filter(|size| *size <= MAX_BODY)) else {
        return Head::Other;
    };
    if size > front.config.server.max_body {
        return Head::Other;
    }
    // The key ends the path, which begins with the last byte of the beginning.
    let end = BEGINNING.len() - 1 + path.len();
    Head::Plain(Plain {
        key: end - key.len()..end,
        body: length..length + size,
        caller: Caller::of(front, client, &*request.headers),
    })
}

/// What stands in plain paths.
const IN_PATHS: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        plain[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-');
        byte += 1;
    }
    plain
};

/// A length in plain digits.
fn digits(value: &[u8]) -> Option<usize> {
    let plain = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    plain.then(|| value.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    /// Waits for more to read until `due`; after a stop no longer than a moment, and only where nothing was served yet:
    /// then a request may be on its way.
    ///
    /// # Errors
    /// The socket's; [`ErrorKind::TimedOut`] where something had begun to come.
    async fn more(&mut self, first: bool) -> io::Result<More> {
        let (mut woken, mut due, mut moment) = (false, self.due, None);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(read) = self.poll_read(cx)? {
                return Poll::Ready(Ok(if read == 0 { More::End } else { More::Read }));
            }
            // Without a wake there is nothing new to see; a clock that fires too early is set anew.
            let clock_runs = self.clock.deadline() <= due && !self.clock.is_elapsed();
            if self.registered && !woken && clock_runs {
                woken = true;
                return Poll::Pending;
            }
            (woken, self.registered) = (true, true);
            if Pin::new(&mut self.stop).poll(cx).is_ready() && self.read.is_empty() {
                if !first {
                    return Poll::Ready(Ok(More::End));
                }
                // Once: from then on it is the earlier of the two.
                due = due.min(*moment.get_or_insert_with(|| Instant::now() + LAST_MOMENT));
            }
            loop {
                if self.clock.deadline() > due || self.clock.is_elapsed() {
                    self.clock.as_mut().reset(due);
                }
                // Out of tokio's budget for a task, the clock would say "not yet" without taking the waker.
                let clock = tokio::task::coop::unconstrained(self.clock.as_mut());
                ready!(pin!(clock).poll(cx));
                if Instant::now() >= due {
                    break;
                }
            }
            if self.read.is_empty() {
                return Poll::Ready(Ok(More::End));
            }
            Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the request took too long")))
        })
        .await
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < READ_BYTES / 4 {
            self.read.reserve(READ_BYTES);
        }
        pin!(self.socket.read_buf(&mut self.read)).poll(cx)
    }

    /// What `serving` gives, or nothing once the client is gone.
    async fn while_there<T>(&mut self, serving: impl Future<Output = T>) -> Option<T> {
        let mut serving = pin!(serving);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                return Poll::Ready(Some(served));
            }
            // What comes ahead of time is kept, up to a bound.
            while !self.ended && self.read.len() < MAX_BODY {
                match ready!(self.poll_read(cx)) {
                    // Who has sent more, and then no more, still waits for its answers.
                    Ok(0) if !self.read.is_empty() => self.ended = true,
                    Ok(0) | Err(_) => return Poll::Ready(None),
                    Ok(_) => {}
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Writes the answer, all of it.
    async fn write(&mut self, reply: &mut Reply, id: &RequestId) -> io::Result<()> {
        let Self { socket, written, .. } = self;
        let is_long = reply.body.len() > JOINED_BYTES;
        write_head(written, reply, id);
        if !is_long {
            reply.body.iter().for_each(|piece| written.extend_from_slice(piece));
        }
        let mut left = &written[..];
        while !left.is_empty() {
            let bytes = unstalled(|cx| Pin::new(&mut **socket).poll_write(cx, left)).await?;
            left = &left[bytes..];
        }
        while is_long && !reply.body.is_empty() {
            let mut slices = [IoSlice::new(&[]); VECTORS];
            let pieces = slices.iter_mut().zip(reply.body.iter());
            let count = pieces.map(|(slice, piece)| *slice = IoSlice::new(piece)).count();
            let slices = &slices[..count];
            let bytes = unstalled(|cx| Pin::new(&mut **socket).poll_write_vectored(cx, slices)).await?;
            reply.body.advance(bytes);
        }
        written.clear();
        // Room that one answer needed is not kept by a connection that may idle.
        written.shrink_to(READ_BYTES);
        unstalled(|cx| Pin::new(&mut **socket).poll_flush(cx).map_ok(|()| 1)).await.map(drop)
    }
}

/// What `write` comes to, or an error where the client takes nothing for too long.
async fn unstalled(mut write: impl FnMut(&mut Context<'_>) -> Poll<io::Result<usize>>) -> io::Result<usize> {
    let mut clock = None;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(written) = write(cx) {
            return Poll::Ready(match written {
                Ok(0) => Err(ErrorKind::WriteZero.into()),
                written => written,
            });
        }
        let clock = clock.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_STALL)));
        ready!(clock.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the client takes no more of the answer")))
    })
    .await
}

/// Writes the answer's head at the end of `out`.
fn write_head(out: &mut Vec<u8>, reply: &Reply, id: &RequestId) {
    if reply.status == StatusCode::OK {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        let reason = reply.status.canonical_reason().unwrap_or_default();
        out.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", reply.status.as_str()).as_bytes());
    }
    let mut field = |name: &str, value: Value<'_>| {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        value.write(out);
        out.extend_from_slice(b"\r\n");
    };
    reply.fields().for_each(|(name, value)| field(name, value));
    field(request_id::NAME, Value::Text(id.as_str()));
    if reply.last {
        field("connection", Value::Text("close"));
    }
    field("content-length", Value::Number(reply.body.len() as u64));
    out.extend_from_slice(b"date: ");
    DATE.with_borrow_mut(|date| out.extend_from_slice(date.text(Instant::now()).as_bytes()));
    out.extend_from_slice(b"\r\n\r\n");
}

thread_local! {
    static DATE: RefCell<Date> = const { RefCell::new(Date { text: String::new(), until: None }) };
}

/// The date as HTTP writes it (RFC 9110, 5.6.7), made once a second.
struct Date {
    text: String,
    until: Option<Instant>,
}

impl Date {
    fn text(&mut self, now: Instant) -> &str {
        if self.until.is_none_or(|until| now >= until) {
            let wall = SystemTime::now();
            let begun = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
            self.text = httpdate::fmt_http_date(wall);
            self.until = Some(now + Duration::from_secs(1) - Duration::from_nanos(begun.into()));
        }
        &self.text
    }
}
