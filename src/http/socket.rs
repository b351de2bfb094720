//! The sockets of clients: how they are set up, and those that nobody has accepted when accepting ends.

use std::net::SocketAddr;

#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

/// Bytes of answers that the kernel takes beyond what it can send. Without this bound it says that a socket can be written
/// only once a third of a buffer of some MiB is free: a client that takes its answer slowly looks as if it took none.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 64 * 1024;

/// Sets a client's socket up. Without these options it is served all the same.
pub(super) fn prepare(socket: &TcpStream) {
    // Answers are written whole, so waiting for more to send only delays them.
    let _ = socket.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES);
}

/// The connections that wait in the kernel's queue; after them the listener closes.
pub(super) fn queued(listener: TcpListener) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    // Asked directly, because tokio may not have heard of them yet.
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        let (socket, peer) = listener.as_ref()?.accept().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(socket).ok()?, peer))
    })
}
