//! A connection on the fast path: reads and answers usual POST requests, called plain, and leaves all others to hyper.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::mem;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::super::shutdown::{IDLE_TIMEOUT, Phases, Wait};
use super::super::{Front, body, request};
use super::head::{Head, MAX_BODY, Plain};
use super::writer::ResponseWriter;

/// The capacity for one read, in bytes. Most requests fit.
const READ_BYTES: usize = 4096;

/// The reason why a connection leaves the fast path.
pub(super) enum End {
    /// The client has closed the connection or was idle for too long, or a shutdown closes idle connections.
    NothingToAnswer,
    /// A response with `Connection: close` was written.
    LastAnswer,
    /// The next request is not plain (not a usual POST), so hyper has to serve it.
    NotPlain {
        /// The bytes that were read from the socket and belong to no served request.
        read: Bytes,
        /// True if no request of the connection was served yet.
        is_first: bool,
    },
}

/// A connection on the fast path.
///
/// An idle connection has no buffer. The connections of a thread share the thread's buffers, because a connection's own
/// buffer would leave the processor's caches while the connection is idle.
pub(super) struct H1Connection<'a, S> {
    front: &'a Arc<Front>,
    socket: &'a mut S,
    /// The client's address, if known.
    peer: Option<IpAddr>,
    /// The bytes that were read from the socket and belong to no served request. While there are none, the
    /// connection has no buffer.
    read: BytesMut,
    /// True if the client has closed its sending half and waits for answers.
    is_read_closed: bool,
    /// True until a request was served.
    is_first: bool,
    phases: &'a Phases,
    timer: ReadTimer,
}

/// The result of reading from the client's socket.
enum Read {
    /// Bytes were read.
    More,
    /// The client has closed the connection or was idle for too long, or a shutdown closes idle connections.
    End,
}

/// The next step after a request's head was read: serve the request, or leave the fast path.
enum Next {
    Serve(Plain),
    End(End),
}

