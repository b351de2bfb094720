//! The fast path: serves plain HTTP/1.1 requests to the hot route without hyper.
//!
//! Most requests are alike: a POST of a few hundred bytes with a Content-Length, on a keep-alive connection. Such
//! requests are called plain here. The listener uses this module through [`serve`] only, and works without it: the
//! feature `h1-fast-path` may be off (`docs/decisions/0010-the-fast-path-stays-behind-one-seam.md`).
//!
//! Five invariants hold:
//!
//! 1. The fast path accepts a strict subset of HTTP/1.1, and refuses no request for its head. hyper gets every other
//!    request (chunks, an `Expect` or `Origin` field, another route, a malformed head) with all bytes that were read.
//!    So two parsers never disagree on where a request ends.
//! 2. A connection that was handed to hyper stays with hyper.
//! 3. A request keeps its permits until the kernel has the whole response.
//! 4. Timers and shutdown are checked only after a wake-up that found nothing to read. So these checks do not
//!    slow requests down.
//! 5. An idle connection has neither a buffer nor the future of a request. While a call waits, reading
//!    ahead stops once [`head::MAX_BODY`] bytes are read.

mod connection;
mod head;
mod writer;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::shutdown::Phases;
use super::{Front, farewell};
use connection::{End, H1Connection};

/// The maximum time for the shutdown of a socket. Over TLS the shutdown sends `close_notify`, and may wait for a
/// client that does not read.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of a connection that leaves the fast path.
pub(super) enum FastPathEnd<S> {
    /// The connection is closed.
    Closed,
    /// The connection is open. hyper has to serve the next request, and all later ones.
    HandOver {
        /// The open connection.
        socket: S,
        /// The bytes that were read from the socket and belong to no served request.
        read: Bytes,
        /// True if no request was served yet. The client may then speak HTTP/2.
        is_first: bool,
    },
}

/// Serves plain requests (usual POSTs of JSON-RPC calls) until the connection closes or gets any other request. `peer`
/// is the client's address.
///
/// # Errors
/// Errors of the socket, or [`io::ErrorKind::TimedOut`] if a head takes too long or the client stops reading an answer.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
    front: &Arc<Front>,
    mut socket: S,
    peer: Option<IpAddr>,
    phases: &Phases,
) -> io::Result<FastPathEnd<S>> {
    match H1Connection::new(front, &mut socket, peer, phases).run().await? {
        End::LastAnswer => Box::pin(farewell::linger(&mut socket, phases.periods.linger)).await,
        End::NothingToAnswer => {
            // Over TLS this sends `close_notify`. Without it, a client would suspect that data was cut off.
            let _ = Box::pin(tokio::time::timeout(CLOSE_TIMEOUT, socket.shutdown())).await;
        }
        End::NotPlain { read, is_first } => return Ok(FastPathEnd::HandOver { socket, read, is_first }),
    }
    Ok(FastPathEnd::Closed)
}
