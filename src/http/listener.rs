//! The accept loop: axum's own sets no header timeout and no connection limit, so this one is ours, on hyper-util.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Front, rest, serve};

/// After a failed accept (no more file descriptors, usually) there is a pause, or the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves connections until `stop`; then in-flight requests finish and idle connections close. Tasks are `tasks`'.
pub async fn run(front: Arc<Front>, listener: TcpListener, tasks: TaskTracker, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(front.config.server.max_connections));
    let rest = rest::router(Arc::clone(&front));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(front.config.server.header_timeout)
        .half_close(false);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
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
        let (front, rest, stop) = (Arc::clone(&front), rest.clone(), stop.clone());
        front.metrics.connections.inc();
        let connection = http.serve_connection(
            TokioIo::new(stream),
            service_fn({
                let front = Arc::clone(&front);
                move |request| {
                    let (front, rest) = (Arc::clone(&front), rest.clone());
                    async move {
                        Ok::<_, std::convert::Infallible>(serve(&front, peer.ip(), &rest, request).await)
                    }
                }
            }),
        );
        tasks.spawn(async move {
            tokio::pin!(connection);
            // A connection that breaks is the client's affair: nothing to say beyond the request's own log line.
            let _ = tokio::select! {
                served = connection.as_mut() => served,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            front.metrics.connections.dec();
            drop(place);
        });
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
