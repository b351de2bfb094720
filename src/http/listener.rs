//! The accept loop, and the setup of each connection.
//!
//! axum's own loop sets no header timeout and no connection limit. Each connection has a task of its own, so that no
//! client delays another. The task reads the PROXY header, completes the TLS handshake, and detects HTTP/1.1 or HTTP/2.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::Either;
use hyper::rt;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::activity::{ConnectionActivity, IdleAction};
use super::client_ip::{self, Peer};
use super::keyless::{self, KeylessConnections, KeylessPlace, TooManyKeyless};
use super::permits::{ConnectionPermit, ConnectionPermits, ShareExhausted};
use super::proxy_protocol::{self, NamedClient};
use super::shutdown::{Phases, Signal, Wait};
use super::timed_socket::{TimedSocket, Timeouts, linger};
use super::visit::Connection;
use super::{Front, routes};
use crate::subscribe::{self, SocketClient};
use crate::tls::{self, Tls};

type BoxError = Box<dyn Error + Send + Sync>;

/// The pause after a failed accept. Usually an accept fails because no file descriptor is free. Without a pause
/// the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The longest request head, in bytes. It has room for cookies and a proxy's fields. Over HTTP/2 a head takes up to
/// three times as much memory.
const HEAD_BYTES: u32 = 16 * 1024;
/// The maximum number of bytes that HTTP/2 buffers for one stream in each direction: response bytes that the
/// client has not read, and body bytes that slotfront has not read. All bodies of a connection together have no more,
/// because slotfront reads them at once.
const WINDOW_BYTES: u32 = 64 * 1024;
/// The maximum number of concurrent streams on one HTTP/2 connection. RFC 9113 (6.5.2) recommends at least 100.
const STREAMS: u32 = 128;
/// The interval of HTTP/2 pings on a silent connection, and the time that a client has to answer a ping. A ping
/// also bounds the time for a request head, because a client cannot answer a ping in the middle of a head.
const PING: Duration = Duration::from_secs(20);
/// The interval at which an HTTP/2 connection is checked for idling, and for responses that the client does not read.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The number of unsent bytes up to which the kernel reports a socket as writable (`TCP_NOTSENT_LOWAT`).
///
/// By default the kernel waits until a third of a buffer of some MiB is free. A client that reads slowly would
/// then seem to read nothing.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 64 * 1024;

/// The answer to a client that speaks HTTP without TLS, as whoever mistypes the scheme of the URL does.
const EXPECTS_TLS: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
    content-length: 61\r\nconnection: close\r\n\r\nthis port expects TLS: begin the URL with https:// or wss://\n";

/// The public listener: the parts that all its connections share.
struct Listener {
    front: Arc<Front>,
    router: TowerToHyperService<axum::Router>,
    tls: Option<Arc<Tls>>,
    permits: ConnectionPermits,
    keyless: KeylessConnections,
    /// As many as there may be requests over HTTP/1.1: those in flight, and on each connection one whose body is still
    /// arriving.
    http2_permits: Arc<ConnectionPermits>,
    http1: http1::Builder,
    http2: http2::Builder<StreamTasks>,
    phases: Arc<Phases>,
}

/// The executor of HTTP/2 requests. Each request is a task, which `abort` ends.
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

/// Returns the output of `work`, or `None` if `abort` is triggered first.
async fn unless_aborted<F: Future>(abort: Wait, work: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        () = abort => None,
        done = work => Some(done),
    }
}

