//! The accept loop, and the way of a connection to the code that serves it.
//!
//! axum's own loop sets no header timeout and no connection limit. Each connection has a task of its own, which finds out
//! whose it is (PROXY protocol), and whether it speaks TLS, HTTP/1.1 or HTTP/2. So no client delays the next one.

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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::connection_activity::{ConnectionActivity, IdleAction};
use super::connection_permits::{ConnectionPermit, ConnectionPermits, ShareExhausted};
use super::connection_service::ConnectionService;
#[cfg(feature = "h1-fast-path")]
use super::h1;
use super::proxy_protocol::{self, NamedClient, ProxyHeaderError};
use super::shutdown::{IDLE_TIMEOUT, Phases, Signal, Wait};
use super::stream::{Stream, Timeouts};
use super::streams::Streams;
use super::tls::{self, Tls};
use super::{Front, routes, socket};

type BoxError = Box<dyn Error + Send + Sync>;

/// The pause after a failed accept. It usually fails for want of file descriptors, and the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The longest head. Cookies and a proxy's fields fit. Over HTTP/2 a head takes up to three times as much memory.
const HEAD_BYTES: u32 = 16 * 1024;
/// The bytes of one response that HTTP/2 buffers ahead of the client, and of a body that it reads ahead of the gateway.
const WINDOW_BYTES: u32 = 64 * 1024;
/// The concurrent streams of one HTTP/2 connection. RFC 9113 (6.5.2) recommends at least 100, and browsers rely on it.
const STREAMS: u32 = 128;
/// The interval of HTTP/2 pings on a silent connection, and the time that a client has to answer one. It also bounds a head
/// that does not end, because no other frame may come before its end.
const PING: Duration = Duration::from_secs(20);
/// The interval at which an HTTP/2 connection is checked for idling and for responses that are not taken.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Everything that connections are served with.
struct Listener {
    front: Arc<Front>,
    routes: axum::Router,
    tls: Option<Arc<Tls>>,
    permits: ConnectionPermits,
    streams: Arc<Streams>,
    http1: http1::Builder,
    http2: http2::Builder<StreamTasks>,
    phases: Arc<Phases>,
}

/// The executor of HTTP/2 requests. Each is a task that ends with its connection.
#[derive(Clone)]
struct StreamTasks {
    tasks: TaskTracker,
    abort: Signal,
}

impl<F: Future<Output = ()> + Send + 'static> rt::Executor<F> for StreamTasks {
    fn execute(&self, call: F) {
        let abort = self.abort.wait();
        self.tasks.spawn(unless_aborted(abort, call));
    }
}

/// Returns the output of `work`, or `None` if it is aborted first.
async fn unless_aborted<F: Future>(abort: Wait, work: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        () = abort => None,
        done = work => Some(done),
    }
}

