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

use tokio::io::{AsyncRead, AsyncWrite};

use super::Front;
use super::shutdown::Phases;
use super::timed_socket::linger;
use connection::H1Connection;
pub(super) use connection::Left;

/// Serves plain requests (usual POSTs of JSON-RPC calls) until the connection closes or gets any other request. `peer`
/// is the client's address. Returns the connection if hyper has to serve its next request, and all later ones.
///
/// # Errors
/// Errors of the socket, or [`io::ErrorKind::TimedOut`] if a head takes too long or the client stops reading an answer.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
    front: &Arc<Front>,
    mut socket: S,
    peer: Option<IpAddr>,
    phases: &Phases,
) -> io::Result<Option<(S, Left)>> {
    if let Some(left) = H1Connection::new(front, &mut socket, peer, phases).run().await? {
        return Ok(Some((socket, left)));
    }
    Box::pin(linger(&mut socket, phases.periods.linger)).await;
    Ok(None)
}
