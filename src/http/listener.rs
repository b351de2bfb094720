//! The accept loop: axum's own sets no header timeout and no connection limit, so this one is ours, on hyper-util.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::exchange::Exchange;
use super::stream::Stream;
use super::{Front, rest, serve};

/// After a failed accept (no more file descriptors, usually) there is a pause, or the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a kept-alive connection may idle. Balancers keep theirs for 60 to 90 s, and the side that closes first
/// should be theirs: a connection that we close while a request is on its way is a 502 of the balancer's.
const IDLE_TIMEOUT: Duration = Duration::from_mins(2);
/// What is read ahead, and written behind, of one connection: room for any head that is sent in good faith, and
/// 20,000 connections that all fill it have 1.3 GB.
const BUFFER_BYTES: usize = 64 * 1024;

/// How serving ends.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// No new connection; requests in flight finish, and idle connections close.
    pub stop: CancellationToken,
    /// Connections are dropped, whatever they do.
    pub cut: CancellationToken,
}

/// Serves connections until `ends`. Tasks are `tasks`'.
pub async fn run(front: Arc<Front>, listener: TcpListener, tasks: TaskTracker, ends: Ends) {
    let places = Arc::new(Semaphore::new(front.config.server.max_connections));
    let rest = rest::router(Arc::clone(&front));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .half_close(false);
    loop {
        let accepted = tokio::select! {
            () = ends.stop.cancelled() => return,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, peer, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Answers are written whole, so waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        let open = Open::new(&front);
        let exchange = Arc::new(Exchange::default());
        let stream = Stream::new(stream, Arc::clone(&exchange), front.config.server.header_timeout);
        let (front, rest, ends) = (Arc::clone(&front), rest.clone(), ends.clone());
        let connection =
            http.serve_connection(
                TokioIo::new(stream),
                service_fn(move |request| {
                    let (front, rest, exchange) = (Arc::clone(&front), rest.clone(), Arc::clone(&exchange));
                    exchange.begin();
                    async move {
                        Ok::<_, Infallible>(exchange.answer(serve(&front, peer.ip(), &rest, request).await))
                    }
                }),
            );
        tasks.spawn(async move {
            let _held = (open, place);
            tokio::pin!(connection);
            let served = async {
                // A connection that breaks is the client's affair: nothing to say beyond the request's own log line.
                let _ = tokio::select! {
                    served = connection.as_mut() => served,
                    () = ends.stop.cancelled() => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                };
            };
            ends.cut.run_until_cancelled(served).await;
        });
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
    places: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, place))
}