/// Accepts connections at `listeners` and serves them until the shutdown triggers `phases.stop`, over TLS if `tls` is
/// given. Each connection is a task on `tasks` and may outlive the call.
pub async fn run(
    front: Arc<Front>,
    mut listeners: Vec<TcpListener>,
    tls: Option<Arc<Tls>>,
    tasks: TaskTracker,
    phases: Phases,
) {
    let permits = ConnectionPermits::new(front.config.now().server.max_connections);
    let config = front.config.now();
    let server = &config.server;
    let http2_permits =
        Arc::new(ConnectionPermits::new(server.max_in_flight.saturating_add(server.max_connections)));
    let mut http1 = http1::Builder::new();
    // The type `TimedSocket` enforces the timeouts. hyper's own timeout would reset a timer for each request.
    http1.header_read_timeout(None).max_buf_size(HEAD_BYTES as usize).half_close(false);
    let mut http2 = http2::Builder::new(StreamTasks { tasks: tasks.clone(), abort: phases.abort.clone() });
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES)
        .max_send_buf_size(WINDOW_BYTES as usize)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let router = TowerToHyperService::new(routes::router(Arc::clone(&front)));
    let phases = Arc::new(phases);
    let keyless = KeylessConnections::new(server.max_incoming);
    let server =
        Arc::new(Listener { front, router, tls, permits, keyless, http2_permits, http1, http2, phases });
    loop {
        let accepted = tokio::select! {
            () = server.phases.stop.wait() => break,
            accepted = accept(&mut listeners, &server.permits) => accepted,
        };
        match accepted {
            Ok((socket, peer, permit)) => server.spawn(&tasks, socket, peer, permit),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Serves the connections that still wait in the kernel's queue, because their clients may have sent requests
    // already.
    let queued: Vec<_> = listeners.into_iter().flat_map(queued).collect();
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
            // Futures are boxed, here and below, so that a connection takes only the memory of its current state.
            // Most connections are idle.
            let work = Box::pin(server.identify_and_serve(socket, peer.ip()));
            let ended = unless_aborted(server.phases.abort.wait(), work).await;
            // Logged at debug level, because clients often break connections. A request that is lost this way has
            // its own log line.
            if let Some(Err(error)) = ended {
                tracing::debug!(client.address = %peer.ip(), %error, "a client's connection ended with an error");
            }
        });
    }

    /// Determines the client's address, checks how many connections this address holds, and serves the connection to
    /// its end.
    async fn identify_and_serve(&self, mut socket: TcpStream, peer: IpAddr) -> Result<(), BoxError> {
        prepare(&socket);
        let config = self.front.config.now();
        let server = &config.server;
        let deadline = Instant::now() + server.header_timeout;
        let mut at = Peer::Address(peer);
        if server.proxy_protocol {
            let header = if client_ip::is_trusted(peer, server) {
                Box::pin(self.by(deadline, proxy_protocol::read(&mut socket))).await?
            } else {
                Err(io::Error::other("server.proxy_protocol: the peer is not in server.trusted_proxies"))
            };
            // Logged as a warning, because the operator may have enabled the PROXY protocol at one end only.
            let named = header
                .inspect_err(|error| tracing::warn!(peer.address = %peer, %error, "refused a connection"))?;
            at = match named {
                NamedClient::Address(client) => Peer::Address(client),
                NamedClient::Proxy => Peer::Unnamed(peer),
                NamedClient::Unknown => Peer::Unknown,
            };
        }
        let client = at.address();
        // Each client address may hold only a share of the connections. A trusted proxy may hold more, because it
        // connects for many clients. All clients of unknown address together have one share.
        let refused = |error: &dyn Error| tracing::warn!(peer.address = %peer, client.address = client.map(tracing::field::display), %error, "refused a connection");
        let (_share, place) = if client.is_some_and(|client| client_ip::is_trusted(client, server)) {
            (None, KeylessPlace::uncounted(at))
        } else {
            let share = self.permits.share_of(client).ok_or(ShareExhausted);
            (Some(share.inspect_err(|error| refused(error))?), self.keyless.enter(at))
        };
        let place = Arc::new(place);
        tokio::select! {
            biased;
            ended = match &self.tls {
                None => Either::Left(self.serve(socket, &place, None)),
                Some(tls) => Either::Right(Box::pin(self.serve_tls(tls, deadline, socket, &place))),
            } => ended,
            () = place.must_close() => Err(TooManyKeyless).inspect_err(|error| refused(error))?,
        }
    }

    /// Serves a connection over `tls`. The handshake must end by `deadline`.
    async fn serve_tls(
        &self,
        tls: &Tls,
        deadline: Instant,
        socket: TcpStream,
        place: &Arc<KeylessPlace>,
    ) -> Result<(), BoxError> {
        let mut socket = socket;
        if Box::pin(self.by(deadline, speaks_http(&socket))).await?? {
            socket.write_all(EXPECTS_TLS.as_bytes()).await?;
            linger(&mut socket, self.phases.periods.linger).await;
            return Ok(());
        }
        place.grow(keyless::TLS + keyless::HANDSHAKE);
        let socket = Box::pin(self.by(deadline, tls.acceptor().accept(socket))).await??;
        place.shrink(keyless::HANDSHAKE);
        let is_http2 = socket.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
        Box::pin(self.serve(socket, place, Some(is_http2))).await
    }

    /// Serves a connection. `is_http2` is true if TLS has negotiated HTTP/2. Without TLS it is `None`, and the first bytes
    /// decide the protocol.
    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        socket: S,
        place: &Arc<KeylessPlace>,
        is_http2: Option<bool>,
    ) -> Result<(), BoxError> {
        let config = self.front.config.now();
        let (activity, server) = (Arc::<ConnectionActivity>::default(), &config.server);
        let timeouts = Timeouts {
            head: server.header_timeout,
            idle: server.idle_timeout,
            write: server.write_timeout,
            linger: self.phases.periods.linger,
        };
        let mut stream = TimedSocket::new(socket, Arc::clone(&activity), timeouts);
        let is_http2 = match is_http2 {
            Some(known) => known,
            None => self.by(Instant::now() + server.header_timeout, stream.opens_with_http2()).await??,
        };
        place.grow(if is_http2 { keyless::HTTP2 } else { keyless::HTTP1 });
        let connection = Connection {
            front: Arc::clone(&self.front),
            router: self.router.clone(),
            place: Arc::clone(place),
            activity: Arc::clone(&activity),
            phases: Arc::clone(&self.phases),
            http2_permits: is_http2.then(|| Arc::clone(&self.http2_permits)),
            upgraded: Mutex::default(),
        };
        let connection = Arc::new(connection);
        let upgrading = Arc::clone(&connection);
        let service = service_fn(move |request| Arc::clone(&connection).answer(request));
        let io = TokioIo::new(stream);
        if is_http2 {
            activity.set_http2(Instant::now());
            let mut connection = Box::pin(self.http2.serve_connection(io, service));
            Ok(Box::pin(self.drive_http2(connection.as_mut(), &activity)).await?)
        } else {
            // Boxed before it is driven, because a future holds an argument twice.
            let mut connection = Box::pin(self.http1.serve_connection(io, service).with_upgrades());
            let ending = Box::pin(async {
                tokio::select! {
                    // A request that has arrived is read before the shutdown is noticed. Otherwise hyper would close a
                    // connection whose first request is not read yet, without a response.
                    biased;
                    ended = connection.as_mut() => return ended,
                    () = self.phases.idle_close.wait().with_last_look() => connection.as_mut().graceful_shutdown(),
                }
                connection.as_mut().await
            });
            ending.await?;
            drop(connection);
            let upgraded = upgrading.upgraded.lock().take();
            match upgraded {
                Some((upgrade, client)) => Box::pin(self.serve_socket::<S>(upgrade, client)).await,
                None => Ok(()),
            }
        }
    }

    async fn serve_socket<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        upgrade: OnUpgrade,
        client: Arc<SocketClient>,
    ) -> Result<(), BoxError> {
        let parts = upgrade.await?.downcast::<TokioIo<TimedSocket<S>>>();
        let parts = parts.map_err(|_| "the WebSocket is not the connection's")?;
        let (socket, ahead) = parts.io.into_inner().into_parts();
        let read = [parts.read_buf, ahead].concat();
        let hub = Arc::clone(&self.front.subscriptions);
        let age = self.front.config.now().server.max_socket_age.map(tokio::time::sleep);
        let stop = async {
            tokio::select! {
                () = self.phases.stop.wait() => {}
                // Without a maximum age this branch is none.
                Some(()) = futures_util::future::OptionFuture::from(age) => {}
            }
        };
        let mut socket = Box::pin(subscribe::serve(hub, client, socket, read, stop)).await;
        linger(&mut socket, self.phases.periods.linger).await;
        Ok(())
    }

    /// Runs `setup`, a part of a connection's setup such as the TLS handshake, until `deadline` or until a shutdown
    /// closes idle connections.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] at the deadline, [`io::ErrorKind::Interrupted`] at the shutdown.
    async fn by<F: Future>(&self, deadline: Instant, setup: F) -> io::Result<F::Output> {
        tokio::select! {
            biased;
            done = setup => Ok(done),
            () = tokio::time::sleep_until(deadline) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the setup of the connection took too long"))
            }
            () = self.phases.idle_close.wait() => {
                Err(io::Error::new(io::ErrorKind::Interrupted, "slotfront is shutting down"))
            }
        }
    }

    /// Runs an HTTP/2 connection to its end. Closes the connection if it is idle for too long, or if its client
    /// stops reading responses. At a shutdown the client gets a GOAWAY. Requests that the client sends before it
    /// reads the GOAWAY are still served.
    async fn drive_http2<C: GracefulConnection>(
        &self,
        mut connection: Pin<&mut C>,
        activity: &ConnectionActivity,
    ) -> Result<(), C::Error> {
        let config = self.front.config.now();
        let limits = &config.server;
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
                    match activity.idle_action(Instant::now(), limits.idle_timeout, limits.write_timeout) {
                        IdleAction::Keep => {}
                        IdleAction::Close if !is_ending => {
                            is_ending = true;
                            connection.as_mut().graceful_shutdown();
                        }
                        // For `Close`, a GOAWAY was already sent. For `Abort`, the client would not read one.
                        IdleAction::Close | IdleAction::Abort => return Ok(()),
                    }
                }
            }
        }
    }
}

