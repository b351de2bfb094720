//! The fast path: serves plain HTTP/1.1 requests to the hot route without hyper.
//!
//! Most requests are alike: a POST of a few hundred bytes with a Content-Length, on a keep-alive connection. Such
//! requests are called plain here. The listener uses this module through [`serve`] only, and works without it: tests turn
//! it off (`docs/decisions/0010-the-fast-path-stays-behind-one-seam.md`).
//!
//! Six invariants hold:
//!
//! 1. The fast path accepts a strict subset of HTTP/1.1, and refuses no request for its head. hyper gets every other
//!    request (chunks, an `Expect` or `Origin` field, another route, a malformed head) with all bytes that were read.
//!    So two parsers never disagree on where a request ends.
//! 2. A connection that was handed to hyper stays with hyper.
//! 3. A request keeps its permits until the kernel has the whole response.
//! 4. Timers and shutdown are checked only after a wake-up that found nothing to read. So these checks do not
//!    slow requests down.
//! 5. An idle connection has neither a buffer nor the future of a request. While a call waits, reading
//!    ahead stops once a buffer is full.
//! 6. The key is looked up before more of a body is kept than came with the head.

mod message;

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::mem;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::Instant;

use super::incoming::Arriving;
use super::keyless::KeylessPlace;
use super::reply::HttpReply;
use super::request_head::ClientInfo;
use super::shutdown::{Phases, Wait};
use super::timed_socket::{LazyTimer, linger};
use super::{Front, cors, request};
use crate::error::Error;
use crate::gateway::Principal;
use message::{Head, Plain, ResponseWriter};

/// The capacity for one read, in bytes. Most requests fit. Also the limit on reading ahead: while a request is served,
/// reading stops at this many bytes of later requests.
const READ_BYTES: usize = 4096;
/// The bytes that the buffer takes while it holds a part of a request that is not answered.
const PART_BYTES: usize = 2 * READ_BYTES;

/// Serves plain requests (usual POSTs of JSON-RPC calls) until the connection closes or gets any other request. `place`
/// names its client, and counts it until it has shown a key. Returns the connection if hyper has to serve its next
/// request, and all later ones.
///
/// # Errors
/// Errors of the socket, or [`io::ErrorKind::TimedOut`] if a head takes too long or the client stops reading an answer.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
    front: &Arc<Front>,
    mut socket: S,
    place: &KeylessPlace,
    phases: &Phases,
) -> io::Result<Option<(S, Left)>> {
    if let Some(left) = H1Connection::new(front, &mut socket, place, phases).run().await? {
        return Ok(Some((socket, left)));
    }
    Box::pin(linger(&mut socket, phases.periods.linger)).await;
    Ok(None)
}

/// What a connection has left when hyper takes it over.
pub(super) struct Left {
    /// The bytes that were read from the socket and belong to no served request.
    pub(super) read: Bytes,
    /// True if no request was served yet. The client may then speak HTTP/2.
    pub(super) is_first: bool,
}

/// A connection on the fast path.
///
/// An idle connection has no buffer. The connections of a thread share the thread's buffers, because a connection's own
/// buffer would leave the processor's caches while the connection is idle.
struct H1Connection<'a, S> {
    front: &'a Arc<Front>,
    socket: &'a mut S,
    place: &'a KeylessPlace,
    /// True if `place` counts the buffer.
    is_counted: bool,
    /// The bytes that were read from the socket and belong to no served request. While there are none, the
    /// connection has no buffer.
    read: BytesMut,
    /// True if the client has closed its sending half and waits for answers.
    is_read_closed: bool,
    is_first: bool,
    phases: &'a Phases,
    timer: ReadTimer,
}

/// What follows a request that was read.
enum Next {
    Serve(Plain),
    /// hyper has to serve the request, and all later ones.
    HandOver,
    /// The client has closed the connection or was idle for too long, a shutdown closes idle connections, or the last
    /// answer was given.
    Close,
}