thread_local! {
    /// The read buffer that the connections of this thread share. A connection holds the buffer only while the
    /// buffer contains bytes of requests that are not served yet.
    static READ_BUFFER: Cell<BytesMut> = Cell::default();
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> H1Connection<'a, S> {
    /// Creates the connection. The timeout for a request head runs from now, so it also applies to a client that sends
    /// nothing.
    pub(super) fn new(
        front: &'a Arc<Front>,
        socket: &'a mut S,
        peer: Option<IpAddr>,
        phases: &'a Phases,
    ) -> Self {
        let timer =
            ReadTimer::new(front.config.server.header_timeout, phases.idle_close.wait().with_last_look());
        let (read, is_read_closed, is_first) = (BytesMut::new(), false, true);
        Self { front, socket, peer, read, is_read_closed, is_first, phases, timer }
    }

    /// Serves requests until the connection ends or hyper has to serve it, and returns the reason.
    ///
    /// # Errors
    /// Errors of the socket, or [`ErrorKind::TimedOut`] if a head takes too long or the client stops reading an answer.
    pub(super) async fn run(mut self) -> io::Result<End> {
        loop {
            let plain = match std::future::poll_fn(|cx| self.poll_head(cx)).await? {
                Next::Serve(plain) => plain,
                Next::End(end) => return Ok(end),
            };
            // Boxed, so that an idle connection takes little memory.
            if let Some(end) = Box::pin(self.answer(plain)).await? {
                return Ok(end);
            }
        }
    }

    /// Waits for the head of the next request, or for the connection's end.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        loop {
            match Head::parse(&self.read, self.front, self.peer) {
                Head::Plain(plain) => return Poll::Ready(Ok(Next::Serve(plain))),
                Head::Other => return Poll::Ready(Ok(Next::End(self.hand_over()))),
                Head::Partial => {}
            }
            // The head has begun, so the head timeout replaces the idle timeout.
            if self.timer.is_idle && !self.read.is_empty() {
                self.timer.start(self.front.config.server.header_timeout);
            }
            match ready!(self.poll_more(cx))? {
                Read::More => {}
                Read::End => return Poll::Ready(Ok(Next::End(End::NothingToAnswer))),
            }
        }
    }

    /// Answers the request with the head `plain`. Returns the reason if the connection ends after this request, or
    /// if hyper has to serve the connection.
    async fn answer(&mut self, plain: Plain) -> io::Result<Option<End>> {
        let started = self.timer.arrived_at();
        let mut reply = match self.read_body(&plain).await {
            Ok(true) => {
                let read = self.read.split_to(plain.body.end).freeze();
                let key = str::from_utf8(&read[plain.key.clone()]).unwrap_or_default();
                let body = read.slice(plain.body.clone());
                // Pinned in place, because the future is large and a move would copy it.
                let reply = pin!(request::serve(self.front, &plain.client, key, &body, started));
                let Some(reply) = self.unless_gone(reply).await else {
                    return Ok(Some(End::NothingToAnswer));
                };
                reply
            }
            // The client has closed before the end of the body. hyper will notice this, and answers the request.
            Ok(false) => return Ok(Some(self.hand_over())),
            Err(error) if error.kind() == ErrorKind::TimedOut => body::late(),
            Err(error) => return Err(error),
        };
        reply.last |= self.phases.answer_is_last();
        let is_last = reply.last;
        let mut writer = ResponseWriter::new(reply, &plain.client.id);
        writer.write_all(self.socket, self.front.config.server.write_timeout).await?;
        // Frees the request's permit, because the kernel now has the whole response.
        drop(writer);
        self.is_first = false;
        self.timer.start_idle();
        Ok(is_last.then_some(End::LastAnswer))
    }

    /// Reads until the whole body of the request `plain` has arrived. Returns false if the client closes the connection
    /// first.
    ///
    /// # Errors
    /// Errors of the socket; [`ErrorKind::TimedOut`] if the body takes too long.
    async fn read_body(&mut self, plain: &Plain) -> io::Result<bool> {
        if self.read.len() < plain.body.end {
            self.timer.start(self.front.config.server.body_timeout);
        }
        while self.read.len() < plain.body.end {
            match std::future::poll_fn(|cx| self.poll_more(cx)).await? {
                Read::More => {}
                Read::End => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the [`End`] that hands the connection to hyper, with the bytes that were read.
    fn hand_over(&mut self) -> End {
        End::NotPlain { read: mem::take(&mut self.read).freeze(), is_first: self.is_first }
    }

    /// Waits for more bytes from the client, until the timer fires or a shutdown closes idle connections.
    ///
    /// # Errors
    /// Errors of the socket; [`ErrorKind::TimedOut`] if the timer fires after a request has begun.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Read>> {
        if let Poll::Ready(bytes) = self.poll_read(cx)? {
            self.timer.note_read();
            return Poll::Ready(Ok(if bytes == 0 { Read::End } else { Read::More }));
        }
        let is_idle = self.read.is_empty();
        ready!(self.timer.poll(cx, is_idle));
        if is_idle {
            return Poll::Ready(Ok(Read::End));
        }
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the request took too long")))
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
            while !self.is_read_closed && self.read.len() < MAX_BODY {
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
///
/// Setting a deadline only stores a time. The runtime's timer is reset only if it fires too early or would fire too
/// late. Most requests therefore do not reset the timer.
struct ReadTimer {
    /// The time of the last read, or the start of the current wait if that was later.
    since: Instant,
    deadline: Instant,
    /// True while the connection waits for a request of which no byte has arrived.
    is_idle: bool,
    sleep: Pin<Box<Sleep>>,
    /// A copy of the deadline of `sleep`, so that the memory of `sleep` need not be read.
    sleeps_until: Instant,
    idle_close: Wait,
    /// True if `sleep` and `idle_close` will wake the connection's task.
    is_registered: bool,
    /// True while the task is parked on a read.
    is_parked: bool,
}

impl ReadTimer {
    /// Creates a timer that fires after `time`.
    fn new(time: Duration, idle_close: Wait) -> Self {
        let since = Instant::now();
        let deadline = since + time;
        Self {
            since,
            deadline,
            is_idle: false,
            sleep: Box::pin(tokio::time::sleep_until(deadline)),
            sleeps_until: deadline,
            idle_close,
            is_registered: false,
            is_parked: false,
        }
    }

    /// Returns the arrival time of the request at the front of the buffer: the time of the last read, or of the previous
    /// response if that was later.
    fn arrived_at(&self) -> Instant {
        self.since
    }

    /// Starts a wait of `time` for the rest of a request.
    fn start(&mut self, time: Duration) {
        self.since = Instant::now();
        (self.deadline, self.is_idle, self.is_parked) = (self.since + time, false, false);
    }

    /// Starts the wait for the next request.
    fn start_idle(&mut self) {
        self.start(IDLE_TIMEOUT);
        self.is_idle = true;
    }

    /// Records that bytes have just been read from the socket.
    fn note_read(&mut self) {
        (self.since, self.is_parked) = (Instant::now(), false);
    }

    /// Waits until the deadline. If `is_idle` is true, the wait also ends when a shutdown closes idle connections.
    fn poll(&mut self, cx: &mut Context<'_>, is_idle: bool) -> Poll<()> {
        // If the task was not parked on a read, neither the sleep nor the shutdown has woken it, so both can still
        // wake it. `is_triggered` is checked because the shutdown may have woken the task while it was writing a
        // response.
        let sleep_covers = self.sleeps_until <= self.deadline && self.since < self.sleeps_until;
        if self.is_registered && !self.is_parked && sleep_covers && !self.idle_close.is_triggered() {
            self.is_parked = true;
            return Poll::Pending;
        }
        (self.is_parked, self.is_registered) = (true, true);
        if Pin::new(&mut self.idle_close).poll(cx).is_ready() && is_idle {
            return Poll::Ready(());
        }
        loop {
            if self.sleep.deadline() > self.deadline || self.sleep.is_elapsed() {
                self.sleep.as_mut().reset(self.deadline);
                self.sleeps_until = self.deadline;
            }
            // Without `unconstrained`, a task that has used up its coop budget would not register with the sleep.
            let sleep = tokio::task::coop::unconstrained(self.sleep.as_mut());
            ready!(pin!(sleep).poll(cx));
            if Instant::now() >= self.deadline {
                return Poll::Ready(());
            }
        }
    }
}