/// Serves connections until the shutdown of `phases`, over TLS if there is `tls`. Spawns its tasks on `tasks`.
pub async fn run(
    front: Arc<Front>,
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    tasks: TaskTracker,
    phases: Phases,
) {
    let permits = ConnectionPermits::new(front.config.server.max_connections);
    let streams = Arc::new(Streams::new(&front.config.server));
    let mut http1 = http1::Builder::new();
    // `Stream` has the timeouts: hyper's would reset a timer for each request.
    http1.header_read_timeout(None).max_buf_size(HEAD_BYTES as usize).half_close(false);
    let mut http2 = http2::Builder::new(StreamTasks { tasks: tasks.clone(), abort: phases.abort.clone() });
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(16 * WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES)
        .max_send_buf_size(WINDOW_BYTES as usize)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let (routes, phases) = (routes::router(Arc::clone(&front)), Arc::new(phases));
    let server = Arc::new(Listener { front, routes, tls, permits, streams, http1, http2, phases });
    loop {
        let accepted = tokio::select! {
            () = server.phases.stop.wait() => break,
            accepted = accept(&listener, &server.permits) => accepted,
        };
        match accepted {
            Ok((socket, peer, permit)) => server.spawn(&tasks, socket, peer, permit),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // These clients believe that they are connected, and their requests may be on the way.
    let queued: Vec<_> = socket::queued(listener).collect();
    for (socket, peer) in queued {
        tokio::select! {
            biased;
            Ok(permit) = server.permits.acquire() => server.spawn(&tasks, socket, peer, permit),
            () = server.phases.idle_close.wait() => return,
        }
    }
}

impl Listener {
    /// Spawns a task on `tasks` that serves a connection from `peer`.
    fn spawn(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        socket: TcpStream,
        peer: SocketAddr,
        permit: ConnectionPermit,
    ) {
        let (open, server) = (OpenConnection::new(&self.front), Arc::clone(self));
        tasks.spawn(async move {
            let _held = (open, permit);
            // Boxed, here and below, so that a connection takes only the memory of its present state, which is mostly to wait.
            let work = Box::pin(server.identify(socket, peer.ip()));
            let ended = unless_aborted(server.phases.abort.wait(), work).await;
            // Clients break connections. The request's own log line says what was lost.
            if let Some(Err(error)) = ended {
                tracing::debug!(client.address = %peer.ip(), %error, "connection ended");
            }
        });
    }

    /// Finds out whose connection this is and serves it to its end.
    async fn identify(&self, mut socket: TcpStream, peer: IpAddr) -> Result<(), BoxError> {
        socket::prepare(&socket);
        let server = &self.front.config.server;
        let deadline = Instant::now() + server.header_timeout;
        let mut client = Some(peer);
        if server.proxy_protocol {
            let header = if server.trusts(peer) {
                Box::pin(self.by(deadline, proxy_protocol::read(&mut socket))).await?
            } else {
                Err(ProxyHeaderError::UntrustedPeer)
            };
            // A warning: an operator may have enabled the protocol at one end only.
            let named = header
                .inspect_err(|error| tracing::warn!(peer.address = %peer, %error, "connection refused"))?;
            client = match named {
                NamedClient::Address(client) => Some(client),
                NamedClient::Proxy => Some(peer),
                NamedClient::Unknown => None,
            };
        }
        // A trusted proxy connects for all its clients. Clients without an address have one share.
        let _share = if client.is_some_and(|client| server.trusts(client)) {
            None
        } else {
            let share = self.permits.share_of(client).ok_or(ShareExhausted);
            Some(share.inspect_err(
                |error| tracing::warn!(peer.address = %peer, client.address = client.map(tracing::field::display), %error, "connection refused"),
            )?)
        };
        match &self.tls {
            None => self.serve(socket, client, None).await,
            Some(tls) => Box::pin(self.serve_tls(tls, deadline, socket, client)).await,
        }
    }

    /// Serves `client` over `tls`. The handshake must end by `deadline`.
    async fn serve_tls(
        &self,
        tls: &Tls,
        deadline: Instant,
        socket: TcpStream,
        client: Option<IpAddr>,
    ) -> Result<(), BoxError> {
        let socket = Box::pin(self.by(deadline, tls.acceptor().accept(socket))).await??;
        let is_http2 = socket.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
        Box::pin(self.serve(socket, client, Some(is_http2))).await
    }

    /// Serves `client`, on the fast path as long as that applies. `is_http2` is `None` if the first bytes must tell.
    #[cfg(feature = "h1-fast-path")]
    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        socket: S,
        client: Option<IpAddr>,
        is_http2: Option<bool>,
    ) -> Result<(), BoxError> {
        if is_http2 == Some(true) {
            return Box::pin(self.serve_hyper(socket, client, Bytes::new(), is_http2)).await;
        }
        match h1::serve(&self.front, socket, client, &self.phases).await? {
            h1::Outcome::Closed => Ok(()),
            h1::Outcome::HandOver { socket, read, is_first } => {
                let is_http2 = is_http2.or((!is_first).then_some(false));
                Box::pin(self.serve_hyper(socket, client, read, is_http2)).await
            }
        }
    }

    /// Serves `client`. `is_http2` is `None` if the first bytes must tell.
    #[cfg(not(feature = "h1-fast-path"))]
    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        socket: S,
        client: Option<IpAddr>,
        is_http2: Option<bool>,
    ) -> Result<(), BoxError> {
        Box::pin(self.serve_hyper(socket, client, Bytes::new(), is_http2)).await
    }

    /// Serves `client` by hyper, which first gets the bytes of `read`.
    async fn serve_hyper<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        socket: S,
        client: Option<IpAddr>,
        read: Bytes,
        is_http2: Option<bool>,
    ) -> Result<(), BoxError> {
        let (activity, server) = (Arc::<ConnectionActivity>::default(), &self.front.config.server);
        let timeouts = Timeouts {
            head: server.header_timeout,
            idle: IDLE_TIMEOUT,
            write: server.write_timeout,
            linger: self.phases.periods.linger,
        };
        let mut stream = Stream::new(socket, Arc::clone(&activity), timeouts, read);
        let is_http2 = match is_http2 {
            Some(known) => known,
            None => self.by(Instant::now() + server.header_timeout, stream.opens_with_http2()).await??,
        };
        let service = Arc::new(ConnectionService {
            front: Arc::clone(&self.front),
            routes: self.routes.clone(),
            client,
            activity: Arc::clone(&activity),
            phases: Arc::clone(&self.phases),
            streams: is_http2.then(|| Arc::clone(&self.streams)),
        });
        let service = service_fn(move |request| Arc::clone(&service).answer(request));
        let io = TokioIo::new(stream);
        if is_http2 {
            activity.set_http2(Instant::now());
            let connection = self.http2.serve_connection(io, service);
            Ok(Box::pin(self.drive_http2(connection, &activity)).await?)
        } else {
            Ok(Box::pin(self.drive_http1(self.http1.serve_connection(io, service))).await?)
        }
    }

    /// Waits for a part of the connection's setup until `deadline`, and until idle connections close.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] at the deadline, [`io::ErrorKind::Interrupted`] at a shutdown.
    async fn by<F: Future>(&self, deadline: Instant, setup: F) -> io::Result<F::Output> {
        tokio::select! {
            biased;
            done = setup => Ok(done),
            () = tokio::time::sleep_until(deadline) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the connection's beginning took too long"))
            }
            () = self.phases.idle_close.wait() => {
                Err(io::Error::new(io::ErrorKind::Interrupted, "the gateway stops"))
            }
        }
    }

    /// Drives an HTTP/1.1 connection to its end. At a shutdown it closes once it is idle: only a response can tell its
    /// client.
    async fn drive_http1<C: GracefulConnection>(&self, connection: C) -> Result<(), C::Error> {
        tokio::pin!(connection);
        tokio::select! {
            // What has arrived is read before a shutdown is heard. hyper would close a connection that is told to end before
            // its first request was read, without a response.
            biased;
            served = connection.as_mut() => return served,
            () = self.phases.idle_close.wait() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    }

    /// Drives an HTTP/2 connection to its end, and closes it when it is idle or its client takes nothing. At a shutdown the
    /// client gets a GOAWAY. What it sends until it has read that is served.
    async fn drive_http2<C: GracefulConnection>(
        &self,
        connection: C,
        activity: &ConnectionActivity,
    ) -> Result<(), C::Error> {
        tokio::pin!(connection);
        let write_timeout = self.front.config.server.write_timeout;
        let (mut is_ending, mut stop) = (false, self.phases.stop.wait());
        loop {
            tokio::select! {
                biased;
                served = connection.as_mut() => return served,
                () = &mut stop, if !is_ending => {
                    is_ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = tokio::time::sleep(CHECK_INTERVAL) => {
                    match activity.idle_action(Instant::now(), IDLE_TIMEOUT, write_timeout) {
                        IdleAction::Keep => {}
                        IdleAction::Close if !is_ending => {
                            is_ending = true;
                            connection.as_mut().graceful_shutdown();
                        }
                        // The client was told to leave at an earlier check.
                        IdleAction::Close | IdleAction::Abort => return Ok(()),
                    }
                }
            }
        }
    }
}

/// Counts a connection as open until it is dropped, even by a panic.
struct OpenConnection(Arc<Front>);

impl OpenConnection {
    fn new(front: &Arc<Front>) -> Self {
        front.metrics.connections.inc();
        Self(Arc::clone(front))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

/// Accepts the next connection once there is a permit for one. Connections above the limit wait in the kernel's queue.
async fn accept(
    listener: &TcpListener,
    permits: &ConnectionPermits,
) -> io::Result<(TcpStream, SocketAddr, ConnectionPermit)> {
    let permit = permits.acquire().await?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that `make` returns, without calling it.
    fn size<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Beside the socket, an idle connection has this and a timer.
    #[test]
    fn an_idle_connection_is_small() {
        let bytes = size(|(server, socket, peer): (&'static Listener, TcpStream, IpAddr)| {
            server.identify(socket, peer)
        });
        assert!(bytes <= 1024, "{bytes} bytes");
    }
}
