//! One connection on the fast path.

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

/// The bytes that one read has room for. Most requests fit.
const READ_BYTES: usize = 4096;

/// The reason why a connection leaves the fast path.
pub(super) enum End {
    /// The client is gone or sent nothing in time, or idle connections close.
    Idle,
    /// A response said that it is the last.
    LastAnswer,
    /// A request is not plain.
    NotPlain {
        /// The bytes that were read and not served.
        read: Bytes,
        /// True if no request was served yet.
        is_first: bool,
    },
}

/// A connection. It is small, and its buffers belong to the thread, because an idle connection's memory is cold.
pub(super) struct H1Connection<'a, S> {
    front: &'a Arc<Front>,
    socket: &'a mut S,
    /// The client's address, if known.
    peer: Option<IpAddr>,
    /// The bytes that were read and not served. While it is empty, the connection has no buffer of its own.
    read: BytesMut,
    /// True if the client has closed its sending half while its calls were waiting.
    is_read_closed: bool,
    /// True until a request is served.
    is_first: bool,
    phases: &'a Phases,
    timer: ReadTimer,
}

/// The result of a read.
enum Read {
    /// There are more bytes.
    More,
    /// The client is gone, or sent nothing in time.
    End,
}

/// The next action on a connection.
enum Next {
    Serve(Plain),
    End(End),
}

thread_local! {
    /// The read buffer of any connection of this thread that has something to read.
    static READ: Cell<BytesMut> = Cell::default();
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> H1Connection<'a, S> {
    /// Creates the connection. Its first head counts as begun: a client does not connect to be silent.
    pub(super) fn new(
        front: &'a Arc<Front>,
        socket: &'a mut S,
        peer: Option<IpAddr>,
        phases: &'a Phases,
    ) -> Self {
        let timer = ReadTimer::new(front.config.server.header_timeout, phases.idle_close.wait());
        let (read, is_read_closed, is_first) = (BytesMut::new(), false, true);
        Self { front, socket, peer, read, is_read_closed, is_first, phases, timer }
    }

    /// Serves plain requests until the connection leaves the fast path.
    pub(super) async fn run(mut self) -> io::Result<End> {
        loop {
            let plain = match std::future::poll_fn(|cx| self.poll_head(cx)).await? {
                Next::Serve(plain) => plain,
                Next::End(end) => return Ok(end),
            };
            // Boxed, so that an idle connection is small.
            if let Some(end) = Box::pin(self.answer(plain)).await? {
                return Ok(end);
            }
        }
    }

    /// Waits for the head of the next request.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        loop {
            match Head::parse(&self.read, self.front, self.peer) {
                Head::Plain(plain) => return Poll::Ready(Ok(Next::Serve(plain))),
                Head::Other => return Poll::Ready(Ok(Next::End(self.hand_over()))),
                Head::Partial => {}
            }
            // A head that has begun must end.
            if self.timer.is_idle && !self.read.is_empty() {
                self.timer.start(self.front.config.server.header_timeout);
            }
            match ready!(self.poll_more(cx))? {
                Read::More => {}
                Read::End => return Poll::Ready(Ok(Next::End(End::Idle))),
            }
        }
    }

    /// Answers a request whose head was read. Returns why the connection leaves the fast path, if it does.
    async fn answer(&mut self, plain: Plain) -> io::Result<Option<End>> {
        let started = self.timer.since;
        let mut reply = match self.read_body(&plain).await {
            Ok(true) => {
                let read = self.read.split_to(plain.body.end).freeze();
                let key = str::from_utf8(&read[plain.key.clone()]).unwrap_or_default();
                let body = read.slice(plain.body.clone());
                // Pinned where it is made: the future is large, and each move would copy it.
                let reply = pin!(request::serve(self.front, &plain.caller, key, &body, started));
                let Some(reply) = self.unless_gone(reply).await else { return Ok(Some(End::Idle)) };
                reply
            }
            // hyper meets the same end, and answers it.
            Ok(false) => return Ok(Some(self.hand_over())),
            Err(error) if error.kind() == ErrorKind::TimedOut => body::late(),
            Err(error) => return Err(error),
        };
        reply.last |= self.phases.answer_is_last();
        let is_last = reply.last;
        let mut writer = ResponseWriter::new(reply, &plain.caller.id);
        writer.write_all(self.socket, self.front.config.server.write_timeout).await?;
        // The permit is held until the kernel has the response.
        drop(writer);
        self.is_first = false;
        self.timer.start_idle();
        Ok(is_last.then_some(End::LastAnswer))
    }

    /// Waits until the body was read. Returns false if the client ends before that.
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

    /// Returns the end that hands the connection to hyper.
    fn hand_over(&mut self) -> End {
        End::NotPlain { read: mem::take(&mut self.read).freeze(), is_first: self.is_first }
    }

    /// Waits for more bytes until the timer fires, or until idle connections close.
    ///
    /// # Errors
    /// Errors of the socket; [`ErrorKind::TimedOut`] if a request has begun.
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

    /// Reads into the thread's buffer. The connection keeps the buffer only while there is something in it.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.is_empty() {
            if self.read.capacity() == 0 {
                self.read = READ.take();
            }
            // Reuses the room of earlier requests that nothing refers to any more.
            self.read.reserve(READ_BYTES);
        } else if self.read.capacity() - self.read.len() < READ_BYTES / 4 {
            self.read.reserve(READ_BYTES);
        }
        let read = pin!(self.socket.read_buf(&mut self.read)).poll(cx);
        if self.read.is_empty() {
            let room = mem::take(&mut self.read);
            // The room of a long request is not kept.
            if room.capacity() <= 4 * READ_BYTES {
                READ.set(room);
            }
        }
        read
    }

    /// Returns the output of `serving`, or `None` once the client is gone.
    async fn unless_gone<T>(&mut self, mut serving: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                return Poll::Ready(Some(served));
            }
            // Bytes that come ahead of time are kept, up to a bound.
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

/// The timer of a connection's reads, and its wait for the shutdown of idle connections.
///
/// A new deadline only stores a time. The runtime's timer is reset when it fires before the deadline, so that a request
/// resets no timer.
struct ReadTimer {
    /// The time of the last read, or of the start of the wait for the next one if that was later.
    since: Instant,
    deadline: Instant,
    /// True while no head has begun.
    is_idle: bool,
    sleep: Pin<Box<Sleep>>,
    /// The deadline of `sleep`, readable without touching its memory.
    sleeps_until: Instant,
    idle_close: Wait,
    /// True if `sleep` and `idle_close` have the task's waker.
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

    /// Notes that bytes were read.
    fn note_read(&mut self) {
        (self.since, self.is_parked) = (Instant::now(), false);
    }

    /// Waits until the deadline. If `is_idle`, the shutdown of idle connections ends the wait, too.
    fn poll(&mut self, cx: &mut Context<'_>, is_idle: bool) -> Poll<()> {
        // Unless the task was parked and woken, neither can have changed. A sleep that fires too early is reset then. The
        // wake-up of a shutdown may have been spent on writing a response.
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
            // When the task's budget is spent, the sleep would return pending without taking the waker.
            let sleep = tokio::task::coop::unconstrained(self.sleep.as_mut());
            ready!(pin!(sleep).poll(cx));
            if Instant::now() >= self.deadline {
                return Poll::Ready(());
            }
        }
    }
}
