//! The fast path: plain requests of HTTP/1.1 to the hot route, read and answered on the socket itself.
//!
//! Most requests are alike: a POST whose length is given, of a few hundred bytes, on a connection that is kept. For these
//! hyper's general machine is most of the cost of a hit. Everything that is not plain (chunks, an expectation, an origin,
//! another route, a fault) is left to hyper with every byte that was read, and the connection stays there. The fast path
//! reads a subset and decides no refusal of HTTP itself, so that two readers never differ on where a request ends.
//!
//! A connection's clocks and signals cost a request nothing: they are looked at when the task is woken and there is
//! nothing to read. A connection that idles has no buffer and no request's future.

mod head;

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

use super::ends::{Ends, IDLE_TIMEOUT};
use super::response_writer::ResponseWriter;
use super::signal::Given;
use super::{Front, body, request};
use head::{Head, Plain};

/// Room for a usual request, so that most come with one read.
const READ_BYTES: usize = 4096;
/// A longer body is no usual one; also what is read ahead of a client that does not wait for its answers.
const MAX_BODY: usize = 64 * 1024;

/// The way in which a connection left the fast path.
pub(super) enum After {
    /// The connection is over.
    Ended,
    /// The last answer is written.
    Answered,
    /// hyper goes on, from what was read and not served.
    Hyper {
        /// The bytes that were read and not served.
        read: Bytes,
        /// True if nothing was served yet.
        first: bool,
    },
}

/// One connection on the fast path. It is small, and its buffers are the thread's: everything that an idle connection owns
/// has to be fetched from memory first.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Connection<'a, S> {
    front: &'a Arc<Front>,
    socket: &'a mut S,
    /// The address that the connection is from.
    peer: Option<IpAddr>,
    /// The bytes that were read and not served. Without any, the connection has no buffer of its own.
    read: BytesMut,
    /// True if the client has said that it sends no more, while its calls were waiting.
    ended: bool,
    /// True if nothing was served yet.
    first: bool,
    /// True if a head has begun.
    begun: bool,
    ends: &'a Ends,
    silence: Given,
    /// The time of the last read, or at which the wait for the next began, whichever was later.
    since: Instant,
    /// The end of the wait for more to read.
    due: Instant,
    /// Fires at `due` or before, and is then set anew.
    clock: Pin<Box<Sleep>>,
    /// The time at which `clock` fires, known without a look at it.
    clock_at: Instant,
    /// True if `clock` and `silence` have the task's waker.
    registered: bool,
    /// True while the task is parked on a read.
    waits: bool,
}

/// The result of a wait for more to read.
enum More {
    Read,
    /// The client is gone, or did not send anything in time.
    End,
}

/// The next thing to do on a connection.
enum Next {
    /// A request whose head was read.
    Request(Plain),
    /// The connection leaves the fast path.
    Leave(After),
}

thread_local! {
    /// The buffer to read into, for any connection that has something to read.
    static READ: Cell<BytesMut> = Cell::default();
}

