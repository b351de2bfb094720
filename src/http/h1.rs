//! The fast path: plain HTTP/1.1 requests to the hot route, read and answered on the socket itself.
//!
//! Most requests are alike: a POST of a few hundred bytes with a Content-Length, on a kept-alive connection. This module
//! serves such requests without hyper. The listener enters it by [`serve`] and nowhere else, and works without it: the
//! feature `h1-fast-path` may be off (`docs/decisions/0010-the-fast-path-stays-behind-one-seam.md`).
//!
//! Five invariants hold:
//!
//! 1. The fast path reads a strict subset of HTTP/1.1 and refuses nothing. hyper gets every other request (chunks, an
//!    expectation, an origin, another route, a malformed head) with all bytes that were read. So two parsers never disagree
//!    on where a request ends.
//! 2. A connection that was handed to hyper stays with hyper.
//! 3. A request keeps its permits until the kernel has the whole response.
//! 4. Timers and shutdown are checked only after a wake-up that found nothing to read. They cost a request nothing.
//! 5. An idle connection has neither a buffer nor a request's future. While a call waits, at most [`head::MAX_BODY`]
//!    bytes are read ahead.

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

/// The time that the end of TLS may wait for a client that takes nothing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state in which a connection leaves the fast path.
pub(super) enum Outcome<S> {
    /// The connection is closed.
    Closed,
    /// hyper continues.
    HandOver {
        /// The open connection.
        socket: S,
        /// The bytes that were read and not served.
        read: Bytes,
        /// True if no request was served yet. The client may still speak HTTP/2.
        is_first: bool,
    },
}

/// Serves plain requests from `peer` until the connection closes, or sends a request that is not plain.
///
/// # Errors
/// Errors of the socket, and a client that sends or takes nothing within the configured timeouts.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
    front: &Arc<Front>,
    mut socket: S,
    peer: Option<IpAddr>,
    phases: &Phases,
) -> io::Result<Outcome<S>> {
    match H1Connection::new(front, &mut socket, peer, phases).run().await? {
        End::LastAnswer => Box::pin(farewell::linger(&mut socket, phases.periods.linger)).await,
        End::Idle => {
            // TLS announces its end. Without that, a client would suspect that something was cut off.
            let _ = Box::pin(tokio::time::timeout(CLOSE_TIMEOUT, socket.shutdown())).await;
        }
        End::NotPlain { read, is_first } => return Ok(Outcome::HandOver { socket, read, is_first }),
    }
    Ok(Outcome::Closed)
}
