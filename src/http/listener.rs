//! The accept loop: axum's own sets no header timeout and no connection limit, so this one is ours.
//!
//! What a connection is, is found out in its own task, so that no client holds up the next: whose it is (PROXY protocol),
//! TLS, and which HTTP.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::rt;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::connection_activity::{ConnectionActivity, IdleAction};
use super::ends::{Ends, IDLE_TIMEOUT};
use super::farewell;
use super::fast_path::{self, After};
use super::places::{ConnectionPermit, Places, TooMany};
use super::proxy_protocol::{self, Named};
use super::requests::Requests;
use super::signal::{Given, Signal};
use super::stream::{Clocks, Stream};
use super::streams::Streams;
use super::tls::{self, Tls};
use super::{Front, rest, socket};

/// After a failed accept (no more file descriptors, usually) there is a pause, or the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The longest head. Cookies and a proxy's fields fit; over HTTP/2 it takes up to three times as much memory.
const HEAD_BYTES: u32 = 16 * 1024;
/// Bytes of one answer that HTTP/2 keeps ahead of the client, and of a body that it reads ahead of the gateway.
const WINDOW_BYTES: u32 = 64 * 1024;
/// Calls at once on one connection of HTTP/2; the value that RFC 9113 (6.5.2) gives as the least, and browsers expect.
const STREAMS: u32 = 128;
/// A client of HTTP/2 that does not answer a ping, sent when it has been silent for so long, within as long is gone. That
/// is also the clock of a head that does not end: nothing may come before its end.
const PING: Duration = Duration::from_secs(20);
/// The time for which the end of TLS may wait for a client that takes nothing.
const CLOSING: Duration = Duration::from_secs(1);
/// How often a connection of HTTP/2 is looked at for idling and for answers left lying.
const LOOK: Duration = Duration::from_secs(5);

/// All that connections are served with.
struct Door {
    front: Arc<Front>,
    rest: axum::Router,
    tls: Option<Arc<Tls>>,
    places: Places,
    streams: Arc<Streams>,
    http1: http1::Builder,
    http2: http2::Builder<Calls>,
    ends: Ends,
}

/// Where HTTP/2's calls run: each is a task, of the same tracker and with the same end as its connection.
#[derive(Clone)]
struct Calls {
    tasks: TaskTracker,
    cut: Signal,
}

impl<F: Future<Output = ()> + Send + 'static> rt::Executor<F> for Calls {
    fn execute(&self, call: F) {
        let cut = self.cut.given();
        self.tasks.spawn(unless(cut, call));
    }
}

/// What `work` gives, unless it is cut first.
async fn unless<F: Future>(cut: Given, work: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        () = cut => None,
        done = work => Some(done),
    }
}