/// One open connection, counted in the metrics until this value is dropped. The count also ends if the connection's
/// task panics.
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

/// Waits for a free permit, then accepts the next connection. Connections above the limit wait in the kernel's queue. Each
/// listener is the first in turn, so that connections without end at one leave some for the other.
async fn accept(
    listeners: &mut [TcpListener],
    permits: &ConnectionPermits,
) -> io::Result<(TcpStream, SocketAddr, ConnectionPermit)> {
    let permit = permits.acquire().await?;
    listeners.rotate_left(1);
    let (stream, peer) = poll_fn(|cx| {
        let mut accepted = listeners.iter().map(|listener| listener.poll_accept(cx));
        accepted.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await?;
    Ok((stream, peer, permit))
}

/// Sets the options of a client's socket. Errors are ignored, because the socket works without the options.
fn prepare(socket: &TcpStream) {
    // The head and the body of a response are written at once or right after each other, so a delay of small packets
    // would gain nothing.
    let _ = socket.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES);
}

/// Returns true if the first byte of a client is that of an HTTP request. That of a TLS handshake is 22 (RFC 8446, 5.1).
async fn speaks_http(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(socket.peek(&mut first).await? > 0 && first[0].is_ascii_uppercase())
}

/// Returns the connections that wait in the kernel's queue. Dropping the iterator closes the listener.
fn queued(listener: TcpListener) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    // The kernel is asked directly, because tokio may not know of these connections yet.
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        let (socket, peer) = listener.as_ref()?.accept().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(socket).ok()?, peer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size in bytes of the future that a function returns. The function is not called.
    fn size<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[tokio::test]
    async fn connections_at_one_listener_leave_some_for_the_other() {
        let listen = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut listeners = [listen().await, listen().await];
        let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        let mut clients = Vec::new();
        for address in addresses.iter().cycle().take(8) {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let permits = ConnectionPermits::new(8);
        let mut accepted = Vec::new();
        for _ in 0..4 {
            accepted.push(accept(&mut listeners, &permits).await.unwrap().0.local_addr().unwrap());
        }
        assert!(addresses.iter().all(|address| accepted.iter().filter(|at| *at == address).count() == 2));
    }

    /// An idle connection takes the memory of three parts: a socket, a timer, and the future of `identify_and_serve`.
    #[test]
    fn an_idle_connection_is_small() {
        let bytes = size(|(server, socket, peer): (&'static Listener, TcpStream, IpAddr)| {
            server.identify_and_serve(socket, peer)
        });
        assert!(bytes <= 1024, "{bytes} bytes");
    }
}