/// Serves plain requests from `peer` until the connection ends or is hyper's.
///
/// # Errors
/// The socket's, and a client that takes no more of its answer.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
    front: &Arc<Front>,
    socket: &mut S,
    peer: Option<IpAddr>,
    ends: &Ends,
) -> io::Result<After> {
    // Nobody connects to say nothing.
    let since = Instant::now();
    let due = since + front.config.server.header_timeout;
    let mut connection = Connection {
        front,
        socket,
        peer,
        read: BytesMut::new(),
        ended: false,
        first: true,
        begun: true,
        ends,
        silence: ends.silence.given(),
        since,
        due,
        clock: Box::pin(tokio::time::sleep_until(due)),
        clock_at: due,
        registered: false,
        waits: false,
    };
    loop {
        let plain = match std::future::poll_fn(|cx| connection.poll_head(cx)).await? {
            Next::Request(plain) => plain,
            Next::Leave(after) => return Ok(after),
        };
        // Boxed, so that a connection is small while it idles.
        if let Some(after) = Box::pin(connection.answer(plain)).await? {
            return Ok(after);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    /// Waits for the head of the next request.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        loop {
            match head::head(&self.read, self.front, self.peer) {
                Head::Plain(plain) => return Poll::Ready(Ok(Next::Request(plain))),
                Head::Other => return Poll::Ready(Ok(Next::Leave(self.leave()))),
                Head::Partial => {}
            }
            // A head that has begun must end.
            if !self.begun && !self.read.is_empty() {
                self.begun = true;
                self.wait(self.front.config.server.header_timeout);
            }
            match ready!(self.poll_more(cx))? {
                More::Read => {}
                More::End => return Poll::Ready(Ok(Next::Leave(After::Ended))),
            }
        }
    }

    /// Answers a request whose head was read. Returns how the connection leaves the fast path, if it does.
    async fn answer(&mut self, plain: Plain) -> io::Result<Option<After>> {
        let started = self.since;
        let mut reply = match self.body(&plain).await {
            Ok(true) => {
                let read = self.read.split_to(plain.body.end).freeze();
                let key = str::from_utf8(&read[plain.key.clone()]).unwrap_or_default();
                let body = read.slice(plain.body.clone());
                let reply = request::serve(self.front, &plain.caller, key, &body, started);
                let Some(reply) = self.while_there(reply).await else { return Ok(Some(After::Ended)) };
                reply
            }
            // hyper meets the same end, and has an answer to it.
            Ok(false) => return Ok(Some(self.leave())),
            Err(error) if error.kind() == ErrorKind::TimedOut => body::late(),
            Err(error) => return Err(error),
        };
        reply.last |= self.ends.answer_is_last();
        let is_last = reply.last;
        let mut writer = ResponseWriter::new(reply, &plain.caller.id);
        writer.write_all(self.socket, self.front.config.server.write_timeout).await?;
        // The permit is held until the kernel has the response.
        drop(writer);
        (self.first, self.begun) = (false, false);
        self.wait(IDLE_TIMEOUT);
        Ok(is_last.then_some(After::Answered))
    }

    /// Waits until the body was read. Returns false if the client ends before that.
    ///
    /// # Errors
    /// The socket's; [`ErrorKind::TimedOut`] if the body takes too long.
    async fn body(&mut self, plain: &Plain) -> io::Result<bool> {
        if self.read.len() < plain.body.end {
            self.wait(self.front.config.server.body_timeout);
        }
        while self.read.len() < plain.body.end {
            match std::future::poll_fn(|cx| self.poll_more(cx)).await? {
                More::Read => {}
                More::End => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Leaves the connection to hyper.
    fn leave(&mut self) -> After {
        After::Hyper { read: mem::take(&mut self.read).freeze(), first: self.first }
    }

    /// Begins to wait for more, for `time`.
    fn wait(&mut self, time: Duration) {
        self.since = Instant::now();
        (self.due, self.waits) = (self.since + time, false);
    }

    /// Waits for more to read until `due`, or until idle connections end.
    ///
    /// # Errors
    /// The socket's; [`ErrorKind::TimedOut`] if a request had begun to come.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<More>> {
        if let Poll::Ready(read) = self.poll_read(cx)? {
            (self.since, self.waits) = (Instant::now(), false);
            return Poll::Ready(Ok(if read == 0 { More::End } else { More::Read }));
        }
        // Without a wake there is nothing new to see; a clock that fires too early is set anew. The signal's wake may have
        // gone to the writing of an answer.
        let clock_runs = self.clock_at <= self.due && self.since < self.clock_at;
        if self.registered && !self.waits && clock_runs && !self.silence.is_given() {
            self.waits = true;
            return Poll::Pending;
        }
        (self.waits, self.registered) = (true, true);
        if Pin::new(&mut self.silence).poll(cx).is_ready() && self.read.is_empty() {
            return Poll::Ready(Ok(More::End));
        }
        let due = self.due;
        loop {
            if self.clock.deadline() > due || self.clock.is_elapsed() {
                self.clock.as_mut().reset(due);
                self.clock_at = due;
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
    }

    /// Reads into the thread's buffer, which stays with the connection only while something is in it.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.is_empty() {
            if self.read.capacity() == 0 {
                self.read = READ.take();
            }
            // Back to its beginning, where nobody holds a request that was there.
            self.read.reserve(READ_BYTES);
        } else if self.read.capacity() - self.read.len() < READ_BYTES / 4 {
            self.read.reserve(READ_BYTES);
        }
        let read = pin!(self.socket.read_buf(&mut self.read)).poll(cx);
        if self.read.is_empty() {
            let room = mem::take(&mut self.read);
            // What a long request needed is not kept.
            if room.capacity() <= 4 * READ_BYTES {
                READ.set(room);
            }
        }
        read
    }

    /// Returns the output of `serving`, or `None` once the client is gone.
    async fn while_there<T>(&mut self, serving: impl Future<Output = T>) -> Option<T> {
        let mut serving = pin!(serving);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                return Poll::Ready(Some(served));
            }
            // Bytes that come ahead of time are kept, up to a bound.
            while !self.ended && self.read.len() < MAX_BODY {
                match ready!(self.poll_read(cx)) {
                    // A client that has sent more requests before its end still waits for the answers.
                    Ok(0) if !self.read.is_empty() => self.ended = true,
                    Ok(0) | Err(_) => return Poll::Ready(None),
                    Ok(_) => {}
                }
            }
            Poll::Pending
        })
        .await
    }
}
