//! The options of clients' sockets, and the connections left in the kernel's queue when the listener closes.

use std::net::SocketAddr;

#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

/// The number of unsent bytes up to which the kernel reports a socket as writable (`TCP_NOTSENT_LOWAT`).
///
/// By default the kernel waits until a third of a buffer of some MiB is free. A client that reads slowly would
/// then seem to read nothing.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 64 * 1024;

/// Sets the options of a client's socket. Errors are ignored, because the socket works without the options.
pub(super) fn prepare(socket: &TcpStream) {
    // The head and the body of a response are written at once or right after each other, so a delay of small packets
    // would gain nothing.
    let _ = socket.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES);
}

/// Returns the connections that wait in the kernel's queue. Dropping the iterator closes the listener.
pub(super) fn queued(listener: TcpListener) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    // The kernel is asked directly, because tokio may not know of these connections yet.
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        let (socket, peer) = listener.as_ref()?.accept().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(socket).ok()?, peer))
    })
}