thread_local! {
    /// The read buffer that the connections of this thread share. A connection holds the buffer only while the
    /// buffer contains bytes of requests that are not served yet.
    static READ_BUFFER: Cell<BytesMut> = Cell::default();
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin + Send> H1Connection<'a, S> {
    /// Creates the connection. The timeout for a request head runs from now, so it also applies to a client that sends
    /// nothing.
    fn new(front: &'a Arc<Front>, socket: &'a mut S, place: &'a KeylessPlace, phases: &'a Phases) -> Self {
        let timer =
            ReadTimer::new(front.config.server.header_timeout, phases.idle_close.wait().with_last_look());
        let (read, is_read_closed, is_first, is_counted) = (BytesMut::new(), false, true, false);
        Self { front, socket, place, is_counted, read, is_read_closed, is_first, phases, timer }
    }

    /// Serves requests until the connection ends, or until hyper has to serve it.
    ///
    /// # Errors
    /// Errors of the socket, or [`ErrorKind::TimedOut`] if a head takes too long or the client stops reading an answer.
    async fn run(mut self) -> io::Result<Option<Left>> {
        loop {
            let mut next = self.read_head().await?;
            if let Next::Serve(plain) = next {
                match self.begin(plain).await? {
                    None => continue,
                    Some(end) => next = end,
                }
            }
            let left = Left { read: mem::take(&mut self.read).freeze(), is_first: self.is_first };
            return Ok(matches!(next, Next::HandOver).then_some(left));
        }
    }

    /// Waits for the head of the next request, or for the connection's end.
    async fn read_head(&mut self) -> io::Result<Next> {
        let mut is_idle = !self.is_first;
        loop {
            match Head::parse(&self.read, self.front, self.place.peer, self.timer.since) {
                Head::Plain(plain) => return Ok(Next::Serve(plain)),
                Head::Other => return Ok(Next::HandOver),
                Head::Partial => {}
            }
            // Once the head has begun, the head timeout replaces the idle timeout.
            if is_idle && !self.read.is_empty() {
                is_idle = false;
                self.timer.start(self.front.config.server.header_timeout);
            }
            self.count_buffer();
            if !self.read_more().await? {
                return Ok(Next::Close);
            }
        }
    }

    /// Counts the buffer towards `place`, if it holds a part of a request.
    fn count_buffer(&mut self) {
        if !self.read.is_empty() && !mem::replace(&mut self.is_counted, true) {
            self.place.grow(PART_BYTES);
        }
    }

    /// Returns the future that answers the request `plain`. The future gives `None` if the connection waits for the next
    /// request. It is boxed, so that an idle connection takes little memory.
    fn begin(&mut self, plain: Plain) -> Pin<Box<dyn Future<Output = io::Result<Option<Next>>> + Send + '_>> {
        match plain.caller {
            Ok(principal) if self.read.len() >= plain.body.end => {
                let (body, started) = (self.take_body(plain.body), self.timer.since);
                Box::pin(self.answer(plain.client, principal, body, started))
            }
            caller => Box::pin(self.answer_later(plain.client, caller.map_err(|error| *error), plain.body)),
        }
    }

    /// Answers a request of `principal`, whose whole body has arrived. `None` if the connection waits for the next request.
    async fn answer(
        &mut self,
        client: ClientInfo,
        principal: Arc<Principal>,
        body: Bytes,
        started: Instant,
    ) -> io::Result<Option<Next>> {
        self.place.show_key();
        // Pinned in place, because the future is large and a move would copy it.
        let reply = pin!(request::serve(self.front, &client, principal, &body, started));
        let Some(reply) = self.unless_gone(reply).await else { return Ok(Some(Next::Close)) };
        self.write(reply, &client).await
    }

    /// Answers a request of `caller`, once its body has arrived at the place `body`. `None` if the connection waits for the
    /// next request. The body of a refused request is not needed.
    async fn answer_later(
        &mut self,
        client: ClientInfo,
        caller: Result<Arc<Principal>, Error>,
        body: Range<usize>,
    ) -> io::Result<Option<Next>> {
        let (started, mut memory) = (self.timer.since, None);
        let caller = caller.and_then(|principal| {
            self.place.show_key();
            let arriving = memory.insert(Arriving::new(self.front, &principal, client.address));
            if arriving.grow(body.end + READ_BYTES) {
                return Ok(principal);
            }
            Err(request::overloaded(&principal, started))
        });
        let reply = match (self.read_body(body, caller.is_ok()).await, caller) {
            (Err(error), _) if error.kind() != ErrorKind::TimedOut => return Err(error),
            (Ok(Some(body)), Ok(principal)) => {
                return Box::pin(self.answer(client, principal, body, started)).await;
            }
            (Ok(Some(body)), Err(error)) => request::refuse(self.front, &client, started, &body, &error),
            (_, Err(error)) => request::refuse(self.front, &client, started, &Bytes::new(), &error).last(),
            (Ok(None), Ok(_)) => request::early_end(),
            (Err(_), Ok(_)) => request::late_body(),
        };
        self.write(reply, &client).await
    }

    /// Writes the reply to a request of `client`. `None` if the connection waits for the next request.
    async fn write(&mut self, mut reply: HttpReply, client: &ClientInfo) -> io::Result<Option<Next>> {
        reply.last |= self.phases.notice.is_triggered();
        let is_last = reply.last;
        let server = &self.front.config.server;
        let mut writer = ResponseWriter::new(reply, &client.id, cors::by_origin(&server.cors_origins));
        writer.write_all(self.socket, server.write_timeout).await?;
        // Frees the request's permit, because the kernel now has the whole response.
        drop(writer);
        self.is_first = false;
        self.timer.start(server.idle_timeout);
        Ok(is_last.then_some(Next::Close))
    }

    /// Reads the request's body until it has arrived at its place `body`. Unless `is_kept`, a body that does not fit into
    /// one read is dropped while it arrives, and an empty one is returned. `None` if the client closes the connection first.
    ///
    /// # Errors
    /// Errors of the socket; [`ErrorKind::TimedOut`] if the body takes too long.
    async fn read_body(&mut self, body: Range<usize>, is_kept: bool) -> io::Result<Option<Bytes>> {
        let end = body.end;
        if self.read.len() < end {
            self.timer.start(self.front.config.server.body_timeout);
        }
        if is_kept || end <= READ_BYTES {
            self.count_buffer();
            self.read.reserve((end + READ_BYTES).saturating_sub(self.read.len()));
            while self.read.len() < end {
                if !self.read_more().await? {
                    return Ok(None);
                }
            }
            return Ok(Some(self.take_body(body)));
        }
        let mut left = end;
        loop {
            let dropped = left.min(self.read.len());
            self.read.advance(dropped);
            left -= dropped;
            if left == 0 {
                return Ok(Some(Bytes::new()));
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Takes the request whose body has arrived at its place `body` from the bytes that were read, and returns the body.
    fn take_body(&mut self, body: Range<usize>) -> Bytes {
        self.read.split_to(body.end).freeze().slice(body)
    }

    /// Reads more bytes from the client. Returns false if the client has closed the connection or, while no byte of a
    /// request has arrived, if the timer fires or a shutdown closes idle connections.
    ///
    /// # Errors
    /// Errors of the socket; [`ErrorKind::TimedOut`] if the timer fires after a request has begun.
    async fn read_more(&mut self) -> io::Result<bool> {
        // A wait that has only begun was not woken by the timer or a shutdown.
        let mut is_woken = false;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(bytes) = self.poll_read(cx)? {
                self.timer.since = Instant::now();
                return Poll::Ready(Ok(bytes > 0));
            }
            let is_idle = self.read.is_empty();
            ready!(self.timer.poll(cx, is_idle, mem::replace(&mut is_woken, true)));
            if is_idle {
                return Poll::Ready(Ok(false));
            }
            Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the request took too long")))
        })
        .await
    }

    /// Reads from the socket into the thread's shared buffer, and returns the number of bytes read. The connection
    /// keeps the buffer while it contains bytes of requests that are not served yet.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.is_empty() {
            if self.read.capacity() == 0 {
                self.read = READ_BUFFER.take();
            }
            // Reuses the memory of earlier requests once nothing refers to it.
            self.read.reserve(READ_BYTES);
        } else if self.read.capacity() - self.read.len() < READ_BYTES / 4 {
            self.read.reserve(READ_BYTES);
        }
        let read = pin!(self.socket.read_buf(&mut self.read)).poll(cx);
        if self.read.is_empty() {
            let room = mem::take(&mut self.read);
            // The buffer of a long request is not kept.
            if room.capacity() <= 4 * READ_BYTES {
                READ_BUFFER.set(room);
            }
        }
        read
    }

    /// Returns the output of `serving`, or `None` if the client disconnects first.
    async fn unless_gone<T>(&mut self, mut serving: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                return Poll::Ready(Some(served));
            }
            // Meanwhile reads the bytes of later requests, up to a bound.
            while !self.is_read_closed && self.read.len() < READ_BYTES {
                match ready!(self.poll_read(cx)) {
                    // A client that sent more requests before it closed still waits for the answers.
                    Ok(0) if !self.read.is_empty() => self.is_read_closed = true,
                    Ok(0) | Err(_) => return Poll::Ready(None),
                    Ok(_) => {}
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The timer of a connection's reads. It also wakes the connection when a shutdown closes idle connections.
struct ReadTimer {
    /// The time of the last read, or the start of the current wait if that was later. So it is also the arrival time of
    /// the request at the front of the buffer.
    since: Instant,
    deadline: Instant,
    sleep: LazyTimer,
    idle_close: Wait,
    /// True if `sleep` and `idle_close` have been polled, so that they wake the connection's task.
    is_registered: bool,
}

impl ReadTimer {
    fn new(time: Duration, idle_close: Wait) -> Self {
        let since = Instant::now();
        let deadline = since + time;
        Self { since, deadline, sleep: LazyTimer::new(deadline), idle_close, is_registered: false }
    }

    /// Starts a wait of `time` for a request, or for the rest of one.
    fn start(&mut self, time: Duration) {
        self.since = Instant::now();
        self.deadline = self.since + time;
    }

    /// Waits until the deadline. If `is_idle` is true, the wait also ends when a shutdown closes idle connections.
    /// `is_woken` is false at the first poll of a wait.
    fn poll(&mut self, cx: &mut Context<'_>, is_idle: bool, is_woken: bool) -> Poll<()> {
        // At the first poll of a wait neither the sleep nor the shutdown has woken the task, so both still can. The
        // shutdown is looked at nevertheless, because it may have woken the task while that was writing a response.
        let until = self.sleep.sleeps_until;
        let sleep_covers = until <= self.deadline && self.since < until;
        if !is_woken && self.is_registered && sleep_covers && !self.idle_close.is_triggered() {
            return Poll::Pending;
        }
        self.is_registered = true;
        if Pin::new(&mut self.idle_close).poll(cx).is_ready() && is_idle {
            return Poll::Ready(());
        }
        self.sleep.poll(cx, self.deadline)
    }
}
