//! The fast path: plain requests of HTTP/1.1 to the hot route, read and answered on the socket itself.
//!
//! Most requests are alike: a POST whose length is given, of a few hundred bytes, on a connection that is kept. For these
//! hyper's general machine is most of what a hit costs. Whatever is not plain (chunks, an expectation, an origin, another
//! route, a fault) is left to hyper with every byte that was read, and the connection stays there. So this reads a
//! subset, decides no refusal of HTTP itself, and two readers never differ on where a request ends.
//!
//! A connection's clocks and signals cost a request nothing: they are looked at when the task is woken and there is
//! nothing to read.

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
use super::reply::Reply;
use super::request_id::RequestId;
use super::response_writer::ResponseWriter;
use super::rpc::{self, Served};
use super::signal::Given;
use super::{Front, body};
use head::{Head, Plain};

/// Room for a usual request, so that most come with one read.
const READ_BYTES: usize = 4096;
/// A longer body is no usual one; also what is read ahead of a client that does not wait for its answers.
const MAX_BODY: usize = 64 * 1024;

/// How a connection left the fast path.
pub(super) enum After {
    /// It is over.
    Ended,
    /// Its last answer is written.
    Answered,
    /// hyper goes on, from what was read and not served.
    Hyper {
        /// What was read.
        read: Bytes,
        /// Whether nothing was served yet.
        first: bool,
    },
}

/// One connection on the fast path. It is small, and what it reads and writes with is the thread's: of a connection that has
/// been idle everything has to be fetched from memory first.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Connection<'a, S> {
    front: &'a Arc<Front>,
    socket: &'a mut S,
    /// The address that the connection is from, as [`super::serve`] takes it.
    peer: Option<IpAddr>,
    /// What was read and not served; while there is nothing, it has no room of its own.
    read: BytesMut,
    /// The client has said that it sends no more, while calls of its were waiting.
    ended: bool,
    /// Nothing was served yet.
    first: bool,
    /// A head has begun.
    begun: bool,
    ends: &'a Ends,
    silence: Given,
    /// When more was read, or began to be waited for, whichever was later.
    since: Instant,
    /// When waiting for more to read ends.
    due: Instant,
    /// Fires at `due` or before, and is then set anew.
    clock: Pin<Box<Sleep>>,
    /// When it fires, which can be seen without a look at it.
    clock_at: Instant,
    /// Whether the task's waker is with `clock` and `silence`.
    registered: bool,
    /// Whether the task waits for more to read, so that it was woken for something.
    waits: bool,
}

/// What waiting for more to read came to.
enum More {
    Read,
    /// The client is gone, or was waited for in vain.
    End,
}

/// What a connection has come to.
enum Next {
    After(After),
    /// A request's body is still to be read.
    Body(Box<Plain>),
    /// An answer is on its way, to the request of this id.
    Answer(Pin<Box<dyn Future<Output = Reply> + Send>>, Box<RequestId>),
    /// An answer is still to be written.
    Written(Box<ResponseWriter>),
}