/// Serves connections until `ends`, over `tls` if there is one. Tasks are `tasks`'.
pub async fn run(
    front: Arc<Front>,
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    tasks: TaskTracker,
    ends: Ends,
) {
    let places = Places::new(front.config.server.max_connections);
    let streams = Arc::new(Streams::new(&front.config.server));
    let mut http1 = http1::Builder::new();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEAD_BYTES as usize)
        .half_close(false);
    let mut http2 = http2::Builder::new(Calls { tasks: tasks.clone(), cut: ends.cut.clone() });
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(16 * WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES)
        .max_send_buf_size(WINDOW_BYTES as usize)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let rest = rest::router(Arc::clone(&front));
    let door = Arc::new(Door { front, rest, tls, places, streams, http1, http2, ends });
    loop {
        let accepted = tokio::select! {
            () = door.ends.stop.given() => break,
            accepted = accept(&listener, &door.places) => accepted,
        };
        match accepted {
            Ok((socket, peer, place)) => door.open(&tasks, socket, peer, place),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // To these clients they are connected, and their requests may be on the way.
    let queued: Vec<_> = socket::queued(listener).collect();
    for (socket, peer) in queued {
        tokio::select! {
            biased;
            Ok(place) = door.places.free() => door.open(&tasks, socket, peer, place),
            () = door.ends.silence.given() => return,
        }
    }
}

impl Door {
    /// Begins to serve a connection from `peer`, as one of `tasks`.
    fn open(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        socket: TcpStream,
        peer: SocketAddr,
        place: ConnectionPermit,
    ) {
        let (open, door) = (Open::new(&self.front), Arc::clone(self));
        tasks.spawn(async move {
            let _held = (open, place);
            // Boxed, here and below: a connection is as large as what it does just now, which most of the time is to wait.
            let work = Box::pin(door.connection(socket, peer.ip()));
            let served = unless(door.ends.cut.given(), work).await;
            // A connection that breaks is the client's affair: nothing to say beyond the request's own log line.
            if let Some(Err(error)) = served {
                tracing::debug!(client.address = %peer.ip(), %error, "connection ended");
            }
        });
    }

    /// One connection, to its end.
    async fn connection(
        &self,
        mut socket: TcpStream,
        peer: IpAddr,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        socket::prepare(&socket);
        let server = &self.front.config.server;
        let deadline = Instant::now() + server.header_timeout;
        let mut client = Some(peer);
        if server.proxy_protocol {
            let said = if server.trusts(peer) {
                Box::pin(self.begins(deadline, proxy_protocol::read(&mut socket))).await?
            } else {
                Err(proxy_protocol::Refused::Stranger)
            };
            // An operator who has switched this on at one end only would look for it.
            let named =
                said.inspect_err(|error| tracing::warn!(peer.address = %peer, %error, "connection refused"))?;
            client = match named {
                Named::Client(client) => Some(client),
                Named::Proxy => Some(peer),
                Named::Nobody => None,
            };
        }
        // A proxy in front of us stands for all its clients; those without an address have one share.
        let _held = if client.is_some_and(|client| server.trusts(client)) {
            None
        } else {
            let held = self.places.hold(client).ok_or(TooMany);
            Some(held.inspect_err(
                |error| tracing::warn!(peer.address = %peer, client.address = client.map(display), %error, "connection refused"),
            )?)
        };
        match &self.tls {
            None => self.spoken(socket, client, None).await,
            Some(tls) => Box::pin(self.secured(tls, deadline, socket, client)).await,
        }
    }

    /// The connection of `client` over `tls`, which has until `deadline` to begin.
    async fn secured(
        &self,
        tls: &Tls,
        deadline: Instant,
        socket: TcpStream,
        client: Option<IpAddr>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let socket = Box::pin(self.begins(deadline, tls.acceptor().accept(socket))).await??;
        let http2 = socket.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
        Box::pin(self.spoken(socket, client, Some(http2))).await
    }

    /// The connection of `client`, whose kind is known or found out.
    async fn spoken<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        mut socket: S,
        client: Option<IpAddr>,
        mut http2: Option<bool>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut read = Bytes::new();
        if http2 != Some(true) {
            match fast_path::serve(&self.front, &mut socket, client, &self.ends).await? {
                After::Answered => {
                    Box::pin(farewell::linger(&mut socket, self.ends.periods.linger)).await;
                    return Ok(());
                }
                After::Ended => {
                    // TLS says that it ends, or its client would have to think that something was cut off.
                    let _ = Box::pin(tokio::time::timeout(CLOSING, socket.shutdown())).await;
                    return Ok(());
                }
                After::Hyper { read: ahead, first } => {
                    read = ahead;
                    http2 = http2.or((!first).then_some(false));
                }
            }
        }
        Box::pin(self.general(socket, client, read, http2)).await
    }

    /// The connection of `client`, of which so much was read, with all that HTTP has.
    async fn general<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        socket: S,
        client: Option<IpAddr>,
        read: Bytes,
        http2: Option<bool>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let (activity, server) = (Arc::<ConnectionActivity>::default(), &self.front.config.server);
        let head = server.header_timeout;
        let clocks = Clocks { head, write: server.write_timeout, linger: self.ends.periods.linger };
        let mut stream = Stream::new(socket, Arc::clone(&activity), clocks, read);
        let http2 = match http2 {
            Some(known) => known,
            None => self.begins(Instant::now() + head, stream.opens_with_http2()).await??,
        };
        self.http(stream, activity, client, http2).await
    }

    /// What a connection begins with, which must come by `deadline`, and while silence is still waited for.
    async fn begins<F: Future>(&self, deadline: Instant, beginning: F) -> io::Result<F::Output> {
        tokio::select! {
            biased;
            begun = beginning => Ok(begun),
            () = tokio::time::sleep_until(deadline) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the connection's beginning took too long"))
            }
            () = self.ends.silence.given() => Err(io::Error::new(io::ErrorKind::Interrupted, "the gateway stops")),
        }
    }

    /// HTTP with `client` on a stream that is ready for it.
    async fn http<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: Stream<S>,
        activity: Arc<ConnectionActivity>,
        client: Option<IpAddr>,
        http2: bool,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let requests = Requests {
            front: Arc::clone(&self.front),
            rest: self.rest.clone(),
            client,
            activity: Arc::clone(&activity),
            ends: self.ends.clone(),
            streams: http2.then(|| Arc::clone(&self.streams)),
        };
        let service = service_fn(move |request| requests.answer(request));
        let io = TokioIo::new(stream);
        if http2 {
            activity.multiplex(Instant::now());
            let connection = self.http2.serve_connection(io, service);
            Ok(Box::pin(self.until_the_end(connection, Some(&activity))).await?)
        } else {
            Ok(Box::pin(self.until_the_end(self.http1.serve_connection(io, service), None)).await?)
        }
    }

    /// Drives a connection to its end. One of HTTP/2, which has an `activity`, is told to go at the stop: what the client
    /// sends until it has heard that is served. One of HTTP/1.1 can be told by an answer only, and closes when it is silent.
    async fn until_the_end<C: GracefulConnection>(
        &self,
        connection: C,
        activity: Option<&ConnectionActivity>,
    ) -> Result<(), C::Error> {
        tokio::pin!(connection);
        let write_timeout = self.front.config.server.write_timeout;
        let end = if activity.is_some() { &self.ends.stop } else { &self.ends.silence };
        let (mut ending, mut end) = (false, end.given());
        loop {
            tokio::select! {
                // What has arrived is read before a stop is heard: a connection that is told to end before its first
                // request was read closes without an answer.
                biased;
                served = connection.as_mut() => return served,
                () = &mut end, if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = tokio::time::sleep(LOOK), if activity.is_some() => {
                    let now = Instant::now();
                    match activity.map(|activity| activity.idle_action(now, IDLE_TIMEOUT, write_timeout)) {
                        Some(IdleAction::Keep) | None => {}
                        Some(IdleAction::Close) if !ending => {
                            ending = true;
                            connection.as_mut().graceful_shutdown();
                        }
                        // A client that was told to go a look ago, and does not, is left.
                        Some(IdleAction::Close | IdleAction::Abort) => return Ok(()),
                    }
                }
            }
        }
    }
}

/// Counts a connection as open, until it is dropped, be it by a panic.
struct Open(Arc<Front>);

impl Open {
    fn new(front: &Arc<Front>) -> Self {
        front.metrics.connections.inc();
        Self(Arc::clone(front))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

/// The next connection, once there is a place for one: those above the limit wait in the kernel's queue.
async fn accept(
    listener: &TcpListener,
    places: &Places,
) -> io::Result<(TcpStream, SocketAddr, ConnectionPermit)> {
    let place = places.free().await?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what `make` gives, which is not called.
    fn size<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Beside the socket's own, this and the clock are all that an idle connection has.
    #[test]
    fn a_connection_that_waits_is_small() {
        let bytes =
            size(|(door, socket, peer): (&'static Door, TcpStream, IpAddr)| door.connection(socket, peer));
        assert!(bytes <= 1024, "{bytes} bytes");
    }
}
