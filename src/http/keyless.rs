//! The memory of connections that have not shown a valid key: a quarter of `server.max_incoming` for each client address.
//!
//! A connection takes memory before anybody knows who its client is: for its task, a part of a head, a TLS handshake,
//! the buffers of hyper. Its address answers for that memory until a request has a valid key. What is counted is the most
//! that a connection can make slotfront keep in its state, so that it is counted before it is kept. An address that
//! exceeds its part loses its oldest connections, because a newcomer may be about to show a key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::client_ip::Peer;
use crate::gateway::PerAddress;

/// The bytes that a connection takes at least: its task, its timers, the state of a request.
const CONNECTION: usize = 8 << 10;
/// The bytes of a TLS session, and those that a handshake takes beside it.
pub(super) const TLS: usize = 16 << 10;
pub(super) const HANDSHAKE: usize = 48 << 10;
/// The bytes that hyper takes for a connection over HTTP/1.1: its buffers and the longest head.
pub(super) const HTTP1: usize = 72 << 10;
/// The bytes of a connection over HTTP/2: buffers, the longest head, the window of bytes that the client may send before
/// slotfront has read them, and the requests that need no key.
pub(super) const HTTP2: usize = 192 << 10;

/// The connections that have shown no key, by client address.
pub(super) struct KeylessConnections {
    /// The bytes that the connections of one address may take.
    limit: usize,
    addresses: PerAddress<Mutex<Keyless>>,
}

#[derive(Default)]
struct Keyless {
    bytes: usize,
    last: u64,
    /// The connections with their bytes, the oldest first.
    places: BTreeMap<u64, (usize, Arc<Notify>)>,
}

/// The error of a connection that had to make room.
#[derive(Debug, thiserror::Error)]
#[error(
    "closed, because connections of the client's address without a valid key take more than a quarter of server.max_incoming"
)]
pub(super) struct TooManyKeyless;

impl KeylessConnections {
    pub(super) fn new(max_incoming: usize) -> Self {
        Self { limit: max_incoming / 4, addresses: PerAddress::new() }
    }

    /// Counts a new connection of `peer`.
    pub(super) fn enter(&self, peer: Peer) -> KeylessPlace {
        let of = self.addresses.get(peer.address(), Mutex::default);
        let mut keyless = lock(&of);
        keyless.last += 1;
        let (number, closing) = (keyless.last, Arc::<Notify>::default());
        keyless.places.insert(number, (0, Arc::clone(&closing)));
        drop(keyless);
        let (limit, key_shown) = (self.limit, AtomicBool::new(false));
        let place = KeylessPlace { peer, of, number, limit, closing, key_shown };
        place.grow(CONNECTION);
        place
    }
}

/// A connection's place among those of its address.
pub(super) struct KeylessPlace {
    pub(super) peer: Peer,
    of: Arc<Mutex<Keyless>>,
    number: u64,
    limit: usize,
    closing: Arc<Notify>,
    key_shown: AtomicBool,
}

impl KeylessPlace {
    pub(super) fn uncounted(peer: Peer) -> Self {
        let (of, closing) = (Arc::default(), Arc::default());
        Self { peer, of, number: 0, limit: 0, closing, key_shown: AtomicBool::new(false) }
    }

    /// Counts `bytes` more bytes, unless the connection has shown a key. If its address exceeds its part, the oldest
    /// connections are to close.
    pub(super) fn grow(&self, bytes: usize) {
        let mut keyless = lock(&self.of);
        let Some((own, _)) = keyless.places.get_mut(&self.number) else { return };
        *own += bytes;
        keyless.bytes += bytes;
        while keyless.bytes > self.limit
            && let Some((_, (bytes, closing))) = keyless.places.pop_first()
        {
            keyless.bytes -= bytes;
            closing.notify_one();
        }
    }

    /// Counts `bytes` fewer bytes.
    pub(super) fn shrink(&self, bytes: usize) {
        let mut keyless = lock(&self.of);
        if let Some((own, _)) = keyless.places.get_mut(&self.number) {
            *own -= bytes;
            keyless.bytes -= bytes;
        }
    }

    /// Records that a request of the connection had a valid key. From now on the connection is not counted.
    pub(super) fn show_key(&self) {
        if !self.key_shown.swap(true, Ordering::Relaxed) {
            self.leave();
        }
    }

    pub(super) fn has_shown_key(&self) -> bool {
        self.key_shown.load(Ordering::Relaxed)
    }

    pub(super) fn must_close(&self) -> impl Future<Output = ()> {
        self.closing.notified()
    }

    fn leave(&self) {
        let mut keyless = lock(&self.of);
        if let Some((bytes, _)) = keyless.places.remove(&self.number) {
            keyless.bytes -= bytes;
        }
    }
}

impl Drop for KeylessPlace {
    fn drop(&mut self) {
        self.leave();
    }
}

fn lock(keyless: &Mutex<Keyless>) -> MutexGuard<'_, Keyless> {
    keyless.lock()
}