thread_local! {
    /// Room to read into, for whichever connection has something to read.
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
        let next = std::future::poll_fn(|cx| connection.poll_next(cx)).await?;
        // Boxed, so that a connection is small while it idles.
        let after = match next {
            Next::After(after) => Some(after),
            next => Box::pin(connection.go_on(next)).await?,
        };
        if let Some(after) = after {
            return Ok(after);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    /// Serves what comes as long as nothing has to be waited for but the next request.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        loop {
            let plain = match head::head(&self.read, self.front, self.peer) {
                Head::Plain(plain) => plain,
                Head::Other => return Poll::Ready(Ok(Next::After(self.leave()))),
                Head::Partial => {
                    // A head that has begun must end.
                    if !self.begun && !self.read.is_empty() {
                        self.begun = true;
                        self.wait(self.front.config.server.header_timeout);
                    }
                    match ready!(self.poll_more(cx))? {
                        More::Read => continue,
                        More::End => return Poll::Ready(Ok(Next::After(After::Ended))),
                    }
                }
            };
            if self.read.len() < plain.body.end {
                return Poll::Ready(Ok(Next::Body(Box::new(plain))));
            }
            let reply = match self.begin(&plain, self.since) {
                Served::Now(reply) => reply,
                Served::Later(reply) => {
                    return Poll::Ready(Ok(Next::Answer(reply, Box::new(plain.caller.id))));
                }
            };
            let mut answer = self.answer(reply, &plain.caller.id);
            match answer.poll_written(self.socket, cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) | Poll::Pending => {
                    return Poll::Ready(Ok(Next::Written(Box::new(answer))));
                }
            }
            if self.ends_after(answer) {
                return Poll::Ready(Ok(Next::After(After::Answered)));
            }
        }
    }

    /// Goes on with what has to be waited for: how the connection leaves the fast path, if it does.
    async fn go_on(&mut self, next: Next) -> io::Result<Option<After>> {
        let mut answer = match next {
            Next::After(after) => return Ok(Some(after)),
            Next::Written(answer) => *answer,
            Next::Answer(reply, id) => {
                let Some(reply) = self.while_there(reply).await else { return Ok(Some(After::Ended)) };
                self.answer(reply, &id)
            }
            Next::Body(plain) => {
                let started = self.since;
                self.wait(self.front.config.server.body_timeout);
                let reply = loop {
                    if self.read.len() >= plain.body.end {
                        let serving = self.begin(&plain, started).reply();
                        let Some(reply) = self.while_there(serving).await else {
                            return Ok(Some(After::Ended));
                        };
                        break reply;
                    }
                    match std::future::poll_fn(|cx| self.poll_more(cx)).await {
                        Ok(More::Read) => {}
                        // hyper meets the same end, and has an answer to it.
                        Ok(More::End) => return Ok(Some(self.leave())),
                        Err(error) if error.kind() == ErrorKind::TimedOut => break body::late(),
                        Err(error) => return Err(error),
                    }
                };
                self.answer(reply, &plain.caller.id)
            }
        };
        answer.written(self.socket, self.front.config.server.write_timeout).await?;
        Ok(self.ends_after(answer).then_some(After::Answered))
    }

    /// hyper goes on.
    fn leave(&mut self) -> After {
        After::Hyper { read: mem::take(&mut self.read).freeze(), first: self.first }
    }

    /// Serves the request whose head is `plain`, which came at `started` and was read.
    fn begin(&mut self, plain: &Plain, started: Instant) -> Served {
        let request = self.read.split_to(plain.body.end).freeze();
        let key = str::from_utf8(&request[plain.key.clone()]).unwrap_or_default();
        let body = request.slice(plain.body.clone());
        rpc::serve(self.front, &plain.caller, key, &body, started)
    }

    /// The answer to the request `id`, to be written.
    fn answer(&self, mut reply: Reply, id: &RequestId) -> ResponseWriter {
        reply.last |= self.ends.answer_is_last();
        ResponseWriter::new(reply, id)
    }

    /// Whether the connection ends with this answer, which is written.
    fn ends_after(&mut self, answer: ResponseWriter) -> bool {
        let last = answer.is_last();
        // The place in flight was held until the kernel had the answer.
        drop(answer);
        (self.first, self.begun) = (false, false);
        self.wait(IDLE_TIMEOUT);
        last
    }

    /// From now on more is waited for, for `time`.
    fn wait(&mut self, time: Duration) {
        self.since = Instant::now();
        (self.due, self.waits) = (self.since + time, false);
    }

    /// More to read, waited for until `due`, and for what begins while silence is still waited for.
    ///
    /// # Errors
    /// The socket's; [`ErrorKind::TimedOut`] where something had begun to come.
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

    /// Reads into the thread's room, which stays with the connection only while something is in it.
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
}
